// Package kubectltest runs the plugin of kubectl as a developer who has few rights.
package kubectltest

import (
	"testing"

	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/programs"
)

func TestMain(m *testing.M) {
	isolate.Main(m, func(t testing.TB) {
		programs.Etcd(t)
		programs.KubeAPIServer(t)
		programs.Kubectl(t)
		programs.KubectlPlugin(t)
		programs.Pullpass(t)
	})
}
