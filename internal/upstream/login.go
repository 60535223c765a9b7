// Package upstream asks the registries behind the gateway with credentials of
// their own.
package upstream

import (
	"context"
	"errors"
	"time"

	"github.com/pullpass/pullpass/internal/registryauth"
)

// Login is what an upstream is asked with: as Basic, or at its token endpoint.
type Login struct {
	Username string
	Password registryauth.Secret
	Expiry   time.Time // zero: it has no known end
}

// ErrNoCaller says that a credential is the caller's own, and that the caller is no
// ServiceAccount: it is anonymous, or a CI job.
var ErrNoCaller = errors.New("the credential is the caller's own, and the request is no ServiceAccount's; let only rules for ServiceAccounts allow this upstream")

// Logins gives logins for one upstream. An error means that there is none now: the
// request is answered 502 or 503, never asked anonymously instead. Implementations
// are safe for concurrent use, remember what they got, and return within their own
// time limit.
type Logins interface {
	// Login returns what to ask with for a caller, CLUSTER/NAMESPACE/SERVICEACCOUNT;
	// empty: it is none. A kind of credential that is not the caller's gives
	// all of them the same.
	Login(ctx context.Context, caller string) (Login, error)
	// Reject says that the upstream refused a login: the next one must be another,
	// if there is another.
	Reject(login Login)
}
