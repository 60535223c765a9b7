package tokensecrets

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pullpass/pullpass/internal/controller"
)

// Status is what a Controller has done, and how it stands with what it has to do. What is
// kept, waits or is taken is known to the replica that leads.
type Status struct {
	Counts
	Leads   bool
	Kept    int           // ServiceAccounts whose Secret has a token that has not ended
	Waiting int           // that have none yet
	Foreign int           // whose Secret's name is somebody else's
	Overdue time.Duration // of what should have been written and was not, the longest; 0: nothing
}

// Counts says what was done since the start.
type Counts struct {
	Created uint64 // Secrets
	Renewed uint64 // tokens, the first ones too
	Foreign uint64 // looks at Secrets of the name that are somebody else's
	Failed  uint64 // other failures, each of which is tried again
}

type counts struct{ created, renewed, foreign, failed atomic.Uint64 }

// state is how it stands with one ServiceAccount.
type state struct {
	held
	of      types.UID // the ServiceAccount
	foreign bool
	ends    time.Time // of the last token that is known of
	late    time.Time // since when it fails; zero: it does not
}

// after is what follows when a look at the Secret has ended.
func (s state) after(now held, err error, at time.Time) state {
	next := state{held: now, of: s.of, ends: now.expires}
	switch {
	case errors.Is(err, errForeign):
		next.foreign = true
	case err != nil:
		next.late = s.late
		if next.late.IsZero() {
			next.late = s.dueSince(at)
		}
		if next.ends.IsZero() {
			next.ends = s.ends
		}
	}
	return next
}

// dueSince is when what is due was due first; at: now.
func (s state) dueSince(at time.Time) time.Time {
	if s.keyID != "" && s.renewAt().Before(at) {
		return s.renewAt()
	}
	return at
}

// Counts says what was done so far.
func (c *Controller) Counts() Counts {
	return Counts{Created: c.counts.created.Load(), Renewed: c.counts.renewed.Load(), Foreign: c.counts.foreign.Load(), Failed: c.counts.failed.Load()}
}

// Status says how it stands. It is safe for concurrent use.
func (c *Controller) Status() Status {
	s := Status{Counts: c.Counts(), Leads: c.leads.Load()}
	if !s.Leads {
		return s
	}
	keys, now := c.accounts.GetIndexer().ListKeys(), c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range keys {
		if _, ok := c.opted(key); !ok {
			continue
		}
		one := c.known[key]
		switch {
		case one.foreign:
			s.Foreign++
			continue
		case now.Before(one.ends):
			s.Kept++
		default:
			s.Waiting++
		}
		since := one.late
		if since.IsZero() {
			since = one.dueSince(now)
		}
		s.Overdue = max(s.Overdue, now.Sub(since))
	}
	return s
}

// Ready returns why this replica is of no use now, nil: it leads, or would.
func (c *Controller) Ready() error {
	if heard := c.lease.HeardAt(); c.now().Sub(heard) > controller.LeadDuration {
		return fmt.Errorf("the Lease %s could not be read for %s: see the log", leaseName, controller.LeadDuration)
	}
	if c.leads.Load() && (!c.accounts.HasSynced() || !c.namespaces.HasSynced()) {
		return errors.New("the ServiceAccounts and namespaces that have opted in are not known yet")
	}
	return nil
}
