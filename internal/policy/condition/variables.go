package condition

import (
	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
)

// Variables is the known data of a caller. It is not changed.
type Variables struct {
	// Claims are the claims of the token: string, bool, int64 or float64, []string, and []any and
	// map[string]any of these, as in identity.Claims. Both kinds of numbers compare as numbers. If
	// nil, every claim is missing.
	Claims map[string]any
	// An empty value is not known, and reading it is an error.
	Cluster, Namespace, ServiceAccount, Node, Service string
	// Labels are the labels of the namespace; nil: not known, and reading them is an error, even
	// with has.
	Labels map[string]string
}

const (
	claims     = "claims"
	kubernetes = "kubernetes"
	service    = "service"
	prefix     = kubernetes + "."
	labels     = prefix + "labels"
	node       = prefix + "node"
)

// variables are declared with their dots. If kubernetes were a map, CEL would accept any field,
// including unknown ones.
var variables = map[string]*cel.Type{
	claims:                    cel.MapType(cel.StringType, cel.DynType),
	prefix + "cluster":        cel.StringType,
	prefix + "namespace":      cel.StringType,
	prefix + "serviceAccount": cel.StringType,
	node:                      cel.StringType,
	labels:                    cel.MapType(cel.StringType, cel.StringType),
	service:                   cel.StringType,
}

// activation gives CEL the variables one by one, so that unused variables are not built.
type activation struct{ *Variables }

// ResolveName implements cel.Activation.
func (a activation) ResolveName(name string) (any, bool) {
	text := ""
	switch name {
	case claims:
		return a.Claims, true
	case labels:
		if a.Labels == nil {
			return Unknown(name), true
		}
		return a.Labels, true
	case prefix + "cluster":
		text = a.Cluster
	case prefix + "namespace":
		text = a.Namespace
	case prefix + "serviceAccount":
		text = a.ServiceAccount
	case node:
		text = a.Node
	case service:
		text = a.Service
	}
	if text == "" {
		return Unknown(name), true
	}
	return text, true
}

// Parent implements cel.Activation.
func (activation) Parent() cel.Activation { return nil }

// Unknown returns an error value, which makes an error of every expression that needs it. As the
// value of a claim, it is one that exists.
func Unknown(name string) any { return types.NewErr("%s is not known of this caller", name) }
