package pullsecretstest

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// TestPolicies sends the requests of an attacker with the controller's token to a real API server.
func TestPolicies(t *testing.T) {
	t.Parallel()
	s := startSite(t)
	s.CreateNamespace(t, "team-a", optedIn)
	s.CreateNamespace(t, "team-b", nil)
	web := s.account(t, "team-a", "web", true)
	plain := s.account(t, "team-a", "plain", false)
	other := s.account(t, "team-b", "web", true)

	t.Run("pods", func(t *testing.T) { s.testPods(t) })
	t.Run("refused", func(t *testing.T) { s.testRefused(t, web, plain, other) })
	t.Run("kept", func(t *testing.T) { s.testKept(t, web) })
	s.saw(t, "all of it")
}

// testPods: the name is on pods of those who opted in, and on no others.
func (s *site) testPods(t *testing.T) {
	s.CreateServiceAccount(t, "team-b", "plain", nil)
	for n, test := range []struct {
		namespace, account string
		own, want          []string
	}{
		{"team-a", "web", nil, []string{prefix + "web"}},
		{"team-a", "web", []string{"mine"}, []string{"mine", prefix + "web"}},
		{"team-a", "web", []string{prefix + "web"}, []string{prefix + "web"}},
		{"team-a", "plain", nil, nil},
		{"team-b", "web", nil, nil},
		{"team-b", "plain", []string{"mine"}, []string{"mine"}},
	} {
		got := pullSecrets(s.pod(t, test.namespace, fmt.Sprint("pod-", n), test.account, test.own...))
		if !reflect.DeepEqual(got, test.want) {
			t.Errorf("a pod of %s/%s with %q has %q, want %q", test.namespace, test.account, test.own, got, test.want)
		}
	}
	// The pull secrets of the ServiceAccount stay, since an earlier admission plugin copies them. Its watch sees changes a little later.
	s.Patch(t, "/api/v1/namespaces/team-a/serviceaccounts/web", cluster.Object{"imagePullSecrets": []cluster.Object{{"name": "old"}}})
	before, want := []string{prefix + "web"}, []string{"old", prefix + "web"}
	got := before
	for n, until := 0, time.Now().Add(time.Minute); reflect.DeepEqual(got, before) && time.Now().Before(until); n++ {
		got = pullSecrets(s.pod(t, "team-a", fmt.Sprint("pod-old-", n), "web"))
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("a pod has %q, want %q", got, want)
	}
}

func (s *site) testRefused(t *testing.T, web, plain, other cluster.Object) {
	token := s.token(t, s.access)
	secret := func(account cluster.Object, changes ...func(cluster.Object)) cluster.Object {
		o := cluster.Object{"type": "kubernetes.io/dockerconfigjson", "apiVersion": "v1", "kind": "Secret",
			"metadata": cluster.Object{"name": prefix + account.Name(), "labels": cluster.Object{"app.kubernetes.io/managed-by": controller},
				"ownerReferences": []cluster.Object{{"apiVersion": "v1", "kind": "ServiceAccount", "name": account.Name(), "uid": account.UID()}}},
			"data": cluster.Object{".dockerconfigjson": base64.StdEncoding.EncodeToString([]byte(`{"auths":{}}`))},
		}
		for _, change := range changes {
			change(o)
		}
		return o
	}
	metadata := func(field string, value any) func(cluster.Object) {
		return func(o cluster.Object) { o["metadata"].(cluster.Object)[field] = value }
	}
	// Secrets of others: one with a name that the controller would choose, and one with a different name.
	foreign := s.Create(t, "/api/v1/namespaces/team-a/secrets", cluster.Object{"metadata": cluster.Object{"name": prefix + "theirs"},
		"type": "kubernetes.io/dockerconfigjson", "stringData": cluster.Object{".dockerconfigjson": `{"auths":{"registry.example.com":{"username":"u","password":"sekret"}}}`}})
	s.Create(t, "/api/v1/namespaces/team-a/secrets", cluster.Object{"metadata": cluster.Object{"name": "database"}, "stringData": cluster.Object{"password": "sekret"}})
	theirs := s.account(t, "team-a", "theirs", true)

	const secrets, accounts = "/api/v1/namespaces/team-a/secrets", "/api/v1/namespaces/team-a/serviceaccounts/"
	mine := func(dryRun bool) string {
		path := secrets + "/" + prefix + "web?fieldManager=" + controller
		if dryRun {
			path += "&dryRun=All"
		}
		return path
	}
	if status, body := s.As(t, token, http.MethodPost, secrets, secret(web)); status != http.StatusCreated {
		t.Fatalf("the controller cannot make its Secret: %d %s", status, body)
	}
	// Others may change the reference to the owner. The controller must still see and restore the Secret.
	s.Patch(t, secrets+"/"+prefix+"web", cluster.Object{"metadata": cluster.Object{"ownerReferences": []cluster.Object{{"apiVersion": "v1", "kind": "ServiceAccount", "name": "web", "uid": web.UID(), "controller": true, "blockOwnerDeletion": true}}}})
	made := s.Get(t, secrets+"/"+prefix+"web")
	request := func(account, secretName, uid string, changes ...func(spec cluster.Object)) cluster.Object {
		spec := cluster.Object{"audiences": []string{audience}, "expirationSeconds": 3600,
			"boundObjectRef": cluster.Object{"kind": "Secret", "apiVersion": "v1", "name": secretName, "uid": uid}}
		for _, change := range changes {
			change(spec)
		}
		return cluster.Object{"metadata": cluster.Object{"uid": account}, "spec": spec}
	}
	with := func(field string, value any) func(cluster.Object) {
		return func(spec cluster.Object) {
			if value == nil {
				delete(spec, field)
				return
			}
			spec[field] = value
		}
	}
	good := func(changes ...func(cluster.Object)) cluster.Object {
		return request(web.UID(), prefix+"web", made.UID(), changes...)
	}
	bound := func(kind, name, uid string) func(cluster.Object) {
		return with("boundObjectRef", cluster.Object{"kind": kind, "apiVersion": "v1", "name": name, "uid": uid})
	}
	pod := s.pod(t, "team-a", "pod-bound", "web")

	const (
		optIn, notOptedIn  = "the namespace has not opted in", "the ServiceAccount has not opted in"
		either             = " has not opted in" // two policies refuse it, and either comes first
		notOurs, notTheirs = "the Secret is not one of a ServiceAccount", "the Secret belongs to another program"
		notBound           = "not bound to the Secret of its ServiceAccount"
		noRight            = "cannot "
	)
	for _, test := range []struct {
		name, method, path string
		body               any
		status             int
		says               string
	}{
		{"a token as it should be", "POST", accounts + "web/token", good(), 201, `"token":`},
		{"a token for the API server", "POST", accounts + "web/token", good(with("audiences", []string{s.Issuer})), 422, "another audience"},
		{"a token for the API server, by default", "POST", accounts + "web/token", good(with("audiences", nil)), 422, "another audience"},
		{"a token for two", "POST", accounts + "web/token", good(with("audiences", []string{audience, s.Issuer})), 422, "another audience"},
		{"a token for longer", "POST", accounts + "web/token", good(with("expirationSeconds", 3601)), 422, "longer than an hour"},
		{"a token for the default time, an hour", "POST", accounts + "web/token", good(with("expirationSeconds", nil)), 201, `"token":`},
		{"a token bound to nothing", "POST", accounts + "web/token", good(with("boundObjectRef", nil)), 422, notBound},
		{"a token bound to a pod", "POST", accounts + "web/token", good(bound("Pod", pod.Name(), pod.UID())), 422, notBound},
		{"a token bound to another Secret", "POST", accounts + "web/token", good(bound("Secret", foreign.Name(), foreign.UID())), 422, notBound},
		{"a token bound by name alone", "POST", accounts + "web/token", good(bound("Secret", prefix+"web", "")), 422, notBound},
		{"a token bound to the Secret before", "POST", accounts + "web/token", good(bound("Secret", prefix+"web", "another")), 409, "UID"},
		{"a token of the ServiceAccount before", "POST", accounts + "web/token", request("another", prefix+"web", made.UID()), 409, "UID"},
		{"a token of one that has not opted in", "POST", accounts + "plain/token", request(plain.UID(), prefix+"plain", "x"), 422, notOptedIn},
		{"a token in a namespace that has not", "POST", "/api/v1/namespaces/team-b/serviceaccounts/web/token", request(other.UID(), prefix+"web", "x"), 422, optIn},
		{"a token for itself", "POST", "/api/v1/namespaces/" + namespace + "/serviceaccounts/" + controller + "/token", request("", prefix+controller, "x"), 422, either},
		{"a token of the controllers of the cluster", "POST", "/api/v1/namespaces/kube-system/serviceaccounts/default/token", request("", prefix+"default", "x"), 422, either},

		{"a Secret of another name", "POST", secrets, secret(web, metadata("name", "regcred")), 422, notOurs},
		{"a Secret without owner", "POST", secrets, secret(theirs, metadata("ownerReferences", nil)), 422, notOurs},
		{"a Secret without our labels", "POST", secrets, secret(theirs, metadata("labels", nil)), 422, notOurs},
		{"a Secret of another owner", "POST", secrets, secret(theirs, metadata("ownerReferences", []cluster.Object{{"apiVersion": "v1", "kind": "Pod", "name": pod.Name(), "uid": pod.UID()}})), 422, notOurs},
		{"a Secret of an owner that is never deleted", "POST", secrets, secret(theirs, metadata("ownerReferences", []cluster.Object{{"apiVersion": "example.com/v1", "kind": "ServiceAccount", "name": "theirs", "uid": theirs.UID()}})), 422, notOurs},
		{"a Secret of the type of legacy tokens", "POST", secrets, secret(theirs, func(o cluster.Object) { o["type"] = "kubernetes.io/service-account-token"; delete(o, "data") },
			metadata("annotations", cluster.Object{"kubernetes.io/service-account.name": "plain"})), 422, notOurs},
		{"a Secret of one that has not opted in", "POST", secrets, secret(plain), 422, notOptedIn},
		{"a Secret in a namespace that has not", "POST", "/api/v1/namespaces/team-b/secrets", secret(other), 422, optIn},
		{"a Secret in the name of a collection", "POST", secrets, secret(web, metadata("name", ""), metadata("generateName", prefix)), 422, notOurs},

		{"a Secret that cannot be deleted", "POST", secrets, secret(theirs, metadata("name", prefix+"free"), metadata("ownerReferences", []cluster.Object{{"apiVersion": "v1", "kind": "ServiceAccount", "name": "free", "uid": "x"}}), metadata("finalizers", []string{"example.com/x"})), 422, "outlive"},

		{"to read a Secret", "GET", secrets + "/database", nil, 403, noRight},
		{"to read its own", "GET", secrets + "/" + prefix + "web", nil, 403, noRight},
		{"to list them", "GET", secrets, nil, 403, noRight},
		{"to watch them", "GET", secrets + "?watch=true", nil, 403, noRight},
		{"to delete its own", "DELETE", secrets + "/" + prefix + "web", nil, 403, noRight},
		{"to read a Secret by an error", "PATCH", secrets + "/database", []cluster.Object{{"op": "copy", "from": "/data/password", "path": "/metadata/name"}}, 403, noRight},
		{"to read a Secret by a patch", "PATCH", secrets + "/database?dryRun=All", cluster.Object{}, 403, noRight},
		{"to look at its own by a patch", "PATCH", mine(true), cluster.Object{}, 403, noRight},
		{"to make one by applying", "PATCH", secrets + "/" + "regcred?force=true&fieldManager=" + controller, secret(web, metadata("name", "regcred")), 403, noRight},
		{"to read one by an update", "PUT", secrets + "/database?dryRun=All", secret(web, metadata("name", "database"), func(o cluster.Object) { delete(o, "type"); delete(o, "data") }), 422, notTheirs},
		{"to read one of the name by an update", "PUT", secrets + "/" + prefix + "theirs?dryRun=All", secret(theirs), 422, notTheirs},
		{"to take one of the name over", "PUT", secrets + "/" + prefix + "theirs", secret(theirs), 422, notTheirs},
		{"to change one of another type", "PUT", secrets + "/database", secret(web, metadata("name", "database")), 422, "field is immutable"},
		{"to make one by an update", "PUT", secrets + "/regcred", secret(web, metadata("name", "regcred")), 404, "not found"},
		{"to update the Secret before", "PUT", mine(false), secret(web, metadata("uid", "another")), 409, "UID"},
		{"to look at its own", "PUT", mine(true), secret(web), 200, made.UID()},
		{"to give its own to another ServiceAccount", "PUT", mine(false), secret(web, metadata("ownerReferences", secret(theirs)["metadata"].(cluster.Object)["ownerReferences"])), 422, notOurs},
		{"to give its own to the next of the name", "PUT", mine(false), secret(web, metadata("ownerReferences", []cluster.Object{{"apiVersion": "v1", "kind": "ServiceAccount", "name": "web", "uid": "x"}})), 422, "another owner"},
		{"to keep its own when its ServiceAccount is gone", "PUT", mine(false), secret(web, metadata("ownerReferences", nil)), 422, notOurs},
		{"to keep its own with a finalizer", "PUT", mine(false), secret(web, metadata("finalizers", []string{"example.com/x"})), 422, "outlive"},
		{"to have its own never changed again", "PUT", mine(true), secret(web, func(o cluster.Object) { o["immutable"] = true }), 422, "so it could not be renewed"},
		{"to read a ConfigMap", "GET", "/api/v1/namespaces/" + namespace + "/configmaps/pullpass", nil, 403, noRight},
		{"to patch its memory", "PATCH", "/api/v1/namespaces/" + namespace + "/configmaps/" + controller, cluster.Object{}, 403, noRight},
		{"to make ConfigMaps", "POST", "/api/v1/namespaces/" + namespace + "/configmaps", cluster.Object{"metadata": cluster.Object{"name": "x"}}, 403, noRight},

		{"to change a ServiceAccount", "PATCH", accounts + "web", cluster.Object{"secrets": []cluster.Object{}}, 403, noRight},
		{"to make one", "POST", "/api/v1/namespaces/team-a/serviceaccounts", cluster.Object{"metadata": cluster.Object{"name": "x"}}, 403, noRight},
		{"to delete one", "DELETE", accounts + "web", nil, 403, noRight},
		{"to opt a namespace in", "PATCH", "/api/v1/namespaces/team-b", cluster.Object{"metadata": cluster.Object{"labels": optedIn}}, 403, noRight},
		{"to make a pod", "POST", "/api/v1/namespaces/team-a/pods", cluster.Object{"metadata": cluster.Object{"name": "x"}}, 403, noRight},
		{"to read pods", "GET", "/api/v1/namespaces/team-a/pods", nil, 403, noRight},
		{"to take its policy away", "DELETE", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/" + controller, nil, 403, noRight},
		{"to review a token", "POST", "/apis/authentication.k8s.io/v1/tokenreviews", cluster.Object{"spec": cluster.Object{"token": token}}, 403, noRight},
		{"another Lease", "GET", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", nil, 403, noRight},
	} {
		status, body := s.As(t, token, test.method, test.path, test.body)
		if status != test.status || !strings.Contains(body, test.says) {
			t.Errorf("%s: %d, want %d and %q: %s", test.name, status, test.status, test.says, body)
		}
		if strings.Contains(body, foreign.Text("data", ".dockerconfigjson")) || strings.Contains(body, base64.StdEncoding.EncodeToString([]byte("sekret"))) {
			t.Errorf("%s: the response has a Secret of others: %s", test.name, body)
		}
	}
	// The policies are for the controller alone.
	s.Create(t, secrets, secret(plain))
	s.Delete(t, secrets+"/"+prefix+"plain")
	s.Delete(t, secrets+"/"+prefix+"web")
}

// testKept runs the controller: its requests are allowed, and Secrets of others stay unchanged.
func (s *site) testKept(t *testing.T, web cluster.Object) {
	const secrets = "/api/v1/namespaces/team-a/secrets/"
	before := s.Get(t, secrets+prefix+"theirs")
	s.run(t, "one")
	var made cluster.Object
	testenv.Await(t, limit, "the Secret has a token", func() bool {
		var err error
		made, err = s.Try(t.Context(), http.MethodGet, secrets+prefix+"web", nil)
		return err == nil && made.Text("metadata", "annotations", "pullpass.dev/token-key") != ""
	})
	claims := s.claims(t, made)
	k := claims["kubernetes.io"].(map[string]any)
	if !reflect.DeepEqual(claims["aud"], []any{audience}) || claims["exp"].(float64)-claims["iat"].(float64) != 3600 ||
		!reflect.DeepEqual(k["secret"], map[string]any{"name": prefix + "web", "uid": made.UID()}) || !reflect.DeepEqual(k["serviceaccount"], map[string]any{"name": "web", "uid": web.UID()}) {
		t.Errorf("the token has %v", claims)
	}
	testenv.Await(t, limit, "an event names the Secret of others", func() bool {
		events, _ := s.Get(t, "/api/v1/namespaces/team-a/events?fieldSelector=reason%3DPullSecretForeign")["items"].([]any)
		return len(events) == 1 && cluster.Object(events[0].(map[string]any)).Text("involvedObject", "name") == "theirs"
	})
	if after := s.Get(t, secrets+prefix+"theirs"); !reflect.DeepEqual(after, before) {
		t.Errorf("the Secret of others is now %v", after)
	}
	for _, path := range []string{"team-a/secrets/" + prefix + "plain", "team-b/secrets/" + prefix + "web", "team-b/secrets/" + prefix + "plain"} {
		if _, err := s.Try(t.Context(), http.MethodGet, "/api/v1/namespaces/"+path, nil); err == nil {
			t.Errorf("there is %s", path)
		}
	}
	if list := s.Get(t, "/api/v1/namespaces/team-a/serviceaccounts/web")["secrets"]; list != nil {
		t.Errorf("the ServiceAccount has the Secrets %v", list)
	}
}
