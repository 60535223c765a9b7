package diff

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/policy/subjects"
)

// maxTriples bounds the triples of names that one subject is split into, for answers of one name
// each. The lists of a subject beyond that stay together.
const maxTriples = 4096

// isIn reports whether the subject can match ServiceAccounts of a cluster, as far as objects count.
func (w *whom) isIn(cluster string) bool {
	return w.onlyIn == "" || w.onlyIn == anyCluster || w.onlyIn == cluster
}

// whom is a subject with at most one glob for each of cluster, namespace and ServiceAccount.
type whom struct {
	*subjects.Match
	onlyIn    string // the cluster of an object; "": any caller, anyCluster: any ServiceAccount
	key       string
	condition string // its normal text; "": none
}

const anyCluster = "*"

// unit is one pattern of a rule, for one subject. A rule grants the union of its units.
type unit struct {
	rule       string
	whom       *whom // nil: all callers, with a token or without
	services   []string
	annotation string
	requests   bool
	inObject   bool
	pattern    pattern.Pattern // "": the catalog
	actions    action.Set
	key        string // of all but the name, the services and the actions
	position   int
}

// denial is one subject of a deny rule.
type denial struct {
	rule string
	whom *whom
	// isNew: the denial stands for a cluster or an identity that this side does not have.
	isNew bool
}

func (u *unit) isLimited() bool { return u.inObject || u.requests }

func (u *unit) serves(service string) bool {
	return u.services == nil || slices.Contains(u.services, service)
}

// first returns the only glob of a list, or "" for any.
func first(globs []string) string {
	if len(globs) == 1 {
		return globs[0]
	}
	return ""
}

// split returns subjects with one glob of each list.
func split(m *subjects.Match, onlyIn string) []*whom {
	lists := [...][]string{m.Clusters, m.Namespaces, m.ServiceAccounts}
	total := 1
	for i, list := range lists {
		total *= max(len(list), 1)
		if total > maxTriples {
			lists[i] = nil
			total /= max(len(list), 1)
		}
	}
	each := func(list []string) [][]string {
		if list == nil {
			return [][]string{nil}
		}
		var all [][]string
		for i := range list {
			all = append(all, list[i:i+1:i+1])
		}
		return all
	}
	var all []*whom
	for _, clusters := range each(lists[0]) {
		for _, namespaces := range each(lists[1]) {
			for _, accounts := range each(lists[2]) {
				one := *m
				if lists[0] != nil {
					one.Clusters = clusters
				}
				if lists[1] != nil {
					one.Namespaces = namespaces
				}
				if lists[2] != nil {
					one.ServiceAccounts = accounts
				}
				all = append(all, newWhom(&one, onlyIn))
			}
		}
	}
	return all
}

func newWhom(m *subjects.Match, onlyIn string) *whom {
	var b strings.Builder
	list := func(name string, values []string) {
		if values != nil {
			sorted := slices.Sorted(slices.Values(values))
			fmt.Fprintf(&b, "%s%q", name, slices.Compact(sorted))
		}
	}
	list("in", []string{onlyIn})
	list("c", m.Clusters)
	list("n", m.Namespaces)
	list("a", m.ServiceAccounts)
	list("o", m.Nodes)
	list("t", m.TokenIDs)
	list("i", m.Identities)
	for _, c := range m.Claims {
		list(fmt.Sprintf("claim %q", c.Name), c.Values)
	}
	if m.NamespaceSelector != nil {
		list("s", []string{m.NamespaceSelector.String()})
	}
	condition := ""
	if m.Condition != nil {
		condition = m.Condition.Normal()
		list("x", []string{condition})
	}
	return &whom{m, onlyIn, b.String(), condition}
}

// isOnlyTokens reports whether the subject matches tokens of both kinds.
func (w *whom) isOnlyTokens() bool {
	return w.TokenIDs != nil && w.Clusters == nil && w.Namespaces == nil && w.ServiceAccounts == nil && w.Nodes == nil && w.NamespaceSelector == nil && w.Identities == nil && w.onlyIn == ""
}

// readsLabels reports whether the labels of a namespace matter.
func (w *whom) readsLabels() bool {
	return w != nil && (w.NamespaceSelector != nil || strings.Contains(w.condition, "kubernetes.labels"))
}

// readsFacts reports whether anything beside names matters that a configuration knows of a cluster.
func (w *whom) readsFacts() bool {
	return w.readsLabels() || w != nil && w.Condition != nil && len(w.Condition.Uses()) > 0
}

// compiled is a side as the comparison uses it.
type compiled struct {
	*Side
	units   []*unit
	denials []*denial
	// byKey has the units with a key.
	byKey    map[string][]*unit
	denied   map[string]bool // keys of denials
	accounts nameIndex       // of units for ServiceAccounts, those for all callers too
	jobs     map[string][]int
	byPath   nameIndex // of the units for ServiceAccounts, by the first component of the pattern
	barred   nameIndex // of denials of ServiceAccounts
	barredID map[string][]int
}

func compileSide(s *Side) *compiled {
	c := &compiled{Side: s, byKey: map[string][]*unit{}, denied: map[string]bool{}, jobs: map[string][]int{}, barredID: map[string][]int{}}
	c.addRules(s.Policy.WrittenRules(), s.Policy.WrittenDenials(), "")
	for _, cluster := range s.Clusters {
		if o := cluster.Objects; o != nil && o.Policies != nil {
			c.addRules(o.Policies.WrittenRules(), o.Policies.WrittenDenials(), cluster.Name)
		}
	}
	if o := s.Objects; o != nil {
		c.addRules(o.Policies.WrittenRules(), o.Policies.WrittenDenials(), anyCluster)
	}
	return c
}

func (c *compiled) addRules(rules []policy.WrittenRule, denials []policy.WrittenDenial, onlyIn string) {
	for i := range rules {
		r := &rules[i]
		callers := []*whom{nil}
		if !r.Anonymous {
			callers = nil
			for s := range r.Subjects {
				callers = append(callers, split(&r.Subjects[s], onlyIn)...)
			}
		}
		for _, w := range callers {
			for _, a := range r.Allow {
				patterns := a.Repositories
				if patterns == nil {
					patterns = []pattern.Pattern{""}
				}
				for _, p := range patterns {
					u := &unit{rule: r.Name, whom: w, services: r.Services, annotation: r.Annotation, requests: r.Requests, inObject: r.InObject, pattern: p, actions: a.Actions}
					u.key = fmt.Sprintf("%q %t %t %s\n", r.Annotation, r.Requests, r.InObject, p)
					if w != nil {
						u.key += w.key
					}
					c.units = append(c.units, u)
				}
			}
		}
	}
	for i := range denials {
		for s := range denials[i].Subjects {
			for _, w := range split(&denials[i].Subjects[s], onlyIn) {
				c.denials = append(c.denials, &denial{rule: denials[i].Name, whom: w})
			}
		}
	}
}

// bar adds denials that stand for missing clusters and identities, and for identities whose tokens are
// checked in another way.
func (c *compiled) bar(other *Side) {
	if c.IsOpen {
		return
	}
	for _, cluster := range other.Clusters {
		if _, ok := c.cluster(cluster.Name); !ok {
			c.denials = append(c.denials, &denial{rule: "cluster " + cluster.Name, isNew: true, whom: newWhom(&subjects.Match{Clusters: []string{cluster.Name}, Denies: true}, "")})
		}
	}
	for _, id := range other.Identities {
		if own, ok := c.identity(id.Name); !ok || !own.checksAs(&id) {
			c.denials = append(c.denials, &denial{rule: "identity " + id.Name, isNew: true, whom: newWhom(&subjects.Match{Identities: []string{id.Name}, Denies: true}, "")})
		}
	}
}

// index is made when all units and denials are there.
func (c *compiled) index() {
	for i, u := range c.units {
		u.position = i
		c.byKey[u.key] = append(c.byKey[u.key], u)
		switch {
		case u.whom == nil || u.whom.Identities == nil:
			glob := "*"
			if u.whom != nil {
				glob = cmpGlob(u.whom.Namespaces)
			}
			c.accounts.add(glob, i)
			c.byPath.add(firstOf(u.pattern), i)
		default:
			for _, name := range u.whom.Identities {
				c.jobs[name] = append(c.jobs[name], i)
			}
		}
		if u.whom == nil {
			c.jobs[""] = append(c.jobs[""], i)
		}
	}
	for i, d := range c.denials {
		if !d.isNew {
			c.denied[d.whom.key] = true
		}
		if d.whom.Identities == nil {
			c.barred.add(cmpGlob(d.whom.Namespaces), i)
		}
		for _, name := range d.whom.Identities {
			c.barredID[name] = append(c.barredID[name], i)
		}
		if d.whom.isOnlyTokens() {
			c.barredID[""] = append(c.barredID[""], i)
		}
	}
	c.accounts.sort()
	c.byPath.sort()
	c.barred.sort()
}

// cmpGlob returns the glob of a list, or one for any name.
func cmpGlob(globs []string) string {
	if one := first(globs); one != "" {
		return one
	}
	return "*"
}

// firstOf returns a glob of the first components that a pattern matches.
func firstOf(p pattern.Pattern) string {
	one, _, _ := strings.Cut(string(p), "/")
	if at := strings.IndexByte(one, '{'); at >= 0 {
		one = one[:at] + "*"
	}
	return one
}

// allowed returns the actions that units with the key allow at a service.
func (c *compiled) allowed(key, service string) action.Set {
	var set action.Set
	for _, u := range c.byKey[key] {
		if u.serves(service) {
			set |= u.actions
		}
	}
	return set
}

// atoms returns the actions that a set allows, each by itself: with *, all of them.
func atoms(s action.Set) action.Set {
	if s&action.All != 0 {
		return action.Pull | action.Push | action.Delete | action.All
	}
	return s
}

// atoms are those of a unit. A registry knows one action on its catalog.
func (u *unit) atoms() action.Set {
	if u.pattern == "" {
		return action.All
	}
	return atoms(u.actions)
}

var eachAction = []action.Set{action.Pull, action.Push, action.Delete, action.All}

// nameIndex finds globs that may match a name which another glob matches. It compares what stands
// before the first *.
type nameIndex struct {
	exact, prefix map[string][]int
	lengths       []int
	sorted        []string // all keys
}

func (x *nameIndex) add(glob string, position int) {
	if x.exact == nil {
		x.exact, x.prefix = map[string][]int{}, map[string][]int{}
	}
	before, _, isPrefix := strings.Cut(glob, "*")
	if isPrefix {
		x.prefix[before] = append(x.prefix[before], position)
	} else {
		x.exact[before] = append(x.exact[before], position)
	}
}

func (x *nameIndex) sort() {
	for _, all := range []map[string][]int{x.exact, x.prefix} {
		for key := range all {
			x.sorted = append(x.sorted, key)
		}
	}
	slices.Sort(x.sorted)
	x.sorted = slices.Compact(x.sorted)
	for key := range x.prefix {
		x.lengths = append(x.lengths, len(key))
	}
	slices.Sort(x.lengths)
	x.lengths = slices.Compact(x.lengths)
}

// fewest returns the shorter of two lists of positions, without making the longer one if one is short.
func fewest(x *nameIndex, glob string, other *nameIndex, otherGlob string) []int {
	const short = 256
	for limit := short; ; limit *= 16 {
		if found, ok := x.findUpTo(glob, limit); ok {
			return found
		}
		if found, ok := other.findUpTo(otherGlob, limit); ok {
			return found
		}
	}
}

// find returns the positions in ascending order.
func (x *nameIndex) find(glob string) []int {
	found, _ := x.findUpTo(glob, math.MaxInt)
	return found
}

// findUpTo returns false if there are more than limit.
func (x *nameIndex) findUpTo(glob string, limit int) ([]int, bool) {
	before, _, isPrefix := strings.Cut(glob, "*")
	var found []int
	for _, length := range x.lengths {
		if length <= len(before) {
			found = append(found, x.prefix[before[:length]]...)
		}
	}
	if !isPrefix {
		found = append(found, x.exact[before]...)
	} else {
		at, _ := slices.BinarySearch(x.sorted, before)
		for ; at < len(x.sorted) && strings.HasPrefix(x.sorted[at], before); at++ {
			if x.sorted[at] != before {
				found = append(found, x.prefix[x.sorted[at]]...)
			}
			found = append(found, x.exact[x.sorted[at]]...)
			if len(found) > limit {
				return nil, false
			}
		}
	}
	if len(found) > limit {
		return nil, false
	}
	slices.Sort(found)
	return found, true
}
