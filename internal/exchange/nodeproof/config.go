package nodeproof

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/pullpass/pullpass/internal/base/term"
)

// Config says how callers prove that they are the node that their token
// names (KEP-4193).
type Config struct {
	Mode    Mode     // empty means Off
	Methods []Method // any of these suffices; required unless Mode is Off
	// CAs sign the kubelets' client certificates of this cluster and of no other;
	// nil: none is known, and no certificate passes. A verified certificate is
	// remembered for these: they are the same until the CAs of any cluster change.
	CAs *CAs
}

// Wanted reports whether a proof is asked for at all.
func (c Config) Wanted() bool { return c.Mode != "" && c.Mode != Off }

// Check returns what is wrong with the settings: a proof that no node can pass is a
// mistake. Without Node objects no address of a node is known.
func (c Config) Check(objectsKnown bool) error {
	if c.Mode != "" && !slices.Contains(c.Mode.Values(), c.Mode) {
		return fmt.Errorf("unknown mode of proof %s", term.QuoteName(string(c.Mode)))
	}
	for _, method := range c.Methods {
		if !slices.Contains(method.Values(), method) {
			return fmt.Errorf("unknown method of proof %s", term.QuoteName(string(method)))
		}
	}
	switch {
	case !c.Wanted():
		return nil
	case len(c.Methods) == 0:
		return fmt.Errorf("proof in mode %s has no methods", c.Mode)
	case slices.Contains(c.Methods, Address) && !objectsKnown:
		return errors.New("proof by address needs to know Node objects")
	}
	return nil
}

// Mode says what becomes of a caller without proof.
type Mode string

// The modes.
const (
	Off     Mode = "off"
	Audit   Mode = "audit"   // grant, but write down what enforce would have done
	Enforce Mode = "enforce" // refuse
)

// Values returns all that there are.
func (Mode) Values() []Mode { return []Mode{Off, Audit, Enforce} }

// Method is a way to prove to be a node.
type Method string

// The methods.
const (
	Certificate Method = "certificate" // the kubelet's client certificate
	Address     Method = "address"     // one of the Node's addresses
)

// Values returns all that there are.
func (Method) Values() []Method { return []Method{Certificate, Address} }

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
	Mode   Mode   `json:"mode"`
	Passed bool   `json:"passed"`
	Method Method `json:"method,omitempty"` // that sufficed
	// Reason says in one word why no method sufficed, Message in more.
	Reason  Reason `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}
