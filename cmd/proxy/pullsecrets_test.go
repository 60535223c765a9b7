package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// secretValues are what Secrets of the fake cluster hold. No output may have
// any of them.
var secretValues = map[string]string{
	"user": "sekret-user", "password": "sekret-password", "other": "sekret-host", "token": "sekret-token",
	"auth":   base64.StdEncoding.EncodeToString([]byte("sekret-user:sekret-password")),
	"legacy": legacyJWT("team-b", "ci-token"),
}

func legacyJWT(namespace, secret string) string {
	part := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	return part(`{"alg":"RS256"}`) + "." + part(fmt.Sprintf(`{"iss":"kubernetes/serviceaccount","kubernetes.io/serviceaccount/namespace":%q,"kubernetes.io/serviceaccount/secret.name":%q}`, namespace, secret)) + ".sekret-signature"
}

// listServer is an API server that can be listed, page by page, in two-object
// pages if that is all that is asked for, and that forbids what it is told to.
type listServer struct {
	*httptest.Server
	objects map[string][]object // by resource

	mu     sync.Mutex
	forbid map[string]bool
	status map[string]int
	asked  []string
	page   int
	issuer string
}

func newListServer(t *testing.T) *listServer {
	t.Helper()
	l := &listServer{objects: map[string][]object{}, forbid: map[string]bool{}, status: map[string]int{}, page: 2, issuer: "https://issuer.example.com"}
	data, err := os.ReadFile("testdata/pullsecrets/cluster.yaml")
	must(t, err)
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var o object
		if decoder.Decode(&o) != nil {
			break
		}
		if o["kind"] == "Secret" {
			values, _ := o["data"].(object)
			for key, value := range values {
				text := value.(string)
				for name, secret := range secretValues {
					text = strings.ReplaceAll(text, "{{"+name+"}}", secret)
				}
				values[key] = base64.StdEncoding.EncodeToString([]byte(text))
			}
		}
		resource := strings.ToLower(o["kind"].(string)) + "s"
		if m := o["metadata"].(object); m["uid"] == nil {
			m["uid"] = fmt.Sprint(resource, m["namespace"], m["name"])
		}
		l.objects[resource] = append(l.objects[resource], o)
	}
	l.Server = httptest.NewTLSServer(l)
	t.Cleanup(l.Close)
	return l
}

// ServeHTTP answers lists, and GETs of what has a name.
func (l *listServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/.well-known/openid-configuration" {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.forbid["issuer"] {
			answerStatus(w, http.StatusForbidden, "Forbidden", object{})
			return
		}
		answerJSON(w, http.StatusOK, object{"issuer": l.issuer})
		return
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	version, parts := parts[1], parts[2:]
	if parts0 := strings.Split(r.URL.Path, "/"); parts0[1] == "apis" {
		version, parts = version+"/"+parts[0], parts[1:]
	}
	namespace, name := "", ""
	if parts[0] == "namespaces" && len(parts) > 2 {
		namespace, parts = parts[1], parts[2:]
	}
	resource := parts[0]
	if len(parts) == 2 {
		name = parts[1]
	}
	query := r.URL.Query()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, r.Method+" "+resource+" "+query.Get("fieldSelector")+" "+query.Get("limit"))
	switch {
	case l.forbid[resource]:
		answerStatus(w, http.StatusForbidden, "Forbidden", object{"kind": resource})
		return
	case l.status[resource] != 0:
		w.WriteHeader(l.status[resource])
		fmt.Fprint(w, "sekret-body")
		return
	}
	var items []object
	for _, o := range l.objects[resource] {
		m := o["metadata"].(object)
		field, value, _ := strings.Cut(query.Get("fieldSelector"), "=")
		if (namespace == "" || m["namespace"] == namespace) && (name == "" || m["name"] == name) && (field != "type" || o["type"] == value) {
			items = append(items, o)
		}
	}
	partial := strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadata")
	if name != "" {
		if len(items) == 0 {
			answerStatus(w, http.StatusNotFound, "NotFound", object{"kind": resource, "name": name})
			return
		}
		answerJSON(w, http.StatusOK, shape(items[0], partial))
		return
	}
	list := object{"apiVersion": version, "kind": map[string]string{
		"secrets": "SecretList", "serviceaccounts": "ServiceAccountList", "pods": "PodList", "replicationcontrollers": "ReplicationControllerList",
		"deployments": "DeploymentList", "statefulsets": "StatefulSetList", "daemonsets": "DaemonSetList", "replicasets": "ReplicaSetList",
		"jobs": "JobList", "cronjobs": "CronJobList",
	}[resource], "metadata": object{}}
	if partial {
		list["apiVersion"], list["kind"] = "meta.k8s.io/v1", "PartialObjectMetadataList"
	}
	start, _ := strconv.Atoi(query.Get("continue"))
	end := min(start+l.page, len(items))
	if end < len(items) {
		list["metadata"] = object{"continue": strconv.Itoa(end)}
	}
	shown := []object{}
	for _, o := range items[start:end] {
		shown = append(shown, shape(o, partial))
	}
	list["items"] = shown
	answerJSON(w, http.StatusOK, list)
}

func shape(o object, partial bool) object {
	if partial {
		return object{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": o["metadata"]}
	}
	return o
}

const pullSecretsPolicy = `
apiVersion: pullpass.dev/v1alpha1
kind: AccessPolicy
rules:
- name: own-namespace
  subjects: [{namespaces: ["team-*"]}]
  allow: [{repositories: ["{namespace}/**"], actions: [pull]}]
- name: gold
  subjects: [{namespaceSelector: tier=gold}]
  annotation: pullpass.dev/repositories
  allow: [{repositories: ["shared/**"], actions: [pull]}]
`

// pullSecretsSite returns the options for a cluster that the proxy is connected
// to, if kubernetes says so.
func pullSecretsSite(t *testing.T, l *listServer, kubernetes string) pullSecretsOptions {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "admin.conf", (&apiServer{Server: l.Server}).kubeconfig())
	write(t, dir, "policy.yaml", pullSecretsPolicy)
	write(t, dir, "pullpass.yaml", `
apiVersion: pullpass.dev/v1alpha1
kind: ProxyConfiguration
clusters:
- name: prod
  issuer: https://issuer.example.com
  audiences: [registry.example.com]
  kubernetes: {`+kubernetes+`}
registries: [{service: registry.example.com, issuer: pullpass.example.com}]
policyFiles: [policy.yaml]
`)
	return pullSecretsOptions{
		config: filepath.Join(dir, "pullpass.yaml"), kubeconfig: filepath.Join(dir, "admin.conf"),
		registries: []string{"registry.example.com"}, output: "table",
	}
}

func runPullSecrets(t *testing.T, o pullSecretsOptions) (string, error) {
	t.Helper()
	var stdout bytes.Buffer
	err := pullSecrets(t.Context(), o, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), &stdout)
	out := strings.ReplaceAll(stdout.String(), filepath.Dir(o.config)+"/", "")
	for name, value := range secretValues {
		if strings.Contains(out, value) || err != nil && strings.Contains(err.Error(), value) {
			t.Errorf("the %s of a Secret is shown: %v\n%s", name, err, out)
		}
	}
	if strings.Contains(out, "sekret") || err != nil && strings.Contains(err.Error(), "sekret") {
		t.Errorf("a part of a Secret is shown: %v\n%s", err, out)
	}
	return out, err
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	want, err := os.ReadFile(filepath.Join("testdata/pullsecrets", name))
	if err != nil || got != string(want) {
		t.Errorf("%s: %v: the output is\n%s", name, err, got)
	}
}

func TestPullSecretsGolden(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*listServer, *pullSecretsOptions){
		"table.txt":  func(*listServer, *pullSecretsOptions) {},
		"json.json":  func(_ *listServer, o *pullSecretsOptions) { o.output = "json" },
		"team-b.txt": func(_ *listServer, o *pullSecretsOptions) { o.namespace = "team-b" },
		"forbidden.txt": func(l *listServer, _ *pullSecretsOptions) {
			for _, resource := range []string{"secrets", "cronjobs", "configmaps", "namespaces"} {
				l.forbid[resource] = true
			}
		},
		"no-workloads.txt": func(l *listServer, o *pullSecretsOptions) {
			l.forbid["cronjobs"], o.namespace = true, "team-b"
		},
		"nothing.txt": func(l *listServer, o *pullSecretsOptions) {
			o.registries = []string{"other.example.org"}
			l.objects["secrets"] = nil
			l.objects["serviceaccounts"] = nil
			l.objects["pods"] = nil
			l.objects["cronjobs"] = nil
			l.objects["daemonsets"] = nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newListServer(t)
			o := pullSecretsSite(t, l, "inCluster: true")
			change(l, &o)
			out, err := runPullSecrets(t, o)
			must(t, err)
			golden(t, name, out)
		})
	}
}
