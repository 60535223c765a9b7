package explain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/nodeproof"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/setup"
)

var admissionSteps = []exchange.StepName{exchange.StepObjects, exchange.StepNode, exchange.StepCaller, exchange.StepRevocations}

// hasToken reports whether a token, of now or of then, tells pod and node.
func (e *explainer) hasToken() bool { return e.source == sourceToken || e.source == sourceAudit }

// admit asks Admission, and puts into words what it came to.
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
			break // it is no pod
		}
		// The verifier asked for the claim then; it has nothing to ask now.
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
		CallersUnseen: true, // nobody can show a certificate here
	})
	if err != nil {
		return policy.Subject{}, err
	}
	subject, steps, err := judge.Admit(ctx, id, credential, e.caller, event)
	for _, step := range steps {
		if step.Name == "" {
			break // nobody came to it
		}
		verdict, message := a.words(step, err)
		e.step(step.Name, verdict, "%s", message)
	}
	return subject, err
}

// unreviewed asks for what a token in a Secret names, and not for the Secret: there is
// no token to be reviewed.
type unreviewed struct{ exchange.Objects }

func (u unreviewed) Lookup(ctx context.Context, id oidc.Identity, _ oidc.Credential) (exchange.Facts, error) {
	id.Kubernetes.Secret = oidc.ObjectRef{}
	return u.Objects.Lookup(ctx, id, nil)
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

// admission has the words for the steps of Admission.
type admission struct {
	*explainer
	cluster          *config.Cluster
	checks           exchange.NodeChecks // as they are configured
	event            *exchange.Event     // what Admission learned
	revocationsFault error               // why no revocations were judged
	objectsFault     error               // why no policy objects were listed
}

// words returns the verdict of a step, and its message. What was not asked,
// because there is no token or no list to ask by, only explain knows.
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
		return exchange.VerdictOff, "the token of a pull secret names no node, and none is asked for (pullSecrets)"
	case step.Name == exchange.StepNode && !a.hasToken():
		return exchange.VerdictNotJudged, "only a token names one"
	case step.Name == exchange.StepNode:
		return step.Verdict, nodeWords(step)
	case step.Name == exchange.StepCaller && !a.hasToken() && len(a.checks.Proof.Methods) > 0:
		return exchange.VerdictNotJudged, fmt.Sprintf("only a token names a node (node.proof.mode is %s)", a.checks.Proof.Mode)
	case step.Name == exchange.StepCaller:
		return step.Verdict, a.callerWords(step)
	case errors.Is(a.revocationsFault, setup.ErrNoRedis):
		return exchange.VerdictOff, "nobody can be revoked without Redis (state.redis)"
	}
	return step.Verdict, a.revocationsWords(step)
}

// revokedBy is what only operators are told of a revocation.
func revokedBy(r *exchange.Revocation) string {
	if r == nil {
		return ""
	}
	return fmt.Sprintf(" (%s until %s, by %q)", r.Target, r.Until.UTC().Format(time.RFC3339), r.By)
}

func (a *admission) objectsWords(step exchange.Step) string {
	switch {
	case step.Verdict == exchange.VerdictOff:
		return "no API server is asked in cluster " + a.cluster.Name + " (clusters[].kubernetes), so a token is good until it ends"
	case !a.hasToken():
		return "the ServiceAccount is there, says the API server; a pod is not named"
	case a.event.PullSecret != nil && a.source == sourceToken:
		return "the ServiceAccount and the Secret are there, says the API server"
	case a.event.PullSecret != nil:
		return "the ServiceAccount is there, says the API server; whether the Secret is, only the token could tell"
	case !a.cluster.Kubernetes.PodChecks:
		return "the ServiceAccount is there, says the API server; it is not asked for the pod (podChecks: false)"
	}
	return "what the token names is there, says the API server"
}

func nodeWords(step exchange.Step) string {
	switch {
	case step.Verdict == exchange.VerdictOff:
		return "none is known, and none is asked for (node.claim)"
	case step.Selector != nil:
		return "its labels match " + step.Selector.String()
	}
	return "every node may pull (node.selector)"
}

// callerWords says whether the caller is the node, as far as an address can tell.
func (a *admission) callerWords(step exchange.Step) string {
	switch step.Verdict {
	case exchange.VerdictOff:
		return "node.proof is off in this cluster"
	case exchange.VerdictPassed:
		return a.caller.String() + " is an address of the node"
	case exchange.VerdictNoted:
		return step.Proof.Message + "; node.proof.mode is audit: it is written down, and nobody is refused"
	}
	mode := "node.proof.mode is " + string(a.checks.Proof.Mode)
	byCertificate := slices.Contains(a.checks.Proof.Methods, nodeproof.Certificate)
	switch {
	case a.then != nil && a.then.Proof != nil && a.then.Proof.Method == nodeproof.Certificate && byCertificate:
		return "its client certificate proved it then, and the log holds none (" + mode + ")"
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
		return fmt.Sprintf("whether the %s is revoked is not known: %s; what follows is for what is not", all, a.revocationsFault)
	case unknown != nil:
		return fmt.Sprintf("not revoked: %s; no %s is named whose revocation would count", all, strings.Join(unknown, ", "))
	default:
		return "not revoked: " + all
	}
}
