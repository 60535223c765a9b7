package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
	query, partial := r.URL.Query(), strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadata")
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, r.Method+" "+resource+" "+query.Get("fieldSelector")+" "+query.Get("limit")+" "+map[bool]string{true: "metadata", false: "whole"}[partial])
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

// pullSecretsOptions are what is asked of which files.
type pullSecretsOptions struct {
	migrationOptions
	config string
	write  func(io.Writer, *migration) error
}

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
		config: filepath.Join(dir, "pullpass.yaml"), write: writeMigrationTable,
		migrationOptions: migrationOptions{kubeconfig: filepath.Join(dir, "admin.conf"), registries: []string{"registry.example.com"}},
	}
}

func runPullSecrets(t *testing.T, o pullSecretsOptions) (string, error) {
	t.Helper()
	var stdout bytes.Buffer
	cfg, err := LoadConfig(o.config)
	must(t, err)
	m, err := planMigration(t.Context(), cfg, o.migrationOptions, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	if err == nil {
		err = o.write(&stdout, m)
	}
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
		"json.json":  func(_ *listServer, o *pullSecretsOptions) { o.write = writeMigrationJSON },
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

// find returns the only object of this kind and name.
func (l *listServer) find(t *testing.T, resource, name string) object {
	t.Helper()
	for _, o := range l.objects[resource] {
		if o["metadata"].(object)["name"] == name {
			return o
		}
	}
	t.Fatalf("no %s %s", resource, name)
	return nil
}

// What the golden files do not show, line by line.
func TestPullSecretsLines(t *testing.T) {
	t.Parallel()
	const tracking = "kube-apiserver-legacy-service-account-token-tracking"
	for name, test := range map[string]struct {
		change     func(*testing.T, *listServer, *pullSecretsOptions)
		kubernetes string
		want       []string
		not        string
	}{
		"the proxy is not connected": {
			kubernetes: "",
			want: []string{
				"2     policy first    team-a     CronJob nightly", "no rule for prod/team-a/web allows pull on shared/base",
				"3     ready           team-a     ServiceAccount default",
			},
		},
		"the namespace's labels count": {
			change: func(t *testing.T, l *listServer, _ *pullSecretsOptions) {
				delete(l.find(t, "namespaces", "team-a")["metadata"].(object), "labels")
			},
			want: []string{"2     policy first    team-a     CronJob nightly"},
		},
		"the annotation counts": {
			change: func(t *testing.T, l *listServer, _ *pullSecretsOptions) {
				l.find(t, "serviceaccounts", "web")["metadata"].(object)["annotations"] = object{"pullpass.dev/repositories": "shared/other"}
			},
			want: []string{"2     policy first    team-a     CronJob nightly", "kubectl annotate serviceaccount web -n team-a --overwrite pullpass.dev/repositories='shared/other shared/base:pull'"},
		},
		"a deny rule": {
			change: func(t *testing.T, _ *listServer, o *pullSecretsOptions) {
				write(t, filepath.Dir(o.config), "policy.yaml", pullSecretsPolicy+"deny: [{name: quarantine, subjects: [{namespaces: [team-a]}]}]\n")
			},
			want: []string{"2     policy first    team-a     Deployment api", "2     policy first    team-a     ServiceAccount default", "the deny rule quarantine refuses the ServiceAccount"},
		},
		"no ServiceAccount": {
			change: func(t *testing.T, l *listServer, _ *pullSecretsOptions) {
				l.find(t, "serviceaccounts", "web")["metadata"].(object)["name"] = "renamed"
			},
			want: []string{"2     policy first    team-a     CronJob nightly", "shared/base: the ServiceAccount is not there"},
		},
		"no repository": {
			change: func(t *testing.T, l *listServer, _ *pullSecretsOptions) {
				l.find(t, "pods", "alone")["spec"].(object)["containers"] = []object{{"name": "c", "image": "registry.example.com/Team/\x1b[2J"}}
			},
			want: []string{`"registry.example.com/Team/\x1b[2J": no registry can have such a repository`},
		},
		"a Secret that the kubelet cannot read": {
			change: func(t *testing.T, l *listServer, _ *pullSecretsOptions) {
				l.find(t, "secrets", "both")["data"] = object{".dockercfg": base64.StdEncoding.EncodeToString([]byte("sekret"))}
			},
			want: []string{"3     ready           team-b     ServiceAccount default      both              the kubelet cannot read Secret both, and pulls nothing for pods that name it"},
			not:  "Secret both                 -",
		},
		"use is not tracked": {
			change: func(t *testing.T, l *listServer, _ *pullSecretsOptions) { l.objects["configmaps"] = nil },
			want:   []string{"5     unknown         team-a     Secret default-token-x1", "does not say since when it tracks"},
		},
		"use is tracked for less than a year": {
			change: func(t *testing.T, l *listServer, _ *pullSecretsOptions) {
				l.find(t, "configmaps", tracking)["data"] = object{"since": "2025-03-02"}
			},
			want: []string{"5     unknown         team-a     Secret default-token-x1", "not used since 2025-03-02"},
		},
		"a token used more than a year ago": {
			change: func(t *testing.T, l *listServer, _ *pullSecretsOptions) {
				l.find(t, "secrets", "recent-token")["metadata"].(object)["labels"] = object{"kubernetes.io/legacy-token-last-used": "2025-02-28"}
			},
			want: []string{"4     ready           team-b     Secret recent-token"},
		},
		"a token that is a password for another registry": {
			change: func(t *testing.T, l *listServer, _ *pullSecretsOptions) {
				l.find(t, "secrets", "hub")["data"] = object{".dockerconfigjson": base64.StdEncoding.EncodeToString(
					[]byte(`{"auths": {"quay.io": {"password": "` + legacyJWT("team-a", "default-token-x1") + `"}}}`))}
			},
			want: []string{"5     still used      team-a     Secret default-token-x1", "is the password of pull Secret team-a/hub"},
		},
		"a password that claims to be another Secret's token": {
			change: func(t *testing.T, l *listServer, _ *pullSecretsOptions) {
				l.find(t, "secrets", "both")["data"] = object{".dockercfg": base64.StdEncoding.EncodeToString(
					[]byte(`{"registry.example.com": {"password": "` + legacyJWT("team-b", "sekret-name") + `"}}`))}
			},
			want: []string{"its password is a legacy ServiceAccount token", "4     ready           team-a     Secret default-token-x1"},
		},
		"a namespaced administrator": {
			change: func(t *testing.T, l *listServer, o *pullSecretsOptions) {
				o.namespace, l.forbid["issuer"], l.forbid["configmaps"] = "team-a", true, true
			},
			want: []string{"not read: issuer: not allowed; the kubeconfig's user needs the verb \"get\" on \"/.well-known/openid-configuration\"", "not read: configmaps"},
			not:  "team-b",
		},
		"a template with Secrets of its own gets none of its ServiceAccount's": {
			change: func(_ *testing.T, l *listServer, _ *pullSecretsOptions) {
				l.objects["deployments"] = append(l.objects["deployments"], object{
					"metadata": object{"namespace": "team-a", "name": "apart", "uid": "d2"},
					"spec": object{"template": object{"spec": object{
						"imagePullSecrets": []object{{"name": "hub"}},
						"containers":       []object{{"name": "c", "image": "registry.example.com/secret/app"}},
					}}},
				})
			},
			want: []string{"3     ready           team-a     ServiceAccount default", "what uses it (workloads: 1)", "without imagePullSecrets: 1\n"},
			not:  "Deployment apart",
		},
		"workloads cannot be listed": {
			change: func(t *testing.T, l *listServer, _ *pullSecretsOptions) { l.forbid["jobs"] = true },
			want:   []string{"3     unknown       team-a     ServiceAccount default", "who uses it is not known"},
		},
		"an index for a registry with a port": {
			change: func(t *testing.T, l *listServer, o *pullSecretsOptions) {
				o.registries = append(o.registries, "registry.example.com:5000")
			},
			want: []string{"Nodes registry.example.com:5000"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newListServer(t)
			kubernetes := "inCluster: true"
			if test.change == nil {
				kubernetes = test.kubernetes
			}
			o := pullSecretsSite(t, l, kubernetes)
			if test.change != nil {
				test.change(t, l, &o)
			}
			out, err := runPullSecrets(t, o)
			must(t, err)
			for _, want := range test.want {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
			if test.not != "" && strings.Contains(out, test.not) {
				t.Errorf("%q is in\n%s", test.not, out)
			}
		})
	}
}

func TestPullSecretsRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*listServer, *pullSecretsOptions)
		want   string
	}{
		"namespace":       {func(_ *listServer, o *pullSecretsOptions) { o.namespace = "team-a/web" }, `--namespace "team-a/web" is not the name of a namespace`},
		"empty namespace": {func(_ *listServer, o *pullSecretsOptions) { o.namespace = "team-c" }, "cannot get namespaces: the API server answers 404"},
		"registry":        {func(_ *listServer, o *pullSecretsOptions) { o.registries = []string{"https://registry.example.com"} }, `--registry "https://registry.example.com" is not a registry's host`},
		"twice":           {func(_ *listServer, o *pullSecretsOptions) { o.registries = append(o.registries, o.registries...) }, "--registry registry.example.com is given twice"},
		"service":         {func(_ *listServer, o *pullSecretsOptions) { o.service = "other" }, `--service "other" is not configured`},
		"cluster":         {func(_ *listServer, o *pullSecretsOptions) { o.cluster = "other" }, `--cluster "other" is not configured`},
		"kubeconfig":      {func(_ *listServer, o *pullSecretsOptions) { o.kubeconfig += "x" }, "--kubeconfig: open "},
		"another cluster": {func(l *listServer, _ *pullSecretsOptions) { l.issuer = "https://other.example.com" }, `the API server issues tokens as "https://other.example.com", and the cluster of the configuration as "https://issuer.example.com"`},
		"pods":            {func(l *listServer, _ *pullSecretsOptions) { l.forbid["pods"] = true }, `cannot list pods: not allowed; the kubeconfig's user needs the verb "list" on "pods"`},
		"accounts":        {func(l *listServer, _ *pullSecretsOptions) { l.forbid["serviceaccounts"] = true }, "cannot list serviceaccounts: not allowed"},
		// "Could not ask" is never "not there".
		"failing Secrets": {func(l *listServer, _ *pullSecretsOptions) { l.status["secrets"] = http.StatusInternalServerError }, `cannot list secrets: the API server answers 500 "InternalError"`},
		"garbled Secrets": {func(l *listServer, _ *pullSecretsOptions) { l.status["secrets"] = http.StatusOK }, "cannot list secrets: the answer cannot be read"},
		"expired":         {func(l *listServer, _ *pullSecretsOptions) { l.status["pods"] = http.StatusGone }, "cannot list pods: "},
		"down":            {func(l *listServer, _ *pullSecretsOptions) { l.Close() }, "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newListServer(t)
			o := pullSecretsSite(t, l, "inCluster: true")
			test.change(l, &o)
			out, err := runPullSecrets(t, o)
			if err == nil || !strings.Contains(err.Error(), test.want) || out != "" {
				t.Errorf("%v, want %q; output %q", err, test.want, out)
			}
		})
	}
}

// Token values are never asked for, of other Secrets only those that matter, and
// nothing is changed.
func TestPullSecretsAsksForLittle(t *testing.T) {
	t.Parallel()
	l := newListServer(t)
	_, err := runPullSecrets(t, pullSecretsSite(t, l, "inCluster: true"))
	must(t, err)
	for _, asked := range l.asked {
		switch {
		case !strings.HasPrefix(asked, "GET "):
			t.Error(asked)
		case strings.HasPrefix(asked, "GET secrets "):
			if asked != "GET secrets type=kubernetes.io/dockerconfigjson 100 whole" && asked != "GET secrets type=kubernetes.io/dockercfg 100 whole" &&
				asked != "GET secrets type=kubernetes.io/service-account-token 500 metadata" {
				t.Error(asked)
			}
		case !strings.Contains(asked, " 500 ") && !strings.HasPrefix(asked, "GET configmaps "):
			t.Error(asked)
		}
	}
}

// A shell makes of every command what was meant, whatever the file is named.
func TestPullSecretsCommands(t *testing.T) {
	t.Parallel()
	l := newListServer(t)
	o := pullSecretsSite(t, l, "inCluster: true")
	renamed := filepath.Join(filepath.Dir(o.kubeconfig), "it's $(here) & there")
	must(t, os.Rename(o.kubeconfig, renamed))
	o.kubeconfig = renamed
	out, err := runPullSecrets(t, o)
	must(t, err)
	commands := 0
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "    kubectl ") {
			continue
		}
		commands++
		got, err := exec.CommandContext(t.Context(), "sh", "-c", `kubectl() { printf '%s\n' "$@"; }`+"\n"+line).CombinedOutput()
		must(t, err)
		args := strings.Split(strings.TrimSuffix(string(got), "\n"), "\n")
		if args[0] != "--kubeconfig" || args[1] != "it's $(here) & there" || args[2] != "-n" || len(args) < 7 {
			t.Errorf("%s: %q", line, args)
		}
		if args[4] != "patch" {
			continue
		}
		var patch []struct{ Op, Path, Value string }
		must(t, json.Unmarshal([]byte(args[len(args)-1]), &patch))
		for i := 0; i < len(patch); i += 2 {
			if patch[i].Op != "test" || patch[i].Value == "" || patch[i+1].Op != "remove" || patch[i].Path != patch[i+1].Path+"/name" {
				t.Errorf("%s: %+v", line, patch)
			}
		}
	}
	if commands != 8 {
		t.Errorf("%d commands in\n%s", commands, out)
	}
}

// The command has its flags, and reaches the same code.
func TestPullSecretsCommand(t *testing.T) {
	t.Parallel()
	l := newListServer(t)
	dir := explainFiles(t, &apiServer{Server: l.Server}, "")
	var stdout, stderr bytes.Buffer
	args := []string{"pull-secrets", "--config", filepath.Join(dir, "pullpass.yaml"), "--kubeconfig", filepath.Join(dir, "kubeconfig"), "--registry", "registry.example.com", "--service", "registry.example.com",
		"--cluster", "prod", "--namespace", "team-a", "-o", "json"}
	if code := run(t.Context(), args, nil, &stdout, &stderr); code != 0 || !strings.Contains(stdout.String(), `"kind": "PullSecretReport"`) {
		t.Errorf("exit code %d: %s%s", code, stdout.String(), stderr.String())
	}
	for _, missing := range []string{"--registry", "--kubeconfig", "--config"} {
		i := slices.Index(args, missing)
		stderr.Reset()
		if code := run(t.Context(), slices.Delete(slices.Clone(args), i, i+2), nil, &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), "required flag") {
			t.Errorf("without %s: exit code %d: %s", missing, code, stderr.String())
		}
	}
}
