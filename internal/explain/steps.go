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

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/setup"
	"github.com/pullpass/pullpass/internal/term"
)

func (e *explainer) step(step exchange.StepName, verdict exchange.Verdict, format string, args ...any) {
	e.steps = append(e.steps, Step{step, verdict, fmt.Sprintf(format, args...)})
}

// explain judges the request as serve does. The error says that it could not be
// judged; a refusal is an answer.
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
			answer.Edit = nil // whoever makes up a token must not get an edit proposed
		}
	}
	e.conclude(event, subject, answer.decision, refusal)
	if event.Result == exchange.ResultUnavailable || event.Result == exchange.ResultError {
		return nil, refusal
	}
	e.subject(event, answer)
	e.complete(answer)
	answer.Now = newOutcome(event)
	// Of a token that was refused another one is judged: there is nothing to
	// compare.
	// Nor of a request at the gateway, whose token had been judged before.
	if e.then != nil && e.then.Gateway == nil && (e.source != sourceClaim || answer.verdict(stepToken) == exchange.VerdictRefused) {
		answer.Changes = outcomeChanges(e.then, answer.Now)
	}
	return answer, nil
}

// identify says what a serving proxy says before it asks the policy.
func (e *explainer) identify(ctx context.Context, event *exchange.Event, answer *Explanation) (policy.Subject, error) {
	if _, err := config.FindRegistry(e.cfg, e.service); err != nil { // only of a line of the audit log
		err = &exchange.UnknownServiceError{Service: e.service}
		e.step(stepService, exchange.VerdictRefused, "%s", err)
		return policy.Subject{}, err
	}
	e.step(stepService, exchange.VerdictPassed, "it is one of registries[]")
	if e.source == sourceAnonymous {
		e.step(stepToken, exchange.VerdictOff, "no credential was sent")
		for _, step := range admissionSteps {
			e.step(step, exchange.VerdictOff, "nobody is named")
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

// closed is what the gateway does not do although a token for it is granted.
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

// verify judges the token, or what there is instead of one.
func (e *explainer) verify(ctx context.Context, answer *Explanation) (oidc.Identity, error) {
	switch e.source {
	case sourceToken:
		return e.verifyToken(ctx, answer)
	case sourceName:
		e.step(stepToken, exchange.VerdictNotJudged, "--as has none: what follows is what a good one would get")
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
	if e.source != sourceAudit { // who is known by name alone
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
	case errors.As(err, &failure) && failure.Reason != oidc.ReasonUnavailable:
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

// shared says what depends on other requests: nothing is asked, because to ask
// is to count.
func (e *explainer) shared(subject policy.Subject) {
	switch {
	case e.cfg.State.Replay == exchange.ReplayOff || subject.Identity == nil:
		e.step(stepReplay, exchange.VerdictOff, "a token may come from several callers (state.replay)")
	default:
		e.step(stepReplay, exchange.VerdictNotJudged, "who presented the token first is for the serving proxies to say (state.replay is %s)", e.cfg.State.Replay)
	}
	e.step(stepLimits, exchange.VerdictNotJudged, "they depend on how much else is asked (limits)")
}

// policySaw notes what the policy judged by, and its denials.
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

// subject notes who asks: what admission was told, or else what the line has.
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

// unproven says why the subject of the answer is not proven, or nothing.
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
		return "a token that was refused (" + term.Words(e.then.Reason) + ") claimed it, and anybody can make such a token"
	case s.ServiceAccount == nil && (s.Identity == nil || s.Identity.Subject == ""):
		return "the token is refused, so nothing that it claims is proven"
	}
	return ""
}

// notAsked begins the message of a step that nobody came to.
const notAsked = "not asked: "

// complete adds the steps that nobody came to.
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
