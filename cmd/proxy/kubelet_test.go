package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestExamplesForTheNodesHaveNoFindings(t *testing.T) {
	t.Parallel()
	kubeletConfig(t, "--config", "../../examples/pullpass.yaml", "--registry", "registry.example.com",
		"--lint", "../../examples/credential-provider.yaml", "../../examples/audience-rbac.yaml")
}

// kubeletConfig returns what the command prints.
func kubeletConfig(t *testing.T, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), append([]string{"kubelet-config"}, args...), nil, &stdout, &stderr); code != 0 {
		t.Fatalf("%q: exit code %d: %s", args, code, stderr.String())
	}
	return stdout.String()
}

// The document shows what is printed for the example, and how that differs for a
// registry behind the gateway.
func TestKubeletDocument(t *testing.T) {
	t.Parallel()
	text := testkit.Read(t, "../../docs/how-to/kubelet.md")
	parts := strings.Split(kubeletConfig(t, "--config", "../../examples/pullpass.yaml", "--registry", "registry.example.com"), "\n\n")
	parts = append(parts, kubeletConfig(t, "--config", exampleWithGateway(t), "--mirror", "ghcr.io", "--part", "hosts"))
	for _, part := range parts {
		settings := strings.TrimSpace(testkit.WithoutComments(part))
		if !strings.Contains(testkit.WithoutComments(text), settings) {
			t.Errorf("docs/how-to/kubelet.md does not show\n%s", settings)
		}
	}
}

// Each command of the document works as it is written, and what it prints for a file
// has no findings there.
func TestKubeletDocumentCommands(t *testing.T) {
	t.Parallel()
	text := testkit.Read(t, "../../docs/how-to/kubelet.md")
	const command = "\npullpass kubelet-config --config pullpass.yaml "
	found := strings.Split(strings.ReplaceAll(text, "\\\n", ""), command)[1:]
	if len(found) < 5 {
		t.Fatalf("%d commands", len(found))
	}
	config := []string{"--config", exampleWithGateway(t)}
	for _, rest := range found {
		line, _, _ := strings.Cut(rest, "\n")
		line, _, _ = strings.Cut(line, " # ")
		root := t.TempDir()
		args := strings.Fields(line)
		flags, files := args, []string(nil)
		if i := slices.Index(args, "--lint"); i >= 0 {
			flags, files = args[:i], args[i+1:]
		}
		if i := slices.Index(flags, "--plugin-dir"); i >= 0 {
			flags[i+1] = filepath.Join(root, flags[i+1])
			testkit.Must(t, os.MkdirAll(flags[i+1], 0o755))
			testkit.Must(t, os.WriteFile(filepath.Join(flags[i+1], "pullpass-credential-provider"), nil, 0o755))
		}
		args = slices.Concat(config, flags)
		for _, name := range files {
			if name == "FILE" {
				name = "hosts.toml"
			}
			part := map[string]string{"credential-provider.yaml": "provider", "audience-rbac.yaml": "rbac", "kubelet": "flags", "config.yaml": "kubelet", "hosts.toml": "hosts"}[filepath.Base(name)]
			path := filepath.Join(root, name)
			testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
			testkit.Must(t, os.WriteFile(path, []byte(kubeletConfig(t, slices.Concat(config, flags, []string{"--part", part})...)), 0o600))
			if !slices.Contains(args, "--lint") {
				args = append(args, "--lint")
			}
			args = append(args, path)
		}
		kubeletConfig(t, args...)
	}
}

// exampleWithGateway returns a file with the example, in front of other registries.
func exampleWithGateway(t *testing.T) string {
	t.Helper()
	example := testkit.Read(t, "../../examples/pullpass.yaml")
	const gateway = `
gateway: {url: https://gateway.example.com, service: gateway.example.com}
upstreams: [{name: ghcr.io}, {name: docker.io}]
`
	dir := t.TempDir()
	testkit.Write(t, dir, "pullpass.yaml", strings.Replace(example, "registries:\n", "registries:\n- {service: gateway.example.com, issuer: pullpass.example.com}\n", 1)+gateway)
	return filepath.Join(dir, "pullpass.yaml")
}
