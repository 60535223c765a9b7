// Package podtest runs clients that pull as a pod on a real node: registry clients, scanners and verifiers in pods, and CSI drivers. It
// tests the examples of docs/how-to/in-pod.md, docs/how-to/readers.md and docs/how-to/csi.md. "go test -v" shows a table of the results.
package podtest

import (
	"flag"
	"testing"

	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/programs"
)

func TestMain(m *testing.M) {
	flag.Parse()
	isolate.Main(m, func(t testing.TB) {
		programs.Build(t,
			programs.Etcd, programs.KubeAPIServer, programs.KubeControllerManager, programs.Kubelet, programs.Kubectl,
			programs.Containerd, programs.Runc, programs.Distribution,
			programs.Pullpass, programs.CredentialProvider, programs.Pause,
			programs.CredentialHelper, programs.PodClient, programs.CSIDriver,
		)
		buildReaders(t)
	})
}
