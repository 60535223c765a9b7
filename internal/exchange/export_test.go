package exchange

import "github.com/pullpass/pullpass/internal/nodecert"

// Joined makes keys, for tests.
var Joined = joined

// IssuedBytes is what is counted of the issued tokens that are remembered, and
// Issued how many they are.
func (x *Exchanger) IssuedBytes() int { return x.issued.Bytes() }

func (x *Exchanger) Issued() int { return x.issued.Len() }

// SetCAs gives a cluster other CAs.
func (a *Admission) SetCAs(cluster string, cas *nodecert.CAs) {
	checks := a.nodes[cluster]
	checks.Proof.CAs = cas
	a.nodes[cluster] = checks
}
