package rollout

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/node/progress"
)

// requestTimeout is the time limit of one request.
const requestTimeout = 10 * time.Second

// probeLabel is on the pods that try a pull: pullpass.dev/node-probe=true.
const probeLabel = "pullpass.dev/node-probe"

// cluster reads and writes objects of nodes through the API server.
type cluster struct {
	client    rest.Interface // of the core group
	namespace string         // of the pods that try a pull
}

// get returns nil if the Node does not exist, and with an error.
func (c cluster) get(ctx context.Context, name string) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	node := &corev1.Node{}
	err := c.client.Get().Resource("nodes").Name(name).Do(ctx).Into(node)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the Node %s: %w", name, err)
	}
	return node, nil
}

// conflicts is the maximum number of attempts to change the taints, because the kubelet also writes
// the Node.
const conflicts = 5

// write sets the Record of a Node, or removes it if r is nil. If untaint is set, it removes the
// taint. It returns the changed Node, and writes nothing if there is no difference.
func (c cluster) write(ctx context.Context, node *corev1.Node, r *Record, untaint bool) (*corev1.Node, error) {
	for range conflicts {
		change := changeOf(node, r, untaint)
		if change == nil {
			return node, nil
		}
		written, err := c.patch(ctx, node.Name, change)
		if !apierrors.IsConflict(err) {
			return written, err
		}
		if node, err = c.again(ctx, node); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("the Node %s was changed by others %d times in a row", node.Name, conflicts)
}

// again reads the Node again.
func (c cluster) again(ctx context.Context, node *corev1.Node) (*corev1.Node, error) {
	fresh, err := c.get(ctx, node.Name)
	if err == nil && (fresh == nil || fresh.UID != node.UID) {
		err = fmt.Errorf("the Node %s was deleted or recreated", node.Name)
	}
	return fresh, err
}

// changeOf returns a merge patch (RFC 7396). It is nil if there is no change.
func changeOf(node *corev1.Node, r *Record, untaint bool) []byte {
	metadata, spec := map[string]any{}, map[string]any{}
	var annotation, label *string
	if r != nil {
		text, _ := json.Marshal(r) // strings, and a time that was read or is now
		annotation, label = new(string(text)), new(string(r.State))
	}
	for field, change := range map[string]struct {
		is   map[string]string
		next *string
	}{"annotations": {node.Annotations, annotation}, "labels": {node.Labels, label}} {
		if value, is := change.is[progress.Key]; is != (change.next != nil) || is && value != *change.next {
			metadata[field] = map[string]*string{progress.Key: change.next}
		}
	}
	if untaint && progress.HasTaint(node) {
		// The list is replaced as a whole. The resourceVersion prevents the loss of taints that
		// others add.
		spec["taints"] = slices.DeleteFunc(slices.Clone(node.Spec.Taints), progress.IsTaint)
		metadata["resourceVersion"] = node.ResourceVersion
	}
	if len(metadata)+len(spec) == 0 {
		return nil
	}
	metadata["uid"] = node.UID // a recreated Node of the same name must not get it
	// Both are of the API.
	change, _ := json.Marshal(map[string]any{"metadata": metadata, "spec": spec})
	return change
}

func (c cluster) patch(ctx context.Context, name string, change []byte) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	node := &corev1.Node{}
	if err := c.client.Patch(types.MergePatchType).Resource("nodes").Name(name).Body(change).Do(ctx).Into(node); err != nil {
		return nil, fmt.Errorf("the Node %s: %w", name, err)
	}
	return node, nil
}

// ready returns the condition Ready, or an empty one if the Node has none.
func ready(node *corev1.Node) corev1.NodeCondition {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c
		}
	}
	return corev1.NodeCondition{}
}

func isReady(node *corev1.Node) bool { return ready(node).Status == corev1.ConditionTrue }

// probes returns the pods of a node that try a pull.
func (c cluster) probes(ctx context.Context, node string) ([]corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	pods := &corev1.PodList{}
	err := c.client.Get().Namespace(c.namespace).Resource("pods").
		Param("labelSelector", probeLabel+"=true").Param("fieldSelector", fields.OneTermEqualSelector("spec.nodeName", node).String()).
		Do(ctx).Into(pods)
	if err != nil {
		return nil, fmt.Errorf("the pods that try a pull: %w", err)
	}
	return pods.Items, nil
}

// pulled reports whether the kubelet has pulled the image of a pod. If not, it returns the message
// of the kubelet. The pods have the pull policy Always, so a pod that ran has pulled.
func pulled(pod *corev1.Pod) (bool, string) {
	for _, s := range pod.Status.ContainerStatuses {
		if s.ImageID != "" {
			return true, ""
		}
		if w := s.State.Waiting; w != nil {
			return false, w.Reason + ": " + w.Message
		}
	}
	return false, "the kubelet says nothing of it yet"
}

// age returns the age of a Node.
func age(node *corev1.Node, now time.Time) time.Duration {
	return now.Sub(node.CreationTimestamp.Time)
}
