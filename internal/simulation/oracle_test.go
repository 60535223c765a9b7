package simulation

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// history is a fact that changes: each value counts from its time on.
type history[T any] struct {
	times  []time.Time
	values []T
}

func (h *history[T]) set(value T) {
	h.times, h.values = append(h.times, time.Now()), append(h.values, value)
}

func (h *history[T]) now() T { return h.values[len(h.values)-1] }

// since returns the values that counted at a time, or later.
func (h *history[T]) since(at time.Time) []T {
	first := 0
	for i, t := range h.times {
		if t.Before(at) {
			first = i
		}
	}
	return h.values[first:]
}

// policy has the few forms of a policy that the oracle understands.
type policy struct {
	rules []rule
	deny  []denial
}

// rule lets web of some namespaces pull from NAME/**, or {namespace}/**; with asked, only what a
// RepositoryAccess of the namespace asks for.
type rule struct {
	namespaces []string
	repository string
	asked      bool
}

// requests are the RepositoryAccess objects of a cluster: the namespace of each, and NAME/** for web.
type requests map[string]struct{ namespace, repository string }

func (all requests) ask(who *pod, repository string) bool {
	for _, r := range all {
		if r.namespace == who.namespace && strings.HasPrefix(repository, strings.TrimSuffix(r.repository, "**")) {
			return true
		}
	}
	return false
}

// denial is for a namespace, or for the pods of a node.
type denial struct{ namespace, node string }

func (p policy) denies(who *pod) bool {
	return slices.ContainsFunc(p.deny, func(d denial) bool {
		return d.namespace != "" && d.namespace == who.namespace || d.node != "" && d.node == fmt.Sprint("node-", who.node)
	})
}

// allows is for the rules that need no request, or for those that do.
func (p policy) allows(who *pod, repository string, asked bool) bool {
	return slices.ContainsFunc(p.rules, func(r rule) bool {
		if r.asked != asked {
			return false
		}
		below := strings.Replace(strings.TrimSuffix(r.repository, "**"), "{namespace}", who.namespace, 1)
		return slices.Contains(r.namespaces, who.namespace) && strings.HasPrefix(repository, below)
	})
}

// body is the policy in YAML, which is JSON here.
func (p policy) body(indent string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%srules:\n", indent)
	for i, r := range p.rules {
		fmt.Fprintf(&b, "%s- {name: rule-%d, subjects: [{namespaces: [%s], serviceAccounts: [web]}], requests: %t, allow: [{repositories: [%q], actions: [pull]}]}\n", indent, i, strings.Join(r.namespaces, ", "), r.asked, r.repository)
	}
	for i, d := range p.deny {
		if i == 0 {
			fmt.Fprintf(&b, "%sdeny:\n", indent)
		}
		kind, name := "namespaces", d.namespace
		if d.node != "" {
			kind, name = "nodes", d.node
		}
		fmt.Fprintf(&b, "%s- {name: denial-%d, subjects: [{%s: [%s]}]}\n", indent, i, kind, name)
	}
	return b.String()
}

func (p policy) file() string {
	return "apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicy\n" + p.body("")
}

// spec is the policy as the spec of an object.
func (p policy) spec() map[string]any {
	rules, deny := []any{}, []any{}
	for i, r := range p.rules {
		rules = append(rules, map[string]any{
			"name":     fmt.Sprint("rule-", i),
			"requests": r.asked,
			"subjects": []any{map[string]any{"namespaces": list(r.namespaces), "serviceAccounts": list([]string{"web"})}},
			"allow":    []any{map[string]any{"repositories": list([]string{r.repository}), "actions": list([]string{"pull"})}},
		})
	}
	for i, d := range p.deny {
		kind, name := "namespaces", d.namespace
		if d.node != "" {
			kind, name = "nodes", d.node
		}
		deny = append(deny, map[string]any{"name": fmt.Sprint("denial-", i), "subjects": []any{map[string]any{kind: list([]string{name})}}})
	}
	spec := map[string]any{}
	if len(rules) > 0 {
		spec["rules"] = rules
	}
	if len(deny) > 0 {
		spec["deny"] = deny
	}
	return spec
}

func list(from []string) []any {
	all := []any{}
	for _, s := range from {
		all = append(all, s)
	}
	return all
}

// revocation is one that an operator tried. Until Redis confirms it, it may or may not count.
type revocation struct {
	kind, name, cluster, namespace string
	from, until                    time.Time
	confirmed                      time.Time         // zero: Redis did not say so
	removed, gone                  time.Time         // when the removal was tried, and confirmed; zero: never
	doubtful                       time.Time         // since then Redis may have lost it
	unread                         map[*replica]bool // that had perhaps not read it when Redis lost it
}

// mayBeUnknownTo reports whether Redis may have lost the revocation before the replica read it.
func (r *revocation) mayBeUnknownTo(one *replica) bool {
	return r.unread[one] || !r.doubtful.IsZero() && one.born.Add(ofRevocations.settle).After(r.doubtful)
}

func (r *revocation) means(t *token) bool {
	switch r.kind {
	case "token":
		return r.name == t.id
	case "pod":
		return r.name == t.uid && !t.isSecret
	case "account":
		return r.cluster == t.cluster.name && r.namespace == t.namespace
	}
	return r.cluster == t.cluster.name && r.name == fmt.Sprint("node-", t.node)
}

// freshness is the documented delay between a change and a replica's knowledge of it.
type freshness struct {
	lag    time.Duration // while the link works
	settle time.Duration // how long the link must have worked for that
}

var (
	// Files are read once a minute.
	ofFiles = freshness{62 * time.Second, 0}
	// A configuration waits 30 seconds until all that worked works with it. If it does not, it is tried again
	// within 16 minutes.
	ofConfiguration = freshness{100 * time.Second, 20 * time.Minute}
	// A broken connection is noticed after 45 seconds, and opened again within 10.
	ofWatches = freshness{2 * time.Second, time.Minute}
	// Within a second, or five if a message is lost; normal three seconds after a fault.
	ofRevocations = freshness{6 * time.Second, 9 * time.Second}
	// A review counts for a minute by the replica's clock, which may be set back by 40 seconds.
	ofReviews = freshness{110 * time.Second, 0}
	// Every five minutes; a fetch takes ten seconds at most.
	ofKeys = freshness{310 * time.Second, 310 * time.Second}
)

// knows returns the last time of which a replica knows everything that a host said before. It is zero if there
// is none.
func (w *world) knows(r *replica, host string, f freshness) time.Time {
	end := time.Now()
	changes := w.health[link{r.host, host}]
	for i := len(changes) - 1; i >= 0; i-- {
		if changes[i].up && end.Sub(changes[i].at) >= f.settle {
			return end.Add(-f.lag)
		}
		end = changes[i].at
	}
	return time.Time{}
}

// heard returns the last time of which a replica knows all objects of a cluster.
func (w *world) heard(r *replica, c *cluster) time.Time {
	at := w.knows(r, "api-"+c.name, ofWatches)
	for _, s := range slices.Backward(c.stale) {
		if !at.IsZero() && s.from.Before(at) && (s.to.IsZero() || s.to.After(at)) {
			at = s.from
		}
	}
	return at
}

// hasRead returns a time at which a replica has read its policy file, or later.
func (r *replica) hasRead() time.Time {
	at := time.Now().Add(-ofFiles.lag)
	for _, s := range slices.Backward(r.spoilt) {
		if s.to.After(at) {
			at = s.from.Add(-ofFiles.lag)
		}
	}
	return at
}

// neverHeard reports whether nothing of a host can have reached a replica.
func (w *world) neverHeard(r *replica, host string) bool {
	return !slices.ContainsFunc(w.health[link{r.host, host}], func(c change) bool { return !c.silent })
}

// upFor returns how long a link has worked, or 0.
func (w *world) upFor(from, host string) time.Duration {
	changes := w.health[link{from, host}]
	if last := changes[len(changes)-1]; last.up {
		return time.Since(last.at)
	}
	return 0
}

// silentFor returns for how long nothing has passed through a link.
func (w *world) silentFor(r *replica, host string) (silent time.Duration) {
	for _, c := range slices.Backward(w.health[link{r.host, host}]) {
		if !c.silent {
			break
		}
		silent = time.Since(c.at)
	}
	return silent
}

// verdict is what the oracle says of a request, from what the replica may know.
type verdict struct {
	mayBeValid  bool // the identity may be accepted
	mustBeValid bool // it must not be refused: an answer is missing at most
	mustAnswer  bool // and no answer is missing
	may, must   map[string]bool
	why         string // it cannot be accepted, or must
}

// judge returns the answers that a replica may give now to a token from an address.
func (w *world) judge(r *replica, t *token, address string, repositories []string) verdict {
	now := time.Now()
	c := t.cluster
	v := verdict{mayBeValid: true, mustBeValid: true, mustAnswer: true, may: map[string]bool{}, must: map[string]bool{}}
	never := func(why string) {
		v.mayBeValid, v.mustBeValid = false, false
		v.why = why
	}
	doubt := func(holds bool) { v.mustBeValid = v.mustBeValid && holds }
	answer := func(holds bool) { v.mustAnswer = v.mustAnswer && holds }

	// The token itself.
	if t.flaw != "" {
		never(t.flaw)
		return v
	}
	clock := r.clock.now()
	if !clock.Before(t.until) {
		never("expired")
	}
	if clock.Before(t.from.Add(-time.Minute)) {
		never("not valid yet")
	}

	// Its lifetime.
	configured := now
	for _, need := range w.needs() {
		if at := w.knows(r, need, ofConfiguration); at.Before(configured) {
			configured = at
		}
	}
	if t.until.Sub(t.from) > slices.Max(r.longest.since(configured)) {
		never("it lives too long")
	}
	doubt(t.until.Sub(t.from) <= slices.Min(r.longest.since(configured)))

	// Its key.
	issuer := "issuer-" + c.name
	known := w.knows(r, issuer, ofKeys)
	published := c.keys.since(later(known, w.began))
	has := func(keys []string) bool { return slices.Contains(keys, t.key) }
	if !slices.ContainsFunc(published, has) {
		never("its key was withdrawn")
	}
	if w.silentFor(r, issuer) > maxKeyAge+time.Minute {
		v.mayBeValid = false
		v.why = "the keys are too old"
	}
	doubt(!slices.ContainsFunc(published, func(keys []string) bool { return !has(keys) }))
	answer(!known.IsZero() && now.Sub(known) < maxKeyAge-10*time.Minute)

	// Its objects.
	api := "api-" + c.name
	heard := w.heard(r, c)
	if t.isSecret {
		w.judgeSecretToken(r, t, &v)
	} else if !t.deleted.IsZero() {
		if !heard.IsZero() && t.deleted.Before(heard) {
			never("its pod is gone")
		}
		doubt(false)
	}
	answer(!t.isSecret && !heard.IsZero() && t.created.Before(heard) || w.upFor(r.host, api) > ofWatches.settle)

	// Revocations.
	w.judgeRevocations(r, t, &v)

	// Its first caller.
	if t.owner != "" && t.owner != address && !t.isSecret {
		never("another caller owns it")
	}
	for other := range t.tried {
		doubt(other == address || t.isSecret)
	}
	answer(w.upFor(r.host, "redis") > 5*time.Second || t.known[r])

	// Its repositories.
	files := r.policy.since(r.hasRead())
	objects, asking := c.objects.since(later(heard, w.began)), c.requests.since(later(heard, w.began))
	mayBeDenied, mustBeDenied := false, true
	for _, file := range files {
		for _, all := range objects {
			isDenied := file.denies(t.pod)
			for _, p := range all {
				isDenied = isDenied || p.denies(t.pod)
			}
			mayBeDenied, mustBeDenied = mayBeDenied || isDenied, mustBeDenied && isDenied
		}
	}
	if mustBeDenied {
		never("denied")
	}
	doubt(!mayBeDenied)
	stale := time.Since(later(heard, w.began)) // objects count for a day
	for _, repository := range repositories {
		v.must[repository] = true
		mayBeAsked := slices.ContainsFunc(asking, func(r requests) bool { return r.ask(t.pod, repository) })
		mustBeAsked := !slices.ContainsFunc(asking, func(r requests) bool { return !r.ask(t.pod, repository) })
		for _, file := range files {
			for _, all := range objects {
				byFile, byObject, ifAsked := file.allows(t.pod, repository, false), false, file.allows(t.pod, repository, true)
				for _, p := range all {
					byObject = byObject || p.allows(t.pod, repository, false)
					ifAsked = ifAsked || p.allows(t.pod, repository, true)
				}
				within := !strings.HasPrefix(repository, "elsewhere/")
				mayObject := (byObject || ifAsked && mayBeAsked) && within && w.silentFor(r, api) < 24*time.Hour+time.Minute
				mustObject := (byObject || ifAsked && mustBeAsked) && within && stale < 23*time.Hour
				v.may[repository] = v.may[repository] || byFile || mayObject
				v.must[repository] = v.must[repository] && (byFile || mustObject)
			}
		}
	}
	answer(now.Sub(r.born) > 15*time.Second)
	return v
}

// judgeSecretToken is for tokens that any node may present, as long as their Secret exists.
func (w *world) judgeSecretToken(r *replica, t *token, v *verdict) {
	switch {
	case !slices.Contains(secretNamespaces, t.namespace):
		v.mayBeValid, v.mustBeValid, v.why = false, false, "its namespace may not pull with Secrets"
	case !t.deleted.IsZero():
		v.mustBeValid = false
		if time.Since(t.deleted) > ofReviews.lag {
			v.mayBeValid, v.why = false, "its Secret is gone"
		}
	}
}

// judgeRevocations is for the token endpoint and the gateway.
func (w *world) judgeRevocations(r *replica, t *token, v *verdict) {
	read := w.knows(r, "redis", ofRevocations)
	if w.neverHeard(r, "redis") {
		v.mayBeValid, v.why = false, "the replica never read the revocations"
	}
	for _, d := range w.denied {
		now, clock := time.Now(), r.clock.now()
		if !d.means(t) || !now.Before(d.until) && !clock.Before(d.until) {
			continue
		}
		v.mustBeValid = v.mustBeValid && !d.gone.IsZero() && d.gone.Before(read)
		if now.Before(d.until) && clock.Before(d.until) && !d.confirmed.IsZero() && d.confirmed.Before(read) && d.removed.IsZero() && !d.mayBeUnknownTo(r) {
			v.mayBeValid, v.why = false, "it is revoked"
		}
	}
	v.mustAnswer = v.mustAnswer && !read.IsZero() && !r.doomed
}

// leeway is how long after its end a registry of distribution accepts a token, and the gateway.
const leeway = time.Minute

// judgePull says what the gateway of a replica may answer to an issued token, now.
func (w *world) judgePull(r *replica, i issued, repository string) verdict {
	now := time.Now()
	clock := r.clock.now() // distribution judges by the time, and the gateway remembers that by its clock
	early, late := earlier(now, clock), later(now, clock)
	v := verdict{mayBeValid: true, mustBeValid: late.Before(i.until), mustAnswer: w.upFor(r.host, upstream) > 20*time.Second && now.Sub(r.born) > 15*time.Second}
	switch {
	case i.elsewhere:
		v.mayBeValid, v.why = false, "its token is for the registry"
	case !slices.Contains(i.repositories, repository):
		v.mayBeValid, v.why = false, "its token is for others"
	case !early.Before(i.until.Add(leeway)):
		v.mayBeValid, v.why = false, "its token expired"
	}
	w.judgeRevocations(r, i.token, &v)
	v.mustBeValid = v.mustBeValid && v.mayBeValid
	return v
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
