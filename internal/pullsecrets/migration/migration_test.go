package migration

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/pullsecrets"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const pullSecretsPolicy = `
apiVersion: pullpass.dev/v1beta1
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

// pullSecretsOptions are the options of the command, and its files.
type pullSecretsOptions struct {
	Options
	config string
	write  func(io.Writer, *Plan) error
}

// pullSecretsSite returns the options for a cluster that the proxy is connected
// to, if kubernetes says so.
func pullSecretsSite(t *testing.T, l *kubetest.ListServer, kubernetes string) pullSecretsOptions {
	t.Helper()
	dir := t.TempDir()
	testkit.Write(t, dir, "admin.conf", l.Kubeconfig())
	testkit.Write(t, dir, "policy.yaml", pullSecretsPolicy)
	testkit.Write(t, dir, "pullpass.yaml", `
apiVersion: pullpass.dev/v1beta1
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
		config: filepath.Join(dir, "pullpass.yaml"), write: WriteTable,
		Options: Options{Kubeconfig: filepath.Join(dir, "admin.conf"), Registries: []string{"registry.example.com"}},
	}
}

func runPullSecrets(t *testing.T, o pullSecretsOptions) (string, error) {
	t.Helper()
	var stdout bytes.Buffer
	cfg, err := config.Load(o.config)
	testkit.Must(t, err)
	m, err := New(t.Context(), cfg, o.Options, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	if err == nil {
		err = o.write(&stdout, m)
	}
	out := strings.ReplaceAll(stdout.String(), filepath.Dir(o.config)+"/", "")
	for name, value := range kubetest.SecretValues {
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
	for name, change := range map[string]func(*kubetest.ListServer, *pullSecretsOptions){
		"table.txt":  func(*kubetest.ListServer, *pullSecretsOptions) {},
		"json.json":  func(_ *kubetest.ListServer, o *pullSecretsOptions) { o.write = WriteJSON },
		"team-b.txt": func(_ *kubetest.ListServer, o *pullSecretsOptions) { o.Namespace = "team-b" },
		"forbidden.txt": func(l *kubetest.ListServer, _ *pullSecretsOptions) {
			for _, resource := range []string{"secrets", "cronjobs", "configmaps", "namespaces"} {
				l.Forbid[resource] = true
			}
		},
		"no-workloads.txt": func(l *kubetest.ListServer, o *pullSecretsOptions) {
			l.Forbid["cronjobs"], o.Namespace = true, "team-b"
		},
		"nothing.txt": func(l *kubetest.ListServer, o *pullSecretsOptions) {
			o.Registries = []string{"other.example.org"}
			l.Objects["secrets"] = nil
			l.Objects["serviceaccounts"] = nil
			l.Objects["pods"] = nil
			l.Objects["cronjobs"] = nil
			l.Objects["daemonsets"] = nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := kubetest.NewListServer(t)
			o := pullSecretsSite(t, l, "inCluster: true")
			change(l, &o)
			out := testkit.Value(runPullSecrets(t, o))(t)
			golden(t, name, out)
		})
	}
}

// Lines that the golden files do not contain.
func TestPullSecretsLines(t *testing.T) {
	t.Parallel()
	const tracking = "kube-apiserver-legacy-service-account-token-tracking"
	for name, test := range map[string]struct {
		change     func(*testing.T, *kubetest.ListServer, *pullSecretsOptions)
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
			change: func(t *testing.T, l *kubetest.ListServer, _ *pullSecretsOptions) {
				delete(l.Find(t, "namespaces", "team-a")["metadata"].(kubetest.Object), "labels")
			},
			want: []string{"2     policy first    team-a     CronJob nightly"},
		},
		"the annotation counts": {
			change: func(t *testing.T, l *kubetest.ListServer, _ *pullSecretsOptions) {
				l.Find(t, "serviceaccounts", "web")["metadata"].(kubetest.Object)["annotations"] = kubetest.Object{"pullpass.dev/repositories": "shared/other"}
			},
			want: []string{"2     policy first    team-a     CronJob nightly", "kubectl annotate serviceaccount web -n team-a --overwrite pullpass.dev/repositories='shared/other shared/base:pull'"},
		},
		"a deny rule": {
			change: func(t *testing.T, _ *kubetest.ListServer, o *pullSecretsOptions) {
				testkit.Write(t, filepath.Dir(o.config), "policy.yaml", pullSecretsPolicy+"deny: [{name: quarantine, subjects: [{namespaces: [team-a]}]}]\n")
			},
			want: []string{"2     policy first    team-a     Deployment api", "2     policy first    team-a     ServiceAccount default", "the deny rule quarantine refuses the ServiceAccount"},
		},
		"no ServiceAccount": {
			change: func(t *testing.T, l *kubetest.ListServer, _ *pullSecretsOptions) {
				l.Find(t, "serviceaccounts", "web")["metadata"].(kubetest.Object)["name"] = "renamed"
			},
			want: []string{"2     policy first    team-a     CronJob nightly", "shared/base: the ServiceAccount is not there"},
		},
		"a ServiceAccount pushes with it": {
			change: func(t *testing.T, l *kubetest.ListServer, _ *pullSecretsOptions) {
				l.Find(t, "serviceaccounts", "odd")["secrets"] = []kubetest.Object{{"name": "unused"}}
			},
			want: []string{"still used      team-b     Secret unused", "used by ServiceAccount odd"},
			not:  "team-b: Secret unused: delete it",
		},
		"no repository": {
			change: func(t *testing.T, l *kubetest.ListServer, _ *pullSecretsOptions) {
				l.Find(t, "pods", "alone")["spec"].(kubetest.Object)["containers"] = []kubetest.Object{{"name": "c", "image": "registry.example.com/Team/\x1b[2J"}}
			},
			want: []string{`"registry.example.com/Team/\x1b[2J": no registry can have such a repository`},
		},
		"a Secret that the kubelet cannot read": {
			change: func(t *testing.T, l *kubetest.ListServer, _ *pullSecretsOptions) {
				l.Find(t, "secrets", "both")["data"] = kubetest.Object{".dockercfg": base64.StdEncoding.EncodeToString([]byte("sekret"))}
			},
			want: []string{"3     ready           team-b     ServiceAccount default      both              the kubelet cannot read Secret both, and pulls nothing for pods that name it"},
			not:  "Secret both                 -",
		},
		"use is not tracked": {
			change: func(t *testing.T, l *kubetest.ListServer, _ *pullSecretsOptions) { l.Objects["configmaps"] = nil },
			want:   []string{"5     unknown         team-a     Secret default-token-x1", "does not say since when it tracks"},
		},
		"use is tracked for less than a year": {
			change: func(t *testing.T, l *kubetest.ListServer, _ *pullSecretsOptions) {
				l.Find(t, "configmaps", tracking)["data"] = kubetest.Object{"since": "2025-03-02"}
			},
			want: []string{"5     unknown         team-a     Secret default-token-x1", "not used since 2025-03-02"},
		},
		"a token used more than a year ago": {
			change: func(t *testing.T, l *kubetest.ListServer, _ *pullSecretsOptions) {
				l.Find(t, "secrets", "recent-token")["metadata"].(kubetest.Object)["labels"] = kubetest.Object{"kubernetes.io/legacy-token-last-used": "2025-02-28"}
			},
			want: []string{"4     ready           team-b     Secret recent-token"},
		},
		"a token that is a password for another registry": {
			change: func(t *testing.T, l *kubetest.ListServer, _ *pullSecretsOptions) {
				l.Find(t, "secrets", "hub")["data"] = kubetest.Object{".dockerconfigjson": base64.StdEncoding.EncodeToString(
					[]byte(`{"auths": {"quay.io": {"password": "` + kubetest.LegacyJWT("team-a", "default-token-x1") + `"}}}`))}
			},
			want: []string{"5     still used      team-a     Secret default-token-x1", "is the password of pull Secret team-a/hub"},
		},
		"a password that claims to be another Secret's token": {
			change: func(t *testing.T, l *kubetest.ListServer, _ *pullSecretsOptions) {
				l.Find(t, "secrets", "both")["data"] = kubetest.Object{".dockercfg": base64.StdEncoding.EncodeToString(
					[]byte(`{"registry.example.com": {"password": "` + kubetest.LegacyJWT("team-b", "sekret-name") + `"}}`))}
			},
			want: []string{"its password is a legacy ServiceAccount token", "4     ready           team-a     Secret default-token-x1"},
		},
		"a namespaced administrator": {
			change: func(t *testing.T, l *kubetest.ListServer, o *pullSecretsOptions) {
				o.Namespace, l.Forbid["issuer"], l.Forbid["configmaps"] = "team-a", true, true
			},
			want: []string{"not read: issuer: not allowed; the kubeconfig's user needs the verb \"get\" on \"/.well-known/openid-configuration\"", "not read: configmaps"},
			not:  "team-b",
		},
		"a template with Secrets of its own gets none of its ServiceAccount's": {
			change: func(_ *testing.T, l *kubetest.ListServer, _ *pullSecretsOptions) {
				l.Objects["deployments"] = append(l.Objects["deployments"], kubetest.Object{
					"metadata": kubetest.Object{"namespace": "team-a", "name": "apart", "uid": "d2"},
					"spec": kubetest.Object{"template": kubetest.Object{"spec": kubetest.Object{
						"imagePullSecrets": []kubetest.Object{{"name": "hub"}},
						"containers":       []kubetest.Object{{"name": "c", "image": "registry.example.com/secret/app"}},
					}}},
				})
			},
			want: []string{"3     ready           team-a     ServiceAccount default", "the workloads that use it (1)", "without imagePullSecrets: 1\n"},
			not:  "Deployment apart",
		},
		"workloads cannot be listed": {
			change: func(t *testing.T, l *kubetest.ListServer, _ *pullSecretsOptions) { l.Forbid["jobs"] = true },
			want:   []string{"3     unknown       team-a     ServiceAccount default", "who uses it is not known"},
		},
		"Secrets of the pull secrets controller": {
			change: func(t *testing.T, l *kubetest.ListServer, _ *pullSecretsOptions) {
				for _, name := range []string{"both", "regcred"} {
					l.Find(t, "secrets", name)["metadata"] = kubetest.Object{"namespace": "team-b", "name": "pullpass-pull-" + name,
						"labels":          kubetest.Object{"app.kubernetes.io/managed-by": "pullpass-pull-secrets"},
						"ownerReferences": []kubetest.Object{{"apiVersion": "v1", "kind": "ServiceAccount", "name": "both", "uid": "u"}}}
				}
				l.Find(t, "pods", "alone")["spec"].(kubetest.Object)["imagePullSecrets"] = []kubetest.Object{{"name": "pullpass-pull-both"}}
			},
			want: []string{"team-b     Secret pullpass-pull-regcred"}, // of another ServiceAccount
			not:  "Secret pullpass-pull-both",
		},
		"a ServiceAccount that no workload uses": {
			change: func(t *testing.T, l *kubetest.ListServer, _ *pullSecretsOptions) {
				l.Find(t, "serviceaccounts", "forgotten")["imagePullSecrets"] = []kubetest.Object{{"name": "regcred"}}
			},
			want: []string{"ServiceAccount forgotten    regcred           no workload uses it\n"},
		},
		"a workload that pulls nothing from the registry": {
			change: func(t *testing.T, l *kubetest.ListServer, _ *pullSecretsOptions) {
				l.Find(t, "pods", "alone")["spec"].(kubetest.Object)["containers"] = []kubetest.Object{{"name": "c", "image": "docker.io/library/busybox"}}
			},
			want: []string{"Pod alone                   both              through ServiceAccount default; pulls nothing from the registry now\n"},
		},
		"a workload without pods": {
			change: func(_ *testing.T, l *kubetest.ListServer, _ *pullSecretsOptions) { l.Objects["pods"] = nil },
			want:   []string{"Deployment api              regcred           through ServiceAccount default; the policy grants every image\n"},
		},
		"a workload that only mounts a token": {
			change: func(t *testing.T, l *kubetest.ListServer, _ *pullSecretsOptions) {
				spec := l.Find(t, "daemonsets", "agent")["spec"].(kubetest.Object)["template"].(kubetest.Object)["spec"].(kubetest.Object)
				delete(spec, "imagePullSecrets")
				spec["containers"] = []kubetest.Object{{"name": "c", "image": "docker.io/library/busybox"}}
			},
			want: []string{"containers get it: DaemonSet agent\n", "without imagePullSecrets: 0\n"},
			not:  "     DaemonSet agent  ",
		},
		"an index for a registry with a port": {
			change: func(t *testing.T, l *kubetest.ListServer, o *pullSecretsOptions) {
				o.Registries = append(o.Registries, "registry.example.com:5000")
			},
			want: []string{"Nodes registry.example.com:5000"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := kubetest.NewListServer(t)
			kubernetes := "inCluster: true"
			if test.change == nil {
				kubernetes = test.kubernetes
			}
			o := pullSecretsSite(t, l, kubernetes)
			if test.change != nil {
				test.change(t, l, &o)
			}
			out := testkit.Value(runPullSecrets(t, o))(t)
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
		change func(*kubetest.ListServer, *pullSecretsOptions)
		want   string
	}{
		"namespace":       {func(_ *kubetest.ListServer, o *pullSecretsOptions) { o.Namespace = "team-a/web" }, `--namespace "team-a/web" is not the name of a namespace`},
		"empty namespace": {func(_ *kubetest.ListServer, o *pullSecretsOptions) { o.Namespace = "team-c" }, "cannot get namespaces: the API server answers 404"},
		"a namespace without ServiceAccounts": {func(l *kubetest.ListServer, o *pullSecretsOptions) {
			l.Objects["serviceaccounts"], o.Namespace = nil, "team-a"
		}, "--namespace team-a has no ServiceAccount; is it a namespace of this cluster?"},
		"policy": {func(_ *kubetest.ListServer, o *pullSecretsOptions) {
			testkit.Write(t, filepath.Dir(o.config), "policy.yaml", "x: y")
		}, "policy.yaml"},
		"registry": {func(_ *kubetest.ListServer, o *pullSecretsOptions) {
			o.Registries = []string{"https://registry.example.com"}
		}, `--registry "https://registry.example.com" is not a registry's host`},
		"twice": {func(_ *kubetest.ListServer, o *pullSecretsOptions) {
			o.Registries = append(o.Registries, o.Registries...)
		}, "--registry registry.example.com is given twice"},
		"service":         {func(_ *kubetest.ListServer, o *pullSecretsOptions) { o.Service = "other" }, `--service "other" is not configured`},
		"cluster":         {func(_ *kubetest.ListServer, o *pullSecretsOptions) { o.Cluster = "other" }, `--cluster "other" is not configured`},
		"kubeconfig":      {func(_ *kubetest.ListServer, o *pullSecretsOptions) { o.Kubeconfig += "x" }, "--kubeconfig: open "},
		"another cluster": {func(l *kubetest.ListServer, _ *pullSecretsOptions) { l.Issuer = "https://other.example.com" }, `the API server issues tokens as "https://other.example.com", and the cluster of the configuration as "https://issuer.example.com"`},
		"pods":            {func(l *kubetest.ListServer, _ *pullSecretsOptions) { l.Forbid["pods"] = true }, `cannot list pods: not allowed; the kubeconfig's user needs the verb "list" on "pods"`},
		"accounts":        {func(l *kubetest.ListServer, _ *pullSecretsOptions) { l.Forbid["serviceaccounts"] = true }, "cannot list serviceaccounts: not allowed"},
		// A failed request never means that the object does not exist.
		"failing Secrets": {func(l *kubetest.ListServer, _ *pullSecretsOptions) {
			l.Status["secrets"] = http.StatusInternalServerError
		}, `cannot list secrets: the API server answers 500 "InternalError"`},
		"garbled Secrets": {func(l *kubetest.ListServer, _ *pullSecretsOptions) { l.Status["secrets"] = http.StatusOK }, "cannot list secrets: the answer cannot be read"},
		"expired":         {func(l *kubetest.ListServer, _ *pullSecretsOptions) { l.Status["pods"] = http.StatusGone }, "cannot list pods: "},
		"down":            {func(l *kubetest.ListServer, _ *pullSecretsOptions) { l.Close() }, "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := kubetest.NewListServer(t)
			o := pullSecretsSite(t, l, "inCluster: true")
			test.change(l, &o)
			out, err := runPullSecrets(t, o)
			if err == nil || !strings.Contains(err.Error(), test.want) || out != "" {
				t.Errorf("%v, want %q; output %q", err, test.want, out)
			}
		})
	}
}

// The serving proxy does not see the annotations of a cluster that it is not connected to, unless manifest files have them.
func TestAnnotationsOfAClusterThatIsNotConnected(t *testing.T) {
	t.Parallel()
	for kubernetes, want := range map[string]string{
		"":                           "2     policy first    team-a     CronJob nightly",
		"manifestFiles: [sa.json]":   "3     ready           team-a     CronJob nightly",
		"manifestFiles: [none.json]": "none.json: no such file or directory",
	} {
		l := kubetest.NewListServer(t)
		o := pullSecretsSite(t, l, kubernetes)
		dir := filepath.Dir(o.config)
		testkit.Write(t, dir, "policy.yaml", strings.Replace(pullSecretsPolicy, "namespaceSelector: tier=gold", "namespaces: [team-a]", 1))
		account := l.Find(t, "serviceaccounts", "web")
		text, err := json.Marshal(kubetest.Object{"apiVersion": "v1", "kind": "ServiceAccountList", "metadata": kubetest.Object{}, "items": []kubetest.Object{account}})
		testkit.Must(t, err)
		testkit.Write(t, dir, "sa.json", string(text))
		if out, err := runPullSecrets(t, o); !strings.Contains(out+fmt.Sprint(err), want) {
			t.Errorf("%q: no %q in\n%s%v", kubernetes, want, out, err)
		}
	}
}

// Objects of the cluster count as far as the configuration says, and are read with the rights of the kubeconfig's user.
func TestObjectsOfTheCluster(t *testing.T) {
	t.Parallel()
	policyObject := func(kind, namespace, name string, spec kubetest.Object) kubetest.Object {
		return kubetest.Object{"apiVersion": "pullpass.dev/v1beta1", "kind": kind, "metadata": kubetest.Object{"namespace": namespace, "name": name, "uid": name}, "spec": spec}
	}
	const all = "inCluster: true, objects: {policies: true, requests: true, within: [secret/**, asked/**]}"
	asks := strings.Replace(pullSecretsPolicy, "- name: gold", "- name: asks\n  subjects: [{namespaces: [team-b]}]\n  requests: true\n  allow: [{repositories: [\"**\"], actions: [pull]}]\n- name: gold", 1)
	denial := policyObject("AccessPolicy", "", "p", kubetest.Object{"deny": []kubetest.Object{{"name": "quarantine", "subjects": []kubetest.Object{{"namespaces": []string{"team-a"}}}}}})
	rule := policyObject("AccessPolicy", "", "p", kubetest.Object{"rules": []kubetest.Object{{"name": "r", "subjects": []kubetest.Object{{"namespaces": []string{"team-b"}}},
		"allow": []kubetest.Object{{"repositories": []string{"secret/**"}, "actions": []string{"pull"}}}}}})
	request := policyObject("RepositoryAccess", "team-b", "q", kubetest.Object{"serviceAccounts": []string{"default"}, "repositories": []string{"secret/app"}, "actions": []string{"pull"}})
	const granted, refused = "4     ready           team-b     Pod alone", "2     policy first    team-b     Pod alone"
	for name, test := range map[string]struct {
		kubernetes        string
		policies          []kubetest.Object
		requests          []kubetest.Object
		forbid, want, not string
	}{
		"a denial":                  {all, []kubetest.Object{denial}, nil, "", "the deny rule p/quarantine refuses the ServiceAccount", "ready           team-a     CronJob"},
		"a rule":                    {all, []kubetest.Object{rule}, nil, "", granted, refused},
		"a rule beyond the limit":   {strings.Replace(all, "secret/**", "other/**", 1), []kubetest.Object{rule}, nil, "", refused, granted},
		"a request":                 {all, nil, []kubetest.Object{request}, "", granted, refused},
		"policies do not count":     {strings.Replace(all, "policies: true", "policies: false", 1), []kubetest.Object{denial, rule}, nil, "accesspolicies", refused, "quarantine"},
		"requests do not count":     {strings.Replace(all, "requests: true", "requests: false", 1), nil, []kubetest.Object{request}, "repositoryaccesses", refused, granted},
		"policies cannot be listed": {all, []kubetest.Object{denial}, nil, "accesspolicies", `the kubeconfig's user needs the verb "list" on "accesspolicies"`, "proxy's"},
		"requests cannot be listed": {all, nil, []kubetest.Object{request}, "repositoryaccesses", `the kubeconfig's user needs the verb "list" on "accesspolicies" and "repositoryaccesses"`, "proxy's"},
		"no definitions":            {all, nil, nil, "", refused, granted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := kubetest.NewListServer(t)
			if name == "no definitions" {
				l.Status = map[string]int{"accesspolicies": http.StatusNotFound, "repositoryaccesses": http.StatusNotFound}
			}
			o := pullSecretsSite(t, l, test.kubernetes)
			testkit.Write(t, filepath.Dir(o.config), "policy.yaml", asks)
			l.Objects["accesspolicies"], l.Objects["repositoryaccesses"], l.Forbid[test.forbid] = test.policies, test.requests, true
			out, err := runPullSecrets(t, o)
			if all := fmt.Sprint(out, err); !strings.Contains(all, test.want) || strings.Contains(all, test.not) || (out == "") != (err != nil) {
				t.Errorf("want %q, not %q, in\n%s", test.want, test.not, all)
			}
		})
	}
}

// A registry's service is the one that --service names, or that has the registry's host, or the only one.
func TestServiceOfEachRegistry(t *testing.T) {
	t.Parallel()
	one, two := []config.Registry{{Service: "a.example.com"}}, []config.Registry{{Service: "a.example.com"}, {Service: "b.example.com"}}
	const hint = "--registry c.example.com is not a configured service, and there are several; name its own"
	for _, test := range []struct {
		registries          []config.Registry
		host, given         string
		want, fault, silent string
	}{
		{one, "c.example.com", "", "a.example.com", "", ""},
		{two, "b.example.com", "", "b.example.com", "", ""},
		{two, "b.example.com", "a.example.com", "a.example.com", "", ""},
		{two, "c.example.com", "", "", hint, ""},
		{two, "c.example.com", "d", "", `--service "d" is not configured`, hint},
	} {
		got, err := ServicesOf(&config.Config{Registries: test.registries}, []string{test.host}, test.given)
		if got[test.host] != test.want || (err == nil) != (test.fault == "") || err != nil && !strings.Contains(err.Error(), test.fault) || test.silent != "" && strings.Contains(err.Error(), test.silent) {
			t.Errorf("%s, --service %q: %v, error %v; want %q, %q", test.host, test.given, got, err, test.want, test.fault)
		}
	}
}

func TestHowReferencesAreRemoved(t *testing.T) {
	t.Parallel()
	const inTemplate, inCronJob = "/spec/template/spec/imagePullSecrets/0", "/spec/jobTemplate/spec/template/spec/imagePullSecrets/0"
	workload := func(kind string, isTemplate bool) pullsecrets.Workload {
		return pullsecrets.Workload{Key: pullsecrets.Key{Namespace: "team", Name: "app"}, Kind: kind, Template: isTemplate, Own: []string{"regcred"}}
	}
	made := workload("Deployment", true)
	made.Owner = pullsecrets.Owner{Kind: "Rollout", Name: "above"}
	for _, test := range []struct {
		w        pullsecrets.Workload
		do, path string
	}{
		{workload("Deployment", true), "remove it from its imagePullSecrets", inTemplate},
		{workload("StatefulSet", true), "remove it from its imagePullSecrets", inTemplate},
		{workload("DaemonSet", true), "remove it from its imagePullSecrets", inTemplate},
		{workload("ReplicaSet", true), "remove it from its imagePullSecrets", inTemplate},
		{workload("ReplicationController", true), "remove it from its imagePullSecrets", inTemplate},
		{workload("CronJob", true), "remove it from its imagePullSecrets", inCronJob},
		{made, "remove them from what makes it, or they come back: Rollout above", ""},
		{workload("Pod", false), "make the pod again, without imagePullSecrets: those of a pod cannot be changed", ""},
		{workload("Job", true), "nothing, if it ends by itself: make the next one without imagePullSecrets", ""},
		{workload("Deployment", false), "remove them from the pod template of Deployment app", ""}, // its own list is not known
		{workload("Rollout", true), "remove them from the pod template of Rollout app", ""},
	} {
		want := ""
		if test.path != "" {
			want = "kubectl --kubeconfig k -n team patch " + strings.ToLower(test.w.Kind) + ` app --type=json -p '[{"op":"test","path":"` + test.path + `/name","value":"regcred"},{"op":"remove","path":"` + test.path + `"}]'`
		}
		if do, command := (&Plan{options: Options{Kubeconfig: "k"}}).removeFromTemplate(test.w, []string{"regcred"}); do != test.do || command != want {
			t.Errorf("%s: %s: %s, want %s: %s", test.w.Kind, do, command, test.do, want)
		}
	}
}

func TestHowPodsAreRenewed(t *testing.T) {
	t.Parallel()
	workload := func(kind string, isTemplate bool, pods int) pullsecrets.Workload {
		return pullsecrets.Workload{Key: pullsecrets.Key{Namespace: "team", Name: "app"}, Kind: kind, Template: isTemplate, Pods: pods}
	}
	for _, test := range []struct {
		w           pullsecrets.Workload
		do, command string
	}{
		{workload("Deployment", true, 1), "restart it", "rollout restart deployment app"},
		{workload("StatefulSet", true, 1), "restart it", "rollout restart statefulset app"},
		{workload("DaemonSet", true, 1), "restart it", "rollout restart daemonset app"},
		{workload("Deployment", true, 0), "nothing: it has no pods, and its next ones have none", ""},
		{workload("Deployment", false, 1), "delete its pods one by one; it makes new ones", ""},
		{workload("Rollout", false, 1), "delete its pods one by one; it makes new ones", ""},
		{workload("CronJob", true, 1), "nothing: its next pods have none", ""},
		{workload("Job", true, 1), "nothing: its next pods have none", ""},
		{workload("Pod", false, 1), "make the pod again", ""},
	} {
		if test.command != "" {
			test.command = "kubectl --kubeconfig k -n team " + test.command
		}
		if do, command := (&Plan{options: Options{Kubeconfig: "k"}}).renewPods(test.w); do != test.do || command != test.command {
			t.Errorf("%+v: %s: %s, want %s: %s", test.w, do, command, test.do, test.command)
		}
	}
}

// A name that no object can have is in no command, whatever a shell makes of it.
func TestNamesThatNoCommandHas(t *testing.T) {
	t.Parallel()
	m := &Plan{options: Options{Kubeconfig: "k"}}
	for _, test := range []struct {
		namespace, name string
		valid           bool
	}{{"team", "app", true}, {"team", "$(reboot)", false}, {"$(reboot)", "app", false}} {
		key := pullsecrets.Key{Namespace: test.namespace, Name: test.name}
		_, remove := m.removeReferences("serviceaccount", key, "/imagePullSecrets", []string{"regcred"}, []string{"regcred"})
		_, renew := m.renewPods(pullsecrets.Workload{Key: key, Kind: "Deployment", Template: true, Pods: 1})
		_, drop := m.deleteSecret(key)
		for _, command := range []string{remove, renew, drop, m.markInvalid(key)} {
			if (command != "") != test.valid {
				t.Errorf("%+v: command %q", key, command)
			}
		}
	}
}

// A list without elements is written as one.
func TestJSONWithoutRows(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	testkit.Must(t, WriteJSON(&out, &Plan{}))
	if !strings.Contains(out.String(), `"rows": []`) {
		t.Error(out.String())
	}
}

// The command never requests values of tokens. It requests only the relevant ones of other Secrets,
// and changes nothing.
func TestPullSecretsAsksForLittle(t *testing.T) {
	t.Parallel()
	l := kubetest.NewListServer(t)
	testkit.Value(runPullSecrets(t, pullSecretsSite(t, l, "inCluster: true")))(t)
	for _, asked := range l.Asked {
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

// A shell parses every command as intended, whatever the name of the file.
func TestPullSecretsCommands(t *testing.T) {
	t.Parallel()
	l := kubetest.NewListServer(t)
	o := pullSecretsSite(t, l, "inCluster: true")
	renamed := filepath.Join(filepath.Dir(o.Kubeconfig), "it's $(here) & there")
	testkit.Must(t, os.Rename(o.Kubeconfig, renamed))
	o.Kubeconfig = renamed
	out := testkit.Value(runPullSecrets(t, o))(t)
	commands := 0
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "    kubectl ") {
			continue
		}
		commands++
		got := testkit.Value(exec.CommandContext(t.Context(), "sh", "-c", `kubectl() { printf '%s\n' "$@"; }`+"\n"+line).CombinedOutput())(t)
		args := strings.Split(strings.TrimSuffix(string(got), "\n"), "\n")
		if args[0] != "--kubeconfig" || args[1] != "it's $(here) & there" || args[2] != "-n" || len(args) < 7 {
			t.Errorf("%s: %q", line, args)
		}
		if args[4] != "patch" {
			continue
		}
		var patch []struct{ Op, Path, Value string }
		testkit.Must(t, json.Unmarshal([]byte(args[len(args)-1]), &patch))
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
