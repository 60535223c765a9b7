package upstream

import (
	"net/http"
	"time"

	"github.com/pullpass/pullpass/internal/base/lru"
	"github.com/pullpass/pullpass/internal/refusal"
)

// needBytes is for some thousand lessons, shared among tenants. The owner of repositories can
// create any number of lessons for its own tenant.
const needBytes = 1 << 20

// lessons hold the results of requests to an upstream. Each holds for its need alone: the same
// holder and the same scopes. The owner of a repository can often control the upstream's response
// for it, and must not control it for other repositories. Only the result of the Client's own GET
// /v2/ holds for all.
type lessons struct {
	known *lru.Shared[string, lesson]
}

// lesson is the lesson of one need. It never changes: a new one replaces it.
type lesson struct {
	wants   *challenge // the challenge, if it differs from the shared one; nil: the shared one
	refusal *Error     // why it is not asked for now; nil: it is asked for
	until   time.Time  // of refusal
}

func newLessons() lessons {
	return lessons{lru.NewShared(needBytes, func(key string, l lesson) int { return lru.Bytes(len(key)) + l.bytes() })}
}

// bytes is the memory that a lesson holds.
func (l lesson) bytes() (held int) {
	if l.wants != nil {
		held += lru.Bytes(256) + lru.Bytes(len(l.wants.service))
		if l.wants.realm != nil {
			held += lru.Bytes(len(l.wants.realm.String()))
		}
	}
	if l.refusal != nil {
		held += lru.Bytes(256) + lru.Bytes(len(l.refusal.Message))
	}
	return held
}

// key returns a different text for each need.
func (n Need) key() string { return n.Holder + "\x00" + scopeText(n.Scopes) }

// get returns the lesson of a need. Most needs have none.
func (l *lessons) get(need Need) lesson {
	if l.known.Len() == 0 {
		return lesson{}
	}
	learned, _ := l.known.Get(need.key())
	return learned
}

// ask makes a need use the challenge of its own 401.
func (l *lessons) ask(need Need, as challenge) {
	l.known.Add(need.Tenant, need.key(), lesson{wants: &as})
}

// refuse refuses a need until the given time.
func (l *lessons) refuse(need Need, e *Error, until time.Time) {
	l.known.Add(need.Tenant, need.key(), lesson{wants: l.get(need).wants, refusal: e, until: until})
}

// forget makes a need use the shared challenge again.
func (l *lessons) forget(need Need) {
	l.known.Remove(need.key())
}

// refusal returns why a need is refused now, or nil. The cause is its own lesson, or a 429 of the
// upstream to GET /v2/.
func (c *Client) refusal(learned lesson) *Error {
	now := c.now()
	if wait := c.held(); wait > 0 {
		return c.limited(wait)
	}
	if !now.Before(learned.until) {
		return nil
	}
	if learned.refusal.Reason == refusal.UpstreamLimited {
		return c.limited(learned.until.Sub(now))
	}
	return learned.refusal
}

func (c *Client) limited(wait time.Duration) *Error {
	e := c.fail(refusal.UpstreamLimited, nil, "it asked for fewer requests, and is left alone until then")
	e.Status, e.RetryAfter = http.StatusTooManyRequests, wait
	return e
}

// held returns for how long all requests are refused. Only the response to GET /v2/ decides that.
func (c *Client) held() time.Duration {
	return max(time.Unix(0, c.heldUntil.Load()).Sub(c.now()), 0)
}

// holdAll refuses all requests after a 429 to GET /v2/, until Run may ask again. A 429 that some
// callers caused must not refuse the others for longer.
func (c *Client) holdAll(e *Error) {
	e.RetryAfter = min(e.RetryAfter, probeAgain)
	c.heldUntil.Store(c.heldBy(e).UnixNano())
}

// heldBy returns the time until which a 429 is obeyed.
func (c *Client) heldBy(e *Error) time.Time {
	return c.now().Add(min(max(e.RetryAfter, shortestHold), longestHold))
}
