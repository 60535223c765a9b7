// Package charttest tests the Helm chart: what Helm makes of many sets of values, whether Pullpass and a real API server accept it,
// and what happens to pulls while Pullpass is upgraded, scaled, drained and rolled back on real nodes. "go test -v" shows a table of
// what was seen.
package charttest

import (
	"testing"

	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/programs"
)

// image is that of Pullpass, as docs/start/install.md names it.
const image = "images.example.com/pullpass:dev"

func TestMain(m *testing.M) {
	isolate.Main(m, func(t testing.TB) {
		programs.Build(t,
			programs.Etcd, programs.KubeAPIServer, programs.KubeControllerManager, programs.KubeScheduler, programs.Kubelet, programs.Kubectl,
			programs.Containerd, programs.OldContainerd, programs.Runc, programs.Distribution, programs.Helm,
			programs.Pullpass, programs.CredentialProvider, programs.Pause,
		)
		programs.PullpassImage(t, image)
		programs.CustomResources(t)
	})
}
