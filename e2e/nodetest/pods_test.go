package nodetest

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// pod is what the tests choose about a pod of one container.
type pod struct {
	name, image string
	account     string // empty: puller
	policy      string // imagePullPolicy; empty: Always
	pullSecret  string // imagePullSecrets; empty: none
	volume      string // the image that is mounted at volumePath; empty: none
}

const volumePath = "/model"

// start creates a pod in the namespace of the scenario.
func (w *work) start(t testing.TB, p pod) cluster.Object {
	t.Helper()
	spec := podSpec(w.node.Name(), cmp.Or(p.account, "puller"), cmp.Or(p.policy, "Always"), p.image)
	if p.pullSecret != "" {
		spec["imagePullSecrets"] = []cluster.Object{{"name": p.pullSecret}}
	}
	if p.volume != "" {
		spec["volumes"] = []cluster.Object{{"name": "image", "image": cluster.Object{"reference": p.volume, "pullPolicy": "Always"}}}
		spec["containers"].([]cluster.Object)[0]["volumeMounts"] = []cluster.Object{{"name": "image", "mountPath": volumePath}}
	}
	return w.Create(t, "/api/v1/namespaces/"+w.namespace+"/pods", cluster.Object{"metadata": cluster.Object{"name": p.name}, "spec": spec})
}

func podSpec(node, account, policy string, images ...string) cluster.Object {
	var containers []cluster.Object
	for i, image := range images {
		containers = append(containers, cluster.Object{"name": fmt.Sprintf("c%d", i), "image": image, "imagePullPolicy": policy})
	}
	return cluster.Object{
		"nodeName": node, "serviceAccountName": account, "hostNetwork": true, "terminationGracePeriodSeconds": 0, "containers": containers,
	}
}

// account creates a ServiceAccount in the namespace of the scenario, and the namespace.
func (w *work) account(t testing.TB, name string, annotations cluster.Object) {
	t.Helper()
	if _, err := w.Try(t.Context(), "GET", "/api/v1/namespaces/"+w.namespace, nil); err != nil {
		w.CreateNamespace(t, w.namespace, nil)
	}
	w.CreateServiceAccount(t, w.namespace, name, annotations)
}

func (w *work) accountPath(name string) string {
	return "/api/v1/namespaces/" + w.namespace + "/serviceaccounts/" + name
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
			t.Logf("pod %s/%s: %s; events: %+v", pod.Namespace(), pod.Name(), why, s.Events(t, pod))
		}
	}()
	return milliseconds(testenv.Await(t, podLimit, "pod "+pod.Namespace()+"/"+pod.Name()+" runs", func() (running bool) {
		running, why = s.running(t, pod)
		return running
	}))
}

// awaitEvent waits for an event about the pod that says the parts, and returns its message.
func (s *site) awaitEvent(t testing.TB, pod cluster.Object, reason, component string, parts ...string) string {
	t.Helper()
	var message string
	defer func() {
		if t.Failed() {
			t.Logf("events of pod %s/%s: %+v", pod.Namespace(), pod.Name(), s.Events(t, pod))
		}
	}()
	testenv.Await(t, podLimit, "event "+reason+" with "+strings.Join(parts, ", "), func() bool {
		for _, e := range s.Events(t, pod) {
			if e.Reason == reason && e.Component == component && testenv.ContainsAll(e.Message, parts) {
				message = e.Message
				return true
			}
		}
		return false
	})
	return message
}

// about is true for what the Pullpass did with a request for a pod.
func about(pod cluster.Object, result string) func(pullpass.Event) bool {
	return func(e pullpass.Event) bool { return e.Pod.UID == pod.UID() && e.Result == result }
}

// lastWords is the end of the kubelet's message about a pull, which begins with the image three times.
func lastWords(message string) string {
	parts := strings.Split(message, ": ")
	return strings.Join(parts[max(0, len(parts)-2):], ": ")
}
