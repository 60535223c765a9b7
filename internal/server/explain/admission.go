package explain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/registryauth"
)

var admissionSteps = []exchange.StepName{exchange.StepObjects, exchange.StepNode, exchange.StepCaller, exchange.StepRevocations}

// hasToken reports whether a token, presented now or in the audit log, names pod and node.
func (e *explainer) hasToken() bool { return e.source == sourceToken || e.source == sourceAudit }

// admit runs Admission and describes its steps.
func (e *explainer) admit(ctx context.Context, id oidc.Identity, event *exchange.Event) (policy.Subject, error) {
	all, err := setup.NodeChecks(e.cfg, nil)
	if err != nil {
		return policy.Subject{}, err
	}
	a := admission{explainer: e, cluster: e.cluster(id.Cluster), checks: all[id.Cluster], event: event}
	asked := a.checks
	switch e.source {
	case sourceName, sourceClaim:
		asked = exchange.NodeChecks{} // only a token names a node
	case sourceAudit:
		if a.cluster == nil {
			break // not a pod
		}
		// The verifier required the claim then; now there is no token to verify.
		asked.Required = a.cluster.Node.Claim == config.NodeClaimRequired
	}
	revocations, closeList, fault := e.revocations(ctx)
	defer closeList()
	a.revocationsFault = fault
	if push := e.pushPresented(); push != "" && revocations != nil {
		revocations = pushRevocations{revocations, push}
	}
	if a.cluster != nil && a.cluster.Kubernetes.Objects.Count() {
		a.objectsFault = e.objects.ListPolicyObjects(ctx, id.Cluster)
	}
	var objects exchange.Objects = e.objects
	var credential oidc.Credential
	if e.source == sourceToken {
		credential = registryauth.NewSecret(e.token)
	} else {
		objects = unreviewed{objects}
	}
	judge, err := exchange.NewAdmission(exchange.AdmissionConfig{
		Objects: objects, Nodes: map[string]exchange.NodeChecks{id.Cluster: asked}, Revocations: revocations,
		CallersUnseen: true, // explain sees no client certificate
	})
	if err != nil {
		return policy.Subject{}, err
	}
	subject, steps, err := judge.Admit(ctx, id, credential, e.caller, event)
	for _, step := range steps {
		if step.Name == "" {
			break // not reached
		}
		verdict, message := a.words(step, err)
		e.step(step.Name, verdict, "%s", message)
	}
	return subject, err
}

// unreviewed checks the objects that a token in a Secret names, but not the Secret:
// there is no token to review.
type unreviewed struct{ exchange.Objects }

func (u unreviewed) Lookup(ctx context.Context, id oidc.Identity, _ oidc.Credential) (exchange.Facts, error) {
	id.Kubernetes.Secret = oidc.ObjectRef{}
	return u.Objects.Lookup(ctx, id, nil)
}

// revocations reads the list of revocations. Without a list the step is not judged,
// and the fault says why: it is ErrNoRedis without state.redis.
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

// admission describes the steps of Admission.
type admission struct {
	*explainer
	cluster          *config.Cluster
	checks           exchange.NodeChecks // as configured
	event            *exchange.Event     // the results of Admission
	revocationsFault error               // why revocations were not checked
	objectsFault     error               // why policy objects were not listed
}

// words returns the verdict and the message of a step. Only explain knows which steps it could not
// check because a token or a list is missing.
func (a *admission) words(step exchange.Step, refusal error) (exchange.Verdict, string) {
	switch {
	case step.Verdict == exchange.VerdictRefused:
		return step.Verdict, refusal.Error() + revokedBy(step.Revocation)
	case a.event.Identity != nil && notPods[step.Name] != "":
		return exchange.VerdictOff, notPods[step.Name]
	case step.Name == exchange.StepObjects:
		words := a.objectsWords(step)
		if a.objectsFault != nil {
			words += fmt.Sprintf("; the objects of the policy cannot be listed (%v), so the policy files are judged alone", a.objectsFault)
		}
		return step.Verdict, words
	case a.event.PullSecret != nil && (step.Name == exchange.StepNode || step.Name == exchange.StepCaller):
		return exchange.VerdictOff, "the token of a pull secret names no node, and none is required (pullSecrets)"
	case step.Name == exchange.StepNode && !a.hasToken():
		return exchange.VerdictNotJudged, "only a token names one"
	case step.Name == exchange.StepNode:
		return step.Verdict, nodeWords(step)
	case step.Name == exchange.StepCaller && !a.hasToken() && len(a.checks.Proof.Methods) > 0:
		return exchange.VerdictNotJudged, fmt.Sprintf("only a token names a node (node.proof.mode is %s)", a.checks.Proof.Mode)
	case step.Name == exchange.StepCaller:
		return step.Verdict, a.callerWords(step)
	case errors.Is(a.revocationsFault, setup.ErrNoRedis):
		return exchange.VerdictOff, "revocations need Redis (state.redis)"
	}
	return step.Verdict, a.revocationsWords(step)
}

// revokedBy returns the details of a revocation that only operators may see.
func revokedBy(r *exchange.Revocation) string {
	if r == nil {
		return ""
	}
	return fmt.Sprintf(" (%s until %s, by %q)", r.Target, r.Until.UTC().Format(time.RFC3339), r.By)
}

func (a *admission) objectsWords(step exchange.Step) string {
	switch {
	case step.Verdict == exchange.VerdictOff:
		return "no API server is asked in cluster " + a.cluster.Name + " (clusters[].kubernetes), so a token is valid until it expires"
	case !a.hasToken():
		return "the API server has the ServiceAccount; the token names no pod"
	case a.event.PullSecret != nil && a.source == sourceToken:
		return "the API server has the ServiceAccount and the Secret"
	case a.event.PullSecret != nil:
		return "the API server has the ServiceAccount; without the token, the Secret cannot be verified"
	case !a.cluster.Kubernetes.PodChecks:
		return "the API server has the ServiceAccount; the pod is not checked (podChecks: false)"
	}
	return "the API server has every object that the token names"
}

func nodeWords(step exchange.Step) string {
	switch {
	case step.Verdict == exchange.VerdictOff:
		return "no node is known, and none is required (node.claim)"
	case step.Selector != nil:
		return "its labels match " + step.Selector.String()
	}
	return "every node may pull (node.selector)"
}

// callerWords says whether the caller is the node, as far as an address proves it.
func (a *admission) callerWords(step exchange.Step) string {
	switch step.Verdict {
	case exchange.VerdictOff:
		return "node.proof is off in this cluster"
	case exchange.VerdictPassed:
		return a.caller.String() + " is an address of the node"
	case exchange.VerdictNoted:
		return step.Proof.Message + "; node.proof.mode is audit: the audit log records it, and the request is not refused"
	}
	mode := "node.proof.mode is " + string(a.checks.Proof.Mode)
	byCertificate := slices.Contains(a.checks.Proof.Methods, nodeproof.Certificate)
	switch {
	case a.then != nil && a.then.Proof != nil && a.then.Proof.Method == nodeproof.Certificate && byCertificate:
		return "its client certificate proved the node then, but the log does not contain certificates (" + mode + ")"
	case !slices.Contains(a.checks.Proof.Methods, nodeproof.Address):
		return "only a certificate proves one in this cluster (" + mode + ")"
	case !a.caller.Address.IsValid() && a.then != nil:
		return mode + "; the line has no address"
	case !a.caller.Address.IsValid():
		return mode + "; --caller ADDRESS judges an address"
	}
	return step.Proof.Message + "; only its client certificate could prove it (" + mode + ")"
}

func (a *admission) revocationsWords(step exchange.Step) string {
	type target struct {
		name  string
		known bool
	}
	targets := []target{{"ServiceAccount", true}, {"token", a.event.CredentialID != ""}, {"pod", a.event.Pod != nil}, {"node", a.event.Node != nil}}
	if i := a.event.Identity; i != nil {
		targets = []target{{"project", true}, {"run", i.Run != ""}, {"token", a.event.CredentialID != ""}}
	}
	var judged, unknown []string
	for _, target := range targets {
		if target.known {
			judged = append(judged, target.name)
		} else {
			unknown = append(unknown, target.name)
		}
	}
	switch all := strings.Join(judged, ", "); {
	case step.Verdict == exchange.VerdictNotJudged:
		return fmt.Sprintf("whether the %s is revoked is not known: %s; the rest assumes that it is not revoked", all, a.revocationsFault)
	case unknown != nil:
		return fmt.Sprintf("not revoked: %s; not checked, because the request names none: %s", all, strings.Join(unknown, ", "))
	default:
		return "not revoked: " + all
	}
}
