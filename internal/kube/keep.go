package kube

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullpass/pullpass/internal/exchange"
)

// object is what is kept of one.
type object struct {
	uid  string
	text map[string]string // annotations of a ServiceAccount, labels of a Namespace
	node *exchange.Node    // a Node; of a pod, the name of its node
	spec *policySpec       // of an AccessPolicy or a RepositoryAccess
}

// keepIdentity is for objects of which only the UID is wanted.
func keepIdentity(metav1.Object) object { return object{} }

// keepAnnotations keeps those with the given keys.
func keepAnnotations(keys []string) func(metav1.Object) object {
	return func(from metav1.Object) object {
		var kept map[string]string
		all := from.GetAnnotations()
		for _, key := range keys {
			if value, has := all[key]; has {
				if kept == nil {
					kept = map[string]string{}
				}
				kept[key] = value
			}
		}
		return object{text: kept}
	}
}

func keepLabels(from metav1.Object) object { return object{text: labelsOf(from)} }

// labelsOf never returns nil, which would mean that they are not known.
func labelsOf(from metav1.Object) map[string]string {
	if labels := from.GetLabels(); labels != nil {
		return labels
	}
	return map[string]string{}
}

// keepNode keeps the labels if they are wanted, and the addresses of a whole
// Node.
func keepNode(labels bool) func(metav1.Object) object {
	return func(from metav1.Object) object {
		kept := &exchange.Node{Name: from.GetName(), UID: string(from.GetUID())}
		if labels {
			kept.Labels = labelsOf(from)
		}
		if whole, ok := from.(*corev1.Node); ok {
			kept.Addresses = addressesOf(whole)
		}
		return object{node: kept}
	}
}

// addressesOf leaves out names, which prove nothing, and what is no address of
// exactly one interface.
func addressesOf(from *corev1.Node) []netip.Addr {
	kept := []netip.Addr{}
	for _, address := range from.Status.Addresses {
		if address.Type != corev1.NodeInternalIP && address.Type != corev1.NodeExternalIP {
			continue
		}
		if ip, err := netip.ParseAddr(address.Address); err == nil && ip.Zone() == "" {
			kept = append(kept, ip.Unmap())
		}
	}
	return kept
}

// keepNodeName keeps the node that a pod is bound to. That never changes.
func keepNodeName(from metav1.Object) object {
	if pod, ok := from.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
		return object{node: &exchange.Node{Name: pod.Spec.NodeName}}
	}
	return object{}
}
