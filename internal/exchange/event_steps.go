package exchange

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// The methods below note in an event what the steps of a request found out, in the
// order of the steps.

// request notes what was asked for.
func (e *Event) request(req registryauth.Request) {
	e.GrantType = string(req.GrantType)
	e.ClientID = req.ClientID
	e.Account = req.Account
	e.Requested, e.Omitted = policy.ScopeStrings(req.Scopes), req.Omitted
	for _, m := range req.Malformed {
		e.Requested = append(e.Requested, m.Text)
	}
}

// identify notes whom a credential names.
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

// claim notes what a refused credential says of itself.
func (e *Event) claim(failure *oidc.Error) {
	e.Cluster, e.Claimed = failure.Cluster, ClaimedBy(failure)
	if failure.Provider != "" {
		e.Identity = &Identity{Name: failure.Provider}
	}
}

// decide notes a decision: what was granted, by which rules, and for what is
// missing, why.
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
			e.notGranted(reasonNotGranted, ScopeEvent{Scope: s.Requested.String(), Granted: s.Granted, Rules: s.Rules, Reason: s.Reason, Remedy: s.Remedy})
		}
	}
	e.Rule = strings.Join(rules, ",")
}

// unread notes, after a decision, what it could not be about. That is no error: a
// scope that is not granted never is (token specification).
func (e *Event) unread(req registryauth.Request) {
	for _, m := range req.Malformed {
		e.notGranted(reasonMalformedScope, ScopeEvent{Scope: m.Text, Reason: "it is no scope: " + m.Fault.Message})
	}
	if req.Omitted > 0 {
		e.notGranted(reasonOmittedScopes)
	}
}

// notGranted notes that not all was granted, and of the first scopes, why. Of
// several reasons it keeps the first.
func (e *Event) notGranted(reason string, scopes ...ScopeEvent) {
	e.Result, e.Reason = ResultPartial, cmp.Or(e.Reason, reason)
	if len(e.Granted) == 0 {
		e.Result = ResultNone
	}
	e.Scopes = append(e.Scopes, scopes[:min(len(scopes), policy.MaxScopesTold-len(e.Scopes))]...)
}

// refuse notes what an error means: nothing was granted.
func (e *Event) refuse(o outcome) {
	kind := classes[o.class]
	e.Status, e.Result, e.Reason = kind.status, kind.result, o.reason
	e.Message = cmp.Or(o.operator, o.message)
	e.Granted, e.IssuedID = nil, ""
	if o.class == classTooMany {
		e.Requested = e.Requested[:min(len(e.Requested), policy.MaxScopesTold)]
	}
}

// Conclude notes in an event what the token endpoint would have answered to a
// request: to err, if a Verifier or an Admission returned one, or else to the
// decision. It is for those who explain: nothing is issued.
func (e *Event) Conclude(req registryauth.Request, subject policy.Subject, d policy.Decision, err error) {
	if err == nil {
		e.decide(d, policy.ScopeStrings(d.Granted()))
		err = refusal(d, subject)
	}
	if err != nil {
		e.refuse(classify(err, e.ID))
		return
	}
	e.unread(req)
	e.Status = http.StatusOK
}
