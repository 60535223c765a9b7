package subjects

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/pullpass/pullpass/internal/condition"
	"github.com/pullpass/pullpass/internal/identity"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/pattern"
	"github.com/pullpass/pullpass/internal/term"
)

// Match says which identities are meant. All fields that are given must
// match; one that is not given matches any. The parser refuses a match without
// any field.
type Match struct {
	Clusters, Namespaces, ServiceAccounts, Nodes []string // globs
	TokenIDs                                     []string // exact
	NamespaceSelector                            labels.Selector
	Identities                                   []string // exact; nil: ServiceAccounts
	Claims                                       []Claim
	Condition                                    *condition.Condition
	// Denies is set in denials: what is in doubt matches a denial and no rule. In
	// doubt is a node that the token names without its UID, because the API server
	// writes the mere name of a Node that did not exist when the token was issued;
	// the labels of a namespace where nobody can ask for them; a claim that is
	// missing; and a condition that cannot be judged.
	Denies bool
}

// Asker is who asks, of which service. It is for one request, and not for
// concurrent use.
type Asker struct {
	Identity        *oidc.Identity    // nil: anonymous
	NamespaceLabels map[string]string // nil: not known
	Service         string
	// Doubt is why a condition of the subjects compared last could not be judged;
	// empty: all could.
	Doubt string
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
func (a *Asker) mayCompare() bool {
	if a.spent >= maxSpent {
		a.Doubt = tooMuchCompared
		return false
	}
	return true
}

// mismatch names the first field that does not match, or is empty. What is dear
// comes last.
func (m *Match) mismatch(a *Asker) string {
	id := a.Identity
	switch {
	case !m.matchKind(id):
		return "identities"
	case !MatchGlobs(m.Clusters, id.Cluster):
		return "clusters"
	case !MatchGlobs(m.Namespaces, id.Kubernetes.Namespace):
		return "namespaces"
	case m.NamespaceSelector != nil && !m.matchLabels(a.NamespaceLabels):
		return "namespaceSelector"
	case !MatchGlobs(m.ServiceAccounts, id.Kubernetes.ServiceAccount.Name):
		return "serviceAccounts"
	case !MatchGlobs(m.Nodes, id.Kubernetes.Node.Name), m.Nodes != nil && !m.Denies && id.Kubernetes.Node.UID == "":
		return "nodes"
	case m.TokenIDs != nil && !slices.Contains(m.TokenIDs, id.TokenID):
		return "tokenIDs"
	}
	for i := range m.Claims {
		if c := &m.Claims[i]; !c.matches(a, m.Denies) {
			return "claims." + c.Name
		}
	}
	if m.Condition != nil && !m.holds(a) {
		return "condition"
	}
	return ""
}

// matchKind tells ServiceAccounts from others: a subject is about others only if it
// says so. A denial of token ids is about whoever has them, with a condition, too,
// which can be about both.
func (m *Match) matchKind(id *oidc.Identity) bool {
	if m.Identities == nil {
		return id.External == nil || m.onlyTokenIDs()
	}
	return id.External != nil && slices.Contains(m.Identities, id.External.Provider)
}

func (m *Match) onlyTokenIDs() bool {
	return m.TokenIDs != nil && m.Clusters == nil && m.Namespaces == nil && m.ServiceAccounts == nil && m.Nodes == nil &&
		m.NamespaceSelector == nil
}

func (m *Match) matchLabels(known map[string]string) bool {
	if known == nil {
		return m.Denies
	}
	return m.NamespaceSelector.Matches(labels.Set(known))
}

// holds judges the condition. One that fails is neither true nor false: it matches
// in a denial alone.
func (m *Match) holds(a *Asker) bool {
	if !a.mayCompare() {
		return m.Denies
	}
	k := &a.Identity.Kubernetes
	holds, err := m.Condition.Holds(condition.Variables{
		Claims:  a.claims(),
		Cluster: a.Identity.Cluster, Namespace: k.Namespace, ServiceAccount: k.ServiceAccount.Name, Node: k.Node.Name,
		Labels:  a.NamespaceLabels,
		Service: a.Service,
	}, &a.spent)
	if err != nil {
		a.Doubt = term.Shorten(err.Error(), maxDoubtBytes)
		return m.Denies
	}
	return holds
}

const maxDoubtBytes = 200

// claims are those that a condition may ask for. Of a ServiceAccount's token, the
// others are in the variable kubernetes.
func (a *Asker) claims() identity.Claims {
	id := a.Identity
	if id.External != nil {
		return id.External.Claims
	}
	return identity.Claims{"iss": id.Issuer, "sub": id.Subject, "jti": id.TokenID}
}

// MatchGlobs reports whether a glob matches the value. What the token does not
// say is matched by no glob, not even by *.
func MatchGlobs(globs []string, value string) bool {
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

// MatchAny reports whether one of the subjects matches. Nobody anonymous is
// a subject. If mismatches is not nil, the field that differs is appended for
// each subject that does not match.
func (a *Asker) MatchAny(matches []Match, mismatches *[]string) bool {
	a.Doubt = ""
	if a.Identity == nil {
		return false
	}
	for i := range matches {
		before := a.Doubt
		field := matches[i].mismatch(a)
		if field == "" {
			return true
		}
		if mismatches != nil {
			if a.Doubt != before {
				field += ", which cannot be judged: " + a.Doubt
			}
			*mismatches = append(*mismatches, field)
		}
	}
	return false
}

// Unserved calls compare for what counts for another service, of which only people
// are told: what that costs is none of the decision's.
func (a *Asker) Unserved(compare func()) {
	a.spent, a.unserved = a.unserved, a.spent
	compare()
	a.spent, a.unserved = a.unserved, a.spent
}

// IsFree reports whether to compare the subjects costs nothing that is counted, and
// leaves no doubt: whether and when it is done changes nothing then.
func IsFree(matches []Match) bool {
	return !slices.ContainsFunc(matches, func(m Match) bool { return m.Claims != nil || m.Condition != nil })
}
