package nodeproof_test

import (
	"crypto/x509"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	pki "github.com/pullpass/pullpass/internal/exchange/nodeproof/nodeprooftest"
	"github.com/pullpass/pullpass/internal/oidc"
)

// rig judges callers with one memory of chains.
type rig struct {
	chains *nodeproof.Chains
	now    time.Time
}

func newRig() *rig { return &rig{nodeproof.NewChains(), pki.Made} }

func (r *rig) judge() nodeproof.Judge {
	return nodeproof.Judge{Chains: r.chains, Now: func() time.Time { return r.now }}
}

// expect judges a certificate for a token of node1 in cluster prod. No reason means that it passes.
func (r *rig) expect(t *testing.T, cas *nodeproof.CAs, presented []*x509.Certificate, want nodeproof.Reason) {
	t.Helper()
	r.expectIn(t, "prod", cas, presented, want)
}

// expectIn is expect for a token of a cluster. It returns the message.
func (r *rig) expectIn(t *testing.T, cluster string, cas *nodeproof.CAs, presented []*x509.Certificate, want nodeproof.Reason) string {
	t.Helper()
	proof, unseen := r.judge().Try(proving(cas, nodeproof.Certificate), node1(cluster), nil, nodeproof.Caller{Certificates: presented})
	if unseen {
		t.Error("the certificate was not judged")
	}
	expectProof(t, proof, nodeproof.Certificate, want)
	return proof.Message
}

func expectProof(t *testing.T, got nodeproof.Proof, method nodeproof.Method, reason nodeproof.Reason) {
	t.Helper()
	want := nodeproof.Proof{Mode: nodeproof.Enforce, Passed: true, Method: method}
	if reason != "" {
		want = nodeproof.Proof{Mode: nodeproof.Enforce, Reason: reason, Message: got.Message}
	}
	if got != want {
		t.Errorf("proof %+v, want %+v", got, want)
	}
	if reason != "" && (!strings.Contains(got.Message, `"node1"`) || strings.Contains(got.Message, "\n") || len(got.Message) > 500) {
		t.Errorf("message %q", got.Message)
	}
}

func proving(cas *nodeproof.CAs, method nodeproof.Method) nodeproof.Config {
	return nodeproof.Config{Mode: nodeproof.Enforce, Methods: []nodeproof.Method{method}, CAs: cas}
}

func node1(cluster string) *oidc.Identity {
	return &oidc.Identity{Cluster: cluster, Kubernetes: oidc.KubernetesIdentity{Node: oidc.ObjectRef{Name: "node1", UID: "uid-3"}}}
}

func addresses(list ...string) []netip.Addr {
	var all []netip.Addr
	for _, a := range list {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

func caller(address string) nodeproof.Caller {
	return nodeproof.Caller{Address: netip.MustParseAddr(address)}
}

func TestProofByCertificate(t *testing.T) {
	t.Parallel()
	ca, foreign := pki.NewCA(t), pki.NewCA(t)
	intermediate := ca.Sign(t, pki.Authority("intermediate"))
	second := intermediate.Sign(t, pki.Authority("second"))
	old := ca.Sign(t, pki.Authority("old"), pki.During(-time.Hour, -time.Minute))
	servers := ca.Sign(t, pki.Authority("servers"), pki.Usage(x509.ExtKeyUsageServerAuth))
	node2 := ca.Sign(t, pki.Named("system:node:node2"))
	leaf := ca.Sign(t)
	deep := second.Sign(t)
	cas := ca.CAs()
	for _, test := range []struct {
		name      string
		presented []*x509.Certificate
		want      nodeproof.Reason // empty: passes
	}{
		{"a kubelet's", pki.Presented(leaf), ""},
		{"more than one organization", pki.Presented(ca.Sign(t, pki.Organizations("other", "system:nodes"))), ""},
		{"more than one usage", pki.Presented(ca.Sign(t, pki.Usage(x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth))), ""},
		{"by way of intermediates", pki.Presented(deep, second, intermediate), ""},
		{"in any order", pki.Presented(deep, intermediate, second), ""},
		{"with the CA", pki.Presented(leaf, ca), ""},
		{"with unneeded certificates", pki.Presented(leaf, foreign, old), ""},

		{"none", nil, nodeproof.CertificateMissing},
		{"of another node", pki.Presented(node2), nodeproof.CertificateOtherNode},
		{"name begins alike", pki.Presented(ca.Sign(t, pki.Named("system:node:node1x"))), nodeproof.CertificateOtherNode},
		{"name ends alike", pki.Presented(ca.Sign(t, pki.Named("system:node:system:node:node1"))), nodeproof.CertificateOtherNode},
		{"name with a dot", pki.Presented(ca.Sign(t, pki.Named("system:node:node1."))), nodeproof.CertificateOtherNode},
		{"name in upper case", pki.Presented(ca.Sign(t, pki.Named("system:node:NODE1"))), nodeproof.CertificateOtherNode},
		{"name with a space", pki.Presented(ca.Sign(t, pki.Named("system:node:node1 "))), nodeproof.CertificateOtherNode},
		{"no name", pki.Presented(ca.Sign(t, pki.Named("system:node:"))), nodeproof.CertificateOtherNode},
		{"a line of a log in the name", pki.Presented(ca.Sign(t, pki.Named("system:node:x\n{\"result\":\"granted\"}"))), nodeproof.CertificateOtherNode},
		{"a long name", pki.Presented(ca.Sign(t, pki.Named("system:node:"+strings.Repeat("x", 10_000)))), nodeproof.CertificateOtherNode},
		{"a long name of something else", pki.Presented(ca.Sign(t, pki.Named(strings.Repeat("x", 10_000)))), nodeproof.CertificateNotNode},
		{"prefix in upper case", pki.Presented(ca.Sign(t, pki.Named("System:node:node1"))), nodeproof.CertificateNotNode},
		{"no prefix", pki.Presented(ca.Sign(t, pki.Named("node1"))), nodeproof.CertificateNotNode},
		{"of a ServiceAccount", pki.Presented(ca.Sign(t, pki.Named("system:serviceaccount:team-a:node1"))), nodeproof.CertificateNotNode},
		{"no organization", pki.Presented(ca.Sign(t, pki.Organizations())), nodeproof.CertificateNotNode},
		{"another organization", pki.Presented(ca.Sign(t, pki.Organizations("system:nodes:x", "System:nodes"))), nodeproof.CertificateNotNode},
		{"a kubelet's serving certificate", pki.Presented(ca.Sign(t, pki.Usage(x509.ExtKeyUsageServerAuth))), nodeproof.CertificateNotNode},
		{"no usage", pki.Presented(ca.Sign(t, pki.Usage())), nodeproof.CertificateNotNode},
		{"any usage", pki.Presented(ca.Sign(t, pki.Usage(x509.ExtKeyUsageAny))), nodeproof.CertificateNotNode},
		{"expired", pki.Presented(ca.Sign(t, pki.During(-time.Hour, -time.Second))), nodeproof.CertificateExpired},
		{"not valid yet", pki.Presented(ca.Sign(t, pki.During(time.Second, time.Hour))), nodeproof.CertificateNotYetValid},
		{"expired, of another cluster", pki.Presented(foreign.Sign(t, pki.During(-time.Hour, -time.Second))), nodeproof.CertificateExpired},
		{"of another cluster's node1", pki.Presented(foreign.Sign(t)), nodeproof.CertificateUntrusted},
		{"of another cluster's node1, with its CA", pki.Presented(foreign.Sign(t), foreign), nodeproof.CertificateUntrusted},
		{"of another cluster's node1, with our CA", pki.Presented(foreign.Sign(t), ca), nodeproof.CertificateUntrusted},
		{"of another cluster's node2", pki.Presented(foreign.Sign(t, pki.Named("system:node:node2"))), nodeproof.CertificateUntrusted},
		{"signed by itself", pki.Presented(pki.Certify(t, nil)), nodeproof.CertificateUntrusted},
		{"signed by another node", pki.Presented(node2.Sign(t), node2), nodeproof.CertificateUntrusted},
		{"after a foreign certificate", pki.Presented(foreign.Sign(t), leaf), nodeproof.CertificateUntrusted},
		{"intermediate missing", pki.Presented(deep, second), nodeproof.CertificateUntrusted},
		{"intermediate expired", pki.Presented(old.Sign(t), old), nodeproof.CertificateUntrusted},
		{"intermediate for servers only", pki.Presented(servers.Sign(t), servers), nodeproof.CertificateUntrusted},
		{"too many", pki.Presented(leaf, ca, old, servers), nodeproof.CertificateUntrusted},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig()
			for range 2 { // the second time, the remembered result counts
				r.expect(t, cas, test.presented, test.want)
			}
		})
	}
}

// The time of each request counts, not that of the handshake. All certificates of the chain must be
// valid.
func TestProofEndsWithTheCertificates(t *testing.T) {
	t.Parallel()
	ca := pki.NewCA(t)
	intermediate := ca.Sign(t, pki.Authority("intermediate"), pki.During(-time.Hour, 20*time.Minute))
	late := ca.Sign(t, pki.Authority("late"), pki.During(5*time.Minute, time.Hour))
	for name, test := range map[string]struct {
		presented      []*x509.Certificate
		cas            *nodeproof.CAs
		begins, ends   time.Duration // relative to the start; whole seconds, inclusive
		before, beyond nodeproof.Reason
	}{
		"leaf":                    {pki.Presented(ca.Sign(t, pki.During(time.Minute, 10*time.Minute))), ca.CAs(), time.Minute, 10 * time.Minute, nodeproof.CertificateNotYetValid, nodeproof.CertificateExpired},
		"intermediate ends first": {pki.Presented(intermediate.Sign(t, pki.During(time.Minute, time.Hour)), intermediate), ca.CAs(), time.Minute, 20 * time.Minute, nodeproof.CertificateNotYetValid, nodeproof.CertificateUntrusted},
		"intermediate comes last": {pki.Presented(late.Sign(t, pki.During(0, 10*time.Minute)), late), ca.CAs(), 5 * time.Minute, 10 * time.Minute, nodeproof.CertificateUntrusted, nodeproof.CertificateExpired},
		"CA ends first":           {pki.Presented(intermediate.Sign(t, pki.During(time.Minute, time.Hour))), intermediate.CAs(), time.Minute, 20 * time.Minute, nodeproof.CertificateNotYetValid, nodeproof.CertificateUntrusted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig()
			refuse := func(at time.Duration, reason nodeproof.Reason) {
				t.Helper()
				r.now = pki.Made.Add(at)
				r.expect(t, test.cas, test.presented, reason)
			}
			pass := func(at time.Duration) { t.Helper(); refuse(at, "") }
			refuse(test.begins-time.Second, test.before)
			pass(test.begins)
			pass(test.ends)
			refuse(test.ends+time.Second, test.beyond)
			refuse(test.begins-time.Second, test.before) // with the clock set back
			pass(test.ends)
		})
	}
}

// A certificate is verified again after the CAs changed, and when it is presented with different
// certificates.
func TestRememberedChainIsOfItsCAs(t *testing.T) {
	t.Parallel()
	ca, next := pki.NewCA(t), pki.NewCA(t)
	intermediate := ca.Sign(t, pki.Authority("intermediate"))
	leaf := intermediate.Sign(t)
	r, cas := newRig(), ca.CAs()
	r.expect(t, cas, pki.Presented(leaf, intermediate), "")
	r.expect(t, cas, pki.Presented(leaf), nodeproof.CertificateUntrusted)
	r.expect(t, next.CAs(), pki.Presented(leaf, intermediate), nodeproof.CertificateUntrusted)
}

// Two clusters may have a common root CA, with intermediates that are in neither file and that
// nodes present.
func TestProofWithOneCAAboveTwoClusters(t *testing.T) {
	t.Parallel()
	root := pki.NewCA(t)
	between := root.Sign(t, pki.Authority("between"))
	below := between.Sign(t, pki.Authority("below"))
	other := root.Sign(t, pki.Authority("other"))
	ended := pki.Certify(t, nil, pki.Authority("below"), pki.During(-time.Hour, -time.Minute))
	renewed := pki.CertifyKey(t, &between, ended.Key, pki.Authority("below"))
	for _, test := range []struct {
		name      string
		test      pki.Holder // its CA is that of cluster test; prod has the root
		cluster   string     // of the token
		presented []*x509.Certificate
		want      nodeproof.Reason // empty: passes
	}{
		{"a node of the cluster below", below, "prod", pki.Presented(below.Sign(t), below, between), nodeproof.CertificateOtherCluster},
		{"a node of the cluster below with a different name", below, "prod", pki.Presented(below.Sign(t, pki.Named("system:node:node2")), below, between), nodeproof.CertificateOtherCluster},
		{"what is above it, in its file", between, "prod", pki.Presented(below.Sign(t), below, between), nodeproof.CertificateOtherCluster},
		{"a CA that has ended in its file", ended, "prod", pki.Presented(renewed.Sign(t), renewed, between), nodeproof.CertificateOtherCluster},
		{"without what is between", below, "prod", pki.Presented(below.Sign(t)), nodeproof.CertificateUntrusted},
		{"a node of the cluster above", below, "prod", pki.Presented(root.Sign(t)), ""},
		{"by way of another CA", below, "prod", pki.Presented(other.Sign(t), other), ""},
		{"by way of one that is not the other's", below, "prod", pki.Presented(between.Sign(t), between), ""},

		{"the cluster's own node", below, "test", pki.Presented(below.Sign(t)), ""},
		{"with all that is between", below, "test", pki.Presented(below.Sign(t), below, between), ""},
		{"a node of the cluster above, there", below, "test", pki.Presented(root.Sign(t)), nodeproof.CertificateUntrusted},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			all := map[string][]*x509.Certificate{"prod": {root.Certificate}, "test": {test.test.Certificate}}
			r, cas := newRig(), nodeproof.NewCAs(test.cluster, all)
			for range 2 { // the second time, the remembered result counts
				message := r.expectIn(t, test.cluster, cas, test.presented, test.want)
				if test.want == nodeproof.CertificateOtherCluster && !strings.Contains(message, `that of a node of cluster "test"`) {
					t.Errorf("message %q", message)
				}
			}
		})
	}
}

// Of several chains, none may have the CA of another cluster.
func TestProofByTwoChains(t *testing.T) {
	t.Parallel()
	root, shared := pki.NewCA(t), pki.NewCA(t)
	between := root.Sign(t, pki.Authority("between"))
	again := pki.CertifyKey(t, &shared, between.Key, pki.Authority("between"))
	cas := nodeproof.NewCAs("prod", map[string][]*x509.Certificate{"prod": {root.Certificate, shared.Certificate}, "test": {shared.Certificate}})
	r, leaf := newRig(), between.Sign(t)
	r.expect(t, cas, pki.Presented(leaf, between), "")
	r.expect(t, cas, pki.Presented(leaf, between, again), nodeproof.CertificateOtherCluster)
	r.expect(t, cas, pki.Presented(leaf, again, between), nodeproof.CertificateOtherCluster)
}

func TestProofByAddress(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		addresses []netip.Addr
		caller    nodeproof.Caller
		want      nodeproof.Reason
	}{
		{"IPv4", addresses("192.0.2.7"), caller("192.0.2.7"), ""},
		{"one of several", addresses("10.0.0.7", "192.0.2.7", "2001:db8::7"), caller("192.0.2.7"), ""},
		{"IPv6", addresses("10.0.0.7", "2001:db8::7"), caller("2001:db8:0::0:7"), ""},
		{"mapped caller", addresses("192.0.2.7"), caller("::ffff:192.0.2.7"), ""},
		{"mapped node", addresses("::ffff:192.0.2.7"), caller("192.0.2.7"), ""},
		{"caller with a zone", addresses("fe80::7"), caller("fe80::7%eth0"), ""},
		{"node with a zone", addresses("fe80::7%eth1"), caller("fe80::7"), ""},

		{"another address", addresses("192.0.2.7"), caller("192.0.2.8"), nodeproof.AddressOther},
		{"begins alike", addresses("192.0.2.7"), caller("192.0.2.70"), nodeproof.AddressOther},
		{"other family", addresses("192.0.2.7"), caller("::192.0.2.7"), nodeproof.AddressOther},
		{"a trusted proxy's own", addresses("192.0.2.7"), nodeproof.Caller{Address: netip.MustParseAddr("192.0.2.7"), ViaProxy: true}, nodeproof.AddressOfProxy},
		{"no address", addresses("192.0.2.7"), nodeproof.Caller{}, nodeproof.AddressUnknown},
		{"a node without addresses", nil, caller("192.0.2.7"), nodeproof.NodeUnknown},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			proof, _ := newRig().judge().Try(proving(nil, nodeproof.Address), node1("prod"), test.addresses, test.caller)
			expectProof(t, proof, nodeproof.Address, test.want)
		})
	}
}
