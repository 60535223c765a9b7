// Package privilegetest attacks as each ServiceAccount of the chart and of deploy/kubernetes, on a real API server. It compares
// all that they can request, read and change with a list in testdata. "go test -update" writes the list; a change of it changes the
// power of an attacker, and docs/internals/security.md has to say the same.
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
