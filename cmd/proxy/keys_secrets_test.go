package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The command fills the empty Secrets of the chart, and changes nothing when it runs again.
func TestKeysSecrets(t *testing.T) {
	t.Parallel()
	api, dir := kubetest.NewAPIServer(t), t.TempDir()
	for _, name := range []string{"serving", "serving-ca", "signing", "signing-ca"} {
		api.Put("secrets", kubetest.Object{"metadata": kubetest.Object{"namespace": "pullpass", "name": name}})
	}
	api.Put("configmaps", kubetest.Object{"metadata": kubetest.Object{"namespace": "nodes", "name": "trust"}})
	testkit.Write(t, dir, "kubeconfig", api.Kubeconfig())
	keep := func(args ...string) (output string, code int) {
		var stdout, stderr bytes.Buffer
		code = run(t.Context(), append([]string{"keys", "secrets", "--kubeconfig", filepath.Join(dir, "kubeconfig"), "--namespace=pullpass"}, args...), nil, &stdout, &stderr)
		return stdout.String() + stderr.String(), code
	}
	good := []string{"--server=serving=registry.example.com,::0001", "--signing=signing=EdDSA", "--trust=nodes/trust"}
	for _, want := range []string{"serving: a new certificate and key\nsigning: a new certificate and key\n", "serving: unchanged\nsigning: unchanged\n"} {
		if output, code := keep(good...); code != 0 || output != want {
			t.Errorf("exit code %d: %s", code, output)
		}
	}
	if data, _ := api.Object("configmaps", "nodes", "trust")["data"].(kubetest.Object); data["ca.crt"] == nil {
		t.Error("the ConfigMap has no CA")
	}

	for args, want := range map[string]string{
		"":                              "give at least one",
		"--server=serving":              "has an empty name",
		"--server=serving=a,":           "has an empty name",
		"--signing==ES256":              "has no name",
		"--signing=a --signing=a":       "is named twice",
		"--server=a=b --signing=a":      "is named twice",
		"--signing=signing=none":        "none",
		"--signing=signing --trust=a/b": "--trust: give",
		"--server=serving=a --trust=a":  "--trust: give",
		"--server=missing=a":            "missing",
		// One Secret does not keep the others from being renewed.
		"--server=missing=a --signing=signing=ES256": "signing: a new certificate and key\n",
	} {
		if output, code := keep(strings.Fields(args)...); code != 1 || !strings.Contains(output, want) {
			t.Errorf("%s: exit code %d: %s", args, code, output)
		}
	}
}
