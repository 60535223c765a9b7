// Package upgradetest upgrades Pullpass from the release before, while clients pull through it: replicas, files, shared state, the chart and
// nodes. "go test -v" shows a table of what was seen.
package upgradetest

import (
	"testing"

	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/programs"
)

func TestMain(m *testing.M) {
	isolate.Main(m, func(t testing.TB) {
		programs.Build(t, programs.Pullpass, programs.SimulatedSystemd, programs.Helm, programs.Etcd, programs.KubeAPIServer, programs.Kubectl)
		programs.CustomResources(t)
		programs.FormerRelease(t)
	})
}
