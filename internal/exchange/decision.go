package exchange

import (
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// Subject is who asks. The zero Subject is anonymous.
type Subject struct {
	Identity    *oidc.Identity    // nil: anonymous
	Annotations map[string]string // of the live ServiceAccount with the identity's UID; nil: none known
}

// Decision is the answer of a policy to one request. The zero Decision grants
// nothing.
type Decision struct {
	DeniedBy string          // name of the deny rule that refuses the subject as a whole; empty: none
	Scopes   []ScopeDecision // one for each requested scope, in the order asked
}

// ScopeDecision says what became of one requested scope, and why.
type ScopeDecision struct {
	Requested registryauth.Scope
	Granted   []string // sorted; a subset of the requested actions; nil: nothing
	Rules     []string // names of the rules that granted, in the policy's order
	Reason    string   // why what is missing is missing, for people; empty when all was granted
}

// Granted returns the scopes that a token may carry: those with at least one
// action, sorted.
func (d Decision) Granted() []registryauth.Scope { panic("not written yet") }
