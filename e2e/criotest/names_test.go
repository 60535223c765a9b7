package criotest

import (
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
	"github.com/pullpass/pullpass/e2e/relay"
	"github.com/pullpass/pullpass/e2e/testenv"
	"github.com/pullpass/pullpass/e2e/upstream"
)

const (
	upstreamName = "ghcr.io"
	gatewayName  = "gateway.example.com"
	gatewayHosts = "127.0.0.1 localhost\n127.0.0.2 " + gatewayName + " " + upstreamName + " docker.io\n"

	// providers has docker.io by hand, and the gateway itself.
	providers = `- name: pullpass-credential-provider-2
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: [docker.io, ` + gatewayName + `]
  args: ["--gateway=https://` + gatewayName + `", "--by-name"]
  defaultCacheDuration: "0s"
  tokenAttributes: {cacheType: Token, serviceAccountTokenAudience: ` + gatewayName + `, requireServiceAccount: true}
`

	gatewayPolicy = `apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: own-image
  subjects: [{namespaces: ["*"]}]
  services: [` + gatewayName + `]
  allow: [{repositories: ["` + upstreamName + `/{namespace}/{serviceAccount}/**"], actions: [pull]}]
`
)

// CRI-O pulls images behind the gateway under the names that they have in their registry, each pod as its own ServiceAccount.
func TestImagesKeepTheirNames(t *testing.T) {
	testenv.Must(t, os.WriteFile("/etc/hosts", []byte(gatewayHosts), 0o644))
	key, ca := certs.NewRSAKey(t), certs.NewCA(t, "gateway-ca")
	c := cluster.Start(t, key)
	c.StartControllers(t, key)
	access := c.ApplyRBAC(t)
	registry := upstream.StartToken(t, ca, programs.Distribution(t))
	s := &site{Cluster: c, proxy: pullpass.StartReady(t, ca, pullpass.Config{
		Clusters: []pullpass.Cluster{{
			Name: "prod-eu", Issuer: c.Issuer, Audiences: []string{gatewayName},
			Discovery:  pullpass.Discovery{CAFile: c.CA.File, TokenFile: access.TokenFile},
			Kubernetes: pullpass.Kubernetes{KubeconfigFile: access.KubeconfigFile},
			Node:       pullpass.Node{Proof: pullpass.Proof{Mode: "enforce", Methods: []string{"certificate"}, ClientCAFile: c.CA.File}},
		}},
		Policy: gatewayPolicy, Service: gatewayName, Names: []string{gatewayName, upstreamName},
		GatewayURL: "https://" + gatewayName, Upstreams: []pullpass.Upstream{registry.Setting(upstreamName)},
	})}
	relay.Start(t, "127.0.0.2:443", s.proxy.GatewayAddress)
	for _, repository := range []string{"team-a/web", "team-a/api", "team-a/web/model"} {
		testenv.Must(t, node.Push(t.Context(), ca.Transport(t), upstream.Username, upstream.Password, registry.Recorder.Host+"/"+repository+":v1", node.Image(t, repository)))
	}
	c.Apply(t, s.proxy.Command(t, "kubelet-config", "--mirror="+upstreamName, "--part=rbac"))
	other := upstream.StartBasic(t, ca, programs.Distribution(t))
	s.node = node.Start(t, node.Config{
		Name: "crio", Address: isolate.Addresses()[0], CRIO: true, Cluster: c, Pullpass: s.proxy, Mirrors: []string{upstreamName}, CA: ca,
		Providers: providers, Plugins: []node.Plugin{{Name: "pullpass-credential-provider-2"}}, Aliases: `centos = "` + other.Recorder.Host + `/centos"` + "\n",
	})
	c.CreateNamespace(t, "team-a", nil)
	for _, account := range []string{"web", "api"} {
		c.CreateServiceAccount(t, "team-a", account, nil)
	}

	// At once: each pull has the credential of its own pod.
	pods := map[string]cluster.Object{}
	for _, account := range []string{"web", "api"} {
		for _, image := range []string{"web", "api"} {
			pods[account+"-"+image] = s.startAs(t, account+"-"+image, account, upstreamName+"/team-a/"+image+":v1")
		}
	}
	for name, pod := range pods {
		account, image, _ := strings.Cut(name, "-")
		if account != image {
			s.awaitEvent(t, pod, "kubelet", "Failed to pull image")
			s.awaitEvent(t, pod, "pullpass", "no rule for prod-eu/team-a/"+account+" allows pull on "+upstreamName+"/team-a/"+image)
			continue
		}
		s.awaitEvent(t, pod, "kubelet", "Container started")
		pull := s.proxy.AwaitAudit(t, 0, "the pull of "+name, func(e pullpass.Event) bool {
			return e.Gateway != nil && e.Gateway.Kind == "manifest" && e.Pod.Name == name && e.Result == "granted"
		})
		if pull.Gateway.Repository != upstreamName+"/team-a/"+image || pull.ServiceAccount.Name != account || pull.Pod.UID != pod.UID() {
			t.Errorf("%+v", pull)
		}
	}
	// The kubelet remembers for whom it pulled.
	records := testenv.Value(filepath.Glob(s.node.Path("/var/lib/kubelet/image_manager/pulled/*")))(t)
	if len(records) != 2 {
		t.Errorf("records of pulls: %q", records)
	}
	for _, file := range records {
		if record := testenv.ReadFile(t, file); strings.Contains(record, `"nodePodsAccessible":true`) || !strings.Contains(record, `"kubernetesServiceAccounts":[{`) {
			t.Errorf("%s", record)
		}
	}
	s.testVolume(t, upstreamName+"/team-a/web:v1", upstreamName+"/team-a/web/model:v1", "team-a/web/model",
		upstreamName+"/team-a/api:v1", "no rule for prod-eu/team-a/web allows pull on "+upstreamName+"/team-a/api")
	s.testShortName(t, other.Recorder)
	// Where the name leads elsewhere, the pod's token stays on the node: it would be good there, too.
	relay.Start(t, "127.0.0.3:443", s.proxy.GatewayAddress)
	testenv.Must(t, os.WriteFile("/etc/hosts", []byte(strings.Replace(gatewayHosts, " "+upstreamName, "\n127.0.0.3 "+upstreamName, 1)), 0o644))
	s.awaitEvent(t, s.startAs(t, "strayed", "web", upstreamName+"/team-a/web:v1"), "kubelet", "Failed to pull image")
	if reason := "/etc/hosts: gives the image's registry an address that it does not give the gateway"; !strings.Contains(s.node.Log(), reason) {
		t.Errorf("the kubelet does not log %s", reason)
	}
}

// testShortName pulls an image by a short name, which is that of an image of docker.io for the kubelet, and of another registry for
// CRI-O. A name with the gateway's host leads to the gateway.
func (s *site) testShortName(t *testing.T, other *relay.Recorder) {
	t.Helper()
	const certsDir = "/etc/containers/certs.d/"
	for _, host := range []string{other.Host, gatewayName} {
		testenv.Must(t, os.CopyFS(s.node.Path(certsDir+host), os.DirFS(s.node.Path(certsDir+upstreamName))))
	}
	s.awaitEvent(t, s.startAs(t, "full-name", "web", gatewayName+"/"+upstreamName+"/team-a/web:v1"), "kubelet", "Container started")
	s.awaitEvent(t, s.startAs(t, "short-name", "web", "centos:1"), "kubelet", "Failed to pull image")
	asked := other.Exchanges()
	if len(asked) == 0 {
		t.Error("CRI-O did not ask the other registry")
	}
	for _, e := range asked {
		// Without a credential, CRI-O sends the empty one to a registry that asks for a password.
		if got := e.Header.Get("Authorization"); got != "" && got != "Basic Og==" {
			t.Errorf("the other registry has a credential of the pod: %s %s", e.Method, e.Target)
		}
	}
	if reason := "image of the request: is of docker.io"; !strings.Contains(s.node.Log(), reason) {
		t.Errorf("the kubelet does not log %s", reason)
	}
}
