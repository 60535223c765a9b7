package exchange

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
)

// AdmissionConfig configures an Admission.
type AdmissionConfig struct {
	Objects     Objects               // nil: nothing is known of any object
	Nodes       map[string]NodeChecks // by cluster; one that is not there has none
	Revocations Revocations           // nil: they are not judged
	Memory      *Memory               // nil: what is verified is remembered for this Admission alone
	Now         func() time.Time      // nil means time.Now
}

// Admission judges what policy does not: whether the objects that an identity
// names are still there, whether its node may pull at all, whether the caller
// is that node, and whether an operator has revoked it. It is safe for
// concurrent use.
type Admission struct {
	objects     Objects
	nodes       map[string]NodeChecks
	revocations Revocations
	chains      *chains
	now         func() time.Time
}

// NewAdmission returns an Admission. All faults of the configuration are
// reported at once.
func NewAdmission(c AdmissionConfig) (*Admission, error) {
	var faults []error
	for _, cluster := range slices.Sorted(maps.Keys(c.Nodes)) {
		if err := c.Nodes[cluster].check(c.Objects != nil); err != nil {
			faults = append(faults, fmt.Errorf("exchange: cluster %s: %w", quoteName(cluster), err))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	a := &Admission{objects: c.Objects, nodes: maps.Clone(c.Nodes), revocations: c.Revocations, now: c.Now}
	if c.Memory != nil {
		a.chains = c.Memory.chains
	} else {
		a.chains = newChains()
	}
	if a.now == nil {
		a.now = time.Now
	}
	return a, nil
}

// Admit judges a verified identity and returns it as policy sees it. It notes
// in event what it learns, also when it refuses. The error is a *GoneError, an
// *oidc.Error with ReasonNoNode, a *NodeError, a *RevokedError or an
// *UnavailableError.
//
// Policy is asked only afterwards, so nobody learns what it would have granted.
func (a *Admission) Admit(ctx context.Context, id oidc.Identity, caller Caller, event *Event) (policy.Subject, error) {
	event.identify(&id)
	facts, err := a.lookup(ctx, id)
	if err != nil {
		return policy.Subject{}, err
	}
	if id.Node == (oidc.ObjectRef{}) && facts.Node != nil {
		id.Node = oidc.ObjectRef{Name: facts.Node.Name, UID: facts.Node.UID}
		event.Node, event.NodeFromAPI = object(id.Node), true
	}
	checks := a.nodes[id.Cluster]
	node := nodeOf(&id, facts)
	if checks.Required && id.Node.UID == "" {
		return policy.Subject{}, noNode(&id)
	}
	if checks.Selector != nil && (node == nil || !checks.Selector.Matches(labels.Set(node.Labels))) {
		return policy.Subject{}, notSelected(&id, node, checks.Selector)
	}
	if checks.Proof.wanted() {
		proof := a.prove(checks.Proof, &id, node, caller)
		event.Proof = &proof
		if !proof.Passed && proof.Mode != ProofAudit {
			return policy.Subject{}, &NodeError{reason: reasonCaller, message: proof.Message}
		}
	}
	if err := a.revoked(&id, event); err != nil {
		return policy.Subject{}, err
	}
	return policy.Subject{Identity: &id, Annotations: facts.Annotations, NamespaceLabels: facts.NamespaceLabels}, nil
}

func (a *Admission) lookup(ctx context.Context, id oidc.Identity) (Facts, error) {
	if a.objects == nil {
		return Facts{}, nil
	}
	ctx, span := begin(ctx, stepKube)
	facts, err := a.objects.Lookup(ctx, id)
	end(span, err)
	if err != nil {
		var gone *GoneError
		if errors.As(err, &gone) {
			return Facts{}, gone
		}
		return Facts{}, &UnavailableError{reason: reasonObjects, Err: err}
	}
	return facts, nil
}

// nodeOf returns the Node object that the identity names, or nil. Names are
// reused: what is known of another UID says nothing about this node.
func nodeOf(id *oidc.Identity, facts Facts) *Node {
	if id.Node.UID == "" || facts.Node == nil || facts.Node.UID != id.Node.UID {
		return nil
	}
	return facts.Node
}

// noNode refuses as the verifier does when it requires the claim.
func noNode(id *oidc.Identity) error {
	message := fmt.Sprintf("neither the token nor its pod names a node, which cluster %s requires (node.claim); "+
		"ask for a token when the pod is scheduled", quoteName(id.Cluster))
	if id.Node.Name != "" {
		message = fmt.Sprintf("the node %s is named without a UID, which cluster %s requires (node.claim); "+
			"ask for a new token when its Node object is there", quoteName(id.Node.Name), quoteName(id.Cluster))
	}
	return &oidc.Error{Reason: oidc.ReasonNoNode, Message: message, Cluster: id.Cluster}
}

func notSelected(id *oidc.Identity, node *Node, selector labels.Selector) error {
	var fault, remedy string
	switch {
	case id.Node.UID == "":
		fault, remedy = "no node is known for sure to be the token's", "use a token of a pod that is scheduled"
	case node == nil:
		fault, remedy = fmt.Sprintf("of the token's node %s no labels are known", quoteName(id.Node.Name)), "see that the Node object is there, with the UID in the token"
	default:
		fault, remedy = fmt.Sprintf("the labels of the token's node %s do not match", quoteName(id.Node.Name)), "change the labels of the Node, or node.selector"
	}
	return &NodeError{reason: reasonNode, message: fmt.Sprintf("only nodes that match %q may pull in cluster %s (node.selector), and %s; %s",
		selector, quoteName(id.Cluster), fault, remedy)}
}
