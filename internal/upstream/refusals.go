package upstream

import (
	"crypto/sha256"
	"sync"
	"time"
)

// refusals knows the login that an upstream with Basic refused last. For a moment it is
// not tried again: registries lock accounts.
type refusals struct {
	mu    sync.Mutex
	login [sha256.Size]byte
	err   *Error
	until time.Time
}

func (r *refusals) note(login *Login, err *Error, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.login, r.err, r.until = loginHash(login), err, now.Add(refusedFor)
}

// known returns why a login was refused a moment ago, or nil.
func (r *refusals) known(login *Login, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil || !now.Before(r.until) || r.login != loginHash(login) {
		return nil
	}
	return r.err
}
