// Package pullsecretstest runs "pullpass pull-secrets controller" in a real cluster, with the files of deploy/kubernetes for
// administrators. It tests the admission policies, and the controller with thousands of ServiceAccounts. Package nodetest
// has the pods that pull by it. "go test -v" shows the results.
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
