package signing

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"slices"

	"github.com/go-jose/go-jose/v4"
)

// MarshalJWKS renders the union of the published keys of keys as a JSON Web Key Set (RFC 7517), for
// /.well-known/jwks.json and for registries' key set files. Equal keys give equal bytes. If a key
// is not a public key, it returns an error and no output.
func MarshalJWKS(keys ...Keys) ([]byte, error) {
	set := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{}} // never null
	for _, jwk := range trustOf(keys).JWKS.Keys {
		if !jwk.IsPublic() {
			return nil, fmt.Errorf("key %q is not a public key: it is not published", jwk.KeyID)
		}
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: jwk.Key, KeyID: jwk.KeyID, Algorithm: jwk.Algorithm, Use: jwk.Use})
	}
	data, err := json.MarshalIndent(set, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("key set: %w", err)
	}
	return append(data, '\n'), nil
}

// MarshalCertificates renders the union of the published certificates of keys as PEM, for
// /certificates.pem and for registries' rootcertbundle. Equal certificates give equal bytes. The
// result may be empty.
func MarshalCertificates(keys ...Keys) []byte {
	var out bytes.Buffer
	for _, cert := range trustOf(keys).Certificates {
		// Writing to a buffer, and without headers, cannot fail.
		_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
	}
	return out.Bytes()
}

func trustOf(keys []Keys) TrustBundle {
	bundles := make([]TrustBundle, len(keys))
	for n, k := range keys {
		bundles[n] = k.Trusted()
	}
	return mergeTrust(bundles...)
}

// keyTrust returns the trust that a registry needs for keys that it identifies by kid.
func keyTrust(keys ...*SigningKey) TrustBundle {
	var bundle TrustBundle
	for _, key := range keys {
		bundle.JWKS.Keys = append(bundle.JWKS.Keys, key.publicJWK())
	}
	return mergeTrust(bundle)
}

// mergeTrust returns the union, each key and certificate once. The order depends only on the
// content.
func mergeTrust(bundles ...TrustBundle) TrustBundle {
	var out TrustBundle
	for _, bundle := range bundles {
		out.JWKS.Keys = append(out.JWKS.Keys, bundle.JWKS.Keys...)
		out.Certificates = append(out.Certificates, bundle.Certificates...)
	}
	slices.SortStableFunc(out.JWKS.Keys, func(a, b jose.JSONWebKey) int { return cmp.Compare(a.KeyID, b.KeyID) })
	out.JWKS.Keys = slices.CompactFunc(out.JWKS.Keys, sameKey)
	slices.SortFunc(out.Certificates, func(a, b *x509.Certificate) int { return bytes.Compare(a.Raw, b.Raw) })
	out.Certificates = slices.CompactFunc(out.Certificates, (*x509.Certificate).Equal)
	return out
}

func sameTrust(a, b TrustBundle) bool {
	return slices.EqualFunc(a.JWKS.Keys, b.JWKS.Keys, sameKey) &&
		slices.EqualFunc(a.Certificates, b.Certificates, (*x509.Certificate).Equal)
}

// sameKey compares key ids, which are thumbprints.
func sameKey(a, b jose.JSONWebKey) bool { return a.KeyID == b.KeyID }
