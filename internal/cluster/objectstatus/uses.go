package objectstatus

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pullpass/pullpass/internal/cluster/kube"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/policy/policyobjects"
	"github.com/pullpass/pullpass/internal/registryauth"
)

const (
	maxEvents   = 1024    // in the queue; further ones are dropped, because the next use reports the same
	maxSeen     = 50_000  // uses that were looked up within seenFor
	maxKnown    = 200_000 // days of repositories
	maxBatch    = 1000    // entries in one message
	maxUnsent   = 10_000
	sendEvery   = 5 * time.Second
	seenFor     = 10 * time.Minute
	daysKept    = 3
	sharedLimit = 5 * time.Second
)

// Shared exchanges entries between the replicas, in the order in which they were added. An error
// means that the result is not known. A lost use is reported again on the next day of use.
type Shared interface {
	AddUses(ctx context.Context, cluster string, entries [][]byte) error
	// Uses returns the entries after a given entry, and the position for the next call.
	Uses(ctx context.Context, cluster, after string) (entries [][]byte, last string, err error)
}

// use is the use of a repository of a RepositoryAccess on one day.
type use struct {
	UID        string `json:"uid"`
	Repository string `json:"repository"` // as in the spec
	Day        string `json:"day"`        // YYYY-MM-DD, UTC
}

// uses knows the day on which repositories were used last. Record never waits.
type uses struct {
	cluster string
	shared  atomic.Pointer[Shared] // of the replicas; nil or a pointer to nil: there is only one replica
	now     func() time.Time
	events  chan *exchange.Event

	last string // last entry read from shared; belongs to the leader

	mu   sync.Mutex
	days map[use]string // by use, without Day
}

func newUses(c Config) *uses {
	return &uses{cluster: c.Cluster, now: c.Now, events: make(chan *exchange.Event, maxEvents), days: map[use]string{}}
}

// others returns the exchange with the other replicas. It is nil if there is only one replica.
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

// seen is a use as a token describes it.
type seen struct{ namespace, account, scope string }

// run looks up the local uses and reports them to the other replicas, until ctx ends.
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

// find returns the repositories of the objects that requested a granted scope.
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

// note returns the use as an entry for other replicas, and reports whether it was new.
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

// collect reads the entries of the other replicas. They are not trusted: a day must not be later
// than today, and an entry has an effect only if an object has its UID and repository.
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

// forgetOld drops old days that are already written.
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

// fill sets the time of the last use of an object's repositories, if it is later than the time in
// the status. A writer of the status may have set a future day, which no use would ever replace. So
// the result is today at the latest.
func (u *uses) fill(uid string, repositories []policyobjects.RepositoryStatus) {
	today := u.today()
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range repositories {
		r := &repositories[i]
		r.LastUsed = max(min(r.LastUsed, today), u.days[use{UID: uid, Repository: r.Repository}])
	}
}
