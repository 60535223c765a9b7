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

func (e *explainer) step(step, verdict, format string, args ...any) {
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
		e.policySaw(subject, answer)
		if e.source == sourceClaim {
			answer.Edit = nil // whoever makes up a token must not get an edit proposed
		}
	}
	event.Conclude(registryauth.Request{Malformed: e.malformed, Omitted: e.omitted}, subject, answer.decision, refusal)
	if event.Result == exchange.ResultUnavailable || event.Result == exchange.ResultError {
		return nil, refusal
	}
	e.subject(event, answer)
	e.complete(answer)
	answer.Now = newOutcome(event)
	// Of a token that was refused another one is judged: there is nothing to
	// compare.
	if e.then != nil && (e.source != sourceClaim || answer.verdict(stepToken) == verdictRefused) {
		answer.Changes = outcomeChanges(e.then, answer.Now)
	}
	return answer, nil
}

// identify says what a serving proxy says before it asks the policy.
func (e *explainer) identify(ctx context.Context, event *exchange.Event, answer *Explanation) (policy.Subject, error) {
	if _, err := config.FindRegistry(e.cfg, e.service); err != nil { // only of a line of the audit log
		err = &exchange.UnknownServiceError{Service: e.service}
		e.step(stepService, verdictRefused, "%s", err)
		return policy.Subject{}, err
	}
	e.step(stepService, verdictPassed, "it is one of registries[]")
	if e.source == sourceAnonymous {
		e.step(stepToken, verdictOff, "no credential was sent")
		for _, step := range []string{stepObjects, stepNode, stepCaller, stepRevocations} {
			e.step(step, verdictOff, "nobody is named")
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

// verify judges the token, or what there is instead of one.
func (e *explainer) verify(ctx context.Context, answer *Explanation) (oidc.Identity, error) {
	switch e.source {
	case sourceToken:
		return e.verifyToken(ctx, answer)
	case sourceName:
		e.step(stepToken, verdictNotJudged, "--as has none: what follows is what a good one would get")
	default:
		if err := e.auditToken(); err != nil {
			e.step(stepToken, verdictRefused, "%s", err)
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
		e.step(stepToken, verdictRefused, "%s", failure.Message)
	case err == nil:
		e.step(stepToken, verdictPassed, "good until %s", id.Expiry.UTC().Format(time.RFC3339))
	}
	return id, err
}

// hasToken reports whether a token, of now or of then, tells pod and node.
func (e *explainer) hasToken() bool { return e.source == sourceToken || e.source == sourceAudit }

// admit asks Admission, and says what it judged.
func (e *explainer) admit(ctx context.Context, id oidc.Identity, event *exchange.Event) (policy.Subject, error) {
	all, err := setup.NodeChecks(e.cfg, nil)
	if err != nil {
		return policy.Subject{}, err
	}
	cluster, checks := e.cluster(id.Cluster), all[id.Cluster]
	configured := checks.Proof
	switch e.source {
	case sourceName, sourceClaim:
		checks = exchange.NodeChecks{}
	case sourceAudit:
		// The verifier asked for the claim then; it has nothing to ask now.
		checks.Required = cluster.Node.Claim == config.NodeClaimRequired
	}
	revocations, closeList, revocationsFault := e.revocations(ctx)
	defer closeList()
	// Nobody can show a certificate here. If the address proves nothing, but a
	// certificate could, the rest is judged as if it had.
	attempt := func(mode exchange.ProofMode) (policy.Subject, error) {
		checks.Proof = exchange.ProofConfig{}
		if e.hasToken() && len(configured.Methods) > 0 {
			checks.Proof = exchange.ProofConfig{Mode: mode, Methods: []exchange.ProofMethod{exchange.ProofAddress}}
		}
		admission, err := exchange.NewAdmission(exchange.AdmissionConfig{
			Objects: e.objects, Nodes: map[string]exchange.NodeChecks{id.Cluster: checks}, Revocations: revocations,
		})
		if err != nil {
			return policy.Subject{}, err
		}
		return admission.Admit(ctx, id, e.caller, event)
	}
	subject, refusal := attempt(configured.Mode)
	if failedStep(refusal, event) == stepCaller && !e.conclusive(event.Proof, configured) {
		subject, refusal = attempt(exchange.ProofAudit)
	}
	failed := failedStep(refusal, event)
	if refusal != nil && failed == "" {
		return policy.Subject{}, refusal
	}
	for _, judged := range []struct {
		step string
		say  func()
	}{
		{stepObjects, func() { e.objectsStep(cluster) }},
		{stepNode, func() { e.nodeStep(event, checks) }},
		{stepCaller, func() { e.callerStep(event.Proof, configured) }},
		{stepRevocations, func() { e.revocationsStep(event, revocationsFault) }},
	} {
		if judged.step == failed {
			e.step(failed, verdictRefused, "%s%s", refusal, revokedBy(event))
			return policy.Subject{}, refusal
		}
		judged.say()
	}
	return subject, nil
}

// failedStep returns the step in which Admission refused, or nothing if err is
// no refusal.
func failedStep(err error, event *exchange.Event) string {
	var (
		gone    *exchange.GoneError
		noNode  *oidc.Error
		node    *exchange.NodeError
		revoked *exchange.RevokedError
	)
	switch {
	case errors.As(err, &gone):
		return stepObjects
	case errors.As(err, &noNode):
		return stepNode
	case errors.As(err, &node) && event.Proof != nil:
		return stepCaller
	case errors.As(err, &node):
		return stepNode
	case errors.As(err, &revoked):
		return stepRevocations
	}
	return ""
}

// revokedBy is what only operators are told of a revocation.
func revokedBy(event *exchange.Event) string {
	r := event.Revocation
	if r == nil {
		return ""
	}
	return fmt.Sprintf(" (%s until %s, by %q)", r.Target, r.Until.UTC().Format(time.RFC3339), r.By)
}

func (e *explainer) objectsStep(cluster *config.Cluster) {
	switch {
	case !cluster.Kubernetes.Connected():
		e.step(stepObjects, verdictOff, "no API server is asked in cluster %s (clusters[].kubernetes), so a token is good until it ends", cluster.Name)
	case !e.hasToken():
		e.step(stepObjects, verdictPassed, "the ServiceAccount is there, says the API server; a pod is not named")
	case !cluster.Kubernetes.PodChecks:
		e.step(stepObjects, verdictPassed, "the ServiceAccount is there, says the API server; it is not asked for the pod (podChecks: false)")
	default:
		e.step(stepObjects, verdictPassed, "what the token names is there, says the API server")
	}
}

func (e *explainer) nodeStep(event *exchange.Event, checks exchange.NodeChecks) {
	switch {
	case !e.hasToken():
		e.step(stepNode, verdictNotJudged, "only a token names one")
	case checks.Selector != nil:
		e.step(stepNode, verdictPassed, "its labels match %s", checks.Selector)
	case event.Node == nil:
		e.step(stepNode, verdictOff, "none is known, and none is asked for (node.claim)")
	default:
		e.step(stepNode, verdictPassed, "every node may pull (node.selector)")
	}
}

// conclusive reports whether a caller without proof is refused for sure: a
// certificate, which nobody presents here, could prove it all the same.
func (e *explainer) conclusive(proof *exchange.Proof, configured exchange.ProofConfig) bool {
	return proof.Reason == exchange.ProofNoNode ||
		e.caller.Address.IsValid() && !slices.Contains(configured.Methods, exchange.ProofCertificate)
}

// callerStep says whether the caller is the node, as far as an address can tell.
func (e *explainer) callerStep(proof *exchange.Proof, configured exchange.ProofConfig) {
	byAddress := slices.Contains(configured.Methods, exchange.ProofAddress)
	byCertificate := slices.Contains(configured.Methods, exchange.ProofCertificate)
	say := func(verdict, format string, args ...any) { e.step(stepCaller, verdict, format, args...) }
	switch {
	case len(configured.Methods) == 0:
		say(verdictOff, "node.proof is off in this cluster")
	case !e.hasToken():
		say(verdictNotJudged, "only a token names a node (node.proof.mode is %s)", configured.Mode)
	case proof.Reason == exchange.ProofNoNode:
		say(verdictNoted, "%s; node.proof.mode is audit: it is written down, and nobody is refused", proof.Message)
	case byAddress && proof.Passed:
		say(verdictPassed, "%s is an address of the node", e.caller)
	case e.then != nil && e.then.Proof != nil && e.then.Proof.Method == exchange.ProofCertificate && byCertificate:
		say(verdictNotJudged, "its client certificate proved it then, and the log holds none (node.proof.mode is %s)", configured.Mode)
	case !byAddress:
		say(verdictNotJudged, "only a certificate proves one in this cluster (node.proof.mode is %s)", configured.Mode)
	case !e.caller.Address.IsValid() && e.then != nil:
		say(verdictNotJudged, "node.proof.mode is %s; the line has no address", configured.Mode)
	case !e.caller.Address.IsValid():
		say(verdictNotJudged, "node.proof.mode is %s; --caller ADDRESS judges an address", configured.Mode)
	case byCertificate:
		say(verdictNotJudged, "%s; only its client certificate could prove it (node.proof.mode is %s)", proof.Message, configured.Mode)
	default:
		say(verdictNoted, "%s; node.proof.mode is audit: it is written down, and nobody is refused", proof.Message)
	}
}

// revocations reads who is revoked. Without a list they are not judged, and the
// fault says why; it is ErrNoRedis where nobody can be revoked.
func (e *explainer) revocations(ctx context.Context) (judged exchange.Revocations, closeList func(), fault error) {
	list, closeList, err := setup.OpenRevocations(e.cfg)
	if err != nil {
		return nil, func() {}, err
	}
	if _, err := list.List(ctx); err != nil {
		closeList()
		return nil, func() {}, err
	}
	return setup.Revocations{List: list}, closeList, nil
}

func (e *explainer) revocationsStep(event *exchange.Event, fault error) {
	judged, unknown := []string{"ServiceAccount"}, []string(nil)
	for _, target := range []struct {
		name  string
		known bool
	}{{"token", event.CredentialID != ""}, {"pod", event.Pod != nil}, {"node", event.Node != nil}} {
		if target.known {
			judged = append(judged, target.name)
		} else {
			unknown = append(unknown, target.name)
		}
	}
	switch {
	case errors.Is(fault, setup.ErrNoRedis):
		e.step(stepRevocations, verdictOff, "nobody can be revoked without Redis (state.redis)")
	case fault != nil:
		e.step(stepRevocations, verdictNotJudged, "whether the %s is revoked is not known: %s; what follows is for what is not", strings.Join(judged, ", "), fault)
	case unknown != nil:
		e.step(stepRevocations, verdictPassed, "not revoked: %s; no %s is named whose revocation would count", strings.Join(judged, ", "), strings.Join(unknown, ", "))
	default:
		e.step(stepRevocations, verdictPassed, "not revoked: %s", strings.Join(judged, ", "))
	}
}

// shared says what depends on other requests: nothing is asked, because to ask
// is to count.
func (e *explainer) shared(subject policy.Subject) {
	switch {
	case e.cfg.State.Replay == exchange.ReplayOff || subject.Identity == nil:
		e.step(stepReplay, verdictOff, "a token may come from several callers (state.replay)")
	default:
		e.step(stepReplay, verdictNotJudged, "who presented the token first is for the serving proxies to say (state.replay is %s)", e.cfg.State.Replay)
	}
	e.step(stepLimits, verdictNotJudged, "they depend on how much else is asked (limits)")
}

// policySaw notes what the policy judged by, and its denials.
func (e *explainer) policySaw(subject policy.Subject, answer *Explanation) {
	if subject.Identity != nil {
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
		d := answer.Deny[matched]
		e.step(stepDeny, verdictRefused, "%s matches by %s (%s)", d.Name, d.MatchedBy, d.Origin)
	case len(answer.Deny) == 0:
		e.step(stepDeny, verdictPassed, "the policy has no deny rules")
	default:
		e.step(stepDeny, verdictPassed, "no deny rule matches")
	}
}

// subject notes who asks: what admission was told, or else what the line has.
func (e *explainer) subject(event *exchange.Event, answer *Explanation) {
	s := &answer.Subject
	s.Source, s.Cluster = e.source, cmp.Or(event.Cluster, s.Cluster)
	if e.then != nil {
		s.Claimed = e.then.Claimed
		if event.ServiceAccount == nil {
			event, s.Cluster = e.then, e.then.Cluster
		}
	}
	s.Namespace, s.ServiceAccount, s.Pod, s.Node = event.Namespace, event.ServiceAccount, event.Pod, event.Node
	s.NodeFromAPI, s.CredentialID = event.NodeFromAPI, event.CredentialID
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
	case s.Claimed != nil && s.Claimed.Verified:
		return "" // the signature is good, though the token is not
	case e.source == sourceClaim:
		return "a token that was refused (" + term.Words(e.then.Reason) + ") claimed it, and anybody can make such a token"
	case s.ServiceAccount == nil:
		return "the token is refused, so nothing that it claims is proven"
	}
	return ""
}

// notAsked begins the message of a step that nobody came to.
const notAsked = "not asked: "

// complete adds the steps that nobody came to.
func (e *explainer) complete(answer *Explanation) {
	for _, step := range []string{stepService, stepToken, stepObjects, stepNode, stepCaller, stepRevocations, stepReplay, stepLimits, stepDeny} {
		if !slices.ContainsFunc(e.steps, func(s Step) bool { return s.Step == step }) {
			e.step(step, verdictNotJudged, notAsked+"%s refuses", e.refusedStep())
		}
	}
	answer.Steps = e.steps
}

func (e *explainer) refusedStep() string {
	i := slices.IndexFunc(e.steps, func(s Step) bool { return s.Verdict == verdictRefused })
	return e.steps[i].Step
}
