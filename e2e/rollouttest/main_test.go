// Package rollouttest has the chart's installer work on the nodes of a real API server, with the real DaemonSet controller, scheduler,
// rights and admission policy. The hosts are directories, their kubelets are simulated, and each pod of the installer is the real
// program, with the arguments of the chart and a token of its pod.
package rollouttest

import (
	"testing"

	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/programs"
)

func TestMain(m *testing.M) {
	isolate.Main(m, func(t testing.TB) {
		programs.Build(t,
			programs.Etcd, programs.KubeAPIServer, programs.KubeControllerManager, programs.KubeScheduler, programs.Kubectl, programs.Helm, programs.Pullpass, programs.SimulatedSystemd,
		)
	})
}
