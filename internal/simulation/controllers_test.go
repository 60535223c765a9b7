package simulation

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pullpass/pullpass/internal/test/kubetest"
)

const (
	// oneLeads is how long two may think that they lead. They should never; requests on their way are not counted.
	oneLeads = time.Second
	// settles is how long controllers need for what is due after a fault: 30 seconds for a Lease without
	// renewals, a minute for watches, and five minutes between attempts.
	settles = 8 * time.Minute
	// probes is the interval between looks at a Secret that others may change.
	probes = 10 * time.Minute
)

// ledger is what hosts saw and did, for the oracle. It is safe for concurrent use.
type ledger struct {
	fault atomic.Pointer[string] // the first one

	mu       sync.Mutex
	attempts []attempt
	statuses map[string]time.Time // when the status of CLUSTER/NAME was written last
}

// attempt is a write to a Secret, or a request of a token for it.
type attempt struct {
	cluster            *cluster
	namespace, account string
	at                 time.Time
}

// takeover is the moment at which a Lease got its holder.
type takeover struct {
	holder string
	at     time.Time
}

func (l *ledger) blame(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	l.fault.CompareAndSwap(nil, &text)
}

// writes holds what a keeper sends to the Lease.
func (l *ledger) writes(k *keeper, what string) {
	held := k.cluster.lease.Load()
	if held != nil && held.holder != "" && held.holder != k.host && time.Since(held.at) > oneLeads {
		l.blame("%s sends %s, and %s has the Lease since %s", k.host, what, held.holder, held.at)
	}
}

func (c *cluster) attempted(namespace, account string) {
	c.world.ledger.mu.Lock()
	defer c.world.ledger.mu.Unlock()
	c.world.ledger.attempts = append(c.world.ledger.attempts, attempt{c, namespace, account, time.Now()})
}

func (c *cluster) wroteStatus(name string) {
	c.world.ledger.mu.Lock()
	defer c.world.ledger.mu.Unlock()
	c.world.ledger.statuses[c.name+"/"+name] = time.Now()
}

// countLeaders holds the replicas that lead to the Lease of the status of policies.
func (c *cluster) countLeaders() {
	var lead []string
	for _, host := range *c.world.alive.Load() {
		a := c.world.get("http://"+host+":81/metrics", "10.9.0.2", func(*http.Request) {})
		if strings.Contains(a.body, "\npullpass_object_status_leader{cluster=\""+c.name+"\"} 1\n") && !c.world.net.isDead(host) {
			lead = append(lead, host)
		}
	}
	if len(lead) > 1 {
		c.world.ledger.blame("%s write the status of policies in %s", lead, c.name)
	}
}

// shake notes that controllers were disturbed.
func (w *world) shake() { w.shaken = time.Now() }

// quietFor returns for how long nothing has disturbed the controllers of a cluster.
func (w *world) quietFor(c *cluster) time.Duration {
	quiet := time.Since(w.shaken)
	for _, s := range c.stale {
		if s.to.IsZero() {
			return 0
		}
		quiet = min(quiet, time.Since(s.to))
	}
	for _, k := range w.keepers {
		if k.cluster == c {
			quiet = min(quiet, w.upFor(k.host, "api-"+c.name))
		}
		if k.doomed {
			return 0
		}
	}
	for _, r := range w.replicas {
		quiet = min(quiet, w.upFor(r.host, "api-"+c.name))
		if r.doomed {
			return 0
		}
	}
	return quiet
}

// judgeControllers fails the run for each forbidden write of a controller, and for each one that is overdue.
func (w *world) judgeControllers() {
	if fault := w.ledger.fault.Load(); fault != nil {
		w.fail("%s", *fault)
	}
	w.ledger.mu.Lock()
	attempts := w.ledger.attempts
	w.ledger.attempts = nil
	w.ledger.mu.Unlock()
	for _, a := range attempts {
		w.judgeAttempt(a)
	}
	for _, c := range w.clusters {
		if w.quietFor(c) < settles {
			continue
		}
		for _, wd := range c.wards {
			w.judgeWard(c, wd)
		}
		for name, p := range c.objects.now() {
			w.judgeStatus(c, name, p)
		}
	}
}

// judgeAttempt says whether a keeper could think that a ServiceAccount has opted in.
func (w *world) judgeAttempt(a attempt) {
	i := slices.IndexFunc(a.cluster.wards, func(wd *ward) bool { return wd.namespace == a.namespace && wd.name == a.account })
	if i < 0 {
		w.fail("a Secret of %s/%s was written", a.namespace, a.account)
		return
	}
	since := w.began
	if w.quietFor(a.cluster) > settles {
		since = a.at.Add(-time.Minute)
	}
	if !slices.Contains(a.cluster.wards[i].wanted.since(since), true) {
		w.fail("a Secret of %s/%s was written in %s, and it has not opted in", a.namespace, a.account, a.cluster.name)
	}
	w.counts["Secrets of keepers and tokens for them"]++
}

// judgeWard says which Secret a ServiceAccount must have now.
func (w *world) judgeWard(c *cluster, wd *ward) {
	if wd.foreign || time.Since(wd.meddled) < probes+settles || slices.Contains(wd.wanted.since(time.Now().Add(-settles)), false) {
		return
	}
	where := fmt.Sprintf("%s %s/%s", c.name, wd.namespace, wd.name)
	o := c.api.Object("secrets", wd.namespace, wd.secret())
	t := tokenIn(o)
	if t == nil || ownerOf(o) != (owner{wd.name, wd.uid}) {
		w.fail("%s has no Secret: %v", where, o)
		return
	}
	left := time.Until(time.Unix(t.Expiry, 0))
	isPublished := func(keys []string) bool { return slices.Contains(keys, t.KeyID) }
	switch quiet := w.quietFor(c); {
	case left <= 0, quiet > 40*time.Minute && left < 20*time.Minute:
		w.fail("the token of %s has %s left", where, left)
	case !slices.ContainsFunc(c.keys.since(time.Now().Add(-settles)), isPublished):
		w.fail("the token of %s was signed with %s, which is not published", where, t.KeyID)
	}
	w.counts["Secrets that had to be there"]++
}

// judgeStatus says which status an AccessPolicy must have now.
func (w *world) judgeStatus(c *cluster, name string, _ policy) {
	unchanged := time.Since(c.edited[name])
	if unchanged < settles {
		return
	}
	o := c.api.Object("accesspolicies", "", name)
	status, _ := o["status"].(kubetest.Object)
	conditions, _ := status["conditions"].([]any)
	accepted := len(conditions) == 1 && fmt.Sprint(conditions[0].(kubetest.Object)["type"], conditions[0].(kubetest.Object)["status"]) == "AcceptedTrue"
	if generation := o["metadata"].(kubetest.Object)["generation"]; fmt.Sprint(status["observedGeneration"]) != fmt.Sprint(generation) || !accepted {
		w.fail("the status of %s in %s is %v, and its generation %v", name, c.name, status, generation)
	}
	w.ledger.mu.Lock()
	written := w.ledger.statuses[c.name+"/"+name]
	w.ledger.mu.Unlock()
	if ago := time.Since(written); ago < min(unchanged, w.quietFor(c))-settles {
		w.fail("the status of %s in %s was written again %s ago, and nothing changed for %s", name, c.name, ago, unchanged)
	}
	w.counts["status that had to be there"]++
}
