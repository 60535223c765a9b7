package exchange

import (
	"errors"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/refusal"
)

// NodeChecks is what a cluster's configuration requires of the node that a token names.
type NodeChecks struct {
	// Required refuses an identity without a node, also after Objects was asked. It is not needed
	// if the cluster's verifier requires the claim.
	Required bool
	Selector labels.Selector // of Node objects; nil: every node
	Proof    nodeproof.Config
}

// validate returns the fault in the settings, or nil. An empty selector is a fault, so that it never
// turns the check off by mistake. A check that no node can pass is a fault too.
func (c NodeChecks) validate(objectsKnown bool) error {
	switch {
	case c.Selector != nil && c.Selector.Empty():
		return errors.New("the node selector is empty; without one, every node may pull")
	case c.Selector != nil && !objectsKnown:
		return errors.New("a node selector needs to know Node objects")
	}
	return c.Proof.Check(objectsKnown)
}

// NodeError refuses an identity because of its node: the node may not pull, or the caller is not
// that node.
type NodeError struct {
	reason  refusal.Reason
	message string
}

func (e *NodeError) Error() string { return e.message }

// Reason is node_not_selected or caller_not_node.
func (e *NodeError) Reason() refusal.Reason { return e.reason }
