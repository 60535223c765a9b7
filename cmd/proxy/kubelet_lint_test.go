package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

var updateKubelet = flag.Bool("update-kubelet", false, "write what kubelet-config --lint says into testdata/kubelet")

// kubeletTestConfig has the proof by certificate, and two audiences.
const kubeletTestConfig = `
apiVersion: pullpass.dev/v1alpha1
kind: ProxyConfiguration
server: {tls: {clientCAFile: node-ca.crt}}
clusters:
- name: prod-eu
  issuer: https://oidc.prod-eu.example.com
  audiences: [registry.example.com, push.example.com]
  node: {proof: {mode: enforce, methods: [certificate]}}
registries: [{service: registry.example.com, issuer: pullpass.example.com}]
policyFiles: [policy.yaml]
`

// Each file of testdata/kubelet holds files of a node and what --lint says of
// them. A file below bin/ is put there with the mode that it holds, and bin is
// --plugin-dir.
func TestKubeletLint(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("testdata/kubelet/*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			t.Parallel()
			archive, err := txtar.ParseFile(name)
			must(t, err)
			dir := t.TempDir()
			o := kubeletOptions{registry: "registry.example.com"}
			var files []string
			for i, file := range archive.Files {
				mode := uint64(0o644)
				switch {
				case file.Name == "findings":
					if i != len(archive.Files)-1 {
						t.Fatal("findings must be the last file")
					}
					continue
				case file.Name == "registry":
					o.registry = strings.TrimSpace(string(file.Data))
					continue
				case strings.HasPrefix(file.Name, "bin/"):
					o.pluginDir = filepath.Join(dir, "bin")
					must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, file.Name)), 0o755))
					mode, err = strconv.ParseUint(strings.TrimSpace(string(file.Data)), 8, 32)
					must(t, err)
				default:
					files = append(files, filepath.Join(dir, file.Name))
				}
				must(t, os.WriteFile(filepath.Join(dir, file.Name), file.Data, 0o644))
				must(t, os.Chmod(filepath.Join(dir, file.Name), os.FileMode(mode)))
			}
			got := lintWith(t, o, files)
			got = strings.ReplaceAll(got, dir+"/", "")
			findings := &archive.Files[len(archive.Files)-1]
			if *updateKubelet {
				findings.Data = []byte(got)
				must(t, os.WriteFile(name, txtar.Format(archive), 0o644))
			}
			if want := string(findings.Data); got != want {
				t.Errorf("findings:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// lintWith returns the findings, or what is said without any.
func lintWith(t *testing.T, o kubeletOptions, files []string) string {
	t.Helper()
	findings, notJudged := kubeletTestTarget(t, kubeletTestConfig, o).lint(t.Context(), files)
	var said strings.Builder
	for _, finding := range findings {
		fmt.Fprintln(&said, finding)
	}
	if len(findings) == 0 {
		fmt.Fprintf(&said, "%d files: no findings\n", len(files))
		for _, part := range notJudged {
			fmt.Fprintf(&said, "not judged: %s, which is not among the files\n", part)
		}
	}
	return said.String()
}

func kubeletTestTarget(t *testing.T, config string, o kubeletOptions) kubeletTarget {
	t.Helper()
	cfg, err := ParseConfig([]byte(config), "pullpass.yaml", "/etc/pullpass")
	must(t, err)
	target, err := newKubeletTarget(cfg, o)
	must(t, err)
	return target
}
