package policy

import (
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/policy/subjects"
)

// ruleSet is the rules and denials of the files, or of the objects of a cluster, in their order,
// with an index. The cost of a request depends on the number of rules that can match its subject,
// and not on the number of all rules. The zero ruleSet has none.
type ruleSet struct {
	rules []rule
	deny  []denyRule

	whom   subjects.Index // of the rules that are not in byPath
	denied subjects.Index
	// byPath indexes rules by the first component of their repositories. It holds rules that the
	// repository selects better than the subjects do. whomElse indexes these rules by their
	// subjects, to explain why a scope was not granted.
	byPath   map[string][]int
	isByPath []bool
	whomElse subjects.Index
}

// perPath is the factor by which the first component must select better than the subjects do, for a
// rule to be found by the repository.
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

// firstComponents returns the first components of the rule's repositories, each once. It returns
// nil if they are not known, or if the comparison of its subjects is not free and so cannot be
// skipped.
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

// fewFound is the buffer size that avoids an allocation for most subjects.
const fewFound = 16

func (e *evaluation) sets() [2]*ruleSet {
	return [...]*ruleSet{&e.policy.ruleSet, e.subject.Objects.ruleSet()}
}

// compare finds the rules that apply, except those that are found by path. For a trace it compares
// all rules.
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

// complete adds the rules that are found by path, for all repositories.
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

// about returns the rules that apply and can match the scope, in their order.
func (e *evaluation) about(q question) []int {
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

// firstFor returns the first rule that matches the asker, for any service; nil if there is none.
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
