package policy

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/pullpass/pullpass/internal/condition"
	"github.com/pullpass/pullpass/internal/identity"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/pattern"
	"github.com/pullpass/pullpass/internal/term"
)

// subjectMatch says which identities are meant. All fields that are given must
// match; one that is not given matches any. The parser refuses a match without
// any field.
type subjectMatch struct {
	clusters, namespaces, serviceAccounts, nodes []string // globs
	tokenIDs                                     []string // exact
	namespaceSelector                            labels.Selector
	identities                                   []string // exact; nil: ServiceAccounts
	claims                                       []claimMatch
	condition                                    *condition.Condition
	// denies is set in denials: what is in doubt matches a denial and no rule. In
	// doubt is a node that the token names without its UID, because the API server
	// writes the mere name of a Node that did not exist when the token was issued;
	// the labels of a namespace where nobody can ask for them; a claim that is
	// missing; and a condition that cannot be judged.
	denies bool
}

// asker is who asks, of which service.
type asker struct {
	Subject
	service string
	// doubt is why a condition of the subjects compared last could not be judged;
	// empty: all could.
	doubt string
	// spent is what conditions and claims have cost so far, in CEL's units; unserved,
	// what those of rules for other services have, of which only people are told.
	spent, unserved uint64
}

// maxSpent bounds what conditions and claims cost one request: each is bounded, but
// there can be thousands, and a token can have a thousand groups. It is enough for
// usual conditions in as many rules as there can be, or for eighty that go through
// 200 groups, and is spent in at most some 20 milliseconds.
const maxSpent = 100_000

const tooMuchCompared = "too much was compared for one request"

// mayCompare notes a doubt if nothing more is compared. What is begun is ended, so
// that the most is that of one condition more.
func (a *asker) mayCompare() bool {
	if a.spent >= maxSpent {
		a.doubt = tooMuchCompared
		return false
	}
	return true
}

// mismatch names the first field that does not match, or is empty. What is dear
// comes last.
func (m *subjectMatch) mismatch(a *asker) string {
	id := a.Identity
	switch {
	case !m.matchKind(id):
		return "identities"
	case !matchAny(m.clusters, id.Cluster):
		return "clusters"
	case !matchAny(m.namespaces, id.Kubernetes.Namespace):
		return "namespaces"
	case m.namespaceSelector != nil && !m.matchLabels(a.NamespaceLabels):
		return "namespaceSelector"
	case !matchAny(m.serviceAccounts, id.Kubernetes.ServiceAccount.Name):
		return "serviceAccounts"
	case !matchAny(m.nodes, id.Kubernetes.Node.Name), m.nodes != nil && !m.denies && id.Kubernetes.Node.UID == "":
		return "nodes"
	case m.tokenIDs != nil && !slices.Contains(m.tokenIDs, id.TokenID):
		return "tokenIDs"
	}
	for i := range m.claims {
		if c := &m.claims[i]; !c.matches(a, m.denies) {
			return "claims." + c.name
		}
	}
	if m.condition != nil && !m.holds(a) {
		return "condition"
	}
	return ""
}

// matchKind tells ServiceAccounts from others: a subject is about others only if it
// says so. A denial of token ids is about whoever has them, with a condition, too,
// which can be about both.
func (m *subjectMatch) matchKind(id *oidc.Identity) bool {
	if m.identities == nil {
		return id.External == nil || m.onlyTokenIDs()
	}
	return id.External != nil && slices.Contains(m.identities, id.External.Provider)
}

func (m *subjectMatch) onlyTokenIDs() bool {
	return m.tokenIDs != nil && m.clusters == nil && m.namespaces == nil && m.serviceAccounts == nil && m.nodes == nil &&
		m.namespaceSelector == nil
}

func (m *subjectMatch) matchLabels(known map[string]string) bool {
	if known == nil {
		return m.denies
	}
	return m.namespaceSelector.Matches(labels.Set(known))
}

// holds judges the condition. One that fails is neither true nor false: it matches
// in a denial alone.
func (m *subjectMatch) holds(a *asker) bool {
	if !a.mayCompare() {
		return m.denies
	}
	k := &a.Identity.Kubernetes
	holds, err := m.condition.Holds(condition.Variables{
		Claims:  a.claims(),
		Cluster: a.Identity.Cluster, Namespace: k.Namespace, ServiceAccount: k.ServiceAccount.Name, Node: k.Node.Name,
		Labels:  a.NamespaceLabels,
		Service: a.service,
	}, &a.spent)
	if err != nil {
		a.doubt = term.Shorten(err.Error(), maxDoubtBytes)
		return m.denies
	}
	return holds
}

const maxDoubtBytes = 200

// claims are those that a condition may ask for. Of a ServiceAccount's token, the
// others are in the variable kubernetes.
func (a *asker) claims() identity.Claims {
	id := a.Identity
	if id.External != nil {
		return id.External.Claims
	}
	return identity.Claims{"iss": id.Issuer, "sub": id.Subject, "jti": id.TokenID}
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
		if pattern.MatchName(glob, value) {
			return true
		}
	}
	return false
}

// matchSubject reports whether one of the subjects matches. Nobody anonymous is
// a subject. If mismatches is not nil, the field that differs is appended for
// each subject that does not match.
func (a *asker) matchSubject(subjects []subjectMatch, mismatches *[]string) bool {
	a.doubt = ""
	if a.Identity == nil {
		return false
	}
	for i := range subjects {
		before := a.doubt
		field := subjects[i].mismatch(a)
		if field == "" {
			return true
		}
		if mismatches != nil {
			if a.doubt != before {
				field += ", which cannot be judged: " + a.doubt
			}
			*mismatches = append(*mismatches, field)
		}
	}
	return false
}
