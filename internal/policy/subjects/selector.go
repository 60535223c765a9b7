package subjects

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	validation "k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
)

// Limits of a namespaceSelector, because a request may be compared with all values.
const (
	maxSelectorBytes  = 4096 // written as text
	maxRequirements   = 32
	maxSelectorValues = 256 // of all requirements together
)

// parseSelector reads a selector of a namespace's labels, and reports its faults at the node. In Kubernetes
// an empty selector matches everything. Here it is a fault, like every empty setting.
func parseSelector(n strictyaml.Node) labels.Selector {
	var requirements []labels.Requirement
	switch n.Value.(type) {
	case string:
		requirements = parseText(n)
	case map[string]any:
		requirements = parseObject(n)
	default:
		n.Fault("%s: write matchLabels and matchExpressions, or text as for kubectl -l", strictyaml.NotA("a selector", n.Value))
	}
	values := 0
	for i := range requirements {
		values += len(requirements[i].ValuesUnsorted())
	}
	switch {
	case len(requirements) > maxRequirements:
		n.Fault("has %d requirements; at most %d are read: write several subjects", len(requirements), maxRequirements)
	case values > maxSelectorValues:
		n.Fault("has %d values; at most %d are read: write several subjects", values, maxSelectorValues)
	default:
		if key := contradiction(requirements); key != "" {
			n.Fault("no namespace can match all that is required of the label %s: write In with a list if any of several values will do", key)
		}
	}
	return labels.NewSelector().Add(requirements...)
}

func parseText(n strictyaml.Node) []labels.Requirement {
	text, ok := n.Text()
	switch {
	case !ok:
		return nil
	case len(text) > maxSelectorBytes:
		n.Fault("has %d bytes; at most %d are read: write several subjects", len(text), maxSelectorBytes)
		return nil
	case strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || '~' < r }):
		// Kubernetes' parser treats a NUL as the end and ignores the rest.
		n.Fault("%s has a character that no selector has: write one line of ASCII", term.QuoteName(text))
		return nil
	}
	requirements, err := labels.ParseToRequirements(text, validation.WithPath(validation.NewPath("label")))
	if err != nil {
		n.Fault("%s is not a selector for kubectl -l: %v", term.QuoteName(text), err)
		return nil
	}
	if len(requirements) == 0 {
		n.Fault("is blank: fill it or remove it")
	}
	var accepted []labels.Requirement
	for _, r := range requirements {
		switch operator := r.Operator(); {
		case operator == selection.GreaterThan || operator == selection.LessThan:
			n.Fault("%s compares numbers, which namespaceSelector does not: write a list, like team in (a,b)", term.QuoteName(r.String()))
		case operator != selection.Equals && operator != selection.DoubleEquals && slices.Contains(r.ValuesUnsorted(), ""):
			// "team notin ()" is every namespace whose label team is not empty.
			n.Fault("%s has an empty value: fill it; only = can ask for an empty value, like team=", term.QuoteName(r.String()))
		default:
			accepted = append(accepted, r)
		}
	}
	return accepted
}

func parseObject(n strictyaml.Node) []labels.Requirement {
	fields := n.Fields("matchLabels", "matchExpressions")
	var requirements []labels.Requirement
	if matchLabels, ok := fields["matchLabels"]; ok {
		requirements = parseMatchLabels(matchLabels)
	}
	if matchExpressions, ok := fields["matchExpressions"]; ok {
		for _, entry := range matchExpressions.List() {
			requirements = append(requirements, parseExpression(entry)...)
		}
	}
	return requirements
}

func parseMatchLabels(n strictyaml.Node) []labels.Requirement {
	object, ok := n.Value.(map[string]any)
	switch {
	case !ok:
		n.Fault("%s: write labels and their values", strictyaml.NotA("a mapping", n.Value))
	case len(object) == 0:
		n.Fault("is empty: fill it or remove it")
	}
	var requirements []labels.Requirement
	for _, entry := range n.Entries() {
		value, ok := entry.Value.(string)
		if !ok {
			entry.Fault("%s: write it in quotes", strictyaml.NotA("text", entry.Value))
		} else if !IsLabelValue(entry.Node, value) {
			value = "" // so that the key is checked alone
		}
		requirements = append(requirements, newRequirement(entry.Node, entry.Key, selection.Equals, []string{value})...)
	}
	return requirements
}

// parseExpression returns one requirement, or none if it reported a fault.
func parseExpression(n strictyaml.Node) []labels.Requirement {
	fields := n.Fields("key", "operator", "values")
	if fields == nil {
		return nil
	}
	operator, values := parseComparison(n, fields)
	key, ok := fields["key"]
	if !ok {
		n.FaultAt("key", "is missing: write the key of a label")
		return nil
	}
	text, ok := key.Text()
	if !ok || operator == "" {
		return nil
	}
	return newRequirement(key, text, operator, values)
}

// parseComparison returns an operator with the values that it needs, or no operator if it reported
// a fault.
func parseComparison(n strictyaml.Node, fields map[string]strictyaml.Node) (selection.Operator, []string) {
	name, ok := fields["operator"]
	if !ok {
		n.FaultAt("operator", "is missing: write In, NotIn, Exists or DoesNotExist")
		return "", nil
	}
	text, ok := name.Text()
	if !ok {
		return "", nil
	}
	operator, ok := map[string]selection.Operator{
		"In": selection.In, "NotIn": selection.NotIn, "Exists": selection.Exists, "DoesNotExist": selection.DoesNotExist,
	}[text]
	if !ok {
		name.Fault("%s is not an operator: write In, NotIn, Exists or DoesNotExist", term.QuoteName(text))
		return "", nil
	}
	values, hasValues := fields["values"]
	if operator == selection.Exists || operator == selection.DoesNotExist {
		if hasValues {
			values.Fault("%s has no values: remove them, or write In or NotIn", text)
		}
		return operator, nil
	}
	if !hasValues {
		n.FaultAt("values", "is missing: write the values that %s compares with", text)
		return "", nil
	}
	var list []string
	for _, entry := range values.List() {
		if value, ok := entry.Text(); ok && IsLabelValue(entry, value) {
			list = append(list, value)
		}
	}
	if list == nil {
		return "", nil
	}
	return operator, list
}

// IsLabelValue reports whether the value is valid for a label, and reports a fault at the node if
// it is not.
func IsLabelValue(n strictyaml.Node, value string) bool {
	if len(content.IsLabelValue(value)) > 0 {
		n.Fault("%s cannot be the value of a label: write at most 63 letters, digits and inner '-', '_' or '.'; * is not special", term.QuoteName(value))
		return false
	}
	return true
}

// newRequirement reports an invalid key: the rest was checked before.
func newRequirement(key strictyaml.Node, text string, operator selection.Operator, values []string) []labels.Requirement {
	requirement, err := labels.NewRequirement(text, operator, values)
	if err != nil {
		key.Fault("%s is not the key of a label: write one like team or example.com/team", term.QuoteName(text))
		return nil
	}
	return []labels.Requirement{*requirement}
}

// contradiction returns the key of a label whose requirements no namespace can meet. A denial with
// team=a,team=b would silently deny no subject.
func contradiction(requirements []labels.Requirement) string {
	// The empty value represents every value that is not written, because only = accepts it.
	possible := map[string][]labels.Set{}
	for i := range requirements {
		key := requirements[i].Key()
		if possible[key] == nil {
			possible[key] = []labels.Set{{}, {key: ""}}
		}
		for _, value := range requirements[i].ValuesUnsorted() {
			possible[key] = append(possible[key], labels.Set{key: value})
		}
	}
	for i := range requirements {
		r := &requirements[i]
		possible[r.Key()] = slices.DeleteFunc(possible[r.Key()], func(set labels.Set) bool { return !r.Matches(set) })
		if len(possible[r.Key()]) == 0 {
			return r.Key()
		}
	}
	return ""
}
