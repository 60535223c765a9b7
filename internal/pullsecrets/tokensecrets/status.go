package tokensecrets

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pullpass/pullpass/internal/cluster/controller"
)

// Status is the state of a Controller and of its work. Only the leading replica knows Kept,
// Waiting, Foreign and Overdue.
type Status struct {
	Counts
	Leads   bool
	Kept    int           // ServiceAccounts whose Secret has an unexpired token
	Waiting int           // ServiceAccounts whose Secret does not have a token yet
	Foreign int           // ServiceAccounts whose Secret's name others already use
	Overdue time.Duration // the longest delay of a due write that is not due to its namespace; 0: none
}

// Counts are totals since the start.
type Counts struct {
	Created uint64 // Secrets
	Renewed uint64 // tokens, including the first ones
	Foreign uint64 // attempts that found a Secret of others under the name
	Failed  uint64 // other failures; each is retried
}

type counts struct{ created, renewed, foreign, failed atomic.Uint64 }

// state is the state of one ServiceAccount.
type state struct {
	held
	of      types.UID // the ServiceAccount
	foreign bool
	ends    time.Time // of the last known token
	late    time.Time // since when attempts fail; zero: they do not, or for a cause in the namespace
}

// after returns the state after an attempt.
func (s state) after(now held, err error, at time.Time) state {
	next := state{held: now, of: s.of, ends: now.expires}
	switch {
	case errors.Is(err, errForeign):
		next.foreign = true
	case isOfNamespace(err):
		next.ends = s.ends
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

// dueSince returns the time since when work is due. It returns at if the work is due now for the
// first time.
func (s state) dueSince(at time.Time) time.Time {
	if s.keyID != "" && s.renewAt().Before(at) {
		return s.renewAt()
	}
	return at
}

// Counts returns the totals so far.
func (c *Controller) Counts() Counts {
	return Counts{Created: c.counts.created.Load(), Renewed: c.counts.renewed.Load(), Foreign: c.counts.foreign.Load(), Failed: c.counts.failed.Load()}
}

// Status returns the current state. It is safe for concurrent use.
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

// Ready returns why this replica cannot work now. It returns nil if the replica leads or could
// lead.
func (c *Controller) Ready() error {
	if heard := c.lease.HeardAt(); c.now().Sub(heard) > controller.LeadDuration {
		return fmt.Errorf("the Lease %s could not be read for %s: see the log", leaseName, controller.LeadDuration)
	}
	if c.leads.Load() && (!c.accounts.HasSynced() || !c.namespaces.HasSynced()) {
		return errors.New("the ServiceAccounts and namespaces that have opted in are not known yet")
	}
	return nil
}
