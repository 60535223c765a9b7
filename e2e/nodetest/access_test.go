package nodetest

import (
	"encoding/base64"
	"fmt"
	"slices"
	"testing"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/pullpass"
)

// A pod runs from a private image with nothing but its ServiceAccount.
func testGranted(t *testing.T, w *work) {
	image := w.push(t, w.namespace+"/web")
	web := w.start(t, pod{name: "web", image: image})
	w.saw("nothing but its ServiceAccount", "runs %s after it was created", w.awaitRunning(t, web))
	granted := w.proxy.AwaitAudit(t, 0, "granted", about(web, "granted"))
	if granted.Proof == nil || !granted.Proof.Passed || granted.Proof.Method != "certificate" || granted.Node.Name != w.node.Name() {
		t.Errorf("granted to node %+v with the proof %+v", granted.Node, granted.Proof)
	}
}

// Another team's pod is refused, and told why. With the annotation it is told of, the same pod runs.
func testAnnotated(t *testing.T, w *work) {
	repository := "shared/" + w.namespace
	image := w.push(t, repository)
	web := w.start(t, pod{name: "web", image: image})
	kubelet := w.awaitEvent(t, web, "Failed", "kubelet", "insufficient_scope")
	denied := w.awaitEvent(t, web, "ImagePullDenied", "pullpass", repository, annotation, "Remedy:")
	w.saw("another's image is refused: the kubelet's event", "%s", lastWords(kubelet))
	w.saw("another's image is refused: Pullpass's event", "%s", denied)

	w.Patch(t, w.accountPath("puller"), cluster.Object{"metadata": cluster.Object{"annotations": cluster.Object{annotation: repository + ":pull"}}})
	w.saw("annotated: the same pod at its next back-off", "runs %s after that", w.awaitRunning(t, web))
}

// A ServiceAccount that was deleted and recreated has a new UID. Earlier tokens are for the old one; the kubelet notices,
// and requests another token for a pod of before.
func testRecreated(t *testing.T, w *work) {
	repository := "shared/" + w.namespace
	image := w.push(t, repository)
	before := w.start(t, pod{name: "before", image: thief.image(repository)})
	w.proxy.AwaitAudit(t, 0, "the pod's token opens nothing", about(before, "none"))
	old := w.stolen(t, thief.host()+"/"+repository)

	w.Delete(t, w.accountPath("puller"))
	w.account(t, "puller", cluster.Object{annotation: repository + ":pull"})
	after := w.start(t, pod{name: "after", image: image})
	w.saw("ServiceAccount made again: a new pod", "runs %s after it was created", w.awaitRunning(t, after))
	answer := w.proxy.Host(t, w.asNode(t, w.node.Name())).Ask(t, registryName, old, "repository:"+repository+":pull")
	if answer.Status != 403 || answer.Audit.Reason != "service_account_gone" {
		t.Errorf("the token of before: %d %s, want 403 service_account_gone", answer.Status, answer.Audit.Reason)
	}
	message := w.awaitEvent(t, before, "ImagePullDenied", "pullpass", "was deleted")
	w.saw("ServiceAccount made again: a token of before", "%d %s: %s", answer.Status, answer.Audit.Reason, message)
	w.awaitRunning(t, before)
	granted := w.proxy.AwaitAudit(t, 0, "granted", about(before, "granted"))
	if granted.ServiceAccount.UID != w.Get(t, w.accountPath("puller")).UID() {
		t.Errorf("granted to the ServiceAccount %+v", granted.ServiceAccount)
	}
	w.saw("ServiceAccount made again: a pod of before", "gets a new token, and runs at its next back-off")
}

// An image that is on the node already is asked for again with another ServiceAccount, and not with the same one.
func testPresent(t *testing.T, w *work) {
	repository := "shared/" + w.namespace
	image := w.push(t, repository)
	annotated := cluster.Object{annotation: repository + ":pull"}
	w.account(t, "first", annotated)
	w.account(t, "allowed", annotated)
	run := func(name, account string) cluster.Object {
		return w.start(t, pod{name: name, image: image, account: account, policy: "IfNotPresent"})
	}
	first := run("first", "first")
	w.awaitRunning(t, first)
	denied := run("denied", "puller")
	message := w.awaitEvent(t, denied, "ImagePullDenied", "pullpass", repository)
	w.saw("IfNotPresent: another ServiceAccount without rights", "refused, although the image is there: %s", message)
	allowed := run("allowed", "allowed")
	took := w.awaitRunning(t, allowed)
	w.proxy.AwaitAudit(t, 0, "granted", about(allowed, "granted"))
	w.saw("IfNotPresent: another ServiceAccount with rights", "asks, and runs %s after it was created", took)
	again := run("again", "first")
	took = w.awaitRunning(t, again)
	if slices.ContainsFunc(w.proxy.Audit(t), func(e pullpass.Event) bool { return e.Pod.UID == again.UID() }) {
		t.Error("the kubelet asked again with a ServiceAccount that has pulled the image")
	}
	w.saw("IfNotPresent: the same ServiceAccount", "does not ask, and runs %s after it was created", took)
	if running, _ := w.running(t, denied); running {
		t.Error("the pod without rights runs")
	}
}

// The kubelet tries the credential of an imagePullSecret before that of a plugin.
func testPullSecret(t *testing.T, w *work) {
	image := w.push(t, w.namespace+"/web")
	old := fmt.Sprintf(`{"auths":{%q:{"username":"robot","password":"of-the-days-before"}}}`, registryName)
	w.Create(t, "/api/v1/namespaces/"+w.namespace+"/secrets", cluster.Object{
		"metadata": cluster.Object{"name": "old"}, "type": "kubernetes.io/dockerconfigjson",
		"data": cluster.Object{".dockerconfigjson": base64.StdEncoding.EncodeToString([]byte(old))},
	})
	web := w.start(t, pod{name: "web", image: image, pullSecret: "old"})
	took := w.awaitRunning(t, web)
	refused := w.proxy.AwaitAudit(t, 0, "the old password", func(e pullpass.Event) bool {
		return e.Result == "refused" && slices.Contains(e.Requested, "repository:"+w.namespace+"/web:pull")
	})
	w.saw("an old imagePullSecret as well", "runs %s after it was created; the Secret's password got %d %s", took, refused.Status, refused.Reason)
	w.proxy.AwaitAudit(t, 0, "granted", about(web, "granted"))
}
