package diff

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/selection"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/condition"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/policy/subjects"
)

// box is a set of requests that may be granted on one side and not on the other: those of a unit, at
// a service, by callers of one kind.
type box struct {
	unit    *unit
	denial  *denial // that refuses them on the other side; nil: none does
	service string
	cluster string // "": any

	identity    string // of callers that are not ServiceAccounts
	isAnonymous bool
}

// near is what may keep requests of a box from being a difference.
type near struct {
	denials []*denial // of the side that grants
	barred  []*denial // of the other side; they are boxes of their own
	rules   []*unit   // of the other side, which grant the same
}

func (n near) filter(keep func(*whom) bool) near {
	keepDenial := func(d *denial) bool { return keep(d.whom) }
	return near{
		filtered(n.denials, keepDenial), filtered(n.barred, keepDenial),
		filtered(n.rules, func(u *unit) bool { return u.whom == nil || keep(u.whom) }),
	}
}

func filtered[T any](all []T, keep func(T) bool) []T {
	for i, one := range all {
		if !keep(one) {
			rest := slices.Clone(all[:i])
			for _, other := range all[i+1:] {
				if keep(other) {
					rest = append(rest, other)
				}
			}
			return rest
		}
	}
	return all
}

// whoms yields all subjects.
func (n near) whoms(yield func(*whom) bool) {
	for _, list := range [][]*denial{n.denials, n.barred} {
		for _, d := range list {
			if !yield(d.whom) {
				return
			}
		}
	}
	for _, u := range n.rules {
		if u.whom != nil && !yield(u.whom) {
			return
		}
	}
}

// finder looks for what to grants and from does not.
type finder struct {
	from, to *compiled
	empty    map[string]bool // areas without a repository, with what is taken from them
	// isPossible: a request was judged that does not differ, but would if conditions decided otherwise.
	isPossible bool
	// isCut: the search ended before all requests were judged.
	isCut bool
	// left and tries bound the requests that are judged in all, and in the present box.
	left, tries int
	context     func() error // that of the caller: when it ends, so does the search
}

const (
	// maxTries bounds the requests that one direction judges: some seconds.
	maxTries = 1 << 20
	// boxShare is the part of what is left that one box may have. So there is always some for the next.
	boxShare = 16
	// minTries is for each box, however many there are.
	minTries = 1 << 8
)

// subjectsOf returns the subjects that every caller of the box matches.
func (b *box) subjects() []*whom {
	var all []*whom
	if b.unit.whom != nil {
		all = append(all, b.unit.whom)
	}
	if b.denial != nil {
		all = append(all, b.denial.whom)
	}
	return all
}

func globs(all []*whom, of func(*whom) []string) []string {
	var list []string
	for _, w := range all {
		if one := first(of(w)); one != "" {
			list = append(list, one)
		}
	}
	return list
}

func clustersOf(w *whom) []string {
	if w.onlyIn != "" && w.Clusters == nil {
		return []string{w.onlyIn}
	}
	return w.Clusters
}
func namespacesOf(w *whom) []string { return w.Namespaces }
func accountsOf(w *whom) []string   { return w.ServiceAccounts }

// nearAccounts returns what is near a box of ServiceAccounts, for one action.
func (f *finder) nearAccounts(b *box, a action.Set) near {
	own := b.subjects()
	glob := "*"
	for _, one := range globs(own, namespacesOf) {
		if glob == "*" || !strings.Contains(one, "*") {
			glob = one
		}
	}
	overlaps := func(w *whom) bool {
		if w.Identities != nil {
			return false
		}
		return !slices.ContainsFunc(own, func(other *whom) bool {
			return !overlap(clustersOf(w), clustersOf(other)) || !overlap(w.Namespaces, other.Namespaces) || !overlap(w.ServiceAccounts, other.ServiceAccounts)
		}) && (b.cluster == "" || subjects.MatchGlobs(clustersOf(w), b.cluster))
	}
	var n near
	for _, i := range f.to.barred.find(glob) {
		if d := f.to.denials[i]; overlaps(d.whom) {
			n.denials = append(n.denials, d)
		}
	}
	if b.denial != nil {
		return n
	}
	for _, i := range f.from.barred.find(glob) {
		if d := f.from.denials[i]; overlaps(d.whom) {
			n.barred = append(n.barred, d)
		}
	}
	n.rules = f.rules(fewest(&f.from.accounts, glob, &f.from.byPath, firstOf(b.unit.pattern)), b, a, overlaps)
	return n
}

// rules returns those of the other side that can grant a part of the box.
func (f *finder) rules(candidates []int, b *box, a action.Set, overlaps func(*whom) bool) []*unit {
	var all []*unit
	if _, ok := f.from.service(b.service); !ok {
		return nil
	}
	for _, i := range candidates {
		u := f.from.units[i]
		if u.serves(b.service) && u.atoms()&a != 0 && (u.whom == nil || overlaps(u.whom)) &&
			(u.pattern == "") == (b.unit.pattern == "") && u.pattern.Overlaps(b.unit.pattern) {
			all = append(all, u)
		}
	}
	return all
}

// overlap reports whether a name can match a glob of each list.
func overlap(a, b []string) bool {
	return a == nil || b == nil || slices.ContainsFunc(a, func(one string) bool {
		return slices.ContainsFunc(b, func(other string) bool { return pattern.Pattern(one).Overlaps(pattern.Pattern(other)) })
	})
}

// near returns what is near a box, for one action.
func (f *finder) near(b *box, a action.Set) near {
	switch {
	case b.isAnonymous:
		return f.nearAnonymous(b, a)
	case b.identity != "":
		return f.nearJobs(b, a)
	}
	return f.nearAccounts(b, a)
}

// find returns a request of the box that to grants and from does not; nil: there is none.
func (f *finder) find(b *box, a action.Set, n near) (*point, error) {
	f.isPossible, f.isCut = false, false
	if b.unit.whom != nil && !mayHold(b.unit.whom, b.service) {
		return nil, nil
	}
	most := max(minTries, f.left/boxShare)
	f.tries = most
	found, err := f.search(b, a, n)
	f.left -= min(f.left, most-f.tries)
	if errors.Is(err, errTooLarge) {
		f.isPossible, f.isCut = true, true
		return nil, nil
	}
	return found, err
}

func (f *finder) search(b *box, a action.Set, n near) (*point, error) {
	switch {
	case b.isAnonymous:
		return f.repository(b, a, n, point{isAnonymous: true, service: b.service})
	case b.identity != "":
		return f.job(b, a, n)
	}
	s := accountSearch{finder: f, box: b, action: a}
	return s.clusters(n)
}

// mayHold reports whether the condition of a subject can be true. It knows those that read nothing but the service.
func mayHold(w *whom, service string) bool {
	if w.Condition == nil || strings.Contains(w.condition, "kubernetes") || len(w.Condition.Uses()) > 0 {
		return true
	}
	holds, err := w.Condition.Holds(condition.Variables{Service: service}, new(uint64))
	return err == nil && holds
}

func (f *finder) nearAnonymous(b *box, a action.Set) (n near) {
	if _, ok := f.from.service(b.service); !ok {
		return n
	}
	for _, i := range f.from.jobs[""] {
		if u := f.from.units[i]; b.denial == nil && u.serves(b.service) && u.atoms()&a != 0 && (u.pattern == "") == (b.unit.pattern == "") {
			n.rules = append(n.rules, u)
		}
	}
	return n
}

// accountSearch chooses a ServiceAccount, one name after the other. Each name leaves fewer subjects near.
type accountSearch struct {
	*finder
	box    *box
	action action.Set
}

func (s *accountSearch) clusters(n near) (*point, error) {
	p := point{service: s.box.service}
	own := globs(s.box.subjects(), clustersOf)
	names := func(yield func(string, error) bool) {
		for _, c := range s.to.Clusters {
			if !yield(c.Name, nil) {
				return
			}
		}
	}
	if s.to.IsOpen {
		word := "prod-eu"
		if slices.ContainsFunc(own, func(glob string) bool { return glob != "*" }) {
			word = "eu"
		}
		names = labels.representatives(word, own, s.names(n, "cluster", labels, clustersOf, &p))
	}
	for name, err := range names {
		if err != nil {
			return nil, err
		}
		if s.box.cluster != "" && s.box.cluster != name || slices.ContainsFunc(own, func(glob string) bool { return !pattern.MatchName(glob, name) }) {
			continue
		}
		if s.box.unit.whom != nil && !s.box.unit.whom.isIn(name) || !s.to.mayGrant(s.box.unit, name) {
			continue
		}
		p.cluster = name
		if found, err := s.namespaces(n.filter(func(w *whom) bool { return subjects.MatchGlobs(clustersOf(w), name) }), p); found != nil || err != nil {
			return found, err
		}
	}
	return nil, nil
}

func (s *accountSearch) namespaces(n near, p point) (*point, error) {
	refused := func(w *whom) bool { return w.Namespaces == nil && w.ServiceAccounts == nil && isPlain(w) }
	if s.isRefused(n, refused) {
		return nil, nil
	}
	own := globs(s.box.subjects(), namespacesOf)
	all := func(yield func(string, error) bool) {
		labels.representatives("example", own, s.names(n, "namespace", labels, namespacesOf, &p))(yield)
	}
	if requests, ok := s.asking(p.cluster); ok {
		names := map[string]bool{}
		for _, r := range requests {
			names[r.Namespace()] = true
		}
		all = listed(names, own)
	}
	for name, err := range all {
		if err != nil {
			return nil, err
		}
		p.namespace = name
		if found, err := s.accounts(n.filter(func(w *whom) bool { return subjects.MatchGlobs(w.Namespaces, name) }), p); found != nil || err != nil {
			return found, err
		}
	}
	return nil, nil
}

func (s *accountSearch) accounts(n near, p point) (*point, error) {
	refused := func(w *whom) bool { return w.ServiceAccounts == nil && isPlain(w) }
	if s.isRefused(n, refused) {
		return nil, nil
	}
	own := globs(s.box.subjects(), accountsOf)
	all := func(yield func(string, error) bool) {
		subdomains.representatives("example", own, s.names(n, "serviceAccount", subdomains, accountsOf, &p))(yield)
	}
	if requests, ok := s.asking(p.cluster); ok {
		names := map[string]bool{}
		for _, r := range requests {
			for _, account := range r.ServiceAccounts() {
				names[account] = names[account] || r.Namespace() == p.namespace
			}
		}
		maps.DeleteFunc(names, func(_ string, isThere bool) bool { return !isThere })
		all = listed(names, own)
	}
	for name, err := range all {
		if err != nil {
			return nil, err
		}
		p.account = name
		if found, err := s.facts(n.filter(func(w *whom) bool { return subjects.MatchGlobs(w.ServiceAccounts, name) }), p); found != nil || err != nil {
			return found, err
		}
	}
	return nil, nil
}

// mayGrant reports whether the unit can grant anything in the cluster.
func (c *compiled) mayGrant(u *unit, name string) bool {
	cluster, _ := c.cluster(name)
	switch {
	case u.annotation != "" && !cluster.KnowsAnnotations, u.whom != nil && u.whom.NamespaceSelector != nil && !cluster.KnowsLabels:
		return false
	case u.isLimited() && !slices.ContainsFunc(c.within(name), u.pattern.Overlaps):
		return false
	case u.requests:
		o := cluster.Objects
		return o != nil && o.RequestsAreRead && (!o.AreKnown || len(o.Requests) > 0)
	}
	return true
}

// asking returns the RepositoryAccess objects that can count for the box, if they are known.
func (s *accountSearch) asking(cluster string) ([]*policy.Request, bool) {
	c, _ := s.to.cluster(cluster)
	if !s.box.unit.requests || !c.Objects.AreKnown {
		return nil, false
	}
	return filtered(c.Objects.Requests, func(r *policy.Request) bool {
		return slices.ContainsFunc(r.Written(), func(asked policy.WrittenRequest) bool {
			return asked.Actions.Intersect(s.box.unit.actions) != 0 && asked.Repositories[0].Overlaps(s.box.unit.pattern)
		})
	}), true
}

// listed yields the names that all of the globs match.
func listed(names map[string]bool, globs []string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, name := range slices.Sorted(maps.Keys(names)) {
			if !slices.ContainsFunc(globs, func(glob string) bool { return !pattern.MatchName(glob, name) }) && !yield(name, nil) {
				return
			}
		}
	}
}

// isPlain reports whether nothing but names counts for the subject.
func isPlain(w *whom) bool {
	return w.Nodes == nil && w.TokenIDs == nil && w.NamespaceSelector == nil && w.Condition == nil && w.Claims == nil
}

// isRefused reports whether all that is left of the box is refused, or granted on both sides.
func (s *accountSearch) isRefused(n near, by func(*whom) bool) bool {
	isBy := func(d *denial) bool { return by(d.whom) }
	return slices.ContainsFunc(n.denials, isBy) || slices.ContainsFunc(n.barred, isBy) || slices.ContainsFunc(n.rules, func(u *unit) bool {
		return (u.whom == nil || by(u.whom)) && u.annotation == "" && !u.isLimited() && u.pattern.Contains(s.box.unit.pattern)
	})
}

// names returns globs and names of which a name can match some and not others: those of subjects,
// those with which patterns compare the name, and texts of conditions.
func (s *accountSearch) names(n near, placeholder string, k kind, of func(*whom) []string, p *point) []string {
	found := map[string]bool{}
	add := func(glob string) {
		if glob != "" && k.isName(strings.ReplaceAll(glob, "*", "x")) {
			found[glob] = true
		}
	}
	for w := range n.whoms {
		for _, glob := range of(w) {
			add(glob)
		}
	}
	for text, isPart := range s.texts(n, placeholder) {
		add(text)
		if isPart {
			for _, glob := range []string{text + "*", "*" + text, "*" + text + "*"} {
				add(glob)
			}
		}
	}
	patterns := s.patterns(n, p)
	if placeholder == "namespace" { // ServiceAccounts are chosen afterwards: a namespace can need the name of one
		accounts := globs(s.box.subjects(), accountsOf)
		for w := range n.whoms {
			accounts = append(accounts, accountsOf(w)...)
		}
		slices.Sort(accounts)
		for _, account := range slices.Compact(accounts) {
			for _, text := range patterns {
				if strings.Contains(text, "{serviceAccount}") {
					patterns = append(patterns, strings.ReplaceAll(text, "{serviceAccount}", account))
				}
			}
		}
	}
	isMentioned := slices.ContainsFunc(patterns, func(p string) bool { return strings.Contains(p, "{"+placeholder+"}") })
	if !isMentioned {
		return slices.Sorted(maps.Keys(found))
	}
	isPart := false
	for _, text := range patterns {
		for component := range strings.SplitSeq(text, "/") {
			isPart = isPart || strings.Contains(component, "{") && component[0] != '{' || strings.Count(component, "}") > 0 && component[len(component)-1] != '}' || strings.Count(component, "{") > 1
			if component != "**" && !strings.HasPrefix(component, "{claims.") {
				add(withoutPlaceholders(component))
			}
		}
	}
	if isPart { // the value is a part of a component: compare it with parts of others
		for _, one := range patterns {
			for _, other := range patterns {
				for _, word := range []string{"", "x", "x-x"} {
					name := strings.ReplaceAll(strings.ReplaceAll(withoutPlaceholders(other), "**", "x"), "*", word)
					choices, _ := pattern.Pattern(one).Solve(name)
					for _, values := range choices {
						add(values[placeholder])
						add(values[placeholder] + "*")
					}
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// withoutPlaceholders returns a pattern that matches no less.
func withoutPlaceholders(text string) string {
	for {
		before, rest, ok := strings.Cut(text, "{")
		if !ok {
			return text
		}
		_, after, _ := strings.Cut(rest, "}")
		text = before + "*" + after
	}
}

// patterns returns those that can matter, with the names that are known so far.
func (s *accountSearch) patterns(n near, p *point) []string {
	var all []pattern.Pattern
	add := func(side *compiled, u *unit) {
		all = append(all, u.pattern)
		if u.isLimited() {
			for _, c := range side.Clusters {
				if p.cluster == "" || p.cluster == c.Name {
					all = append(all, side.within(c.Name)...)
				}
			}
		}
	}
	add(s.to, s.box.unit)
	for _, u := range n.rules {
		add(s.from, u)
	}
	known := strings.NewReplacer()
	if p.namespace != "" {
		known = strings.NewReplacer("{cluster}", p.cluster, "{namespace}", p.namespace)
	} else if p.cluster != "" {
		known = strings.NewReplacer("{cluster}", p.cluster)
	}
	texts := map[string]bool{}
	for _, one := range all {
		texts[known.Replace(string(one))] = true
	}
	if slices.ContainsFunc(all, pattern.Pattern.HasPlaceholder) && (s.box.unit.requests || slices.ContainsFunc(n.rules, func(u *unit) bool { return u.requests })) {
		for _, side := range []*compiled{s.to, s.from} {
			for _, c := range side.Clusters {
				if c.Objects == nil {
					continue
				}
				for _, r := range c.Objects.Requests {
					for _, asked := range r.Written() {
						texts[string(asked.Repositories[0])] = true
					}
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(texts))
}

// operators are between the terms of a condition.
var operators = strings.NewReplacer("&&", "\n", "||", "\n")

// terms yields the terms of conditions. Only texts in those that read a value are tried for it: all texts for all values are too
// many callers. If a text of another term counts all the same, mayDiffer sees that.
func terms(conditions ...string) iter.Seq[string] {
	return strings.SplitSeq(operators.Replace(strings.Join(conditions, "\n")), "\n")
}

// comparesParts reports whether a term may compare a part of a value, and not only the whole by == or in.
func comparesParts(term string) bool { return strings.ContainsAny(term, "(<>+") }

// texts yields the texts in conditions that can count for a name of the ServiceAccount, and whether for parts of it.
func (s *accountSearch) texts(n near, field string) iter.Seq2[string, bool] {
	return func(yield func(string, bool) bool) {
		for term := range terms(conditionsOf(s.box, n)...) {
			if !strings.Contains(term, field) && !strings.Contains(term, "claims") {
				continue
			}
			isPart := comparesParts(term)
			for _, text := range literals(term) {
				// Subjects and references consist of names.
				for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ':' || r == '/' }) {
					if part != text && !yield(part, isPart) {
						return
					}
				}
				if !yield(text, isPart) {
					return
				}
			}
		}
	}
}

func conditionsOf(b *box, n near) []string {
	found := map[string]bool{}
	note := func(w *whom) bool {
		if w.Condition != nil {
			found[w.condition] = true
		}
		return true
	}
	for _, w := range b.subjects() {
		note(w)
	}
	n.whoms(note)
	return slices.Sorted(maps.Keys(found))
}

// literals returns the texts that stand in a condition.
func literals(condition string) []string {
	var all []string
	for i := 0; i < len(condition); i++ {
		quote := condition[i]
		if quote != '"' && quote != '\'' {
			continue
		}
		end := i + 1
		for end < len(condition) && condition[end] != quote {
			if condition[end] == '\\' {
				end++
			}
			end++
		}
		if end >= len(condition) {
			break
		}
		inner := condition[i+1 : end]
		if text, err := strconv.Unquote(`"` + strings.ReplaceAll(inner, `\'`, `'`) + `"`); err == nil {
			inner = text
		}
		all = append(all, inner)
		i = end
	}
	return all
}

// facts chooses what is not a name of the ServiceAccount: node, token and labels.
func (s *accountSearch) facts(n near, p point) (*point, error) {
	if s.isRefused(n, isPlain) {
		return nil, nil
	}
	nodes, tooLarge := s.nodes(n)
	for _, node := range nodes {
		p.node = node
		for _, token := range s.tokens(n) {
			p.tokenID = token
			for labels, err := range s.labels(n, &p) {
				if err != nil {
					return nil, err
				}
				p.labels = labels
				if found, err := s.judge(s.box, s.action, n, p); found != nil || err != nil {
					return found, err
				}
			}
		}
	}
	return nil, tooLarge
}

// nodes returns names of nodes to try. With an error, there are others.
func (s *accountSearch) nodes(n near) (all []string, err error) {
	var lists [][]string
	for _, w := range s.box.subjects() {
		if w.Nodes != nil {
			lists = append(lists, w.Nodes)
		}
	}
	var others []string
	for w := range n.whoms {
		others = append(others, w.Nodes...)
	}
	isRead := false
	for term := range terms(conditionsOf(s.box, n)...) {
		if strings.Contains(term, "kubernetes.node") {
			isRead = true
			for _, text := range literals(term) {
				if others = append(others, text); comparesParts(term) {
					others = append(others, text+"*", "*"+text)
				}
			}
		}
	}
	all = []string{""}
	if len(lists) == 0 && !isRead {
		return all, nil
	}
	if len(lists) > 0 {
		all = nil
	}
	var choose func(globs []string, rest [][]string)
	choose = func(globs []string, rest [][]string) {
		if err != nil {
			return
		}
		if len(rest) > 0 {
			for _, glob := range rest[0] {
				choose(append(slices.Clone(globs), glob), rest[1:])
			}
			return
		}
		for name, tooLarge := range subdomains.representatives("example", globs, others) {
			if tooLarge != nil {
				err = tooLarge
				return
			}
			all = append(all, name)
		}
	}
	choose(nil, lists)
	return all, err
}

func (s *accountSearch) tokens(near) []string {
	var all []string
	for _, w := range s.box.subjects() {
		all = append(all, w.TokenIDs...)
	}
	if all == nil {
		return []string{""}
	}
	return all
}

// maxLabels bounds the sets of labels that are tried for one ServiceAccount.
const maxLabels = 1 << 14

// labels yields sets of labels, as far as selectors and conditions tell them apart.
func (s *accountSearch) labels(n near, p *point) iter.Seq2[map[string]string, error] {
	values := map[string][]string{}
	note := func(key string, more ...string) {
		for _, value := range more {
			if !slices.Contains(values[key], value) {
				values[key] = append(values[key], value)
			}
		}
	}
	isNeeded := false
	read := func(w *whom) bool {
		if w.NamespaceSelector != nil {
			requirements, _ := w.NamespaceSelector.Requirements()
			for _, r := range requirements {
				note(r.Key(), r.ValuesUnsorted()...)
				if op := r.Operator(); op == selection.Exists || op == selection.DoesNotExist || op == selection.NotIn {
					note(r.Key(), "example")
				}
			}
		}
		if w.readsLabels() && w.Condition != nil {
			for term := range terms(w.condition) {
				for _, key := range labelKeys(term) {
					note(key, literals(term)...)
					note(key, "example")
				}
			}
		}
		return true
	}
	for _, w := range s.box.subjects() {
		read(w)
		isNeeded = isNeeded || w.NamespaceSelector != nil && !w.Denies
	}
	n.whoms(read)
	to, _ := s.to.cluster(p.cluster)
	from, _ := s.from.cluster(p.cluster)
	keys := slices.Sorted(maps.Keys(values))
	return func(yield func(map[string]string, error) bool) {
		if !isNeeded && !yield(nil, nil) || !to.KnowsLabels && !from.KnowsLabels || len(keys) == 0 && !isNeeded {
			return
		}
		tried, isOver := 0, false
		var choose func(chosen map[string]string, rest []string)
		choose = func(chosen map[string]string, rest []string) {
			if isOver {
				return
			}
			if len(rest) == 0 {
				if tried++; tried > maxLabels {
					isOver = true
					yield(nil, errTooLarge)
					return
				}
				isOver = !yield(maps.Clone(chosen), nil)
				return
			}
			choose(chosen, rest[1:])
			for _, value := range values[rest[0]] {
				chosen[rest[0]] = value
				choose(chosen, rest[1:])
			}
			delete(chosen, rest[0])
		}
		choose(map[string]string{}, keys)
	}
}

// labelKeys returns the keys of labels that a condition reads.
func labelKeys(condition string) []string {
	var all []string
	for _, after := range strings.Split(condition, "kubernetes.labels")[1:] {
		switch {
		case strings.HasPrefix(after, "["):
			all = append(all, literals(after)[:min(1, len(literals(after)))]...)
		case strings.HasPrefix(after, "."):
			key := strings.TrimLeft(after[1:], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
			all = append(all, after[1:len(after)-len(key)])
		}
	}
	for _, before := range strings.Split(condition, "in kubernetes.labels") { // "key" in kubernetes.labels
		if texts := literals(before); len(texts) > 0 {
			all = append(all, texts[len(texts)-1])
		}
	}
	return all
}

// judge compares the subjects with a caller, and looks for a repository.
func (f *finder) judge(b *box, a action.Set, n near, p point) (*point, error) {
	if f.tries--; f.tries < 0 {
		f.tries = 0
		return nil, errTooLarge
	}
	if err := f.context(); err != nil {
		return nil, err
	}
	found, err := f.judgeExactly(b, a, n, p)
	if found != nil || err != nil || f.isPossible {
		return found, err
	}
	f.isPossible, err = f.mayDiffer(b, a, n, p)
	return nil, err
}

func (f *finder) judgeExactly(b *box, a action.Set, n near, p point) (*point, error) {
	granting, ok := f.to.subject(&p)
	if !ok {
		return nil, nil
	}
	if b.denial == nil || !b.denial.isNew {
		refusing, ok := f.from.subject(&p)
		if !ok {
			return nil, nil
		}
		matches := func(w *whom) bool { return isMatch(refusing, p.service, w) }
		if b.denial != nil && !matches(b.denial.whom) || slices.ContainsFunc(n.barred, func(d *denial) bool { return !d.isNew && matches(d.whom) }) {
			return nil, nil
		}
		n.rules = filtered(n.rules, func(u *unit) bool { return u.whom == nil || matches(u.whom) })
	}
	if b.unit.whom != nil && !isMatch(granting, p.service, b.unit.whom) ||
		slices.ContainsFunc(n.denials, func(d *denial) bool { return !d.isNew && isMatch(granting, p.service, d.whom) }) {
		return nil, nil
	}
	return f.repository(b, a, n, p)
}

// mayDiffer reports whether the caller would be a difference if each condition decided for it. The values
// that are tried do not show what a condition can be for others.
func (f *finder) mayDiffer(b *box, a action.Set, n near, p point) (bool, error) {
	granting, ok := f.to.subject(&p)
	if !ok || len(conditionsOf(b, n)) == 0 {
		return false, nil
	}
	own := map[string]bool{} // conditions that hold for the caller
	for _, w := range b.subjects() {
		if w.Condition != nil {
			own[w.condition] = true
		}
	}
	matches := func(s policy.Subject, w *whom) bool {
		free := *w.Match
		free.Condition = nil
		return isMatch(s, p.service, &whom{Match: &free, onlyIn: w.onlyIn})
	}
	to, _ := f.to.cluster(p.cluster)
	from, _ := f.from.cluster(p.cluster)
	holds := func(s policy.Subject, w *whom) bool {
		// Without labels, a result is the same or unknown.
		isOwn := own[w.condition] && !(w.readsLabels() && to.KnowsLabels && !from.KnowsLabels)
		return (w.Condition == nil || isOwn) && matches(s, w)
	}
	refusing, isKnown := f.from.subject(&p)
	switch {
	case b.denial == nil && !isKnown, b.denial != nil && b.denial.isNew == isKnown:
		return false, nil
	case b.denial != nil && isKnown && !matches(refusing, b.denial.whom):
		return false, nil
	}
	if b.unit.whom != nil && !matches(granting, b.unit.whom) ||
		slices.ContainsFunc(n.denials, func(d *denial) bool { return !d.isNew && holds(granting, d.whom) }) ||
		slices.ContainsFunc(n.barred, func(d *denial) bool { return !d.isNew && holds(refusing, d.whom) }) {
		return false, nil
	}
	n.rules = filtered(n.rules, func(u *unit) bool { return u.whom == nil || holds(refusing, u.whom) })
	if b.unit.pattern == "" {
		return len(n.rules) == 0, nil
	}
	in, others, ok := f.areas(b, a, n, &p)
	if !ok {
		return false, nil
	}
	key := fmt.Sprint(in, others)
	if f.empty[key] {
		return false, nil
	}
	name, err := repositoryIn(in, others, func(string) bool { return true })
	f.empty[key] = name == "" && err == nil
	return name != "", err
}

// isMatch compares a subject as a decision does.
func isMatch(s policy.Subject, service string, w *whom) bool {
	if w.onlyIn != "" && (s.Identity.External != nil || !w.isIn(s.Identity.Cluster)) {
		return false
	}
	asker := subjects.Asker{Identity: s.Identity, NamespaceLabels: s.NamespaceLabels, Service: service}
	return asker.MatchAny([]subjects.Match{*w.Match}, nil)
}

// repository chooses the repository for a caller.
func (f *finder) repository(b *box, a action.Set, n near, p point) (*point, error) {
	u := b.unit
	isDifference := func(name string) bool {
		p.repository = name
		return f.to.granted(&p, a)&a != 0 && f.from.granted(&p, a)&a == 0
	}
	if u.pattern == "" {
		if len(n.rules) == 0 && isDifference("") {
			return &p, nil
		}
		return nil, nil
	}
	in, others, ok := f.areas(b, a, n, &p)
	if !ok {
		return nil, nil
	}
	key := fmt.Sprint(in, others)
	if f.empty[key] {
		return nil, nil
	}
	isTried := false
	name, err := repositoryIn(in, others, func(name string) bool { isTried = true; return isDifference(name) })
	if name == "" && err == nil && !isTried {
		f.empty[key] = true
	}
	if name == "" || err != nil {
		return nil, err
	}
	p.repository = name
	return &p, nil
}

// areas returns the repositories that the unit of the box grants to the caller, and those that the other
// side's rules do; false: there are none of the unit.
func (f *finder) areas(b *box, a action.Set, n near, p *point) (in area, others []area, ok bool) {
	u := b.unit
	p.annotation = u.annotation
	granting, _ := f.to.subject(p)
	refusing, isKnown := f.from.subject(p)
	to, _ := f.to.cluster(p.cluster)
	if u.annotation != "" && !to.KnowsAnnotations {
		return area{}, nil, false
	}
	p.isAsked = u.requests && to.Objects != nil && to.Objects.RequestsAreRead && !to.Objects.AreKnown
	if in, ok = f.to.area(u, granting.Identity, p, a); !ok {
		return area{}, nil, false
	}
	from, _ := f.from.cluster(p.cluster)
	for _, other := range n.rules {
		if !isKnown || other.annotation != "" && (other.annotation != p.annotation || !from.KnowsAnnotations) {
			continue
		}
		if one, ok := f.from.area(other, refusing.Identity, p, a); ok {
			others = append(others, one)
		}
	}
	return in, others, true
}

// area returns the repositories of a unit on which a caller gets the action; false: there are none.
func (c *compiled) area(u *unit, id *oidc.Identity, p *point, a action.Set) (area, bool) {
	own, ok := expand(id, u.pattern)
	if !ok {
		return area{}, false
	}
	one := area{pattern: own[0]}
	if !u.isLimited() {
		return one, true
	}
	within, ok := expand(id, c.within(p.cluster)...)
	one.within = append(one.within, within)
	cluster, _ := c.cluster(p.cluster)
	switch {
	case !u.requests || !ok:
		return one, ok
	case cluster.Objects == nil || !cluster.Objects.RequestsAreRead:
		return area{}, false
	case !cluster.Objects.AreKnown:
		return one, p.isAsked
	}
	var asked []pattern.Pattern
	for _, r := range cluster.Objects.requestsOf(p).Written() {
		if u.actions.Intersect(r.Actions).Cover(a) == a {
			asked = append(asked, r.Repositories...)
		}
	}
	one.within = append(one.within, asked)
	return one, asked != nil
}

// expand replaces placeholders, and leaves out patterns that match nothing. It reports whether any is
// left.
func expand(id *oidc.Identity, all ...pattern.Pattern) ([]pattern.Pattern, bool) {
	var list []pattern.Pattern
	for _, p := range all {
		if text := p.Expand(id); !strings.Contains(text, "{") {
			list = append(list, pattern.Pattern(text))
		}
	}
	return list, list != nil
}
