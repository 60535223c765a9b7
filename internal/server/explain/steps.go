package explain

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/reach"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// explain decides the request as serve does. An error means that it could not be decided. A refusal
// is not an error.
func (e *explainer) explain(ctx context.Context) (*Explanation, error) {
	answer := &Explanation{
		APIVersion: strictyaml.AnswerVersion, Kind: kind,
		Service: e.service, Caller: e.caller.String(),
		Then: json.RawMessage(e.line), then: e.then,
	}
	for _, scope := range e.scopes {
		answer.Requested = append(answer.Requested, scope.String())
	}
	checks, err := setup.NodeChecks(e.cfg, nil)
	if err != nil {
		return nil, err
	}
	revocations, closeList, fault := e.revocations(ctx)
	defer closeList()
	admission, err := exchange.NewAdmission(exchange.AdmissionConfig{
		Objects: e, Nodes: e.nodeChecks(checks), Revocations: revocations,
		CallersUnseen: true, // explain sees no client certificate
	})
	if err != nil {
		return nil, err
	}
	// It has no Owners and no Limiter: a query would count as a request.
	authorizer := exchange.Authorizer{
		Serves:    func(service string) bool { _, err := config.FindRegistry(e.cfg, service); return err == nil },
		Identify:  e.identify,
		Admission: admission,
		Replay:    e.cfg.State.Replay,
		Decide: func(subject policy.Subject, service string, scopes []registryauth.Scope) (decision policy.Decision) {
			e.policySees(subject, answer)
			subject.NoToken = e.source == sourceName || e.source == sourceClaim
			decision, answer.Trace = e.policy.Explain(subject, service, scopes)
			return decision
		},
	}
	request := registryauth.Request{Service: e.service, Scopes: e.scopes, Malformed: e.malformed, Omitted: e.omitted, Credential: e.token}
	if e.source == sourceAnonymous {
		request.GrantType = registryauth.GrantAnonymous
	}
	event := exchange.Event{Caller: answer.Caller}
	access, refused := authorizer.Authorize(ctx, request, e.caller, &event)
	if refused == nil && e.then != nil && e.then.IsForPush() {
		refused = access.PushRefusal()
	}
	event.Conclude(refused)
	if event.Result == exchange.ResultUnavailable || event.Result == exchange.ResultError {
		return nil, refused
	}
	answer.decision, answer.Closed = access.Decision, closedActions(e.cfg, e.service, grantedAt(access.Decision))
	if e.source == sourceClaim {
		answer.Edit = nil // an invented token must not lead to a proposed edit
	}
	e.subject(&event, answer, access.Steps[exchange.StepToken])
	w := wording{e, &event, e.cfg.Cluster(event.Cluster), checks[event.Cluster], fault, answer.Deny, slices.Concat(answer.decision.UnjudgedDenials, answer.decision.DenialsOfNodes)}
	answer.Steps = w.steps(access.Steps)
	answer.Now = newOutcome(&event)
	// There is nothing to compare if the token was refused, because the explanation assumes a valid
	// one. The gateway's token was verified before, so there is nothing to compare there, either.
	if e.then != nil && e.then.Gateway == nil && (e.source != sourceClaim || access.Steps[exchange.StepToken] == exchange.VerdictRefused) {
		answer.Changes = outcomeChanges(e.then, answer.Now)
	}
	return answer, nil
}

// identify returns the identity of the request, and the rights that a push credential of the line can
// have.
func (e *explainer) identify(ctx context.Context, _ registryauth.Request, _ *exchange.Event) (oidc.Identity, *exchange.PushRights, error) {
	var push *exchange.PushRights
	if id := e.pushPresented(); id != "" {
		push = &exchange.PushRights{ID: id, Scopes: e.pushScopes()}
	}
	id, err := e.verify(ctx)
	return id, push, err
}

// verify verifies the token, or checks the identity given in its place.
func (e *explainer) verify(ctx context.Context) (oidc.Identity, error) {
	switch {
	case e.source == sourceToken:
		return e.verifyToken(ctx)
	case e.source == sourceIdentity:
		return e.verifyClaims()
	case e.source == sourceAudit && e.then.Identity != nil:
		return e.identityThen()
	case e.source == sourceName:
		e.tokenWords = "--as has no token; the rest assumes a valid token"
	default:
		if err := e.auditToken(); err != nil {
			return oidc.Identity{}, err
		}
	}
	if e.source != sourceAudit { // only the name is known
		if err := e.live(ctx); err != nil {
			return oidc.Identity{}, err
		}
	}
	return *e.id, nil
}

func (e *explainer) verifyToken(ctx context.Context) (oidc.Identity, error) {
	verifier, err := setup.NewVerifier(e.cfg, e.logger)
	if err != nil {
		return oidc.Identity{}, err
	}
	id, err := verifier.Verify(ctx, e.token)
	e.tokenWords = "good until " + id.Expiry.UTC().Format(time.RFC3339)
	return id, err
}

// closedActions returns the granted actions that the gateway does not allow. granted returns those
// at an upstream.
func closedActions(cfg *config.Config, service string, granted func(upstream string) []string) []reach.Closed {
	if cfg.Gateway == nil || cfg.Gateway.Service != service {
		return nil
	}
	var all []reach.Closed
	for _, u := range cfg.Upstreams {
		c := reach.Closed{Upstream: u.Name}
		for _, action := range granted(u.Name) {
			if action != "*" && !slices.Contains(u.Actions, config.UpstreamAction(action)) && !slices.Contains(c.Actions, action) {
				c.Actions = append(c.Actions, action)
			}
		}
		if c.Actions != nil {
			all = append(all, c)
		}
	}
	return all
}

// grantedAt returns the actions that a decision grants at an upstream.
func grantedAt(decision policy.Decision) func(upstream string) []string {
	return func(upstream string) (actions []string) {
		for _, scope := range decision.Granted() {
			if scope.Type == "repository" && strings.HasPrefix(scope.Name, upstream+"/") {
				actions = append(actions, scope.Actions...)
			}
		}
		return actions
	}
}

// policySees records the inputs of the policy.
func (e *explainer) policySees(subject policy.Subject, answer *Explanation) {
	if subject.Identity == nil || subject.Identity.External != nil {
		return
	}
	answer.NamespaceLabels = subject.NamespaceLabels
	for _, key := range e.policy.AnnotationKeys() {
		if answer.Annotations == nil {
			answer.Annotations = map[string]*string{}
		}
		answer.Annotations[key] = nil
		if value, ok := subject.Annotations[key]; ok {
			answer.Annotations[key] = &value
		}
	}
}

// subject records the identity that the token proved, or else the one of the line.
func (e *explainer) subject(event *exchange.Event, answer *Explanation, token exchange.Verdict) {
	s := &answer.Subject
	s.Source, s.Claimed = e.source, event.Claimed
	if e.then != nil {
		s.Claimed = e.then.Claimed
		if token != exchange.VerdictPassed {
			event = e.then
		}
	}
	s.Cluster, s.Namespace, s.ServiceAccount, s.Pod, s.Node = event.Cluster, event.Namespace, event.ServiceAccount, event.Pod, event.Node
	s.PullSecret, s.NodeFromAPI, s.CredentialID, s.Identity = event.PullSecret, event.NodeFromAPI, event.CredentialID, event.Identity
	s.Unproven = e.unproven(s)
	s.Proven = s.Unproven == ""
}

// unproven returns why the subject of the answer is not proven, or "".
func (e *explainer) unproven(s *Subject) string {
	switch {
	case e.source == sourceAnonymous:
		return "no credential was sent"
	case e.source == sourceName:
		return "no token says so: --as does"
	case e.source == sourceIdentity:
		return "no token says so: --claims does"
	case s.Claimed != nil && s.Claimed.Verified:
		return "" // the signature is good, though the token is not
	case e.source == sourceClaim:
		return "a token that was refused (" + term.Words(e.then.Reason) + ") claimed it, and anyone can make such a token"
	case s.ServiceAccount == nil && (s.Identity == nil || s.Identity.Subject == ""):
		return "the token is refused, so nothing that it claims is proven"
	}
	return ""
}
