package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/testkit"
)

func TestExamplesForTheNodesHaveNoFindings(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	args := []string{"kubelet-config", "--config", "../../examples/pullpass.yaml", "--registry", "registry.example.com",
		"--lint", "../../examples/credential-provider.yaml", "../../examples/audience-rbac.yaml"}
	if code := run(t.Context(), args, nil, &stdout, &stderr); code != 0 {
		t.Errorf("exit code %d: %s", code, stderr.String())
	}
}

// The document shows what is printed for the example.
func TestKubeletDocument(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/kubelet.md")
	testkit.Must(t, err)
	var stdout, stderr bytes.Buffer
	args := []string{"kubelet-config", "--config", "../../examples/pullpass.yaml", "--registry", "registry.example.com"}
	if code := run(t.Context(), args, nil, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	for part := range strings.SplitSeq(stdout.String(), "\n\n") {
		settings := strings.TrimSpace(withoutComments(part))
		if !strings.Contains(withoutComments(string(text)), settings) {
			t.Errorf("docs/kubelet.md does not show\n%s", settings)
		}
	}
}

// withoutComments returns the lines that are not comments alone.
func withoutComments(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		if !strings.HasPrefix(line, "#") {
			b.WriteString(line)
		}
	}
	return b.String()
}
