package nodetest

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// A node whose hosts.toml does not name the kubelet's certificate.
func testNoClientCertificate(t *testing.T, w *work) {
	w.push(t, w.namespace+"/web")
	web := w.start(t, pod{name: "web", image: noClient.image(w.namespace + "/web")})
	kubelet := w.awaitEvent(t, web, "Failed", "kubelet", "403 Forbidden")
	message := w.awaitEvent(t, web, "ImagePullDenied", "pullpass", "client certificate", "hosts.toml")
	refused := w.proxy.AwaitAudit(t, 0, "refused", about(web, "refused"))
	if refused.Reason != "caller_not_node" || refused.Proof == nil || refused.Proof.Reason != "certificate_missing" {
		t.Errorf("audit %+v with the proof %+v", refused, refused.Proof)
	}
	w.saw("hosts.toml without client: the kubelet's event", "%s", lastWords(kubelet))
	w.saw("hosts.toml without client: Pullpass's event", "%s", message)
}

// A thief on the node takes the token that the kubelet gives to the plugin, and uses it elsewhere.
func testStolenToken(t *testing.T, w *work) {
	w.push(t, w.namespace+"/web")
	web := w.start(t, pod{name: "web", image: thief.image(w.namespace + "/web")})
	w.awaitRunning(t, web)
	token := w.stolen(t, thief.host()+"/"+w.namespace+"/web")
	scope := "repository:" + w.namespace + "/web:pull"
	const elsewhere = "127.0.0.66"
	for _, c := range []struct {
		name, proof string
		from        pullpass.From
	}{
		{"without a certificate", "certificate_missing", pullpass.From{Address: elsewhere}},
		{"with the certificate of another node", "certificate_other_node", pullpass.From{Address: elsewhere, Certificate: w.asNode(t, "other").Certificate}},
		{"with the certificate of its own node", "", w.asNode(t, w.node.Name())},
	} {
		answer := w.proxy.Host(t, c.from).Ask(t, registryName, token, scope)
		status, reason := 200, ""
		if c.proof != "" {
			status, reason = 403, "caller_not_node"
		}
		if answer.Status != status || answer.Audit.Reason != reason || answer.Audit.Proof.Reason != c.proof {
			t.Errorf("%s: status %d, reason %q, proof %+v", c.name, answer.Status, answer.Audit.Reason, answer.Audit.Proof)
		}
		w.saw("a pod's token taken and used "+c.name, "%d %s %s", answer.Status, answer.Audit.Reason, answer.Audit.Proof.Reason)
	}
	w.saw("a pod's token taken and used: the pod's event", "%s", w.awaitEvent(t, web, "ImagePullDenied", "pullpass", elsewhere))
}

// stolen is the token that the kubelet gave to the thief's plugin for an image.
func (w *work) stolen(t *testing.T, image string) string {
	t.Helper()
	file := testenv.Value(os.Open(w.node.Path(stolenFile)))(t)
	defer file.Close()
	for requests := json.NewDecoder(file); ; {
		var request struct {
			Image               string `json:"image"`
			ServiceAccountToken string `json:"serviceAccountToken"`
		}
		testenv.Must(t, requests.Decode(&request))
		if request.Image == image {
			return request.ServiceAccountToken
		}
	}
}

// asNode is one who has the certificate of a node.
func (w *work) asNode(t *testing.T, name string) pullpass.From {
	t.Helper()
	certificate := w.CA.Client(t, "system:node:"+name, "system:nodes").TLS(t)
	return pullpass.From{Certificate: &certificate}
}
