// Package nodecert judges the client certificates of kubelets: whether one leads to a CA
// of its cluster, and of no other.
package nodecert

import (
	"crypto/sha256"
	"crypto/x509"
	"time"

	"github.com/pullpass/pullpass/internal/lru"
)

// CAs are the CAs that sign the client certificates of one cluster's
// kubelets, and what is known of those of the others. It never changes.
type CAs struct {
	own    *x509.CertPool
	others map[string]string // public key of a CA → the cluster that has it
}

// NewCAs returns the CAs of a cluster, from those of all clusters.
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

// other returns the cluster that has a CA which is part of a chain.
func (c *CAs) other(chains [][]*x509.Certificate) (cluster string, found bool) {
	for _, chain := range chains {
		for _, certificate := range chain {
			// By its key, for that is what it signs with: others have it in a
			// certificate of its own, which may even have ended.
			if cluster, found = c.others[string(certificate.RawSubjectPublicKeyInfo)]; found {
				return cluster, true
			}
		}
	}
	return "", false
}

const (
	// maxPresented is how many certificates a caller may present: a kubelet has
	// one, and with it sometimes the CAs between. Out of forged ones with equal
	// names and one key, chains can be built in every order: three cost 4
	// milliseconds for each request if they are as dear as TLS allows, five 26.
	maxPresented = 3

	// ChainBytes is what Chains hold at most: enough for two clusters of the largest size that Kubernetes
	// supports.
	ChainBytes = 4 << 20
)

// Chains remembers the certificates that lead to a CA: verifying signatures
// costs more than all the rest of an exchange, and a kubelet presents the same
// certificate hundreds of times. Bad ones are not remembered: strangers could
// fill the memory with them. It is safe for concurrent use.
type Chains struct {
	good *lru.Cache[chainKey, validity]
}

// chainKey holds all that the outcome depends on, save the clock. CAs that were
// read again have another address, which is not used twice while the key holds
// it.
type chainKey struct {
	presented [sha256.Size]byte
	cluster   string
	cas       *CAs
}

// validity is the time in which every certificate of a chain is valid.
type validity struct{ from, until time.Time }

// NewChains returns one that remembers nothing yet.
func NewChains() *Chains { return &Chains{lru.New[chainKey, validity](ChainBytes, nil)} }

// Lead reports whether the first certificate leads to one of the CAs, by way of
// the others, and is for client authentication. If a CA of another cluster is
// on the way, it does not, and that cluster is returned: two clusters' CAs can
// have one above both, with certificates between that no file has, and only who
// presents them shows them.
func (c *Chains) Lead(presented []*x509.Certificate, cluster string, cas *CAs, now time.Time) (other string, ok bool) {
	if len(presented) > maxPresented {
		return "", false
	}
	var hashes [maxPresented * sha256.Size]byte // each of fixed length, so that no two lists are the same
	all := hashes[:0]
	for _, certificate := range presented {
		hash := sha256.Sum256(certificate.Raw)
		all = append(all, hash[:]...)
	}
	key := chainKey{sha256.Sum256(all), cluster, cas}
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
