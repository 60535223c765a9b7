package explain

import (
	"slices"

	"github.com/pullpass/pullpass/internal/exchange"
)

// pushPresented returns the id of the push credential that the request of a line presented. It is
// empty for another kind of credential.
func (e *explainer) pushPresented() string {
	if e.then == nil {
		return ""
	}
	return e.then.PushPresented()
}

// pushScopes returns the most that the push credential of a line can be for. The line names the
// scopes that exceeded it.
func (e *explainer) pushScopes() []string {
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
	return scopes
}
