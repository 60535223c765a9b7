// Package criotest runs pods on a node with CRI-O.
package criotest

import (
	"testing"

	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/programs"
)

func TestMain(m *testing.M) {
	isolate.Main(m, func(t testing.TB) {
		programs.Build(t,
			programs.Etcd, programs.KubeAPIServer, programs.KubeControllerManager, programs.Kubelet, programs.Kubectl,
			programs.CRIO, programs.Pinns, programs.Conmon, programs.Runc, programs.Skopeo, programs.Distribution,
			programs.Pullpass, programs.CredentialProvider, programs.Pause,
		)
	})
}
