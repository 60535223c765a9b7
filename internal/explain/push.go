package explain

import (
	"net/http"
	"slices"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// pushPresented is the id of the push credential that the request of a line came with;
// empty: it came with another credential.
func (e *explainer) pushPresented() string {
	if e.then == nil {
		return ""
	}
	return e.then.PushPresented()
}

// withinPush leaves of a decision what the push credential of a line can be for. The
// line says what it is not for, of what the policy gave then.
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

// conclude says what the request comes to, as serve would.
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

// pushRevocations judges a push credential also by its own id.
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
