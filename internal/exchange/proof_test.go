package exchange_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	pki "github.com/pullpass/pullpass/internal/exchange/nodeproof/nodeprooftest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const pullWeb = "repository:team-a/web:pull"

// proving makes cluster prod ask for proof.
func proving(mode nodeproof.Mode, cas *nodeproof.CAs, methods ...nodeproof.Method) map[string]exchange.NodeChecks {
	return map[string]exchange.NodeChecks{"prod": {Proof: nodeproof.Config{Mode: mode, Methods: methods, CAs: cas}}}
}

// node1At returns objects in which the Node of the test's tokens has these addresses.
func node1At(addresses ...string) objects {
	node := &exchange.Node{Name: "node1", UID: node1UID}
	for _, a := range addresses {
		node.Addresses = append(node.Addresses, netip.MustParseAddr(a))
	}
	return objects{byUID: map[string]exchange.Facts{webUID: {Node: node}}}
}

// mustRefuse fails the test unless the answer and its event refuse the caller
// for this reason.
func mustRefuse(t *testing.T, a answer, e *exchange.Event, reason nodeproof.Reason) {
	t.Helper()
	if a.status != http.StatusForbidden || a.body.Token != "" {
		t.Fatalf("status %d", a.status)
	}
	if a.body.Errors[0].Code != "DENIED" || !strings.Contains(a.body.Errors[0].Message, `"node1"`) {
		t.Errorf("body %+v", a.body.Errors)
	}
	if e.Status != http.StatusForbidden || e.Result != exchange.ResultRefused || e.Reason != "caller_not_node" || e.Message != a.body.Errors[0].Message || e.Granted != nil || e.Rule != "" {
		t.Errorf("event %+v", e)
	}
	if want := (nodeproof.Proof{Mode: nodeproof.Enforce, Reason: reason, Message: e.Message}); e.Proof == nil || *e.Proof != want {
		t.Errorf("proof %+v, want %+v", e.Proof, want)
	}
}

// mustPass fails the test unless the answer and its event are those of a proven
// caller.
func mustPass(t *testing.T, a answer, e *exchange.Event, method nodeproof.Method) {
	t.Helper()
	if a.status != http.StatusOK || len(a.access) != 1 {
		t.Fatalf("status %d, %s", a.status, e.Message)
	}
	if want := (nodeproof.Proof{Mode: nodeproof.Enforce, Passed: true, Method: method}); e.Proof == nil || *e.Proof != want || e.Result != exchange.ResultGranted {
		t.Errorf("event %+v, proof %+v, want %+v", e, e.Proof, want)
	}
}

// One certificate for each reason. Package nodeproof tests the others.
func TestProofByCertificate(t *testing.T) {
	t.Parallel()
	ca, foreign := pki.NewCA(t), pki.NewCA(t)
	intermediate := ca.Sign(t, pki.Authority("intermediate"))
	for _, test := range []struct {
		name      string
		presented []*x509.Certificate
		want      nodeproof.Reason // empty: passes
	}{
		{"a kubelet's", pki.Presented(ca.Sign(t)), ""},
		{"by way of intermediates", pki.Presented(intermediate.Sign(t), intermediate), ""},

		{"none", nil, nodeproof.CertificateMissing},
		{"of another node", pki.Presented(ca.Sign(t, pki.Named("system:node:node2"))), nodeproof.CertificateOtherNode},
		{"a line of a log in the name", pki.Presented(ca.Sign(t, pki.Named("system:node:x\n{\"result\":\"granted\"}"))), nodeproof.CertificateOtherNode},
		{"a long name", pki.Presented(ca.Sign(t, pki.Named("system:node:"+strings.Repeat("x", 10_000)))), nodeproof.CertificateOtherNode},
		{"a long name of something else", pki.Presented(ca.Sign(t, pki.Named(strings.Repeat("x", 10_000)))), nodeproof.CertificateNotNode},
		{"expired", pki.Presented(ca.Sign(t, pki.During(-time.Hour, -time.Second))), nodeproof.CertificateExpired},
		{"not valid yet", pki.Presented(ca.Sign(t, pki.During(time.Second, time.Hour))), nodeproof.CertificateNotYetValid},
		{"of another cluster's node1", pki.Presented(foreign.Sign(t)), nodeproof.CertificateUntrusted},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(c *rigConfig) {
				c.nodes = proving(nodeproof.Enforce, ca.CAs(), nodeproof.Certificate)
			})
			for n := range 2 { // the second time, the remembered result counts
				a := r.do(t, from(nodeproof.Caller{Certificates: test.presented}, post(r.token(t, nil), pullWeb)))
				if e := r.lastEvent(t, n+1); test.want == "" {
					mustPass(t, a, e, nodeproof.Certificate)
				} else {
					mustRefuse(t, a, e, test.want)
					if len(e.Message) > 500 || strings.Contains(e.Message, "\n") {
						t.Errorf("message %q", e.Message)
					}
				}
			}
		})
	}
}

// A reload of the CAs creates a new Exchanger. Chains to the old CAs no longer count, and chains to
// the new ones do. Without CAs, no certificate passes, even if it passed before.
func TestProofFollowsTheCAs(t *testing.T) {
	t.Parallel()
	ca, next := pki.NewCA(t), pki.NewCA(t)
	fromCA, fromNext := pki.Presented(ca.Sign(t)), pki.Presented(next.Sign(t))
	r := newRig(t, nil)
	for i, step := range []struct {
		cas  *nodeproof.CAs
		by   []*x509.Certificate
		want nodeproof.Reason
	}{
		{nil, fromCA, nodeproof.CertificateCAUnknown},
		{nodeproof.NewCAs("prod", nil), fromCA, nodeproof.CertificateUntrusted},
		{ca.CAs(), fromCA, ""},
		{next.CAs(), fromCA, nodeproof.CertificateUntrusted},
		{next.CAs(), fromNext, ""},
		{ca.CAs(), fromCA, ""},
		{nil, fromCA, nodeproof.CertificateCAUnknown},
	} {
		r.follow(t, func(c *exchange.Config) {
			c.Nodes = proving(nodeproof.Enforce, step.cas, nodeproof.Certificate)
		})
		a := r.do(t, from(nodeproof.Caller{Certificates: step.by}, post(r.token(t, nil), pullWeb)))
		if e := r.lastEvent(t, i+1); step.want == "" {
			mustPass(t, a, e, nodeproof.Certificate)
		} else {
			mustRefuse(t, a, e, step.want)
		}
	}
}

// A kubelet pulls hundreds of images with one certificate, so its signatures are verified once. The
// test breaks the signature in memory to see this, which no client can do without changing the
// presented bytes.
func TestChainIsVerifiedOnce(t *testing.T) {
	t.Parallel()
	ca := pki.NewCA(t)
	leaf := ca.Sign(t).Certificate
	r := newRig(t, func(c *rigConfig) {
		c.nodes = proving(nodeproof.Enforce, ca.CAs(), nodeproof.Certificate)
	})
	ask := func() answer {
		return r.do(t, from(nodeproof.Caller{Certificates: []*x509.Certificate{leaf}}, post(r.token(t, nil), pullWeb)))
	}
	mustPass(t, ask(), r.lastEvent(t, 1), nodeproof.Certificate)
	leaf.Signature = slices.Clone(leaf.Signature) // it shared memory with Raw
	leaf.Signature[10] ^= 1
	mustPass(t, ask(), r.lastEvent(t, 2), nodeproof.Certificate)
	leaf.Raw = append(leaf.Raw, 0)
	mustRefuse(t, ask(), r.lastEvent(t, 3), nodeproof.CertificateUntrusted)
}

// Two clusters may have nodes of the same name. The certificate must be of the cluster that issued
// the token.
func TestProofIsPerCluster(t *testing.T) {
	t.Parallel()
	ca, foreign := pki.NewCA(t), pki.NewCA(t)
	a := testkit.Value(exchange.NewAdmission(exchange.AdmissionConfig{Now: func() time.Time { return made }, Nodes: map[string]exchange.NodeChecks{
		"prod": proving(nodeproof.Enforce, ca.CAs(), nodeproof.Certificate)["prod"],
		"test": proving(nodeproof.Enforce, foreign.CAs(), nodeproof.Certificate)["prod"],
	}}))(t)
	for cluster, own := range map[string]pki.Holder{"prod": ca, "test": foreign} {
		for _, by := range []pki.Holder{ca, foreign, ca} {
			var e exchange.Event
			_, err := a.Admit(t.Context(), identityOn(cluster, "node1"), nil, nodeproof.Caller{Certificates: pki.Presented(by.Sign(t))}, &e, new(exchange.Steps))
			if good := by == own; good != (err == nil) || good != e.Proof.Passed {
				t.Errorf("cluster %s: error %v, proof %+v, want passed %t", cluster, err, e.Proof, good)
			}
		}
	}
}

// Over real TLS: a connection that is kept alive, or resumed with a ticket, still has the
// certificate, which proves nothing after its expiry.
func TestProofOverKeptAndResumedConnections(t *testing.T) {
	t.Parallel()
	ca := pki.NewCA(t)
	r := newRig(t, func(c *rigConfig) {
		c.nodes = proving(nodeproof.Enforce, ca.CAs(), nodeproof.Certificate)
	})
	resumed := false
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		resumed = request.TLS.DidResume
		r.handler.ServeHTTP(w, request)
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, Time: func() time.Time { return made }} // TLS never sees the certificate's end
	server.StartTLS()
	t.Cleanup(server.Close)
	client := server.Client()
	transport := client.Transport.(*http.Transport)
	transport.TLSClientConfig.Certificates = []tls.Certificate{ca.Sign(t).TLS()}
	transport.TLSClientConfig.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	token := r.token(t, func(claims map[string]any) { claims["exp"] = made.Add(2 * time.Hour).Unix() })
	ask := func() int {
		request := post(token, pullWeb)
		request.RequestURI = ""
		target := *request.URL
		target.Scheme, target.Host = "https", server.Listener.Addr().String()
		request.URL = &target
		response := testkit.Value(client.Do(request))(t)
		testkit.Must(t, json.NewDecoder(response.Body).Decode(new(map[string]any)))
		testkit.Must(t, response.Body.Close())
		return response.StatusCode
	}
	for i, step := range []struct {
		after   time.Duration
		close   bool
		resumed bool
		want    int
	}{
		{0, false, false, http.StatusOK},
		{time.Minute, true, true, http.StatusOK},
		{time.Hour, false, true, http.StatusForbidden}, // kept alive
		{time.Second, true, true, http.StatusForbidden},
	} {
		r.advance(step.after)
		if step.close {
			client.CloseIdleConnections()
		}
		if got := ask(); got != step.want || resumed != step.resumed {
			t.Errorf("step %d: status %d, resumed %t, want %d, %t", i, got, resumed, step.want, step.resumed)
		}
	}
	if e := r.lastEvent(t, 4); e.Proof.Reason != nodeproof.CertificateExpired {
		t.Errorf("proof %+v", e.Proof)
	}
}

func TestProofByAddress(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		objects exchange.Objects
		caller  nodeproof.Caller
		want    nodeproof.Reason
	}{
		{"IPv4", node1At("192.0.2.7"), caller("192.0.2.7"), ""},
		{"another address", node1At("192.0.2.7"), caller("192.0.2.8"), nodeproof.AddressOther},
		{"a trusted proxy's own", node1At("192.0.2.7"), nodeproof.Caller{Address: netip.MustParseAddr("192.0.2.7"), ViaProxy: true}, nodeproof.AddressOfProxy},
		{"no address", node1At("192.0.2.7"), nodeproof.Caller{}, nodeproof.AddressUnknown},
		{"a node without addresses", node1At(), caller("192.0.2.7"), nodeproof.NodeUnknown},
		{"an unknown node", objects{}, caller("192.0.2.7"), nodeproof.NodeUnknown},
		{"a node of the same name with another UID", objects{byUID: map[string]exchange.Facts{webUID: {
			Node: &exchange.Node{Name: "node1", UID: "another", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.7")}},
		}}}, caller("192.0.2.7"), nodeproof.NodeUnknown},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(c *rigConfig) {
				c.objects = test.objects
				c.nodes = proving(nodeproof.Enforce, nil, nodeproof.Address)
			})
			a := r.do(t, from(test.caller, post(r.token(t, nil), pullWeb)))
			if e := r.lastEvent(t, 1); test.want == "" {
				mustPass(t, a, e, nodeproof.Address)
			} else {
				mustRefuse(t, a, e, test.want)
			}
		})
	}
}

func caller(address string) nodeproof.Caller {
	return nodeproof.Caller{Address: netip.MustParseAddr(address)}
}

// Any method suffices. If two fail, the reason is the more informative one, and the message has
// both. Audit grants as without proof, and records the refusal of enforce.
func TestProofModesAndMethods(t *testing.T) {
	t.Parallel()
	ca := pki.NewCA(t)
	good, bad := pki.Presented(ca.Sign(t)), pki.Presented(ca.Sign(t, pki.Named("system:node:node2")))
	here, elsewhere := netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("192.0.2.8")
	both := []nodeproof.Method{nodeproof.Certificate, nodeproof.Address}
	reversed := []nodeproof.Method{nodeproof.Address, nodeproof.Certificate}
	for i, test := range []struct {
		methods []nodeproof.Method
		caller  nodeproof.Caller
		method  nodeproof.Method // the method that suffices
		reason  nodeproof.Reason
		message []string
	}{
		{both, nodeproof.Caller{Address: here, Certificates: good}, nodeproof.Certificate, "", nil},
		{reversed, nodeproof.Caller{Address: here, Certificates: good}, nodeproof.Address, "", nil},
		{both, nodeproof.Caller{Address: elsewhere, Certificates: good}, nodeproof.Certificate, "", nil},
		{both, nodeproof.Caller{Address: here, Certificates: bad}, nodeproof.Address, "", nil},
		{both, nodeproof.Caller{Address: here}, nodeproof.Address, "", nil},
		{reversed, nodeproof.Caller{Certificates: good}, nodeproof.Certificate, "", nil},
		{both[:1], nodeproof.Caller{Address: here, Certificates: bad}, "", nodeproof.CertificateOtherNode, []string{`"node2"`}},
		{both[1:], nodeproof.Caller{Address: elsewhere, Certificates: good}, "", nodeproof.AddressOther, []string{"192.0.2.8"}},
		{both, nodeproof.Caller{Address: elsewhere, Certificates: bad}, "", nodeproof.CertificateOtherNode, []string{`"node2"`, "192.0.2.8"}},
		{reversed, nodeproof.Caller{Address: elsewhere, Certificates: bad}, "", nodeproof.CertificateOtherNode, []string{`"node2"`, "192.0.2.8"}},
		{both, nodeproof.Caller{Address: elsewhere}, "", nodeproof.AddressOther, []string{"hosts.toml", "192.0.2.8", "translated"}},
		{reversed, nodeproof.Caller{Address: elsewhere}, "", nodeproof.AddressOther, []string{"hosts.toml", "192.0.2.8", "translated"}},
		{both, nodeproof.Caller{Address: here, ViaProxy: true}, "", nodeproof.AddressOfProxy, []string{"hosts.toml", "X-Forwarded-For"}},
	} {
		for _, mode := range []nodeproof.Mode{nodeproof.Enforce, nodeproof.Audit, nodeproof.Off, ""} {
			t.Run(fmt.Sprintf("%d %s", i, mode), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, func(c *rigConfig) {
					c.objects = node1At("192.0.2.7")
					c.nodes = proving(mode, ca.CAs(), test.methods...)
				})
				a := r.do(t, from(test.caller, post(r.token(t, nil), pullWeb)))
				e := r.lastEvent(t, 1)
				switch {
				case mode == nodeproof.Enforce && test.method != "":
					mustPass(t, a, e, test.method)
					return
				case mode == nodeproof.Enforce:
					mustRefuse(t, a, e, test.reason)
				case a.status != http.StatusOK || len(a.access) != 1 || e.Result != exchange.ResultGranted || e.Reason != "" || e.Message != "":
					t.Errorf("status %d, event %+v", a.status, e)
				}
				if mode == nodeproof.Off || mode == "" {
					if e.Proof != nil {
						t.Errorf("proof %+v, want none: the check is off", e.Proof)
					}
					return
				}
				if e.Proof.Mode != mode || e.Proof.Passed != (test.method != "") || e.Proof.Method != test.method || e.Proof.Reason != test.reason {
					t.Errorf("proof %+v", e.Proof)
				}
				for _, part := range test.message {
					if !strings.Contains(e.Proof.Message, part) {
						t.Errorf("%q does not tell %q", e.Proof.Message, part)
					}
				}
			})
		}
	}
}

// A token without a node, or with a node name alone, cannot be proven. The Node did not exist when
// it was issued, and a node with that name now may be a different one.
func TestProofNeedsANode(t *testing.T) {
	t.Parallel()
	ca := pki.NewCA(t)
	for name, node := range map[string]any{"none": nil, "a mere name": map[string]any{"name": "node1"}} {
		for _, mode := range []nodeproof.Mode{nodeproof.Enforce, nodeproof.Audit} {
			t.Run(fmt.Sprint(name, " ", mode), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, func(c *rigConfig) {
					c.nodeOptional = true
					c.nodes = proving(mode, ca.CAs(), nodeproof.Certificate)
				})
				a := r.do(t, from(nodeproof.Caller{Certificates: pki.Presented(ca.Sign(t))}, post(r.token(t, onNode(node)), pullWeb)))
				e := r.lastEvent(t, 1)
				if e.Proof == nil || e.Proof.Mode != mode || e.Proof.Passed || e.Proof.Reason != nodeproof.NoNode || !strings.Contains(e.Proof.Message, "no node") {
					t.Errorf("proof %+v", e.Proof)
				}
				if refused := a.status == http.StatusForbidden && e.Reason == "caller_not_node"; refused != (mode == nodeproof.Enforce) {
					t.Errorf("status %d, event %+v", a.status, e)
				}
			})
		}
	}
}

// An anonymous request has no node, and public repositories stay public. The event must not mention
// proof, because none was required.
func TestAnonymousProvesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *rigConfig) {
		c.nodes = proving(nodeproof.Enforce, pki.NewCA(t).CAs(), nodeproof.Certificate)
	})
	a := r.do(t, get("", "repository:public/base:pull"))
	if e := r.lastEvent(t, 1); a.status != http.StatusOK || len(a.access) != 1 || e.Proof != nil {
		t.Errorf("status %d, access %v, proof %+v", a.status, a.access, e.Proof)
	}
}

// A caller that is not the node learns nothing about policy: the response is the same for every
// policy.
func TestProofComesBeforePolicy(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *rigConfig) {
		c.nodes = proving(nodeproof.Enforce, pki.NewCA(t).CAs(), nodeproof.Certificate)
	})
	token, denied := r.token(t, nil), r.token(t, inNamespace("team-bad"))
	first := r.do(t, post(token, pullWeb))
	for _, request := range []*http.Request{post(token, "repository:other/x:push"), post(token), post(denied, pullWeb)} {
		if a := r.do(t, request); a.status != first.status || !reflect.DeepEqual(a.body, first.body) {
			t.Errorf("status %d, %+v instead of %+v", a.status, a.body, first.body)
		}
	}
	if e := r.lastEvent(t, 4); e.Rule != "" || e.Scopes != nil {
		t.Errorf("policy was asked: %+v", e)
	}
}
