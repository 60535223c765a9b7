// Package troubletest makes each symptom of docs/how-to/troubleshooting.md with the real programs, and compares what they print with
// what the page shows.
package troubletest

import (
	"testing"

	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/programs"
)

func TestMain(m *testing.M) {
	isolate.Main(m, func(t testing.TB) {
		programs.Build(t,
			programs.Distribution, programs.DockerRegistry, programs.Crane, programs.Skopeo, programs.Podman, programs.Dockerd, programs.Docker, programs.Helm, programs.Oras,
			programs.Etcd, programs.KubeAPIServer, programs.KubeControllerManager, programs.Kubelet, programs.Kubectl, programs.Containerd, programs.OldContainerd, programs.Runc, programs.Pause,
			programs.CredentialProvider, programs.Pullpass, programs.CredentialHelper,
		)
	})
}
