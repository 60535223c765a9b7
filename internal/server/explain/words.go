package explain

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/policy"
)

// notAsked begins the message of a step that was not reached.
const notAsked = "not asked: "

// wording puts steps into words.
type wording struct {
	*explainer
	event            *exchange.Event
	cluster          *config.Cluster     // nil: the identity is not a pod
	checks           exchange.NodeChecks // as configured
	revocationsFault error               // why revocations were not checked
	deny             []policy.DenyTrace
	unjudged         []string // denials, if only a token decides whether they match
}

func (w *wording) steps(all exchange.Steps) []Step {
	var steps []Step
	for i, verdict := range all {
		name := exchange.StepName(i)
		step := Step{name.String(), exchange.VerdictNotJudged, ""}
		if verdict == "" {
			step.Message = notAsked + exchange.StepName(slices.Index(all[:], exchange.VerdictRefused)).String() + " refuses"
		} else {
			step.Verdict, step.Message = w.step(name, verdict)
		}
		steps = append(steps, step)
	}
	return steps
}

// step returns the verdict and the message of a step. Only explain knows which steps it could not
// check because a token or a list is missing.
func (w *wording) step(name exchange.StepName, verdict exchange.Verdict) (exchange.Verdict, string) {
	switch {
	case name == exchange.StepDeny && verdict == exchange.VerdictPassed && w.unjudged != nil:
		return exchange.VerdictNotJudged, "only a token decides whether these deny rules match: " + strings.Join(w.unjudged, ", ")
	case name == exchange.StepDeny:
		return verdict, w.denyWords()
	case verdict == exchange.VerdictRefused:
		return verdict, w.event.Message + revokedBy(w.event.Revocation)
	case name == exchange.StepService:
		return verdict, "it is one of registries[]"
	case name == exchange.StepReplay && w.event.PullSecret != nil:
		return verdict, "a token in a Secret may come from several callers"
	case name == exchange.StepReplay && verdict == exchange.VerdictOff:
		return verdict, "a token may come from several callers (state.replay)"
	case name == exchange.StepReplay:
		return verdict, fmt.Sprintf("only the serving proxies know which caller presented the token first (state.replay is %s)", w.cfg.State.Replay)
	case name == exchange.StepLimits: // also of the caller's address
		return exchange.VerdictNotJudged, "they depend on other requests (limits)"
	case name == exchange.StepToken && w.source == sourceAnonymous:
		return verdict, "no credential was sent"
	case w.source == sourceAnonymous:
		return verdict, "the request names no identity"
	case name == exchange.StepToken && w.source == sourceToken:
		return verdict, w.tokenWords
	case name == exchange.StepToken:
		return exchange.VerdictNotJudged, w.tokenWords
	case w.event.Identity != nil && notPods[name] != "":
		return verdict, notPods[name]
	case name == exchange.StepObjects:
		words := w.objectsWords(verdict)
		if w.objectsFault != nil {
			words += fmt.Sprintf("; the objects of the policy cannot be listed (%v), so the policy files are judged alone", w.objectsFault)
		}
		return verdict, words
	case w.event.PullSecret != nil && (name == exchange.StepNode || name == exchange.StepCaller):
		return verdict, "the token of a pull secret names no node, and none is required (pullSecrets)"
	case name == exchange.StepNode && !w.hasToken():
		return exchange.VerdictNotJudged, "only a token names one"
	case name == exchange.StepNode:
		return verdict, w.nodeWords(verdict)
	case name == exchange.StepCaller && !w.hasToken() && len(w.checks.Proof.Methods) > 0:
		return exchange.VerdictNotJudged, fmt.Sprintf("only a token names a node (node.proof.mode is %s)", w.checks.Proof.Mode)
	case name == exchange.StepCaller:
		return verdict, w.callerWords(verdict)
	case errors.Is(w.revocationsFault, setup.ErrNoRedis):
		return exchange.VerdictOff, "revocations need Redis (state.redis)"
	}
	return verdict, w.revocationsWords(verdict)
}

func (w *wording) denyWords() string {
	matched := slices.IndexFunc(w.deny, func(d policy.DenyTrace) bool { return d.Matched })
	switch {
	case matched >= 0:
		return denialText(w.deny[matched])
	case len(w.deny) == 0:
		return "the policy has no deny rules"
	}
	return "no deny rule matches"
}

// revokedBy returns the details of a revocation that only operators may see.
func revokedBy(r *exchange.Revocation) string {
	if r == nil {
		return ""
	}
	return fmt.Sprintf(" (%s until %s, by %q)", r.Target, r.Until.UTC().Format(time.RFC3339), r.By)
}

func (w *wording) objectsWords(verdict exchange.Verdict) string {
	switch {
	case verdict == exchange.VerdictOff:
		return "no API server is asked in cluster " + w.cluster.Name + " (clusters[].kubernetes), so a token is valid until it expires"
	case !w.hasToken():
		return "the API server has the ServiceAccount; the token names no pod"
	case w.event.PullSecret != nil && w.source == sourceToken:
		return "the API server has the ServiceAccount and the Secret"
	case w.event.PullSecret != nil:
		return "the API server has the ServiceAccount; without the token, the Secret cannot be verified"
	case !w.cluster.Kubernetes.PodChecks:
		return "the API server has the ServiceAccount; the pod is not checked (podChecks: false)"
	}
	return "the API server has every object that the token names"
}

func (w *wording) nodeWords(verdict exchange.Verdict) string {
	switch {
	case verdict == exchange.VerdictOff:
		return "no node is known, and none is required (node.claim)"
	case w.checks.Selector != nil:
		return "its labels match " + w.checks.Selector.String()
	}
	return "every node may pull (node.selector)"
}

// callerWords says whether the caller is the node, as far as an address proves it.
func (w *wording) callerWords(verdict exchange.Verdict) string {
	switch verdict {
	case exchange.VerdictOff:
		return "node.proof is off in this cluster"
	case exchange.VerdictPassed:
		return w.caller.String() + " is an address of the node"
	case exchange.VerdictNoted:
		return w.event.Proof.Message + "; node.proof.mode is audit: the audit log records it, and the request is not refused"
	}
	mode := "node.proof.mode is " + string(w.checks.Proof.Mode)
	byCertificate := slices.Contains(w.checks.Proof.Methods, nodeproof.Certificate)
	switch {
	case w.then != nil && w.then.Proof != nil && w.then.Proof.Method == nodeproof.Certificate && byCertificate:
		return "its client certificate proved the node then, but the log does not contain certificates (" + mode + ")"
	case !slices.Contains(w.checks.Proof.Methods, nodeproof.Address):
		return "only a certificate proves one in this cluster (" + mode + ")"
	case !w.caller.Address.IsValid() && w.then != nil:
		return mode + "; the line has no address"
	case !w.caller.Address.IsValid():
		return mode + "; --caller ADDRESS judges an address"
	}
	return w.event.Proof.Message + "; only its client certificate could prove it (" + mode + ")"
}

func (w *wording) revocationsWords(verdict exchange.Verdict) string {
	type target struct {
		name  string
		known bool
	}
	targets := []target{{"ServiceAccount", true}, {"token", w.event.CredentialID != ""}, {"pod", w.event.Pod != nil}, {"node", w.event.Node != nil}}
	if i := w.event.Identity; i != nil {
		targets = []target{{"project", true}, {"run", i.Run != ""}, {"token", w.event.CredentialID != ""}}
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
	case verdict == exchange.VerdictNotJudged:
		return fmt.Sprintf("whether the %s is revoked is not known: %s; the rest assumes that it is not revoked", all, w.revocationsFault)
	case unknown != nil:
		return fmt.Sprintf("not revoked: %s; not checked, because the request names none: %s", all, strings.Join(unknown, ", "))
	default:
		return "not revoked: " + all
	}
}
