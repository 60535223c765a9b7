package subjects

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/policy/condition"
	"github.com/pullpass/pullpass/internal/policy/pattern"
)

// Match selects callers. All given fields must match; a field that is not given matches any value.
// The parser rejects a match without any field.
type Match struct {
	Clusters, Namespaces, ServiceAccounts, Nodes []string // globs
	TokenIDs                                     []string // exact
	NamespaceSelector                            labels.Selector
	Identities                                   []string // exact; nil: ServiceAccounts
	Claims                                       []Claim
	Condition                                    *condition.Condition
	// Denies is set in denials. In doubt, a denial matches and a rule does not. These cases are in
	// doubt:
	//   - A node that the token names without its UID. The API server writes the mere name of
	//     a Node that did not exist when the token was issued.
	//   - The labels of a namespace that cannot be read.
	//   - A claim that is missing.
	//   - A condition that cannot be evaluated.
	Denies bool
}

// Asker is the caller, and the service that the request is for. It is for one request, and not for
// concurrent use.
type Asker struct {
	Identity        *oidc.Identity    // nil: anonymous
	NamespaceLabels map[string]string // nil: not known
	Service         string
	// NoToken is set if the identity is the name of a ServiceAccount, and not that of a token. Its
	// node and token id are unknown then, and not absent. The fields nodes and tokenIDs match neither
	// in a rule nor in a denial then, and a condition without a result that reads them does not.
	NoToken bool
	// NeedsNode and NeedsToken are set if only nodes or such a condition decide whether the subjects
	// compared last match. Denials that name token ids, which are for few tokens, set neither.
	NeedsNode, NeedsToken bool
	// Doubt says why a condition of the subjects compared last could not be evaluated; empty: all
	// could.
	Doubt string
	// spent is the cost of conditions and claims so far, in CEL's units. unserved is the cost of
	// those of rules for other services, which only traces show.
	spent, unserved uint64
	undecided       bool // only a token decides the field that mismatch returned
}

// maxSpent bounds the cost of conditions and claims for one request. Each one is bounded, but there
// can be thousands, and a token can have a thousand groups. It is enough for usual conditions in
// the maximum number of rules, or for eighty that go through 200 groups. Spending it takes at most
// some 20 milliseconds.
const maxSpent = 100_000

const tooMuchCompared = "too much was compared for one request"

// mayCompare notes a doubt if the budget is spent. A comparison that has begun is completed, so the
// excess is at most the cost of one condition.
func (a *Asker) mayCompare() bool {
	if a.spent >= maxSpent {
		a.Doubt = tooMuchCompared
		return false
	}
	return true
}

// mismatch names the first field that does not match, or is empty. Expensive fields come last.
func (m *Match) mismatch(a *Asker) string {
	id := a.Identity
	anyNode := a.NoToken && id.Kubernetes.Node.Name == ""
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
	case !anyNode && (!MatchGlobs(m.Nodes, id.Kubernetes.Node.Name) || m.Nodes != nil && !m.Denies && id.Kubernetes.Node.UID == ""):
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
	if anyNode && m.Nodes != nil {
		a.undecided = true
		return "nodes"
	}
	return ""
}

// matchKind separates ServiceAccounts from other identities. A subject matches other identities
// only if it names them. A denial that selects by token ids alone matches tokens of both kinds.
// This includes a denial with a condition, which can apply to both.
func (m *Match) matchKind(id *oidc.Identity) bool {
	if m.Identities == nil {
		return id.External == nil || m.OnlyTokenIDs()
	}
	return id.External != nil && slices.Contains(m.Identities, id.External.Provider)
}

// OnlyTokenIDs reports whether the subject names tokens alone.
func (m *Match) OnlyTokenIDs() bool {
	return m.TokenIDs != nil && m.Clusters == nil && m.Namespaces == nil && m.ServiceAccounts == nil && m.Nodes == nil &&
		m.NamespaceSelector == nil
}

func (m *Match) matchLabels(known map[string]string) bool {
	if known == nil {
		return m.Denies
	}
	return m.NamespaceSelector.Matches(labels.Set(known))
}

// holds evaluates the condition. A condition that fails is neither true nor false: it matches only
// in a denial.
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
	switch {
	case err != nil && a.NoToken && m.Condition.ReadsToken():
		a.undecided = true
		return false
	case err != nil:
		a.Doubt = term.Shorten(err.Error(), maxDoubtBytes)
		return m.Denies
	}
	return holds
}

const maxDoubtBytes = 200

// claims returns the claims that a condition may read. The other claims of a ServiceAccount's token
// are in the variable kubernetes.
func (a *Asker) claims() identity.Claims {
	id := a.Identity
	if id.External != nil {
		return id.External.Claims
	}
	claims := identity.Claims{}
	for _, c := range [...]struct{ name, value string }{{"iss", id.Issuer}, {"sub", id.Subject}, {"jti", id.TokenID}} {
		if c.value != "" { // else it is missing: as an empty text, it would differ from every value
			claims[c.name] = c.value
		}
	}
	if a.NoToken {
		claims["jti"] = condition.Unknown("claims.jti")
	}
	return claims
}

// MatchGlobs reports whether a glob matches the value. No glob matches a value that the token does
// not have, not even *.
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

// MatchAny reports whether one of the subjects matches. An anonymous caller matches no subject. If
// mismatches is not nil, MatchAny appends the differing field for each subject that does not match.
func (a *Asker) MatchAny(matches []Match, mismatches *[]string) bool {
	a.Doubt, a.NeedsNode, a.NeedsToken = "", false, false
	if a.Identity == nil {
		return false
	}
	for i := range matches {
		before := a.Doubt
		a.undecided = false
		field := matches[i].mismatch(a)
		if field == "" {
			return true
		}
		a.NeedsNode = a.NeedsNode || a.undecided && field == "nodes"
		a.NeedsToken = a.NeedsToken || a.undecided && field != "nodes"
		if mismatches != nil {
			switch {
			case a.Doubt != before:
				field += ", which cannot be judged: " + a.Doubt
			case a.undecided:
				field += ", which cannot be judged without a token"
			}
			*mismatches = append(*mismatches, field)
		}
	}
	return false
}

// Unserved calls compare for rules of other services, which only traces show. The cost of that does
// not count for the decision.
func (a *Asker) Unserved(compare func()) {
	a.spent, a.unserved = a.unserved, a.spent
	compare()
	a.spent, a.unserved = a.unserved, a.spent
}

// IsFree reports whether comparing the subjects has no counted cost and leaves no doubt. Then it
// does not matter whether and when they are compared.
func IsFree(matches []Match) bool {
	return !slices.ContainsFunc(matches, func(m Match) bool { return m.Claims != nil || m.Condition != nil })
}
