// Package pullsecretstest runs "pullpass pull-secrets controller" in a real cluster, with what deploy/kubernetes gives to
// administrators: what the policies let through, and what the controller does with thousands of ServiceAccounts. Package nodetest
// has the pods that pull by it. "go test -v" shows what was seen.
package pullsecretstest

import (
	"testing"

	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/programs"
)

func TestMain(m *testing.M) {
	isolate.Main(m, func(t testing.TB) {
		programs.Build(t,
			programs.Etcd, programs.KubeAPIServer, programs.KubeControllerManager, programs.Kubectl, programs.Pullpass,
		)
	})
}
