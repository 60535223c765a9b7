// Package privilegetest attacks as each ServiceAccount of the chart and of deploy/kubernetes, on a real API server: what could be
// asked for, read and changed is compared with a list in testdata. "go test -update" writes the list; a change of it is a change of
// what an attacker can do, and docs/internals/security.md has to say the same.
package privilegetest

import (
	"testing"

	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/programs"
)

func TestMain(m *testing.M) {
	isolate.Main(m, func(t testing.TB) {
		programs.Build(t, programs.Etcd, programs.KubeAPIServer, programs.Kubectl, programs.Helm)
	})
}
