package exchange

import "github.com/pullpass/pullpass/internal/exchange/nodeproof"

// Joined makes keys, for tests.
var Joined = joined

// IssuedBytes returns the counted bytes of the remembered tokens, and Issued their number.
func (x *Exchanger) IssuedBytes() int { return x.issued.Bytes() }

func (x *Exchanger) Issued() int { return x.issued.Len() }

// SetCAs replaces the CAs of a cluster.
func (a *Admission) SetCAs(cluster string, cas *nodeproof.CAs) {
	checks := a.nodes[cluster]
	checks.Proof.CAs = cas
	a.nodes[cluster] = checks
}
