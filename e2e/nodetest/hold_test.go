//go:build hold

package nodetest

import (
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// TestHold runs the nodes for a person until SIGTERM: "make node-up" starts it, "make node-shell" goes inside.
func TestHold(t *testing.T) {
	s := startSite(t)
	nodes := s.startNodes(t)
	for _, team := range []string{"team-a", "team-b"} {
		w := &work{site: s, namespace: team}
		w.account(t, "puller", nil)
		w.push(t, team+"/web")
	}
	const dir = "/usr/local/bin/"
	testenv.Must(t, os.MkdirAll(dir, 0o755))
	testenv.Must(t, os.Symlink(programs.Kubectl(t), dir+"kubectl"))
	s.Kubeconfig(t, "/run/kubeconfig", s.Admin.CertFile, s.Admin.KeyFile)
	testenv.Must(t, os.Symlink(s.proxy.ConfigFile, "/run/pullpass.yaml"))
	testenv.Must(t, os.Symlink(programs.Pullpass(t), dir+"pullpass"))
	for _, n := range nodes {
		script := "#!/bin/sh\nexec " + strings.Join(n.Command("ctr").Args, " ") + " --address=/run/containerd/containerd.sock --namespace=k8s.io \"$@\"\n"
		testenv.Must(t, os.WriteFile(dir+"ctr-"+n.Name(), []byte(script), 0o755))
	}
	for name, repository := range map[string]string{"own": "team-a/web", "others": "team-b/web"} {
		testenv.Must(t, os.WriteFile("/run/"+name+".yaml", fmt.Appendf(nil, `apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: team-a}
spec:
  nodeName: %s
  serviceAccountName: puller
  hostNetwork: true
  containers: [{name: c, image: %q}]
`, name, nodes[0].Name(), registryName+"/"+repository+":v1"), 0o644))
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	fmt.Print(ready)
	<-stop
}

const ready = `ready: make node-shell, and there for example

  kubectl apply -f /run/own.yaml -f /run/others.yaml    # one may pull its image, the other may not
  kubectl get pods -A -o wide
  kubectl describe pod -n team-a others                 # ImagePullDenied says why
  ctr-containerd-2 images list                          # and ctr-containerd-1
  pullpass explain --config /run/pullpass.yaml --as prod-eu/team-a/puller --scope repository:team-b/web:pull
`
