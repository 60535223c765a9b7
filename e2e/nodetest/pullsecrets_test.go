package nodetest

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	// bareName is a name of the registry for which the kubelets have no credential provider.
	bareName = "bare.example.com"

	// As in the manifest.
	pullAudience = "pull.registry.example.com"
	controller   = "pullpass-pull-secrets"

	keptScenario = "kept" // of which the namespaces may have pull secrets
	reviewLimit  = 2 * time.Minute
)

var optedIn = cluster.Object{"pullpass.dev/pull-secrets": "enabled"}

// startPullSecrets applies what docs/how-to/pull-secrets.md names, and runs the controller with its rights.
func (s *site) startPullSecrets(t testing.TB) {
	t.Helper()
	for _, file := range []string{"pull-secrets.yaml", "pull-secrets-controller.yaml"} {
		s.Kubectl(t, "", "apply", "-f", filepath.Join(programs.Checkout(t), "deploy/kubernetes", file))
	}
	process.Start(t, exec.Command(programs.Pullpass(t), "pull-secrets", "controller", "--audience="+pullAudience, "--registry="+bareName, "--namespace=pullpass",
		"--identity=e2e", "--kubeconfig="+s.Access(t, controller).KubeconfigFile))
}

// A node whose kubelet has no credential provider pulls with the Secret that the controller keeps: only where it is allowed, only
// as long as the Secret is there, and nothing but pulls.
func testKeptSecret(t *testing.T, w *work) {
	secret := w.optIn(t, w.namespace)
	w.push(t, w.namespace+"/web")
	image := bareName + "/" + w.namespace + "/web:v1"
	web := w.start(t, pod{name: "web", image: image, account: "autopilot"})
	took := w.awaitRunning(t, web)
	of := func(result string) func(pullpass.Event) bool {
		return func(e pullpass.Event) bool {
			return e.Result == result && e.PullSecret != nil && e.PullSecret.UID == secret.UID() && slices.Contains(e.Requested, "repository:"+w.namespace+"/web:pull")
		}
	}
	granted := w.proxy.AwaitAudit(t, 0, "granted by the Secret", of("granted"))
	if granted.PullSecret.Name != "pullpass-pull-autopilot" || granted.ServiceAccount.Name != "autopilot" || granted.Pod.Name != "" || granted.Node.Name != "" || granted.Proof != nil || granted.Replay != nil {
		t.Errorf("audit %+v", granted)
	}
	w.saw("no credential provider, but a pull secret", "runs %s after it was created, by the Secret %s", took, granted.PullSecret.Name)

	// Any client that can read the Secret has the token, from anywhere, for pulls.
	token := password(t, secret)
	scope := "repository:" + w.namespace + "/web:"
	elsewhere := w.proxy.Host(t, pullpass.From{Address: "127.0.0.67"})
	answer := elsewhere.Ask(t, registryName, token, scope+"pull,push", "repository:team-b/web:pull")
	if answer.Status != http.StatusOK || !slices.Equal(answer.Audit.Granted, []string{scope + "pull"}) || answer.Audit.PullSecret == nil {
		t.Errorf("from elsewhere: %d, audit %+v", answer.Status, answer.Audit)
	}
	w.awaitEvent(t, w.Get(t, w.accountPath("autopilot")), "ImagePullDenied", "pullpass", "with the token in the Secret pullpass-pull-autopilot", "which only pulls")
	w.saw("the token of a pull secret from elsewhere, to push", "%s of %s", answer.Audit.Granted, answer.Audit.Requested)
	if said := w.explain(t, token, scope+"pull"); !strings.Contains(said, "pull secret") || !strings.Contains(said, "pullpass-pull-autopilot, UID "+secret.UID()) {
		t.Errorf("pullpass explain says\n%s", said)
	}

	w.testWhereNotAllowed(t)

	// Its name alone is no Secret: neither its token nor a pod.
	w.Delete(t, w.secretPath(w.namespace))
	start := time.Now()
	testenv.Await(t, reviewLimit, "the token of the deleted Secret is refused", func() bool {
		answer = elsewhere.Ask(t, registryName, token, scope+"pull")
		return answer.Status != http.StatusOK
	})
	if answer.Status != http.StatusForbidden || answer.Audit.Reason != "secret_gone" || answer.Audit.PullSecret == nil {
		t.Errorf("after the Secret was deleted: %d, audit %+v", answer.Status, answer.Audit)
	}
	w.saw("the Secret is deleted: its token", "%d %s after %s", answer.Status, answer.Audit.Reason, milliseconds(time.Since(start)))
	account := w.Get(t, w.accountPath("autopilot"))
	message := w.awaitEvent(t, account, "ImagePullDenied", "pullpass", "with the token in the Secret pullpass-pull-autopilot", "pullpass pull-secrets controller")
	w.saw("the Secret is deleted: the event on the ServiceAccount", "%s", message)
	later := w.start(t, pod{name: "later", image: image, account: "autopilot"})
	w.awaitEvent(t, later, "Failed", "kubelet", "401 Unauthorized")
	if said := w.explain(t, token, scope+"pull"); !strings.Contains(said, "secret_gone") {
		t.Errorf("pullpass explain says\n%s", said)
	}

	// A recreated Secret of that name has another UID: its token, and no other, counts.
	w.Create(t, "/api/v1/namespaces/"+w.namespace+"/secrets", cluster.Object{"metadata": cluster.Object{"name": secret.Name()}})
	if answer := elsewhere.Ask(t, registryName, token, scope+"pull"); answer.Status != http.StatusForbidden || answer.Audit.Reason != "secret_gone" {
		t.Errorf("after another Secret of the name was made: %d, audit %+v", answer.Status, answer.Audit)
	}
}

// testWhereNotAllowed: the administrator of the cluster has opted in, but the administrator of Pullpass has not.
func (w *work) testWhereNotAllowed(t *testing.T) {
	namespace := "not-allowed-" + w.node.Name()
	w.CreateNamespace(t, namespace, nil)
	secret := w.optIn(t, namespace)
	w.push(t, namespace+"/web")
	web := w.Create(t, "/api/v1/namespaces/"+namespace+"/pods", cluster.Object{"metadata": cluster.Object{"name": "web"},
		"spec": podSpec(w.node.Name(), "autopilot", "Always", bareName+"/"+namespace+"/web:v1")})
	kubelet := w.awaitEvent(t, web, "Failed", "kubelet", "40") // 401 or 403, as containerd has it
	refused := w.proxy.AwaitAudit(t, 0, "refused where it is not allowed", func(e pullpass.Event) bool {
		return e.Result == "refused" && e.Claimed.Subject == "system:serviceaccount:"+namespace+":autopilot"
	})
	if refused.Reason != "token_pull_secret" || refused.PullSecret != nil || !strings.Contains(refused.Message, "pullSecrets.namespaces") {
		t.Errorf("audit %+v", refused)
	}
	if said := w.explain(t, password(t, secret), "repository:"+namespace+"/web:pull"); !strings.Contains(said, "pullSecrets.namespaces") {
		t.Errorf("pullpass explain says\n%s", said)
	}
	w.saw("a pull secret where Pullpass allows none", "%d %s; %s", refused.Status, refused.Reason, lastWords(kubelet))
}

// optIn lets the ServiceAccount autopilot of a namespace have a Secret, and waits until new pods get its name.
func (w *work) optIn(t *testing.T, namespace string) (secret cluster.Object) {
	t.Helper()
	w.Patch(t, "/api/v1/namespaces/"+namespace, cluster.Object{"metadata": cluster.Object{"labels": optedIn}})
	w.Create(t, "/api/v1/namespaces/"+namespace+"/serviceaccounts", cluster.Object{"metadata": cluster.Object{"name": "autopilot", "labels": optedIn}})
	testenv.Await(t, podLimit, "the Secret has a token", func() bool {
		var err error
		secret, err = w.Try(t.Context(), http.MethodGet, w.secretPath(namespace), nil)
		return err == nil && secret.Text("metadata", "annotations", "pullpass.dev/token-key") != ""
	})
	testenv.Await(t, podLimit, "pods get its name", func() bool {
		pod := w.Create(t, "/api/v1/namespaces/"+namespace+"/pods?dryRun=All", cluster.Object{"metadata": cluster.Object{"name": "x"}, "spec": podSpec("", "autopilot", "Always", "x")})
		list, _ := pod["spec"].(map[string]any)["imagePullSecrets"].([]any)
		return len(list) == 1
	})
	return secret
}

func (w *work) secretPath(namespace string) string {
	return "/api/v1/namespaces/" + namespace + "/secrets/pullpass-pull-autopilot"
}

// password is the token in a Secret.
func password(t *testing.T, secret cluster.Object) string {
	t.Helper()
	var config struct {
		Auths map[string]struct{ Password string }
	}
	text := testenv.Value(base64.StdEncoding.DecodeString(secret.Text("data", ".dockerconfigjson")))(t)
	testenv.Must(t, json.Unmarshal(text, &config))
	return config.Auths[bareName].Password
}

// explain is what "pullpass explain" says of a token.
func (w *work) explain(t *testing.T, token, scope string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	testenv.WriteFile(t, file, token)
	return w.proxy.Command(t, "explain", "--token-file="+file, "--scope="+scope)
}
