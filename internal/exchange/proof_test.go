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

func TestProofByCertificate(t *testing.T) {
	t.Parallel()
	ca, foreign := newCA(t), newCA(t)
	intermediate := ca.sign(t, authority("intermediate"))
	second := intermediate.sign(t, authority("second"))
	old := ca.sign(t, authority("old"), during(-time.Hour, -time.Minute))
	servers := ca.sign(t, authority("servers"), usage(x509.ExtKeyUsageServerAuth))
	node2 := ca.sign(t, named("system:node:node2"))
	leaf := ca.sign(t)
	deep := second.sign(t)
	for _, test := range []struct {
		name      string
		presented []*x509.Certificate
		want      nodeproof.Reason // empty: passes
	}{
		{"a kubelet's", presented(leaf), ""},
		{"more than one organization", presented(ca.sign(t, organizations("other", "system:nodes"))), ""},
		{"more than one usage", presented(ca.sign(t, usage(x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth))), ""},
		{"by way of intermediates", presented(deep, second, intermediate), ""},
		{"in any order", presented(deep, intermediate, second), ""},
		{"with the CA", presented(leaf, ca), ""},
		{"with what nobody needs", presented(leaf, foreign, old), ""},

		{"none", nil, nodeproof.CertificateMissing},
		{"of another node", presented(node2), nodeproof.CertificateOtherNode},
		{"name begins alike", presented(ca.sign(t, named("system:node:node1x"))), nodeproof.CertificateOtherNode},
		{"name ends alike", presented(ca.sign(t, named("system:node:system:node:node1"))), nodeproof.CertificateOtherNode},
		{"name with a dot", presented(ca.sign(t, named("system:node:node1."))), nodeproof.CertificateOtherNode},
		{"name in upper case", presented(ca.sign(t, named("system:node:NODE1"))), nodeproof.CertificateOtherNode},
		{"name with a space", presented(ca.sign(t, named("system:node:node1 "))), nodeproof.CertificateOtherNode},
		{"no name", presented(ca.sign(t, named("system:node:"))), nodeproof.CertificateOtherNode},
		{"a line of a log in the name", presented(ca.sign(t, named("system:node:x\n{\"result\":\"granted\"}"))), nodeproof.CertificateOtherNode},
		{"a long name", presented(ca.sign(t, named("system:node:"+strings.Repeat("x", 10_000)))), nodeproof.CertificateOtherNode},
		{"a long name of something else", presented(ca.sign(t, named(strings.Repeat("x", 10_000)))), nodeproof.CertificateNotNode},
		{"prefix in upper case", presented(ca.sign(t, named("System:node:node1"))), nodeproof.CertificateNotNode},
		{"no prefix", presented(ca.sign(t, named("node1"))), nodeproof.CertificateNotNode},
		{"of a ServiceAccount", presented(ca.sign(t, named("system:serviceaccount:team-a:node1"))), nodeproof.CertificateNotNode},
		{"no organization", presented(ca.sign(t, organizations())), nodeproof.CertificateNotNode},
		{"another organization", presented(ca.sign(t, organizations("system:nodes:x", "System:nodes"))), nodeproof.CertificateNotNode},
		{"a kubelet's serving certificate", presented(ca.sign(t, usage(x509.ExtKeyUsageServerAuth))), nodeproof.CertificateNotNode},
		{"no usage", presented(ca.sign(t, usage())), nodeproof.CertificateNotNode},
		{"any usage", presented(ca.sign(t, usage(x509.ExtKeyUsageAny))), nodeproof.CertificateNotNode},
		{"expired", presented(ca.sign(t, during(-time.Hour, -time.Second))), nodeproof.CertificateExpired},
		{"not valid yet", presented(ca.sign(t, during(time.Second, time.Hour))), nodeproof.CertificateNotYetValid},
		{"expired, of another cluster", presented(foreign.sign(t, during(-time.Hour, -time.Second))), nodeproof.CertificateExpired},
		{"of another cluster's node1", presented(foreign.sign(t)), nodeproof.CertificateUntrusted},
		{"of another cluster's node1, with its CA", presented(foreign.sign(t), foreign), nodeproof.CertificateUntrusted},
		{"of another cluster's node1, with our CA", presented(foreign.sign(t), ca), nodeproof.CertificateUntrusted},
		{"of another cluster's node2", presented(foreign.sign(t, named("system:node:node2"))), nodeproof.CertificateUntrusted},
		{"signed by itself", presented(certify(t, nil)), nodeproof.CertificateUntrusted},
		{"signed by another node", presented(node2.sign(t), node2), nodeproof.CertificateUntrusted},
		{"after another one", presented(foreign.sign(t), leaf), nodeproof.CertificateUntrusted},
		{"intermediate missing", presented(deep, second), nodeproof.CertificateUntrusted},
		{"intermediate expired", presented(old.sign(t), old), nodeproof.CertificateUntrusted},
		{"intermediate for servers only", presented(servers.sign(t), servers), nodeproof.CertificateUntrusted},
		{"too many", presented(leaf, ca, old, servers), nodeproof.CertificateUntrusted},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(c *rigConfig) {
				c.nodes = proving(nodeproof.Enforce, ca.cas(), nodeproof.Certificate)
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

func organizations(names ...string) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.Subject.Organization = names }
}

func usage(usages ...x509.ExtKeyUsage) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.ExtKeyUsage = usages }
}

// The time of each request counts, not that of the handshake. All certificates of the chain must be
// valid.
func TestProofEndsWithTheCertificates(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	intermediate := ca.sign(t, authority("intermediate"), during(-time.Hour, 20*time.Minute))
	late := ca.sign(t, authority("late"), during(5*time.Minute, time.Hour))
	for name, test := range map[string]struct {
		presented      []*x509.Certificate
		cas            *nodeproof.CAs
		begins, ends   time.Duration // relative to the start; whole seconds, inclusive
		before, beyond nodeproof.Reason
	}{
		"leaf":                    {presented(ca.sign(t, during(time.Minute, 10*time.Minute))), ca.cas(), time.Minute, 10 * time.Minute, nodeproof.CertificateNotYetValid, nodeproof.CertificateExpired},
		"intermediate ends first": {presented(intermediate.sign(t, during(time.Minute, time.Hour)), intermediate), ca.cas(), time.Minute, 20 * time.Minute, nodeproof.CertificateNotYetValid, nodeproof.CertificateUntrusted},
		"intermediate comes last": {presented(late.sign(t, during(0, 10*time.Minute)), late), ca.cas(), 5 * time.Minute, 10 * time.Minute, nodeproof.CertificateUntrusted, nodeproof.CertificateExpired},
		"CA ends first":           {presented(intermediate.sign(t, during(time.Minute, time.Hour))), intermediate.cas(), time.Minute, 20 * time.Minute, nodeproof.CertificateNotYetValid, nodeproof.CertificateUntrusted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(c *rigConfig) {
				c.nodes = proving(nodeproof.Enforce, test.cas, nodeproof.Certificate)
			})
			token := r.token(t, nil)
			ask := func(at time.Duration) (answer, *exchange.Event) {
				r.advance(made.Add(at).Sub(r.Now()))
				a := r.do(t, from(nodeproof.Caller{Certificates: test.presented}, post(token, pullWeb)))
				return a, r.lastEvent(t, len(r.events))
			}
			refuse := func(at time.Duration, reason nodeproof.Reason) {
				t.Helper()
				a, e := ask(at)
				mustRefuse(t, a, e, reason)
			}
			pass := func(at time.Duration) {
				t.Helper()
				a, e := ask(at)
				mustPass(t, a, e, nodeproof.Certificate)
			}
			refuse(test.begins-time.Second, test.before)
			pass(test.begins)
			pass(test.ends)
			refuse(test.ends+time.Second, test.beyond)
			refuse(test.begins-time.Second, test.before) // with the clock set back
			pass(test.ends)
		})
	}
}

// A reload of the CAs creates a new Exchanger. Chains to the old CAs no longer count, and chains to
// the new ones do. Without CAs, no certificate passes, even if it passed before.
func TestProofFollowsTheCAs(t *testing.T) {
	t.Parallel()
	ca, next := newCA(t), newCA(t)
	fromCA, fromNext := presented(ca.sign(t)), presented(next.sign(t))
	r := newRig(t, nil)
	for i, step := range []struct {
		cas  *nodeproof.CAs
		by   []*x509.Certificate
		want nodeproof.Reason
	}{
		{nil, fromCA, nodeproof.CertificateCAUnknown},
		{nodeproof.NewCAs("prod", nil), fromCA, nodeproof.CertificateUntrusted},
		{ca.cas(), fromCA, ""},
		{next.cas(), fromCA, nodeproof.CertificateUntrusted},
		{next.cas(), fromNext, ""},
		{ca.cas(), fromCA, ""},
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

// A certificate is verified again after the CAs changed, and when it is presented with different
// certificates.
func TestRememberedChainIsOfItsCAs(t *testing.T) {
	t.Parallel()
	ca, next := newCA(t), newCA(t)
	intermediate := ca.sign(t, authority("intermediate"))
	leaf := intermediate.sign(t)
	r := newRig(t, func(c *rigConfig) {
		c.nodes = proving(nodeproof.Enforce, ca.cas(), nodeproof.Certificate)
	})
	ask := func(certificates ...holder) answer {
		return r.do(t, from(nodeproof.Caller{Certificates: presented(certificates...)}, post(r.token(t, nil), pullWeb)))
	}
	mustPass(t, ask(leaf, intermediate), r.lastEvent(t, 1), nodeproof.Certificate)
	mustRefuse(t, ask(leaf), r.lastEvent(t, 2), nodeproof.CertificateUntrusted)
	r.follow(t, func(c *exchange.Config) {
		c.Nodes = proving(nodeproof.Enforce, next.cas(), nodeproof.Certificate)
	})
	mustRefuse(t, ask(leaf, intermediate), r.lastEvent(t, 3), nodeproof.CertificateUntrusted)
}

// A kubelet pulls hundreds of images with one certificate, so its signatures are verified once. The
// test breaks the signature in memory to see this, which no client can do without changing the
// presented bytes.
func TestChainIsVerifiedOnce(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	leaf := ca.sign(t).certificate
	r := newRig(t, func(c *rigConfig) {
		c.nodes = proving(nodeproof.Enforce, ca.cas(), nodeproof.Certificate)
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
	ca, foreign := newCA(t), newCA(t)
	a, err := exchange.NewAdmission(exchange.AdmissionConfig{Now: func() time.Time { return made }, Nodes: map[string]exchange.NodeChecks{
		"prod": proving(nodeproof.Enforce, ca.cas(), nodeproof.Certificate)["prod"],
		"test": proving(nodeproof.Enforce, foreign.cas(), nodeproof.Certificate)["prod"],
	}})
	must(t, err)
	for cluster, own := range map[string]holder{"prod": ca, "test": foreign} {
		for _, by := range []holder{ca, foreign, ca} {
			var e exchange.Event
			_, _, err := a.Admit(t.Context(), identityOn(cluster, "node1"), nil, nodeproof.Caller{Certificates: presented(by.sign(t))}, &e)
			if good := by == own; good != (err == nil) || good != e.Proof.Passed {
				t.Errorf("cluster %s: error %v, proof %+v, want passed %t", cluster, err, e.Proof, good)
			}
		}
	}
}

// Two clusters may have a common root CA, with intermediates that are in neither file and that
// nodes present.
func TestProofWithOneCAAboveTwoClusters(t *testing.T) {
	t.Parallel()
	root := newCA(t)
	between := root.sign(t, authority("between"))
	below := between.sign(t, authority("below"))
	other := root.sign(t, authority("other"))
	ended := certify(t, nil, authority("below"), during(-time.Hour, -time.Minute))
	renewed := certifyKey(t, &between, ended.key, authority("below"))
	for _, test := range []struct {
		name      string
		test      holder // its CA is that of cluster test; prod has the root
		cluster   string // of the token
		presented []*x509.Certificate
		want      nodeproof.Reason // empty: passes
	}{
		{"a node of the cluster below", below, "prod", presented(below.sign(t), below, between), nodeproof.CertificateOtherCluster},
		{"which is another one by name", below, "prod", presented(below.sign(t, named("system:node:node2")), below, between), nodeproof.CertificateOtherCluster},
		{"what is above it, in its file", between, "prod", presented(below.sign(t), below, between), nodeproof.CertificateOtherCluster},
		{"a CA that has ended in its file", ended, "prod", presented(renewed.sign(t), renewed, between), nodeproof.CertificateOtherCluster},
		{"without what is between", below, "prod", presented(below.sign(t)), nodeproof.CertificateUntrusted},
		{"a node of the cluster above", below, "prod", presented(root.sign(t)), ""},
		{"by way of another CA", below, "prod", presented(other.sign(t), other), ""},
		{"by way of one that is not the other's", below, "prod", presented(between.sign(t), between), ""},

		{"the cluster's own node", below, "test", presented(below.sign(t)), ""},
		{"with all that is between", below, "test", presented(below.sign(t), below, between), ""},
		{"a node of the cluster above, there", below, "test", presented(root.sign(t)), nodeproof.CertificateUntrusted},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			all := map[string][]*x509.Certificate{"prod": {root.certificate}, "test": {test.test.certificate}}
			nodes := map[string]exchange.NodeChecks{}
			for cluster := range all {
				nodes[cluster] = proving(nodeproof.Enforce, nodeproof.NewCAs(cluster, all), nodeproof.Certificate)["prod"]
			}
			a, err := exchange.NewAdmission(exchange.AdmissionConfig{Now: func() time.Time { return made }, Nodes: nodes})
			must(t, err)
			for range 2 { // the second time, the remembered result counts
				var e exchange.Event
				_, _, err = a.Admit(t.Context(), identityOn(test.cluster, "node1"), nil, nodeproof.Caller{Certificates: test.presented}, &e)
				if (err == nil) != (test.want == "") || e.Proof.Passed != (test.want == "") || e.Proof.Reason != test.want {
					t.Fatalf("error %v, proof %+v", err, e.Proof)
				}
				if test.want == nodeproof.CertificateOtherCluster && !strings.Contains(err.Error(), `that of a node of cluster "test"`) {
					t.Errorf("error %v", err)
				}
			}
		})
	}
}

// Over real TLS: a connection that is kept alive, or resumed with a ticket, still has the
// certificate, which proves nothing after its expiry.
func TestProofOverKeptAndResumedConnections(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	r := newRig(t, func(c *rigConfig) {
		c.nodes = proving(nodeproof.Enforce, ca.cas(), nodeproof.Certificate)
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
	transport.TLSClientConfig.Certificates = []tls.Certificate{ca.sign(t).tls()}
	transport.TLSClientConfig.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	token := r.token(t, func(claims map[string]any) { claims["exp"] = made.Add(2 * time.Hour).Unix() })
	ask := func() int {
		request := post(token, pullWeb)
		request.RequestURI = ""
		target := *request.URL
		target.Scheme, target.Host = "https", server.Listener.Addr().String()
		request.URL = &target
		response, err := client.Do(request)
		must(t, err)
		must(t, json.NewDecoder(response.Body).Decode(new(map[string]any)))
		must(t, response.Body.Close())
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
		{"one of several", node1At("10.0.0.7", "192.0.2.7", "2001:db8::7"), caller("192.0.2.7"), ""},
		{"IPv6", node1At("10.0.0.7", "2001:db8::7"), caller("2001:db8:0::0:7"), ""},
		{"mapped caller", node1At("192.0.2.7"), caller("::ffff:192.0.2.7"), ""},
		{"mapped node", node1At("::ffff:192.0.2.7"), caller("192.0.2.7"), ""},
		{"caller with a zone", node1At("fe80::7"), caller("fe80::7%eth0"), ""},
		{"node with a zone", node1At("fe80::7%eth1"), caller("fe80::7"), ""},

		{"another address", node1At("192.0.2.7"), caller("192.0.2.8"), nodeproof.AddressOther},
		{"begins alike", node1At("192.0.2.7"), caller("192.0.2.70"), nodeproof.AddressOther},
		{"other family", node1At("192.0.2.7"), caller("::192.0.2.7"), nodeproof.AddressOther},
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
	ca := newCA(t)
	good, bad := presented(ca.sign(t)), presented(ca.sign(t, named("system:node:node2")))
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
					c.nodes = proving(mode, ca.cas(), test.methods...)
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
						t.Errorf("proof %+v, though nobody asked", e.Proof)
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
	ca := newCA(t)
	for name, node := range map[string]any{"none": nil, "a mere name": map[string]any{"name": "node1"}} {
		for _, mode := range []nodeproof.Mode{nodeproof.Enforce, nodeproof.Audit} {
			t.Run(fmt.Sprint(name, " ", mode), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, func(c *rigConfig) {
					c.nodeOptional = true
					c.nodes = proving(mode, ca.cas(), nodeproof.Certificate)
				})
				a := r.do(t, from(nodeproof.Caller{Certificates: presented(ca.sign(t))}, post(r.token(t, onNode(node)), pullWeb)))
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
		c.nodes = proving(nodeproof.Enforce, newCA(t).cas(), nodeproof.Certificate)
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
		c.nodes = proving(nodeproof.Enforce, newCA(t).cas(), nodeproof.Certificate)
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
