package upstream

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"time"

	"github.com/pullpass/pullpass/internal/base/lru"
	"github.com/pullpass/pullpass/internal/refusal"
)

const (
	verdictBytes = 256 << 10 // for 1,000 logins
	// refusedFor is how long a refused login is not tried again, because registries lock accounts.
	// For the same time, a replaced token is not replaced again.
	refusedFor = 5 * time.Second
)

// verdicts hold the upstream's responses to logins alone, without a repository. A repository can
// refuse a valid login. A login is therefore rejected only after GET /v2/ refuses it too.
type verdicts struct {
	known  *lru.Cache[[sha256.Size]byte, verdict]
	asking flights[[sha256.Size]byte, verdict]
}

// verdict never changes: a new one replaces it.
type verdict struct {
	failure *Error    // nil: the upstream accepted the login
	until   time.Time // when to ask again
}

// isRefusal reports whether the login itself was refused. A token endpoint that responds with 400
// or 404 may only require a scope.
func (v verdict) isRefusal() bool {
	return v.failure != nil && v.failure.Reason == refusal.UpstreamCredential && (v.failure.Status == http.StatusUnauthorized || v.failure.Status == http.StatusForbidden)
}

func newVerdicts() verdicts {
	return verdicts{known: lru.New(verdictBytes, func(_ [sha256.Size]byte, v verdict) int {
		if v.failure == nil {
			return 0
		}
		return lru.Bytes(256) + lru.Bytes(len(v.failure.Message))
	})}
}

// refusedLogin returns why a login is refused, or nil. A refused login is used again when the
// upstream accepts it. Until then it is sent at most once in refusedFor.
func (c *Client) refusedLogin(ctx context.Context, login *Login, hash [sha256.Size]byte) error {
	if known, _ := c.verdicts.known.Get(hash); !known.isRefusal() {
		return nil
	}
	found, err := c.verdictOn(ctx, login, hash)
	if found.isRefusal() {
		return found.failure
	}
	return err
}

// verdictOn returns the upstream's verdict on a login. It asks the upstream unless the last verdict
// is recent. The error is that of ctx.
func (c *Client) verdictOn(ctx context.Context, login *Login, hash [sha256.Size]byte) (verdict, error) {
	return c.verdicts.asking.do(ctx, hash, func(ctx context.Context) verdict {
		if known, _ := c.verdicts.known.Get(hash); c.now().Before(known.until) {
			return known
		}
		found := verdict{failure: c.tryLogin(ctx, login), until: c.now().Add(refusedFor)}
		if ctx.Err() != nil {
			return verdict{}
		}
		switch {
		case found.isRefusal():
			c.logins.Reject(*login)
		case found.failure != nil && found.failure.Reason == refusal.UpstreamLimited:
			c.doubt() // the login may be one caller's, and only the probe decides for all
		}
		c.verdicts.known.Add(hash, found)
		return found
	})
}

// tryLogin sends GET /v2/ with a login, or without one if login is nil, as the shared challenge
// says. The error has refusal.UpstreamCredential if the login is refused.
func (c *Client) tryLogin(ctx context.Context, login *Login) *Error {
	wants, err := c.shared(ctx)
	if err != nil {
		return c.asError(err)
	}
	used := credential{login: login}
	authorization := ""
	switch {
	case wants.scheme == schemeBearer:
		asking, cancel := context.WithTimeout(ctx, tokenTimeout)
		defer cancel()
		got, e := c.tokens.request(asking, wants, login, nil)
		c.tokenRequested(e == nil)
		if e != nil {
			return e
		}
		used.token = &got
		authorization = "Bearer " + got.value.Reveal()
	case wants.scheme == schemeBasic && login != nil:
		authorization = login.basic()
	default:
		return c.fail(refusal.UpstreamInvalid, nil, "its answer to GET /v2/ does not say whether it takes a credential")
	}
	response, err := c.send(c.versionRequest(ctx), authorization, &unsent{})
	if err != nil {
		return c.asError(err)
	}
	if response.StatusCode == http.StatusUnauthorized {
		Discard(response)
		return c.refused(wants, used)
	}
	e := c.failureOf(response)
	Discard(response)
	return e
}

// asError returns err as an *Error. It converts an error of a different type.
func (c *Client) asError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return c.fail(refusal.UpstreamTimeout, err, "it was not asked to the end")
}
