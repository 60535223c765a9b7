package replicatest

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"
)

const (
	// slowest bounds every answer, beyond what the machine takes for those that ask Redis nothing. An exchange asks Redis twice, for
	// half a second each (docs/how-to/redis.md).
	slowest = 2 * time.Second
	// usual bounds three of four answers when every replica knows that Redis does not answer, likewise: few wait for it. They do twice
	// the work of those that need nothing from it.
	usual = 250 * time.Millisecond
	// This share of responses may be a 503 at any time: on a busy machine half a second passes in which Redis does not run.
	busyOneIn = 50
	// shownFaults keeps what a fault of the product prints readable.
	shownFaults = 5
)

// judge judges what was answered since the last call.
func (f *fleet) judge(t *testing.T, s scenario, p phases) {
	t.Helper()
	answers, faults := f.load.take()
	alone := row{}
	for _, a := range answers {
		if a.kind == kindRevoked { // is refused before Redis is asked anything
			alone.latencies = append(alone.latencies, a.took)
		}
	}
	slices.Sort(alone.latencies)
	broken, busy := 0, 0
	for _, a := range answers {
		degraded := a.due.Before(p.after) && a.due.Add(a.took).After(p.during)
		wrong := f.wrong(a, s, p, degraded)
		if most := slowest + alone.quantile(100); wrong == "" && a.took > most {
			wrong = fmt.Sprintf("%s %v after the fault: %d after %v, want %v at most", a.kind, a.due.Sub(p.during), a.status, a.took, most)
		}
		switch {
		case wrong == "":
		case a.status == 0 && degraded && s.breaks > 0:
			broken++
		case a.status == http.StatusServiceUnavailable && f.mode == enforce && (a.kind == kindPull || a.kind == kindStolen):
			busy++
		default:
			faults = append(faults, wrong)
		}
	}
	if busy*busyOneIn > len(answers) {
		faults = append(faults, fmt.Sprintf("%d of %d answers were 503 while Redis was there", busy, len(answers)))
	}
	if broken > s.breaks {
		faults = append(faults, fmt.Sprintf("%d requests broke off, want %d at most", broken, s.breaks))
	}
	faults = append(faults, f.wrongLimits(answers, s, p, f.failures(t) > f.calm)...)
	for i, fault := range faults {
		if i == shownFaults {
			t.Errorf("and %d more", len(faults)-i)
			break
		}
		t.Errorf("%s: %s", f.mode, fault)
	}
	rows := f.report.add(f.mode, s.name, p, answers)
	if s.silent && f.mode == enforce && rows[1].statuses[http.StatusServiceUnavailable] == 0 {
		t.Errorf("%s: no response was 503 while the owners of new tokens were unknown", f.mode)
	}
	known := row{}
	for _, a := range answers {
		if (a.kind == kindPull || a.kind == kindKnown) && a.due.After(p.noticed) && a.due.Before(p.after) {
			known.latencies = append(known.latencies, a.took)
		}
	}
	slices.Sort(known.latencies)
	if took, most := known.quantile(75), usual+2*alone.quantile(75); s.silent && took > most {
		t.Errorf("%s: one in four answers took longer than %v while Redis did not answer, want %v", f.mode, took, most)
	}
}

// wrong says what is wrong with an answer.
func (f *fleet) wrong(a answer, s scenario, p phases, degraded bool) string {
	allowed := []int{http.StatusOK}
	enforced := f.mode == enforce
	unknown := s.silent && degraded && enforced
	switch a.kind {
	case kindRevoked:
		allowed = []int{http.StatusForbidden}
	case kindForged:
		allowed = []int{http.StatusUnauthorized}
	case kindGreedy:
		allowed = append(allowed, http.StatusTooManyRequests)
	case kindReplayed:
		if enforced {
			allowed = []int{http.StatusForbidden}
		}
	case kindStolen:
		if enforced {
			allowed = []int{http.StatusForbidden}
		}
		if s.forgets && a.first.After(p.during.Add(-time.Second)) && a.first.Before(p.during.Add(time.Second)) {
			allowed = append(allowed, http.StatusOK)
		}
		if unknown {
			allowed = append(allowed, http.StatusServiceUnavailable)
		}
	case kindPull:
		if unknown {
			allowed = append(allowed, http.StatusServiceUnavailable)
		}
	}
	own := []access{{"repository", f.mode + "/app", []string{"pull"}}}
	if a.kind == kindForeign {
		own = nil
	}
	at := a.due.Sub(p.during).Round(time.Millisecond)
	switch {
	case a.status == 0 || a.status == http.StatusOK && a.err != nil:
		return fmt.Sprintf("%s %v after the fault: %v", a.kind, at, a.err)
	case !slices.Contains(allowed, a.status):
		return fmt.Sprintf("%s %v after the fault: %d, want one of %v", a.kind, at, a.status, allowed)
	case a.status == http.StatusOK && !slices.EqualFunc(a.access, own, func(a, b access) bool {
		return a.Type == b.Type && a.Name == b.Name && slices.Equal(a.Actions, b.Actions)
	}):
		return fmt.Sprintf("%s %v after the fault: granted %v, want %v", a.kind, at, a.access, own)
	}
	return ""
}

// wrongLimits says what is wrong with how often the greedy one was granted something: as all replicas together allow, and when
// Redis did not answer, as each of them does.
func (f *fleet) wrongLimits(answers []answer, s scenario, p phases, failed bool) (faults []string) {
	count := func(from, until time.Time) (asked, granted float64) {
		for _, a := range answers {
			if a.kind != kindGreedy || a.due.Before(from) || !a.due.Before(until) {
				continue
			}
			asked++
			if a.status == http.StatusOK {
				granted++
			}
		}
		return asked, granted
	}
	bucket := func(d time.Duration) float64 {
		return float64(perServiceAccount.Burst) + perServiceAccount.Rate*(d+time.Second).Seconds()
	}
	_, before := count(p.before, p.during)
	if most := bucket(p.during.Sub(p.before)); before > most && !f.late {
		faults = append(faults, fmt.Sprintf("the limit let %.0f pass before the fault, want %.0f at most", before, most))
	}
	asked, during := count(p.during, p.after)
	most := bucket(p.after.Sub(p.during))
	if s.silent || failed {
		most *= 1 + replicas
	}
	least := min(asked, perServiceAccount.Rate*p.after.Sub(p.during).Seconds()) / 2
	if during > most || during < least {
		faults = append(faults, fmt.Sprintf("the limits let %.0f pass during the fault, want %.0f to %.0f", during, least, most))
	}
	return faults
}
