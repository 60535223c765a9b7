package replicatest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	// told is how long a revocation takes to every replica (docs/how-to/redis.md). On a busy machine that is tried again, but not so
	// often that those which replicas read every five seconds would be in time by chance.
	told      = time.Second
	toldTries = 10
)

// scenario is a fault, and what it may do.
type scenario struct {
	name string
	// Their programs live longer than the scenario: they belong to the test that the scenario is part of.
	begin, end func()
	// silent says that Redis answers no request, or refuses to write: the owner of a token that a replica has not seen is unknown.
	silent bool
	// breaks is how many requests may get no answer: those that a replica was working on when it died, and those that were sent to
	// it until the load balancer looked.
	breaks int
	// forgets says that Redis may lose what it was told in the last second before the fault.
	forgets bool
}

// phases are when a scenario was what. From noticed on, every replica knows of the fault, if it is one that they notice.
type phases struct{ before, during, noticed, after, end time.Time }

// run lets a fault happen under load, and judges every answer.
func (w *world) run(t *testing.T, s scenario, fleets ...*fleet) {
	t.Run(s.name, func(t *testing.T) {
		account := strings.ReplaceAll(s.name, " ", "-")
		for _, f := range fleets {
			f.load.introduce(t)
			f.revokeFor(t, "before-"+account)
			f.calm = f.failures(t)
		}
		p := phases{before: time.Now()}
		for _, f := range fleets {
			f.load.awaitAnswers(t, p.before, false)
			f.late = f.failures(t) > f.calm
		}
		p.during = time.Now()
		s.begin()
		if s.silent {
			for _, f := range fleets {
				f.awaitNoticed(t)
			}
		}
		p.noticed = time.Now()
		for _, f := range fleets {
			f.load.awaitAnswers(t, p.noticed, s.silent)
		}
		if s.end != nil {
			s.end()
		}
		ended := time.Now()
		p.after = awaitHealthy(t, fleets)
		for _, f := range fleets {
			took := f.revokeInTime(t, "after-"+account)
			w.report.note("%s, %s: healthy %v after the fault ended; then a revocation took %v to every replica",
				s.name, f.mode, p.after.Sub(ended).Round(time.Millisecond), took.Round(time.Millisecond))
		}
		for _, f := range fleets {
			f.load.awaitAnswers(t, p.after, false)
		}
		p.end = time.Now()
		for _, f := range fleets {
			testenv.Await(t, recoverLimit, "every pod of before has all its images", func() bool { return f.load.pulling(p.after) == 0 })
			f.judge(t, s, p)
		}
	})
}

// revokeInTime revokes ServiceAccounts until every replica learned of it in time, and returns how long that took.
func (f *fleet) revokeInTime(t *testing.T, account string) (took time.Duration) {
	t.Helper()
	for try := range toldTries {
		if took = f.revokeFor(t, fmt.Sprintf("%s-%d", account, try)); took <= told {
			return took
		}
	}
	t.Errorf("%s: a revocation took %v to every replica, want %v at most", f.mode, took, told)
	return took
}

// revokeFor revokes a ServiceAccount, whose requests are refused from then on, and returns how long it took to reach every replica.
func (f *fleet) revokeFor(t *testing.T, account string) time.Duration {
	t.Helper()
	token := f.issuer.Token(t, service, f.mode, account)
	testenv.Must(t, f.revoke(t, account))
	took := f.awaitRevoked(t, token)
	f.load.mu.Lock()
	defer f.load.mu.Unlock()
	f.load.revoked = append(f.load.revoked, token)
	return took
}

// awaitNoticed waits until every replica says that Redis is down. It stays ready, and no revocation is possible.
func (f *fleet) awaitNoticed(t *testing.T) {
	t.Helper()
	for _, replica := range f.replicas {
		testenv.Await(t, recoverLimit, "a replica says that Redis is down", func() bool {
			ready, healthy, text := health(t, replica)
			if !ready {
				t.Errorf("a replica is not ready: %s", text)
			}
			return !healthy && replica.Metric(t, "pullpass_redis_healthy") == 0
		})
	}
	begin := time.Now()
	if err := f.revoke(t, "nobody"); err == nil {
		t.Error("something was revoked")
	} else if took := time.Since(begin); took > slowest {
		t.Errorf("pullpass revoke failed after %v", took)
	}
}

// awaitHealthy waits until every replica has Redis, also when everything is answered that was asked before: a call that began
// before may fail later. It returns since when that is so.
func awaitHealthy(t *testing.T, fleets []*fleet) (since time.Time) {
	t.Helper()
	testenv.Await(t, recoverLimit, "every replica has Redis", func() bool {
		settled := !since.IsZero()
		for _, f := range fleets {
			settled = settled && !f.load.isAsking(since)
		}
		for _, f := range fleets {
			if !f.healthy(t) {
				since = time.Time{}
				return false
			}
		}
		if since.IsZero() {
			since = time.Now()
		}
		return settled
	})
	return since
}
