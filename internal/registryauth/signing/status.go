package signing

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"time"
)

// Status lists the keys and CAs, which of them sign, and until when each is trusted. It holds no
// secrets.
type Status struct {
	Keys []KeyInfo `json:"keys"`         // oldest first
	CAs  []CAInfo  `json:"cas,omitzero"` // oldest first; none with TrustJWKS
}

// State is the present role of a key or a CA.
type State string

// The states of a key or a CA, in the order of its life.
const (
	StateNext    State = "next"    // published, signs later
	StateSigning State = "signing" // signs: a key signs tokens, a CA signs the certificates of keys
	StateRetired State = "retired" // signs no more, but tokens that depend on it may be valid
	// StateTrusted is a CA that was given to registries but that no present key needs, or a public
	// key without its private key: a future or a replaced key. Only keys and CAs in files have it.
	StateTrusted State = "trusted"
)

// KeyInfo describes one key.
type KeyInfo struct {
	ID             string    `json:"id"` // RFC 7638 thumbprint, the kid of tokens
	Algorithm      Algorithm `json:"algorithm"`
	State          State     `json:"state"`
	SignsFrom      time.Time `json:"signsFrom,omitzero"`      // zero: not known (files)
	SignsUntil     time.Time `json:"signsUntil,omitzero"`     // zero: until it is replaced
	PublishedUntil time.Time `json:"publishedUntil,omitzero"` // after that it is removed; zero: not known yet
	NotAfter       time.Time `json:"notAfter,omitzero"`       // expiry of its certificate, or of one above it; zero without one
	CA             string    `json:"ca,omitzero"`             // fingerprint of the CA that registries need for it
	File           string    `json:"file"`
}

// CAInfo describes one certificate that vouches for keys.
type CAInfo struct {
	ID string `json:"id"` // fingerprint: SHA-256 of the DER form, hexadecimal
	// Intermediate says that tokens carry it. Registries must be given all others.
	Intermediate   bool      `json:"intermediate,omitzero"`
	Subject        string    `json:"subject"`
	State          State     `json:"state"`
	SignsFrom      time.Time `json:"signsFrom,omitzero"`      // zero: not known (files)
	SignsUntil     time.Time `json:"signsUntil,omitzero"`     // zero: until it is replaced
	PublishedUntil time.Time `json:"publishedUntil,omitzero"` // after that it is removed; zero: not known yet
	NotBefore      time.Time `json:"notBefore"`
	NotAfter       time.Time `json:"notAfter"`
	File           string    `json:"file"`
}

func newCAInfo(cert *x509.Certificate, state State, file string) CAInfo {
	return CAInfo{
		ID: fingerprint(cert), Subject: cert.Subject.String(), State: state,
		NotBefore: cert.NotBefore, NotAfter: cert.NotAfter, File: file,
	}
}

// maxEndWarning is the earliest time of a warning before the expiry. An organisation may need
// months to give a new CA to every registry.
const maxEndWarning = 180 * 24 * time.Hour

// endWarning is how long before the expiry of a certificate the warning begins: a quarter of its
// lifetime. An automatic renewal happens before that (cert-manager: a third of the lifetime before
// the expiry).
func endWarning(cert *x509.Certificate) time.Duration {
	return min(cert.NotAfter.Sub(cert.NotBefore)/4, maxEndWarning)
}

// EndsSoon describes the first certificate of path that expires soon, or returns nil.
func EndsSoon(path []*x509.Certificate, now time.Time) error {
	for _, cert := range path {
		left := cert.NotAfter.Sub(now)
		if left >= endWarning(cert) {
			continue
		}
		what := "the certificate"
		if cert.IsCA {
			what = "the CA certificate"
		}
		// The text names the days left, so that it changes and is logged again each day.
		return fmt.Errorf("%s of %q ends at %s, in %d days", what, cert.Subject, cert.NotAfter.UTC().Format(time.RFC3339), left/(24*time.Hour))
	}
	return nil
}

// everyMinute calls do now and every minute until ctx ends.
func everyMinute(ctx context.Context, do func()) {
	ticker := time.NewTicker(maintainEvery)
	defer ticker.Stop()
	for {
		do()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// lastLogged is the text of the last error that was logged on one subject.
type lastLogged string

// log writes err to the log unless it is the same as the last one.
func (last *lastLogged) log(logger *slog.Logger, level slog.Level, message string, err error, args ...any) {
	text := lastLogged("")
	if err != nil {
		text = lastLogged(err.Error())
	}
	if text != "" && text != *last {
		logger.Log(context.Background(), level, message, append(args, "error", err)...)
	}
	*last = text
}
