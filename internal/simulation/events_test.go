package simulation

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pullpass/pullpass/internal/state"
	"github.com/pullpass/pullpass/internal/test/kubetest"
)

// event is a kind of step.
type event struct {
	name   string
	weight int
	do     func(w *world)
}

// kinds are the steps. Those of trouble come only during half of the hours, so that the others show
// what must work.
var kinds = []event{
	{"pod starts", 60, (*world).podStarts},
	{"pod ends", 40, (*world).podEnds},
	{"a Secret gets a token", 15, (*world).secretFilled},
	{"token is issued", 60, (*world).tokenIssued},
	{"bad token is made", 15, (*world).tokenFlawed},
	{"all pods of an account end", 1, (*world).accountEnds},
	{"key rotates", 4, (*world).keyRotates},
	{"key is withdrawn", 2, (*world).keyWithdrawn},
	{"issuer's clock jumps", 2, (*world).issuerClock},
	{"Redis's clock jumps", 2, (*world).redisClock},
	{"a replica's clock drifts", 3, (*world).clockDrifts},
	{"a replica's clock jumps", 3, (*world).clockJumps},
	{"Redis loses everything", 2, (*world).redisLoses},
	{"operator revokes", 20, (*world).revokes},
	{"operator undoes a revocation", 20, (*world).undoes},
	{"operator edits the policy", 8, (*world).editsFiles},
	{"operator edits the configuration", 4, (*world).configures},
	{"operator writes nonsense", 4, (*world).writesNonsense},
	{"operator edits an object", 12, (*world).editsObject},
	{"operator deletes an object", 8, (*world).deletesObject},
	{"a team edits a request", 12, (*world).editsRequest},
	{"a team deletes a request", 8, (*world).deletesRequest},
	{"an account opts in or out", 6, (*world).accountOpts},
	{"a namespace opts in or out", 1, (*world).namespaceOpts},
	{"an account is made again", 2, (*world).accountIsRemade},
	{"a Secret is meddled with", 3, (*world).secretMeddled},
	{"nothing", 50, func(*world) {}},

	{"trouble: a link fails", 24, (*world).linkFails},
	{"trouble: a host fails", 6, (*world).hostFails},
	{"trouble: an issuer is away", 2, (*world).issuerIsAway},
	{"trouble: connections are cut", 15, (*world).connectionsCut},
	{"trouble: watches must list again", 8, (*world).compacts},
	{"trouble: a replica dies during a failure", 12, (*world).replicaDiesInFailure},
	{"trouble: a controller dies", 8, (*world).keeperDies},
	{"trouble: a controller's link fails", 12, (*world).keeperLinkFails},
	{"trouble: lists are stale", 8, (*world).listsStale},
	{"trouble: a replica dies", 4, (*world).replicaDies},
	{"trouble: a replica dies between two steps", 4, (*world).replicaDiesBetween},
}

// step lets time pass, makes one event, and sends requests to replicas.
func (w *world) step() {
	w.pass(min(time.Duration(w.random.ExpFloat64()*float64(20*time.Second)), 5*time.Minute))
	w.steps++
	at := w.random.IntN(w.weights())
	for _, kind := range kinds {
		if at -= kind.weight; at < 0 {
			if calm := int(w.clock.Sub(w.began)/time.Hour)%2 == 0; calm && strings.HasPrefix(kind.name, "trouble") {
				break
			}
			w.counts[kind.name]++
			w.say("%s", kind.name)
			fmt.Fprintln(w.trace, w.clock, kind.name)
			kind.do(w)
			break
		}
	}
	if len(w.tokens) == 0 {
		return
	}
	for range 1 + w.random.IntN(3) {
		w.pass(time.Duration(w.random.Int64N(int64(3 * time.Second))))
		w.request()
		w.pull()
	}
	w.judgeControllers()
	w.forget()
}

// pass lets time pass. The choices of a seed depend on this clock alone, and not on the time that answers take.
func (w *world) pass(pause time.Duration) {
	w.clock = w.clock.Add(pause)
	time.Sleep(time.Until(w.clock))
}

func (w *world) weights() (sum int) {
	for _, kind := range kinds {
		sum += kind.weight
	}
	return sum
}

// say notes what happens, for the report of a failure.
func (w *world) say(format string, args ...any) {
	if len(w.events) > 300 {
		w.events = slices.Clone(w.events[200:])
	}
	w.events = append(w.events, fmt.Sprintf("%s ", time.Since(w.began).Round(time.Millisecond))+fmt.Sprintf(format, args...))
}

// fail ends the run, and reports the last events.
func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Errorf("%s\nat step %d, after:\n%s", fmt.Sprintf(format, args...), w.steps, strings.Join(w.events, "\n"))
}

func (w *world) podStarts() {
	p := w.newPod(pick(w, w.clusters))
	w.newToken(p, time.Hour, "")
}

func (w *world) secretFilled() { w.newToken(w.newSecret(pick(w, w.clusters)), longestOfSecrets, "") }

func (w *world) podEnds() {
	if p := w.somePod(); p != nil {
		p.end()
		w.say("  %s", p.uid)
	}
}

// somePod returns one that runs, or nil.
func (w *world) somePod() *pod {
	running := slices.DeleteFunc(slices.Clone(w.pods), func(p *pod) bool { return !p.deleted.IsZero() })
	if len(running) == 0 {
		return nil
	}
	return pick(w, running)
}

func (w *world) tokenIssued() {
	if p := w.somePod(); p != nil {
		w.newToken(p, pick(w, []time.Duration{10 * time.Minute, 10 * time.Minute, time.Hour, 8 * time.Hour, 23 * time.Hour}), "")
	}
}

func (w *world) tokenFlawed() {
	if p := w.somePod(); p != nil {
		w.newToken(p, time.Hour, pick(w, []string{"audience", "signature", "issuer", "account", "lifetime"}))
	}
}

func (w *world) accountEnds() {
	c, namespace := pick(w, w.clusters), pick(w, namespaces)
	for _, p := range w.pods {
		if p.cluster == c && p.namespace == namespace && p.deleted.IsZero() {
			p.end()
		}
	}
}

func (w *world) keyRotates() { pick(w, w.clusters).rotate(w, true) }

// keyWithdrawn is after a leak: only a new key counts.
func (w *world) keyWithdrawn() { pick(w, w.clusters).rotate(w, false) }

func (w *world) issuerClock() {
	pick(w, w.clusters).skew = time.Duration(w.random.Int64N(int64(4*time.Minute))) - 2*time.Minute
}

func (w *world) redisClock() {
	w.redis.setSkew(time.Duration(w.random.Int64N(int64(2*time.Minute))) - time.Minute)
}

// redisLoses is a restart without persistence.
func (w *world) redisLoses() {
	for _, d := range w.denied { // replicas write again what they have read
		for _, r := range w.replicas {
			if d.mayBeUnknownTo(r) || !d.confirmed.Before(w.knows(r, "redis", ofRevocations)) {
				d.unread[r] = true
			}
		}
		d.doubtful = time.Now()
	}
	w.redis.FlushAll()
	w.net.cut(func(l link) bool { return l.to == "redis" })
	for _, r := range w.replicas {
		w.blink(link{r.host, "redis"})
	}
	for _, t := range w.tokens {
		t.owner, t.split = "", len(t.tried) > 0 // a replica that knows the owner goes on, others take the next caller
	}
}

// blink notes that a link failed for a moment.
func (w *world) blink(l link) {
	if changes := w.health[l]; changes[len(changes)-1].up {
		w.health[l] = append(changes, change{at: time.Now()}, change{at: time.Now(), up: true})
	}
}

func (w *world) revokes() {
	if len(w.tokens) == 0 {
		return
	}
	t := pick(w, w.tokens[max(0, len(w.tokens)-20):])
	life := pick(w, []time.Duration{2 * time.Minute, 10 * time.Minute, time.Hour})
	d := &revocation{from: time.Now(), until: time.Now().Add(life).Truncate(time.Second), unread: map[*replica]bool{}}
	var target state.Target
	switch w.random.IntN(12) {
	case 0:
		d.kind, d.cluster, d.namespace = "account", t.cluster.name, t.namespace
		target = state.Target{Kind: state.TargetServiceAccount, Cluster: d.cluster, Namespace: d.namespace, Name: "web"}
	case 1:
		d.kind, d.cluster, d.name = "node", t.cluster.name, fmt.Sprint("node-", max(t.node, 0)) // no node has the token of a Secret
		target = state.Target{Kind: state.TargetNode, Cluster: d.cluster, Name: d.name}
	case 2, 3:
		d.kind, d.name = "pod", t.uid
		target = state.Target{Kind: state.TargetPod, Name: t.uid}
	default:
		d.kind, d.name = "token", t.id
		target = state.Target{Kind: state.TargetToken, Name: t.id}
	}
	for _, other := range w.denied { // it is replaced
		if other.kind == d.kind && other.cluster == d.cluster && other.namespace == d.namespace && other.name == d.name && other.gone.IsZero() {
			other.removed = time.Now()
		}
	}
	w.denied = append(w.denied, d)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := w.operator.Add(ctx, state.Revocation{Target: target, By: "operator", Reason: "simulated", Until: d.until})
	if err == nil {
		d.confirmed = time.Now()
	}
	w.say("  %s %s %s/%s for %s: %v", d.kind, d.name, d.cluster, d.namespace, life, err)
}

func (w *world) undoes() {
	for _, d := range w.denied {
		if !d.removed.IsZero() || d.kind == "node" && w.random.IntN(2) == 0 {
			continue
		}
		target := state.Target{Kind: state.TargetKind(d.kind), Cluster: d.cluster, Namespace: d.namespace, Name: d.name}
		if d.kind == "account" {
			target.Kind, target.Name = state.TargetServiceAccount, "web"
		}
		d.removed = time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		err := w.operator.Remove(ctx, target, "operator")
		if err == nil {
			d.gone = time.Now()
		}
		w.say("  %s %s %s/%s: %v", d.kind, d.name, d.cluster, d.namespace, err)
		return
	}
}

// newPolicy is one that operators may think of.
func (w *world) newPolicy() policy {
	p := policy{}
	for range 1 + w.random.IntN(3) {
		some := slices.Clone(namespaces)
		w.random.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
		some = some[:1+w.random.IntN(len(some))]
		p.rules = append(p.rules, rule{some, pick(w, []string{"{namespace}/**", "{namespace}/**", "shared/**", "team-a/**", "elsewhere/**", upstream + "/{namespace}/**"}), w.random.IntN(4) == 0})
	}
	switch w.random.IntN(20) {
	case 0:
		p.deny = []denial{{namespace: pick(w, namespaces)}}
	case 1:
		p.deny = []denial{{node: fmt.Sprint("node-", w.random.IntN(3))}}
	}
	return p
}

// editsFiles writes a new policy to all replicas, or rolls back to an old one.
func (w *world) editsFiles() {
	p := w.newPolicy()
	if w.random.IntN(3) == 0 {
		p = pick(w, w.files.values)
	}
	w.files.set(p)
	for _, r := range w.replicas {
		w.write(r, p)
	}
	w.say("  %+v", p)
}

// configures changes how long tokens may live, on all replicas.
func (w *world) configures() {
	w.longest = pick(w, []time.Duration{24 * time.Hour, 12 * time.Hour, 4 * time.Hour})
	for _, r := range w.replicas {
		w.configure(r, w.longest)
	}
	w.say("  %s", w.longest)
}

// writesNonsense changes nothing, until the file is mended.
func (w *world) writesNonsense() {
	r := pick(w, w.replicas)
	p, began := r.policy.now(), time.Now()
	w.replace(r, "policy.yaml", "rules: [{name: \"")
	w.pass(time.Duration(w.random.Int64N(int64(3 * time.Minute))))
	if w.random.IntN(2) == 0 && len(w.tokens) > 0 {
		w.request()
	}
	w.replace(r, "policy.yaml", p.file())
	r.spoilt = append(r.spoilt, interval{began, time.Now()})
}

func (w *world) editsObject() {
	c, name := pick(w, w.clusters), fmt.Sprint("policy-", w.random.IntN(4))
	p := w.newPolicy()
	all := maps.Clone(c.objects.now())
	all[name] = p
	c.objects.set(all)
	c.edited[name] = time.Now()
	c.api.Put("accesspolicies", kubetest.Object{"metadata": kubetest.Object{"name": name, "uid": c.name + name}, "spec": p.spec()})
	w.say("  %s %s %+v", c.name, name, p)
}

func (w *world) deletesObject() {
	c := pick(w, w.clusters)
	if name, is := dropsOne(w, &c.objects); is {
		c.api.Remove("accesspolicies", "", name)
		w.say("  %s %s", c.name, name)
	}
}

// dropsOne removes one of the objects that there are now, if there is any, and returns its name.
func dropsOne[M ~map[string]V, V any](w *world, objects *history[M]) (name string, is bool) {
	all := maps.Clone(objects.now())
	if len(all) == 0 {
		return "", false
	}
	name = pick(w, slices.Sorted(maps.Keys(all)))
	delete(all, name)
	objects.set(all)
	return name, true
}

func (w *world) editsRequest() {
	c, name, namespace := pick(w, w.clusters), fmt.Sprint("request-", w.random.IntN(2)), pick(w, namespaces)
	repository := pick(w, []string{namespace + "/**", "shared/**", "team-a/**", "elsewhere/**", upstream + "/" + namespace + "/**"})
	all := maps.Clone(c.requests.now())
	all[namespace+"/"+name] = struct{ namespace, repository string }{namespace, repository}
	c.requests.set(all)
	c.api.Put("repositoryaccesses", kubetest.Object{"metadata": kubetest.Object{"namespace": namespace, "name": name, "uid": c.name + namespace + name},
		"spec": map[string]any{"serviceAccounts": list([]string{"web"}), "repositories": list([]string{repository}), "actions": list([]string{"pull"})}})
	w.say("  %s %s/%s %s", c.name, namespace, name, repository)
}

func (w *world) deletesRequest() {
	c := pick(w, w.clusters)
	if key, is := dropsOne(w, &c.requests); is {
		namespace, name, _ := strings.Cut(key, "/")
		c.api.Remove("repositoryaccesses", namespace, name)
		w.say("  %s %s", c.name, key)
	}
}

// duration is mostly short, and sometimes more than a day.
func (w *world) duration() time.Duration {
	most := pick(w, []time.Duration{2 * time.Second, 30 * time.Second, 3 * time.Minute, 3 * time.Minute, 20 * time.Minute, 20 * time.Minute})
	if w.random.IntN(40) == 0 {
		most = pick(w, []time.Duration{5 * time.Hour, 5 * time.Hour, 40 * time.Hour})
	}
	return time.Duration(w.random.Int64N(int64(most)))
}

func (w *world) newFault() fault {
	switch w.random.IntN(4) {
	case 0:
		return fault{refused: true}
	case 1:
		return fault{delay: time.Duration(w.random.Int64N(int64(90 * time.Millisecond)))}
	case 2:
		return fault{delay: time.Second + time.Duration(w.random.Int64N(int64(20*time.Second)))}
	}
	return fault{lost: true}
}

// fails sets a fault, and ends it later.
func (w *world) fails(l link, f fault, mends bool) {
	w.net.set(l, f)
	if f.refused || mends && w.random.IntN(3) == 0 {
		w.net.cut(func(other link) bool { return other == l })
	}
	if l.from == "" {
		return
	}
	w.blink(l)
	w.note(l, f)
}

func (w *world) linkFails() {
	r, need := pick(w, w.replicas), pick(w, w.needs())
	l, f := link{r.host, need}, w.newFault()
	w.say("  %v %+v", l, f)
	w.fails(l, f, false)
	w.later(func() {
		if w.net.fault(link{"", need}) == (fault{}) {
			w.fails(l, fault{}, true)
		}
	}, "%v is mended", l)
}

// hostFails breaks the links of all replicas to a host.
func (w *world) hostFails() { w.hostFailsWith(pick(w, w.needs()), w.newFault(), w.duration()) }

// issuerIsAway lets its keys become too old.
func (w *world) issuerIsAway() {
	w.hostFailsWith("issuer-"+pick(w, w.clusters).name, fault{refused: true}, maxKeyAge+w.duration())
}

func (w *world) hostFailsWith(need string, f fault, duration time.Duration) {
	if w.net.fault(link{"", need}) != (fault{}) {
		return
	}
	w.say("  %s %+v", need, f)
	all := func(f fault, mends bool) {
		w.fails(link{"", need}, f, mends)
		if need == "redis" {
			w.net.set(link{"operator", need}, f)
		}
		for _, r := range w.replicas {
			w.fails(link{r.host, need}, f, mends)
		}
		for _, k := range w.keepers {
			if need == "api-"+k.cluster.name {
				w.fails(link{k.host, need}, f, mends)
			}
		}
	}
	all(f, false)
	w.after(duration, func() { all(fault{}, true) }, "%s is mended", need)
}

func (w *world) connectionsCut() {
	r := pick(w, w.replicas)
	l := link{r.host, pick(w, w.needs())}
	w.say("  %v", l)
	w.net.cut(func(other link) bool { return other == l })
	w.blink(l)
	w.shake()
}

func (w *world) compacts() {
	pick(w, w.clusters).api.Compact()
	w.shake()
}

// listsStale lets an API server's lists and watches stand still, and only its GETs answer from now.
func (w *world) listsStale() {
	c := pick(w, w.clusters)
	if n := len(c.stale); n > 0 && c.stale[n-1].to.IsZero() {
		return
	}
	c.api.Hold(true)
	c.stale = append(c.stale, interval{from: time.Now()})
	w.say("  %s", c.name)
	w.later(func() {
		c.api.Hold(false)
		c.stale[len(c.stale)-1].to = time.Now()
	}, "lists of %s are current", c.name)
}

// replicaDies has another take its place, soon or later.
func (w *world) replicaDies() {
	if len(w.replicas) < 2 {
		return
	}
	r := pick(w, w.replicas)
	w.say("  %s", r.host)
	w.kill(r)
	w.later(w.start, "a replica starts")
}

// replicaDiesBetween lets a replica die in the midst of what it does.
func (w *world) replicaDiesBetween() {
	if len(w.replicas) < 2 {
		return
	}
	r := pick(w, w.replicas)
	if r.doomed {
		return
	}
	r.doomed = true
	w.shake()
	w.net.doom(r.host, w.random.IntN(60))
	w.say("  %s", r.host)
	w.after(min(w.duration(), time.Minute), func() {
		if slices.Contains(w.replicas, r) {
			w.kill(r)
			w.start()
		}
	}, "%s is replaced", r.host)
}

// replicaDiesInFailure starts a replica that cannot read something at first. A token that was issued just before
// is presented to it: it must not trust what it never read.
func (w *world) replicaDiesInFailure() {
	r := pick(w, w.replicas)
	w.tokenIssued()
	t := w.tokens[len(w.tokens)-1]
	address, repositories := t.address().String(), []string{upstream + "/" + t.namespace + "/app"}
	before := w.judge(r, t, address, repositories)
	a := w.ask(r, t, address, gateway, repositories)
	w.compare(r, t, address, repositories, before, w.judge(r, t, address, repositories), a)
	if w.random.IntN(2) == 0 {
		w.hostFailsWith("redis", fault{refused: true}, w.duration()) // the new one never reads the revocations
	} else {
		w.hostFails()
	}
	w.say("  %s", r.host)
	w.kill(r)
	w.start()
	born := w.replicas[len(w.replicas)-1]
	w.after(20*time.Second, func() {
		if slices.Contains(w.replicas, born) && len(a.granted) > 0 {
			w.pullFrom(born, issued{t, a.token, a.granted, a.until, false}, a.granted[0])
		}
	}, "%s has started", born.host)
}

// planned is what happens later.
type planned struct {
	at   time.Time
	what string
	do   func()
}

func (w *world) later(do func(), format string, args ...any) {
	w.after(w.duration(), do, format, args...)
}

func (w *world) after(duration time.Duration, do func(), format string, args ...any) {
	w.plan = append(w.plan, planned{w.clock.Add(duration), fmt.Sprintf(format, args...), do})
}

func (w *world) forget() {
	due := slices.Clone(w.plan)
	w.plan = slices.DeleteFunc(w.plan, func(p planned) bool { return !w.clock.Before(p.at) })
	for _, p := range due {
		if !w.clock.Before(p.at) {
			w.say("%s", p.what)
			p.do()
		}
	}
	if len(w.issued) > 40 {
		w.issued = slices.Clone(w.issued[20:])
	}
	if len(w.tokens) > 400 {
		w.tokens = slices.Clone(w.tokens[200:])
	}
	for _, r := range w.replicas {
		if lines := int(r.audit.count.Load()); lines < r.heard {
			w.fail("%s gave %d answers, and its audit log has %d lines", r.host, r.heard, lines)
		}
	}
	w.ending = slices.DeleteFunc(w.ending, func(r *replica) bool {
		select {
		case <-r.ended:
			return os.RemoveAll(r.dir) == nil
		default:
			return false
		}
	})
	w.endingKeepers = slices.DeleteFunc(w.endingKeepers, func(k *keeper) bool {
		select {
		case <-k.ended:
			return true
		default:
			return false
		}
	})
	w.measure()
	w.denied = slices.DeleteFunc(w.denied, func(d *revocation) bool { return w.clock.Sub(d.until) > time.Hour })
	w.pods = slices.DeleteFunc(w.pods, func(p *pod) bool { return !p.deleted.IsZero() })
}

// mostMemory is for three replicas and all that is around them.
const mostMemory, mostGoroutines = 128 << 20, 2000

// measure looks for memory and goroutines without bound, once in an hour.
func (w *world) measure() {
	if w.steps%150 != 0 {
		return
	}
	for _, c := range w.clusters {
		c.api.Prune(2000)
	}
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	w.memory, w.goroutines = max(w.memory, memory.HeapAlloc), max(w.goroutines, runtime.NumGoroutine())
	if w.memory > mostMemory || w.goroutines > mostGoroutines {
		w.fail("%d MiB and %d goroutines", memory.HeapAlloc>>20, runtime.NumGoroutine())
	}
}

// request presents a token to a replica, sometimes from elsewhere and sometimes twice, and compares the
// answers with what the oracle says.
func (w *world) request() {
	t := pick(w, w.tokens[max(0, len(w.tokens)-60):])
	if w.random.IntN(3) > 0 { // mostly of pods that run
		t = pick(w, w.tokens[max(0, len(w.tokens)-10):])
	}
	if i := slices.IndexFunc(w.tokens, func(t *token) bool { return t.until.Sub(w.clock).Abs() < time.Minute }); i >= 0 && w.random.IntN(6) == 0 {
		t = w.tokens[i] // around its end
	}
	r := pick(w, w.replicas)
	address := t.address().String()
	if w.random.IntN(8) == 0 {
		address = "192.0.2.7" // a thief's
	}
	repositories := []string{pick(w, []string{t.namespace, t.namespace, "team-a", "team-b", "shared", "elsewhere"}) + "/app"}
	if w.random.IntN(3) == 0 {
		repositories = append(repositories, "shared/base")
	}
	service := registry
	if w.random.IntN(3) == 0 {
		service = gateway
		for i := range repositories {
			repositories[i] = upstream + "/" + repositories[i]
		}
	}
	times := 1
	if w.random.IntN(6) == 0 {
		times = 2
	}
	fmt.Fprintln(w.trace, w.clock, r.host, t.id, address, service, repositories, times)
	before := w.judge(r, t, address, repositories)
	answers := make([]answer, times)
	var asking sync.WaitGroup
	for i := range answers {
		asking.Go(func() { answers[i] = w.ask(r, t, address, service, repositories) })
	}
	asking.Wait()
	after := w.judge(r, t, address, repositories)
	for _, a := range answers {
		if len(a.granted) > 0 && (service == gateway || w.steps%8 == 0) {
			w.issued = append(w.issued, issued{t, a.token, a.granted, a.until, service == registry})
		}
		w.compare(r, t, address, repositories, before, after, a)
	}
}

// answer is a replica's response.
type answer struct {
	status  int // 0: nothing
	granted []string
	token   string
	until   time.Time
	body    string
	took    time.Duration
}

func (w *world) ask(r *replica, t *token, address, service string, repositories []string) answer {
	query := url.Values{"service": {service}}
	for _, repository := range repositories {
		query.Add("scope", "repository:"+repository+":pull")
	}
	a := w.get("http://"+r.host+":80/token?"+query.Encode(), address, func(request *http.Request) { request.SetBasicAuth("serviceaccount", t.raw) })
	if a.status == http.StatusOK {
		w.read(r, &a, service, repositories)
	}
	return a
}

func (w *world) get(address, from string, authorize func(*http.Request)) (a answer) {
	began := time.Now()
	defer func() { a.took = time.Since(began) }()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return answer{body: err.Error()}
	}
	authorize(request)
	transport := &http.Transport{DisableKeepAlives: true, DialContext: w.net.dialer("client", from)}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return answer{body: err.Error()}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return answer{body: err.Error()}
	}
	return answer{status: response.StatusCode, body: string(body)}
}

// read reads an issued token.
func (w *world) read(r *replica, a *answer, service string, asked []string) {
	var issued struct{ Token string }
	var claims struct {
		Audience string `json:"aud"`
		Expiry   int64  `json:"exp"`
		Access   []struct {
			Type, Name string
			Actions    []string
		}
	}
	_ = json.Unmarshal([]byte(a.body), &issued)
	parts := strings.Split(issued.Token, ".")
	payload, err := base64.RawURLEncoding.DecodeString(parts[min(1, len(parts)-1)])
	if err != nil || json.Unmarshal(payload, &claims) != nil {
		w.fail("the token cannot be read: %s", a.body)
	}
	if claims.Audience != service || time.Unix(claims.Expiry, 0).Sub(r.clock.now()) > 5*time.Minute+time.Second {
		w.fail("the token is for %q and too long: %s", claims.Audience, payload)
	}
	var granted []string
	for _, one := range claims.Access {
		if one.Type != "repository" || !slices.Equal(one.Actions, []string{"pull"}) || !slices.Contains(asked, one.Name) {
			w.fail("more was granted than was asked for: %s", payload)
		}
		granted = append(granted, one.Name)
	}
	a.token, a.granted, a.until = issued.Token, granted, time.Unix(claims.Expiry, 0)
}

// pull sometimes presents an issued token to the gateway of any replica.
func (w *world) pull() {
	if len(w.issued) == 0 || w.answers.IntN(3) > 0 {
		return
	}
	last := w.issued[max(0, len(w.issued)-2):]
	i, r := last[w.answers.IntN(len(last))], w.replicas[w.answers.IntN(len(w.replicas))]
	repository := i.repositories[0]
	if w.answers.IntN(4) == 0 {
		repository = upstream + "/" + namespaces[w.answers.IntN(len(namespaces))] + "/app"
	}
	w.pullFrom(r, i, repository)
}

func (w *world) pullFrom(r *replica, i issued, repository string) {
	before := w.judgePull(r, i, repository)
	a := w.get("http://"+r.host+":82/v2/"+repository+"/manifests/latest", i.address().String(), func(request *http.Request) { request.Header.Set("Authorization", "Bearer "+i.raw) })
	after := w.judgePull(r, i, repository)
	where := fmt.Sprintf("%s, %s with a token of %s", r.host, repository, i.id)
	w.say("  pulled %s: %d", where, a.status)
	if a.status != 0 {
		r.heard++
	}
	w.counts[fmt.Sprint("gateway's answer ", a.status)]++
	mustBeValid, mustAnswer := before.mustBeValid && after.mustBeValid, before.mustAnswer && after.mustAnswer
	switch {
	case a.status == http.StatusOK && !before.mayBeValid && !after.mayBeValid:
		w.fail("wrong pull, because %s: %s", after.why, where)
	case a.status == http.StatusOK && !strings.Contains(a.body, `"`+strings.TrimPrefix(repository, upstream+"/")+`"`):
		w.fail("pulled %s, and got %s", where, a.body)
	case a.status != http.StatusOK && mustBeValid && mustAnswer:
		w.fail("wrong refusal of a pull: %s got %d %s after %s", where, a.status, a.body, a.took)
	case a.status != 0 && a.status < 500 && a.status != http.StatusOK && mustBeValid:
		w.fail("a pull was refused for good, and only an answer was missing: %s got %d %s", where, a.status, a.body)
	}
}

// compare holds an answer to what the oracle said before and after.
func (w *world) compare(r *replica, t *token, address string, repositories []string, before, after verdict, a answer) {
	if a.status != 0 {
		r.heard++
	}
	where := fmt.Sprintf("%s, token %s of %s (%s, node-%d) from %s", r.host, t.id, t.uid, t.namespace, t.node, address)
	w.say("  asked %s: %d %v", where, a.status, a.granted)
	w.counts[fmt.Sprint("answer ", a.status)]++
	mustBeValid, mustAnswer := before.mustBeValid && after.mustBeValid, before.mustAnswer && after.mustAnswer
	if !before.mayBeValid && !after.mayBeValid {
		w.counts["refusals that had to be: "+after.why]++
	}
	switch {
	case a.status == http.StatusOK:
		if !before.mayBeValid && !after.mayBeValid {
			w.fail("wrong grant, because %s: %s got %v", after.why, where, a.granted)
		}
		t.tried[address] = true
		if t.known[r] = true; !t.split {
			t.owner = address
		}
	case mustBeValid && mustAnswer:
		w.fail("wrong refusal: %s got %d %s after %s", where, a.status, a.body, a.took)
	case mustBeValid && a.status != 0 && a.status < 500:
		w.fail("refused for good, and only an answer was missing: %s got %d %s", where, a.status, a.body)
	}
	if a.status != http.StatusUnauthorized {
		t.tried[address] = true
	}
	if a.status != http.StatusOK {
		return
	}
	for _, repository := range repositories {
		granted := slices.Contains(a.granted, repository)
		switch {
		case granted && !before.may[repository] && !after.may[repository]:
			w.fail("wrong grant of %s: %s", repository, where)
		case !granted && mustBeValid && before.must[repository] && after.must[repository]:
			w.fail("wrong refusal of %s: %s", repository, where)
		}
	}
	if mustBeValid {
		w.counts["grants that had to be"]++
	}
}
