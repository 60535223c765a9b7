package signing

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/pullpass/pullpass/internal/base/file"
)

const (
	// maxKeyFileBytes is far larger than any key or chain, and small enough to read at once.
	maxKeyFileBytes = 64 << 10
	// MaxChain bounds the chain that every token carries: clients and proxies limit the size of an
	// Authorization header.
	MaxChain = 5
)

// readKeyFile reads a file of limited size.
func readKeyFile(name string) ([]byte, error) {
	f, err := file.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readCapped(f, name)
}

func readCapped(r io.Reader, name string) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxKeyFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxKeyFileBytes {
		return nil, fmt.Errorf("%s: larger than %d bytes: this is neither a key nor a certificate chain", name, maxKeyFileBytes)
	}
	return data, nil
}

// parsePrivateKey returns the only private key in data: PKCS#8, SEC 1 (EC) or PKCS#1 (RSA) as PEM.
// Certificates and EC parameters are skipped.
func parsePrivateKey(data []byte) (crypto.Signer, error) {
	var found crypto.Signer
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Headers["DEK-Info"] != "" || block.Type == "ENCRYPTED PRIVATE KEY" {
			return nil, errors.New("the private key is encrypted: decrypt it (openssl pkey) and protect the file instead")
		}
		var key any
		var err error
		switch block.Type {
		case "PRIVATE KEY":
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		case "EC PRIVATE KEY":
			key, err = x509.ParseECPrivateKey(block.Bytes)
		case "RSA PRIVATE KEY":
			key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		default:
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("the PEM block %s is damaged: %w", block.Type, err)
		}
		signer, ok := key.(crypto.Signer)
		if !ok {
			return nil, fmt.Errorf("a key of type %T cannot sign: use ECDSA P-256, RSA or Ed25519", key)
		}
		if found != nil {
			return nil, errors.New("there is more than one private key: keep the one that signs")
		}
		found = signer
	}
	if found == nil {
		return nil, errors.New("there is no private key in PEM form (PRIVATE KEY, EC PRIVATE KEY or RSA PRIVATE KEY)")
	}
	return found, nil
}

// parsePublicKeys returns the public keys in data (PKIX), in the form in which they are published.
// There may be none. It fails if algorithm does not fit a key.
func parsePublicKeys(data []byte, algorithm Algorithm) (TrustBundle, error) {
	var bundle TrustBundle
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "PUBLIC KEY" {
			continue
		}
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return TrustBundle{}, fmt.Errorf("the PEM block %s is damaged: %w", block.Type, err)
		}
		if err := algorithm.checkKey(key); err != nil {
			return TrustBundle{}, fmt.Errorf("a public key beside it: %w", err)
		}
		id, err := thumbprint(key)
		if err != nil {
			return TrustBundle{}, err
		}
		bundle.JWKS.Keys = append(bundle.JWKS.Keys, publicJWK(key, id, algorithm))
	}
	return bundle, nil
}

// parseCertificates returns the certificates in data in their order, at least one. Other PEM blocks
// are skipped.
func parseCertificates(data []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d is damaged: %w", len(certs)+1, err)
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, errors.New("there is no certificate in PEM form")
	}
	return certs, nil
}

// verifyLeaf checks that the first certificate of chain certifies pub in tokens that are made at
// now, and that one of roots vouches for it. Like the registry, it uses only the chain of the token
// and the roots. It returns the path from the leaf to that root. Of several paths, it returns the
// one that expires last.
func verifyLeaf(chain, roots []*x509.Certificate, pub crypto.PublicKey, now time.Time) ([]*x509.Certificate, error) {
	leaf := chain[0]
	if same, ok := pub.(interface{ Equal(crypto.PublicKey) bool }); !ok || !same.Equal(leaf.PublicKey) {
		return nil, errors.New("the first certificate is not for this private key: put both files of one pair in place, the chain leaf first")
	}
	if leaf.IsCA {
		return nil, errors.New("the first certificate is a CA's: sign tokens with a leaf certificate issued by it, " +
			"or with a self-signed one that has basicConstraints CA:FALSE")
	}
	if leaf.KeyUsage != 0 && leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0 {
		return nil, errors.New("the certificate's key usage lacks digitalSignature: issue one that has it, or none")
	}
	if err := checkValidity(leaf, now); err != nil {
		return nil, err
	}
	opts := x509.VerifyOptions{
		Roots:         x509.NewCertPool(),
		Intermediates: x509.NewCertPool(),
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageAny}, // as distribution does
		CurrentTime:   now,
	}
	for _, cert := range roots {
		opts.Roots.AddCert(cert)
	}
	for _, cert := range chain[1:] {
		opts.Intermediates.AddCert(cert)
	}
	paths, err := leaf.Verify(opts)
	if err != nil {
		return nil, fmt.Errorf("the CA does not vouch for the certificate, so no registry would: %w", err)
	}
	path := slices.MaxFunc(paths, func(a, b []*x509.Certificate) int { return endOf(a).Compare(endOf(b)) })
	for _, cert := range path[1:] {
		if err := checkValidity(cert, now); err != nil {
			return nil, err
		}
	}
	return path, nil
}

// endOf returns the earliest expiry of the certificates: registries check each of them.
func endOf(path []*x509.Certificate) time.Time {
	first := path[0].NotAfter
	for _, cert := range path[1:] {
		if cert.NotAfter.Before(first) {
			first = cert.NotAfter
		}
	}
	return first
}

// checkValidity returns an error if a token that is made at now cannot live for MinLifetime before
// cert expires. A registry checks both at the time of the pull.
func checkValidity(cert *x509.Certificate, now time.Time) error {
	if now.Before(cert.NotBefore) {
		return fmt.Errorf("the certificate of %q is not valid before %s, and it is %s: check the clocks",
			cert.Subject, cert.NotBefore.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	if now.Add(MinLifetime).After(cert.NotAfter) {
		return fmt.Errorf("the certificate of %q ended, or is about to end, at %s: renew it", cert.Subject, cert.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

// fingerprint names a certificate: the SHA-256 of its DER form, in hexadecimal,
// as "openssl x509 -outform der | sha256sum" prints it.
func fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:])
}

func selfSigned(cert *x509.Certificate) bool {
	return bytes.Equal(cert.RawSubject, cert.RawIssuer) &&
		cert.CheckSignature(cert.SignatureAlgorithm, cert.RawTBSCertificate, cert.Signature) == nil
}
