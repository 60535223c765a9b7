package podtest

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/node"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/relay"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// The names in the manifests of policy-controller.
const (
	policyNamespace = "cosign-system"
	policyAccount   = "webhook"
	policyProgram   = "policy-controller"
	policyAddress   = "10.96.0.10" // of its Service
)

const policyControllerRule = `- name: policy-controller
  subjects: [{namespaces: [cosign-system], serviceAccounts: [webhook]}]
  allow: [{repositories: ["team-*/**", "security/*"], actions: [pull]}]
`

// testPolicyController runs policy-controller as a webhook of the API server, in the pod of docs/how-to/readers.md. It reads the images
// of pods that others create, with its own token.
func (r *readers) testPolicyController(t *testing.T) {
	for _, file := range programs.PolicyControllerManifests(t) {
		manifest := testenv.ReadFile(t, file)
		if filepath.Base(file) == "400-webhook-service.yaml" {
			manifest = testenv.Replace(t, manifest, "\nspec:\n", "\nspec:\n  clusterIP: "+policyAddress+"\n")
		}
		r.Kubectl(t, manifest, "create", "-f", "-")
	}
	// No kube-proxy runs here.
	testenv.Must(t, exec.CommandContext(t.Context(), "ip", "address", "add", policyAddress+"/32", "dev", "lo").Run())
	relay.Start(t, policyAddress+":443", "127.0.0.1:8443")
	r.push(t, readerNamespace, policyProgram, r.image(t, reader{name: policyProgram, program: programs.PolicyController}))
	manifest := r.manifest
	for _, change := range [][2]string{
		{`command: [syft, "registry:registry.example.com/team-a/web:rc"]`, "command: [" + policyProgram + ", --disable-tuf]"},
		{"image: registry.example.com/security/syft\n", "image: " + registryName + "/" + readerNamespace + "/" + policyProgram + "\n"},
		{"serviceAccountName: scanner", "serviceAccountName: " + policyAccount},
		{"ghcr.io/pullpass/", registryName + "/" + readerNamespace + "/"},
		{"    env:\n", `    env:
    - {name: HOME, value: /tmp}
    - {name: SYSTEM_NAMESPACE, value: cosign-system}
    - {name: CONFIG_LOGGING_NAME, value: config-logging}
    - {name: METRICS_DOMAIN, value: sigstore.dev/policy}
    - {name: WEBHOOK_NAME, value: webhook}
`},
	} {
		manifest = testenv.Replace(t, manifest, change[0], change[1])
	}
	r.Kubectl(t, strings.ReplaceAll(manifest, "namespace: "+readerNamespace, "namespace: "+policyNamespace), "create", "-f", "-")

	var rule cluster.Object
	testenv.Must(t, yaml.Unmarshal(r.withKey(t, imagePolicy), &rule))
	r.create(t, "/apis/policy.sigstore.dev/v1beta1/clusterimagepolicies", rule) // its webhooks have to answer
	r.CreateNamespace(t, "guarded", cluster.Object{"policy.sigstore.dev/include": "true"})
	r.create(t, "/api/v1/namespaces/guarded/pods", guarded(team+"/web:rc"))
	if e := r.asPolicyController(t, team); e.Result != "granted" || e.Rule != "policy-controller" {
		t.Errorf("%+v", e)
	}
	// By its digest: of a tag that it may not resolve, it only says that it wants a digest.
	digest := testenv.Value(node.Image(t, billing).Digest())(t).String()
	_, err := r.Try(t.Context(), http.MethodPost, "/api/v1/namespaces/guarded/pods", guarded(billing+"/web@"+digest))
	if err == nil || !strings.Contains(err.Error(), "UNAUTHORIZED: authentication required") {
		t.Errorf("the pod with an image of %s: %v", billing, err)
	}
	if e := r.asPolicyController(t, billing); e.Reason != "scope_not_granted" || len(e.Granted) > 0 {
		t.Errorf("%+v", e)
	}
}

// create creates an object as soon as the webhooks allow it.
func (r *readers) create(t *testing.T, collection string, object cluster.Object) {
	t.Helper()
	var err error
	if !testenv.Poll(podLimit, func() bool {
		_, err = r.Try(t.Context(), http.MethodPost, collection, object)
		return err == nil
	}) {
		pod := r.Get(t, "/api/v1/namespaces/"+policyNamespace+"/pods/scanner")
		t.Fatalf("POST %s: %v; the controller: %v, events: %+v", collection, err, pod["status"], r.Events(t, pod))
	}
}

// guarded is a pod with an image.
func guarded(image string) cluster.Object {
	return cluster.Object{
		"apiVersion": "v1", "kind": "Pod", "metadata": cluster.Object{"name": "app"},
		"spec": cluster.Object{"containers": []cluster.Object{{"name": "app", "image": registryName + "/" + image}}},
	}
}

// asPolicyController is the last audit line about a repository web that policy-controller requested.
func (r *readers) asPolicyController(t *testing.T, namespace string) (last pullpass.Event) {
	t.Helper()
	for _, e := range r.proxy.Audit(t) {
		if e.Namespace == policyNamespace && e.ServiceAccount.Name == policyAccount && len(e.Requested) == 1 && e.Requested[0] == "repository:"+namespace+"/web:pull" {
			last = e
		}
	}
	return last
}
