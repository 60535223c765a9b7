package policy

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"
)

// subjectMatch says which identities are meant. All fields that are given must
// match; one that is not given matches any. The parser refuses a match without
// any field.
type subjectMatch struct {
	clusters, namespaces, serviceAccounts, nodes []string // globs
	tokenIDs                                     []string // exact
	namespaceSelector                            labels.Selector
	// denies is set in denials: what is in doubt matches a denial and no rule. In
	// doubt is a node that the token names without its UID, because the API server
	// writes the mere name of a Node that did not exist when the token was issued;
	// and so are the labels of a namespace where nobody can ask for them.
	denies bool
}

// mismatch names the first field that does not match, or is empty.
func (m *subjectMatch) mismatch(subject Subject) string {
	id := subject.Identity
	switch {
	case !matchAny(m.clusters, id.Cluster):
		return "clusters"
	case !matchAny(m.namespaces, id.Kubernetes.Namespace):
		return "namespaces"
	case m.namespaceSelector != nil && !m.matchLabels(subject.NamespaceLabels):
		return "namespaceSelector"
	case !matchAny(m.serviceAccounts, id.Kubernetes.ServiceAccount.Name):
		return "serviceAccounts"
	case !matchAny(m.nodes, id.Kubernetes.Node.Name), m.nodes != nil && !m.denies && id.Kubernetes.Node.UID == "":
		return "nodes"
	case m.tokenIDs != nil && !slices.Contains(m.tokenIDs, id.TokenID):
		return "tokenIDs"
	}
	return ""
}

func (m *subjectMatch) matchLabels(known map[string]string) bool {
	if known == nil {
		return m.denies
	}
	return m.namespaceSelector.Matches(labels.Set(known))
}

// matchAny reports whether a glob matches the value. What the token does not
// say is matched by no glob, not even by *.
func matchAny(globs []string, value string) bool {
	if globs == nil {
		return true
	}
	if value == "" {
		return false
	}
	for _, glob := range globs {
		if matchComponent(glob, value, nil) {
			return true
		}
	}
	return false
}

// matchSubject reports whether one of the subjects matches. Nobody anonymous is
// a subject. If mismatches is not nil, the field that differs is appended for
// each subject that does not match.
func matchSubject(subjects []subjectMatch, subject Subject, mismatches *[]string) bool {
	if subject.Identity == nil {
		return false
	}
	for i := range subjects {
		field := subjects[i].mismatch(subject)
		if field == "" {
			return true
		}
		if mismatches != nil {
			*mismatches = append(*mismatches, field)
		}
	}
	return false
}
