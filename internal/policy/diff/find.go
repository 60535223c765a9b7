package diff

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/subjects"
)

// openService stands for a registry that no rule names, if there is no configuration.
const openService = "registry.example.com"

// Find returns what changes from one side to the other. The error is that of ctx.
func Find(ctx context.Context, before, after *Side) (*Difference, error) {
	if before.IsOpen && after.IsOpen {
		before, after = withNamed(before, after), withNamed(after, before)
	}
	from, to := compileSide(before), compileSide(after)
	from.bar(after)
	to.bar(before)
	from.index()
	to.index()
	gained, err := newComparison(ctx, from, to).entries()
	if err != nil {
		return nil, err
	}
	lost, err := newComparison(ctx, to, from).entries()
	if err != nil {
		return nil, err
	}
	return &Difference{APIVersion: apiVersion, Kind: "PolicyDiff", Gained: gained, Lost: lost}, nil
}

// withNamed returns a side without a configuration, with all services and identities that the rules
// of both name.
func withNamed(side, other *Side) *Side {
	open := *side
	services, identities := map[string]bool{openService: true}, map[string]bool{}
	for _, s := range []*Side{side, other} {
		for _, r := range s.Policy.WrittenRules() {
			for _, name := range r.Services {
				services[name] = true
			}
			noteIdentities(r.Subjects, identities)
		}
		for _, d := range s.Policy.WrittenDenials() {
			noteIdentities(d.Subjects, identities)
		}
	}
	open.Services, open.Identities = nil, nil
	for _, name := range sortedKeys(services) {
		open.Services = append(open.Services, Service{Name: name})
	}
	for _, name := range sortedKeys(identities) {
		id, _ := side.identity(name)
		open.Identities = append(open.Identities, id)
	}
	return &open
}

func noteIdentities(all []subjects.Match, found map[string]bool) {
	for _, m := range all {
		for _, name := range m.Identities {
			found[name] = true
		}
	}
}

func sortedKeys(set map[string]bool) []string {
	var all []string
	for key := range set {
		all = append(all, key)
	}
	slices.Sort(all)
	return all
}

// comparison finds the differences in one direction.
type comparison struct {
	finder
	removed []*denial // of from, which to does not have
	differs []string  // clusters of both that know different facts or objects
	found   []Entry
	seen    map[string]bool
}

func newComparison(ctx context.Context, from, to *compiled) *comparison {
	c := &comparison{finder: finder{from: from, to: to, empty: map[string]bool{}, left: maxTries, context: ctx.Err}, found: []Entry{}, seen: map[string]bool{}}
	for _, d := range from.denials {
		if d.isNew || !to.denied[d.whom.key] {
			c.removed = append(c.removed, d)
		}
	}
	for _, cluster := range to.Clusters {
		if other, ok := from.cluster(cluster.Name); ok && !sameFacts(cluster, other) {
			c.differs = append(c.differs, cluster.Name)
		}
	}
	return c
}

// sameFacts reports whether rules see the same of a cluster, other than its AccessPolicy objects.
func sameFacts(a, b Cluster) bool {
	if a.KnowsLabels != b.KnowsLabels || a.KnowsAnnotations != b.KnowsAnnotations || (a.Objects == nil) != (b.Objects == nil) {
		return false
	}
	if a.Objects == nil {
		return true
	}
	return a.Objects.AreKnown == b.Objects.AreKnown && a.Objects.RequestsAreRead == b.Objects.RequestsAreRead &&
		slices.EqualFunc(a.Objects.Requests, b.Objects.Requests, func(a, b *policy.Request) bool { return reflect.DeepEqual(a, b) }) && slices.Equal(a.Objects.Policies.Within(), b.Objects.Policies.Within())
}

// entries compares what differs: units that the other side does not have, and denials that this
// side does not have. All else is equal on both sides, and decides equally.
func (c *comparison) entries() ([]Entry, error) {
	for _, u := range c.to.units {
		if err := c.compareUnit(u); err != nil {
			return nil, fmt.Errorf("rule %s: %w", u.rule, err)
		}
	}
	for _, d := range c.removed {
		for _, i := range c.under(d) {
			if err := c.compareDenied(c.to.units[i], d); err != nil {
				return nil, fmt.Errorf("rule %s: %w", c.to.units[i].rule, err)
			}
		}
	}
	for _, cluster := range c.differs {
		for _, d := range c.from.denials {
			if d.isNew || !d.whom.readsFacts() || !d.whom.isIn(cluster) {
				continue
			}
			for _, i := range c.under(d) {
				if err := c.compare(box{unit: c.to.units[i], denial: d, cluster: cluster}, c.served(c.to.units[i])); err != nil {
					return nil, fmt.Errorf("rule %s: %w", c.to.units[i].rule, err)
				}
			}
		}
	}
	c.compareUpstreams()
	c.compareUnknown()
	c.compareTokens()
	slices.SortStableFunc(c.found, func(a, b Entry) int { return cmp.Compare(a.position, b.position) })
	return c.found, nil
}

// served returns the actions of a unit at each of its services.
func (c *comparison) served(u *unit) map[string]action.Set {
	all := map[string]action.Set{}
	for _, service := range c.to.Services {
		if u.serves(service.Name) {
			all[service.Name] = u.atoms()
		}
	}
	return all
}

// compareUnit compares a unit with the rules of the other side.
func (c *comparison) compareUnit(u *unit) error {
	added := map[string]action.Set{} // by service
	for _, service := range c.to.Services {
		if !u.serves(service.Name) {
			continue
		}
		if _, ok := c.from.service(service.Name); !ok {
			added[service.Name] = u.atoms()
		} else if more := u.atoms() &^ atoms(c.from.allowed(u.key, service.Name)); more != 0 {
			added[service.Name] = more
		}
	}
	for _, kind := range c.kinds(u) {
		if err := c.compare(box{unit: u, identity: kind.identity, isAnonymous: kind.isAnonymous}, added); err != nil {
			return err
		}
	}
	if len(c.differs) == 0 || u.whom != nil && u.whom.Identities != nil || !u.requests && u.annotation == "" && !u.inObject && !u.whom.readsFacts() {
		return nil
	}
	rest := map[string]action.Set{}
	for _, service := range c.to.Services {
		if u.serves(service.Name) {
			rest[service.Name] = u.atoms() &^ added[service.Name]
		}
	}
	for _, cluster := range c.differs {
		if err := c.compare(box{unit: u, cluster: cluster}, rest); err != nil {
			return err
		}
	}
	return nil
}

// compareDenied compares a unit with a denial that does not refuse any more.
func (c *comparison) compareDenied(u *unit, d *denial) error {
	all := c.served(u)
	for _, kind := range c.kinds(u) {
		switch {
		case kind.isAnonymous, kind.identity != "" && !slices.Contains(d.whom.Identities, kind.identity) && !d.whom.isOnlyTokens(),
			kind.identity == "" && d.whom.Identities != nil:
			continue
		}
		if err := c.compare(box{unit: u, denial: d, identity: kind.identity}, all); err != nil {
			return err
		}
	}
	return nil
}

// kinds returns the kinds of callers that a unit is for.
func (c *comparison) kinds(u *unit) (all []box) {
	if u.whom == nil || u.whom.Identities == nil {
		all = append(all, box{})
	}
	for _, id := range c.to.Identities {
		if u.whom == nil || slices.Contains(u.whom.Identities, id.Name) {
			all = append(all, box{identity: id.Name})
		}
	}
	if u.whom == nil {
		all = append(all, box{isAnonymous: true})
	}
	return all
}

// under returns the units for callers that the denial can match.
func (c *comparison) under(d *denial) (all []int) {
	if d.whom.Identities == nil {
		for _, i := range c.to.accounts.find(cmpGlob(d.whom.Namespaces)) {
			if w := c.to.units[i].whom; w == nil ||
				overlap(clustersOf(w), clustersOf(d.whom)) && overlap(w.Namespaces, d.whom.Namespaces) && overlap(w.ServiceAccounts, d.whom.ServiceAccounts) {
				all = append(all, i)
			}
		}
	}
	names := d.whom.Identities
	if d.whom.isOnlyTokens() {
		names = sortedKeys(func() map[string]bool {
			set := map[string]bool{}
			for _, id := range c.to.Identities {
				set[id.Name] = true
			}
			return set
		}())
	}
	for _, name := range append([]string{""}, names...) {
		if len(names) > 0 {
			all = append(all, c.to.jobs[name]...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// contains reports whether a rule of the other side grants the box to the same subjects, so that a rule which is only narrowed
// needs no search. Parts that denials of the other side refuse are in their boxes.
func (c *comparison) contains(b *box, n near) bool {
	w := b.unit.whom
	return b.denial == nil && w != nil && (len(c.differs) == 0 || !w.readsFacts()) && slices.ContainsFunc(n.rules, func(u *unit) bool {
		return u.whom != nil && u.whom.key == w.key && u.annotation == "" && !u.isLimited() && u.pattern.Contains(b.unit.pattern)
	})
}

// compare looks for differences of a box, at each service, in these actions.
func (c *comparison) compare(b box, actions map[string]action.Set) error {
	type result struct {
		service string
		actions action.Set
		point   *point
	}
	var results []result
	type outcome struct{ isPossible, isCut bool }
	possible, cut := map[string]action.Set{}, map[string]bool{} // by service: there may be a difference, but none was found; and the search ended early
	fruitless := map[string]outcome{}                           // keys of searches that found nothing
	for _, service := range c.to.Services {
		left := actions[service.Name]
		b.service = service.Name
		for _, a := range eachAction {
			if left&a == 0 {
				continue
			}
			var found *point
			for _, r := range results {
				again := *r.point
				again.service = service.Name
				if c.to.granted(&again, a)&a != 0 && c.from.granted(&again, a)&a == 0 {
					found = &again
					break
				}
			}
			if found == nil {
				n := c.near(&b, a)
				if c.contains(&b, n) {
					left &^= a
					continue
				}
				key := n.key(&b, a)
				before, isFruitless := fruitless[key]
				if !isFruitless {
					var err error
					if found, err = c.find(&b, a, n); err != nil {
						return err
					}
					before = outcome{c.isPossible, c.isCut}
				}
				if found == nil {
					fruitless[key] = before
					if before.isPossible {
						possible[service.Name] |= a
						cut[service.Name] = cut[service.Name] || before.isCut
					}
				}
			}
			if found == nil {
				left &^= a
				continue
			}
			same := a
			for _, other := range eachAction {
				if other != a && left&other != 0 && c.to.granted(found, other)&other != 0 && c.from.granted(found, other)&other == 0 {
					same |= other
				}
			}
			left &^= same
			results = append(results, result{service.Name, same, found})
		}
	}
	if c.to.IsOpen && b.unit.services == nil && len(results) == len(c.to.Services) &&
		!slices.ContainsFunc(results, func(r result) bool { return r.actions != results[0].actions }) {
		i := slices.IndexFunc(results, func(r result) bool { return r.service == openService })
		results = []result{results[i]}
		results[0].service = "*"
	}
	for _, r := range results {
		b.service = r.point.service
		c.add(&b, r.service, r.actions, r.point, "")
	}
	for _, service := range c.to.Services {
		if actions := possible[service.Name]; actions != 0 {
			b.service = service.Name
			why := ""
			if cut[service.Name] {
				why = errTooLarge.Error() + "; read the rule"
			}
			c.add(&b, service.Name, actions, nil, why)
		}
	}
	return nil
}

// key is equal for searches with the same result.
func (n near) key(b *box, a action.Set) string {
	key := ""
	for _, u := range n.rules {
		key += strconv.Itoa(u.position) + " "
	}
	if b.unit.requests || slices.ContainsFunc(n.rules, func(u *unit) bool { return u.requests }) {
		key += a.String()
	}
	if slices.ContainsFunc(conditionsOf(b, n), func(text string) bool { return strings.Contains(text, "service") }) {
		key += b.service
	}
	return key
}

func (c *comparison) add(b *box, service string, actions action.Set, p *point, unjudged string) {
	e := b.entry(service, actions)
	e.Unjudged = unjudged
	if p != nil {
		e.Example = p.example(actions)
	}
	key := fmt.Sprintf("%s %v %q %s %s %v %s %s", e.Who, e.Claims, e.Where, e.Service, e.Repositories, e.Actions, e.Rule, e.Denial)
	if c.seen[key] {
		return
	}
	c.seen[key] = true
	if b.isAnonymous {
		for i := range c.found {
			if other := &c.found[i]; p != nil && other.Example.As != "" && other.Who == "*/*/*" && other.Denial == "" && other.Rule == e.Rule && other.Service == e.Service && other.Repositories == e.Repositories && slices.Equal(other.Actions, e.Actions) {
				other.Anonymous = true
				return
			}
		}
	}
	e.Except = c.exceptions(b, actions)
	c.found = append(c.found, e)
}

func (b *box) entry(service string, actions action.Set) Entry {
	e := Entry{Service: service, Actions: actions.Names(), Rule: b.unit.rule, Repositories: string(b.unit.pattern), position: b.unit.position}
	if e.Repositories == "" {
		e.Repositories = catalog
	}
	e.Who, e.Claims, e.Where = b.who()
	if b.denial != nil && !b.denial.isNew {
		e.Denial = b.denial.rule
	}
	return e
}

// who describes the callers of a box.
func (b *box) who() (who string, claims map[string][]string, where []string) {
	own := b.subjects()
	if b.isAnonymous {
		return "anonymous", nil, nil
	}
	note := func(what string, values ...string) {
		if text := what + " " + strings.Join(values, ", "); values != nil && !slices.Contains(where, text) {
			where = append(where, text)
		}
	}
	for _, w := range own {
		note("nodes", w.Nodes...)
		note("tokenIDs", w.TokenIDs...)
		if w.NamespaceSelector != nil {
			note("namespaceSelector", w.NamespaceSelector.String())
		}
		if w.Condition != nil {
			note("condition", w.Condition.String())
		}
		for _, claim := range w.Claims {
			if w.Denies {
				note("claims."+claim.Name+" is missing, or", claim.Values...)
				continue
			}
			if claims == nil {
				claims = map[string][]string{}
			}
			claims[claim.Name] = claim.Values
		}
	}
	if b.unit.annotation != "" {
		note("asked for in the annotation", b.unit.annotation)
	}
	if b.unit.requests {
		note("asked for by", "RepositoryAccess objects")
	}
	if b.unit.isLimited() && b.unit.whom.onlyIn != anyCluster {
		note("within", "clusters[].kubernetes.objects.within")
	}
	if b.identity != "" {
		return "identity/" + b.identity, claims, where
	}
	names := []string{"*", "*", "*"}
	for i, of := range []func(*whom) []string{clustersOf, namespacesOf, accountsOf} {
		for _, w := range own {
			if list := of(w); len(list) > 1 {
				note([]string{"clusters", "namespaces", "serviceAccounts"}[i], list...)
			}
		}
		for _, glob := range globs(own, of) {
			switch before := names[i]; {
			case before == "*" || !strings.Contains(glob, "*"):
				names[i] = glob
			case strings.Contains(before, "*") && glob != before && glob != "*":
				note([]string{"clusters", "namespaces", "serviceAccounts"}[i], glob)
			}
		}
	}
	if b.cluster != "" {
		names[0] = b.cluster
	}
	return strings.Join(names, "/"), claims, where
}

// maxExcept bounds the exceptions of one entry.
const maxExcept = 256

// exceptions returns the parts of the box that do not change: denials refuse them, or rules granted
// them already.
func (c *comparison) exceptions(b *box, actions action.Set) []Exception {
	n := c.near(b, actions)
	var all []Exception
	add := func(rule string, w *whom, u *unit) {
		part := box{unit: &unit{whom: w}, identity: b.identity}
		e := Exception{Rule: rule}
		if u != nil {
			part.unit = u
			e.Anonymous = u.whom == nil
			e.Repositories, e.Actions = string(u.pattern), (u.atoms() & actions).Names()
			if u.pattern == "" {
				e.Repositories = catalog
			}
		}
		e.Who, e.Claims, e.Where = part.who()
		if len(all) < maxExcept {
			all = append(all, e)
		}
	}
	isNew := func(d *denial) bool { return d.isNew }
	for _, d := range slices.DeleteFunc(slices.Concat(n.denials, n.barred), isNew) {
		add(d.rule, d.whom, nil)
	}
	for _, u := range n.rules {
		if c.from.IsOpen || !u.isLimited() && u.annotation == "" || slices.ContainsFunc(c.from.Clusters, func(known Cluster) bool { return c.from.mayGrant(u, known.Name) }) {
			add(u.rule, u.whom, u)
		}
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(e Exception) bool {
		key := fmt.Sprintf("%+v", e)
		defer func() { seen[key] = true }()
		return seen[key]
	})
}
