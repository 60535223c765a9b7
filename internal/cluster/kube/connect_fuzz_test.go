package kube

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A kubeconfig has a current context, or is refused.
func FuzzKubeconfig(f *testing.F) {
	for _, content := range []string{
		"apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a, user: a, namespace: b}}]\nclusters: [{name: a, cluster: {server: \"https://a\"}}]\nusers: [{name: a, user: {token: x}}]\n", "current-context: &a [*a]\n", "{}", "apiVersion: v2\nkind: Config\n",
	} {
		f.Add([]byte(content))
	}
	name := filepath.Join(f.TempDir(), "kubeconfig")
	f.Fuzz(func(t *testing.T, data []byte) {
		testkit.Must(t, os.WriteFile(name, data, 0o600))
		if config, err := readKubeconfig(name); (config == nil) == (err == nil) || err == nil && config.CurrentContext == "" {
			t.Errorf("%q: %+v, %v", data, config, err)
		}
		_, _ = Kubeconfig(name)
	})
}
