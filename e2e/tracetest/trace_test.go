package tracetest

import (
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/collector"
	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/issuer"
	"github.com/pullpass/pullpass/e2e/node"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/registry"
	"github.com/pullpass/pullpass/e2e/secrets"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	service    = "registry.example.com"
	audience   = "registry.example.com"
	namespace  = "team-a"
	repository = namespace + "/web"

	traceLimit = time.Minute
)

const policy = `apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: own-namespace
  subjects: [{namespaces: ["*"]}]
  allow: [{repositories: ["{namespace}/**"], actions: [pull, push]}]
`

// TestTraceFromContainerd pulls with a containerd that sends traces: what Pullpass does for the pull is a part of containerd's trace,
// the audit line names that trace, and of the credentials nothing is sent by either of them.
func TestTraceFromContainerd(t *testing.T) {
	traces := collector.Start(t)
	var credentials []string
	t.Cleanup(func() { // after the cleanups of the programs: when they end, they send what they still have
		if piece := secrets.Found(traces.Received(), credentials...); piece != "" {
			t.Errorf("the collector received %q, a piece of a credential", piece)
		}
	})

	ca := certs.NewCA(t, "registry-ca")
	issuer := issuer.Start(t, ca)
	proxy := pullpass.Start(t, ca, pullpass.Config{
		Clusters: []pullpass.Cluster{{Name: "e2e", Issuer: issuer.URL, Audiences: []string{audience}, Discovery: pullpass.Discovery{CAFile: ca.File}}},
		Policy:   policy, Service: service, Environment: traces.Environment,
	})
	hub := registry.Start(t, ca, registry.Config{
		Program: programs.Distribution(t), Realm: proxy.URL + "/token", Service: service, Issuer: pullpass.Issuer, RootCertBundle: proxy.Certificates(t),
	})
	runtime := node.StartRuntime(t, node.Config{
		Name: "traced", Address: isolate.Addresses()[0], Pullpass: proxy, Registry: hub.Host, CA: ca, Traces: traces.Environment,
	})
	token := issuer.Token(t, audience, namespace, "puller")
	credentials = append(credentials, token, "serviceaccount:"+token)
	image := hub.Host + "/" + repository + ":v1"
	testenv.Must(t, node.Push(t.Context(), ca.Transport(t), "serviceaccount", token, image, node.Image(t, repository)))
	pushed := len(proxy.Audit(t))
	runtime.Pull(t, image, token)

	proxy.AwaitAudit(t, pushed, "containerd asks for a token", func(pullpass.Event) bool { return true })
	pulls := proxy.Audit(t)[pushed:]
	for _, e := range pulls {
		if e.Result != "granted" || !strings.HasPrefix(e.Client, "containerd/") {
			t.Errorf("an audit line that is not of the pull: %+v", e)
		}
		awaitTrace(t, traces, e.TraceID)
	}

	// Pullpass gives a token again as long as most of its life is left, so this is one that containerd used.
	answer := proxy.Post(t, service, token, pulls[0].Requested...)
	if answer.Audit.IssuedID != pulls[0].IssuedID {
		t.Errorf("the token %s is not that of containerd, %s", answer.Audit.IssuedID, pulls[0].IssuedID)
	}
	credentials = append(credentials, answer.Body.Token)
}

// awaitTrace waits until a trace is complete: containerd began it, and its request for a token holds what Pullpass did for that.
func awaitTrace(t *testing.T, traces *collector.Collector, id string) {
	t.Helper()
	var spans map[string]collector.Span
	if !testenv.Poll(traceLimit, func() bool {
		spans = traces.Trace(id)
		for _, s := range spans {
			if s.Service == "pullpass" && s.Name == "POST /token" && beganIn(spans, s) == "containerd" && holds(spans, s.ID, "verify", "decide", "issue") {
				return true
			}
		}
		return false
	}) {
		t.Fatalf("trace %q is not complete within %v: %+v", id, traceLimit, spans)
	}
}

// beganIn is the service of the first of the spans that a span is below; "" when one between them is missing.
func beganIn(spans map[string]collector.Span, s collector.Span) string {
	for s.Parent != "" {
		s = spans[s.Parent]
	}
	return s.Service
}

// holds tells whether spans of these names are directly below a span.
func holds(spans map[string]collector.Span, parent string, names ...string) bool {
	found := map[string]bool{}
	for _, s := range spans {
		found[s.Name] = found[s.Name] || s.Parent == parent
	}
	for _, name := range names {
		if !found[name] {
			return false
		}
	}
	return true
}
