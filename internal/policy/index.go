package policy

import (
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/subjects"
)

// ruleSet is the rules and denials of the files, or of the objects of a cluster, in
// their order, with an index: what a request costs follows from how many mean who
// asks, and not from how many there are. The zero ruleSet has none.
type ruleSet struct {
	rules []rule
	deny  []denyRule

	whom   subjects.Index // of the rules that byPath has not
	denied subjects.Index
	// byPath has rules for so many that it tells more what they are about: by the first
	// component of the repository. whomElse is by their subjects, for who asks why a
	// scope was not granted.
	byPath   map[string][]int
	isByPath []bool
	whomElse subjects.Index
}

// perPath is how many times fewer rules have to be about a repository than mean who
// asks, for a rule to be found by the repository.
const perPath = 4

func newRuleSet(rules []rule, deny []denyRule) ruleSet {
	s := ruleSet{rules: rules, isByPath: make([]bool, len(rules))}
	s.setDenials(deny)
	all := make([]subjects.List, len(rules))
	about := map[string]int{}
	for i := range rules {
		r := &rules[i]
		all[i] = subjects.List{Position: i, Subjects: r.subjects}
		for _, first := range r.firstComponents() {
			about[first]++
		}
	}
	index := subjects.NewIndex(all)
	var whom, whomElse []subjects.List
	for i := range rules {
		others := 0
		firsts := rules[i].firstComponents()
		for _, first := range firsts {
			others += about[first]
		}
		if firsts == nil || perPath*others > index.Crowd(i) {
			whom = append(whom, all[i])
			continue
		}
		if s.byPath == nil {
			s.byPath = map[string][]int{}
		}
		for _, first := range firsts {
			s.byPath[first] = append(s.byPath[first], i)
		}
		s.isByPath[i] = true
		whomElse = append(whomElse, all[i])
	}
	s.whom, s.whomElse = index, subjects.NewIndex(whomElse)
	if whomElse != nil {
		s.whom = subjects.NewIndex(whom)
	}
	return s
}

func (s *ruleSet) setDenials(deny []denyRule) {
	lists := make([]subjects.List, len(deny))
	for i, d := range deny {
		lists[i] = subjects.List{Position: i, Subjects: d.subjects}
	}
	s.deny, s.denied = deny, subjects.NewIndex(lists)
}

// firstComponents returns with what the repositories begin that the rule is about, each
// once, or nil, if that cannot be told, or if its subjects have to be compared before.
func (r *rule) firstComponents() []string {
	if !subjects.IsFree(r.subjects) {
		return nil
	}
	var firsts []string
	for _, a := range r.allow {
		if a.catalog {
			return nil
		}
		for _, p := range a.repositories {
			first, ok := p.FirstComponent()
			if !ok {
				return nil
			}
			firsts = append(firsts, first)
		}
	}
	slices.Sort(firsts)
	return slices.Compact(firsts)
}

// fewFound is how many rules most subjects are compared with, without an allocation.
const fewFound = 16

func (e *evaluation) sets() [2]*ruleSet {
	return [...]*ruleSet{&e.policy.ruleSet, e.subject.Objects.ruleSet()}
}

// compare finds the rules that apply, but for those that are found by path. For a trace,
// it looks at all.
func (e *evaluation) compare(trace *Trace) {
	before := 0
	for _, s := range e.sets() {
		if trace == nil {
			e.add(&s.whom, s.rules, before)
		} else {
			for i := range s.rules {
				if e.applies(&s.rules[i], e.asker, trace) && !s.isByPath[i] {
					e.rules = append(e.rules, before+i)
				}
			}
		}
		before += len(s.rules)
	}
}

func (e *evaluation) add(index *subjects.Index, rules []rule, before int) {
	var few [fewFound]int
	found := index.Find(e.asker, few[:])
	for i, ok := found.Next(); ok; i, ok = found.Next() {
		if e.applies(&rules[i], e.asker, nil) {
			e.rules = append(e.rules, before+i)
		}
	}
}

// complete adds the rules that are found by path, whatever they are about.
func (e *evaluation) complete() {
	if e.all {
		return
	}
	e.all = true
	before, known := 0, len(e.rules)
	for _, s := range e.sets() {
		e.add(&s.whomElse, s.rules, before)
		before += len(s.rules)
	}
	if len(e.rules) > known {
		slices.Sort(e.rules)
	}
}

// about returns the rules that apply and can be about the scope, in their order.
func (e *evaluation) about(q question) []int {
	if q.kind != repositoryResource {
		return e.rules
	}
	first, _, _ := strings.Cut(q.scope.Name, "/")
	e.found = e.found[:0]
	before := 0
	for _, s := range e.sets() {
		for _, i := range s.byPath[first] {
			if e.applies(&s.rules[i], e.asker, nil) {
				e.found = append(e.found, before+i)
			}
		}
		before += len(s.rules)
	}
	if len(e.found) == 0 {
		return e.rules
	}
	e.found = append(e.found, e.rules...)
	slices.Sort(e.found)
	return e.found
}

// firstFor returns the first rule for who asks, whatever the service; nil: there is none.
func (s *ruleSet) firstFor(asker subjects.Asker) *rule {
	first := len(s.rules)
	for _, index := range [...]*subjects.Index{&s.whom, &s.whomElse} {
		found := index.Find(&asker, nil)
		for i, ok := found.Next(); ok && i < first; i, ok = found.Next() {
			if r := &s.rules[i]; r.anonymous || asker.MatchAny(r.subjects, nil) {
				first = i
			}
		}
	}
	if first == len(s.rules) {
		return nil
	}
	return &s.rules[first]
}
