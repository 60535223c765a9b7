package nodeproof

import (
	"crypto/sha256"
	"crypto/x509"
	"time"

	"github.com/pullpass/pullpass/internal/base/lru"
)

// CAs are the CAs that sign the client certificates of one cluster's kubelets, and the public keys
// of the other clusters' CAs. It never changes.
type CAs struct {
	own    *x509.CertPool
	others map[string]string // public key of a CA → the cluster that has it
}

// NewCAs returns the CAs of a cluster, given those of all clusters.
func NewCAs(cluster string, all map[string][]*x509.Certificate) *CAs {
	cas := &CAs{own: x509.NewCertPool(), others: map[string]string{}}
	for name, certificates := range all {
		for _, certificate := range certificates {
			if name == cluster {
				cas.own.AddCert(certificate)
			} else {
				cas.others[string(certificate.RawSubjectPublicKeyInfo)] = name
			}
		}
	}
	return cas
}

// other returns a different cluster that has a CA in one of the chains.
func (c *CAs) other(chains [][]*x509.Certificate) (cluster string, found bool) {
	for _, chain := range chains {
		for _, certificate := range chain {
			// Compare the key, because the key signs. The other cluster may have it in a different
			// certificate, which may even have expired.
			if cluster, found = c.others[string(certificate.RawSubjectPublicKeyInfo)]; found {
				return cluster, true
			}
		}
	}
	return "", false
}

const (
	// MaxPresented is how many certificates a caller may present. A kubelet presents one, and
	// sometimes the intermediate CAs with it. Forged certificates with equal names and one key form
	// chains in every order. With the most expensive keys that TLS allows, three cost 4 ms for each
	// request, and five 26 ms.
	MaxPresented = 3

	// ChainBytes is the maximum that Chains hold: enough for two clusters of the largest size that
	// Kubernetes supports.
	ChainBytes = 4 << 20
)

// Chains remembers the certificates that lead to a CA. Verifying signatures costs more than the
// rest of an exchange, and a kubelet presents the same certificate hundreds of times. Invalid
// certificates are not remembered, because any client could fill the memory with them. It is safe
// for concurrent use.
type Chains struct {
	good *lru.Cache[chainKey, validity]
}

// chainKey holds all that the outcome depends on, except the clock. CAs that were read again have a
// different address. The key keeps the old CAs alive, so that their address is not reused.
type chainKey struct {
	presented [sha256.Size]byte
	cas       *CAs // of one cluster
}

// validity is the period in which every certificate of a chain is valid.
type validity struct{ from, until time.Time }

// NewChains returns empty Chains.
func NewChains() *Chains { return &Chains{lru.New[chainKey, validity](ChainBytes, nil)} }

// Lead reports whether the first certificate leads to one of the CAs, by way of the other presented
// certificates, and is for client authentication. If the chain contains a CA of a different
// cluster, Lead reports false and returns that cluster. Two clusters' CAs may have a common root,
// with intermediates that are in no CA file. Only the caller that presents them reveals them.
func (c *Chains) Lead(presented []*x509.Certificate, cas *CAs, now time.Time) (other string, ok bool) {
	if len(presented) > MaxPresented {
		return "", false
	}
	var hashes [MaxPresented * sha256.Size]byte // hashes have a fixed length, so no two lists are equal
	all := hashes[:0]
	for _, certificate := range presented {
		hash := sha256.Sum256(certificate.Raw)
		all = append(all, hash[:]...)
	}
	key := chainKey{sha256.Sum256(all), cas}
	if v, ok := c.good.Get(key); ok && !now.Before(v.from) && !now.After(v.until) {
		return "", true
	}
	intermediates := x509.NewCertPool()
	for _, certificate := range presented[1:] {
		intermediates.AddCert(certificate)
	}
	found, err := presented[0].Verify(x509.VerifyOptions{
		Roots:         cas.own,
		Intermediates: intermediates,
		CurrentTime:   now,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return "", false
	}
	if other, found := cas.other(found); found {
		return other, false
	}
	v := validity{from: presented[0].NotBefore, until: presented[0].NotAfter}
	for _, certificate := range found[0] {
		if certificate.NotBefore.After(v.from) {
			v.from = certificate.NotBefore
		}
		if certificate.NotAfter.Before(v.until) {
			v.until = certificate.NotAfter
		}
	}
	c.good.Add(key, v)
	return "", true
}
