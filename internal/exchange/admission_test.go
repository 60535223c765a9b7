package exchange_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	pki "github.com/pullpass/pullpass/internal/exchange/nodeproof/nodeprooftest"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// onNode changes the node claim; nil removes it.
func onNode(node any) func(map[string]any) {
	return func(claims map[string]any) {
		k := claims["kubernetes.io"].(map[string]any)
		if k["node"] = node; node == nil {
			delete(k, "node")
		}
	}
}

// identityOn returns the verified identity of a pod on a node.
func identityOn(cluster, node string) oidc.Identity {
	return oidc.Identity{
		Cluster: cluster, Kubernetes: oidc.KubernetesIdentity{Namespace: "team-a", ServiceAccount: oidc.ObjectRef{Name: "web", UID: webUID}, Node: oidc.ObjectRef{Name: node, UID: node1UID}},
		Subject: "system:serviceaccount:team-a:web", Expiry: made.Add(time.Hour),
	}
}

// knowing returns objects whose Node is node.
func knowing(node *exchange.Node) objects {
	return objects{byUID: map[string]exchange.Facts{webUID: {Node: node}}}
}

func selector(t *testing.T, s string) map[string]exchange.NodeChecks {
	t.Helper()
	parsed := testkit.Value(labels.Parse(s))(t)
	return map[string]exchange.NodeChecks{"prod": {Selector: parsed}}
}

// Before Kubernetes 1.30, tokens do not name a node. The pod's node then counts, also for policy,
// and the event says where it comes from. The node in a token is never replaced.
func TestNodeFromAPI(t *testing.T) {
	t.Parallel()
	const policy = `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- {name: node1, subjects: [{nodes: [node1]}], allow: [{repositories: ["{namespace}/**"], actions: [pull]}]}
deny:
- {name: node9, subjects: [{nodes: [node9]}]}
`
	for name, test := range map[string]struct {
		claim   any
		node    *exchange.Node
		want    *exchange.Object
		fromAPI bool
		status  int
		granted int
	}{
		"named by the token":             {map[string]any{"name": "node1", "uid": node1UID}, &exchange.Node{Name: "node1", UID: node1UID}, &exchange.Object{Name: "node1", UID: node1UID}, false, 200, 1},
		"named by the API":               {nil, &exchange.Node{Name: "node1", UID: node1UID}, &exchange.Object{Name: "node1", UID: node1UID}, true, 200, 1},
		"the API names a different node": {nil, &exchange.Node{Name: "node2", UID: node1UID}, &exchange.Object{Name: "node2", UID: node1UID}, true, 200, 0},
		"denied, named by the API":       {nil, &exchange.Node{Name: "node9", UID: node1UID}, &exchange.Object{Name: "node9", UID: node1UID}, true, 403, 0},
		"denied, no such object":         {nil, &exchange.Node{Name: "node9"}, &exchange.Object{Name: "node9"}, true, 403, 0},
		"no such object":                 {nil, &exchange.Node{Name: "node1"}, &exchange.Object{Name: "node1"}, true, 200, 0},
		"a mere name in the token":       {map[string]any{"name": "node1"}, &exchange.Node{Name: "node1", UID: node1UID}, &exchange.Object{Name: "node1"}, false, 200, 0},
		"not named at all":               {nil, nil, nil, false, 200, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(c *rigConfig) {
				c.policy, c.nodeOptional, c.objects = policy, true, knowing(test.node)
			})
			a := r.do(t, post(r.token(t, onNode(test.claim)), pullWeb))
			e := r.lastEvent(t, 1)
			if a.status != test.status || len(a.access) != test.granted {
				t.Errorf("status %d, access %v", a.status, a.access)
			}
			if (e.Node == nil) != (test.want == nil) || e.Node != nil && *e.Node != *test.want || e.NodeFromAPI != test.fromAPI {
				t.Errorf("node %+v, from API %t", e.Node, e.NodeFromAPI)
			}
		})
	}
}

// If the API may know the node, the verifier does not require the claim. Admission then requires
// it, with the same message.
func TestRequiredNode(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		claim   any
		objects exchange.Objects
		message string // empty: granted
	}{
		"named by the token":       {map[string]any{"name": "node1", "uid": node1UID}, objects{}, ""},
		"named by the API":         {nil, knowing(&exchange.Node{Name: "node1", UID: node1UID}), ""},
		"not named at all":         {nil, objects{}, "neither the token nor its pod names a node"},
		"no API server":            {nil, nil, "neither the token nor its pod names a node"},
		"no such object":           {nil, knowing(&exchange.Node{Name: "node1"}), `"node1" is named without a UID`},
		"a mere name in the token": {map[string]any{"name": "node1"}, knowing(&exchange.Node{Name: "node1", UID: node1UID}), `"node1" is named without a UID`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(c *rigConfig) {
				c.nodeOptional, c.objects = true, test.objects
				c.nodes = map[string]exchange.NodeChecks{"prod": {Required: true}}
			})
			a := r.do(t, post(r.token(t, onNode(test.claim)), pullWeb))
			e := r.lastEvent(t, 1)
			if test.message == "" {
				if a.status != http.StatusOK || e.Result != exchange.ResultGranted {
					t.Errorf("status %d, event %+v", a.status, e)
				}
				return
			}
			if a.status != http.StatusUnauthorized || a.body.Errors[0].Code != "UNAUTHORIZED" || !strings.Contains(a.body.Errors[0].Message, test.message) ||
				!strings.Contains(a.body.Errors[0].Message, `cluster "prod" requires (node.claim)`) || !strings.HasPrefix(a.header.Get("WWW-Authenticate"), "Basic realm=") {
				t.Errorf("status %d, %+v", a.status, a.body)
			}
			if e.Status != http.StatusUnauthorized || e.Result != exchange.ResultRefused || e.Reason != string(refusal.TokenNoNode) || e.Cluster != "prod" || e.Pod.Name != "web-0" || e.Claimed != nil {
				t.Errorf("event %+v", e)
			}
		})
	}
}

// Only a known Node can match, even if the selector requires the absence of a label.
func TestNodeSelector(t *testing.T) {
	t.Parallel()
	node := func(l map[string]string) *exchange.Node {
		return &exchange.Node{Name: "node1", UID: node1UID, Labels: l}
	}
	for name, test := range map[string]struct {
		selector string
		claim    any
		node     *exchange.Node
		message  string // empty: granted
	}{
		"matches":                           {"pool in (a,b),!tainted", map[string]any{"name": "node1", "uid": node1UID}, node(map[string]string{"pool": "a"}), ""},
		"matches, named by the API":         {"pool=a", nil, node(map[string]string{"pool": "a"}), ""},
		"other value":                       {"pool=a", map[string]any{"name": "node1", "uid": node1UID}, node(map[string]string{"pool": "b"}), `labels of the token's node "node1" do not match`},
		"no labels":                         {"pool=a", map[string]any{"name": "node1", "uid": node1UID}, node(nil), `labels of the token's node "node1" do not match`},
		"unknown node":                      {"!tainted", map[string]any{"name": "node1", "uid": node1UID}, nil, `of the token's node "node1" no labels are known`},
		"another node of this name":         {"!tainted", map[string]any{"name": "node1", "uid": "another"}, node(nil), `of the token's node "node1" no labels are known`},
		"no node":                           {"!tainted", nil, nil, "no node is known for sure"},
		"no such object":                    {"!tainted", nil, &exchange.Node{Name: "node1"}, "no node is known for sure"},
		"a mere name in the token":          {"!tainted", map[string]any{"name": "node1"}, node(nil), "no node is known for sure"},
		"a name that the API takes as mere": {"!tainted", map[string]any{"name": "node1"}, &exchange.Node{Name: "node1"}, "no node is known for sure"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(c *rigConfig) {
				c.nodeOptional, c.objects, c.nodes = true, knowing(test.node), selector(t, test.selector)
			})
			a := r.do(t, post(r.token(t, onNode(test.claim)), pullWeb))
			e := r.lastEvent(t, 1)
			if test.message == "" {
				if a.status != http.StatusOK || e.Result != exchange.ResultGranted {
					t.Errorf("status %d, event %+v", a.status, e)
				}
				return
			}
			if a.status != http.StatusForbidden || a.body.Error != "access_denied" || a.body.Errors[0].Code != "DENIED" {
				t.Errorf("status %d, %+v", a.status, a.body)
			}
			for _, part := range []string{test.message, `"` + test.selector + `"`, `"prod"`, "node.selector"} {
				if !strings.Contains(a.body.Errors[0].Message, part) {
					t.Errorf("%q does not say %q", a.body.Errors[0].Message, part)
				}
			}
			if e.Status != http.StatusForbidden || e.Result != exchange.ResultRefused || e.Reason != "node_not_selected" || e.Message != a.body.Errors[0].Message {
				t.Errorf("event %+v", e)
			}
		})
	}
}

// Each cluster has its own checks.
func TestNodeChecksOfAnotherCluster(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *rigConfig) {
		c.objects = knowing(nil)
		checks := selector(t, "pool=a")["prod"]
		checks.Required, checks.Proof = true, proving(nodeproof.Enforce, nil, nodeproof.Address)["prod"].Proof
		c.nodes = map[string]exchange.NodeChecks{"test": checks}
	})
	if a := r.do(t, post(r.token(t, nil), pullWeb)); a.status != http.StatusOK {
		t.Errorf("status %d, %+v", a.status, r.lastEvent(t, 1))
	}
}

// Each step hides the later ones.
func TestOrderOfAdmission(t *testing.T) {
	t.Parallel()
	gone := &exchange.GoneError{Kind: exchange.KindPod, Name: "team-bad/web-0", UID: "1"}
	checks := selector(t, "pool=a")["prod"]
	checks.Required, checks.Proof = true, proving(nodeproof.Enforce, nil, nodeproof.Address)["prod"].Proof
	right := &exchange.Node{Name: "node1", UID: node1UID, Labels: map[string]string{"pool": "a"}}
	for _, test := range []struct {
		objects objects
		want    string
	}{
		{objects{err: gone, byUID: knowing(right).byUID}, "pod_gone"},
		{knowing(&exchange.Node{Name: "node1"}), "token_no_node"},
		{knowing(&exchange.Node{Name: "node1", UID: node1UID}), "node_not_selected"},
		{knowing(right), "caller_not_node"},
	} {
		r := newRig(t, func(c *rigConfig) {
			c.nodeOptional, c.objects, c.nodes = true, test.objects, map[string]exchange.NodeChecks{"prod": checks}
		})
		r.do(t, post(r.token(t, func(claims map[string]any) {
			inNamespace("team-bad")(claims)
			onNode(nil)(claims)
		}), pullWeb))
		if e := r.lastEvent(t, 1); e.Reason != test.want || (e.Proof != nil) != (test.want == "caller_not_node") || e.Rule != "" {
			t.Errorf("event %+v, want %s", e, test.want)
		}
	}
}

// A token ends with its objects, even before its expiry (KEP-4412).
func TestGoneObjects(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		gone   exchange.GoneError
		reason string
		parts  []string
	}{
		{exchange.GoneError{Kind: exchange.KindServiceAccount, Name: "team-a/web", UID: "old", Now: "new"}, "service_account_gone", []string{"ServiceAccount team-a/web", "old", "new"}},
		{exchange.GoneError{Kind: exchange.KindServiceAccount, Name: "team-a/web", UID: "old"}, "service_account_gone", []string{"ServiceAccount team-a/web", "old", "was deleted"}},
		{exchange.GoneError{Kind: exchange.KindPod, Name: "team-a/web-0", UID: "old"}, "pod_gone", []string{"Pod team-a/web-0", "old", "was deleted"}},
		{exchange.GoneError{Kind: exchange.KindNode, Name: "node1", UID: "old", Now: "new"}, "node_gone", []string{"Node node1", "old", "new"}},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(c *rigConfig) { c.objects = objects{err: fmt.Errorf("10.1.2.3: %w", &test.gone)} })
			a := r.do(t, post(r.token(t, nil), pullWeb))
			e := r.lastEvent(t, 1)
			if a.status != http.StatusForbidden || a.body.Errors[0].Code != "DENIED" || a.body.Error != "access_denied" || a.body.Errors[0].Message != test.gone.Error() {
				t.Errorf("status %d, %+v", a.status, a.body)
			}
			for _, part := range test.parts {
				if !strings.Contains(a.body.Errors[0].Message, part) {
					t.Errorf("%q does not say %q", a.body.Errors[0].Message, part)
				}
			}
			if e.Status != http.StatusForbidden || e.Result != exchange.ResultRefused || e.Reason != test.reason || e.Message != test.gone.Error() || e.ServiceAccount.Name != "web" || e.Granted != nil {
				t.Errorf("event %+v", e)
			}
			if string(test.gone.Reason()) != test.reason {
				t.Errorf("reason %s", test.gone.Reason())
			}
		})
	}
}

// An unavailable API server neither refuses for good nor grants. Only the operator sees the cause.
func TestObjectsUnavailable(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *rigConfig) {
		c.objects = objects{err: errors.New("Get https://10.1.2.3:6443: i/o timeout"), byUID: node1At("192.0.2.7").byUID}
		c.nodes = proving(nodeproof.Enforce, nil, nodeproof.Address)
	})
	a := r.do(t, from(caller("192.0.2.7"), post(r.token(t, nil), pullWeb)))
	if a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") != "10" || a.body.Error != "temporarily_unavailable" || strings.Contains(fmt.Sprint(a.body), "10.1.2.3") {
		t.Errorf("status %d, Retry-After %q, %+v", a.status, a.header.Get("Retry-After"), a.body)
	}
	if e := r.lastEvent(t, 1); e.Result != exchange.ResultUnavailable || e.Reason != "kubernetes_unavailable" || !strings.Contains(e.Message, "10.1.2.3") || e.ServiceAccount.Name != "web" || e.Proof != nil {
		t.Errorf("event %+v", e)
	}
}

// An issued token is not reused for a different caller. Once the pod is gone, it is not reused at
// all.
func TestReuseIsJudgedAfresh(t *testing.T) {
	t.Parallel()
	ca := pki.NewCA(t)
	known := node1At("192.0.2.7")
	changing := &changingObjects{current: known}
	r := newRig(t, func(c *rigConfig) {
		c.objects = changing
		c.nodes = proving(nodeproof.Enforce, ca.CAs(), nodeproof.Certificate, nodeproof.Address)
	})
	token := r.token(t, nil)
	right := nodeproof.Caller{Certificates: pki.Presented(ca.Sign(t))}
	first := r.do(t, from(right, post(token, pullWeb)))
	if again := r.do(t, from(caller("192.0.2.7"), get(token, pullWeb))); again.body.Token != first.body.Token || !r.lastEvent(t, 2).Reused {
		t.Error("the right caller gets another token")
	}
	mustRefuse(t, r.do(t, from(caller("192.0.2.8"), post(token, pullWeb))), r.lastEvent(t, 3), nodeproof.AddressOther)
	wrong := nodeproof.Caller{Certificates: pki.Presented(ca.Sign(t, pki.Named("system:node:node2")))}
	mustRefuse(t, r.do(t, from(wrong, post(token, pullWeb))), r.lastEvent(t, 4), nodeproof.CertificateOtherNode)

	changing.current = objects{err: &exchange.GoneError{Kind: exchange.KindPod, Name: "team-a/web-0", UID: "1"}}
	if a := r.do(t, from(right, post(token, pullWeb))); a.status != http.StatusForbidden || a.body.Token != "" || r.lastEvent(t, 5).Reason != "pod_gone" {
		t.Errorf("status %d after the pod was deleted", a.status)
	}
	changing.current = objects{err: errors.New("down")}
	if a := r.do(t, from(right, post(token, pullWeb))); a.status != http.StatusServiceUnavailable || a.body.Token != "" {
		t.Errorf("status %d while the API server is down", a.status)
	}
	changing.current = known
	if a := r.do(t, from(right, post(token, pullWeb))); a.body.Token != first.body.Token {
		t.Error("the right caller gets another token")
	}
}

type changingObjects struct{ current objects }

func (c *changingObjects) Lookup(ctx context.Context, id oidc.Identity, credential oidc.Credential) (exchange.Facts, error) {
	return c.current.Lookup(ctx, id, credential)
}

// 403 is final for containerd: no GET follows, and a later one is its own.
func TestRefusedCallersGetIsItsOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *rigConfig) {
		c.objects, c.nodes = node1At("192.0.2.7"), proving(nodeproof.Enforce, nil, nodeproof.Address)
	})
	token := r.token(t, nil)
	r.do(t, post(token, pullWeb))
	r.do(t, get(token, pullWeb))
	if e := r.lastEvent(t, 2); e.Retry || e.Reason != "caller_not_node" {
		t.Errorf("event %+v", e)
	}
}

// The line of the audit log in the form that operators search.
func TestAuditLineOfARefusedCaller(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *rigConfig) {
		c.nodeOptional, c.objects, c.nodes = true, node1At("192.0.2.7"), proving(nodeproof.Enforce, nil, nodeproof.Address)
	})
	r.do(t, from(caller("192.0.2.8"), post(r.token(t, onNode(nil)), pullWeb)))
	e := r.lastEvent(t, 1)
	e.ID = "ID"
	line := testkit.Value(json.Marshal(e))(t)
	message := `the caller is not proven to be the token's node \"node1\": its address 192.0.2.8 is not one of the node's (where addresses are translated on the way, only a certificate proves a node)`
	want := `{"time":"2026-03-04T05:06:07Z","id":"ID","result":"refused","status":403,"reason":"caller_not_node","message":"` + message + `",` +
		`"cluster":"prod","namespace":"team-a","serviceAccount":{"name":"web","uid":"` + webUID + `"},"pod":{"name":"web-0","uid":"da2e7a3c-63e8-4855-9874-2073194456f5"},` +
		`"node":{"name":"node1","uid":"` + node1UID + `"},"nodeFromAPI":true,"credentialID":"JTI=63ef7a8c-1d81-4c97-8f89-724a51634a91",` +
		`"service":"registry.example.com","grantType":"password","requested":["repository:team-a/web:pull"],"caller":"192.0.2.8",` +
		`"proof":{"mode":"enforce","passed":false,"reason":"address_other","message":"` + message + `"},` +
		`"client":"containerd/v2.4.2","clientID":"containerd-client","account":"serviceaccount","latency":0}`
	if string(line) != want {
		t.Errorf("got  %s\nwant %s", line, want)
	}
}

// The facts about objects are passed on to policy.
func TestSubjectHoldsTheFacts(t *testing.T) {
	t.Parallel()
	facts := exchange.Facts{Annotations: map[string]string{"a": "1"}, NamespaceLabels: map[string]string{"b": "2"}}
	a, err := exchange.NewAdmission(exchange.AdmissionConfig{Objects: objects{byUID: map[string]exchange.Facts{webUID: facts}}})
	testkit.Must(t, err)
	subject, err := a.Admit(t.Context(), identityOn("prod", "node1"), nil, nodeproof.Caller{}, new(exchange.Event), new(exchange.Steps))
	if err != nil || !maps.Equal(subject.Annotations, facts.Annotations) || !maps.Equal(subject.NamespaceLabels, facts.NamespaceLabels) {
		t.Errorf("error %v, subject %+v", err, subject)
	}
}

// An empty or mistyped setting does not turn a check off. A check that no node can pass is refused.
func TestFaultyNodeChecks(t *testing.T) {
	t.Parallel()
	pool := pki.NewCA(t).CAs()
	some := selector(t, "pool=a")["prod"].Selector
	for want, checks := range map[string]exchange.NodeChecks{
		`unknown mode of proof "enforced"`:            {Proof: nodeproof.Config{Mode: "enforced", Methods: []nodeproof.Method{nodeproof.Address}}},
		`unknown method of proof "ip"`:                {Proof: nodeproof.Config{Mode: nodeproof.Off, Methods: []nodeproof.Method{nodeproof.Address, "ip"}}},
		`unknown method of proof ""`:                  {Proof: nodeproof.Config{Mode: nodeproof.Enforce, Methods: []nodeproof.Method{""}}},
		"proof in mode enforce has no methods":        {Proof: nodeproof.Config{Mode: nodeproof.Enforce, CAs: pool}},
		"proof in mode audit has no methods":          {Proof: nodeproof.Config{Mode: nodeproof.Audit}},
		"the node selector is empty":                  {Selector: labels.Everything()},
		"a node selector needs to know Node objects":  {Selector: some},
		"proof by address needs to know Node objects": {Proof: nodeproof.Config{Mode: nodeproof.Audit, CAs: pool, Methods: []nodeproof.Method{nodeproof.Certificate, nodeproof.Address}}},
	} {
		var known exchange.Objects = objects{}
		if strings.Contains(want, "needs to know") {
			known = nil
		}
		c := exchange.AdmissionConfig{Objects: known, Nodes: map[string]exchange.NodeChecks{"prod": checks}}
		if _, err := exchange.NewAdmission(c); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `cluster "prod"`) {
			t.Errorf("error %v, want %s", err, want)
		}
		r := newRig(t, nil)
		_, err := exchange.New(exchange.Config{
			Verifier: panickingVerifier{}, Policy: parsePolicy(t, testPolicy), Registries: []*registryauth.Issuer{r.issuer}, Objects: known, Nodes: c.Nodes,
			Revocations: revocations{}, Replay: exchange.ReplayOff, ServiceAccounts: unlimited, Memory: r.settings.Memory,
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New: error %v, want %s", err, want)
		}
	}
}

// All faults are reported at once, in a stable order. Later changes of the map have no effect.
func TestNodeChecksOfSeveralClusters(t *testing.T) {
	t.Parallel()
	bad := exchange.NodeChecks{Proof: nodeproof.Config{Mode: "on"}}
	nodes := map[string]exchange.NodeChecks{"c": bad, "a": bad, "b": {}}
	_, err := exchange.NewAdmission(exchange.AdmissionConfig{Nodes: nodes})
	if want := "exchange: cluster \"a\": unknown mode of proof \"on\"\nexchange: cluster \"c\": unknown mode of proof \"on\""; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	good := map[string]exchange.NodeChecks{"prod": {Required: true}}
	a, err := exchange.NewAdmission(exchange.AdmissionConfig{Nodes: good})
	testkit.Must(t, err)
	maps.DeleteFunc(good, func(string, exchange.NodeChecks) bool { return true })
	id := identityOn("prod", "node1")
	id.Kubernetes.Node = oidc.ObjectRef{}
	var refused *oidc.Error
	if _, err := a.Admit(t.Context(), id, nil, nodeproof.Caller{}, new(exchange.Event), new(exchange.Steps)); !errors.As(err, &refused) || refused.Reason != refusal.TokenNoNode {
		t.Errorf("error %v", err)
	}
}

// explain judges without a token. The same code returns the same error and event.
func TestAdmitWithoutToken(t *testing.T) {
	t.Parallel()
	a, err := exchange.NewAdmission(exchange.AdmissionConfig{
		Objects: node1At("192.0.2.7"), Nodes: proving(nodeproof.Enforce, nil, nodeproof.Address), Now: func() time.Time { return made },
	})
	testkit.Must(t, err)
	id := identityOn("prod", "")
	id.Kubernetes.Node = oidc.ObjectRef{}
	var e exchange.Event
	subject, err := a.Admit(t.Context(), id, nil, caller("192.0.2.7"), &e, new(exchange.Steps))
	if err != nil || subject.Identity.Kubernetes.Node != (oidc.ObjectRef{Name: "node1", UID: node1UID}) || !e.NodeFromAPI || !e.Proof.Passed {
		t.Errorf("error %v, subject %+v, event %+v", err, subject.Identity, e)
	}
	if id.Kubernetes.Node != (oidc.ObjectRef{}) {
		t.Error("the identity that was handed in was changed")
	}
	_, err = a.Admit(t.Context(), id, nil, caller("192.0.2.8"), &e, new(exchange.Steps))
	var refused interface{ Reason() refusal.Reason }
	if !errors.As(err, &refused) || refused.Reason() != "caller_not_node" || e.Proof.Reason != nodeproof.AddressOther {
		t.Errorf("error %v, proof %+v", err, e.Proof)
	}
	for _, down := range []error{&exchange.GoneError{Kind: exchange.KindNode}, errors.New("down")} {
		a, err := exchange.NewAdmission(exchange.AdmissionConfig{Objects: objects{err: fmt.Errorf("10.1.2.3: %w", down)}})
		testkit.Must(t, err)
		_, err = a.Admit(t.Context(), id, nil, nodeproof.Caller{}, &e, new(exchange.Steps))
		if !errors.As(err, &refused) || !errors.Is(err, down) {
			t.Fatalf("error %v", err)
		}
		if internals := strings.Contains(err.Error(), "10.1.2.3"); internals != (refused.Reason() == "kubernetes_unavailable") {
			t.Errorf("error %v", err)
		}
	}
}
