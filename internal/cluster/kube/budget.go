package kube

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullpass/pullpass/internal/base/fair"
)

// Limits for the kept data of the objects of one namespace, in bytes as claims count them. Authors
// of objects there choose the number and the length of the objects.
const (
	// annotationBudget is for the annotations of ServiceAccounts: 8,600 with short ones.
	annotationBudget = 4 << 20
	// requestBudget is for RepositoryAccess objects: 1,700 with short specs.
	requestBudget = 2 << 20
	// maxLabelBytes is for the labels of one Namespace or Node.
	maxLabelBytes = 64 << 10

	annotationsCost = 400 // of a ServiceAccount with annotations, beside their values
	requestCost     = 512 // of a RepositoryAccess, beside its texts
	textCost        = 64  // of each text, beside its bytes
)

// claim is the part of the namespace's budget that an object uses. A different version of the
// object has a different claim.
type claim struct {
	created  int64 // seconds since 1970
	uid      string
	key      objectKey
	cost     int
	isWanted bool // the resource's missing contains it; guarded by the resource's mu
}

func newClaim(from metav1.Object, cost int) *claim {
	key, err := keyOf(from)
	if err != nil || cost == 0 {
		return nil
	}
	created := from.GetCreationTimestamp()
	return &claim{created: created.Unix(), uid: string(from.GetUID()), key: key, cost: cost}
}

// costOf returns the size of the texts in a value, as JSON is decoded into an any.
func costOf(value any) (cost int) {
	switch v := value.(type) {
	case string:
		return textCost + len(v)
	case []any:
		for _, element := range v {
			cost += costOf(element)
		}
	case map[string]any:
		for key, field := range v {
			cost += textCost + len(key) + costOf(field)
		}
	}
	return cost + textCost
}

// compare sorts the oldest first. So a newer object never takes room from an older one.
func (c *claim) compare(other *claim) int {
	return cmp.Or(cmp.Compare(c.created, other.created), strings.Compare(c.uid, other.uid))
}

// ledger determines which objects of a namespace are within its budget: the oldest, up to the first
// that has no room. So every replica keeps the same objects, in whatever order it learned of them.
type ledger struct {
	claims []*claim // the oldest first
	within int      // number of claims within the budget
	spent  int      // sum of these claims
}

// insert adds a claim. moved is the claims that entered or left the budget.
func (l *ledger) insert(c *claim, budget int) (moved []*claim) {
	i, _ := slices.BinarySearchFunc(l.claims, c, (*claim).compare)
	l.claims = slices.Insert(l.claims, i, c)
	if i < l.within {
		l.within++
		l.spent += c.cost
	}
	return append(l.settle(budget), c)
}

func (l *ledger) remove(c *claim, budget int) (moved []*claim) {
	i, found := slices.BinarySearchFunc(l.claims, c, (*claim).compare)
	if !found {
		return nil
	}
	l.claims = slices.Delete(l.claims, i, i+1)
	if i < l.within {
		l.within--
		l.spent -= c.cost
	}
	return l.settle(budget)
}

// settle moves the boundary of the budget.
func (l *ledger) settle(budget int) (moved []*claim) {
	if l.spent > budget {
		for l.spent > budget {
			l.within--
			l.spent -= l.claims[l.within].cost
			moved = append(moved, l.claims[l.within])
		}
		return moved
	}
	for l.within < len(l.claims) && l.spent+l.claims[l.within].cost <= budget {
		moved = append(moved, l.claims[l.within])
		l.spent += l.claims[l.within].cost
		l.within++
	}
	return moved
}

// holds reports whether the claim is within the budget.
func (l *ledger) holds(c *claim) bool {
	i, found := slices.BinarySearchFunc(l.claims, c, (*claim).compare)
	return found && i < l.within
}

// ledgers are by namespace.
type ledgers map[unique.Handle[string]]*ledger

func (l ledgers) of(c *claim) *ledger {
	found := l[c.key.namespace]
	if found == nil {
		found = &ledger{}
		l[c.key.namespace] = found
	}
	return found
}

// beyond returns how many objects of a namespace have no room.
func (l ledgers) beyond(namespace unique.Handle[string]) int {
	if found := l[namespace]; found != nil {
		return len(found.claims) - found.within
	}
	return 0
}

// sieve keeps a list within the budgets while it arrives. The end of the list determines the oldest
// objects, but until then all objects of one namespace would not fit into memory.
type sieve struct {
	budget     int
	namespaces map[unique.Handle[string]]*sieved
}

type sieved struct {
	ledger
	items map[*claim]*item
	first *claim // the oldest object without room; nil: all have room
}

func newSieve(budget int) *sieve {
	return &sieve{budget, map[unique.Handle[string]]*sieved{}}
}

// add drops the data of objects without room: of this item or of earlier ones.
func (s *sieve) add(i *item) {
	c := i.object.claim
	if c == nil {
		return
	}
	n := s.namespaces[c.key.namespace]
	if n == nil {
		n = &sieved{items: map[*claim]*item{}}
		s.namespaces[c.key.namespace] = n
	}
	if n.first != nil && c.compare(n.first) > 0 {
		i.object = i.object.stripped()
		return
	}
	n.items[c] = i
	n.insert(c, s.budget)
	beyond := n.claims[n.within:]
	for _, gone := range beyond {
		dropped := n.items[gone]
		dropped.object = dropped.object.stripped()
		delete(n.items, gone)
	}
	if len(beyond) > 0 {
		n.first = beyond[0]
		n.claims = slices.Delete(n.claims, n.within, len(n.claims))
	}
}

// stripped returns the data that is kept of an object beyond its namespace's budget.
func (o object) stripped() object {
	o.beyond, o.text = true, nil
	if o.spec != nil {
		spec := policySpec{generation: o.spec.generation}
		if o.spec.status != nil {
			spec.status = o.spec.status.Forget()
		}
		o.spec = &spec
	}
	return o
}

// put stores or removes an object, and keeps its namespace within the budget. The caller holds mu.
func (r *resource) put(key objectKey, next object, isThere bool) {
	before := r.objects[key]
	var moved []*claim
	if before.claim != nil {
		l := r.ledgers.of(before.claim)
		if moved = l.remove(before.claim, r.budget); len(l.claims) == 0 {
			delete(r.ledgers, key.namespace)
		}
	}
	if isThere {
		r.objects[key] = next
	} else {
		delete(r.objects, key)
	}
	if next.claim != nil {
		moved = append(moved, r.ledgers.of(next.claim).insert(next.claim, r.budget)...)
	}
	for _, c := range moved {
		if r.settle(c) && c.key != key {
			r.notify(&c.key)
		}
	}
}

// settle adjusts the kept data of an object to the ledger, and reports whether that changed the
// data. An object that is within the budget again has to be requested. The caller holds mu.
func (r *resource) settle(c *claim) (changed bool) {
	o, ok := r.objects[c.key]
	if !ok || o.claim != c {
		return false
	}
	switch isWithin := r.ledgers.of(c).holds(c); {
	case isWithin && o.beyond && !c.isWanted:
		c.isWanted = true
		r.missing.Push(c.key.namespace.Value(), c)
		select {
		case r.refill <- struct{}{}:
		default:
		}
	case !isWithin && !o.beyond:
		r.objects[c.key] = o.stripped()
		return true
	}
	return false
}

// settleAll does the same for all objects of a list.
func (r *resource) settleAll() {
	r.ledgers, r.missing = ledgers{}, fair.Queue[*claim]{}
	for _, o := range r.objects {
		if o.claim != nil {
			l := r.ledgers.of(o.claim)
			l.claims = append(l.claims, o.claim)
		}
	}
	for _, l := range r.ledgers {
		slices.SortFunc(l.claims, (*claim).compare)
		l.settle(r.budget)
		for _, c := range l.claims {
			r.settle(c)
		}
	}
}

const (
	// refillInterval is the interval between requests for objects that have room again. refillAgain
	// is the delay after a request that failed.
	refillInterval = 100 * time.Millisecond
	refillAgain    = 5 * time.Second
)

// refillAll requests the objects that have room again, one at a time, until ctx ends.
func (r *resource) refillAll(ctx context.Context) {
	wait := func(d time.Duration) bool {
		select {
		case <-time.After(d):
			return true
		case <-ctx.Done():
			return false
		}
	}
	for {
		select {
		case <-r.refill:
		case <-ctx.Done():
			return
		}
		for {
			r.mu.Lock()
			c, ok := r.missing.Pop()
			if ok {
				c.isWanted = false
			}
			r.mu.Unlock()
			if !ok {
				break
			}
			pause := refillInterval
			if !r.refillOne(ctx, c) {
				r.mu.Lock()
				r.settle(c)
				r.mu.Unlock()
				pause = refillAgain
			}
			if !wait(pause) {
				return
			}
		}
	}
}

// refillOne reports whether the claim needs no more work. If the watch reports the object
// meanwhile, that version counts, because the response can be older.
func (r *resource) refillOne(ctx context.Context, c *claim) bool {
	isMissing := func() bool {
		o := r.objects[c.key]
		return o.claim == c && o.beyond && r.ledgers.of(c).holds(c)
	}
	r.mu.RLock()
	wanted := isMissing()
	r.mu.RUnlock()
	if !wanted {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, maxGetTime)
	defer cancel()
	found, err := r.get(ctx, c.key.namespace.Value(), c.key.name)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !isMissing():
		return true
	case err != nil || found.object.uid != c.uid || found.object.claim == nil || found.object.claim.cost != c.cost:
		return false // the watch may be behind
	}
	found.object.claim = c
	r.objects[c.key] = found.object
	r.notify(&c.key)
	return true
}
