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
// it repeats the request as GET with Basic (seen with 1.6 and 2.4). Only counters depend on it,
// never a decision.
type attempts struct {
	posts *lru.Cache[attemptKey, time.Time] // refused POSTs not yet followed by a GET
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

func newAttempts() *attempts { return &attempts{lru.New[attemptKey, time.Time](attemptBytes, nil)} }

// failed remembers a refused POST whose credential could be read.
func (a *attempts) failed(t *tokenRequest, c refusal.Class) {
	if t.http.Method == http.MethodPost && provesNothing(c) && !t.parsed.Credential.IsZero() {
		a.posts.Add(attemptKey{t.caller.Address, t.parsed.Credential.Hash()}, t.event.Time)
	}
}

// repeats reports whether the request is the second half of an attempt. Each
// refused POST excuses one GET.
func (a *attempts) repeats(t *tokenRequest) bool {
	if t.http.Method != http.MethodGet || a.posts.Len() == 0 {
		return false
	}
	key := attemptKey{t.caller.Address, t.parsed.Credential.Hash()}
	at, ok := a.posts.Peek(key)
	// Of several GETs at once, only the one that removes the POST is excused.
	return ok && a.posts.Remove(key) && t.event.Time.Sub(at) < attemptWindow
}
