package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A real API server tests the rest: e2e, TestKubernetes.
func TestClusterCommandsRefuse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	testkit.Write(t, dir, "kubeconfig", kubetest.NewAPIServer(t).Kubeconfig())
	add := "add a --audience=b --kubeconfig=" + kubeconfig
	for args, want := range map[string]string{
		"add a":                               `required flag(s) "audience", "kubeconfig" not set`,
		strings.Replace(add, " a ", " A ", 1): "is not a DNS label",
		add + " --user=c":                     "[user token-file]",
		add + " --context=other":              "other",
		"renew":                               "give at least one",
		"renew --secret=a":                    "--namespace: give",
		"renew --dir=" + dir + "/missing":     "missing/kubeconfig",
		"renew --dir=" + dir + "/missing --secret=a --namespace=b --kubeconfig=" + kubeconfig: `secrets "a"`,
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), append([]string{"cluster"}, strings.Fields(args)...), nil, &stdout, &stderr)
		if code != 1 || stdout.Len() > 0 || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: exit code %d: %s%s", args, code, &stdout, &stderr)
		}
	}
}
