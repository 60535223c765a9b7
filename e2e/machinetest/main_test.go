// Package machinetest runs "pullpass node-install" on machines with systemd, containerd and a kubelet, in the file layout of each
// platform. "go test -v" shows a table of what was seen.
package machinetest

import (
	"flag"
	"log"
	"testing"

	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/programs"
)

func TestMain(m *testing.M) {
	// The machines wait most of the time, so more of them fit than processors; but a kubelet that starts needs one for a second.
	flag.Parse()
	if err := flag.Set("test.parallel", "5"); err != nil {
		log.Fatal(err)
	}
	isolate.Main(m, func(t testing.TB) {
		programs.Build(t,
			programs.Etcd, programs.KubeAPIServer, programs.KubeControllerManager, programs.Kubelet, programs.OldKubelet, programs.Containerd,
			programs.OldContainerd, programs.Runc, programs.Distribution, programs.Pullpass, programs.CredentialProvider, programs.Pause,
			programs.Rancher, programs.Systemd,
		)
		programs.NodeTemplates(t)
	})
}
