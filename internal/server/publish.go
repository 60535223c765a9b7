package server

import (
	"net/http"

	"github.com/pullpass/pullpass/internal/registryauth/assertion"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
)

// trustMaxAge is how long caches may keep published keys and certificates, in seconds. It is short
// compared with the time for which a key is published before and after it signs.
const trustMaxAge = "max-age=60"

func (s *Server) serveJWKS(w http.ResponseWriter, _ *http.Request) {
	data, err := signing.MarshalJWKS(s.current.Load().published()...)
	if err != nil {
		s.logger.Error("publishing the key set", "error", err)
		http.Error(w, "the key set cannot be published now", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/jwk-set+json")
	w.Header().Set("Cache-Control", trustMaxAge)
	_, _ = w.Write(data)
}

func (s *Server) serveCertificates(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/pem-certificate-chain")
	w.Header().Set("Cache-Control", trustMaxAge)
	_, _ = w.Write(signing.MarshalCertificates(s.current.Load().published()...))
}

// ofAssertions serves the keys of assertions and their discovery document, if assertions are
// configured.
func (s *Server) ofAssertions(serve func(*assertion.Issuer, http.ResponseWriter, *http.Request)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		issuer := s.current.Load().assertions
		if issuer == nil {
			http.NotFound(w, r)
			return
		}
		serve(issuer, w, r)
	})
}
