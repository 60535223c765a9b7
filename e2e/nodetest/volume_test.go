package nodetest

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// A volume that is an image, such as a model, is pulled with the pod's token.
func testImageVolume(t *testing.T, w *work) {
	model := w.namespace + "/model"
	w.testVolumes(t, w.push(t, w.namespace+"/web"), w.push(t, model), "repository:"+model+":pull", w.push(t, "shared/"+w.namespace))
}

// The same through the gateway, with the names of before.
func testGatewayImageVolume(t *testing.T, w *gatewayWork) {
	const model = usersRegistry + "/acme/model"
	w.testVolumes(t, usersRegistry+"/acme/server:v1", model+":v1", "repository:"+model+":pull", usersRegistry+"/others/model:v1")
}

func (w *work) testVolumes(t *testing.T, image, allowed, scope, refused string) {
	if w.node.Name() != nodeNames()[0] {
		return // containerd 1.6 has no such volumes
	}
	web := w.start(t, pod{name: "web", image: image, volume: allowed})
	w.saw("a volume of an image", "runs %s after it was created", w.awaitRunning(t, web))
	w.proxy.AwaitAudit(t, 0, "the volume's image", func(e pullpass.Event) bool { return about(web, "granted")(e) && slices.Contains(e.Granted, scope) })
	// The label of the image is in all places where the pod's processes see it.
	labels := testenv.Value(filepath.Glob("/proc/[0-9]*/root" + volumePath + "/label"))(t)
	if !slices.ContainsFunc(labels, func(file string) bool {
		label, err := os.ReadFile(file)
		return err == nil && len(label) > 0
	}) {
		t.Errorf("no process sees the volume: %q", labels)
	}
	other := w.start(t, pod{name: "other", image: image, volume: refused})
	kubelet := w.awaitEvent(t, other, "Failed", "kubelet", "insufficient_scope")
	denied := w.awaitEvent(t, other, "ImagePullDenied", "pullpass", "Remedy:")
	w.saw("a volume of another's image: the kubelet's event", "%s", lastWords(kubelet))
	w.saw("a volume of another's image: Pullpass's event", "%s", denied)
	if running, _ := w.running(t, other); running {
		t.Error("the pod runs with a volume that it may not pull")
	}
}
