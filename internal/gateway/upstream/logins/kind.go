package logins

import (
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/url"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
)

// Kind is a kind of credential: its fields in the configuration, and the logins that it describes.
// A kind whose defaults depend on the upstream also has a method Complete(url string).
type Kind interface {
	// OfCaller reports whether requests use the caller's identity, which needs assertions.
	OfCaller() bool
	// Validate reports the faults of the fields.
	Validate(v Validator)
	// Open uses no network.
	Open(s Service) (upstream.Logins, error)
}

// Validator reports faults of the fields of a credential.
type Validator interface {
	Fault(field, format string, args ...any)
	// BaseURL reports a value that is not a URL without a path. want says what it should be.
	BaseURL(field, value, want string)
}

// Service is what a kind needs to know of the upstream that it opens.
type Service struct {
	Upstream   string         // its name, for messages
	URL        string         // of the registry, without path
	Roots      *x509.CertPool // CAs of its certificate; nil: the system's
	Assertions Assertions     // nil: no credential may use the caller's identity
	Logger     *slog.Logger   // nil: silent
}

// Endpoint returns the URL of a path at a service.
func (s Service) Endpoint(base, path string) (*url.URL, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" {
		return nil, s.failure(errors.New("its URL cannot be read"))
	}
	return u.JoinPath(path), nil
}

// Remember returns the logins that ask gets, of each caller or of all.
func (s Service) Remember(ofCaller bool, ask Ask) (upstream.Logins, error) {
	if ofCaller && s.Assertions == nil {
		return nil, s.failure(errors.New("its credential is the caller's, which takes assertions"))
	}
	return New(Config{Upstream: s.Upstream, Ask: ask, PerCaller: ofCaller, Logger: s.Logger}), nil
}

func (s Service) failure(err error) error { return fmt.Errorf("upstream %s: %w", s.Upstream, err) }

// Identity says as whom a cloud is asked.
type Identity string

// The identities.
const (
	Gateway Identity = "gateway" // the gateway's own: that of its pod or machine
	Caller  Identity = "caller"  // the ServiceAccount that asks the gateway, by an assertion
)

// Values returns all that there are.
func (Identity) Values() []Identity { return []Identity{Gateway, Caller} }

// Requires reports a field that is missing with identity caller, or set with identity gateway.
func (i Identity) Requires(v Validator, field, value, remedy string) {
	switch {
	case i == Caller && value == "":
		v.Fault(field, "is missing; %s", remedy)
	case i == Gateway && value != "":
		v.Fault(field, "has no use with identity %s (%s); remove it, or write identity: %s", i, term.QuoteValue(value), Caller)
	}
}
