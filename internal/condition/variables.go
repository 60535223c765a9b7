package condition

import (
	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
)

// Variables is what is known of a caller. It is not changed.
type Variables struct {
	// Claims are those of the token: string, bool, int64 or float64, []string, and
	// []any and map[string]any of these, as identity.Claims are. Both kinds of numbers
	// compare as numbers. Without any, each claim is missing.
	Claims map[string]any
	// What is empty is not known, and asking for it is an error.
	Cluster, Namespace, ServiceAccount, Node, Service string
	// Labels are those of the namespace; nil: not known, and asking for them is an
	// error, even with has.
	Labels map[string]string
}

const (
	claims     = "claims"
	kubernetes = "kubernetes"
	service    = "service"
	prefix     = kubernetes + "."
	labels     = prefix + "labels"
)

// variables are declared with their dots: of a variable kubernetes that is a map,
// CEL would take any field, also one that is not there.
var variables = map[string]*cel.Type{
	claims:                    cel.MapType(cel.StringType, cel.DynType),
	prefix + "cluster":        cel.StringType,
	prefix + "namespace":      cel.StringType,
	prefix + "serviceAccount": cel.StringType,
	prefix + "node":           cel.StringType,
	labels:                    cel.MapType(cel.StringType, cel.StringType),
	service:                   cel.StringType,
}

// activation gives CEL the variables one by one, so that nothing is built for those
// that a condition does not use.
type activation struct{ *Variables }

// ResolveName implements cel.Activation.
func (a activation) ResolveName(name string) (any, bool) {
	text := ""
	switch name {
	case claims:
		return a.Claims, true
	case labels:
		if a.Labels == nil {
			return unknown(name), true
		}
		return a.Labels, true
	case prefix + "cluster":
		text = a.Cluster
	case prefix + "namespace":
		text = a.Namespace
	case prefix + "serviceAccount":
		text = a.ServiceAccount
	case prefix + "node":
		text = a.Node
	case service:
		text = a.Service
	default:
		return nil, false
	}
	if text == "" {
		return unknown(name), true
	}
	return text, true
}

// Parent implements cel.Activation.
func (activation) Parent() cel.Activation { return nil }

// unknown is a value that makes an error of whatever needs it.
func unknown(name string) any { return types.NewErr("%s is not known of this caller", name) }
