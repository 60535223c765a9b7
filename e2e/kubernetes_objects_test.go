package e2e

import (
	"testing"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/pullpass"
)

// metadata is a change of an object's metadata.
func metadata(field string, value cluster.Object) cluster.Object {
	return cluster.Object{"metadata": cluster.Object{field: value}}
}

func testAnnotations(t *testing.T, s *site) {
	const namespace, annotation = "annotations", "pullpass.dev/repositories"
	s.workload(t, namespace)
	token := s.podToken(t, s.CreatePod(t, namespace, "web", puller, "node1"))
	host := s.pullpass(t, s.config()).Host(t, pullpass.From{})

	expect(t, "without the annotation", host.Ask(t, service, token, sharedScope), "")
	s.Patch(t, accountPath(namespace), metadata("annotations", cluster.Object{annotation: "shared/base"}))
	turns(t, host, token, sharedScope, "", sharedScope)
	s.Patch(t, accountPath(namespace), metadata("annotations", cluster.Object{annotation: "shared/other"}))
	turns(t, host, token, sharedScope, sharedScope, "")
	s.Patch(t, accountPath(namespace), metadata("annotations", cluster.Object{annotation: "shared/**"}))
	turns(t, host, token, sharedScope, "", sharedScope)
	s.Patch(t, accountPath(namespace), metadata("annotations", cluster.Object{annotation: nil}))
	turns(t, host, token, sharedScope, sharedScope, "")
}

func testNamespaceLabels(t *testing.T, s *site) {
	const namespace = "labels"
	s.workload(t, namespace)
	token := s.podToken(t, s.CreatePod(t, namespace, "web", puller, "node1"))
	host := s.pullpass(t, s.config()).Host(t, pullpass.From{})

	path := "/api/v1/namespaces/" + namespace
	expect(t, "without the label", host.Ask(t, service, token, goldScope), "")
	s.Patch(t, path, metadata("labels", cluster.Object{"tier": "gold"}))
	turns(t, host, token, goldScope, "", goldScope)
	s.Patch(t, path, metadata("labels", cluster.Object{"tier": "silver"}))
	turns(t, host, token, goldScope, goldScope, "")
}

// The deletion of a ServiceAccount revokes its tokens; the next one of that name starts anew (KEP-4412).
func testServiceAccountRecreated(t *testing.T, s *site) {
	const namespace = "recreated"
	s.workload(t, namespace)
	pod := s.CreatePod(t, namespace, "web", puller, "node1")
	old := s.podToken(t, pod)
	host := s.pullpass(t, s.config()).Host(t, pullpass.From{})

	expect(t, "before", host.Ask(t, service, old, own(namespace)), own(namespace))
	s.Delete(t, accountPath(namespace))
	s.CreateServiceAccount(t, namespace, puller, nil)
	expect(t, "the token of the new one, at once", host.Ask(t, service, s.podToken(t, pod), own(namespace)), own(namespace))
	turns(t, host, old, own(namespace), own(namespace), "403 service_account_gone")
}

func testPods(t *testing.T, s *site) {
	const namespace = "pods"
	no := false
	s.workload(t, namespace)
	pod := s.CreatePod(t, namespace, "web", puller, "node1")
	token := s.podToken(t, pod)
	checked := s.pullpass(t, s.config()).Host(t, pullpass.From{})
	unchecked := s.pullpass(t, s.config(func(c *pullpass.Cluster) { c.Kubernetes.PodChecks = &no })).Host(t, pullpass.From{})

	expect(t, "before", checked.Ask(t, service, token, own(namespace)), own(namespace))
	s.Delete(t, cluster.PodPath(pod))
	turns(t, checked, token, own(namespace), own(namespace), "403 pod_gone")
	expect(t, "podChecks: false", unchecked.Ask(t, service, token, own(namespace)), own(namespace))

	second := s.CreatePod(t, namespace, "web", puller, "node1")
	token = s.podToken(t, second)
	expect(t, "another pod of the name, at once", checked.Ask(t, service, token, own(namespace)), own(namespace))
	s.Delete(t, cluster.PodPath(second))
	third := s.podToken(t, s.CreatePod(t, namespace, "web", puller, "node1"))
	expect(t, "a third one, at once", checked.Ask(t, service, third, own(namespace)), own(namespace))
	turns(t, checked, token, own(namespace), own(namespace), "403 pod_gone")
}

func (s *site) nodeToken(t *testing.T, namespace string, node cluster.Object) string {
	t.Helper()
	return s.Token(t, cluster.TokenRequest{
		Namespace: namespace, ServiceAccount: puller, Audiences: []string{audience},
		Bound: &cluster.Bound{Kind: "Node", Name: node.Name(), UID: node.UID()},
	})
}

func testNodeDeleted(t *testing.T, s *site) {
	const namespace, node = "nodes", "node-deleted"
	s.workload(t, namespace)
	token := s.nodeToken(t, namespace, s.CreateNode(t, node, nil))
	host := s.pullpass(t, s.config(func(c *pullpass.Cluster) { c.Bound = "pod-or-node" })).Host(t, pullpass.From{})

	expect(t, "before", host.Ask(t, service, token, own(namespace)), own(namespace))
	s.Delete(t, "/api/v1/nodes/"+node)
	turns(t, host, token, own(namespace), own(namespace), "403 node_gone")
	second := s.CreateNode(t, node, nil)
	token = s.nodeToken(t, namespace, second)
	expect(t, "the token of the new one, at once", host.Ask(t, service, token, own(namespace)), own(namespace))
	s.Delete(t, "/api/v1/nodes/"+node)
	third := s.nodeToken(t, namespace, s.CreateNode(t, node, nil))
	expect(t, "the token of a third one, at once", host.Ask(t, service, third, own(namespace)), own(namespace))
	turns(t, host, token, own(namespace), own(namespace), "403 node_gone")
}

func testNodeSelector(t *testing.T, s *site) {
	const namespace, trusted, other = "selector", "selector-trusted", "selector-other"
	s.workload(t, namespace)
	s.CreateNode(t, trusted, cluster.Object{"pool": "trusted"})
	s.CreateNode(t, other, cluster.Object{"pool": "other"})
	onTrusted := s.podToken(t, s.CreatePod(t, namespace, "trusted", puller, trusted))
	onOther := s.podToken(t, s.CreatePod(t, namespace, "other", puller, other))
	host := s.pullpass(t, s.config(func(c *pullpass.Cluster) { c.Node.Selector = "pool=trusted" })).Host(t, pullpass.From{})

	expect(t, "a node with the label", host.Ask(t, service, onTrusted, own(namespace)), own(namespace))
	expect(t, "another", host.Ask(t, service, onOther, own(namespace)), "403 node_not_selected")
	s.Patch(t, "/api/v1/nodes/"+other, metadata("labels", cluster.Object{"pool": "trusted"}))
	turns(t, host, onOther, own(namespace), "403 node_not_selected", own(namespace))
	s.Patch(t, "/api/v1/nodes/"+trusted, metadata("labels", cluster.Object{"pool": nil}))
	turns(t, host, onTrusted, own(namespace), own(namespace), "403 node_not_selected")
}

// A token that was requested before its pod was scheduled names no node. Its pod does, by now.
func testNodeFromAPI(t *testing.T, s *site) {
	const namespace, node = "fallback", "fallback-node"
	s.workload(t, namespace)
	uid := s.CreateNode(t, node, nil).UID()
	pod := s.CreatePod(t, namespace, "web", puller, "")
	token := s.podToken(t, pod)
	fallback := s.pullpass(t, s.config(func(c *pullpass.Cluster) { c.Node.Fallback = "api" })).Host(t, pullpass.From{})
	strict := s.pullpass(t, s.config()).Host(t, pullpass.From{})

	expect(t, "not scheduled", fallback.Ask(t, service, token, own(namespace)), "401 token_no_node")
	s.Schedule(t, pod, node)
	turns(t, fallback, token, own(namespace), "401 token_no_node", own(namespace))
	answer := fallback.Ask(t, service, token, own(namespace))
	if want := (pullpass.Object{Name: node, UID: uid}); answer.Audit.Node != want || !answer.Audit.NodeFromAPI {
		t.Errorf("the audit line says node %+v, from the API: %t; want %+v, true", answer.Audit.Node, answer.Audit.NodeFromAPI, want)
	}
	expect(t, "fallback: none", strict.Ask(t, service, token, own(namespace)), "401 token_no_node")
	if own := fallback.Ask(t, service, s.podToken(t, s.Get(t, cluster.PodPath(pod))), own(namespace)); own.Audit.NodeFromAPI {
		t.Error("the node of a token that names it is said to come from the API")
	}
}
