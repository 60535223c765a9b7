package criotest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/node"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/registry"
	"github.com/pullpass/pullpass/e2e/relay"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	registryName = "registry.example.com"
	// tokenName is another host: CRI-O presents the certificate that is for the registry there, too.
	tokenName = "token.example.com"
	podLimit  = time.Minute

	volumePath = "/model" // of an image, in a pod

	policy = `apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: own-namespace
  subjects: [{namespaces: ["*"]}]
  allow: [{repositories: ["{namespace}/**"], actions: [pull]}]
- name: builders
  subjects: [{namespaces: [builders]}]
  allow: [{repositories: ["**"], actions: [pull, push]}]
`
)

// site has a node with CRI-O, which proves itself by the kubelet's certificate.
type site struct {
	*cluster.Cluster
	proxy *pullpass.Proxy
	node  *node.Node
}

func startSite(t *testing.T) *site {
	t.Helper()
	testenv.Must(t, os.WriteFile("/etc/hosts", []byte("127.0.0.1 localhost "+registryName+" "+tokenName+"\n"), 0o644))
	key, ca := certs.NewRSAKey(t), certs.NewCA(t, "registry-ca")
	s := &site{Cluster: cluster.Start(t, key)}
	s.StartControllers(t, key)
	access := s.ApplyRBAC(t)
	s.proxy = pullpass.StartReady(t, ca, pullpass.Config{
		Clusters: []pullpass.Cluster{{
			Name: "prod-eu", Issuer: s.Issuer, Audiences: []string{registryName},
			Discovery:  pullpass.Discovery{CAFile: s.CA.File, TokenFile: access.TokenFile},
			Kubernetes: pullpass.Kubernetes{KubeconfigFile: access.KubeconfigFile},
			Node:       pullpass.Node{Proof: pullpass.Proof{Mode: "enforce", Methods: []string{"certificate"}, ClientCAFile: s.CA.File}},
		}},
		Policy: policy, Service: registryName, Names: []string{tokenName},
	})
	relay.Start(t, "127.0.0.1:8443", s.proxy.Address())
	registry.Start(t, ca, registry.Config{
		Program: programs.Distribution(t), Address: "127.0.0.1:443", Names: []string{registryName}, Realm: "https://" + tokenName + ":8443/token",
		Service: registryName, Issuer: pullpass.Issuer, RootCertBundle: s.proxy.Certificates(t),
	})
	s.Apply(t, s.proxy.Command(t, "kubelet-config", "--registry="+registryName, "--part=rbac"))
	s.CreateNamespace(t, "builders", nil)
	s.CreateServiceAccount(t, "builders", "builder", nil)
	s.CreateNode(t, "build-1", nil)
	builder := ca.Transport(t, s.CA.Client(t, "system:node:build-1", "system:nodes").TLS(t))
	password := s.Token(t, cluster.PodToken(s.CreatePod(t, "builders", "build", "builder", "build-1"), registryName))
	for _, repository := range []string{"team-a/web", "team-a/model", "team-b/app"} {
		image := registryName + "/" + repository + ":v1"
		testenv.Must(t, node.Push(t.Context(), builder, "serviceaccount", password, image, node.Image(t, repository)))
	}
	s.node = node.Start(t, node.Config{Name: "crio", Address: isolate.Addresses()[0], CRIO: true, Cluster: s.Cluster, Pullpass: s.proxy, Registry: registryName, CA: ca})
	s.CreateNamespace(t, "team-a", nil)
	s.CreateServiceAccount(t, "team-a", "web", nil)
	return s
}

func (s *site) start(t *testing.T, name, image string) cluster.Object {
	t.Helper()
	return s.startAs(t, name, "web", registryName+"/"+image)
}

// startAs starts a pod, with volumes that are images.
func (s *site) startAs(t *testing.T, name, account, image string, volumes ...string) cluster.Object {
	t.Helper()
	container := cluster.Object{"name": "web", "image": image, "imagePullPolicy": "Always"}
	spec := cluster.Object{
		"nodeName": s.node.Name(), "serviceAccountName": account, "hostNetwork": true, "terminationGracePeriodSeconds": 0,
		"containers": []cluster.Object{container},
	}
	for _, volume := range volumes {
		spec["volumes"] = []cluster.Object{{"name": "model", "image": cluster.Object{"reference": volume, "pullPolicy": "Always"}}}
		container["volumeMounts"] = []cluster.Object{{"name": "model", "mountPath": volumePath, "readOnly": true}}
	}
	return s.Create(t, "/api/v1/namespaces/team-a/pods", cluster.Object{"metadata": cluster.Object{"name": name}, "spec": spec})
}

// testVolume starts two pods of team-a/web with a volume: one that the pod may pull, and one that it may not.
func (s *site) testVolume(t *testing.T, image, allowed, content, refused, reason string) {
	t.Helper()
	pod := s.startAs(t, "volume", "web", image, allowed)
	s.awaitEvent(t, pod, "kubelet", "Container started")
	labels := testenv.Value(filepath.Glob("/proc/[0-9]*/root" + volumePath + "/label"))(t)
	if !slices.ContainsFunc(labels, func(file string) bool {
		label, err := os.ReadFile(file)
		return err == nil && string(label) == content
	}) {
		t.Errorf("no process sees %s in the volume: %q", content, labels)
	}
	other := s.startAs(t, "other-volume", "web", image, refused)
	s.awaitEvent(t, other, "pullpass", reason)
	s.awaitEvent(t, other, "kubelet", "Failed to pull image")
}

// awaitEvent waits for an event of a component about a pod that says a text, and returns all of its message.
func (s *site) awaitEvent(t *testing.T, pod cluster.Object, component, text string) (message string) {
	t.Helper()
	testenv.Await(t, podLimit, component+" says "+text, func() bool {
		for _, e := range s.Events(t, pod) {
			if e.Component == component && strings.Contains(e.Message, text) {
				message = e.Message
			}
		}
		return message != ""
	})
	return message
}

// A pod on CRI-O pulls what its own token may. docs/how-to/troubleshooting.md has what it says otherwise.
func TestCRIO(t *testing.T) {
	s := startSite(t)
	page := testenv.ReadFile(t, filepath.Join(programs.Checkout(t), "docs/how-to/troubleshooting.md"))
	refused := func(pod cluster.Object, reason string) {
		t.Helper()
		s.awaitEvent(t, pod, "pullpass", reason)
		if text := s.awaitEvent(t, pod, "kubelet", "Failed to pull image"); !strings.Contains(page, "# on a node with CRI-O\nkubelet  spec.containers{web}: "+text+"\n") {
			t.Errorf("the page does not show %s", text)
		}
	}
	own := s.start(t, "own", "team-a/web:v1")
	s.awaitEvent(t, own, "kubelet", "Container started")
	pull := s.proxy.AwaitAudit(t, 0, "the pull of a pod", func(e pullpass.Event) bool { return e.Pod.Name == "own" })
	if pull.Result != "granted" || pull.Pod.UID != own.UID() || pull.Node.Name != "crio" || pull.Proof == nil || !pull.Proof.Passed || pull.Proof.Method != "certificate" {
		t.Errorf("%+v, %+v", pull, pull.Proof)
	}
	s.testVolume(t, registryName+"/team-a/web:v1", registryName+"/team-a/model:v1", "team-a/model",
		registryName+"/team-b/app:v1", "no rule for prod-eu/team-a/web allows pull on team-b/app")
	refused(s.start(t, "other", "team-b/app:v1"), "no rule for prod-eu/team-a/web allows pull on team-b/app")
	testenv.Must(t, os.Remove(s.node.Path("/etc/containers/certs.d/"+registryName+"/client.cert")))
	testenv.Must(t, os.Remove(s.node.Path("/etc/containers/certs.d/"+registryName+"/client.key")))
	refused(s.start(t, "unproven", "team-a/web:v1"), "it presented no client certificate")
}
