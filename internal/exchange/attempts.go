package exchange

import (
	"crypto/sha256"
	"net/http"
	"net/netip"
	"time"

	"github.com/pullpass/pullpass/internal/lru"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// attempts joins the two requests of one attempt: containerd sends a POST, and
// after a 400 or 401 the same again as GET with Basic (seen with 1.6 and 2.4).
// Only counting depends on it, never a decision.
type attempts struct {
	posts *lru.Cache[attemptKey, time.Time] // refused POSTs not yet followed by a GET
}

// attemptKey is the same for both halves.
type attemptKey struct {
	caller     netip.Addr
	credential [sha256.Size]byte
}

const (
	attemptBytes  = 2 << 20          // for 8,000
	attemptWindow = 10 * time.Second // the GET follows at once; a slow node gets some grace
)

func newAttempts() *attempts { return &attempts{lru.New[attemptKey, time.Time](attemptBytes, nil)} }

// failed remembers a refused POST.
func (a *attempts) failed(method string, caller Caller, event *Event, req registryauth.Request) {
	if method != http.MethodPost || (event.Status != http.StatusBadRequest && event.Status != http.StatusUnauthorized) {
		return
	}
	a.posts.Add(attemptKey{caller.Address, req.Credential.Hash()}, event.Time)
}

// repeats reports whether the request is the second half of an attempt. Each
// refused POST excuses one GET.
func (a *attempts) repeats(method string, caller Caller, event *Event, req registryauth.Request) bool {
	if method != http.MethodGet || a.posts.Len() == 0 {
		return false
	}
	key := attemptKey{caller.Address, req.Credential.Hash()}
	at, ok := a.posts.Peek(key)
	// Of several GETs at once, only the one that removes the POST is excused.
	return ok && a.posts.Remove(key) && event.Time.Sub(at) < attemptWindow
}
