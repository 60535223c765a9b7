package exchange

import (
	"crypto/x509"
	"net/netip"

	"k8s.io/apimachinery/pkg/labels"
)

// NodeChecks is what a cluster's configuration asks of the node that a token
// names.
type NodeChecks struct {
	// Required refuses an identity without a node, also after Objects was asked.
	// Clusters whose verifier requires the claim need it not.
	Required bool
	Selector labels.Selector // of Node objects; nil: every node
	Proof    ProofConfig
}

// ProofConfig says how callers prove that they are the node that their token
// names (KEP-4193).
type ProofConfig struct {
	Mode    ProofMode     // empty means ProofOff
	Methods []ProofMethod // any of these suffices; required unless Mode is ProofOff
	// CAs returns the CAs that sign the kubelets' client certificates of this
	// cluster and of no other; nil: none is known now, and no certificate passes.
	// Required with ProofCertificate. It must be safe for concurrent use.
	CAs func() *x509.CertPool
}

// ProofMode says what becomes of a caller without proof.
type ProofMode string

// The modes.
const (
	ProofOff     ProofMode = "off"
	ProofAudit   ProofMode = "audit"   // grant, but write down what enforce would have done
	ProofEnforce ProofMode = "enforce" // refuse
)

// ProofMethod is a way to prove to be a node.
type ProofMethod string

// The methods.
const (
	ProofCertificate ProofMethod = "certificate" // the kubelet's client certificate
	ProofAddress     ProofMethod = "address"     // one of the Node's addresses
)

// Caller is where a request comes from.
type Caller struct {
	Address netip.Addr // zero: not known
	// Certificates are what the client presented over TLS, leaf first. The
	// handshake proved that it has the key; nothing else is checked yet.
	Certificates []*x509.Certificate
}

// String returns the address, or "".
func (c Caller) String() string {
	if !c.Address.IsValid() {
		return ""
	}
	return c.Address.String()
}

// Proof says whether a caller is the node that its token names.
type Proof struct {
	Mode   ProofMode   `json:"mode"`
	Passed bool        `json:"passed"`
	Method ProofMethod `json:"method,omitempty"` // that sufficed
	// Reason says in one word why no method sufficed, Message in more.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// NodeError refuses an identity because of its node: it is not one that may
// pull, or the caller is another one.
type NodeError struct {
	reason  string
	message string
}

func (e *NodeError) Error() string { return e.message }
