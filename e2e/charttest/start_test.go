package charttest

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/node"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/registry"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// TestStart follows docs/start/try.md. Another registry stands in for quay.io, and the test for the installer: the node has its
// files, but no systemd.
func TestStart(t *testing.T) {
	s := startSite(t)
	defer func() { t.Logf("what was seen\n%s", s.table.String()) }()
	defer func() {
		if t.Failed() {
			output, err := s.try(t, "kubectl", "describe", "pods", "--all-namespaces")
			t.Logf("pods: %v\n%s", err, output)
		}
	}()
	const image = "docker.io/library/pullpass:dev"
	m := openManual(t, "start/try.md", t.TempDir())
	quay := certs.NewCA(t, "quay")
	upstream := registry.Start(t, quay, registry.Config{Program: programs.Distribution(t)})
	testenv.Must(t, node.Push(t.Context(), quay.Transport(t), "", "", upstream.Host+"/prometheus/busybox:latest", node.Image(t, "busybox")))
	values := testenv.ReadFile(t, filepath.Join(programs.Checkout(t), "deploy/start/values.yaml"))
	values = testenv.Replace(t, values, "issuer: https://kubernetes.default.svc.cluster.local\n", "issuer: "+s.Issuer+"\n")
	values = testenv.Replace(t, values, "https://kubernetes.default.svc.cluster.local/openid", "https://"+isolate.ServiceAddress+"/openid")
	values = testenv.Replace(t, values, "  - name: quay.io\n", "  - name: quay.io\n    url: https://"+upstream.Host+"\n    caFile: quay.crt\n")
	values += "files:\n  quay.crt: |\n    " + strings.ReplaceAll(strings.TrimSpace(testenv.ReadFile(t, quay.File)), "\n", "\n    ") + "\n"
	m.write(t, "values.yaml", values)

	rendered := parse(t, s.run(t, "helm", "template", "pullpass", chart(t), "--namespace=pullpass", "--values="+filepath.Join(m.directory, "values.yaml")))
	m.write(t, "pullpass.yaml", rendered.named("ConfigMap", "pullpass").Text("data", "pullpass.yaml"))
	worker := node.Start(t, node.Config{
		Name: "worker", Address: isolate.Addresses()[0], PodNetwork: "10.98.1.0/24", Cluster: s.Cluster, CA: quay,
		Pullpass: &pullpass.Proxy{ConfigFile: filepath.Join(m.directory, "pullpass.yaml")}, Mirrors: []string{"quay.io"},
	})
	worker.ImportImage(t, programs.PullpassImage(t, image), image)
	s.saw("a node with the image", "")

	s.do(t, m, "helm install")
	s.saw("helm install", "")
	ca := s.Get(t, "/api/v1/namespaces/pullpass-nodes/configmaps/pullpass-serving-ca").Text("data", "ca.crt")
	worker.Trust(t, "quay.io", ca)

	if events := s.do(t, m, "team-b --image"); !strings.Contains(events, "ImagePullDenied") || !strings.Contains(events, "no rule for try/team-b/default allows pull on quay.io/prometheus/busybox") {
		t.Errorf("the events of the pod of team-b:\n%s", events)
	}
	s.saw("a pull that is refused", "")
	if log := s.do(t, m, "team-a --image"); !strings.Contains(log, `"namespace":"team-a"`) {
		t.Errorf("the audit log of the pull of team-a: %s", log)
	}
	s.saw("a pull that is granted", "")
	m.write(t, "values.yaml", testenv.Replace(t, values, "namespaces: [team-a]", "namespaces: [team-a, team-b]"))
	s.do(t, m, "helm upgrade")
	s.saw("another rule", "the pod of team-b runs")

	// Registries and nodes trust the CAs, also after another installation.
	keys := func() []string {
		var all []string
		for _, name := range []string{"serving", "gateway-signing"} {
			all = append(all, s.Get(t, "/api/v1/namespaces/pullpass/secrets/pullpass-"+name+"-ca").Text("data", "tls.key"))
		}
		return all
	}
	made := keys()
	s.run(t, "helm", "uninstall", "pullpass", "--namespace=pullpass")
	s.run(t, "helm", "install", "pullpass", chart(t), "--namespace=pullpass", "--values="+filepath.Join(m.directory, "values.yaml"), "--set=nodes.install.enabled=false", "--wait", "--wait-for-jobs")
	if after := keys(); !slices.Equal(made, after) || slices.Contains(after, "") {
		t.Error("another installation has other CAs")
	}
	s.saw("helm uninstall and helm install", "the same CAs")
}
