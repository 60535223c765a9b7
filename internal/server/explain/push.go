package explain

import (
	"net/http"
	"slices"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// pushPresented returns the id of the push credential that the request of a line presented. It is
// empty for another kind of credential.
func (e *explainer) pushPresented() string {
	if e.then == nil {
		return ""
	}
	return e.then.PushPresented()
}

// withinPush reduces a decision to the rights that the push credential of a line can have. The line
// names the scopes that exceeded them.
func (e *explainer) withinPush(decision policy.Decision) policy.Decision {
	var scopes []string
	for _, scope := range e.scopes {
		text := scope.String()
		i := slices.IndexFunc(e.then.Scopes, func(s exchange.ScopeEvent) bool { return s.Scope == text })
		if i >= 0 && e.then.Scopes[i].Reason == exchange.ReasonBeyondPush {
			scope.Actions = e.then.Scopes[i].Granted
		}
		if len(scope.Actions) > 0 {
			scopes = append(scopes, scope.String())
		}
	}
	return exchange.WithinPush(decision, scopes)
}

// conclude sets the outcome of the request, as serve would.
func (e *explainer) conclude(event *exchange.Event, subject policy.Subject, decision policy.Decision, refusal error) {
	request := registryauth.Request{Malformed: e.malformed, Omitted: e.omitted}
	event.Conclude(request, subject, decision, refusal)
	if event.Status != http.StatusOK || e.then == nil || !e.then.IsForPush() {
		return
	}
	if refused := exchange.PushRefusal(subject, decision.Granted()); refused != nil {
		event.Conclude(request, subject, decision, refused)
	}
}

// pushRevocations also checks the id of a push credential.
type pushRevocations struct {
	exchange.Revocations
	id string
}

func (r pushRevocations) Revoked(id *oidc.Identity) (*exchange.Revocation, error) {
	found, err := r.Revocations.Revoked(id)
	if found != nil || err != nil {
		return found, err
	}
	presented := *id
	presented.TokenID = r.id
	return r.Revocations.Revoked(&presented)
}
