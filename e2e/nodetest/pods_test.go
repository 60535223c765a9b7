package nodetest

import (
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/pullpass"
)

// pod is what the tests choose about a pod.
type pod struct {
	namespace, name, account, node string
	images                         []string
	policy                         string // imagePullPolicy; empty: Always
	pullSecret                     string // imagePullSecrets; empty: none
}

// run creates the pod.
func (s *site) run(t testing.TB, p pod) cluster.Object {
	t.Helper()
	if p.policy == "" {
		p.policy = "Always"
	}
	spec := cluster.Object{
		"nodeName": p.node, "serviceAccountName": p.account, "hostNetwork": true, "terminationGracePeriodSeconds": 0,
	}
	if p.pullSecret != "" {
		spec["imagePullSecrets"] = []cluster.Object{{"name": p.pullSecret}}
	}
	var containers []cluster.Object
	for i, image := range p.images {
		containers = append(containers, cluster.Object{"name": "c" + string(rune('a'+i)), "image": image, "imagePullPolicy": p.policy})
	}
	spec["containers"] = containers
	return s.Create(t, "/api/v1/namespaces/"+p.namespace+"/pods", cluster.Object{"metadata": cluster.Object{"name": p.name}, "spec": spec})
}

// namespace creates a namespace with the ServiceAccount puller.
func (s *site) namespace(t testing.TB, name string, annotations cluster.Object) {
	t.Helper()
	s.CreateNamespace(t, name, nil)
	s.CreateServiceAccount(t, name, "puller", annotations)
}

// running says whether all containers of a pod run, and otherwise why not.
func (s *site) running(t testing.TB, pod cluster.Object) (bool, string) {
	t.Helper()
	status, _ := s.Get(t, cluster.PodPath(pod))["status"].(map[string]any)
	containers, _ := status["containerStatuses"].([]any)
	if len(containers) == 0 {
		return false, ""
	}
	for _, c := range containers {
		state, _ := c.(map[string]any)["state"].(map[string]any)
		if _, running := state["running"]; !running {
			waiting := cluster.Object(state)
			return false, waiting.Text("waiting", "reason") + ": " + waiting.Text("waiting", "message")
		}
	}
	return true, ""
}

// awaitRunning waits until the pod runs, and returns how long that took.
func (s *site) awaitRunning(t testing.TB, pod cluster.Object) string {
	t.Helper()
	var why string
	defer func() {
		if t.Failed() {
			t.Logf("pod %s/%s: %s; events: %+v", pod.Namespace(), pod.Name(), why, s.events(t, pod))
		}
	}()
	return milliseconds(await(t, podLimit, "pod "+pod.Namespace()+"/"+pod.Name()+" runs", func() (running bool) {
		running, why = s.running(t, pod)
		return running
	}))
}

// event is an event about a pod, as far as the tests read it.
type event struct{ reason, component, message string }

func (s *site) events(t testing.TB, pod cluster.Object) []event {
	t.Helper()
	items, _ := s.Get(t, "/api/v1/namespaces/"+pod.Namespace()+"/events?fieldSelector=involvedObject.uid%3D"+pod.UID())["items"].([]any)
	var events []event
	for _, item := range items {
		e := cluster.Object(item.(map[string]any))
		events = append(events, event{e.Text("reason"), e.Text("source", "component"), e.Text("message")})
	}
	return events
}

// awaitEvent waits for an event about the pod whose reason and message are as wanted, and returns its message.
func (s *site) awaitEvent(t testing.TB, pod cluster.Object, reason string, parts ...string) string {
	t.Helper()
	var message string
	defer func() {
		if t.Failed() {
			t.Logf("events of pod %s/%s: %+v", pod.Namespace(), pod.Name(), s.events(t, pod))
		}
	}()
	await(t, podLimit, "event "+reason+" with "+strings.Join(parts, ", "), func() bool {
		for _, e := range s.events(t, pod) {
			if e.reason == reason && containsAll(e.message, parts) {
				message = e.message
				return true
			}
		}
		return false
	})
	return message
}

// awaitAudit waits for an audit line of a Pullpass, and returns it.
func awaitAudit(t testing.TB, proxy *pullpass.Proxy, what string, wanted func(pullpass.Event) bool) (found pullpass.Event) {
	t.Helper()
	await(t, podLimit, "audit line: "+what, func() bool {
		for _, e := range proxy.Audit(t) {
			if wanted(e) {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

func containsAll(text string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}
