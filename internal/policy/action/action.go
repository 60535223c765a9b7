// Package action has sets of actions on a repository: pull, push, delete, and *, which allows any
// requested action.
package action

import (
	"slices"
	"strings"
)

// Set is a set of actions on a resource. The zero Set has none.
type Set uint8

// The actions that distribution's registries know. Any other requested action is Other: only a rule
// that allows * grants it.
const (
	Pull Set = 1 << iota
	Push
	Delete
	All // *
	Other

	concrete = Pull | Push | Delete
)

// Named returns Other for a name that no rule can hold.
func Named(name string) Set {
	switch name {
	case "pull":
		return Pull
	case "push":
		return Push
	case "delete":
		return Delete
	case "*":
		return All
	}
	return Other
}

// Of returns the set of the named actions.
func Of(names []string) Set {
	var set Set
	for _, name := range names {
		set |= Named(name)
	}
	return set
}

// Names returns the actions that have a name, sorted.
func (s Set) Names() []string {
	var names []string
	for _, name := range [...]string{"*", "delete", "pull", "push"} {
		if s&Named(name) != 0 {
			names = append(names, name)
		}
	}
	return names
}

func (s Set) String() string { return strings.Join(s.Names(), ", ") }

// Nameable returns the set in actions that a policy or an annotation can name. An action without a
// name there needs *.
func (s Set) Nameable() Set {
	if s&Other != 0 {
		return All
	}
	return s
}

// Intersect returns the actions that both sets allow; with *, those of the other set.
func (s Set) Intersect(other Set) Set {
	switch {
	case s&All != 0:
		return other
	case other&All != 0:
		return s
	}
	return s & other
}

// Cover returns the part of the requested actions that s allows. A request for * means all
// available actions: from a set without * it gets the concrete ones.
func (s Set) Cover(requested Set) Set {
	switch {
	case s&All != 0:
		return requested
	case requested&All != 0:
		return s & concrete
	}
	return s & requested
}

// Missing returns the part of the requested actions that s does not allow. A request for * misses
// nothing if s has every action that registries know.
func (s Set) Missing(requested Set) Set {
	if s&All != 0 {
		return 0
	}
	if requested&All != 0 {
		requested = requested&^All | concrete
	}
	return requested &^ s
}

// Pick returns the names of the requested actions that s allows, sorted. The
// result may share its memory with requested and must not be changed.
func (s Set) Pick(requested []string) []string {
	set := Of(requested)
	switch covered := s.Cover(set); {
	case covered == set && slices.IsSorted(requested):
		return requested[:len(requested):len(requested)]
	case covered == set:
		sorted := slices.Clone(requested)
		slices.Sort(sorted)
		return slices.Compact(sorted)
	default:
		return covered.Names()
	}
}
