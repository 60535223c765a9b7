package exchange

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/refusal"
)

// AdmissionConfig configures an Admission.
type AdmissionConfig struct {
	Objects     Objects               // nil: nothing is known of any object
	Nodes       map[string]NodeChecks // by cluster; an absent cluster has no checks
	Revocations Revocations           // nil: revocations are not judged
	Memory      *Memory               // nil: this Admission has its own memory of verified certificates
	Now         func() time.Time      // nil means time.Now
	// CallersUnseen is for explaining a request without its connection, and never for serving. A
	// method of proof is skipped if the Caller lacks its input, and does not refuse the request.
	CallersUnseen bool
}

// Admission makes the checks that policy does not make. The objects that an identity names must
// still exist, and its node must be allowed to pull. The caller must be that node, and no operator
// may have revoked the identity. It is safe for concurrent use.
type Admission struct {
	objects     Objects
	nodes       map[string]NodeChecks
	revocations Revocations
	callers     nodeproof.Judge
}

// NewAdmission returns an Admission. All faults of the configuration are
// reported at once.
func NewAdmission(c AdmissionConfig) (*Admission, error) {
	var faults []error
	for _, cluster := range slices.Sorted(maps.Keys(c.Nodes)) {
		if err := c.Nodes[cluster].validate(c.Objects != nil); err != nil {
			faults = append(faults, fmt.Errorf("exchange: cluster %s: %w", term.QuoteName(cluster), err))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	callers := nodeproof.Judge{Now: c.Now, CallersUnseen: c.CallersUnseen}
	if callers.Now == nil {
		callers.Now = time.Now
	}
	if c.Memory != nil {
		callers.Chains = c.Memory.chains
	} else {
		callers.Chains = nodeproof.NewChains()
	}
	return &Admission{objects: c.Objects, nodes: maps.Clone(c.Nodes), revocations: c.Revocations, callers: callers}, nil
}

// Admit judges the verified identity of a credential, and returns the identity as policy sees it. It
// notes its findings in event and its verdicts in steps, also when it refuses. The error is a
// *GoneError, an *oidc.Error with refusal.TokenNoNode, a *NodeError, a *RevokedError or an
// *UnavailableError.
//
// Policy is asked only afterwards, so a refused caller does not learn what policy would have
// granted.
func (a *Admission) Admit(ctx context.Context, id oidc.Identity, credential oidc.Credential, caller nodeproof.Caller, event *Event, steps *Steps) (subject policy.Subject, err error) {
	event.identify(&id)
	var facts Facts
	if facts, steps[StepObjects], err = a.lookup(ctx, id, credential); err != nil {
		return policy.Subject{}, err
	}
	if id.Kubernetes.Node == (oidc.ObjectRef{}) && facts.Node != nil {
		id.Kubernetes.Node = oidc.ObjectRef{Name: facts.Node.Name, UID: facts.Node.UID}
		event.Node, event.NodeFromAPI = object(id.Kubernetes.Node), true
	}
	checks := a.nodes[id.Cluster]
	if id.InSecret() {
		checks = NodeChecks{} // configuring pull secrets means accepting identities without a node, whatever NodeChecks require of others
	}
	node := nodeOf(&id, facts)
	if steps[StepNode], err = checks.admit(&id, node); err != nil {
		return policy.Subject{}, err
	}
	if steps[StepCaller], err = a.prove(checks.Proof, &id, node, caller, event); err != nil {
		return policy.Subject{}, err
	}
	if steps[StepRevocations], err = a.revoked(&id, event); err != nil {
		return policy.Subject{}, err
	}
	return policy.Subject{Identity: &id, Annotations: facts.Annotations, NamespaceLabels: facts.NamespaceLabels, Objects: facts.Objects}, nil
}

func (a *Admission) lookup(ctx context.Context, id oidc.Identity, credential oidc.Credential) (Facts, Verdict, error) {
	if a.objects == nil && !id.InSecret() || id.External != nil {
		return Facts{}, VerdictOff, nil
	}
	ctx, span := begin(ctx, stepKube)
	facts, err := Facts{}, error(nil)
	if a.objects != nil {
		facts, err = a.objects.Lookup(ctx, id, credential)
	}
	if err == nil && id.InSecret() && !facts.Confirmed {
		err = errNotReviewed
	}
	end(span, err)
	if err != nil {
		var gone *GoneError
		if errors.As(err, &gone) {
			return Facts{}, VerdictRefused, gone
		}
		return Facts{}, "", &UnavailableError{reason: refusal.KubernetesUnavailable, Err: err}
	}
	if !facts.Confirmed {
		return facts, VerdictOff, nil
	}
	return facts, VerdictPassed, nil
}

// nodeOf returns the Node object that the identity names, or nil. Names are reused: facts about a
// different UID say nothing about this node.
func nodeOf(id *oidc.Identity, facts Facts) *Node {
	if id.Kubernetes.Node.UID == "" || facts.Node == nil || facts.Node.UID != id.Kubernetes.Node.UID {
		return nil
	}
	return facts.Node
}

// admit decides whether the node that the identity names may pull.
func (c NodeChecks) admit(id *oidc.Identity, node *Node) (Verdict, error) {
	switch {
	case c.Required && id.Kubernetes.Node.UID == "":
		return VerdictRefused, noNode(id)
	case c.Selector != nil && (node == nil || !c.Selector.Matches(labels.Set(node.Labels))):
		return VerdictRefused, notSelected(id, node, c.Selector)
	case c.Selector == nil && id.Kubernetes.Node == (oidc.ObjectRef{}):
		return VerdictOff, nil
	}
	return VerdictPassed, nil
}

// prove judges whether the caller is the node. It runs for every request: a connection can outlive
// a certificate and the addresses of a node.
func (a *Admission) prove(config nodeproof.Config, id *oidc.Identity, node *Node, caller nodeproof.Caller, event *Event) (Verdict, error) {
	if !config.Wanted() {
		return VerdictOff, nil
	}
	var addresses []netip.Addr
	if node != nil {
		addresses = node.Addresses
	}
	proof, unseen := a.callers.Try(config, id, addresses, caller)
	event.Proof = &proof
	switch {
	case proof.Passed:
		return VerdictPassed, nil
	case unseen:
		return VerdictNotJudged, nil
	case config.Mode == nodeproof.Audit:
		return VerdictNoted, nil
	}
	return VerdictRefused, &NodeError{reason: refusal.CallerNotNode, message: proof.Message}
}

// noNode refuses as the verifier does when it requires the claim.
func noNode(id *oidc.Identity) error {
	message := fmt.Sprintf("neither the token nor its pod names a node, which cluster %s requires (node.claim); "+
		"ask for a token when the pod is scheduled", term.QuoteName(id.Cluster))
	if id.Kubernetes.Node.Name != "" {
		message = fmt.Sprintf("the node %s is named without a UID, which cluster %s requires (node.claim); "+
			"ask for a new token when its Node object is there", term.QuoteName(id.Kubernetes.Node.Name), term.QuoteName(id.Cluster))
	}
	return &oidc.Error{Reason: refusal.TokenNoNode, Message: message, Cluster: id.Cluster}
}

func notSelected(id *oidc.Identity, node *Node, selector labels.Selector) error {
	var fault, remedy string
	switch {
	case id.Kubernetes.Node.UID == "":
		fault, remedy = "no node is known for sure to be the token's", "use a token of a pod that is scheduled"
	case node == nil:
		fault, remedy = fmt.Sprintf("of the token's node %s no labels are known", term.QuoteName(id.Kubernetes.Node.Name)), "see that the Node object is there, with the UID in the token"
	default:
		fault, remedy = fmt.Sprintf("the labels of the token's node %s do not match", term.QuoteName(id.Kubernetes.Node.Name)), "change the labels of the Node, or node.selector"
	}
	return &NodeError{reason: refusal.NodeNotSelected, message: fmt.Sprintf("only nodes that match %q may pull in cluster %s (node.selector), and %s; %s",
		selector, term.QuoteName(id.Cluster), fault, remedy)}
}
