package charttest

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/node"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/registry"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// The names of docs/start/install.md.
const (
	registryName = "registry.example.com"
	realm        = "https://" + registryName + ":8443/token"
	namespace    = "pullpass"
	builders     = "builders" // of those who push
)

// installation is what docs/start/install.md leads to.
type installation struct {
	*site
	*manual
	ca         *certs.CA // of the registry and the token endpoint
	nodes      []*node.Node
	builder    *http.Transport // presents the certificate of a node
	asker      *http.Transport // likewise, with a connection for each request
	token      string          // of a pod on that node that may push
	otherToken string          // of a pod of team-b there
}

// install follows docs/start/install.md, with two differences: the addresses of the API server, and the identities that may push.
func (s *site) install(t testing.TB) *installation {
	t.Helper()
	i := &installation{site: s, manual: openManual(t, "start/install.md", t.TempDir()), ca: certs.NewCA(t, "registry-ca")}
	testenv.Must(t, os.WriteFile("/etc/hosts", []byte("127.0.0.1 localhost "+registryName+"\n"), 0o644))
	values := i.block(t, "yaml", "# values.yaml")
	values = testenv.Replace(t, values, "https://kubernetes.default.svc.cluster.local #", s.Issuer+" #")
	values = testenv.Replace(t, values, "https://kubernetes.default.svc.cluster.local/openid", "https://"+isolate.ServiceAddress+"/openid")
	values += "  - {name: builders, subjects: [{namespaces: [" + builders + "]}], allow: [{repositories: ['**'], actions: [pull, push]}]}\nshutdownDelay: 3\n"
	proof := testenv.Replace(t, i.block(t, "yaml", "proof:"), "mode: audit", "mode: enforce")
	i.startNodes(t, testenv.Replace(t, values, "    kubernetes: {inCluster: true}\n", "    kubernetes: {inCluster: true}\n"+proof))

	serving := i.ca.Server(t, "pullpass", registryName)
	for file, path := range map[string]string{"tls.crt": serving.CertFile, "tls.key": serving.KeyFile} {
		i.write(t, file, testenv.ReadFile(t, path))
	}
	i.do(t, i.manual, "openssl req -x509")
	s.run(t, "kubectl", "label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
	s.saw("certificates and keys", "")
	i.write(t, "values.yaml", values)
	i.do(t, i.manual, "helm install")
	s.saw("helm install", "")
	i.route(t)
	i.startRegistry(t)
	i.startBuilder(t)
	return i
}

// startNodes runs a node with each containerd, configured as what will be installed with the values says.
func (i *installation) startNodes(t testing.TB, values string) {
	t.Helper()
	i.write(t, "values.yaml", values)
	rendered := parse(t, i.run(t, "helm", "template", "pullpass", chart(t), "--namespace="+namespace, "--values="+filepath.Join(i.directory, "values.yaml")))
	i.write(t, "pullpass.yaml", rendered.named("ConfigMap", "pullpass").Text("data", "pullpass.yaml"))
	archive := programs.PullpassImage(t, image)
	for n, address := range isolate.Addresses() {
		started := node.Start(t, node.Config{
			Name: []string{"containerd-2", "containerd-1"}[n], Address: address, OldContainerd: n == 1,
			PodNetwork: []string{"10.98.1.0/24", "10.98.2.0/24"}[n],
			Cluster:    i.Cluster, Pullpass: &pullpass.Proxy{ConfigFile: filepath.Join(i.directory, "pullpass.yaml")}, Registry: registryName, CA: i.ca,
		})
		started.ImportImage(t, archive, image)
		i.nodes = append(i.nodes, started)
	}
	i.saw("two nodes are ready", "")
}

func (i *installation) startRegistry(t testing.TB) {
	t.Helper()
	printed := i.do(t, i.manual, " registry-config ")
	for _, line := range []string{"realm: \"" + realm + "\"", "service: \"" + registryName + "\"", "issuer: \"" + pullpass.Issuer + "\"", "rootcertbundle:"} {
		if !strings.Contains(printed, "\n    "+line) {
			t.Errorf("registry-config has no line %q:\n%s", line, printed)
		}
	}
	registry.Start(t, i.ca, registry.Config{
		Program: programs.Distribution(t), Address: "127.0.0.1:443", Names: []string{registryName}, Realm: realm,
		Service: registryName, Issuer: pullpass.Issuer, RootCertBundle: []byte(i.read(t, "signing-ca.crt") + i.nextCA(t)),
	})
	i.saw("registry-config in a pod", "")
}

// nextCA makes another CA as docs/start/install.md made the first.
func (i *installation) nextCA(t testing.TB) string {
	t.Helper()
	for line := range strings.Lines(i.block(t, "sh", "openssl req -x509")) {
		if strings.HasPrefix(line, "openssl req -x509") {
			i.run(t, "sh", "-euc", "cd "+i.directory+"\n"+strings.ReplaceAll(line, "signing-ca", "next-ca"))
		}
	}
	return i.read(t, "next-ca.crt")
}

// startBuilder is a pod that may push. It runs on no kubelet; its token and the certificate of its node are all that is needed.
func (i *installation) startBuilder(t testing.TB) {
	t.Helper()
	i.CreateNode(t, "build-1", nil)
	token := func(namespace string) string {
		i.CreateNamespace(t, namespace, nil)
		i.CreateServiceAccount(t, namespace, "builder", nil)
		return i.Token(t, cluster.PodToken(i.CreatePod(t, namespace, "build", "builder", "build-1"), registryName))
	}
	i.token, i.otherToken = token(builders), token("team-b")
	certificate := i.CA.Client(t, "system:node:build-1", "system:nodes").TLS(t)
	i.builder = i.ca.Transport(t, certificate)
	i.asker = i.builder.Clone()
	i.asker.DisableKeepAlives = true
}

// push puts an image into a repository, and returns its name.
func (i *installation) push(t testing.TB, repository string) string {
	t.Helper()
	image := registryName + "/" + repository + ":v1"
	testenv.Must(t, node.Push(t.Context(), i.builder, "serviceaccount", i.token, image, node.Image(t, repository)))
	return image
}
