package privilegetest

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/testenv"
)

var update = flag.Bool("update", false, "write testdata")

const inParallel = 8

// TestPrivileges compares what each ServiceAccount can do with testdata/chart.txt and testdata/manifests.txt.
func TestPrivileges(t *testing.T) {
	for name, manifest := range map[string]func(*testing.T) string{"chart": chart, "manifests": manifests} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startSite(t, manifest)
			s.CreateNamespace(t, "nobody", nil)
			s.CreateServiceAccount(t, "nobody", "nobody", nil)
			accounts := s.accounts(t)
			var got strings.Builder
			got.WriteString("# What an attacker can do with the token of each ServiceAccount, beyond what every ServiceAccount can.\n")
			nobody := s.attack(t, "nobody", "nobody", "", nil)
			for _, account := range accounts {
				fmt.Fprintf(&got, "\n%s\n", account)
				namespace, name, _ := strings.Cut(account, "/")
				for _, line := range s.attack(t, namespace, name, "own", nobody) {
					fmt.Fprintf(&got, "  %s\n", line)
				}
			}
			file := "testdata/" + name + ".txt"
			if *update {
				testenv.Must(t, os.WriteFile(file, []byte(got.String()), 0o644))
				return
			}
			want := testenv.ReadFile(t, file)
			if got.String() != want {
				t.Errorf("privileges are different; see it with git diff after: go test ./privilegetest -update\n%s", difference(want, got.String()))
			}
		})
	}
}

func difference(want, got string) string {
	var lines []string
	had, has := strings.Split(want, "\n"), strings.Split(got, "\n")
	for _, line := range had {
		if !slices.Contains(has, line) {
			lines = append(lines, "-"+line)
		}
	}
	for _, line := range has {
		if !slices.Contains(had, line) {
			lines = append(lines, "+"+line)
		}
	}
	return strings.Join(lines, "\n")
}

// accounts are those that were applied, as NAMESPACE/NAME.
func (s *site) accounts(t testing.TB) (all []string) {
	t.Helper()
	for _, item := range s.Get(t, "/api/v1/serviceaccounts")["items"].([]any) {
		if o := cluster.Object(item.(map[string]any)); o.Name() != "default" && o.Name() != "nobody" && strings.HasPrefix(o.Namespace(), "pullpass") {
			all = append(all, o.Namespace()+"/"+o.Name())
		}
	}
	slices.Sort(all)
	if len(all) < 2 {
		t.Fatalf("ServiceAccounts %q", all)
	}
	return all
}

// attack returns what an attacker with a ServiceAccount can do, but for what is in others. With a node, its token is of a pod there.
func (s *site) attack(t *testing.T, namespace, name, node string, others []string) []string {
	t.Helper()
	s.populate(t)
	defer s.remove(t)
	request := cluster.TokenRequest{Namespace: namespace, ServiceAccount: name}
	if node != "" {
		pod := s.CreatePod(t, namespace, "attacker", name, node)
		defer s.Delete(t, cluster.PodPath(pod))
		request.Bound = &cluster.Bound{Kind: "Pod", Name: pod.Name(), UID: pod.UID()}
	}
	a := &attacker{site: s, name: name, token: s.Token(t, request), read: map[string]map[string]bool{}, changed: map[string]map[string]bool{}}
	a.awaitPolicies(t)
	a.before = s.snapshot(t)
	lines := a.rules(t)
	a.requests(t)
	a.patches(t)
	a.updates(t)
	lines = append(lines, a.creations(t)...)
	lines = append(lines, a.reads()...)
	after := s.snapshot(t)
	lines = append(lines, a.changes(after)...)
	for id := range after {
		if a.before[id] == nil { // so that the next one can make it
			kind, full, _ := strings.Cut(id, " ")
			namespace, name, _ := strings.Cut(full, "/")
			s.Delete(t, s.resource(t, kind).path(namespace, name))
		}
	}
	return slices.DeleteFunc(lines, func(line string) bool { return slices.Contains(others, line) })
}

// awaitPolicies waits until the admission policies for the attacker count.
func (a *attacker) awaitPolicies(t testing.TB) {
	t.Helper()
	var probe func() (int, string)
	switch a.name {
	case "pullpass-pull-secrets":
		probe = func() (int, string) {
			return a.do(t, "create", http.MethodPost, "/api/v1/namespaces/foreign/secrets?dryRun=All", "application/json", cluster.Object{"metadata": cluster.Object{"name": "x"}})
		}
	case "pullpass-node-install":
		probe = func() (int, string) {
			return a.do(t, "patch", http.MethodPatch, "/api/v1/nodes/other?dryRun=All", "application/merge-patch+json", cluster.Object{"metadata": cluster.Object{"labels": cluster.Object{"a": "b"}}})
		}
	default:
		return
	}
	var status int
	var answer string
	if !testenv.Poll(time.Minute, func() bool { status, answer = probe(); return status == http.StatusUnprocessableEntity }) {
		t.Fatalf("the policy does not count: %d %s", status, answer)
	}
}

// parallel does what is in the list, some at a time.
func parallel[T any](list []T, do func(T)) {
	next := make(chan T)
	var working sync.WaitGroup
	for range inParallel {
		working.Go(func() {
			for one := range next {
				do(one)
			}
		})
	}
	for _, one := range list {
		next <- one
	}
	close(next)
	working.Wait()
}

// rules are those that the API server reports, and two other rights: addresses that are not resources, and
// impersonation.
func (a *attacker) rules(t *testing.T) (lines []string) {
	where := map[string][]string{}
	for _, namespace := range namespaces {
		_, answer := a.do(t, "create", http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", "application/json", object{"spec": object{"namespace": namespace}})
		var review struct {
			Status struct {
				ResourceRules []struct{ Verbs, APIGroups, Resources, ResourceNames []string }
			}
		}
		testenv.Must(t, json.Unmarshal([]byte(answer), &review))
		for _, rule := range review.Status.ResourceRules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						what := strings.TrimSpace("may " + verb + " " + strings.TrimSuffix(resource+"."+group, ".") + " " + strings.Join(rule.ResourceNames, " "))
						where[what] = append(where[what], namespace)
					}
				}
			}
		}
	}
	for what, in := range where {
		lines = append(lines, what+scope(in))
	}
	for _, path := range []string{"/api", "/apis", "/version", "/healthz", "/livez", "/readyz", "/metrics", "/metrics/slis", "/logs/", "/debug/pprof/", "/debug/api_priority_and_fairness/dump_requests", "/configz", "/flagz", "/statusz",
		"/openapi/v2", "/openapi/v3", "/openid/v1/jwks", "/.well-known/openid-configuration"} {
		if status, _ := a.do(t, "get", http.MethodGet, path, "", nil); status != http.StatusForbidden && status != http.StatusNotFound {
			lines = append(lines, "may get "+path)
		}
	}
	for header, value := range map[string]string{"Impersonate-User": "admin", "Impersonate-Group": "system:masters"} {
		if status, _ := a.impersonate(t, header, value); status != http.StatusForbidden {
			lines = append(lines, "may be "+value)
		}
	}
	slices.Sort(lines)
	return lines
}

// requests reads and deletes, in all forms. Deletions are dry runs: the deleted object can be in the answer.
func (a *attacker) requests(t *testing.T) {
	seen := map[string]bool{}
	parallel(a.victims, func(v *victim) {
		path, collection := v.resource.path(v.namespace, v.name), v.resource.path(v.namespace, "")
		for _, query := range []string{"", "?pretty=true"} {
			a.do(t, "get", http.MethodGet, path+query, "", nil)
			a.do(t, "get", http.MethodGet, path+"/status"+query, "", nil)
		}
		a.do(t, "delete", http.MethodDelete, path+"?dryRun=All", "application/json", object{"preconditions": object{"uid": "x"}})
		a.do(t, "delete", http.MethodDelete, path+"?dryRun=All", "application/json", object{})
		a.mu.Lock()
		isNew := !seen[collection]
		seen[collection] = true
		a.mu.Unlock()
		if isNew {
			a.do(t, "list", http.MethodGet, collection, "", nil)
			a.do(t, "list", http.MethodGet, collection+"?fieldSelector=metadata.name%3D"+v.name, "", nil)
			a.do(t, "watch", http.MethodGet, collection+"?watch=true&timeoutSeconds=1", "", nil)
			a.do(t, "deletecollection", http.MethodDelete, collection+"?dryRun=All", "application/json", nil)
		}
	})
}

func (a *attacker) impersonate(t testing.TB, header, value string) (int, error) {
	t.Helper()
	req := testenv.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, a.Issuer+"/api", nil))(t)
	req.Header.Set("Authorization", "Bearer "+a.token)
	req.Header.Set("Impersonate-User", "somebody")
	req.Header.Set(header, value)
	resp := testenv.Value(a.client.Do(req))(t)
	return resp.StatusCode, resp.Body.Close()
}

// pointers are the JSON pointers (RFC 6901) to everything in an object.
func pointers(prefix string, value any) (all []string) {
	escape := strings.NewReplacer("~", "~0", "/", "~1")
	switch value := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			if prefix == "/metadata" && key == "managedFields" {
				continue
			}
			pointer := prefix + "/" + escape.Replace(key)
			all = append(append(all, pointer), pointers(pointer, value[key])...)
		}
	case []any:
		for i := range value {
			pointer := fmt.Sprint(prefix, "/", i)
			all = append(append(all, pointer), pointers(pointer, value[i])...)
		}
	}
	return all
}

// where a value is not valid: the error tells it.
var targets = []string{"/metadata/name", "/metadata/uid", "/metadata/resourceVersion", "/metadata/labels", "/metadata/labels/a", "/metadata/finalizers", "/kind", "/apiVersion", "/type", "/immutable", "/spec", "/status", "/data"}

// patches tries each form of a patch on each victim: to be told what is in it, and to change it.
func (a *attacker) patches(t *testing.T) {
	parallel(a.victims, func(v *victim) {
		for _, sub := range []string{"", "/status"} {
			path := v.resource.path(v.namespace, v.name) + sub
			if status, answer := a.do(t, "patch", http.MethodPatch, path+"?dryRun=All", "application/merge-patch+json", "{}"); isForbidden(status, answer) || status == http.StatusNotFound {
				continue
			}
			send := func(contentType, query string, body any) {
				if status, _ := a.do(t, "patch", http.MethodPatch, path+"?"+query, contentType, body); status == http.StatusOK && !strings.Contains(query, "dryRun") {
					a.compare(t, v)
				}
			}
			type operation map[string]any
			whole := a.Get(t, v.resource.path(v.namespace, v.name))
			all := pointers("", object(whole))
			for _, from := range all {
				if strings.Contains(from, "canary") || strings.Contains(from, "docker") || from == "/data" || from == "/message" || strings.HasPrefix(from, "/spec") {
					for _, to := range targets {
						send("application/json-patch+json", "dryRun=All", []operation{{"op": "copy", "from": from, "path": to}})
					}
					send("application/json-patch+json", "dryRun=All", []operation{{"op": "move", "from": from, "path": "/metadata/name"}})
					send("application/json-patch+json", "dryRun=All", []operation{{"op": "test", "path": from, "value": "x"}})
				}
			}
			for _, from := range all {
				send("application/json-patch+json", "", []operation{{"op": "remove", "path": from}})
				for _, value := range []any{"attacked", object{}} {
					send("application/json-patch+json", "", []operation{{"op": "replace", "path": from, "value": value}})
				}
			}
			for _, change := range v.additions() {
				for _, query := range []string{"dryRun=All", ""} {
					for _, contentType := range []string{"application/merge-patch+json", "application/strategic-merge-patch+json"} {
						send(contentType, query, change)
					}
					applied := merged(object{"apiVersion": whole["apiVersion"], "kind": whole["kind"], "metadata": object{"name": v.name}}, change)
					send("application/apply-patch+yaml", query+"&force=true&fieldManager=attacker", applied)
				}
			}
		}
	})
}

type object = map[string]any

// additions are changes of objects of many kinds.
var additions = []object{
	{},
	{"metadata": object{"labels": object{"attacked": "x"}}},
	{"metadata": object{"labels": object{"attacked": "not valid"}}},
	{"metadata": object{"labels": object{"pullpass.dev/pull-secrets": "enabled"}}},
	{"metadata": object{"labels": object{"pullpass.dev/node-install": "x"}}},
	{"metadata": object{"annotations": object{"attacked": "x"}}},
	{"metadata": object{"annotations": object{"pullpass.dev/node-install": "x"}}},
	{"metadata": object{"annotations": object{"pullpass.dev/stopped": `{"node":"own","uid":"x"}`}}},
	{"metadata": object{"finalizers": []any{"attacked.example.com/x"}}},
	{"metadata": object{"ownerReferences": []any{object{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "b"}}}},
	{"metadata": object{"uid": "another"}},
	{"metadata": object{"resourceVersion": "1"}},
	{"type": "kubernetes.io/tls"},
	{"type": ""},
	{"data": object{}},
	{"data": object{"attacked": "eA=="}},
	{"data": object{"attacked": "not base64"}},
	{"stringData": object{"attacked": "x"}},
	{"message": "attacked"},
	{"involvedObject": object{"kind": "Node", "name": "own"}, "message": "attacked"},
	{"spec": object{"unschedulable": true}},
	{"spec": object{"taints": []any{}}},
	{"spec": object{"taints": []any{object{"key": "attacked", "effect": "NoExecute"}}}},
	{"spec": object{"providerID": "attacked"}},
	{"spec": object{"podCIDR": "10.9.0.0/24", "podCIDRs": []any{"10.9.0.0/24"}}},
	{"spec": object{"holderIdentity": ""}},
	{"spec": object{"holderIdentity": "own/uid"}},
	{"spec": object{"holderIdentity": "own/uid", "renewTime": "2099-01-01T00:00:00.000000Z"}},
	{"spec": object{"holderIdentity": "third/uid"}},
	{"status": object{"attacked": true}},
	{"status": object{"conditions": []any{}}},
	{"status": object{"repositories": []any{}}},
	{"secrets": []any{object{"name": "attacked"}}},
	{"imagePullSecrets": []any{object{"name": "attacked"}}},
	{"immutable": true}, // last: nothing can be changed then
}

// additions are those for the kind of a victim.
func (v *victim) additions() (of []object) {
	keys := map[string]string{"secrets": "type immutable data stringData", "configmaps": "data", "events": "message involvedObject", "nodes": "spec", "leases": "spec", "serviceaccounts": "secrets imagePullSecrets"}[v.resource.name]
	for _, change := range additions {
		fits := true
		for key := range change {
			fits = fits && (key == "metadata" || key == "status" && keys == "" || slices.Contains(strings.Fields(keys), key))
		}
		if fits {
			of = append(of, change)
		}
	}
	return of
}

// updates replaces each victim with a changed object, with an empty one, and with an invalid one.
func (a *attacker) updates(t *testing.T) {
	parallel(a.victims, func(v *victim) {
		for _, sub := range []string{"", "/status"} {
			path := v.resource.path(v.namespace, v.name) + sub
			if status, answer := a.do(t, "update", http.MethodPut, path+"?dryRun=All", "application/json", "{}"); isForbidden(status, answer) || status == http.StatusNotFound {
				continue
			}
			whole := object(a.Get(t, v.resource.path(v.namespace, v.name)))
			bare := object{"apiVersion": whole["apiVersion"], "kind": whole["kind"], "metadata": object{"name": v.name}}
			// As the controllers of the chart write their own.
			own := object{"type": "kubernetes.io/dockerconfigjson", "data": object{".dockerconfigjson": "e30="}, "metadata": object{"name": v.name, "labels": object{"app.kubernetes.io/managed-by": "pullpass-pull-secrets"},
				"ownerReferences": []any{object{"apiVersion": "v1", "kind": "ServiceAccount", "name": strings.TrimPrefix(v.name, "pullpass-pull-"), "uid": a.uid(t, v)}}}}
			for _, base := range []object{bare, without(whole), own} {
				for i, change := range v.additions() {
					for _, query := range []string{"?dryRun=All", ""}[min(i, 1):] {
						body := merged(base, change)
						if v.resource.name == "leases" { // there is no update without
							body["metadata"].(object)["resourceVersion"] = a.Get(t, v.resource.path(v.namespace, v.name)).Text("metadata", "resourceVersion")
						}
						if status, _ := a.do(t, "update", http.MethodPut, path+query, "application/json", body); status == http.StatusOK && query == "" {
							a.compare(t, v)
						}
					}
				}
				for _, contentType := range []string{"application/yaml", "application/json"} {
					text := testenv.Value(json.Marshal(base))(t)
					a.do(t, "update", http.MethodPut, path+"?fieldValidation=Strict&pretty=true", contentType, string(text))
				}
			}
		}
	})
}

// uid is that of the ServiceAccount whose Secret the victim is, or seems to be.
func (a *attacker) uid(t testing.TB, v *victim) string {
	t.Helper()
	for _, other := range a.victims {
		if other.resource.name == "serviceaccounts" && other.namespace == v.namespace && "pullpass-pull-"+other.name == v.name {
			return other.made.UID()
		}
	}
	return "x"
}

// without is an object without what an attacker cannot know: its canaries, and its version.
func without(o object) object {
	text, _ := json.Marshal(o)
	var c object
	_ = json.Unmarshal(text, &c)
	metadata := c["metadata"].(map[string]any)
	delete(metadata, "resourceVersion")
	delete(metadata, "managedFields")
	delete(metadata, "annotations")
	delete(c, "data")
	if _, ok := c["message"]; ok {
		c["message"] = "attacked"
	}
	return c
}

func merged(base, change object) object {
	out := maps.Clone(base)
	for key, value := range change {
		if inner, ok := value.(map[string]any); ok {
			was, _ := out[key].(map[string]any)
			out[key] = merged(was, inner)
			continue
		}
		if out == nil {
			out = object{}
		}
		out[key] = value
	}
	return out
}

// creations makes what would give more: Secrets, tokens, events, Leases.
func (a *attacker) creations(t *testing.T) (lines []string) {
	const pull = "pull.registry.example.com"
	for _, namespace := range namespaces {
		in := "/api/v1/namespaces/" + namespace
		for _, account := range []string{"web", "out"} {
			secret := ""
			if account == "web" {
				secret = a.Get(t, in+"/secrets/pullpass-pull-web").UID()
			}
			for _, audience := range []string{a.Issuer, pull} {
				for bound, to := range map[string]object{"nothing": nil, "its Secret": {"apiVersion": "v1", "kind": "Secret", "name": "pullpass-pull-" + account, "uid": secret},
					"a pod": {"apiVersion": "v1", "kind": "Pod", "name": "canary", "uid": a.Get(t, in+"/pods/canary").UID()}} {
					spec := object{"audiences": []string{audience}, "expirationSeconds": 3600}
					if to != nil {
						spec["boundObjectRef"] = to
					}
					if status, _ := a.do(t, "create", http.MethodPost, in+"/serviceaccounts/"+account+"/token", "application/json", object{"spec": spec}); status == http.StatusCreated {
						lines = append(lines, fmt.Sprintf("has a token of %s/%s for %s, bound to %s", namespace, account, strings.Replace(audience, a.Issuer, "the API server", 1), bound))
					}
				}
			}
		}
		create := func(collection string, o object) {
			a.do(t, "create", http.MethodPost, collection, "application/json", o)
		}
		named := func(name string) object { return object{"name": name} }
		create(in+"/secrets", object{"metadata": named("made")})
		create(in+"/secrets", object{"metadata": object{"name": "made-token", "annotations": object{"kubernetes.io/service-account.name": "web"}}, "type": "kubernetes.io/service-account-token"})
		for _, account := range []string{"new", "out"} {
			v := &victim{namespace: namespace, name: "pullpass-pull-" + account}
			create(in+"/secrets", object{"type": "kubernetes.io/dockerconfigjson", "data": object{".dockerconfigjson": "e30="}, "metadata": object{"name": v.name, "labels": object{"app.kubernetes.io/managed-by": "pullpass-pull-secrets"},
				"ownerReferences": []any{object{"apiVersion": "v1", "kind": "ServiceAccount", "name": account, "uid": a.uid(t, v)}}}})
		}
		create(in+"/configmaps", object{"metadata": named("made")})
		create(in+"/serviceaccounts", object{"metadata": named("made")})
		create(in+"/pods", object{"metadata": named("made"), "spec": object{"serviceAccountName": "web", "containers": []any{object{"name": "c", "image": "a"}}}})
		for _, about := range []object{{"kind": "Node", "name": "own"}, {"kind": "Node", "name": "other"}, {"kind": "Pod", "name": "canary", "namespace": namespace}} {
			create(in+"/events", object{"metadata": named(strings.ToLower(fmt.Sprint("made-", about["kind"], "-", about["name"]))), "involvedObject": about, "message": "made", "reason": "A", "type": "Normal"})
		}
		leases := "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases"
		for _, name := range []string{"made", "pullpass-node-install", "pullpass-pull-secrets"} {
			create(leases, object{"metadata": named(name), "spec": object{"holderIdentity": "own/uid"}})
		}
	}
	slices.Sort(lines)
	return lines
}

// reads says of which victims canaries were in the answers, by which verbs. Names are said where rights are for names.
func (a *attacker) reads() (lines []string) {
	verbs, where := map[string]map[string]bool{}, map[string][]string{} // by kind, or kind and name
	for _, v := range a.victims {
		what := v.resource.String()
		if strings.HasPrefix(what, "secrets") || strings.HasPrefix(what, "leases") || strings.HasPrefix(what, "configmaps") {
			what += " " + v.name
		}
		if seen := a.read[v.String()]; seen != nil {
			if verbs[what] == nil {
				verbs[what] = map[string]bool{}
			}
			maps.Copy(verbs[what], seen)
			where[what] = append(where[what], v.namespace)
		}
	}
	for what, in := range where {
		lines = append(lines, "reads "+what+" by "+strings.Join(slices.Sorted(maps.Keys(verbs[what])), ", ")+scope(in))
	}
	slices.Sort(lines)
	return lines
}

func scope(in []string) string {
	slices.Sort(in)
	in = slices.Compact(in)
	switch {
	case len(in) == 1 && in[0] == "":
		return ""
	case len(in) == len(namespaces):
		return " everywhere"
	}
	return " in " + strings.Join(in, ", ")
}

// snapshot is all that could have been changed: values by pointers, by objects.
func (s *site) snapshot(t testing.TB) map[string]map[string]string {
	t.Helper()
	all := map[string]map[string]string{}
	for _, name := range []string{"nodes", "namespaces", "secrets", "configmaps", "serviceaccounts", "pods", "events", "leases.coordination.k8s.io", "accesspolicies.pullpass.dev", "repositoryaccesses.pullpass.dev"} {
		for _, item := range s.Get(t, s.resource(t, name).path("", ""))["items"].([]any) {
			o := item.(map[string]any)
			id := name + " " + strings.TrimPrefix(cluster.Object(o).Namespace()+"/"+cluster.Object(o).Name(), "/")
			if strings.HasSuffix(id, "/attacker") || strings.Contains(id, " kube-") {
				continue
			}
			all[id] = map[string]string{}
			flatten("", o, all[id])
		}
	}
	return all
}

func flatten(prefix string, value any, into map[string]string) {
	switch value := value.(type) {
	case map[string]any:
		for key, v := range value {
			switch prefix + "/" + key {
			case "/apiVersion", "/kind", "/metadata/managedFields", "/metadata/resourceVersion", "/metadata/generation":
			default:
				flatten(prefix+"/"+key, v, into)
			}
		}
	default:
		text, _ := json.Marshal(value)
		into[prefix] = string(text)
	}
}

// compare notes which fields of a victim are not as they were.
func (a *attacker) compare(t testing.TB, v *victim) {
	t.Helper()
	now := map[string]string{}
	flatten("", map[string]any(a.Get(t, v.resource.path(v.namespace, v.name))), now)
	a.mu.Lock()
	defer a.mu.Unlock()
	id := v.String()
	if a.changed[id] == nil {
		a.changed[id] = map[string]bool{}
	}
	for _, values := range []map[string]string{now, a.before[id]} {
		for pointer := range values {
			if now[pointer] != a.before[id][pointer] {
				a.changed[id][field(pointer)] = true
			}
		}
	}
}

// changes says which fields of which objects could be changed, and which objects are new or gone.
func (a *attacker) changes(after map[string]map[string]string) (lines []string) {
	where := map[string][]string{}
	add := func(verb, id, fields string) {
		kind, full, _ := strings.Cut(id, " ")
		namespace, name, ok := strings.Cut(full, "/")
		if !ok {
			namespace, name = "", full
		}
		what := strings.TrimSpace(fmt.Sprintf("%s %s %s %s", verb, kind, name, fields))
		where[what] = append(where[what], namespace)
	}
	for id, fields := range a.changed {
		if len(fields) > 0 {
			add("changes", id, "("+strings.Join(slices.Sorted(maps.Keys(fields)), " ")+")")
		}
	}
	for id := range after {
		if a.before[id] == nil {
			add("makes", id, "")
		}
	}
	for id := range a.before {
		if after[id] == nil {
			add("deletes", id, "")
		}
	}
	for what, in := range where {
		lines = append(lines, what+scope(in))
	}
	slices.Sort(lines)
	return lines
}

// field is the first two parts of a pointer: enough to say what is changed.
func field(pointer string) string {
	parts := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	return strings.Join(parts[:min(2, len(parts))], ".")
}
