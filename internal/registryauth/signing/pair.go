package signing

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"
)

const (
	pairValidity    = 90 * 24 * time.Hour
	pairRenewBefore = pairValidity / 3
)

// Pair is a certificate and its private key, for a CA or for the use that a Leaf describes. It cannot be
// printed.
type Pair struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// Format is what package fmt prints, with every verb.
func (*Pair) Format(s fmt.State, _ rune) {
	_, _ = io.WriteString(s, "certificate with its private key")
}

// Leaf describes a certificate that a CA issues: that of a server if it has names, else that of a
// key that signs tokens.
type Leaf struct {
	CommonName string
	Names      []string  // DNS names and IP addresses of a server
	Algorithm  Algorithm // of the key; servers have ES256
}

// NewCA makes a CA that is valid for ten years and signs only leaf certificates.
func NewCA(name string, now time.Time) (*Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	cert, err := signCertificate(&x509.Certificate{
		Subject:               pkix.Name{CommonName: commonName(name)},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(caValidity),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}, nil, key.Public(), key)
	return &Pair{cert, key}, err
}

// ParsePair reads what PEM returned. Certificates after the first are not read.
func ParsePair(certificates, key []byte) (*Pair, error) {
	chain, err := parseCertificates(certificates)
	if err != nil {
		return nil, err
	}
	signer, err := parsePrivateKey(key)
	if err != nil {
		return nil, err
	}
	if pub, ok := signer.Public().(interface{ Equal(crypto.PublicKey) bool }); !ok || !pub.Equal(chain[0].PublicKey) {
		return nil, errors.New("the key is not the certificate's")
	}
	return &Pair{chain[0], signer}, nil
}

// PEM returns the certificate and the private key.
func (p *Pair) PEM() (certificate, key []byte, err error) {
	key, err = encodeKeyPEM(p.key)
	return encodeCertificatePEM(p.cert), key, err
}

// Issue makes a key and its certificate. It is valid for 90 days, and not longer than the CA.
func (p *Pair) Issue(leaf Leaf, now time.Time) (*Pair, error) {
	key, err := generateKey(leaf.Algorithm)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: commonName(leaf.CommonName)},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(pairValidity),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
	}
	if p.cert.NotAfter.Before(template.NotAfter) {
		template.NotAfter = p.cert.NotAfter
	}
	if len(leaf.Names) > 0 {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	for _, name := range leaf.Names {
		if address, err := netip.ParseAddr(name); err == nil {
			template.IPAddresses = append(template.IPAddresses, address.AsSlice())
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	cert, err := signCertificate(template, p.cert, key.Public(), p.key)
	return &Pair{cert, key}, err
}

// IsCurrent reports whether a Pair is what Issue of ca would make of leaf, and is valid for another
// 30 days.
func (p *Pair) IsCurrent(ca *Pair, leaf Leaf, now time.Time) bool {
	if _, err := verifyLeaf([]*x509.Certificate{p.cert}, []*x509.Certificate{ca.cert}, p.key.Public(), now.Add(pairRenewBefore)); err != nil {
		return false
	}
	names := slices.Clone(p.cert.DNSNames)
	for _, address := range p.cert.IPAddresses {
		names = append(names, address.String())
	}
	wanted := slices.Clone(leaf.Names)
	slices.Sort(names)
	slices.Sort(wanted)
	return leaf.Algorithm.checkKey(p.key.Public()) == nil && slices.Equal(names, wanted)
}
