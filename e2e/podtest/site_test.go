package podtest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

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

// The names of the documentation.
const (
	registryName = "registry.example.com"
	team         = "team-a"
	otherTeam    = "team-b"
	tokenAddress = "127.0.0.1:8444"
	realm        = "https://" + registryName + ":8444/token"
)

const (
	podLimit = 3 * time.Minute // the machine that tests may have other things to do
)

const policy = `apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: own-namespace
  subjects: [{namespaces: ["team-*"]}]
  allow: [{repositories: ["{namespace}/**"], actions: [pull, push]}]
`

type site struct {
	*cluster.Cluster
	ca        *certs.CA // of the registry and Pullpass
	config    pullpass.Config
	proxy     *pullpass.Proxy
	relay     *relay.Relay // in front of Pullpass
	node      *node.Node
	passwords map[string]string // for pushes, by the team

	pushes int // of clients in pods

	begin, since time.Time // of the table, and of its last line
	table        strings.Builder
}

// startSite starts a cluster with rules beside those of the teams, and with namespaces beside theirs.
func startSite(t testing.TB, rules string, namespaces ...string) *site {
	t.Helper()
	testenv.Must(t, os.WriteFile("/etc/hosts", []byte("127.0.0.1 localhost "+registryName+"\n"), 0o644))
	s := &site{ca: certs.NewCA(t, "registry-ca"), passwords: map[string]string{}, begin: time.Now(), since: time.Now()}
	key := certs.NewRSAKey(t)
	s.Cluster = cluster.Start(t, key)
	s.StartControllers(t, key)
	access := s.ApplyRBAC(t)
	s.config = pullpass.Config{
		Clusters: []pullpass.Cluster{{
			Name: "prod-eu", Issuer: s.Issuer, Audiences: []string{registryName},
			Discovery:  pullpass.Discovery{CAFile: s.CA.File, TokenFile: access.TokenFile},
			Kubernetes: pullpass.Kubernetes{KubeconfigFile: access.KubeconfigFile},
			Node:       pullpass.Node{Proof: pullpass.Proof{Mode: "audit", Methods: []string{"certificate"}, ClientCAFile: s.CA.File}},
		}},
		Policy:  policy + rules,
		Service: registryName,
		Signing: pullpass.Signing{ManagedDir: filepath.Join(t.TempDir(), "keys")},
		Names:   []string{registryName},
		State:   pullpass.State{Replay: "enforce"},
	}
	s.proxy = pullpass.StartReady(t, s.ca, s.config)
	s.relay = relay.Start(t, tokenAddress, s.proxy.Address())
	registry.Start(t, s.ca, registry.Config{
		Program: programs.Distribution(t), Address: "127.0.0.1:443", Names: []string{registryName}, Realm: realm,
		Service: registryName, Issuer: pullpass.Issuer, RootCertBundle: s.proxy.Certificates(t),
	})
	s.Apply(t, s.proxy.Command(t, "kubelet-config", "--registry="+registryName, "--part=rbac"))
	s.node = node.Start(t, node.Config{
		Name: "node-1", Address: isolate.Addresses()[0], Cluster: s.Cluster, Pullpass: s.proxy, Registry: registryName, CA: s.ca,
	})
	s.CreateNode(t, "build-1", nil) // no kubelet runs there
	for _, namespace := range append([]string{team, otherTeam}, namespaces...) {
		s.CreateNamespace(t, namespace, nil)
		s.CreateServiceAccount(t, namespace, "builder", nil)
		pod := s.CreatePod(t, namespace, "push", "builder", "build-1")
		s.passwords[namespace] = s.Token(t, cluster.PodToken(pod, registryName))
	}
	s.saw("the cluster with its node is ready", "")
	return s
}

// push puts an image into a repository of a team, and returns its name.
func (s *site) push(t testing.TB, team, repository string, image v1.Image) string {
	t.Helper()
	reference := testenv.Value(name.NewTag(registryName + "/" + team + "/" + repository))(t)
	testenv.Must(t, node.Push(t.Context(), s.ca.Transport(t), "serviceaccount", s.passwords[team], reference.Name(), image))
	return reference.Name()
}

// document is the first block of YAML from a document of the project.
func document(t testing.TB, file string) string {
	t.Helper()
	return documents(t, file)[0]
}

// documents are all blocks of YAML.
func documents(t testing.TB, file string) (blocks []string) {
	t.Helper()
	for _, text := range strings.Split(testenv.ReadFile(t, filepath.Join(programs.Checkout(t), "docs", file)), "```yaml\n")[1:] {
		block, _, found := strings.Cut(text, "```")
		if !found {
			t.Fatalf("a block of YAML in %s does not end", file)
		}
		blocks = append(blocks, block)
	}
	if len(blocks) == 0 {
		t.Fatalf("no YAML in %s", file)
	}
	return blocks
}

// awaitRunning waits until the only container of a pod runs, and returns the pod.
func (s *site) awaitRunning(t testing.TB, pod string) cluster.Object {
	t.Helper()
	var object cluster.Object
	defer func() {
		if t.Failed() {
			t.Logf("%v; events: %+v", object["status"], s.Events(t, object))
		}
	}()
	testenv.Await(t, podLimit, pod+" runs", func() bool {
		object = s.Get(t, "/api/v1/namespaces/"+team+"/pods/"+pod)
		return container(object).Text("state", "running", "startedAt") != ""
	})
	return object
}

// container is the status of the only container.
func container(pod cluster.Object) cluster.Object {
	status, _ := pod["status"].(map[string]any)
	containers, _ := status["containerStatuses"].([]any)
	if len(containers) == 0 {
		return nil
	}
	return containers[0].(map[string]any)
}

// awaitMessage waits for an event about a pod that says the parts, and returns it.
func (s *site) awaitMessage(t testing.TB, pod cluster.Object, parts ...string) (found string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("events of pod %s: %+v", pod.Name(), s.Events(t, pod))
		}
	}()
	testenv.Await(t, podLimit, fmt.Sprintf("event with %q", parts), func() bool {
		for _, e := range s.Events(t, pod) {
			found = e.Reason + ": " + e.Message
			if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(found, part) }) {
				return true
			}
		}
		return false
	})
	return found
}

// about tells whether an audit line is about what a client did as a pod.
func about(e pullpass.Event, pod cluster.Object, client string) bool {
	return e.Pod.UID == pod.UID() && strings.HasPrefix(e.Client, client)
}

// events are the audit lines of a Pullpass about what a client did as a pod.
func events(t testing.TB, proxy *pullpass.Proxy, pod cluster.Object, client string) (found []pullpass.Event) {
	t.Helper()
	for _, e := range proxy.Audit(t) {
		if about(e, pod, client) {
			found = append(found, e)
		}
	}
	return found
}

// saw adds a line to the table, with the time since the last.
func (s *site) saw(what, format string, args ...any) {
	fmt.Fprintf(&s.table, "%-58s %6.1f s  %s\n", what, time.Since(s.since).Seconds(), fmt.Sprintf(format, args...))
	s.since = time.Now()
}
