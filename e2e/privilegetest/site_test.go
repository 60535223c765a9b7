package privilegetest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// site is a cluster with the manifests that administrators apply, and with objects that hold canaries.
type site struct {
	*cluster.Cluster
	client    *http.Client
	resources []resource
	victims   []*victim
}

// resource is one that the API server has, or a subresource.
type resource struct {
	base       string // /api/v1
	name       string // pods, pods/status
	group      string
	namespaced bool
}

func (r resource) String() string { return strings.TrimSuffix(r.name+"."+r.group, ".") }

// path is that of the collection or, with a name, of an object.
func (r resource) path(namespace, name string) string {
	kind, sub, _ := strings.Cut(r.name, "/")
	path := r.base
	if r.namespaced && namespace != "" {
		path += "/namespaces/" + namespace
	}
	path += "/" + kind
	if name != "" {
		path += "/" + name
	}
	if sub != "" {
		path += "/" + sub
	}
	return path
}

// victim is an object that an attack may want.
type victim struct {
	resource        resource
	namespace, name string
	canary          string // is in it, and nowhere else
	made            cluster.Object
}

func (v *victim) String() string {
	return v.resource.String() + " " + strings.TrimPrefix(v.namespace+"/"+v.name, "/")
}

func startSite(t *testing.T, manifest func(t *testing.T) string) *site {
	t.Helper()
	s := &site{Cluster: cluster.Start(t, certs.NewRSAKey(t))}
	transport := s.CA.Transport(t)
	transport.MaxIdleConnsPerHost = inParallel
	s.client = &http.Client{Transport: transport, Timeout: time.Minute}
	s.CreateNamespace(t, "pullpass", nil)
	s.Kubectl(t, testenv.ReadFile(t, filepath.Join(programs.Checkout(t), "deploy/helm/pullpass/files/crds.yaml")), "apply", "--server-side", "--filename=-")
	var here, elsewhere []string
	for document := range strings.SplitSeq(manifest(t), "\n---\n") {
		isElsewhere, inMetadata := false, false
		for line := range strings.Lines(document) {
			inMetadata = strings.HasPrefix(line, "metadata:") || inMetadata && strings.HasPrefix(line, " ")
			isElsewhere = isElsewhere || inMetadata && strings.HasPrefix(line, "  namespace: ")
		}
		if isElsewhere {
			elsewhere = append(elsewhere, document)
		} else {
			here = append(here, document)
		}
	}
	s.Kubectl(t, strings.Join(here, "\n---\n"), "apply", "--server-side", "--filename=-", "--namespace=pullpass")
	s.Kubectl(t, strings.Join(elsewhere, "\n---\n"), "apply", "--server-side", "--filename=-")
	s.discover(t)
	return s
}

// chart is what Helm makes of testdata/values.yaml, without what runs.
func chart(t *testing.T) string {
	t.Helper()
	helm := exec.CommandContext(t.Context(), programs.Helm(t), "template", "pullpass", filepath.Join(programs.Checkout(t), "deploy/helm/pullpass"), "--namespace=pullpass", "--values=testdata/values.yaml")
	helm.Env = programs.HelmEnvironment(t)
	output, err := helm.CombinedOutput()
	if err != nil {
		t.Fatalf("helm template: %v\n%s", err, output)
	}
	return string(output)
}

// manifests are those of deploy/kubernetes.
func manifests(t *testing.T) string {
	t.Helper()
	files := testenv.Value(filepath.Glob(filepath.Join(programs.Checkout(t), "deploy/kubernetes/*.yaml")))(t)
	var all []string
	for _, file := range files {
		all = append(all, testenv.ReadFile(t, file))
	}
	return strings.Join(all, "\n---\n")
}

func (s *site) discover(t testing.TB) {
	t.Helper()
	type list struct {
		Resources []struct {
			Name, Group string
			Namespaced  bool
		}
	}
	read := func(path string, into any) {
		content := testenv.Value(json.Marshal(s.Get(t, path)))(t)
		testenv.Must(t, json.Unmarshal(content, into))
	}
	var groups struct {
		Groups []struct {
			Name             string
			PreferredVersion struct{ GroupVersion string }
		}
	}
	read("/apis", &groups)
	bases := map[string]string{"/api/v1": ""}
	for _, g := range groups.Groups {
		bases["/apis/"+g.PreferredVersion.GroupVersion] = g.Name
	}
	for _, base := range slices.Sorted(maps.Keys(bases)) {
		var l list
		read(base, &l)
		for _, r := range l.Resources {
			s.resources = append(s.resources, resource{base, r.Name, bases[base], r.Namespaced})
		}
	}
	if len(s.resources) < 100 {
		t.Fatalf("%d resources", len(s.resources))
	}
}

func (s *site) resource(t testing.TB, name string) resource {
	t.Helper()
	for _, r := range s.resources {
		if r.String() == name {
			return r
		}
	}
	t.Fatalf("there is no resource %s", name)
	return resource{}
}

// namespaces are those with victims; the first has opted in for pull secrets.
var namespaces = []string{"opted", "foreign", "default", "pullpass", "pullpass-nodes"}

// populate makes the victims and their objects.
func (s *site) populate(t testing.TB) {
	t.Helper()
	create := func(resource, namespace, name string, o cluster.Object, canary string) {
		t.Helper()
		v := &victim{resource: s.resource(t, resource), namespace: namespace, name: name, canary: canary}
		metadata, _ := o["metadata"].(cluster.Object)
		if metadata == nil {
			metadata = cluster.Object{}
			o["metadata"] = metadata
		}
		metadata["name"] = name
		var err error
		if v.made, err = s.Try(t.Context(), http.MethodPost, v.resource.path(namespace, ""), o); err != nil {
			t.Fatalf("%s: %v", v, err)
		}
		if canary != "" {
			s.victims = append(s.victims, v)
		}
	}
	canary := func(what string) string { return fmt.Sprintf("canary-%d-%s-end", len(s.victims), what) }
	for _, node := range []string{"own", "other"} {
		c := canary("node")
		create("nodes", "", node, cluster.Object{"metadata": cluster.Object{"annotations": cluster.Object{"canary": c}}, "spec": cluster.Object{"taints": []cluster.Object{{"key": "pullpass.dev/not-ready", "effect": "NoSchedule"}}}}, c)
	}
	c := canary("policy")
	create("accesspolicies.pullpass.dev", "", "canary", cluster.Object{"apiVersion": "pullpass.dev/v1beta1", "kind": "AccessPolicy", "spec": cluster.Object{"rules": []cluster.Object{
		{"name": "a", "subjects": []cluster.Object{{"namespaces": []string{c}}}, "allow": []cluster.Object{{"repositories": []string{"a"}, "actions": []string{"pull"}}}}}}}, c)
	for _, namespace := range namespaces {
		if _, err := s.Try(t.Context(), http.MethodPost, "/api/v1/namespaces", cluster.Object{"metadata": cluster.Object{"name": namespace}}); err != nil && !strings.Contains(err.Error(), "AlreadyExists") {
			t.Fatal(err)
		}
		c := canary("namespace")
		labels, own := cluster.Object{}, cluster.Object{"pullpass.dev/pull-secrets": "enabled"}
		if namespace == "opted" {
			labels = own
		}
		s.Patch(t, "/api/v1/namespaces/"+namespace, cluster.Object{"metadata": cluster.Object{"labels": labels, "annotations": cluster.Object{"canary": c}}})
		s.victims = append(s.victims, &victim{resource: s.resource(t, "namespaces"), name: namespace, canary: c})

		text := func(what string) cluster.Object {
			c = canary(what)
			return cluster.Object{"canary": c}
		}
		create("secrets", namespace, "canary", cluster.Object{"stringData": text("secret")}, c)
		create("secrets", namespace, "immutable", cluster.Object{"immutable": true, "stringData": text("immutable")}, c)
		docker := func(o cluster.Object) cluster.Object {
			c = canary("docker")
			o["type"], o["stringData"] = "kubernetes.io/dockerconfigjson", cluster.Object{".dockerconfigjson": `{"auths":{"a":{"auth":"` + c + `"}}}`}
			return o
		}
		create("secrets", namespace, "pullpass-pull-taken", docker(cluster.Object{}), c)
		for _, name := range []string{"web", "taken", "new", "out"} {
			metadata := cluster.Object{"annotations": text("account"), "labels": own}
			if name == "out" {
				delete(metadata, "labels")
			}
			create("serviceaccounts", namespace, name, cluster.Object{"metadata": metadata}, c)
		}
		web := s.victims[len(s.victims)-4].made
		create("secrets", namespace, "pullpass-pull-web", docker(cluster.Object{"metadata": cluster.Object{"labels": cluster.Object{"app.kubernetes.io/managed-by": "pullpass-pull-secrets"},
			"ownerReferences": []cluster.Object{{"apiVersion": "v1", "kind": "ServiceAccount", "name": "web", "uid": web.UID()}}}}), c)
		create("configmaps", namespace, "canary", cluster.Object{"data": text("configmap")}, c)
		c = canary("pod")
		create("pods", namespace, "canary", cluster.Object{"spec": cluster.Object{"nodeName": "other", "serviceAccountName": "web", "automountServiceAccountToken": false,
			"containers": []cluster.Object{{"name": "c", "image": "a", "env": []cluster.Object{{"name": "A", "value": c}}}}}}, c)
		c = canary("event")
		create("events", namespace, "canary", cluster.Object{"involvedObject": cluster.Object{"kind": "Pod", "name": "canary", "namespace": namespace}, "message": c, "reason": "A", "type": "Normal"}, c)
		c = canary("lease")
		create("leases.coordination.k8s.io", namespace, "canary", cluster.Object{"spec": cluster.Object{"holderIdentity": c}}, c)
		c = canary("access")
		create("repositoryaccesses.pullpass.dev", namespace, "canary", cluster.Object{"apiVersion": "pullpass.dev/v1beta1", "kind": "RepositoryAccess", "spec": cluster.Object{
			"serviceAccounts": []string{"web"}, "repositories": []string{c}, "actions": []string{"pull"}}}, c)
	}
	// The turn of another node, just renewed, and the leads of another replica.
	for name, namespace := range map[string]string{"pullpass-node-install": "pullpass-nodes", "pullpass-pull-secrets": "pullpass", "pullpass-policy-status": "pullpass"} {
		c := canary("lead")
		create("leases.coordination.k8s.io", namespace, name, cluster.Object{"metadata": cluster.Object{"annotations": cluster.Object{"canary": c}},
			"spec": cluster.Object{"holderIdentity": "other/uid", "renewTime": time.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00"), "leaseDurationSeconds": 300}}, c)
	}
}

// remove deletes the victims, for the next attacker.
func (s *site) remove(t testing.TB) {
	t.Helper()
	for _, v := range s.victims {
		if v.resource.name == "namespaces" {
			continue
		}
		path := v.resource.path(v.namespace, v.name)
		_, err := s.Try(t.Context(), http.MethodPatch, path, cluster.Object{"metadata": cluster.Object{"finalizers": nil}})
		if err == nil {
			_, err = s.Try(t.Context(), http.MethodDelete, path+"?gracePeriodSeconds=0", nil)
		}
		testenv.Must(t, err)
	}
	s.victims = nil
}

// attacker is one who has the token of a ServiceAccount.
type attacker struct {
	*site
	name, token string

	mu      sync.Mutex
	read    map[string]map[string]bool   // canaries that were seen: of which victim, by which verb
	before  map[string]map[string]string // site.snapshot
	changed map[string]map[string]bool   // fields, by objects
}

// do sends a request, and looks for canaries in the answer.
func (a *attacker) do(t testing.TB, verb, method, path, contentType string, body any) (status int, answer string) {
	t.Helper()
	payload, isText := body.(string)
	if body != nil && !isText {
		text := testenv.Value(json.Marshal(body))(t)
		payload = string(text)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, a.Issuer+path, bytes.NewReader([]byte(payload)))
	testenv.Must(t, err)
	req.Header.Set("Authorization", "Bearer "+a.token)
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Accept", "application/json")
	resp, err := a.client.Do(req)
	if err != nil {
		t.Errorf("%s %s: %v", method, path, err)
		return 0, ""
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	testenv.Must(t, err)
	for _, header := range resp.Header.Values("Warning") {
		content = append(content, header...)
	}
	if !bytes.Contains(content, []byte("canary-")) && !bytes.Contains(content, []byte("Y2FuYXJ5")) && !bytes.Contains(content, []byte("eyJhdXRocy")) {
		return resp.StatusCode, string(content)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, v := range a.victims {
		seen := bytes.Contains(content, []byte(v.canary))
		if data, ok := v.made["data"].(map[string]any); ok && v.resource.name == "secrets" {
			for _, value := range data {
				decoded, _ := base64.StdEncoding.DecodeString(value.(string))
				seen = seen || bytes.Contains(content, []byte(value.(string))) || bytes.Contains(content, decoded)
			}
		}
		if seen && !strings.Contains(payload, v.canary) {
			if a.read[v.String()] == nil {
				a.read[v.String()] = map[string]bool{}
			}
			a.read[v.String()][verb] = true
		}
	}
	return resp.StatusCode, string(content)
}

// isForbidden tells what is not allowed by a role from what an admission policy, or anything else, refuses.
func isForbidden(status int, answer string) bool {
	return status == http.StatusForbidden && strings.Contains(answer, " cannot ")
}
