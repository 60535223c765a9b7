package reach

import (
	"maps"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/policy"
)

// Text says for people whom a subject means.
func Text(s policy.WrittenSubject) string {
	var parts []string
	add := func(what string, list []string) {
		if list != nil {
			parts = append(parts, what+" "+strings.Join(list, ", "))
		}
	}
	add("clusters", s.Clusters)
	add("namespaces", s.Namespaces)
	if s.NamespaceSelector != "" {
		parts = append(parts, "namespaces with labels "+s.NamespaceSelector)
	}
	add("ServiceAccounts", s.ServiceAccounts)
	add("nodes", s.Nodes)
	add("identities", s.Identities)
	for _, claim := range slices.Sorted(maps.Keys(s.Claims)) {
		add("claim "+claim, s.Claims[claim])
	}
	add("token ids", s.TokenIDs)
	if s.Condition != "" {
		parts = append(parts, "if "+s.Condition)
	}
	return strings.Join(parts, "; ")
}

// String says for people whom the subject means.
func (s *Subject) String() string {
	text := Text(s.WrittenSubject)
	if s.Unlisted {
		return text + "; whose names make the pattern match"
	}
	var all []string
	for _, values := range s.Names {
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(values)) {
			parts = append(parts, "{"+name+"} is "+values[name])
		}
		all = append(all, strings.Join(parts, " and "))
	}
	if all != nil {
		text += "; where " + strings.Join(all, ", or ")
	}
	return text
}
