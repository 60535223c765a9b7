// Package nodetest runs pods on nodes: the kubelet, containerd, a registry, Pullpass and its plugin, with a control plane.
// "go test -v" shows a table of what was seen.
package nodetest

import (
	"flag"
	"log"
	"testing"

	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/programs"
)

func TestMain(m *testing.M) {
	// The scenarios wait for the kubelets most of the time, so more of them fit than processors.
	flag.Parse()
	if err := flag.Set("test.parallel", "32"); err != nil {
		log.Fatal(err)
	}
	isolate.Main(m, func(t testing.TB) {
		programs.Build(t,
			programs.Etcd, programs.KubeAPIServer, programs.KubeControllerManager, programs.Kubelet, programs.Kubectl,
			programs.Containerd, programs.OldContainerd, programs.Runc, programs.Distribution, programs.DockerRegistry, programs.RedisServer, programs.RedisCLI,
			programs.Pullpass, programs.PullpassWithClock, programs.CredentialProvider, programs.Pause,
		)
	})
}
