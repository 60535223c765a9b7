package exchange_test

import (
	"context"
	"testing"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	pki "github.com/pullpass/pullpass/internal/exchange/nodeproof/nodeprooftest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// BenchmarkProof measures the cost of a caller's proof in an exchange.
//
//	off       no proof is required
//	address   one of the Node's addresses
//	known     a certificate that was presented before: every pull but the first
//	verified  a certificate that was not, by way of an intermediate
func BenchmarkProof(b *testing.B) {
	ca := pki.NewCA(b)
	intermediate := ca.Sign(b, pki.Authority("intermediate"))
	from := caller("192.0.2.7")
	from.Certificates = pki.Presented(intermediate.Sign(b), intermediate)
	for _, bench := range []struct {
		name   string
		mode   nodeproof.Mode
		method nodeproof.Method
	}{
		{"off", nodeproof.Off, nodeproof.Address},
		{"address", nodeproof.Enforce, nodeproof.Address},
		{"known", nodeproof.Enforce, nodeproof.Certificate},
		{"verified", nodeproof.Enforce, nodeproof.Certificate},
	} {
		b.Run("proof="+bench.name, func(b *testing.B) {
			r := newRig(b, nil)
			a, err := exchange.NewAdmission(exchange.AdmissionConfig{
				Objects: node1At("10.0.0.7", "192.0.2.7"), Nodes: proving(bench.mode, ca.CAs(), bench.method), Now: r.Now,
			})
			testkit.Must(b, err)
			id := identityOn("prod", "node1")
			b.ReportAllocs()
			for b.Loop() {
				if bench.name == "verified" {
					a.SetCAs("prod", ca.CAs()) // for which nothing is remembered
				}
				if _, err := a.Admit(context.Background(), id, nil, from, new(exchange.Event), new(exchange.Steps)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
