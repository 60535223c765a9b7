package exchange

import (
	"crypto/sha256"
	"net/http"
	"net/netip"
	"time"

	"github.com/pullpass/pullpass/internal/base/lru"
	"github.com/pullpass/pullpass/internal/refusal"
)

// attempts joins the two requests of one attempt. containerd sends a POST, and after a 400 or 401
// it repeats the request as GET with Basic (seen with 1.6 and 2.4). Only the limit of the address
// and counters depend on it.
type attempts struct {
	posts *lru.Cache[attemptKey, refusedPost] // those not yet followed by a GET
}

type refusedPost struct {
	at     time.Time
	reason refusal.Reason
}

// attemptKey is the same for both halves.
type attemptKey struct {
	caller     netip.Addr
	credential [sha256.Size]byte
}

const (
	attemptBytes  = 2 << 20          // about 8,000 attempts
	attemptWindow = 10 * time.Second // the GET follows at once; a slow node gets some grace
)

func newAttempts() *attempts { return &attempts{lru.New[attemptKey, refusedPost](attemptBytes, nil)} }

// failed remembers a refused POST whose credential could be read.
func (a *attempts) failed(t *tokenRequest, o outcome) {
	if t.http.Method == http.MethodPost && provesNothing(o.class) && !t.parsed.Credential.IsZero() {
		a.posts.Add(attemptKey{t.caller.Address, t.parsed.Credential.Hash()}, refusedPost{t.event.Time, o.reason})
	}
}

// repeated returns why the first half of an attempt was refused, if the request is the second half;
// empty: it is not. Each refused POST excuses one GET.
func (a *attempts) repeated(t *tokenRequest) refusal.Reason {
	if t.http.Method != http.MethodGet || a.posts.Len() == 0 {
		return ""
	}
	key := attemptKey{t.caller.Address, t.parsed.Credential.Hash()}
	post, ok := a.posts.Peek(key)
	// Of several GETs at once, only the one that removes the POST is excused.
	if !ok || !a.posts.Remove(key) || t.event.Time.Sub(post.at) >= attemptWindow {
		return ""
	}
	return post.reason
}
