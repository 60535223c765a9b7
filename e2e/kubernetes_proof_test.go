package e2e

import (
	"crypto/tls"
	"path/filepath"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// Two nodes, by their addresses on loopback and by others that only a load balancer could tell of.
const (
	worker, workerAddress, workerIPv4, workerIPv6 = "worker-1", "127.0.0.11", "192.0.2.11", "2001:db8::11"
	other, otherAddress, otherIPv4, otherIPv6     = "worker-2", "127.0.0.12", "192.0.2.12", "2001:db8::12"

	strangerAddress, balancerAddress = "127.0.0.66", "127.0.0.99"
)

// caller is one who presents the token of a pod on worker-1.
type caller struct {
	name string
	from pullpass.From
	// reason says why the proof fails; "" means that it passes.
	reason string
}

// testProof lets each caller ask in both modes, with one token. Enforce first: what it refuses, audit must not, and the token
// that was issued to the right one must not be had by the others.
func testProof(t *testing.T, s *site, config pullpass.Config, token, scope string, callers []caller) {
	t.Helper()
	for _, mode := range []string{"enforce", "audit"} {
		config.Clusters[0].Node.Proof.Mode = mode
		proxy := s.pullpass(t, config)
		failures := map[string]float64{}
		for _, c := range callers {
			answer := proxy.Host(t, c.from).Ask(t, service, token, scope)
			want := scope
			if mode == "enforce" && c.reason != "" {
				want = "403 caller_not_node"
			}
			expect(t, mode+", "+c.name, answer, want)
			proof := answer.Audit.Proof
			if proof == nil || proof.Mode != mode || proof.Passed != (c.reason == "") || proof.Reason != c.reason || (proof.Message == "") != proof.Passed {
				t.Errorf("%s, %s: proof %+v, want the reason %q", mode, c.name, proof, c.reason)
			}
			failures[c.reason]++
		}
		for reason, count := range failures {
			if got := proxy.Metric(t, "pullpass_caller_proofs_total", `mode="`+mode+`"`, `reason="`+reason+`"`); got != count {
				t.Errorf("%s: pullpass_caller_proofs_total counts %v for the reason %q, want %v", mode, got, reason, count)
			}
		}
	}
}

// proofWorkload creates a namespace, and in it a pod on worker-1, and returns the token of the pod.
func (s *site) proofWorkload(t *testing.T, namespace, node string) string {
	t.Helper()
	s.workload(t, namespace)
	return s.podToken(t, s.CreatePod(t, namespace, "web", puller, node))
}

func nodeCertificate(t *testing.T, ca *certs.CA, node string) *tls.Certificate {
	t.Helper()
	return certificate(t, ca.Client(t, "system:node:"+node, "system:nodes"))
}

func certificate(t *testing.T, pair certs.Pair) *tls.Certificate {
	t.Helper()
	c := pair.TLS(t)
	return &c
}

func testCertificateProof(t *testing.T, s *site) {
	const namespace = "by-certificate"
	s.CreateNode(t, "cert-1", nil)
	token := s.proofWorkload(t, namespace, "cert-1")
	ca, otherCA := s.CA, certs.NewCA(t, "other-kubelet-ca")
	published := s.Get(t, "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication")
	caFile := testenv.WriteFile(t, filepath.Join(t.TempDir(), "kubelet-ca.crt"), published.Text("data", "client-ca-file"))
	config := s.config(func(c *pullpass.Cluster) {
		c.Node.Proof = pullpass.Proof{Methods: []string{"certificate"}, ClientCAFile: caFile}
	})
	presenting := func(c *tls.Certificate) pullpass.From { return pullpass.From{Certificate: c} }
	yesterday := time.Now().Add(-24 * time.Hour)
	testProof(t, s, config, token, own(namespace), []caller{
		{"the node", presenting(nodeCertificate(t, ca, "cert-1")), ""},
		{"nobody", pullpass.From{}, "certificate_missing"},
		{"another node", presenting(nodeCertificate(t, ca, "cert-2")), "certificate_other_node"},
		{"a name that begins so", presenting(nodeCertificate(t, ca, "cert-10")), "certificate_other_node"},
		{"the node's name, of another CA", presenting(nodeCertificate(t, otherCA, "cert-1")), "certificate_untrusted"},
		{"the node, expired", presenting(certificate(t, ca.ClientUntil(t, yesterday, "system:node:cert-1", "system:nodes"))), "certificate_expired"},
		{"the node's name without the group", presenting(certificate(t, ca.Client(t, "system:node:cert-1"))), "certificate_not_a_node"},
		{"an administrator", presenting(certificate(t, ca.Client(t, "admin", "system:masters"))), "certificate_not_a_node"},
		{"a server's certificate", presenting(certificate(t, ca.Server(t, "system:node:cert-1"))), "certificate_not_a_node"},
		{"the node, from the address of another", pullpass.From{Address: otherAddress, Certificate: nodeCertificate(t, ca, "cert-1")}, ""},
	})
}

func testAddressProof(t *testing.T, s *site) {
	const namespace = "by-address"
	s.CreateNode(t, worker, nil, workerAddress, workerIPv4, workerIPv6)
	s.CreateNode(t, other, nil, otherAddress, otherIPv4, otherIPv6)
	token := s.proofWorkload(t, namespace, worker)
	config := s.config(func(c *pullpass.Cluster) {
		c.Node.Proof.Methods = []string{"address"}
	})
	config.TrustedProxies = []string{balancerAddress + "/32"}
	forwarded := func(by, hops string) pullpass.From { return pullpass.From{Address: by, ForwardedFor: hops} }
	testProof(t, s, config, token, own(namespace), []caller{
		{"the node", pullpass.From{Address: workerAddress}, ""},
		{"another node", pullpass.From{Address: otherAddress}, "address_other"},
		{"an unknown address", pullpass.From{Address: strangerAddress}, "address_other"},
		{"an unknown address that claims to forward", forwarded(strangerAddress, workerIPv4), "address_other"},
		{"the node through the load balancer", forwarded(balancerAddress, workerIPv4), ""},
		{"the node through the load balancer, IPv6", forwarded(balancerAddress, workerIPv6), ""},
		{"the node through the load balancer, IPv6 mapped IPv4", forwarded(balancerAddress, "::ffff:"+workerIPv4), ""},
		{"the node through two load balancers", forwarded(balancerAddress, workerIPv4+", "+balancerAddress), ""},
		{"the node, which claims to be another", forwarded(balancerAddress, otherIPv4+", "+workerIPv4), ""},
		{"another node through the load balancer", forwarded(balancerAddress, otherIPv4), "address_other"},
		{"another node through the load balancer, IPv6", forwarded(balancerAddress, otherIPv6), "address_other"},
		{"another node, which claims to be the node", forwarded(balancerAddress, workerIPv4+", "+otherIPv4), "address_other"},
		{"another node, which claims to be the node, IPv6", forwarded(balancerAddress, workerIPv6+", "+otherIPv6), "address_other"},
		{"a client behind a load balancer that adds no header", pullpass.From{Address: balancerAddress}, "address_of_proxy"},
	})
}

func testEitherProof(t *testing.T, s *site) {
	const namespace = "by-either"
	const node, address = "either-1", "127.0.0.21"
	s.CreateNode(t, node, nil, address)
	token := s.proofWorkload(t, namespace, node)
	ca := certs.NewCA(t, "kubelet-ca")
	config := s.config(func(c *pullpass.Cluster) {
		c.Node.Proof = pullpass.Proof{Methods: []string{"certificate", "address"}, ClientCAFile: ca.File}
	})
	from := func(address, node string) pullpass.From {
		return pullpass.From{Address: address, Certificate: nodeCertificate(t, ca, node)}
	}
	testProof(t, s, config, token, own(namespace), []caller{
		{"both", from(address, node), ""},
		{"the certificate alone", from(strangerAddress, node), ""},
		{"the address alone", pullpass.From{Address: address}, ""},
		{"the address, and the certificate of another node", from(address, "either-2"), ""},
		{"neither", from(strangerAddress, "either-2"), "certificate_other_node"},
		{"nothing", pullpass.From{Address: strangerAddress}, "address_other"},
	})
}

// A kubelet's certificate may end while its connection, or its TLS session, lives on.
func testCertificateExpires(t *testing.T, s *site) {
	const namespace, node = "expires", "expires-1"
	s.CreateNode(t, node, nil)
	token := s.proofWorkload(t, namespace, node)
	ca := certs.NewCA(t, "kubelet-ca")
	proxy := s.pullpass(t, s.config(func(c *pullpass.Cluster) {
		c.Node.Proof = pullpass.Proof{Mode: "enforce", Methods: []string{"certificate"}, ClientCAFile: ca.File}
	}))

	var keeping, resuming *pullpass.Host
	var end time.Time
	for life := 4 * time.Second; !time.Now().Before(end); life *= 2 { // on a machine that is busy, the first may have ended too soon
		end = time.Now().Add(life).Truncate(time.Second) // a certificate has whole seconds
		short := certificate(t, ca.ClientUntil(t, end, "system:node:"+node, "system:nodes"))
		keeping, resuming = proxy.Host(t, pullpass.From{Certificate: short}), proxy.Host(t, pullpass.From{Certificate: short})
		for name, host := range map[string]*pullpass.Host{"kept connection": keeping, "resumed session": resuming} {
			if answer, err := host.Try(t.Context(), service, token, own(namespace)); time.Now().Before(end) {
				if err != nil {
					t.Fatalf("%s, before the end: %v", name, err)
				}
				expect(t, name+", before the end", answer, own(namespace))
			}
		}
	}
	resuming.Disconnect()
	within(t, time.Until(end)+reconnectLimit, "the certificate has ended", func() bool {
		late := time.Since(end)
		got := outcome(keeping.Ask(t, service, token, own(namespace)))
		if late > time.Second && got == own(namespace) {
			t.Fatalf("granted %v after the certificate's end", late)
		}
		return got == "403 caller_not_node"
	})
	if time.Now().Before(end) {
		t.Error("refused before the certificate's end")
	}
	expect(t, "resumed session, after the end", resuming.Ask(t, service, token, own(namespace)), "403 caller_not_node")
	expect(t, "a renewed certificate", proxy.Host(t, pullpass.From{Certificate: nodeCertificate(t, ca, node)}).Ask(t, service, token, own(namespace)), own(namespace))
}
