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
	"github.com/pullpass/pullpass/internal/nodecert"
)

const pullWeb = "repository:team-a/web:pull"

// proving makes cluster prod ask for proof.
func proving(mode exchange.ProofMode, cas *nodecert.CAs, methods ...exchange.ProofMethod) map[string]exchange.NodeChecks {
	return map[string]exchange.NodeChecks{"prod": {Proof: exchange.ProofConfig{Mode: mode, Methods: methods, CAs: cas}}}
}

// node1At answers that the Node of the test's tokens has these addresses.
func node1At(addresses ...string) objects {
	node := &exchange.Node{Name: "node1", UID: node1UID}
	for _, a := range addresses {
		node.Addresses = append(node.Addresses, netip.MustParseAddr(a))
	}
	return objects{byUID: map[string]exchange.Facts{webUID: {Node: node}}}
}

// mustRefuse fails the test unless the answer and its event refuse the caller
// for this reason.
func mustRefuse(t *testing.T, a answer, e *exchange.Event, reason exchange.ProofReason) {
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
	if want := (exchange.Proof{Mode: exchange.ProofEnforce, Reason: reason, Message: e.Message}); e.Proof == nil || *e.Proof != want {
		t.Errorf("proof %+v, want %+v", e.Proof, want)
	}
}

// mustPass fails the test unless the answer and its event are those of a proven
// caller.
func mustPass(t *testing.T, a answer, e *exchange.Event, method exchange.ProofMethod) {
	t.Helper()
	if a.status != http.StatusOK || len(a.access) != 1 {
		t.Fatalf("status %d, %s", a.status, e.Message)
	}
	if want := (exchange.Proof{Mode: exchange.ProofEnforce, Passed: true, Method: method}); e.Proof == nil || *e.Proof != want || e.Result != exchange.ResultGranted {
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
		want      exchange.ProofReason // empty: passes
	}{
		{"a kubelet's", presented(leaf), ""},
		{"more than one organization", presented(ca.sign(t, organizations("other", "system:nodes"))), ""},
		{"more than one usage", presented(ca.sign(t, usage(x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth))), ""},
		{"by way of intermediates", presented(deep, second, intermediate), ""},
		{"in any order", presented(deep, intermediate, second), ""},
		{"with the CA", presented(leaf, ca), ""},
		{"with what nobody needs", presented(leaf, foreign, old), ""},

		{"none", nil, exchange.ProofCertificateMissing},
		{"of another node", presented(node2), exchange.ProofCertificateOtherNode},
		{"name begins alike", presented(ca.sign(t, named("system:node:node1x"))), exchange.ProofCertificateOtherNode},
		{"name ends alike", presented(ca.sign(t, named("system:node:system:node:node1"))), exchange.ProofCertificateOtherNode},
		{"name with a dot", presented(ca.sign(t, named("system:node:node1."))), exchange.ProofCertificateOtherNode},
		{"name in upper case", presented(ca.sign(t, named("system:node:NODE1"))), exchange.ProofCertificateOtherNode},
		{"name with a space", presented(ca.sign(t, named("system:node:node1 "))), exchange.ProofCertificateOtherNode},
		{"no name", presented(ca.sign(t, named("system:node:"))), exchange.ProofCertificateOtherNode},
		{"a line of a log in the name", presented(ca.sign(t, named("system:node:x\n{\"result\":\"granted\"}"))), exchange.ProofCertificateOtherNode},
		{"a long name", presented(ca.sign(t, named("system:node:"+strings.Repeat("x", 10_000)))), exchange.ProofCertificateOtherNode},
		{"a long name of something else", presented(ca.sign(t, named(strings.Repeat("x", 10_000)))), exchange.ProofCertificateNotNode},
		{"prefix in upper case", presented(ca.sign(t, named("System:node:node1"))), exchange.ProofCertificateNotNode},
		{"no prefix", presented(ca.sign(t, named("node1"))), exchange.ProofCertificateNotNode},
		{"of a ServiceAccount", presented(ca.sign(t, named("system:serviceaccount:team-a:node1"))), exchange.ProofCertificateNotNode},
		{"no organization", presented(ca.sign(t, organizations())), exchange.ProofCertificateNotNode},
		{"another organization", presented(ca.sign(t, organizations("system:nodes:x", "System:nodes"))), exchange.ProofCertificateNotNode},
		{"a kubelet's serving certificate", presented(ca.sign(t, usage(x509.ExtKeyUsageServerAuth))), exchange.ProofCertificateNotNode},
		{"no usage", presented(ca.sign(t, usage())), exchange.ProofCertificateNotNode},
		{"any usage", presented(ca.sign(t, usage(x509.ExtKeyUsageAny))), exchange.ProofCertificateNotNode},
		{"expired", presented(ca.sign(t, during(-time.Hour, -time.Second))), exchange.ProofCertificateExpired},
		{"not valid yet", presented(ca.sign(t, during(time.Second, time.Hour))), exchange.ProofCertificateNotYetValid},
		{"expired, of another cluster", presented(foreign.sign(t, during(-time.Hour, -time.Second))), exchange.ProofCertificateExpired},
		{"of another cluster's node1", presented(foreign.sign(t)), exchange.ProofCertificateUntrusted},
		{"of another cluster's node1, with its CA", presented(foreign.sign(t), foreign), exchange.ProofCertificateUntrusted},
		{"of another cluster's node1, with our CA", presented(foreign.sign(t), ca), exchange.ProofCertificateUntrusted},
		{"of another cluster's node2", presented(foreign.sign(t, named("system:node:node2"))), exchange.ProofCertificateUntrusted},
		{"signed by itself", presented(certify(t, nil)), exchange.ProofCertificateUntrusted},
		{"signed by another node", presented(node2.sign(t), node2), exchange.ProofCertificateUntrusted},
		{"after another one", presented(foreign.sign(t), leaf), exchange.ProofCertificateUntrusted},
		{"intermediate missing", presented(deep, second), exchange.ProofCertificateUntrusted},
		{"intermediate expired", presented(old.sign(t), old), exchange.ProofCertificateUntrusted},
		{"intermediate for servers only", presented(servers.sign(t), servers), exchange.ProofCertificateUntrusted},
		{"too many", presented(leaf, ca, old, servers), exchange.ProofCertificateUntrusted},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(c *rigConfig) {
				c.nodes = proving(exchange.ProofEnforce, ca.cas(), exchange.ProofCertificate)
			})
			for n := range 2 { // the second time, what was remembered counts
				a := r.do(t, from(exchange.Caller{Certificates: test.presented}, post(r.token(t, nil), pullWeb)))
				if e := r.lastEvent(t, n+1); test.want == "" {
					mustPass(t, a, e, exchange.ProofCertificate)
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

// The time counts at each request, not at the handshake; all certificates of
// the chain must be valid.
func TestProofEndsWithTheCertificates(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	intermediate := ca.sign(t, authority("intermediate"), during(-time.Hour, 20*time.Minute))
	late := ca.sign(t, authority("late"), during(5*time.Minute, time.Hour))
	for name, test := range map[string]struct {
		presented      []*x509.Certificate
		cas            *nodecert.CAs
		begins, ends   time.Duration // relative to the start; whole seconds, inclusive
		before, beyond exchange.ProofReason
	}{
		"leaf":                    {presented(ca.sign(t, during(time.Minute, 10*time.Minute))), ca.cas(), time.Minute, 10 * time.Minute, exchange.ProofCertificateNotYetValid, exchange.ProofCertificateExpired},
		"intermediate ends first": {presented(intermediate.sign(t, during(time.Minute, time.Hour)), intermediate), ca.cas(), time.Minute, 20 * time.Minute, exchange.ProofCertificateNotYetValid, exchange.ProofCertificateUntrusted},
		"intermediate comes last": {presented(late.sign(t, during(0, 10*time.Minute)), late), ca.cas(), 5 * time.Minute, 10 * time.Minute, exchange.ProofCertificateUntrusted, exchange.ProofCertificateExpired},
		"CA ends first":           {presented(intermediate.sign(t, during(time.Minute, time.Hour))), intermediate.cas(), time.Minute, 20 * time.Minute, exchange.ProofCertificateNotYetValid, exchange.ProofCertificateUntrusted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(c *rigConfig) {
				c.nodes = proving(exchange.ProofEnforce, test.cas, exchange.ProofCertificate)
			})
			token := r.token(t, nil)
			ask := func(at time.Duration) (answer, *exchange.Event) {
				r.advance(made.Add(at).Sub(r.Now()))
				a := r.do(t, from(exchange.Caller{Certificates: test.presented}, post(token, pullWeb)))
				return a, r.lastEvent(t, len(r.events))
			}
			refuse := func(at time.Duration, reason exchange.ProofReason) {
				t.Helper()
				a, e := ask(at)
				mustRefuse(t, a, e, reason)
			}
			pass := func(at time.Duration) {
				t.Helper()
				a, e := ask(at)
				mustPass(t, a, e, exchange.ProofCertificate)
			}
			refuse(test.begins-time.Second, test.before)
			pass(test.begins)
			pass(test.ends)
			refuse(test.ends+time.Second, test.beyond)
			refuse(test.begins-time.Second, test.before) // a clock that was set back
			pass(test.ends)
		})
	}
}

// CAs that were read again come with another Exchanger: what led to the old ones
// counts no more, and what leads to the new ones does. Without any, no certificate
// passes, not even one that did before.
func TestProofFollowsTheCAs(t *testing.T) {
	t.Parallel()
	ca, next := newCA(t), newCA(t)
	fromCA, fromNext := presented(ca.sign(t)), presented(next.sign(t))
	r := newRig(t, nil)
	for i, step := range []struct {
		cas  *nodecert.CAs
		by   []*x509.Certificate
		want exchange.ProofReason
	}{
		{nil, fromCA, exchange.ProofCertificateCAUnknown},
		{nodecert.NewCAs("prod", nil), fromCA, exchange.ProofCertificateUntrusted},
		{ca.cas(), fromCA, ""},
		{next.cas(), fromCA, exchange.ProofCertificateUntrusted},
		{next.cas(), fromNext, ""},
		{ca.cas(), fromCA, ""},
		{nil, fromCA, exchange.ProofCertificateCAUnknown},
	} {
		r.follow(t, func(c *exchange.Config) {
			c.Nodes = proving(exchange.ProofEnforce, step.cas, exchange.ProofCertificate)
		})
		a := r.do(t, from(exchange.Caller{Certificates: step.by}, post(r.token(t, nil), pullWeb)))
		if e := r.lastEvent(t, i+1); step.want == "" {
			mustPass(t, a, e, exchange.ProofCertificate)
		} else {
			mustRefuse(t, a, e, step.want)
		}
	}
}

// The same certificate, presented again after the CAs changed, must be verified
// again, and so must it when it comes with other certificates.
func TestRememberedChainIsOfItsCAs(t *testing.T) {
	t.Parallel()
	ca, next := newCA(t), newCA(t)
	intermediate := ca.sign(t, authority("intermediate"))
	leaf := intermediate.sign(t)
	r := newRig(t, func(c *rigConfig) {
		c.nodes = proving(exchange.ProofEnforce, ca.cas(), exchange.ProofCertificate)
	})
	ask := func(certificates ...holder) answer {
		return r.do(t, from(exchange.Caller{Certificates: presented(certificates...)}, post(r.token(t, nil), pullWeb)))
	}
	mustPass(t, ask(leaf, intermediate), r.lastEvent(t, 1), exchange.ProofCertificate)
	mustRefuse(t, ask(leaf), r.lastEvent(t, 2), exchange.ProofCertificateUntrusted)
	r.follow(t, func(c *exchange.Config) {
		c.Nodes = proving(exchange.ProofEnforce, next.cas(), exchange.ProofCertificate)
	})
	mustRefuse(t, ask(leaf, intermediate), r.lastEvent(t, 3), exchange.ProofCertificateUntrusted)
}

// A kubelet pulls hundreds of images with one certificate: its signatures are
// verified once. That they are not verified again is seen by breaking them,
// which no client can do without changing what it presents.
func TestChainIsVerifiedOnce(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	leaf := ca.sign(t).certificate
	r := newRig(t, func(c *rigConfig) {
		c.nodes = proving(exchange.ProofEnforce, ca.cas(), exchange.ProofCertificate)
	})
	ask := func() answer {
		return r.do(t, from(exchange.Caller{Certificates: []*x509.Certificate{leaf}}, post(r.token(t, nil), pullWeb)))
	}
	mustPass(t, ask(), r.lastEvent(t, 1), exchange.ProofCertificate)
	leaf.Signature = slices.Clone(leaf.Signature) // it was a part of Raw
	leaf.Signature[10] ^= 1
	mustPass(t, ask(), r.lastEvent(t, 2), exchange.ProofCertificate)
	leaf.Raw = append(leaf.Raw, 0)
	mustRefuse(t, ask(), r.lastEvent(t, 3), exchange.ProofCertificateUntrusted)
}

// Two clusters may have a node of the same name: the certificate must be of the
// cluster that issued the token.
func TestProofIsPerCluster(t *testing.T) {
	t.Parallel()
	ca, foreign := newCA(t), newCA(t)
	a, err := exchange.NewAdmission(exchange.AdmissionConfig{Now: func() time.Time { return made }, Nodes: map[string]exchange.NodeChecks{
		"prod": proving(exchange.ProofEnforce, ca.cas(), exchange.ProofCertificate)["prod"],
		"test": proving(exchange.ProofEnforce, foreign.cas(), exchange.ProofCertificate)["prod"],
	}})
	must(t, err)
	for cluster, own := range map[string]holder{"prod": ca, "test": foreign} {
		for _, by := range []holder{ca, foreign, ca} {
			var e exchange.Event
			_, _, err := a.Admit(t.Context(), identityOn(cluster, "node1"), nil, exchange.Caller{Certificates: presented(by.sign(t))}, &e)
			if good := by == own; good != (err == nil) || good != e.Proof.Passed {
				t.Errorf("cluster %s: error %v, proof %+v, want passed %t", cluster, err, e.Proof, good)
			}
		}
	}
}

// One CA can be above those of two clusters, by way of certificates that are in
// neither file and that nodes present.
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
		test      holder // whose CA the cluster test has; prod has the root
		cluster   string // of the token
		presented []*x509.Certificate
		want      exchange.ProofReason // empty: passes
	}{
		{"a node of the cluster below", below, "prod", presented(below.sign(t), below, between), exchange.ProofCertificateOtherCluster},
		{"which is another one by name", below, "prod", presented(below.sign(t, named("system:node:node2")), below, between), exchange.ProofCertificateOtherCluster},
		{"what is above it, in its file", between, "prod", presented(below.sign(t), below, between), exchange.ProofCertificateOtherCluster},
		{"a CA that has ended in its file", ended, "prod", presented(renewed.sign(t), renewed, between), exchange.ProofCertificateOtherCluster},
		{"without what is between", below, "prod", presented(below.sign(t)), exchange.ProofCertificateUntrusted},
		{"a node of the cluster above", below, "prod", presented(root.sign(t)), ""},
		{"by way of another CA", below, "prod", presented(other.sign(t), other), ""},
		{"by way of one that is not the other's", below, "prod", presented(between.sign(t), between), ""},

		{"the cluster's own node", below, "test", presented(below.sign(t)), ""},
		{"with all that is between", below, "test", presented(below.sign(t), below, between), ""},
		{"a node of the cluster above, there", below, "test", presented(root.sign(t)), exchange.ProofCertificateUntrusted},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			all := map[string][]*x509.Certificate{"prod": {root.certificate}, "test": {test.test.certificate}}
			nodes := map[string]exchange.NodeChecks{}
			for cluster := range all {
				nodes[cluster] = proving(exchange.ProofEnforce, nodecert.NewCAs(cluster, all), exchange.ProofCertificate)["prod"]
			}
			a, err := exchange.NewAdmission(exchange.AdmissionConfig{Now: func() time.Time { return made }, Nodes: nodes})
			must(t, err)
			for range 2 { // the second time, what was remembered counts
				var e exchange.Event
				_, _, err = a.Admit(t.Context(), identityOn(test.cluster, "node1"), nil, exchange.Caller{Certificates: test.presented}, &e)
				if (err == nil) != (test.want == "") || e.Proof.Passed != (test.want == "") || e.Proof.Reason != test.want {
					t.Fatalf("error %v, proof %+v", err, e.Proof)
				}
				if test.want == exchange.ProofCertificateOtherCluster && !strings.Contains(err.Error(), `that of a node of cluster "test"`) {
					t.Errorf("error %v", err)
				}
			}
		})
	}
}

// Over real TLS: a connection that is kept alive, or resumed with a ticket,
// brings the certificate along, and brings no proof after its end.
func TestProofOverKeptAndResumedConnections(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	r := newRig(t, func(c *rigConfig) {
		c.nodes = proving(exchange.ProofEnforce, ca.cas(), exchange.ProofCertificate)
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
	if e := r.lastEvent(t, 4); e.Proof.Reason != exchange.ProofCertificateExpired {
		t.Errorf("proof %+v", e.Proof)
	}
}

func TestProofByAddress(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		objects exchange.Objects
		caller  exchange.Caller
		want    exchange.ProofReason
	}{
		{"IPv4", node1At("192.0.2.7"), caller("192.0.2.7"), ""},
		{"one of several", node1At("10.0.0.7", "192.0.2.7", "2001:db8::7"), caller("192.0.2.7"), ""},
		{"IPv6", node1At("10.0.0.7", "2001:db8::7"), caller("2001:db8:0::0:7"), ""},
		{"mapped caller", node1At("192.0.2.7"), caller("::ffff:192.0.2.7"), ""},
		{"mapped node", node1At("::ffff:192.0.2.7"), caller("192.0.2.7"), ""},
		{"caller with a zone", node1At("fe80::7"), caller("fe80::7%eth0"), ""},
		{"node with a zone", node1At("fe80::7%eth1"), caller("fe80::7"), ""},

		{"another address", node1At("192.0.2.7"), caller("192.0.2.8"), exchange.ProofAddressOther},
		{"begins alike", node1At("192.0.2.7"), caller("192.0.2.70"), exchange.ProofAddressOther},
		{"other family", node1At("192.0.2.7"), caller("::192.0.2.7"), exchange.ProofAddressOther},
		{"a trusted proxy's own", node1At("192.0.2.7"), exchange.Caller{Address: netip.MustParseAddr("192.0.2.7"), ViaProxy: true}, exchange.ProofAddressOfProxy},
		{"no address", node1At("192.0.2.7"), exchange.Caller{}, exchange.ProofAddressUnknown},
		{"a node without addresses", node1At(), caller("192.0.2.7"), exchange.ProofNodeUnknown},
		{"an unknown node", objects{}, caller("192.0.2.7"), exchange.ProofNodeUnknown},
		{"a node of the same name with another UID", objects{byUID: map[string]exchange.Facts{webUID: {
			Node: &exchange.Node{Name: "node1", UID: "another", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.7")}},
		}}}, caller("192.0.2.7"), exchange.ProofNodeUnknown},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(c *rigConfig) {
				c.objects = test.objects
				c.nodes = proving(exchange.ProofEnforce, nil, exchange.ProofAddress)
			})
			a := r.do(t, from(test.caller, post(r.token(t, nil), pullWeb)))
			if e := r.lastEvent(t, 1); test.want == "" {
				mustPass(t, a, e, exchange.ProofAddress)
			} else {
				mustRefuse(t, a, e, test.want)
			}
		})
	}
}

func caller(address string) exchange.Caller {
	return exchange.Caller{Address: netip.MustParseAddr(address)}
}

// Any method suffices; of two that fail, the reason is what tells more, and the
// message tells both. Audit grants as if nobody had asked, and writes down what
// enforce would have said.
func TestProofModesAndMethods(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	good, bad := presented(ca.sign(t)), presented(ca.sign(t, named("system:node:node2")))
	here, elsewhere := netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("192.0.2.8")
	both := []exchange.ProofMethod{exchange.ProofCertificate, exchange.ProofAddress}
	reversed := []exchange.ProofMethod{exchange.ProofAddress, exchange.ProofCertificate}
	for i, test := range []struct {
		methods []exchange.ProofMethod
		caller  exchange.Caller
		method  exchange.ProofMethod // that suffices
		reason  exchange.ProofReason
		message []string
	}{
		{both, exchange.Caller{Address: here, Certificates: good}, exchange.ProofCertificate, "", nil},
		{reversed, exchange.Caller{Address: here, Certificates: good}, exchange.ProofAddress, "", nil},
		{both, exchange.Caller{Address: elsewhere, Certificates: good}, exchange.ProofCertificate, "", nil},
		{both, exchange.Caller{Address: here, Certificates: bad}, exchange.ProofAddress, "", nil},
		{both, exchange.Caller{Address: here}, exchange.ProofAddress, "", nil},
		{reversed, exchange.Caller{Certificates: good}, exchange.ProofCertificate, "", nil},
		{both[:1], exchange.Caller{Address: here, Certificates: bad}, "", exchange.ProofCertificateOtherNode, []string{`"node2"`}},
		{both[1:], exchange.Caller{Address: elsewhere, Certificates: good}, "", exchange.ProofAddressOther, []string{"192.0.2.8"}},
		{both, exchange.Caller{Address: elsewhere, Certificates: bad}, "", exchange.ProofCertificateOtherNode, []string{`"node2"`, "192.0.2.8"}},
		{reversed, exchange.Caller{Address: elsewhere, Certificates: bad}, "", exchange.ProofCertificateOtherNode, []string{`"node2"`, "192.0.2.8"}},
		{both, exchange.Caller{Address: elsewhere}, "", exchange.ProofAddressOther, []string{"hosts.toml", "192.0.2.8", "translated"}},
		{reversed, exchange.Caller{Address: elsewhere}, "", exchange.ProofAddressOther, []string{"hosts.toml", "192.0.2.8", "translated"}},
		{both, exchange.Caller{Address: here, ViaProxy: true}, "", exchange.ProofAddressOfProxy, []string{"hosts.toml", "X-Forwarded-For"}},
	} {
		for _, mode := range []exchange.ProofMode{exchange.ProofEnforce, exchange.ProofAudit, exchange.ProofOff, ""} {
			t.Run(fmt.Sprintf("%d %s", i, mode), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, func(c *rigConfig) {
					c.objects = node1At("192.0.2.7")
					c.nodes = proving(mode, ca.cas(), test.methods...)
				})
				a := r.do(t, from(test.caller, post(r.token(t, nil), pullWeb)))
				e := r.lastEvent(t, 1)
				switch {
				case mode == exchange.ProofEnforce && test.method != "":
					mustPass(t, a, e, test.method)
					return
				case mode == exchange.ProofEnforce:
					mustRefuse(t, a, e, test.reason)
				case a.status != http.StatusOK || len(a.access) != 1 || e.Result != exchange.ResultGranted || e.Reason != "" || e.Message != "":
					t.Errorf("status %d, event %+v", a.status, e)
				}
				if mode == exchange.ProofOff || mode == "" {
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

// No proof is possible for a token without a node, or with a mere name: the
// Node did not exist then, and whoever has the name now need not be it.
func TestProofNeedsANode(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	for name, node := range map[string]any{"none": nil, "a mere name": map[string]any{"name": "node1"}} {
		for _, mode := range []exchange.ProofMode{exchange.ProofEnforce, exchange.ProofAudit} {
			t.Run(fmt.Sprint(name, " ", mode), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, func(c *rigConfig) {
					c.nodeOptional = true
					c.nodes = proving(mode, ca.cas(), exchange.ProofCertificate)
				})
				a := r.do(t, from(exchange.Caller{Certificates: presented(ca.sign(t))}, post(r.token(t, onNode(node)), pullWeb)))
				e := r.lastEvent(t, 1)
				if e.Proof == nil || e.Proof.Mode != mode || e.Proof.Passed || e.Proof.Reason != exchange.ProofNoNode || !strings.Contains(e.Proof.Message, "no node") {
					t.Errorf("proof %+v", e.Proof)
				}
				if refused := a.status == http.StatusForbidden && e.Reason == "caller_not_node"; refused != (mode == exchange.ProofEnforce) {
					t.Errorf("status %d, event %+v", a.status, e)
				}
			})
		}
	}
}

// Nobody anonymous names a node, and what is public stays so. A remark on
// proof would mislead: nobody asked for one.
func TestAnonymousProvesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *rigConfig) {
		c.nodes = proving(exchange.ProofEnforce, newCA(t).cas(), exchange.ProofCertificate)
	})
	a := r.do(t, get("", "repository:public/base:pull"))
	if e := r.lastEvent(t, 1); a.status != http.StatusOK || len(a.access) != 1 || e.Proof != nil {
		t.Errorf("status %d, access %v, proof %+v", a.status, a.access, e.Proof)
	}
}

// Who is not the node learns nothing about policy: whatever it would say, the
// answer is the same.
func TestProofComesBeforePolicy(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *rigConfig) {
		c.nodes = proving(exchange.ProofEnforce, newCA(t).cas(), exchange.ProofCertificate)
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
