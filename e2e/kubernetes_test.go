package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// livePolicy: a namespace for its ServiceAccounts, what they ask for of shared, and gold for namespaces with a label.
const livePolicy = `apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: own-namespace
  subjects: [{namespaces: ["*"]}]
  allow: [{repositories: ["{namespace}/**"], actions: [pull]}]
- name: asked-for
  subjects: [{namespaces: ["*"]}]
  annotation: pullpass.dev/repositories
  allow: [{repositories: ["shared/**"], actions: [pull]}]
- name: gold
  subjects: [{namespaceSelector: "tier=gold"}]
  allow: [{repositories: ["gold/**"], actions: [pull]}]
`

const (
	sharedScope = "repository:shared/base:pull"
	goldScope   = "repository:gold/base:pull"

	// lateLimit is more than a watch takes, on a machine that is not busy.
	lateLimit = time.Second
	// reconnectLimit is generous for an event of a watch, and enough for one that was cut: clients wait longer after each
	// failure, with jitter.
	reconnectLimit = time.Minute
)

// TestKubernetes connects Pullpass to a real API server, with the rights of deploy/kubernetes/rbac.yaml and no others.
func TestKubernetes(t *testing.T) {
	s := startSite(t, cluster.Options{})
	t.Run("together", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *site){
			"annotations":              testAnnotations,
			"namespace labels":         testNamespaceLabels,
			"ServiceAccount recreated": testServiceAccountRecreated,
			"pods":                     testPods,
			"new pods":                 testNewPods,
			"node deleted":             testNodeDeleted,
			"node selector":            testNodeSelector,
			"node from the API":        testNodeFromAPI,
			"proof by certificate":     testCertificateProof,
			"proof by address":         testAddressProof,
			"proof by either":          testEitherProof,
			"certificate expires":      testCertificateExpires,
			"pod events":               testPodEvents,
			"rights":                   testRights,
			"a second cluster":         testSecondCluster,
			"regions":                  testRegions,
			"a watch that expires":     testWatchExpires,
			"etcd is restored":         testEtcdRestored,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, s)
			})
		}
	})
	t.Run("API server crashes", func(t *testing.T) { testCrash(t, s) }) // alone: the other tests need the cluster
}

// site is a cluster and what Pullpass needs to serve it.
type site struct {
	*cluster.Cluster
	access cluster.Access
	ca     *certs.CA // of Pullpass's own certificate
}

func startSite(t *testing.T, options cluster.Options) *site {
	t.Helper()
	c := cluster.StartWith(t, certs.NewRSAKey(t), options)
	c.CreateNode(t, "node1", nil)
	return &site{Cluster: c, access: c.ApplyRBAC(t), ca: certs.NewCA(t, "pullpass-ca")}
}

// cluster is the cluster's part of a configuration. The token with which Pullpass reads the API opens the discovery documents.
func (s *site) cluster(name string, access cluster.Access) pullpass.Cluster {
	return pullpass.Cluster{
		Name: name, Issuer: s.Issuer, Audiences: []string{audience},
		Discovery:  pullpass.Discovery{CAFile: s.CA.File, TokenFile: access.TokenFile},
		Kubernetes: pullpass.Kubernetes{KubeconfigFile: access.KubeconfigFile},
	}
}

func (s *site) config(change ...func(*pullpass.Cluster)) pullpass.Config {
	c := s.cluster("e2e", s.access)
	for _, f := range change {
		f(&c)
	}
	return pullpass.Config{Clusters: []pullpass.Cluster{c}, Policy: livePolicy, Service: service}
}

// pullpass runs Pullpass, and waits until it has read the cluster.
func (s *site) pullpass(t *testing.T, config pullpass.Config) *pullpass.Proxy {
	t.Helper()
	proxy := pullpass.Start(t, s.ca, config)
	within(t, reconnectLimit, "ready", func() bool { ready, _ := proxy.Ready(t); return ready })
	return proxy
}

// workload creates a namespace with the ServiceAccount puller.
func (s *site) workload(t *testing.T, namespace string) {
	t.Helper()
	s.CreateNamespace(t, namespace, nil)
	s.CreateServiceAccount(t, namespace, puller, nil)
}

func (s *site) podToken(t *testing.T, pod cluster.Object) string {
	t.Helper()
	return s.Token(t, cluster.PodToken(pod, audience))
}

func accountPath(namespace string) string {
	return "/api/v1/namespaces/" + namespace + "/serviceaccounts/" + puller
}

// own is the scope of a repository of the namespace.
func own(namespace string) string { return "repository:" + namespace + "/web:pull" }

// outcome is what an answer comes down to: the scopes in the token, or the status and the reason.
func outcome(answer pullpass.Answer) string {
	if answer.Status != http.StatusOK {
		return fmt.Sprintf("%d %s", answer.Status, answer.Audit.Reason)
	}
	content, err := decode(answer.Body.Token, 1)
	if err != nil {
		return err.Error()
	}
	scopes, err := accessIn(content)
	if err != nil {
		return err.Error()
	}
	return strings.Join(scopes, " ")
}

func expect(t *testing.T, what string, answer pullpass.Answer, want string) {
	t.Helper()
	if got := outcome(answer); got != want {
		t.Errorf("%s: %q, want %q; %s", what, got, want, answer.Audit.Message)
	}
}

// within polls until done returns true, and returns how long that took.
func within(t *testing.T, limit time.Duration, what string, done func() bool) time.Duration {
	t.Helper()
	took := testenv.Await(t, limit, what, done)
	t.Logf("%s: after %v", what, took.Round(time.Millisecond))
	return took
}

// turns waits for a change to be seen: what is asked for must get the outcome, and before that nothing but
// what it got until now.
func turns(t *testing.T, host *pullpass.Host, token, scope, from, to string) {
	t.Helper()
	within(t, reconnectLimit, fmt.Sprintf("%q to %q", from, to), func() bool {
		got := outcome(host.Ask(t, service, token, scope))
		if got != to && got != from {
			t.Fatalf("%q on the way from %q to %q", got, from, to)
		}
		return got == to
	})
}
