package subjects

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/selection"

	"github.com/pullpass/pullpass/internal/oidc/identity"
)

// Index finds, of many lists of subjects, those that may match the caller, without comparing the
// others. Each list is filed under the prefixes or whole values that one field of its subjects can
// have. The index leaves out only lists that Asker.MatchAny would reject without cost and without
// doubt, so it never changes a decision. It is immutable and safe for concurrent use; the zero
// Index has no lists.
type Index struct {
	fixed  [fixed]drawer
	labels map[string]map[string][]int // by name and value
	claims map[string]map[string][]int // by name and value
	// rest holds the lists that cannot be filed, because they may match any caller.
	rest    []int
	isEmpty bool        // all lists are in rest
	crowds  map[int]int // the number of filed lists to compare, by position

	byNode []int // the lists that are filed by nodes

	// claimed holds the lists that are filed by a claim. All of them are compared if comparing them
	// has a cost (Asker.spent). That cost is computed with mostValues, the most values of any of
	// their claims.
	claimed    []int
	compared   map[string]bool // all claims of such lists
	mostValues int
}

// drawer has the positions of lists, ascending, by the value or prefix of a field.
type drawer struct {
	exact, prefix map[string][]int
	lengths       []int // of the prefixes
}

func (d *drawer) look(found []int, value string) []int {
	found = append(found, d.exact[value]...)
	for _, length := range d.lengths {
		if length > len(value) {
			break
		}
		found = append(found, d.prefix[value[:length]]...)
	}
	return found
}

// List is the subjects of a rule or denial, with its position. A list without subjects matches
// every caller.
type List struct {
	Position int
	Subjects []Match
}

type field uint8

const (
	clusters field = iota
	namespaces
	serviceAccounts
	nodes
	tokenIDs
	identities
	fixed // the number of fields with a name of their own
	labelled
	claimed
)

// text is a value or prefix that a list is filed under.
type text struct {
	field    field
	isPrefix bool
	name     string // of the label or claim
	text     string
}

// NewIndex files the lists. Their positions must ascend.
func NewIndex(lists []List) Index {
	shared := map[text]int{}
	for _, list := range lists {
		for i := range list.Subjects {
			for _, texts := range list.Subjects[i].texts() {
				for _, t := range texts {
					shared[t]++
				}
			}
		}
	}
	x := Index{crowds: map[int]int{}, compared: map[string]bool{}}
	for _, list := range lists {
		x.file(list, shared)
	}
	for f := range x.fixed {
		d := &x.fixed[f]
		for prefix := range d.prefix {
			d.lengths = append(d.lengths, len(prefix))
		}
		slices.Sort(d.lengths)
		d.lengths = slices.Compact(d.lengths)
	}
	x.isEmpty = len(x.rest) == len(lists)
	return x
}

// file files a list, for each of its subjects, under the texts that the fewest other lists share.
func (x *Index) file(list List, shared map[text]int) {
	var under []text
	var byClaim []*Match
	crowd := 0
	for i := range list.Subjects {
		m := &list.Subjects[i]
		var best []text
		least := 0
		for _, texts := range m.texts() {
			others := 0
			for _, t := range texts {
				others += shared[t]
			}
			if best == nil || others < least {
				best, least = texts, others
			}
		}
		if best == nil {
			under = nil
			break
		}
		under, crowd = append(under, best...), crowd+least
		if best[0].field == claimed {
			byClaim = append(byClaim, m)
		}
	}
	if under == nil {
		x.rest = append(x.rest, list.Position)
		return
	}
	x.crowds[list.Position] = crowd
	if slices.ContainsFunc(under, func(t text) bool { return t.field == nodes }) {
		x.byNode = append(x.byNode, list.Position)
	}
	for _, t := range under {
		at := x.drawer(t)
		if before := at[t.text]; len(before) == 0 || before[len(before)-1] != list.Position {
			at[t.text] = append(before, list.Position)
		}
	}
	for _, m := range byClaim {
		for _, c := range m.Claims {
			x.compared[c.Name] = true
			x.mostValues = max(x.mostValues, len(c.Values))
		}
	}
	if byClaim != nil {
		x.claimed = append(x.claimed, list.Position)
	}
}

// drawer returns the lists by text, for texts like this one.
func (x *Index) drawer(t text) map[string][]int {
	made := func(drawer *map[string][]int) map[string][]int {
		if *drawer == nil {
			*drawer = map[string][]int{}
		}
		return *drawer
	}
	named := func(drawers *map[string]map[string][]int) map[string][]int {
		if *drawers == nil {
			*drawers = map[string]map[string][]int{}
		}
		drawer := (*drawers)[t.name]
		(*drawers)[t.name] = made(&drawer)
		return drawer
	}
	switch {
	case t.field == labelled:
		return named(&x.labels)
	case t.field == claimed:
		return named(&x.claims)
	case t.isPrefix:
		return made(&x.fixed[t.field].prefix)
	}
	return made(&x.fixed[t.field].exact)
}

// texts returns the values or prefixes of each field that a matching caller must have, for fields
// that can be indexed.
func (m *Match) texts() [][]text {
	var all [][]text
	for _, f := range []struct {
		field field
		globs []string
	}{{namespaces, m.Namespaces}, {serviceAccounts, m.ServiceAccounts}, {nodes, m.Nodes}, {clusters, m.Clusters}} {
		var texts []text
		for _, glob := range f.globs {
			before, _, isPrefix := strings.Cut(glob, "*")
			if before == "" {
				texts = nil
				break
			}
			texts = append(texts, text{field: f.field, isPrefix: isPrefix, text: before})
		}
		if texts != nil {
			all = append(all, texts)
		}
	}
	exactly := func(f field, name string, values []string) {
		var texts []text
		for _, value := range values {
			texts = append(texts, text{field: f, name: name, text: value})
		}
		if texts != nil {
			all = append(all, texts)
		}
	}
	exactly(tokenIDs, "", m.TokenIDs)
	exactly(identities, "", m.Identities)
	if m.Denies { // unknown labels and claims match
		return all
	}
	if m.NamespaceSelector != nil {
		requirements, _ := m.NamespaceSelector.Requirements()
		for _, r := range requirements {
			switch r.Operator() {
			case selection.Equals, selection.DoubleEquals, selection.In:
				exactly(labelled, r.Key(), r.Values().List())
			}
		}
	}
	for _, c := range m.Claims {
		if !slices.ContainsFunc(c.Values, func(value string) bool { return strings.Contains(value, "*") }) {
			exactly(claimed, c.Name, c.Values)
		}
	}
	return all
}

// Crowd returns the greatest number of lists that a caller of the list at a position is compared
// with, because they share its texts.
func (x *Index) Crowd(position int) int {
	if crowd, ok := x.crowds[position]; ok {
		return crowd
	}
	return len(x.rest)
}

// Candidates holds the positions of lists that may match the caller.
type Candidates struct {
	found []int // ascending
	last  int   // that was returned; -1: none
	// claimed holds the lists to add when the budget for comparing claims is spent.
	claimed []int
	asker   *Asker
}

// Find returns the lists that may match the caller, in the buffer if it is large enough.
func (x *Index) Find(a *Asker, buffer []int) Candidates {
	c := Candidates{found: x.rest, last: -1, asker: a, claimed: x.claimed}
	id := a.Identity
	if id == nil || x.isEmpty {
		return c
	}
	found := x.fixed[namespaces].look(buffer[:0], id.Kubernetes.Namespace)
	found = x.fixed[serviceAccounts].look(found, id.Kubernetes.ServiceAccount.Name)
	if a.NoToken {
		found = append(found, x.byNode...)
	} else {
		found = x.fixed[nodes].look(found, id.Kubernetes.Node.Name)
	}
	found = x.fixed[clusters].look(found, id.Cluster)
	found = x.fixed[tokenIDs].look(found, id.TokenID)
	if x.labels != nil {
		for name, value := range a.NamespaceLabels {
			found = append(found, x.labels[name][value]...)
		}
	}
	if id.External != nil {
		found = x.fixed[identities].look(found, id.External.Provider)
		if x.claimed != nil {
			found = x.lookAtClaims(found, id.External.Claims)
		}
	}
	if len(found) > 0 {
		found = append(found, x.rest...)
		slices.Sort(found)
		c.found = found
	}
	return c
}

// lookAtClaims finds lists by claims. If comparing one of the claims has a cost, it returns all
// lists that are filed by claims. Otherwise the index would spend less than comparing all lists,
// and so could grant more.
func (x *Index) lookAtClaims(found []int, claims identity.Claims) []int {
	before := len(found)
	for name := range claims {
		if !x.compared[name] {
			continue
		}
		texts := claims.Texts(name)
		if priceOf(texts, x.mostValues, true) > 0 {
			return append(found[:before], x.claimed...)
		}
		for _, value := range texts {
			found = append(found, x.claims[name][value]...)
		}
	}
	return found
}

// Next returns the next position, in ascending order, once each. When the budget for comparing
// claims is spent, every comparison of claims is in doubt. So all lists that are filed by claims
// follow.
func (c *Candidates) Next() (position int, ok bool) {
	if c.claimed != nil && c.asker.spent >= maxSpent {
		c.found = slices.Concat(c.found, c.claimed)
		slices.Sort(c.found)
		c.claimed = nil
	}
	for len(c.found) > 0 {
		position, c.found = c.found[0], c.found[1:]
		if position > c.last {
			c.last = position
			return position, true
		}
	}
	return 0, false
}
