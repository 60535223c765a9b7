package objectstatus

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pullpass/pullpass/internal/action"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/kube"
	"github.com/pullpass/pullpass/internal/pattern"
	"github.com/pullpass/pullpass/internal/policyobjects"
	"github.com/pullpass/pullpass/internal/registryauth"
)

const (
	maxEvents   = 1024    // that wait; then they are dropped, and the next use tells as much
	maxSeen     = 50_000  // uses that were looked up in the last seenFor
	maxKnown    = 200_000 // days of repositories
	maxBatch    = 1000    // entries that are sent at once
	maxUnsent   = 10_000
	sendEvery   = 5 * time.Second
	seenFor     = 10 * time.Minute
	daysKept    = 3
	sharedLimit = 5 * time.Second
)

// Shared is what the replicas tell one another: entries that were added, in order. An
// error says that it is not known. What is lost is told again on the next day of use.
type Shared interface {
	AddUses(ctx context.Context, cluster string, entries [][]byte) error
	// Uses returns what was added after an entry, and where the next call has to begin.
	Uses(ctx context.Context, cluster, after string) (entries [][]byte, last string, err error)
}

// use is that of a repository of a RepositoryAccess, on a day.
type use struct {
	UID        string `json:"uid"`
	Repository string `json:"repository"` // as in the spec
	Day        string `json:"day"`        // YYYY-MM-DD, UTC
}

// uses knows on which day repositories were used last. Record never waits.
type uses struct {
	cluster string
	shared  atomic.Pointer[Shared] // of the replicas; nil, or of nil: there is one
	now     func() time.Time
	events  chan *exchange.Event

	last string // of what was read of shared; belongs to who leads

	mu   sync.Mutex
	days map[use]string // by what is used, without Day
}

func newUses(c Config) *uses {
	return &uses{cluster: c.Cluster, now: c.Now, events: make(chan *exchange.Event, maxEvents), days: map[use]string{}}
}

// others returns who shares; nil: nobody.
func (u *uses) others() Shared {
	if shared := u.shared.Load(); shared != nil {
		return *shared
	}
	return nil
}

// Record implements exchange.Recorder.
func (c *Controller) Record(e *exchange.Event) {
	if e.Cluster != c.cluster || e.ServiceAccount == nil || len(e.Granted) == 0 {
		return
	}
	select {
	case c.uses.events <- e:
	default:
	}
}

func (u *uses) today() string { return u.now().UTC().Format(time.DateOnly) }

// seen is a use as a token has it.
type seen struct{ namespace, account, scope string }

// run looks up what is used here, and tells the others, until ctx ends.
func (u *uses) run(ctx context.Context, requestsIn func(namespace string) []kube.PolicyObject) {
	known := map[seen]bool{}
	forget := time.NewTicker(seenFor)
	defer forget.Stop()
	send := time.NewTicker(sendEvery)
	defer send.Stop()
	var unsent [][]byte
	for {
		select {
		case <-ctx.Done():
			return
		case <-forget.C:
			clear(known)
			u.forgetOld()
		case <-send.C:
			if n := min(len(unsent), maxBatch); n > 0 && u.send(ctx, unsent[:n]) {
				unsent = slices.Clone(unsent[n:])
			}
		case e := <-u.events:
			for _, scope := range e.Granted {
				s := seen{e.Namespace, e.ServiceAccount.Name, scope}
				if known[s] {
					continue
				}
				if len(known) < maxSeen {
					known[s] = true
				}
				for _, found := range find(requestsIn(s.namespace), s) {
					found.Day = u.today()
					if entry, isNew := u.note(found); isNew && u.others() != nil && len(unsent) < maxUnsent {
						unsent = append(unsent, entry)
					}
				}
			}
		}
	}
}

// find returns the repositories of the objects that asked for what was granted.
func find(objects []kube.PolicyObject, s seen) (found []use) {
	scope, err := registryauth.ParseScope(s.scope)
	if err != nil || scope.Type != "repository" {
		return nil
	}
	granted := action.Of(scope.Actions)
	for _, o := range objects {
		if o.Remembered == nil || o.Request.Err() != nil || !slices.Contains(o.Asks.ServiceAccounts, s.account) {
			continue
		}
		actions := make([]string, len(o.Asks.Actions))
		for i, name := range o.Asks.Actions {
			actions[i] = string(name)
		}
		if action.Of(actions).Intersect(granted) == 0 {
			continue
		}
		for _, repository := range o.Asks.Repositories {
			if pattern.Pattern(repository).Match(scope.Name, nil, new(int)) {
				found = append(found, use{UID: o.UID, Repository: repository})
			}
		}
	}
	return found
}

// note returns the use as an entry for others, and whether it was not known.
func (u *uses) note(n use) (entry []byte, isNew bool) {
	day := n.Day
	entry, err := json.Marshal(n)
	if err != nil {
		return nil, false
	}
	n.Day = ""
	u.mu.Lock()
	defer u.mu.Unlock()
	before, isKnown := u.days[n]
	if before >= day || !isKnown && len(u.days) >= maxKnown {
		return nil, false
	}
	u.days[n] = day
	return entry, true
}

func (u *uses) send(ctx context.Context, entries [][]byte) bool {
	shared := u.others()
	if shared == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, sharedLimit)
	defer cancel()
	return shared.AddUses(ctx, u.cluster, entries) == nil
}

// collect reads what the other replicas have told. They may have told anything: a day is
// one of the past, and is of use only if an object has the UID and the repository.
func (u *uses) collect(ctx context.Context) {
	shared := u.others()
	if shared == nil {
		return
	}
	for ctx.Err() == nil {
		reading, cancel := context.WithTimeout(ctx, sharedLimit)
		entries, last, err := shared.Uses(reading, u.cluster, u.last)
		cancel()
		if err != nil || last == u.last {
			return
		}
		u.last = last
		for _, entry := range entries {
			var n use
			if json.Unmarshal(entry, &n) != nil {
				continue
			}
			if day, err := time.Parse(time.DateOnly, n.Day); err == nil && day.Format(time.DateOnly) <= u.today() && n.Day >= u.oldest() {
				u.note(n)
			}
		}
	}
}

func (u *uses) oldest() string { return u.now().UTC().AddDate(0, 0, -daysKept).Format(time.DateOnly) }

// forgetOld drops what has been written long ago.
func (u *uses) forgetOld() {
	oldest := u.oldest()
	u.mu.Lock()
	defer u.mu.Unlock()
	for n, day := range u.days {
		if day < oldest {
			delete(u.days, n)
		}
	}
}

// fill says when the repositories of an object were used last, if that is later than what
// its status says. Whoever may write the status may have written a day to come, which no
// use would ever change: it is no later than today.
func (u *uses) fill(uid string, repositories []policyobjects.RepositoryStatus) {
	today := u.today()
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range repositories {
		r := &repositories[i]
		r.LastUsed = max(min(r.LastUsed, today), u.days[use{UID: uid, Repository: r.Repository}])
	}
}
