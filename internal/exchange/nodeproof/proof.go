package nodeproof

import (
	"crypto/x509"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/oidc"
)

// The subject of a kubelet's client certificate (Kubernetes documentation, "Using Node
// Authorization"; signer kubernetes.io/kube-apiserver-client-kubelet).
const (
	nodeUserPrefix = "system:node:"
	nodesGroup     = "system:nodes"
)

// Reason says in one word why a caller is not proven to be a node.
type Reason string

// The reasons. The set is closed because it is a metric label. When both methods fail, the reason
// for a presented certificate takes precedence over that for the address.
const (
	NoNode                  Reason = "no_node" // the identity does not name a node with its UID
	CertificateMissing      Reason = "certificate_missing"
	CertificateNotNode      Reason = "certificate_not_a_node"
	CertificateNotYetValid  Reason = "certificate_not_yet_valid"
	CertificateExpired      Reason = "certificate_expired"
	CertificateCAUnknown    Reason = "certificate_ca_unknown" // Pullpass has no CAs of the cluster
	CertificateUntrusted    Reason = "certificate_untrusted"
	CertificateOtherCluster Reason = "certificate_other_cluster" // the chain has a CA of a different cluster
	CertificateOtherNode    Reason = "certificate_other_node"    // proven: the token is on a different node
	NodeUnknown             Reason = "node_unknown"              // the addresses of the node are not known
	AddressUnknown          Reason = "address_unknown"
	AddressOfProxy          Reason = "address_of_proxy"
	AddressOther            Reason = "address_other"
)

// Reasons returns all values of Proof.Reason but the empty one.
func Reasons() []Reason {
	return []Reason{
		NoNode, CertificateMissing, CertificateNotNode, CertificateNotYetValid, CertificateExpired,
		CertificateCAUnknown, CertificateUntrusted, CertificateOtherCluster, CertificateOtherNode,
		NodeUnknown, AddressUnknown, AddressOfProxy, AddressOther,
	}
}

// unproven says why one method does not suffice. The zero value says that it does.
type unproven struct {
	reason        Reason
	fault, remedy string
}

// Judge decides whether a caller proved to be a node. It is safe for concurrent use.
type Judge struct {
	Chains *Chains // certificates that were verified, for as long as the CAs are the same
	Now    func() time.Time
	// CallersUnseen is for explaining a request without its connection, and never for serving. Data
	// that a Caller lacks is then unknown instead of absent.
	CallersUnseen bool
}

// Try tries the methods in their order until one suffices. unseen reports that a method was skipped
// because its data about the caller is unknown. That method might have sufficed.
func (j Judge) Try(config Config, id *oidc.Identity, addresses []netip.Addr, caller Caller) (proof Proof, unseen bool) {
	proof.Mode = config.Mode
	if id.Kubernetes.Node.UID == "" {
		proof.Reason = NoNode
		proof.Message = "the caller cannot prove to be the token's node, which cluster " + term.QuoteName(id.Cluster) + " asks for (node.proof): " +
			"no node is known for sure to be the token's; use a token of a pod that is scheduled"
		return proof, false
	}
	var faults []string
	for _, method := range config.Methods {
		if j.CallersUnseen && !caller.shows(method) {
			unseen = true
			continue
		}
		var u unproven
		if method == Certificate {
			u = j.certificate(config.CAs, id, caller.Certificates)
		} else {
			u = address(addresses, caller)
		}
		if u == (unproven{}) {
			return Proof{Mode: config.Mode, Passed: true, Method: method}, false
		}
		// A presented certificate is more informative than the address. The address is more
		// informative than a missing certificate.
		if presented := method == Certificate && u.reason != CertificateMissing; presented ||
			proof.Reason == "" || proof.Reason == CertificateMissing {
			proof.Reason = u.reason
		}
		faults = append(faults, u.fault+" ("+u.remedy+")")
	}
	if faults == nil {
		return proof, true
	}
	proof.Message = "the caller is not proven to be the token's node " + term.QuoteName(id.Kubernetes.Node.Name) + ": " + strings.Join(faults, "; ")
	return proof, unseen
}

// shows reports whether the caller has the data that a method judges.
func (c Caller) shows(method Method) bool {
	if method == Certificate {
		return len(c.Certificates) > 0
	}
	return c.Address.IsValid()
}

// certificate judges the presented certificates, from cheap checks to expensive ones. The
// certificate identifies a node only by name. Objects checks that the Node of this name still has
// the token's UID.
func (j Judge) certificate(cas *CAs, id *oidc.Identity, presented []*x509.Certificate) unproven {
	if len(presented) == 0 {
		return unproven{CertificateMissing, "it presented no client certificate",
			"give the container runtime the kubelet's, such as /var/lib/kubelet/pki/kubelet-client-current.pem: client in containerd's hosts.toml for the registry, or client.cert and client.key in its directory of CRI-O's certs.d"}
	}
	leaf, now := presented[0], j.Now()
	name, isNode := strings.CutPrefix(leaf.Subject.CommonName, nodeUserPrefix)
	// x509 accepts a certificate without extended key usages for any use. A kubelet's client
	// certificate has this usage. Its serving certificate has the same names.
	isNode = isNode && slices.Contains(leaf.Subject.Organization, nodesGroup) && slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	switch {
	case !isNode:
		return unproven{CertificateNotNode, "its client certificate " + term.QuoteName(leaf.Subject.CommonName) + " is not a kubelet's",
			"one has the common name " + nodeUserPrefix + "NAME, the organization " + nodesGroup + " and the extended key usage client authentication"}
	case now.Before(leaf.NotBefore):
		return unproven{CertificateNotYetValid, "its client certificate is not valid yet", "compare the clocks of the node and of this service"}
	case now.After(leaf.NotAfter):
		return unproven{CertificateExpired, "its client certificate has expired", "see why the kubelet did not renew it, and that the runtime reads the new one"}
	}
	if cas == nil {
		return unproven{CertificateCAUnknown, "the CAs of cluster " + term.QuoteName(id.Cluster) + " are not known now", "see the log of this service"}
	}
	other, ok := j.Chains.Lead(presented, cas, now)
	switch {
	case other != "":
		return unproven{CertificateOtherCluster, "its client certificate is that of a node of cluster " + term.QuoteName(other) +
			", whose CA was signed by way of one of cluster " + term.QuoteName(id.Cluster),
			"a token counts only in its own cluster; name the CAs there that sign kubelets' client certificates, not what is above them"}
	case !ok:
		return unproven{CertificateUntrusted, "its client certificate does not lead to a CA of cluster " + term.QuoteName(id.Cluster),
			"it must come from the cluster of the token, and the CAs that are configured here must be the ones that sign kubelets' client certificates"}
	}
	if name != id.Kubernetes.Node.Name {
		return unproven{CertificateOtherNode, "its client certificate is that of the node " + term.QuoteName(name),
			"a token counts only on the node that its pod runs on"}
	}
	return unproven{}
}

// address compares the caller's address with those of the Node object.
func address(known []netip.Addr, caller Caller) unproven {
	from := PlainAddress(caller.Address)
	switch {
	case len(known) == 0:
		return unproven{NodeUnknown, "no addresses of the node are known", "see that the Node object is there, with the UID in the token, and has addresses"}
	case !from.IsValid():
		return unproven{AddressUnknown, "its address is not known", "see what stands before this service"}
	case caller.ViaProxy:
		return unproven{AddressOfProxy, "its address " + from.String() + " is that of a trusted proxy, behind which may be anybody",
			"let the proxy send X-Forwarded-For, or leave it out of trustedProxies if it is a node"}
	case !slices.ContainsFunc(known, func(a netip.Addr) bool { return PlainAddress(a) == from }):
		return unproven{AddressOther, "its address " + from.String() + " is not one of the node's",
			"where addresses are translated on the way, only a certificate proves a node"}
	}
	return unproven{}
}

// PlainAddress returns one form for all forms of an address. It drops the zone, which names an
// interface of this machine and says nothing about the caller.
func PlainAddress(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
