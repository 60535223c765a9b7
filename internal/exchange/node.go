package exchange

import (
	"errors"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/pullpass/pullpass/internal/nodeproof"
)

// NodeChecks is what a cluster's configuration asks of the node that a token
// names.
type NodeChecks struct {
	// Required refuses an identity without a node, also after Objects was asked.
	// Clusters whose verifier requires the claim need it not.
	Required bool
	Selector labels.Selector // of Node objects; nil: every node
	Proof    nodeproof.Config
}

// check returns what is wrong with the settings: an empty one never switches a
// check off, and one that nobody can pass is a mistake.
func (c NodeChecks) check(objectsKnown bool) error {
	switch {
	case c.Selector != nil && c.Selector.Empty():
		return errors.New("the node selector is empty; without one, every node may pull")
	case c.Selector != nil && !objectsKnown:
		return errors.New("a node selector needs to know Node objects")
	}
	return c.Proof.Check(objectsKnown)
}

// NodeError refuses an identity because of its node: it is not one that may
// pull, or the caller is another one.
type NodeError struct {
	reason  string
	message string
}

func (e *NodeError) Error() string { return e.message }

// Reason is node_not_selected or caller_not_node.
func (e *NodeError) Reason() string { return e.reason }
