package explain

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
)

func (e *explainer) step(step exchange.StepName, verdict exchange.Verdict, format string, args ...any) {
	e.steps = append(e.steps, Step{step, verdict, fmt.Sprintf(format, args...)})
}

// explain decides the request as serve does. An error means that it could not be decided. A refusal
// is not an error.
func (e *explainer) explain(ctx context.Context) (*Explanation, error) {
	answer := &Explanation{
		APIVersion: config.APIVersion, Kind: kind,
		Service: e.service, Caller: e.caller.String(),
		Then: json.RawMessage(e.line), then: e.then,
	}
	for _, scope := range e.scopes {
		answer.Requested = append(answer.Requested, scope.String())
	}
	event := &exchange.Event{Service: e.service, Caller: e.caller.String()}
	subject, refusal := e.identify(ctx, event, answer)
	if refusal == nil {
		answer.decision, answer.Trace = e.policy.Explain(subject, e.service, e.scopes)
		if e.pushPresented() != "" {
			answer.decision = e.withinPush(answer.decision)
		}
		answer.Closed = e.closed(answer.decision)
		e.policySaw(subject, answer)
		if e.source == sourceClaim {
			answer.Edit = nil // an invented token must not lead to a proposed edit
		}
	}
	e.conclude(event, subject, answer.decision, refusal)
	if event.Result == exchange.ResultUnavailable || event.Result == exchange.ResultError {
		return nil, refusal
	}
	e.subject(event, answer)
	e.complete(answer)
	answer.Now = newOutcome(event)
	// There is nothing to compare if the token was refused, because the explanation assumes a valid
	// one. The gateway's token was verified before, so there is nothing to compare there, either.
	if e.then != nil && e.then.Gateway == nil && (e.source != sourceClaim || answer.verdict(stepToken) == exchange.VerdictRefused) {
		answer.Changes = outcomeChanges(e.then, answer.Now)
	}
	return answer, nil
}

// identify runs the steps before the policy.
func (e *explainer) identify(ctx context.Context, event *exchange.Event, answer *Explanation) (policy.Subject, error) {
	if _, err := config.FindRegistry(e.cfg, e.service); err != nil { // only for a line of the audit log
		err = &exchange.UnknownServiceError{Service: e.service}
		e.step(stepService, exchange.VerdictRefused, "%s", err)
		return policy.Subject{}, err
	}
	e.step(stepService, exchange.VerdictPassed, "it is one of registries[]")
	if e.source == sourceAnonymous {
		e.step(stepToken, exchange.VerdictOff, "no credential was sent")
		for _, step := range admissionSteps {
			e.step(step, exchange.VerdictOff, "the request names no identity")
		}
		e.shared(policy.Subject{})
		return policy.Subject{}, nil
	}
	id, err := e.verify(ctx, answer)
	if err != nil {
		return policy.Subject{}, err
	}
	subject, err := e.admit(ctx, id, event)
	if err == nil {
		e.shared(subject)
	}
	return subject, err
}

// closed returns the granted actions that the gateway does not allow.
func (e *explainer) closed(decision policy.Decision) []Closed {
	if e.cfg.Gateway == nil || e.cfg.Gateway.Service != e.service {
		return nil
	}
	var all []Closed
	for _, u := range e.cfg.Upstreams {
		c := Closed{Upstream: u.Name}
		for _, scope := range decision.Granted() {
			if scope.Type != "repository" || !strings.HasPrefix(scope.Name, u.Name+"/") {
				continue
			}
			for _, action := range scope.Actions {
				if action != "*" && !slices.Contains(u.Actions, config.UpstreamAction(action)) && !slices.Contains(c.Actions, action) {
					c.Actions = append(c.Actions, action)
				}
			}
		}
		if c.Actions != nil {
			all = append(all, c)
		}
	}
	return all
}

// verify verifies the token, or checks the identity given in its place.
func (e *explainer) verify(ctx context.Context, answer *Explanation) (oidc.Identity, error) {
	switch e.source {
	case sourceToken:
		return e.verifyToken(ctx, answer)
	case sourceName:
		e.step(stepToken, exchange.VerdictNotJudged, "--as has no token; the rest assumes a valid token")
	case sourceIdentity:
		return e.verifyClaims(answer)
	default:
		if e.source == sourceAudit && e.then.Identity != nil {
			id, err := e.identityThen()
			if err != nil {
				e.step(stepToken, exchange.VerdictRefused, "%s", err)
			}
			return id, err
		}
		if err := e.auditToken(); err != nil {
			e.step(stepToken, exchange.VerdictRefused, "%s", err)
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

func (e *explainer) verifyToken(ctx context.Context, answer *Explanation) (oidc.Identity, error) {
	verifier, err := setup.NewVerifier(e.cfg, e.logger)
	if err != nil {
		return oidc.Identity{}, err
	}
	id, err := verifier.Verify(ctx, registryauth.NewSecret(e.token))
	var failure *oidc.Error
	switch {
	case errors.As(err, &failure) && failure.Reason != refusal.IssuerUnavailable:
		answer.Subject.Cluster, answer.Subject.Claimed = failure.Cluster, exchange.ClaimedBy(failure)
		if failure.Provider != "" {
			answer.Subject.Identity = &exchange.Identity{Name: failure.Provider}
		}
		e.step(stepToken, exchange.VerdictRefused, "%s", failure.Message)
	case err == nil:
		e.step(stepToken, exchange.VerdictPassed, "good until %s", id.Expiry.UTC().Format(time.RFC3339))
	}
	return id, err
}

// shared adds the steps that depend on other requests. It does not query them: a
// query would count as a request.
func (e *explainer) shared(subject policy.Subject) {
	switch {
	case e.cfg.State.Replay == exchange.ReplayOff || subject.Identity == nil:
		e.step(stepReplay, exchange.VerdictOff, "a token may come from several callers (state.replay)")
	default:
		e.step(stepReplay, exchange.VerdictNotJudged, "only the serving proxies know which caller presented the token first (state.replay is %s)", e.cfg.State.Replay)
	}
	e.step(stepLimits, exchange.VerdictNotJudged, "they depend on other requests (limits)")
}

// policySaw records the inputs of the policy and its denials.
func (e *explainer) policySaw(subject policy.Subject, answer *Explanation) {
	if subject.Identity != nil && subject.Identity.External == nil {
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
	matched := slices.IndexFunc(answer.Deny, func(d policy.DenyTrace) bool { return d.Matched })
	switch {
	case matched >= 0:
		e.step(stepDeny, exchange.VerdictRefused, "%s", denialText(answer.Deny[matched]))
	case len(answer.Deny) == 0:
		e.step(stepDeny, exchange.VerdictPassed, "the policy has no deny rules")
	default:
		e.step(stepDeny, exchange.VerdictPassed, "no deny rule matches")
	}
}

// subject records the identity that admission used, or else the one of the line.
func (e *explainer) subject(event *exchange.Event, answer *Explanation) {
	s := &answer.Subject
	s.Source, s.Cluster = e.source, cmp.Or(event.Cluster, s.Cluster)
	if e.then != nil {
		s.Claimed = e.then.Claimed
		if event.ServiceAccount == nil && event.Identity == nil {
			event, s.Cluster = e.then, e.then.Cluster
		}
	}
	s.Namespace, s.ServiceAccount, s.Pod, s.Node = event.Namespace, event.ServiceAccount, event.Pod, event.Node
	s.PullSecret, s.NodeFromAPI, s.CredentialID, s.Identity = event.PullSecret, event.NodeFromAPI, event.CredentialID, cmp.Or(event.Identity, s.Identity)
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

// notAsked begins the message of a step that was not reached.
const notAsked = "not asked: "

// complete adds the steps that were not reached.
func (e *explainer) complete(answer *Explanation) {
	for _, step := range slices.Concat([]exchange.StepName{stepService, stepToken}, admissionSteps, []exchange.StepName{stepReplay, stepLimits, stepDeny}) {
		if !slices.ContainsFunc(e.steps, func(s Step) bool { return s.Step == step }) {
			e.step(step, exchange.VerdictNotJudged, notAsked+"%s refuses", e.refusedStep())
		}
	}
	answer.Steps = e.steps
}

func (e *explainer) refusedStep() exchange.StepName {
	i := slices.IndexFunc(e.steps, func(s Step) bool { return s.Verdict == exchange.VerdictRefused })
	return e.steps[i].Step
}
