package exchange

import (
	"crypto/x509"
	"net/netip"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/nodecert"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/term"
)

// What a kubelet's client certificate says (Kubernetes documentation, "Using
// Node Authorization"; signer kubernetes.io/kube-apiserver-client-kubelet).
const (
	nodeUserPrefix = "system:node:"
	nodesGroup     = "system:nodes"
)

// ProofReason says in one word why a caller is not proven to be a node.
type ProofReason string

// The reasons. The set is closed: it is a metric label. When both methods
// failed, a certificate that was presented counts for more than the address.
const (
	ProofNoNode                  ProofReason = "no_node" // the identity names none for sure
	ProofCertificateMissing      ProofReason = "certificate_missing"
	ProofCertificateNotNode      ProofReason = "certificate_not_a_node"
	ProofCertificateNotYetValid  ProofReason = "certificate_not_yet_valid"
	ProofCertificateExpired      ProofReason = "certificate_expired"
	ProofCertificateCAUnknown    ProofReason = "certificate_ca_unknown" // none is known to us
	ProofCertificateUntrusted    ProofReason = "certificate_untrusted"
	ProofCertificateOtherCluster ProofReason = "certificate_other_cluster" // of a CA between that another cluster has
	ProofCertificateOtherNode    ProofReason = "certificate_other_node"    // proven: the token is with another node
	ProofNodeUnknown             ProofReason = "node_unknown"              // its addresses are not known
	ProofAddressUnknown          ProofReason = "address_unknown"
	ProofAddressOfProxy          ProofReason = "address_of_proxy"
	ProofAddressOther            ProofReason = "address_other"
)

// unproven says why one method does not suffice. The zero unproven says that it
// does.
type unproven struct {
	reason        ProofReason
	fault, remedy string
}

// prove judges whether the caller is the node. It is asked for every request: a
// connection lives longer than a certificate, and longer than a node has its
// addresses.
func (a *Admission) prove(config ProofConfig, id *oidc.Identity, node *Node, caller Caller, event *Event) (Step, error) {
	if !config.wanted() {
		return Step{Name: StepCaller, Verdict: VerdictOff}, nil
	}
	proof, unseen := a.try(config, id, node, caller)
	event.Proof = &proof
	step := Step{Name: StepCaller, Verdict: VerdictRefused, Proof: &proof}
	switch {
	case proof.Passed:
		step.Verdict = VerdictPassed
	case unseen:
		step.Verdict = VerdictNotJudged
	case config.Mode == ProofAudit:
		step.Verdict = VerdictNoted
	default:
		return step, &NodeError{reason: reasonCaller, message: proof.Message}
	}
	return step, nil
}

// try tries the methods in their order until one suffices. What was not seen of
// the caller would perhaps have sufficed.
func (a *Admission) try(config ProofConfig, id *oidc.Identity, node *Node, caller Caller) (proof Proof, unseen bool) {
	proof.Mode = config.Mode
	if id.Kubernetes.Node.UID == "" {
		proof.Reason = ProofNoNode
		proof.Message = "the caller cannot prove to be the token's node, which cluster " + term.QuoteName(id.Cluster) + " asks for (node.proof): " +
			"no node is known for sure to be the token's; use a token of a pod that is scheduled"
		return proof, false
	}
	var faults []string
	for _, method := range config.Methods {
		if a.unseen && !caller.shows(method) {
			unseen = true
			continue
		}
		var u unproven
		if method == ProofCertificate {
			u = a.certificate(config.CAs, id, caller.Certificates)
		} else {
			u = address(node, caller)
		}
		if u == (unproven{}) {
			return Proof{Mode: config.Mode, Passed: true, Method: method}, false
		}
		// A certificate that was presented tells more than the address does, and
		// the address more than that there is no certificate.
		if presented := method == ProofCertificate && u.reason != ProofCertificateMissing; presented ||
			proof.Reason == "" || proof.Reason == ProofCertificateMissing {
			proof.Reason = u.reason
		}
		faults = append(faults, u.fault+" ("+u.remedy+")")
	}
	if faults == nil {
		return proof, unseen
	}
	proof.Message = "the caller is not proven to be the token's node " + term.QuoteName(id.Kubernetes.Node.Name) + ": " + strings.Join(faults, "; ")
	return proof, unseen
}

// shows reports whether it is known of a caller what a method judges.
func (c Caller) shows(method ProofMethod) bool {
	if method == ProofCertificate {
		return len(c.Certificates) > 0
	}
	return c.Address.IsValid()
}

// certificate judges what was presented, from cheap to dear. The certificate
// names a node by its name alone: that the Node of this name still has the
// token's UID is for Objects to say.
func (a *Admission) certificate(cas *nodecert.CAs, id *oidc.Identity, presented []*x509.Certificate) unproven {
	if len(presented) == 0 {
		return unproven{ProofCertificateMissing, "it presented no client certificate",
			"set client in containerd's hosts.toml for the registry to the kubelet's, such as /var/lib/kubelet/pki/kubelet-client-current.pem"}
	}
	leaf, now := presented[0], a.now()
	name, isNode := strings.CutPrefix(leaf.Subject.CommonName, nodeUserPrefix)
	// x509 takes a certificate without extended key usages for any use; a
	// kubelet's has this one, and its serving certificate has the same names.
	isNode = isNode && slices.Contains(leaf.Subject.Organization, nodesGroup) && slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	switch {
	case !isNode:
		return unproven{ProofCertificateNotNode, "its client certificate " + term.QuoteName(leaf.Subject.CommonName) + " is not a kubelet's",
			"one has the common name " + nodeUserPrefix + "NAME, the organization " + nodesGroup + " and the extended key usage client authentication"}
	case now.Before(leaf.NotBefore):
		return unproven{ProofCertificateNotYetValid, "its client certificate is not valid yet", "compare the clocks of the node and of this service"}
	case now.After(leaf.NotAfter):
		return unproven{ProofCertificateExpired, "its client certificate has expired", "see why the kubelet did not renew it, and that the runtime reads the new one"}
	}
	if cas == nil {
		return unproven{ProofCertificateCAUnknown, "the CAs of cluster " + term.QuoteName(id.Cluster) + " are not known now", "see the log of this service"}
	}
	other, ok := a.chains.Lead(presented, id.Cluster, cas, now)
	switch {
	case other != "":
		return unproven{ProofCertificateOtherCluster, "its client certificate is that of a node of cluster " + term.QuoteName(other) +
			", whose CA was signed by way of one of cluster " + term.QuoteName(id.Cluster),
			"a token counts only in its own cluster; name the CAs there that sign kubelets' client certificates, not what is above them"}
	case !ok:
		return unproven{ProofCertificateUntrusted, "its client certificate does not lead to a CA of cluster " + term.QuoteName(id.Cluster),
			"it must come from the cluster of the token, and the CAs that are configured here must be the ones that sign kubelets' client certificates"}
	}
	if name != id.Kubernetes.Node.Name {
		return unproven{ProofCertificateOtherNode, "its client certificate is that of the node " + term.QuoteName(name),
			"a token counts only on the node that its pod runs on"}
	}
	return unproven{}
}

// address compares the caller's address with those of the Node.
func address(node *Node, caller Caller) unproven {
	from := plainAddress(caller.Address)
	switch {
	case node == nil || len(node.Addresses) == 0:
		return unproven{ProofNodeUnknown, "no addresses of the node are known", "see that the Node object is there, with the UID in the token, and has addresses"}
	case !from.IsValid():
		return unproven{ProofAddressUnknown, "its address is not known", "see what stands before this service"}
	case caller.ViaProxy:
		return unproven{ProofAddressOfProxy, "its address " + from.String() + " is that of a trusted proxy, behind which may be anybody",
			"let the proxy send X-Forwarded-For, or leave it out of trustedProxies if it is a node"}
	case !slices.ContainsFunc(node.Addresses, func(a netip.Addr) bool { return plainAddress(a) == from }):
		return unproven{ProofAddressOther, "its address " + from.String() + " is not one of the node's",
			"where addresses are translated on the way, only a certificate proves a node"}
	}
	return unproven{}
}

// plainAddress is the same for all forms of an address. A zone names an
// interface of this machine and says nothing about the caller.
func plainAddress(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
