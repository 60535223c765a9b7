package assertion

import (
	"encoding/json"
	"net/http"

	"github.com/pullpass/pullpass/internal/registryauth/signing"
)

// The paths of the handlers, on a listener that upstreams can reach.
const (
	DiscoveryPath = "/.well-known/openid-configuration"
	KeysPath      = "/assertions/jwks.json"
)

// maxAge is how long caches may keep the responses, in seconds. It is far shorter than the time for
// which a key is published before it signs.
const maxAge = "max-age=300"

// discovery holds the fields that OpenID Connect Discovery 1.0, section 3, requires of an issuer
// without logins.
type discovery struct {
	Issuer        string              `json:"issuer"`
	KeysURL       string              `json:"jwks_uri"`
	ResponseTypes []string            `json:"response_types_supported"`
	SubjectTypes  []string            `json:"subject_types_supported"`
	Algorithms    []signing.Algorithm `json:"id_token_signing_alg_values_supported"`
}

// ServeDiscovery writes the discovery document.
func (i *Issuer) ServeDiscovery(w http.ResponseWriter, _ *http.Request) {
	data, err := json.MarshalIndent(discovery{
		Issuer:        i.issuer,
		KeysURL:       i.issuer + KeysPath,
		ResponseTypes: []string{"id_token"},
		SubjectTypes:  []string{"public"},
		Algorithms:    []signing.Algorithm{signing.RS256},
	}, "", "  ")
	i.publish(w, "application/json", data, err)
}

// ServeKeys writes the key set.
func (i *Issuer) ServeKeys(w http.ResponseWriter, _ *http.Request) {
	data, err := signing.MarshalJWKS(i.keys)
	i.publish(w, "application/jwk-set+json", data, err)
}

func (i *Issuer) publish(w http.ResponseWriter, contentType string, data []byte, err error) {
	if err != nil {
		i.logger.Error("publishing what verifies assertions", "error", err)
		http.Error(w, "this cannot be published now", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", maxAge)
	_, _ = w.Write(data)
}
