package kube

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/policy"
)

// object is the kept data of an object.
type object struct {
	uid    string
	text   map[string]string // annotations of a ServiceAccount, labels of a Namespace
	node   *exchange.Node    // a Node; of a pod, the name of its node
	spec   *policySpec       // of an AccessPolicy or a RepositoryAccess
	claim  *claim            // its part of the namespace's budget; nil: nothing
	beyond bool              // it has no room in the budget, and the rest of its data is not kept
}

// keepIdentity is for objects of which only the UID is needed.
func keepIdentity(metav1.Object) object { return object{} }

// keepAnnotations keeps the annotations with the given keys. It cuts an overlong value to the
// length that shows that it is too long.
func keepAnnotations(keys []string) func(metav1.Object) object {
	return func(from metav1.Object) object {
		var kept map[string]string
		cost := annotationsCost
		all := from.GetAnnotations()
		for _, key := range keys {
			if value, has := all[key]; has {
				if kept == nil {
					kept = map[string]string{}
				}
				if len(value) > policy.MaxAnnotationBytes {
					value = strings.Clone(value[:policy.MaxAnnotationBytes+1])
				}
				kept[key] = value
				cost += textCost + len(value)
			}
		}
		if kept == nil {
			return object{}
		}
		return object{text: kept, claim: newClaim(from, cost)}
	}
}

func keepLabels(from metav1.Object) object { return object{text: labelsOf(from)} }

// labelsOf returns nil, which means unknown, only if there are too many labels. Then a denial by
// labels refuses, and labels grant nothing.
func labelsOf(from metav1.Object) map[string]string {
	labels, size := from.GetLabels(), 0
	for key, value := range labels {
		size += len(key) + len(value)
	}
	switch {
	case size > maxLabelBytes:
		return nil
	case labels == nil:
		return map[string]string{}
	}
	return labels
}

// keepNode keeps the labels if they are needed, and the addresses of a whole Node.
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

// addressesOf leaves out names, which prove nothing, and addresses that do not belong to exactly
// one interface.
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

// keepNodeName keeps the node that a pod is bound to, which never changes.
func keepNodeName(from metav1.Object) object {
	if pod, ok := from.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
		return object{node: &exchange.Node{Name: pod.Spec.NodeName}}
	}
	return object{}
}
