package podtest

import (
	"fmt"
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

// controller is a program that reads the images of other pods. The names are those of its manifests.
type controller struct {
	name               string // of its program and its rule
	program            func(testing.TB) string
	namespace, account string
	address, port      string                                 // of its Service, and that it serves; none: it has no webhooks
	install            func(*testing.T, *readers)             // what it needs beside its pod
	verify             func(*testing.T, *readers, controller) // what it does, once it runs
	args               []string
	environment        string
	policies, policy   string         // their collection, and one that verifies images
	labels             cluster.Object // of namespaces whose pods it checks
}

var controllers = []controller{
	{
		name: "policy-controller", program: programs.PolicyController, namespace: "cosign-system", account: "webhook",
		address: "10.96.0.10", port: "8443", install: installPolicyController, verify: verifyAdmission, args: []string{"--disable-tuf"},
		environment: `    - {name: SYSTEM_NAMESPACE, value: cosign-system}
    - {name: CONFIG_LOGGING_NAME, value: config-logging}
    - {name: METRICS_DOMAIN, value: sigstore.dev/policy}
    - {name: WEBHOOK_NAME, value: webhook}
`,
		policies: "/apis/policy.sigstore.dev/v1beta1/clusterimagepolicies", policy: imagePolicy,
		labels: cluster.Object{"policy.sigstore.dev/include": "true"},
	},
	{
		name: "kyverno-reports", program: programs.KyvernoReports, namespace: "kyverno", account: "kyverno-reports-controller",
		install: installKyverno, verify: verifyReports, args: kyvernoArgs, environment: kyvernoEnvironment("kyverno-reports-controller"),
		policies: kyvernoPolicies, policy: kyvernoPolicy,
	},
	{
		// The last: it checks the pods of all namespaces.
		name: "kyverno-controller", program: programs.KyvernoController, namespace: "kyverno", account: "kyverno-admission-controller",
		address: "10.96.0.11", port: "9443", install: installKyverno, verify: verifyAdmission,
		args: append([]string{
			"--caSecretName=kyverno-svc.kyverno.svc.kyverno-tls-ca", "--tlsSecretName=kyverno-svc.kyverno.svc.kyverno-tls-pair",
			"--controllerRuntimeMetricsAddress=0", // policy-controller has port 8080
		}, kyvernoArgs...),
		environment: kyvernoEnvironment("kyverno-admission-controller"),
		policies:    kyvernoPolicies, policy: kyvernoPolicy,
	},
}

const kyvernoPolicies = "/apis/kyverno.io/v1/clusterpolicies"

var kyvernoArgs = []string{"--registryCredentialHelpers=default,google,amazon,azure,github"} // as its chart has it

func kyvernoEnvironment(account string) string {
	return `    - {name: KYVERNO_NAMESPACE, value: kyverno}
    - {name: KYVERNO_SERVICEACCOUNT_NAME, value: ` + account + `}
    - {name: KYVERNO_DEPLOYMENT, value: ` + account + `}
    - {name: KYVERNO_POD_NAME, value: scanner}
    - {name: INIT_CONFIG, value: kyverno}
    - {name: METRICS_CONFIG, value: kyverno-metrics}
`
}

// kyvernoManifest stands in for Kyverno's chart, which needs charts of other repositories. No controller serves the Deployment here, but
// without it, Kyverno would assume a rolling update and register no webhook for pods.
const kyvernoManifest = `
apiVersion: v1
kind: Namespace
metadata: {name: kyverno}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: kyverno-admission-controller, namespace: kyverno}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: kyverno-reports-controller, namespace: kyverno}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: kyverno}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects:
- {kind: ServiceAccount, name: kyverno-admission-controller, namespace: kyverno}
- {kind: ServiceAccount, name: kyverno-reports-controller, namespace: kyverno}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kyverno, namespace: kyverno}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kyverno-metrics, namespace: kyverno}
---
apiVersion: v1
kind: Service
metadata: {name: kyverno-svc, namespace: kyverno}
spec: {clusterIP: 10.96.0.11, ports: [{port: 443}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: kyverno-admission-controller, namespace: kyverno}
spec:
  selector: {matchLabels: {app: kyverno}}
  template:
    metadata: {labels: {app: kyverno}}
    spec: {containers: [{name: kyverno, image: kyverno}]}
`

func installKyverno(t *testing.T, r *readers) {
	r.Kubectl(t, "", "apply", "--server-side", "--recursive", "-f", programs.KyvernoCRDs(t))
	r.Kubectl(t, kyvernoManifest, "apply", "--server-side", "-f", "-")
}

func installPolicyController(t *testing.T, r *readers) {
	for _, file := range programs.PolicyControllerManifests(t) {
		manifest := testenv.ReadFile(t, file)
		if filepath.Base(file) == "400-webhook-service.yaml" {
			manifest = testenv.Replace(t, manifest, "\nspec:\n", "\nspec:\n  clusterIP: 10.96.0.10\n")
		}
		r.Kubectl(t, manifest, "create", "-f", "-")
	}
}

// controllerRules lets each controller read the images of the teams, and its own.
func controllerRules() (rules string) {
	for _, c := range controllers {
		rules += fmt.Sprintf(`- name: %s
  subjects: [{namespaces: [%s], serviceAccounts: [%s]}]
  allow: [{repositories: ["team-*/**", "security/*"], actions: [pull]}]
`, c.name, c.namespace, c.account)
	}
	return rules
}

// testController runs a controller in the pod of docs/how-to/readers.md. It reads the images of pods that others create, with its own
// token.
func (r *readers) testController(t *testing.T, c controller) {
	c.install(t, r)
	if c.address != "" { // no kube-proxy runs here
		testenv.Must(t, exec.CommandContext(t.Context(), "ip", "address", "add", c.address+"/32", "dev", "lo").Run())
		relay.Start(t, c.address+":443", "127.0.0.1:"+c.port)
	}
	r.push(t, readerNamespace, c.name, r.image(t, reader{name: c.name, program: c.program}))
	manifest := testenv.Replace(t, r.running(t, r.manifest, c.name, c.args, c.environment), "serviceAccountName: scanner", "serviceAccountName: "+c.account)
	r.Kubectl(t, strings.ReplaceAll(manifest, "namespace: "+readerNamespace, "namespace: "+c.namespace), "apply", "--server-side", "-f", "-")

	var policy cluster.Object
	testenv.Must(t, yaml.Unmarshal(r.withKey(t, c.policy), &policy))
	r.post(t, c, c.policies, policy, "")
	c.verify(t, r, c)
	if e := r.asController(t, c, billing); e.Reason != "scope_not_granted" || len(e.Granted) > 0 {
		t.Errorf("%+v", e)
	}
	if e := r.asController(t, c, team); e.Result != "granted" || e.Rule != c.name {
		t.Errorf("%+v", e)
	}
}

// verifyAdmission creates pods that the controller lets the API server accept and refuse.
func verifyAdmission(t *testing.T, r *readers, c controller) {
	guarded := "guarded-by-" + c.name
	r.CreateNamespace(t, guarded, c.labels)
	pods := "/api/v1/namespaces/" + guarded + "/pods"
	// By its digest: of a tag that it may not resolve, policy-controller only says that it wants a digest. A dry run, because Kyverno
	// registers its webhook for pods some time after the policy was created.
	digest := testenv.Value(node.Image(t, billing).Digest())(t).String()
	t.Log(r.post(t, c, pods+"?dryRun=All", podWith(billing+"/web@"+digest), "UNAUTHORIZED: authentication required"))
	r.post(t, c, pods, podWith(team+"/web:rc"), "")
}

// verifyReports has Kyverno's reports controller scan pods that exist. It ends the controller and its policy, since the next has its names.
func verifyReports(t *testing.T, r *readers, c controller) {
	for image, want := range map[string]string{team: "result:pass", billing: "UNAUTHORIZED: authentication required"} {
		namespace := "scanned-" + image
		r.CreateNamespace(t, namespace, nil)
		r.post(t, c, "/api/v1/namespaces/"+namespace+"/pods", podWith(image+"/web:rc"), "")
		var reports string
		testenv.Await(t, podLimit, "a report with "+want, func() bool {
			list, err := r.Try(t.Context(), http.MethodGet, "/apis/wgpolicyk8s.io/v1alpha2/namespaces/"+namespace+"/policyreports", nil)
			reports = fmt.Sprint(list["items"])
			return err == nil && strings.Contains(reports, want) // at first, the API server does not serve them
		})
		t.Log(reports)
	}
	r.Kubectl(t, "", "delete", "pod/scanner", "clusterpolicy/signed", "--namespace="+c.namespace)
}

// post sends an object until the API server accepts it or, if there is a message, until the error has it. It returns the error.
func (r *readers) post(t *testing.T, c controller, collection string, object cluster.Object, message string) (err error) {
	t.Helper()
	if !testenv.Poll(podLimit, func() bool {
		_, err = r.Try(t.Context(), http.MethodPost, collection, object)
		return message == "" && err == nil || message != "" && err != nil && strings.Contains(err.Error(), message)
	}) {
		pod := r.Get(t, "/api/v1/namespaces/"+c.namespace+"/pods/scanner")
		t.Fatalf("POST %s: %v, want %q; the controller: %v, events: %+v", collection, err, message, pod["status"], r.Events(t, pod))
	}
	return err
}

// podWith is a pod with an image.
func podWith(image string) cluster.Object {
	return cluster.Object{
		"apiVersion": "v1", "kind": "Pod", "metadata": cluster.Object{"name": "app"},
		"spec": cluster.Object{"containers": []cluster.Object{{"name": "app", "image": registryName + "/" + image}}},
	}
}

// asController is the last audit line about a repository web that a controller requested.
func (r *readers) asController(t *testing.T, c controller, namespace string) (last pullpass.Event) {
	t.Helper()
	for _, e := range r.proxy.Audit(t) {
		if e.Namespace == c.namespace && e.ServiceAccount.Name == c.account && len(e.Requested) == 1 && e.Requested[0] == "repository:"+namespace+"/web:pull" {
			last = e
		}
	}
	return last
}
