package exchange

import (
	"slices"
	"strings"
)

// actionSet is a set of actions on a resource.
type actionSet uint8

// The actions that distribution's registries know. Anything else that a client
// asks for is otherAction: only a rule that allows * gives it.
const (
	pullAction actionSet = 1 << iota
	pushAction
	deleteAction
	allActions // *
	otherAction

	concreteActions = pullAction | pushAction | deleteAction
)

// actionNamed returns otherAction for a name that no rule can hold.
func actionNamed(name string) actionSet {
	switch name {
	case "pull":
		return pullAction
	case "push":
		return pushAction
	case "delete":
		return deleteAction
	case "*":
		return allActions
	}
	return otherAction
}

func actionsNamed(names []string) actionSet {
	var set actionSet
	for _, name := range names {
		set |= actionNamed(name)
	}
	return set
}

// names returns the actions that have a name, sorted.
func (s actionSet) names() []string {
	var names []string
	for _, name := range [...]string{"*", "delete", "pull", "push"} {
		if s&actionNamed(name) != 0 {
			names = append(names, name)
		}
	}
	return names
}

func (s actionSet) String() string { return strings.Join(s.names(), ", ") }

// intersect returns what both sets allow; * allows whatever the other does.
func (s actionSet) intersect(other actionSet) actionSet {
	switch {
	case s&allActions != 0:
		return other
	case other&allActions != 0:
		return s
	}
	return s & other
}

// cover returns the part of the requested actions that s allows. A request for *
// means all that may be had: of a set without * it gets the concrete actions.
func (s actionSet) cover(requested actionSet) actionSet {
	switch {
	case s&allActions != 0:
		return requested
	case requested&allActions != 0:
		return s & concreteActions
	}
	return s & requested
}

// missing returns the part of the requested actions that s does not allow. A
// request for * misses nothing when every action that registries know is there.
func (s actionSet) missing(requested actionSet) actionSet {
	if s&allActions != 0 {
		return 0
	}
	if requested&allActions != 0 {
		requested = requested&^allActions | concreteActions
	}
	return requested &^ s
}

// pick returns the names of the requested actions that s allows, sorted. The
// result may share its memory with requested and must not be changed.
func (s actionSet) pick(requested []string) []string {
	set := actionsNamed(requested)
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
