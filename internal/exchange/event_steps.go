package exchange

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// The methods below note in an event the findings of each step of a request, in the order of the
// steps.

// request notes the requested access.
func (e *Event) request(req registryauth.Request) {
	e.GrantType = string(req.GrantType)
	e.ClientID = req.ClientID
	e.Account = req.Account
	e.Requested, e.Omitted = policy.ScopeStrings(req.Scopes), req.Omitted
	for _, m := range req.Malformed[:min(len(req.Malformed), policy.MaxScopesTold)] { // quoted, a text is five times as long
		e.Requested = append(e.Requested, m.Text)
	}
}

// identify notes the identity that a credential names.
func (e *Event) identify(id *oidc.Identity) {
	e.CredentialID = credentialID(id.TokenID)
	if x := id.External; x != nil {
		e.Identity = &Identity{Name: x.Provider, Subject: id.Subject, Project: x.Project, Run: x.Run, Claims: x.Named()}
		return
	}
	e.Cluster = id.Cluster
	e.Namespace = id.Kubernetes.Namespace
	e.ServiceAccount = object(id.Kubernetes.ServiceAccount)
	e.Pod = object(id.Kubernetes.Pod)
	e.Node = object(id.Kubernetes.Node)
	e.PullSecret = object(id.Kubernetes.Secret)
}

// claim notes the claims of a refused credential.
func (e *Event) claim(failure *oidc.Error) {
	e.Cluster, e.Claimed = failure.Cluster, ClaimedBy(failure)
	if failure.Provider != "" {
		e.Identity = &Identity{Name: failure.Provider}
	}
}

// decide notes a decision: the grants, their rules, and the reason for each missing grant.
func (e *Event) decide(d policy.Decision, granted []string) {
	if d.DeniedBy != "" {
		e.Rule = d.DeniedBy
		return
	}
	e.Granted = granted
	e.Result = ResultGranted
	var rules []string
	for _, s := range d.Scopes {
		for _, rule := range s.Rules {
			if !slices.Contains(rules, rule) {
				rules = append(rules, rule)
			}
		}
		if s.Reason != "" {
			e.notGranted(refusal.ScopeNotGranted, ScopeEvent{Scope: s.Requested.String(), Granted: s.Granted, Rules: s.Rules, Reason: s.Reason, Remedy: s.Remedy})
		}
	}
	e.Rule = strings.Join(rules, ",")
}

// unread notes, after a decision, the scopes that it did not cover. They are not an error: a scope
// that is not granted is never one (token specification).
func (e *Event) unread(req registryauth.Request) {
	for _, m := range req.Malformed {
		e.notGranted(refusal.ScopeMalformed, ScopeEvent{Scope: m.Text, Reason: "it is not a scope: " + m.Fault.Message})
	}
	if req.Omitted > 0 {
		e.notGranted(refusal.ScopesOmitted)
	}
}

// notGranted notes that some access was not granted, and the reason for the first scopes. Of
// several reasons it keeps the first.
func (e *Event) notGranted(reason refusal.Reason, scopes ...ScopeEvent) {
	e.Result, e.Reason = ResultPartial, cmp.Or(e.Reason, string(reason))
	if len(e.Granted) == 0 {
		e.Result = ResultNone
	}
	e.Scopes = append(e.Scopes, scopes[:min(len(scopes), policy.MaxScopesTold-len(e.Scopes))]...)
}

// refuse notes the outcome of an error: nothing was granted.
func (e *Event) refuse(o outcome) {
	e.Status, e.Result, e.Reason = o.class.Status(), ResultOf(o.class), string(o.reason)
	e.Message = cmp.Or(o.operator, o.message)
	e.Granted, e.IssuedID = nil, ""
	if o.class == refusal.Limited || provesNothing(o.class) {
		e.Requested = e.Requested[:min(len(e.Requested), policy.MaxScopesTold)]
	}
}

// Conclude notes in an event the response of the token endpoint, given the error of Authorize. It is
// for explaining requests: no token is issued.
func (e *Event) Conclude(err error) {
	if err != nil {
		e.refuse(classify(err, e.ID))
		return
	}
	e.Status = http.StatusOK
}
