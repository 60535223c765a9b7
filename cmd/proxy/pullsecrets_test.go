package main

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
)

// The command has its flags, and reaches the same code.
func TestPullSecretsCommand(t *testing.T) {
	t.Parallel()
	l := kubetest.NewListServer(t)
	dir := proxytest.Connected(t, l, "")
	var stdout, stderr bytes.Buffer
	args := []string{"pull-secrets", "--config", filepath.Join(dir, "pullpass.yaml"), "--kubeconfig", filepath.Join(dir, "kubeconfig"), "--registry", "registry.example.com", "--service", "registry.example.com",
		"--cluster", "prod", "--namespace", "team-a", "-o", "json"}
	if code := run(t.Context(), args, nil, &stdout, &stderr); code != 0 || !strings.Contains(stdout.String(), `"kind": "PullSecretReport"`) {
		t.Errorf("exit code %d: %s%s", code, stdout.String(), stderr.String())
	}
	for _, missing := range []string{"--registry", "--kubeconfig", "--config"} {
		i := slices.Index(args, missing)
		stderr.Reset()
		if code := run(t.Context(), slices.Delete(slices.Clone(args), i, i+2), nil, &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), "required flag") {
			t.Errorf("without %s: exit code %d: %s", missing, code, stderr.String())
		}
	}
}
