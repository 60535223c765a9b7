// Package upstream sends requests to the registries behind the gateway, with credentials for those
// registries.
package upstream

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/pullpass/pullpass/internal/registryauth"
)

// Login is a credential for an upstream: for Basic, or for its token endpoint.
type Login struct {
	Username string
	Password registryauth.Secret
	Expiry   time.Time // zero: not known
}

// basic returns the value of an Authorization header (RFC 7617).
func (l *Login) basic() string {
	r := http.Request{Header: http.Header{}}
	r.SetBasicAuth(l.Username, l.Password.Reveal())
	return r.Header.Get("Authorization")
}

// ErrNoCaller says that each ServiceAccount has its own credential, and that the caller is not a
// ServiceAccount: it is anonymous, or a CI job.
var ErrNoCaller = errors.New("the credential is the caller's own, and the request is no ServiceAccount's; let only rules for ServiceAccounts allow this upstream")

// Logins provides logins for one upstream. An error means that there is none now. The request is
// then answered 502 or 503, and never sent anonymously instead. Implementations are safe for
// concurrent use, remember their logins, and return within their own time limit.
type Logins interface {
	// Login returns the login for a caller, CLUSTER/NAMESPACE/SERVICEACCOUNT; empty: the caller is
	// not a ServiceAccount. A kind of credential that is not the caller's own is the same for all
	// callers.
	Login(ctx context.Context, caller string) (Login, error)
	// Reject says that the upstream refused a login for every request. The next login must be a
	// different one, if there is one.
	Reject(login Login)
}
