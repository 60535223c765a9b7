package chaostest

import (
	"fmt"
	"net/http"
	"slices"
	"time"
)

// The documented delays, with room for a busy machine.
const (
	filesLag   = 10 * time.Second  // files are read a second after they change
	revokedLag = 7 * time.Second   // within a second, or five if a message is lost
	settle     = 10 * time.Second  // Redis is as before three seconds after a fault, and calls that hang end before
	newKeyLag  = 30 * time.Second  // a token of a new key makes Pullpass ask, twelve seconds after the last time at most
	oldKeyLag  = 320 * time.Second // Pullpass asks every five minutes
	startLag   = 20 * time.Second
	leeway     = time.Minute // of nbf
	edge       = 5 * time.Second
	stalled    = 200 * time.Millisecond
)

// history is a fact that changes: each value counts from its time on.
type history[T any] []dated[T]

type dated[T any] struct {
	at    time.Time
	value T
}

func (h *history[T]) set(value T) { *h = append(*h, dated[T]{time.Now(), value}) }

func (h history[T]) now() T { return h[len(h)-1].value }

// between returns the values that counted at some time from one to the other.
func (h history[T]) between(from, to time.Time) (values []T) {
	for i, d := range h {
		if d.at.After(to) {
			break
		}
		if i+1 < len(h) && h[i+1].at.Before(from) {
			continue
		}
		values = append(values, d.value)
	}
	return values
}

// heldSince reports whether a fact was true all the time from one to the other.
func heldSince(h history[bool], from, to time.Time) bool {
	return len(h) > 0 && !h[0].at.After(from) && !slices.Contains(h.between(from, to), false)
}

// policy says whose namespaces may pull below their own name, and who is denied.
type policy struct{ allow, deny []string }

func (p policy) allows(namespace string) bool {
	return slices.Contains(p.allow, namespace) && !slices.Contains(p.deny, namespace)
}

// verdict is what the oracle says of a request.
type verdict struct {
	mayGrant   bool
	mustGrant  bool // a refusal is wrong
	mustAnswer bool // 503 is wrong, and no answer
	why        string
}

func (v *verdict) never(why string) { v.mayGrant, v.mustGrant, v.why = false, false, why }

// judge says which answers may be given to a request that was under way from one time to the other.
func (w *world) judge(r *replica, q request, from, to time.Time) verdict {
	v := verdict{mayGrant: true, mustGrant: true, mustAnswer: true}
	if q.flaw != "" {
		v.never(q.flaw)
	}

	// Its times, by the replica's clock.
	early, late := slices.Min(r.clock.between(from.Add(-edge), to)), slices.Max(r.clock.between(from.Add(-edge), to))
	if q.token != nil {
		if to.Add(late + edge).Before(q.token.issued.Add(-leeway)) {
			v.never("not valid yet")
		}
		if from.Add(early - edge).After(q.token.until) {
			v.never("expired")
		}
		v.mustGrant = v.mustGrant && from.Add(early-edge).After(q.token.issued) && to.Add(late+edge).Before(q.token.until)
	}
	// Certificates of the issuer and of the signing key are not valid before they were made, nor after their end.
	v.mustAnswer = v.mustAnswer && early == 0 && late == 0

	// The policy.
	since := from.Add(-filesLag)
	for _, s := range slices.Backward(r.spoilt) {
		if (s.to.IsZero() || s.to.After(since)) && s.from.Before(to) {
			since = s.from.Add(-filesLag)
		}
	}
	for _, s := range slices.Backward(r.frozen) {
		if (s.to.IsZero() || s.to.After(since)) && s.from.Before(to) {
			since = s.from.Add(-filesLag)
		}
	}
	if q.live {
		w.judgeLive(r, q, from, to, &v)
	} else if q.namespace != "" {
		may, must := false, true
		for _, p := range r.policy.between(since, to) {
			allowed := p.allows(q.namespace) && q.repository == q.namespace
			may, must = may || allowed, must && allowed
		}
		if !may {
			v.never("not allowed")
		}
		v.mustGrant = v.mustGrant && must
	}

	// Revocations.
	redis := heldSince(r.redis, from.Add(-revokedLag-settle), to)
	for _, d := range w.revoked {
		if q.token == nil || d.account != q.token.account || d.tried.After(to) {
			continue
		}
		v.mustGrant = false
		lost := w.redisLost.After(d.tried.Add(-edge))
		switch {
		case d.confirmed.IsZero(): // it may be in Redis
		case before(r.refusedAccount[d.account], from):
			v.never("revoked, as this replica said before")
		case d.confirmed.Before(r.started) && !lost:
			v.never("revoked before this process began, and it grants nothing until it has read the revocations")
		case d.confirmed.Before(from.Add(-revokedLag)) && redis && !(lost && r.born.Add(startLag).After(w.redisLost)):
			v.never("revoked")
		}
	}

	// Its owner.
	knows := q.token != nil && before(q.token.known[r], from) && q.token.known[r].After(r.started) // by this process
	if q.stolen && r.number != auditing && (knows || !w.mayForget(q.token, to)) {
		v.never("another caller owns it")
	}
	v.mustGrant = v.mustGrant && (q.token == nil || !q.token.contested)
	v.mustAnswer = v.mustAnswer && (redis || knows || r.number == auditing && before(r.listed, from))

	// Its key.
	if q.key != noKey {
		asked := w.issuerHeld(r, from.Add(-newKeyLag), to)
		firstKey := q.key == 0 && heldSince(w.issuerUp, r.started, r.born.Add(startLag))
		knowsKey := before(r.knownKeys[q.key], from) || firstKey || asked && w.published[q.key].Before(from.Add(-newKeyLag))
		if withdrawn := w.withdrawn[q.key]; !withdrawn.IsZero() && withdrawn.Before(to) {
			v.mustGrant, knowsKey = false, asked
			if withdrawn.Before(from.Add(-oldKeyLag)) && w.issuerHeld(r, from.Add(-oldKeyLag), to) {
				v.never("its key was withdrawn")
			}
			for key, since := range r.knownKeys {
				if key >= q.key+2 && since.Before(from) {
					v.never("its key was withdrawn, and this replica has a later one")
				}
			}
		}
		v.mustGrant = v.mustGrant && knowsKey
		v.mustAnswer = v.mustAnswer && knowsKey
	}
	v.mustAnswer = v.mustAnswer && from.Sub(r.born) > startLag && !within(r.frozen, from.Add(-settle), to) && !within(w.stalls, from.Add(-time.Second), to)
	return v
}

// mayForget reports whether Redis may have forgotten the owner of a token. It lost all since the token was issued: a replica that
// knows the owner does not write it again. Or the token is expired, and a replica whose clock is behind takes it for valid.
func (w *world) mayForget(tok *token, at time.Time) bool {
	return w.redisLost.After(tok.issued.Add(-edge)) || at.After(tok.until)
}

// issuerHeld reports whether the replica could ask the issuer all the time.
func (w *world) issuerHeld(r *replica, from, to time.Time) bool {
	return heldSince(w.issuerUp, from, to) && r.born.Before(from) && !within(r.frozen, from, to) &&
		!slices.ContainsFunc(r.clock.between(from, to), func(ahead time.Duration) bool { return ahead != 0 })
}

func before(since, from time.Time) bool { return !since.IsZero() && since.Before(from) }

// within reports whether one of the spans has a part from one time to the other.
func within(spans []span, from, to time.Time) bool {
	return slices.ContainsFunc(spans, func(s span) bool {
		return s.from.Before(to) && (s.to.IsZero() || s.to.After(from))
	})
}

// wrong says what is wrong with an answer; empty: nothing.
func (v verdict) wrong(q request, a answer, alive bool) string {
	switch {
	case a.granted && !v.mayGrant:
		return "WRONG GRANT: " + v.why
	case a.fault != "":
		return a.fault
	case a.err != nil:
		if alive && v.mustAnswer {
			return "no answer: " + a.err.Error()
		}
	case a.status == http.StatusServiceUnavailable:
		if v.mustAnswer {
			return "503 while all that it needs is there"
		}
	case a.granted:
	case a.status == http.StatusOK || a.status == http.StatusUnauthorized || a.status == http.StatusForbidden:
		if v.mustGrant {
			return fmt.Sprintf("WRONG REFUSAL: %d", a.status)
		}
	default:
		return fmt.Sprintf("status %d", a.status)
	}
	return ""
}
