package exchange

import (
	"slices"

	"github.com/pullpass/pullpass/internal/oidc"
)

// subjectMatch says which identities are meant. All fields that are given must
// match; one that is not given matches any. The parser refuses a match without
// any field.
type subjectMatch struct {
	clusters, namespaces, serviceAccounts, nodes []string // globs
	tokenIDs                                     []string // exact
	// provenNode is set in rules: what a rule allows to a node, it allows only
	// to one that the token names with its UID. The API server writes the mere
	// name of a Node that did not exist when the token was issued. A denial
	// takes that name as well.
	provenNode bool
}

// mismatch names the first field that does not match, or is empty.
func (m *subjectMatch) mismatch(id *oidc.Identity) string {
	switch {
	case !matchAny(m.clusters, id.Cluster):
		return "clusters"
	case !matchAny(m.namespaces, id.Namespace):
		return "namespaces"
	case !matchAny(m.serviceAccounts, id.ServiceAccount.Name):
		return "serviceAccounts"
	case !matchAny(m.nodes, id.Node.Name), m.nodes != nil && m.provenNode && id.Node.UID == "":
		return "nodes"
	case m.tokenIDs != nil && !slices.Contains(m.tokenIDs, id.TokenID):
		return "tokenIDs"
	}
	return ""
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
func matchSubject(subjects []subjectMatch, id *oidc.Identity, mismatches *[]string) bool {
	if id == nil {
		return false
	}
	for i := range subjects {
		field := subjects[i].mismatch(id)
		if field == "" {
			return true
		}
		if mismatches != nil {
			*mismatches = append(*mismatches, field)
		}
	}
	return false
}
