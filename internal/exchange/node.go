package exchange

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/pullpass/pullpass/internal/nodecert"
	"github.com/pullpass/pullpass/internal/term"
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

// check returns what is wrong with the settings: an empty one never switches a
// check off, and one that nobody can pass is a mistake.
func (c NodeChecks) check(objectsKnown bool) error {
	p := c.Proof
	if p.Mode != "" && !slices.Contains(p.Mode.Values(), p.Mode) {
		return fmt.Errorf("unknown mode of proof %s", term.QuoteName(string(p.Mode)))
	}
	for _, method := range p.Methods {
		if !slices.Contains(method.Values(), method) {
			return fmt.Errorf("unknown method of proof %s", term.QuoteName(string(method)))
		}
	}
	switch {
	case c.Selector != nil && c.Selector.Empty():
		return errors.New("the node selector is empty; without one, every node may pull")
	case c.Selector != nil && !objectsKnown:
		return errors.New("a node selector needs to know Node objects")
	case !p.wanted():
		return nil
	case len(p.Methods) == 0:
		return fmt.Errorf("proof in mode %s has no methods", p.Mode)
	case slices.Contains(p.Methods, ProofAddress) && !objectsKnown:
		return errors.New("proof by address needs to know Node objects")
	}
	return nil
}

// ProofConfig says how callers prove that they are the node that their token
// names (KEP-4193).
type ProofConfig struct {
	Mode    ProofMode     // empty means ProofOff
	Methods []ProofMethod // any of these suffices; required unless Mode is ProofOff
	// CAs sign the kubelets' client certificates of this cluster and of no other;
	// nil: none is known, and no certificate passes. What was verified is
	// remembered for these: they are the same until the CAs of any cluster change.
	CAs *nodecert.CAs
}

func (c ProofConfig) wanted() bool { return c.Mode != "" && c.Mode != ProofOff }

// ProofMode says what becomes of a caller without proof.
type ProofMode string

// The modes.
const (
	ProofOff     ProofMode = "off"
	ProofAudit   ProofMode = "audit"   // grant, but write down what enforce would have done
	ProofEnforce ProofMode = "enforce" // refuse
)

// Values returns all that there are.
func (ProofMode) Values() []ProofMode { return []ProofMode{ProofOff, ProofAudit, ProofEnforce} }

// ProofMethod is a way to prove to be a node.
type ProofMethod string

// The methods.
const (
	ProofCertificate ProofMethod = "certificate" // the kubelet's client certificate
	ProofAddress     ProofMethod = "address"     // one of the Node's addresses
)

// Values returns all that there are.
func (ProofMethod) Values() []ProofMethod { return []ProofMethod{ProofCertificate, ProofAddress} }

// Caller is where a request comes from.
type Caller struct {
	Address netip.Addr // zero: not known
	// ViaProxy marks an Address that is a trusted proxy's own: behind it may be
	// anybody, so it proves nothing.
	ViaProxy bool
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
	Reason  ProofReason `json:"reason,omitempty"`
	Message string      `json:"message,omitempty"`
}

// NodeError refuses an identity because of its node: it is not one that may
// pull, or the caller is another one.
type NodeError struct {
	reason  string
	message string
}

func (e *NodeError) Error() string { return e.message }

// Reason is node_not_selected or caller_not_node.
func (e *NodeError) Reason() string { return e.reason }
