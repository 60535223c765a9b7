package exchange

import (
	"context"
	"errors"
	"slices"

	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// Authorizer identifies the caller of a request and decides which scopes are granted. It is used to
// serve requests and to explain them. It is safe for concurrent use if its fields are.
type Authorizer struct {
	Serves func(service string) bool
	// Identify returns the identity that the credential of a request proves. The rights are those
	// of a push credential; nil: the credential is of a different kind.
	Identify        func(ctx context.Context, req registryauth.Request, event *Event) (oidc.Identity, *PushRights, error)
	Admission       *Admission
	Replay          ReplayMode
	Owners          Owners  // of token ids; nil: replay is not judged, which is for explaining alone
	ServiceAccounts Limiter // nil: the limit is not judged, likewise
	Decide          func(subject policy.Subject, service string, requested []registryauth.Scope) policy.Decision
	// Try decides by a policy that is only tried; it reports false if there is none. Its decision
	// is noted in the event, and has no other effect. It may be nil.
	Try func(subject policy.Subject, service string, requested []registryauth.Scope) (policy.Decision, bool)
}

// Authorization is the outcome of Authorize: its steps, and the access for Issue. After an error,
// only the steps and the decision may be used.
type Authorization struct {
	Steps    Steps
	Decision policy.Decision // zero if a step before it failed

	subject policy.Subject
	granted []registryauth.Scope
	names   []string // the granted scopes as text
	pushID  string   // of the push credential that was presented
}

// Authorize judges one request. It notes its findings in event as it goes, so that the event is
// complete also when it fails.
//
// Steps run from cheap to expensive. Each has its own error: *UnknownServiceError, *oidc.Error,
// *GoneError, *NodeError, *RevokedError, *ReplayError, *LimitError, *UnavailableError,
// *DeniedError, *AnonymousError, *PushCredentialError. A scope that is not granted is not an error
// (token specification): the token just has less access.
func (a *Authorizer) Authorize(ctx context.Context, req registryauth.Request, caller nodeproof.Caller, event *Event) (access Authorization, err error) {
	steps := &access.Steps
	if !a.Serves(req.Service) {
		steps[StepService] = VerdictRefused
		return access, &UnknownServiceError{Service: req.Service}
	}
	steps[StepService] = VerdictPassed
	event.Service = req.Service

	subject, push, err := a.identify(ctx, req, caller, event, steps)
	if err != nil {
		return access, err
	}

	_, deciding := begin(ctx, stepDecide)
	decision := push.limit(a.Decide(subject, req.Service, req.Scopes))
	deciding.End()
	if push != nil {
		access.pushID = push.ID
	}
	access.subject, access.Decision, access.granted = subject, decision, decision.Granted()
	access.names = policy.ScopeStrings(access.granted)
	event.decide(decision, access.names)
	a.try(subject, req, push, &access, event)
	if steps[StepDeny] = VerdictPassed; decision.DeniedBy != "" {
		steps[StepDeny] = VerdictRefused
	}
	if err := decisionError(decision, subject); err != nil {
		return access, err
	}
	event.unread(req)
	return access, nil
}

// try notes in event what the policy that is only tried would have decided, if that differs.
func (a *Authorizer) try(subject policy.Subject, req registryauth.Request, push *PushRights, access *Authorization, event *Event) {
	if a.Try == nil {
		return
	}
	decision, isTried := a.Try(subject, req.Service, req.Scopes)
	if !isTried {
		return
	}
	decision = push.limit(decision)
	granted := decision.Granted()
	if (access.Decision.DeniedBy == "") == (decision.DeniedBy == "") && !exceeds(granted, access.granted) && !exceeds(access.granted, granted) {
		return
	}
	var tried Event
	tried.decide(decision, policy.ScopeStrings(granted))
	tried.unread(req)
	if err := decisionError(decision, subject); err != nil {
		tried.refuse(classify(err, ""))
	}
	event.Trial = &Trial{Result: tried.Result, Granted: tried.Granted, Rule: tried.Rule, Reason: tried.Reason}
}

// exceeds reports whether some of the granted actions are not among the others. Both are results of
// Granted.
func exceeds(granted, others []registryauth.Scope) bool {
	return slices.ContainsFunc(granted, func(s registryauth.Scope) bool {
		i, isThere := slices.BinarySearchFunc(others, s, policy.CompareResources)
		return !isThere || slices.ContainsFunc(s.Actions, func(action string) bool { return !slices.Contains(others[i].Actions, action) })
	})
}

// identify has the credential verified, if there is one, and its identity admitted. Then it checks
// replay and the limit of the identity. A request that another check refuses does not count towards
// them. An anonymous caller needs no proof.
func (a *Authorizer) identify(ctx context.Context, req registryauth.Request, caller nodeproof.Caller, event *Event, steps *Steps) (policy.Subject, *PushRights, error) {
	if req.GrantType == registryauth.GrantAnonymous {
		for step := StepToken; step <= StepLimits; step++ {
			steps[step] = VerdictOff
		}
		return policy.Subject{}, nil, nil
	}
	id, push, err := a.Identify(ctx, req, event)
	if err != nil {
		var failure *oidc.Error
		if errors.As(err, &failure) {
			event.claim(failure)
		}
		if result := ResultOf(classify(err, "").class); result != ResultUnavailable && result != ResultError {
			steps[StepToken] = VerdictRefused
		}
		return policy.Subject{}, nil, err
	}
	steps[StepToken] = VerdictPassed
	subject, err := a.Admission.Admit(ctx, id, req.Credential, caller, event, steps)
	if err == nil && push != nil {
		steps[StepRevocations], err = a.Admission.revokedPush(id, push, event)
	}
	if err != nil {
		return policy.Subject{}, nil, err
	}
	sharing, span := begin(ctx, stepState)
	limit := limitOf(subject.Identity)
	event.Replay, steps[StepReplay], err = a.verifyOwner(sharing, subject.Identity, caller, event.Proof, &limit)
	if err == nil {
		steps[StepLimits], err = a.limitServiceAccount(sharing, limit)
	}
	end(span, err)
	if err != nil {
		return policy.Subject{}, nil, err
	}
	return subject, push, nil
}
