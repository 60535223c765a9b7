package nodetest

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/node"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// alias is another name of the registry, for which the nodes are configured differently: with a provider of its own.
type alias struct {
	name       string
	audience   string // empty: the right one
	attributes string // more or other tokenAttributes; empty: cacheType: Token
	plugin     string // content; empty: Pullpass's
	cause      string // in the audit line of an anonymous request; empty: none
}

// notExecutable is a plugin that loses its mode while the kubelet runs. One that never had it ends the kubelet at its start.
const notExecutable = "not-executable"

const stolenFile = "/var/lib/kubelet/stolen.json"

var (
	noClient = alias{name: "no-client"}
	thief    = alias{name: "thief", plugin: "#!/bin/sh\ntee -a " + stolenFile + ` | /usr/local/libexec/pullpass/pullpass-credential-provider "$@"` + "\n"}
)

// aliases are all of them.
func aliases() []alias {
	return append(mistakes(), noClient, thief)
}

// mistakes are those that let the kubelet pull anonymously, without a word on the pod.
func mistakes() []alias {
	return []alias{
		{name: "audience-not-allowed", audience: "elsewhere.example.com", cause: "may system:nodes request this audience"},
		{name: "annotation-missing", attributes: `{cacheType: Token, requiredServiceAccountAnnotationKeys: ["example.com/needed"]`, cause: "every required annotation"},
		{name: "cached-by-account", attributes: `{cacheType: ServiceAccount`, cause: "cacheType Token"},
		{name: notExecutable, cause: "executable"},
	}
}

func (a alias) host() string { return a.name + ".example.com" }

func (a alias) image(repository string) string { return a.host() + "/" + repository + ":v1" }

// provider is its entry in the CredentialProviderConfig.
func (a alias) provider() string {
	audience, attributes := cmp.Or(a.audience, registryName), cmp.Or(a.attributes, "{cacheType: Token")
	return fmt.Sprintf(`- name: %[1]s
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: [%[2]s]
  args: ["--registry=%[2]s"]
  defaultCacheDuration: "0s"
  tokenAttributes: %[3]s, serviceAccountTokenAudience: %[4]s, requireServiceAccount: true}
`, a.name, a.host(), attributes, audience)
}

func (a alias) file() node.Plugin {
	return node.Plugin{Name: a.name, Content: a.plugin}
}

// statusTexts are how containerd 1 and 2 say what the token endpoint answered.
var statusTexts = map[string]string{
	"containerd-1": "failed to fetch anonymous token: unexpected status: 401 Unauthorized",
	"containerd-2": "failed to fetch anonymous token: unexpected status from GET request to https://",
}

// Each mistake arrives as a request without a credential; the audit line names its likely causes, the right one among them.
func testMistakes(t *testing.T, w *work) {
	text := statusTexts[w.node.Name()]
	if page := testenv.ReadFile(t, filepath.Join(programs.Checkout(t), "docs/how-to/troubleshooting.md")); !strings.Contains(page, text) {
		t.Errorf("the page about troubles has no %q", text)
	}
	testenv.Must(t, os.Chmod(w.node.Path("/usr/local/libexec/pullpass/"+notExecutable), 0o644))
	for _, m := range mistakes() {
		repository := w.namespace + "/" + m.name
		w.push(t, repository)
		web := w.start(t, pod{name: m.name, image: m.image(repository)})
		kubelet := w.awaitEvent(t, web, "Failed", "kubelet", text, "401 Unauthorized")
		w.sawAnonymous(t, m.name, repository, m.cause, kubelet)
		for _, e := range w.Events(t, web) {
			if e.Component == "pullpass" {
				t.Errorf("%s: Pullpass knows of the pod: %+v", m.name, e)
			}
		}
	}
}

// A static pod has no ServiceAccount.
func testStaticPod(t *testing.T, w *work) {
	repository := w.namespace + "/web"
	image := w.push(t, repository)
	w.node.StaticPod(t, "web", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: web, namespace: %s}
spec: {hostNetwork: true, containers: [{name: c, image: %q}]}
`, w.namespace, image))
	w.sawAnonymous(t, "a static pod", repository, "have a ServiceAccount at all", "")
}

func (w *work) sawAnonymous(t *testing.T, what, repository, cause, kubelet string) {
	t.Helper()
	e := w.proxy.AwaitAudit(t, 0, what, func(e pullpass.Event) bool {
		return e.Reason == "anonymous" && slices.Contains(e.Requested, "repository:"+repository+":pull")
	})
	if e.Status != 401 || e.Result != "refused" || !strings.Contains(e.Message, cause) {
		t.Errorf("%s: audit %+v, want the cause %q", what, e, cause)
	}
	w.saw("anonymous: "+what, "%d %s; %s", e.Status, e.Reason, lastWords(kubelet))
}
