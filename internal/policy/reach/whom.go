package reach

import (
	"maps"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/policy/subjects"
)

// Whom is the identities that a subject of a rule or a denial matches. A field that is not given is
// nil or empty.
type Whom struct {
	Clusters          []string            `json:"clusters,omitempty"`
	Namespaces        []string            `json:"namespaces,omitempty"`
	NamespaceSelector string              `json:"namespaceSelector,omitempty"` // as for kubectl -l
	ServiceAccounts   []string            `json:"serviceAccounts,omitempty"`
	Nodes             []string            `json:"nodes,omitempty"`
	TokenIDs          []string            `json:"tokenIDs,omitempty"`
	Identities        []string            `json:"identities,omitempty"`
	Claims            map[string][]string `json:"claims,omitempty"`
	Condition         string              `json:"condition,omitempty"`
}

func whomOf(matches []subjects.Match) []Whom {
	all := make([]Whom, len(matches))
	for i, m := range matches {
		all[i] = Whom{
			Clusters: m.Clusters, Namespaces: m.Namespaces, ServiceAccounts: m.ServiceAccounts, Nodes: m.Nodes, TokenIDs: m.TokenIDs, Identities: m.Identities,
		}
		if m.NamespaceSelector != nil {
			all[i].NamespaceSelector = m.NamespaceSelector.String()
		}
		if m.Condition != nil {
			all[i].Condition = m.Condition.String()
		}
		if m.Claims != nil {
			all[i].Claims = map[string][]string{}
		}
		for _, c := range m.Claims {
			all[i].Claims[c.Name] = c.Values
		}
	}
	return all
}

// Where describes the position of a rule or denial, and the only cluster where it counts, if there
// is one.
func Where(origin, cluster string) string {
	if cluster == "" {
		return origin
	}
	return origin + ", in cluster " + cluster
}

// Text describes the identities that a subject matches.
func Text(s Whom) string {
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
	if parts == nil { // as in a denial of an object that cannot be read
		return "every ServiceAccount"
	}
	return strings.Join(parts, "; ")
}

// String describes the identities that the subject matches.
func (s *Subject) String() string {
	text := Text(s.Whom)
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
