package policy

import (
	"slices"
	"strings"
)

// ActionSet is a set of actions on a resource.
type ActionSet uint8

// The actions that distribution's registries know. Anything else that a client
// asks for is otherAction: only a rule that allows * gives it.
const (
	pullAction ActionSet = 1 << iota
	pushAction
	deleteAction
	AllActions // *
	otherAction

	concreteActions = pullAction | pushAction | deleteAction
)

// actionNamed returns otherAction for a name that no rule can hold.
func actionNamed(name string) ActionSet {
	switch name {
	case "pull":
		return pullAction
	case "push":
		return pushAction
	case "delete":
		return deleteAction
	case "*":
		return AllActions
	}
	return otherAction
}

func ActionsNamed(names []string) ActionSet {
	var set ActionSet
	for _, name := range names {
		set |= actionNamed(name)
	}
	return set
}

// names returns the actions that have a name, sorted.
func (s ActionSet) names() []string {
	var names []string
	for _, name := range [...]string{"*", "delete", "pull", "push"} {
		if s&actionNamed(name) != 0 {
			names = append(names, name)
		}
	}
	return names
}

func (s ActionSet) String() string { return strings.Join(s.names(), ", ") }

// Intersect returns what both sets allow; * allows whatever the other does.
func (s ActionSet) Intersect(other ActionSet) ActionSet {
	switch {
	case s&AllActions != 0:
		return other
	case other&AllActions != 0:
		return s
	}
	return s & other
}

// cover returns the part of the requested actions that s allows. A request for *
// means all that may be had: of a set without * it gets the concrete actions.
func (s ActionSet) cover(requested ActionSet) ActionSet {
	switch {
	case s&AllActions != 0:
		return requested
	case requested&AllActions != 0:
		return s & concreteActions
	}
	return s & requested
}

// missing returns the part of the requested actions that s does not allow. A
// request for * misses nothing when every action that registries know is there.
func (s ActionSet) missing(requested ActionSet) ActionSet {
	if s&AllActions != 0 {
		return 0
	}
	if requested&AllActions != 0 {
		requested = requested&^AllActions | concreteActions
	}
	return requested &^ s
}

// pick returns the names of the requested actions that s allows, sorted. The
// result may share its memory with requested and must not be changed.
func (s ActionSet) pick(requested []string) []string {
	set := ActionsNamed(requested)
	switch covered := s.cover(set); {
	case covered == 0:
		return nil
	case covered == set && slices.IsSorted(requested):
		return requested[:len(requested):len(requested)]
	case covered == set:
		sorted := slices.Clone(requested)
		slices.Sort(sorted)
		return slices.Compact(sorted)
	default:
		return covered.names()
	}
}
