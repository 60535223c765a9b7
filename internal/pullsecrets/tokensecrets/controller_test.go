package tokensecrets

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/pullpass/pullpass/internal/cluster/controller"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const audience = "pull.registry.example.com"

// rig is a Controller that leads, and the cluster of team-a/web, which has opted in.
type rig struct {
	*Controller
	api *kubetest.Server
}

func in(t *testing.T, test func(*testing.T, *rig)) {
	t.Helper()
	testkit.Bubble(t, func(t *testing.T) {
		api := kubetest.NewServer()
		api.Put("namespaces", object("", "team-a", "uid-ns", Enabled), object("", "team-b", "uid-other", ""))
		api.Put("serviceaccounts", object("team-a", "web", "uid-web", Enabled), object("team-a", "plain", "uid-plain", ""), object("team-b", "web", "uid-b", Enabled))
		api.Put("configmaps", object("pullpass", memoryName, "uid-memory", ""))
		api.KeyID("k1")
		keys(api, "k1")
		enforce(api)
		test(t, newRig(t, api, "replica-1"))
	})
}

func newRig(t *testing.T, api *kubetest.Server, identity string) *rig {
	t.Helper()
	c := testkit.Value(New(Config{
		REST: &rest.Config{Host: "http://api.example.com", Transport: api}, Audience: audience, Registries: []string{"registry.example.com"},
		LeaseNamespace: "pullpass", Identity: identity,
	}))(t)
	return &rig{c, api}
}

// enforce lets the API server refuse what the manifest's policies refuse.
func enforce(api *kubetest.Server) {
	api.Fail("create secrets", func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.URL.Path, "/namespaces/team-a/") {
			denied(optInWords)(w, r)
			return
		}
		api.Write(w, r)
	})
	api.Fail("put secrets", func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(r.URL.Path, "/")
		if o := api.Object("secrets", parts[4], parts[6]); o != nil {
			m, _ := o["metadata"].(kubetest.Object)
			labels, _ := m["labels"].(kubetest.Object)
			owners, _ := m["ownerReferences"].([]any)
			switch {
			case labels[managerLabel] != manager || len(owners) != 1 || NamePrefix+fmt.Sprint(owners[0].(kubetest.Object)["name"]) != m["name"]:
				denied(foreignWords)(w, r)
				return
			case owners[0].(kubetest.Object)["uid"] == "uid-before":
				denied(staleWords)(w, r)
				return
			}
		}
		api.Write(w, r)
	})
}

func denied(message string) http.HandlerFunc {
	return kubetest.Status(http.StatusUnprocessableEntity, "Invalid", `secrets "x" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'p' denied request: `+message)
}

// leads runs the Controller until stop is called.
func (r *rig) leads(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { r.lead(ctx); close(done) }()
	stop = func() { cancel(); <-done; time.Sleep(time.Minute) } // work in progress ends
	r.settle()
	return stop
}

// settle waits until the due work is done, because the rate limiter delays it.
func (r *rig) settle() {
	time.Sleep(2 * time.Second)
	synctest.Wait()
}

func object(namespace, name, uid, opted string) kubetest.Object {
	labels := kubetest.Object{}
	if opted != "" {
		labels[Label] = opted
	}
	return kubetest.Object{"metadata": kubetest.Object{"namespace": namespace, "name": name, "uid": uid, "labels": labels}}
}

func keys(api *kubetest.Server, ids ...string) {
	text := ""
	for _, id := range ids {
		text += `,{"kid":"` + id + `"}`
	}
	set := kubetest.Says(http.StatusOK, "application/jwk-set+json", `{"keys":[`+strings.TrimPrefix(text, ",")+`]}`)
	api.Fail("list jwks", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") != "application/jwk-set+json" { // as API servers do
			w.WriteHeader(http.StatusNotAcceptable)
			return
		}
		set(w, r)
	})
}

// secret returns the claims of the token in a Secret, and its metadata. They are nil if the Secret
// does not exist.
func (r *rig) secret(t *testing.T, namespace, account string) (claims, metadata kubetest.Object) {
	t.Helper()
	o := r.api.Object("secrets", namespace, NamePrefix+account)
	if o == nil {
		return nil, nil
	}
	if o["type"] != "kubernetes.io/dockerconfigjson" {
		t.Errorf("type %v", o["type"])
	}
	text := testkit.Value(base64.StdEncoding.DecodeString(o["data"].(kubetest.Object)[".dockerconfigjson"].(string)))(t)
	var config struct {
		Auths map[string]struct{ Username, Password, Auth string } `json:"auths"`
	}
	testkit.Must(t, json.Unmarshal(text, &config))
	metadata = o["metadata"].(kubetest.Object)
	login, ok := config.Auths["registry.example.com"]
	if !ok {
		return nil, metadata
	}
	if auth, _ := base64.StdEncoding.DecodeString(login.Auth); login.Username == "" || string(auth) != login.Username+":"+login.Password || len(config.Auths) != 1 {
		t.Errorf("auths %v", config.Auths)
	}
	return testkit.TokenPart(t, login.Password, 1), metadata
}

func TestSecretOfAServiceAccountThatOptedIn(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		var log strings.Builder
		r.log = slog.New(slog.NewTextHandler(&log, nil))
		stop := r.leads(t)
		defer func() {
			stop()
			if log.Len() > 0 {
				t.Errorf("log: %s", log.String())
			}
		}()
		claims, metadata := r.secret(t, "team-a", "web")
		if claims == nil {
			t.Fatalf("no token; %v", r.api.Asked())
		}
		if got, want := fmt.Sprint(claims["aud"]), fmt.Sprint([]string{audience}); got != want {
			t.Errorf("audience %s, want %s", got, want)
		}
		k := claims["kubernetes.io"].(kubetest.Object)
		if bound := k["secret"].(kubetest.Object); bound["uid"] != metadata["uid"] || bound["name"] != metadata["name"] {
			t.Errorf("bound to %v, in %v", bound, metadata)
		}
		if lives := claims["exp"].(float64) - claims["iat"].(float64); lives != 3600 {
			t.Errorf("the token lives %v seconds", lives)
		}
		owner := metadata["ownerReferences"].([]any)[0].(kubetest.Object)
		if owner["kind"] != "ServiceAccount" || owner["uid"] != "uid-web" || owner["name"] != "web" {
			t.Errorf("owner %v", owner)
		}
		for _, not := range [][2]string{{"team-a", "plain"}, {"team-b", "web"}} { // one of the two has not opted in
			if _, metadata := r.secret(t, not[0], not[1]); metadata != nil {
				t.Errorf("%s has a Secret", not)
			}
		}
		if got, want := r.Counts(), (Counts{Created: 1, Renewed: 1}); got != want {
			t.Errorf("counts %+v, want %+v", got, want)
		}
	})
}

// Over a day, each token lives for 55 to 65 % of an hour, and there are no other writes.
func TestTokensAreRenewedInTime(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		stop := r.leads(t)
		defer stop()
		for range 24 * 60 {
			claims, _ := r.secret(t, "team-a", "web")
			if left := time.Until(time.Unix(int64(claims["exp"].(float64)), 0)); left < 20*time.Minute {
				t.Fatalf("the token has %s left", left)
			}
			time.Sleep(time.Minute)
		}
		if n := r.Counts().Renewed; n < 24*60/39 || n > 24*60/33+1 {
			t.Errorf("%d tokens in a day", n)
		}
		if n := r.api.Count("create secrets?fieldManager"); n != 1 {
			t.Errorf("%d Secrets were created", n)
		}
	})
}

// A new leader finds the existing Secrets, and does not renew tokens before they are due.
func TestRestart(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.leads(t)()
		before, _ := r.secret(t, "team-a", "web")
		next := newRig(t, r.api, "replica-2")
		stop := next.leads(t)
		defer stop()
		if after, _ := next.secret(t, "team-a", "web"); after["jti"] != before["jti"] {
			t.Error("the token was renewed")
		}
		if got := next.Counts(); got != (Counts{}) {
			t.Errorf("counts %+v", got)
		}
		time.Sleep(40 * time.Minute)
		if after, _ := next.secret(t, "team-a", "web"); after["jti"] == before["jti"] {
			t.Error("the token was not renewed in time")
		}
	})
}

func TestOtherSettingsAreAnotherContent(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.leads(t)()
		next := newRig(t, r.api, "replica-2")
		next.secrets.settings.registries = []string{"other.example.com", "registry.example.com"}
		stop := next.leads(t)
		defer stop()
		if n := next.Counts().Renewed; n != 1 {
			t.Errorf("%d renewals", n)
		}
	})
}

// The cluster signs with a new key, and stops publishing the old one.
func TestTokensOfAKeyThatIsGone(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		stop := r.leads(t)
		defer stop()
		time.Sleep(5 * time.Minute)
		r.api.KeyID("k2")
		keys(r.api, "k1", "k2") // both: nothing is urgent
		time.Sleep(5 * time.Minute)
		if n := r.Counts().Renewed; n != 1 {
			t.Errorf("%d renewals while the key is published", n)
		}
		r.api.Fail("list jwks", kubetest.Says(http.StatusOK, "application/json", `{"keys":[]}`))
		time.Sleep(5 * time.Minute)
		if got := r.Counts(); got.Renewed != 1 || got.Failed < 4 || got.Failed > 6 {
			t.Errorf("counts %+v because the keys could not be read", got)
		}
		keys(r.api, "k2")
		time.Sleep(3 * time.Minute)
		if n := r.Counts().Renewed; n != 2 {
			t.Errorf("%d renewals, want one more", n)
		}
		time.Sleep(10 * time.Minute)
		if n := r.Counts().Renewed; n != 2 {
			t.Errorf("%d renewals: the new key is published", n)
		}
	})
}

func TestForeignSecretIsNotTouched(t *testing.T) {
	for name, change := range map[string]func(metadata kubetest.Object){
		"without anything": func(m kubetest.Object) { delete(m, "labels"); delete(m, "ownerReferences") },
		"without label":    func(m kubetest.Object) { delete(m, "labels") },
		"without owner":    func(m kubetest.Object) { delete(m, "ownerReferences") },
		"of another ServiceAccount": func(m kubetest.Object) {
			m["ownerReferences"].([]any)[0].(kubetest.Object)["name"] = "other"
		},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, r *rig) {
				o := ours("uid-web")
				change(o["metadata"].(kubetest.Object))
				r.api.Put("secrets", o)
				stop := r.leads(t)
				defer stop()
				time.Sleep(time.Hour)
				if o := r.api.Object("secrets", "team-a", NamePrefix+"web"); o["data"] != "somebody's" {
					t.Errorf("it is now %v", o)
				}
				if got := r.Counts(); got.Renewed+got.Created+got.Failed != 0 || got.Foreign < 6 || got.Foreign > 7 {
					t.Errorf("counts %+v", got)
				}
				written := r.api.Written()
				if len(written) == 0 || written[0]["reason"] != "PullSecretForeign" || written[0]["involvedObject"].(kubetest.Object)["name"] != "web" {
					t.Errorf("events %v", written)
				}
			})
		})
	}
}

// An API server validates an update before it asks the policy.
func TestSecretOfAnotherKindIsForeign(t *testing.T) {
	for field, message := range map[string]string{
		"type":      `type: Invalid value: \"kubernetes.io/dockerconfigjson\": field is immutable`,
		"immutable": "[immutable: Forbidden: field is immutable when `immutable` is set, data: Forbidden: field is immutable when `immutable` is set]",
	} {
		t.Run(field, func(t *testing.T) {
			in(t, func(t *testing.T, r *rig) {
				r.api.Fail("put secrets", kubetest.Says(http.StatusUnprocessableEntity, "application/json", `{"kind":"Status","apiVersion":"v1","status":"Failure","code":422,"reason":"Invalid",`+
					`"message":"Secret \"x\" is invalid: `+message+`","details":{"kind":"Secret","causes":[{"reason":"FieldValueInvalid","message":"field is immutable","field":"`+field+`"}]}}`))
				stop := r.leads(t)
				defer stop()
				time.Sleep(time.Hour)
				if s := r.Status(); s.Foreign != 1 || s.Counts.Failed != 0 || s.Overdue != 0 {
					t.Errorf("%+v", s)
				}
				if written := r.api.Written(); len(written) == 0 || written[0]["reason"] != "PullSecretForeign" {
					t.Errorf("events %v", written)
				}
			})
		})
	}
}

// Any other error is one of the cluster.
func TestErrorsOfAnotherKind(t *testing.T) {
	t.Parallel()
	kind := schema.GroupKind{Kind: "Secret"}
	invalid := apierrors.NewInvalid(kind, "x", field.ErrorList{field.Invalid(field.NewPath("type"), "x", "field is immutable")})
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "secrets"}, "x", errors.New("changed"))
	conflict.ErrStatus.Details.Causes = invalid.ErrStatus.Details.Causes
	noDetails := apierrors.NewInvalid(kind, "x", nil)
	noDetails.ErrStatus.Details = nil
	for name, test := range map[string]struct {
		err          error
		is           bool
		ofItsOwnKind bool
	}{
		"invalid":         {invalid, true, false},
		"another field":   {apierrors.NewInvalid(kind, "x", field.ErrorList{field.Invalid(field.NewPath("data"), "x", "too long")}), false, false},
		"a conflict":      {conflict, false, false},
		"without details": {noDetails, false, false},
		"of a network":    {errors.New("connection refused"), false, false},
		"foreign":         {errForeign, false, true},
		"stale":           {errStale, false, true},
		"a long name":     {errLongName, false, true},
	} {
		if is, ofNamespace := isInvalid(test.err, "type", "immutable"), isOfNamespace(test.err); is != test.is || ofNamespace != test.ofItsOwnKind {
			t.Errorf("%s: invalid %t, of a namespace %t", name, is, ofNamespace)
		}
	}
}

func TestWhoseSecretItIs(t *testing.T) {
	t.Parallel()
	own := func() *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Name: NamePrefix + "web", Labels: map[string]string{managerLabel: manager}, OwnerReferences: []metav1.OwnerReference{{Kind: "ServiceAccount", Name: "web"}},
		}}
	}
	for name, change := range map[string]func(*corev1.Secret){
		"":              func(*corev1.Secret) {},
		"another label": func(s *corev1.Secret) { s.Labels[managerLabel] = "x" },
		"no owner":      func(s *corev1.Secret) { s.OwnerReferences = nil },
		"two owners":    func(s *corev1.Secret) { s.OwnerReferences = append(s.OwnerReferences, s.OwnerReferences...) },
		"another kind":  func(s *corev1.Secret) { s.OwnerReferences[0].Kind = "Pod" },
		"another owner": func(s *corev1.Secret) { s.OwnerReferences[0].Name = "ci" },
	} {
		secret := own()
		if change(secret); IsOfController(secret) != (name == "") {
			t.Errorf("%s: %t", name, IsOfController(secret))
		}
	}
}

// A user of a namespace cannot make the Secrets of a cluster look late. But policies that refuse, or
// an API server that fails, do.
func TestLateForANamespace(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(r *rig)
		late  bool
	}{
		"a long name": {func(r *rig) {
			r.api.Put("serviceaccounts", object("team-a", strings.Repeat("a", 240), "uid-long", Enabled))
		}, false},
		"a Secret with a finalizer, deleted": {func(r *rig) { r.api.Put("secrets", ours("uid-before")) }, false},
		"a quota": {func(r *rig) {
			r.api.Fail("create secrets", func(w http.ResponseWriter, request *http.Request) {
				message := `secrets "x" is forbidden: exceeded quota: q, requested: secrets=1, used: secrets=1, limited: secrets=1`
				if !strings.Contains(request.URL.Path, "/namespaces/team-a/") {
					message = "denied request: " + optInWords
				}
				kubetest.Status(http.StatusForbidden, "Forbidden", message)(w, request)
			})
		}, false},
		"no right": {func(r *rig) {
			r.api.Fail("create serviceaccounts/token", kubetest.Status(http.StatusForbidden, "Forbidden", `serviceaccounts "web" is forbidden: User "x" cannot create resource`))
		}, true},
		"a policy": {func(r *rig) {
			r.api.Fail("create serviceaccounts/token", kubetest.Status(http.StatusUnprocessableEntity, "Invalid", `ValidatingAdmissionPolicy 'p' denied request: the token is for another audience`))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, r *rig) {
				test.spoil(r)
				stop := r.leads(t)
				defer stop()
				time.Sleep(20 * time.Minute)
				if s := r.Status(); (s.Overdue > 10*time.Minute) != test.late || !test.late && s.Overdue != 0 || s.Waiting != 1 {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// ours is a Secret as this controller leaves it, of a ServiceAccount web with a UID.
func ours(uid string) kubetest.Object {
	return kubetest.Object{"type": "kubernetes.io/dockerconfigjson", "data": "somebody's", "metadata": kubetest.Object{
		"namespace": "team-a", "name": NamePrefix + "web", "uid": "uid-secret", "labels": kubetest.Object{managerLabel: manager},
		"ownerReferences": []any{kubetest.Object{"apiVersion": "v1", "kind": "ServiceAccount", "name": "web", "uid": uid}},
	}}
}

// The Secret of a deleted ServiceAccount of the same name is left to the garbage collector.
func TestSecretOfTheServiceAccountBefore(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.api.Put("secrets", ours("uid-before"))
		stop := r.leads(t)
		defer stop()
		if o := r.api.Object("secrets", "team-a", NamePrefix+"web"); o["data"] != "somebody's" || len(r.api.Written()) > 0 {
			t.Errorf("it is now %v", o)
		}
		r.api.Remove("secrets", "team-a", NamePrefix+"web")
		time.Sleep(6 * time.Minute)
		if claims, _ := r.secret(t, "team-a", "web"); claims == nil {
			t.Error("there is no Secret after the one before was deleted")
		}
	})
}

// Mistake: a controller with an outdated watch creates a Secret for a deleted or a recreated
// ServiceAccount.
func TestDeletedServiceAccountGetsNothing(t *testing.T) {
	for name, change := range map[string]func(api *kubetest.Server){
		"deleted":    func(api *kubetest.Server) { api.Remove("serviceaccounts", "team-a", "web") },
		"made again": func(api *kubetest.Server) { api.Put("serviceaccounts", object("team-a", "web", "uid-again", Enabled)) },
		"being deleted": func(api *kubetest.Server) {
			o := object("team-a", "web", "uid-web", Enabled)
			o["metadata"].(kubetest.Object)["deletionTimestamp"] = "2000-01-01T00:00:00Z"
			api.Put("serviceaccounts", o)
		},
		"opted out": func(api *kubetest.Server) { api.Put("serviceaccounts", object("team-a", "web", "uid-web", "")) },
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, r *rig) {
				change(r.api)
				now, err := r.secrets.sync(t.Context(), account{"team-a", "web", "uid-web"}, held{})
				if err != nil || now != (held{}) || r.api.Count("create") != 0 {
					t.Errorf("%+v, error %v", now, err)
				}
			})
		})
	}
	t.Run("between", func(t *testing.T) {
		in(t, func(t *testing.T, r *rig) {
			r.api.Fail("create secrets", func(w http.ResponseWriter, q *http.Request) {
				r.api.Fail("create secrets", nil)
				r.api.Put("serviceaccounts", object("team-a", "web", "uid-again", Enabled))
				r.api.ServeHTTP(w, q)
			})
			_, err := r.secrets.sync(t.Context(), account{"team-a", "web", "uid-web"}, held{})
			if err == nil || reason(err) != "" {
				t.Errorf("error %v, want a conflict", err)
			}
			if claims, _ := r.secret(t, "team-a", "web"); claims != nil {
				t.Errorf("the Secret has a token: %v", claims)
			}
		})
	})
}

// A Secret that is deleted while its token is issued is not recreated.
func TestSecretIsDeletedWhileItsTokenIsMade(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.api.Fail("put secrets", func(w http.ResponseWriter, q *http.Request) {
			applied := q.URL.Query().Get("dryRun") == ""
			if applied {
				r.api.Remove("secrets", "team-a", NamePrefix+"web")
			}
			r.api.Write(w, q)
		})
		_, err := r.secrets.sync(t.Context(), account{"team-a", "web", "uid-web"}, held{})
		if err == nil || reason(err) != "" {
			t.Errorf("error %v, want a conflict", err)
		}
		if _, metadata := r.secret(t, "team-a", "web"); metadata != nil {
			t.Error("the Secret is back")
		}
	})
}

// The token becomes visible to the readers of the Secret, so it must be for exactly this Secret and
// ServiceAccount.
func TestTokensThatAreNotWhatWasAskedFor(t *testing.T) {
	t.Parallel()
	a := account{"team-a", "web", "uid-web"}
	good := kubetest.Object{"aud": []string{audience}, "iat": 100, "exp": 3700, "kubernetes.io": kubetest.Object{
		"namespace": "team-a", "serviceaccount": kubetest.Object{"name": "web", "uid": "uid-web"}, "secret": kubetest.Object{"name": NamePrefix + "web", "uid": "uid-secret"},
	}}
	raw := func(header string, claims any) string {
		text, _ := json.Marshal(claims)
		return base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString(text) + ".c2ln"
	}
	with := func(field string, value any) string {
		claims := maps.Clone(good)
		if strings.Contains("namespace serviceaccount secret", field) {
			k := maps.Clone(good["kubernetes.io"].(kubetest.Object))
			k[field] = value
			claims["kubernetes.io"] = k
		} else {
			claims[field] = value
		}
		return raw(`{"kid":"k"}`, claims)
	}
	if got, err := readToken(raw(`{"kid":"k"}`, good), a, "uid-secret", audience); err != nil || got.keyID != "k" || got.expires.Sub(got.issued) != time.Hour {
		t.Fatalf("%+v, error %v", got, err)
	}
	for text, want := range map[string]string{
		"a.b":   "no token",
		"a.b.c": "cannot be read",
		strings.Replace(raw(`{"kid":"kk"}`, good), ".", "%.", 1): "cannot be read",
		with("iat", "text"):                  "cannot be read",
		with("aud", []string{"a"}):           "another audience",
		with("aud", []string{audience, "a"}): "another audience",
		with("namespace", "team-b"):          "another ServiceAccount",
		with("serviceaccount", kubetest.Object{"name": "web", "uid": "uid-x"}):  "another ServiceAccount",
		with("secret", kubetest.Object{"name": NamePrefix + "web", "uid": "x"}): "not bound to the Secret",
		with("secret", nil): "not bound to the Secret",
		with("exp", 100):    "without end or key",
		raw(`{}`, good):     "without end or key",
	} {
		if _, err := readToken(text, a, "uid-secret", audience); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// A leader is ready when it knows both the ServiceAccounts and the namespaces.
func TestLeaderThatKnowsNothingYet(t *testing.T) {
	for _, resource := range []string{"serviceaccounts", "namespaces"} {
		t.Run(resource, func(t *testing.T) {
			in(t, func(t *testing.T, r *rig) {
				r.api.Streams(false)
				r.api.Fail("list "+resource, kubetest.Status(http.StatusInternalServerError, "InternalError", "etcd"))
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- r.Run(ctx) }()
				time.Sleep(5 * time.Second)
				if err := r.Ready(); err == nil || !strings.Contains(err.Error(), "are not known yet") {
					t.Errorf("error %v", err)
				}
				cancel()
				testkit.Must(t, <-ended)
				time.Sleep(time.Minute)
			})
		})
	}
}

// A Controller that has led does not lead again with what it knew then.
func TestLeadsOnce(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.leads(t)()
		var log strings.Builder
		r.log = slog.New(slog.NewTextHandler(&log, nil))
		r.lead(t.Context())
		if !strings.Contains(log.String(), "nothing is watched") {
			t.Errorf("log: %s", log.String())
		}
	})
}

// Requests that end because the Controller ends are not failures.
func TestEndIsNoFailure(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		var log strings.Builder
		r.log = slog.New(slog.NewTextHandler(&log, nil))
		stop := r.leads(t)
		r.memory.note("uid", noted{keyID: "k1", issued: time.Now(), expires: time.Now().Add(lifetime)})
		r.api.Fail("list jwks", kubetest.Hang)
		r.api.Fail("get configmaps", func(w http.ResponseWriter, q *http.Request) {
			r.api.Fail("get configmaps", nil)
			kubetest.Hang(w, q)
		})
		time.Sleep(keyInterval + syncTimeout/2)
		stop()
		if n := r.Counts().Failed; n != 0 || log.Len() > 0 {
			t.Errorf("%d failures; log: %s", n, log.String())
		}
	})
}

// Many ServiceAccounts can opt out, and others opt in after that.
func TestManyOptOut(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		defer r.leads(t)()
		for i := range 2 * workers {
			r.api.Put("serviceaccounts", object("team-a", fmt.Sprint("sa-", i), fmt.Sprint("uid-", i), Enabled))
		}
		r.settle()
		for i := range 2 * workers {
			r.api.Put("serviceaccounts", object("team-a", fmt.Sprint("sa-", i), fmt.Sprint("uid-", i), ""))
		}
		r.settle()
		r.api.Put("serviceaccounts", object("team-a", "late", "uid-late", Enabled))
		r.settle()
		if claims, _ := r.secret(t, "team-a", "late"); claims == nil {
			t.Error("no token")
		}
	})
}

// steps returns a Controller that does one step for each call of work, and knows the ServiceAccount team-a/web.
func (r *rig) steps(t *testing.T) {
	t.Helper()
	r.queue, r.events = newQueue(), record.NewFakeRecorder(10)
	r.shares = newShares(r.queue.Add)
	t.Cleanup(func() { r.queue.ShutDown(); time.Sleep(time.Minute) })
	testkit.Must(t, r.namespaces.GetIndexer().Add(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}}))
	testkit.Must(t, r.accounts.GetIndexer().Add(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "web", UID: "uid-web"}}))
	r.queue.Add("team-a/web")
}

// A recreated ServiceAccount is neither tried as late as the deleted one nor overdue since then.
func TestRecreatedServiceAccountStartsAnew(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.steps(t)
		r.api.Fail("create serviceaccounts/token", kubetest.Status(http.StatusForbidden, "Forbidden", "no"))
		for range 3 {
			r.queue.AddRateLimited("team-a/web")
		}
		before := time.Now()
		r.known["team-a/web"] = state{of: "uid-before", late: before}
		time.Sleep(time.Second)
		r.work(t.Context())
		if got := r.known["team-a/web"]; got.of != "uid-web" || got.late.Equal(before) || r.queue.NumRequeues("team-a/web") != 1 {
			t.Errorf("%+v after %d attempts", got, r.queue.NumRequeues("team-a/web"))
		}
	})
}

// A ServiceAccount that the watch has not seen go is not looked at again until the watch has.
func TestServiceAccountIsGoneBeforeTheWatchSeesIt(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.steps(t)
		r.api.Remove("serviceaccounts", "team-a", "web")
		r.work(t.Context())
		time.Sleep(time.Minute)
		if n := r.queue.Len(); n != 0 {
			t.Errorf("%d are queued", n)
		}
	})
}

// Only ServiceAccounts that are there and stay are maintained.
func TestServiceAccountsThatAreNotMaintained(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.steps(t)
		now := metav1.Now()
		testkit.Must(t, r.accounts.GetIndexer().Add(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "going", UID: "u", DeletionTimestamp: &now}}))
		testkit.Must(t, r.accounts.GetIndexer().Add(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "team-b", Name: "web", UID: "u"}}))
		for key, want := range map[string]account{"team-a/web": {"team-a", "web", "uid-web"}, "team-a/going": {}, "team-a/none": {}, "team-b/web": {}} {
			if got, ok := r.opted(key); got != want || ok != (want != account{}) {
				t.Errorf("%s: %+v, %t", key, got, ok)
			}
		}
	})
}

// After a failed request nothing more is asked for, and nothing is written.
func TestRequestsThatFail(t *testing.T) {
	other := kubetest.Says(http.StatusCreated, "application/json", `{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","status":{"token":"e30.e30.c2ln"}}`)
	broken := kubetest.Status(http.StatusInternalServerError, "InternalError", "etcd")
	for _, test := range []struct {
		request string
		with    http.HandlerFunc
		want    string
		not     string // request that does not follow
	}{
		{"get serviceaccounts", broken, "etcd", "create secrets"},
		{"create secrets", broken, "etcd", "create serviceaccounts/token"},
		{"create serviceaccounts/token", broken, "etcd", "put secrets pullpass-pull-web?fieldManager=" + manager},
		{"create serviceaccounts/token", other, "another audience", "put secrets pullpass-pull-web?fieldManager=" + manager},
	} {
		t.Run(test.request+" "+test.want, func(t *testing.T) {
			in(t, func(t *testing.T, r *rig) {
				r.api.Fail(test.request, test.with)
				got, err := r.secrets.sync(t.Context(), account{"team-a", "web", "uid-web"}, held{})
				if err == nil || !strings.Contains(err.Error(), test.want) || got != (held{}) || r.api.Count(test.not) != 0 {
					t.Errorf("%+v, error %v; %v", got, err, r.api.Asked())
				}
			})
		})
	}
}

// A Secret that was seen lately is not probed, unless it was that of another ServiceAccount of this name.
func TestProbes(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		a := account{"team-a", "web", "uid-web"}
		first := testkit.Value(r.secrets.sync(t.Context(), a, held{}))(t)
		r.api.Count("")
		if again, err := r.secrets.sync(t.Context(), a, first); err != nil || again != first || r.api.Count("") != 0 {
			t.Errorf("%+v, error %v; want no request", again, err)
		}
		first.account = "uid-before"
		if _, err := r.secrets.sync(t.Context(), a, first); err != nil || r.api.Count("put secrets") != 1 {
			t.Errorf("error %v; want a probe", err)
		}
	})
}

func TestWhatIsDue(t *testing.T) {
	t.Parallel()
	now := time.Unix(100_000, 0)
	s := &secrets{now: func() time.Time { return now }, gone: func(keyID string, _ time.Time) bool { return keyID == "gone" }}
	good := held{account: "a", uid: "u", noted: noted{keyID: "k", issued: now, expires: now.Add(lifetime)}}
	without, unsigned, gone, old := good, good, good, good
	without.uid, unsigned.keyID, gone.keyID, old.issued, old.expires = "", "", "gone", now.Add(-lifetime), now
	for name, test := range map[string]struct {
		h    held
		want bool
	}{"good": {good, false}, "no Secret": {without, true}, "no token": {unsigned, true}, "a key that is gone": {gone, true}, "old": {old, true}} {
		if got := s.isDue(test.h); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// The policy's answer for a namespace with and without the opt-in shows that it is there.
func TestPolicyIsThere(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		for _, words := range []string{optInWords, otherWords} {
			r.api.Fail("create secrets", kubetest.Status(http.StatusUnprocessableEntity, "Invalid", "denied request: "+words))
			testkit.Must(t, r.secrets.isBounded(t.Context(), "pullpass"))
		}
	})
}

// Failures that end by themselves cause no event.
func TestReasonsOfEvents(t *testing.T) {
	t.Parallel()
	resource := schema.GroupResource{Resource: "secrets"}
	for _, test := range []struct {
		err  error
		want string
	}{
		{errForeign, "PullSecretForeign"}, {errStale, ""}, {errors.New("x"), "PullSecretFailed"},
		{apierrors.NewConflict(resource, "x", errors.New("x")), ""}, {apierrors.NewAlreadyExists(resource, "x"), ""}, {apierrors.NewNotFound(resource, "x"), ""},
	} {
		if got := reason(test.err); got != test.want {
			t.Errorf("%v: %q, want %q", test.err, got, test.want)
		}
	}
}

// A state remembers the last token that is known, and since when work is due.
func TestStateAfterAnAttempt(t *testing.T) {
	t.Parallel()
	at := time.Unix(100_000, 0)
	token := held{account: "a", uid: "u", noted: noted{keyID: "k", issued: at.Add(-lifetime), expires: at}}
	known := state{held: token, ends: at}
	newer := token
	newer.expires = at.Add(lifetime)
	if got := known.after(newer, errors.New("x"), at); !got.ends.Equal(newer.expires) || !got.late.Equal(token.renewAt()) {
		t.Errorf("%+v", got)
	}
	if got := known.after(held{}, errors.New("x"), at); !got.ends.Equal(at) {
		t.Errorf("%+v", got)
	}
	without, fresh := token, token
	without.keyID, fresh.issued, fresh.expires = "", at, at.Add(lifetime)
	for name, test := range map[string]struct {
		h    held
		want time.Time
	}{"a token that is due": {token, token.renewAt()}, "no token": {without, at}, "a fresh token": {fresh, at}} {
		if got := (state{held: test.h}).dueSince(at); !got.Equal(test.want) {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

// Changes of others to the Secret are overwritten once, within ten minutes. Its annotations have no
// effect.
func TestSecretThatOthersChange(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		defer r.leads(t)()
		before, _ := r.secret(t, "team-a", "web")
		r.api.Merge("secrets", "team-a", NamePrefix+"web", kubetest.Object{"metadata": kubetest.Object{"annotations": kubetest.Object{expiryAnnotation: "2999-01-01T00:00:00Z"}}})
		time.Sleep(20 * time.Minute)
		after, m := r.secret(t, "team-a", "web")
		if n := r.Counts().Renewed; n != 2 || after["jti"] == before["jti"] || m["annotations"].(kubetest.Object)[expiryAnnotation] == "2999-01-01T00:00:00Z" {
			t.Errorf("%d renewals, %v", n, m)
		}
	})
}

// A Secret that is being deleted gets no token, and does not count as a Secret of others.
func TestSecretThatIsBeingDeleted(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		o := ours("uid-web")
		o["metadata"].(kubetest.Object)["deletionTimestamp"] = "2000-01-01T00:00:00Z"
		r.api.Put("secrets", o)
		if _, err := r.secrets.sync(t.Context(), account{"team-a", "web", "uid-web"}, held{}); !errors.Is(err, errStale) || r.api.Count("create") != 0 {
			t.Errorf("error %v", err)
		}
	})
}

// A key counts as gone only if two key sets lack it that were read after the token was signed.
func TestKeyIsGone(t *testing.T) {
	t.Parallel()
	now, set, fault := time.Unix(1000, 0), "", error(nil)
	k := &keyWatch{now: func() time.Time { return now }, fetch: func(context.Context) ([]byte, error) { return []byte(set), fault }}
	issued := now
	for i, step := range []struct {
		set    string
		fault  error
		isRead bool
		gone   bool
	}{
		{`{"keys":[{"kid":"other"}]}`, nil, true, false}, // read at the same moment
		{`{"keys":[{"kid":"other"}]}`, nil, true, false},
		{`{"keys":[{"kid":"other"}]}`, nil, true, true},
		{`{"keys":[{"kid":"mine"}]}`, nil, true, false},
		{`{"keys":[]}`, nil, false, false},
		{`{}`, nil, false, false},
		{`x`, nil, false, false},
		{`{"keys":[{"kid":"other"},{"kid":1}]}`, nil, false, false},
		{`{"keys":[{"kid":"other"}]}`, errors.New("down"), false, false},
		{`{"keys":[{"kid":"other"}]}`, nil, true, false},
		{`{"keys":[{"kid":"other"}]}`, nil, true, true},
	} {
		set, fault = step.set, step.fault
		if err := k.read(t.Context()); (err == nil) != step.isRead {
			t.Errorf("step %d: error %v", i, err)
		}
		if got := k.gone("mine", issued); got != step.gone {
			t.Errorf("step %d: gone is %t", i, got)
		}
		now = now.Add(time.Minute)
	}
}

func TestNameThatLeavesNoneForASecret(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		_, err := r.secrets.sync(t.Context(), account{"team-a", strings.Repeat("a", 240), "uid"}, held{})
		if err == nil || !strings.Contains(err.Error(), "longer than 239 characters") || r.api.Count("") != 0 {
			t.Errorf("error %v", err)
		}
		if _, err := r.secrets.sync(t.Context(), account{"team-a", strings.Repeat("a", 239), "uid"}, held{}); err != nil {
			t.Errorf("error %v of a name that leaves enough", err)
		}
	})
}

// One of two replicas leads. When it ends, the other one leads.
func TestOneLeads(t *testing.T) {
	in(t, func(t *testing.T, first *rig) {
		second := newRig(t, first.api, "replica-2")
		run := func(r *rig) (stop func() error) {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- r.Run(ctx) }()
			return func() error { cancel(); return <-ended }
		}
		stopFirst := run(first)
		first.settle()
		stopSecond := run(second)
		time.Sleep(time.Minute)
		if a, b := first.Counts().Renewed, second.Counts().Renewed; a != 1 || b != 0 {
			t.Errorf("renewals %d and %d", a, b)
		}
		if err := second.Ready(); err != nil {
			t.Errorf("the replica that waits is not ready: %v", err)
		}
		if err := stopFirst(); err != nil {
			t.Error(err)
		}
		first.api.Remove("secrets", "team-a", NamePrefix+"web")
		time.Sleep(time.Minute)
		if n := second.Counts().Renewed; n != 1 {
			t.Errorf("the second has renewed %d", n)
		}
		if err := stopSecond(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
	})
}

func TestSettings(t *testing.T) {
	t.Parallel()
	connection := &rest.Config{Host: "http://api.example.com"}
	for name, c := range map[string]Config{
		"no audience":       {REST: connection, Registries: []string{"r"}, LeaseNamespace: "n", Identity: "i"},
		"no registry":       {REST: connection, Audience: "a", LeaseNamespace: "n", Identity: "i"},
		"an empty registry": {REST: connection, Audience: "a", Registries: []string{""}, LeaseNamespace: "n", Identity: "i"},
		"no connection":     {Audience: "a", Registries: []string{"r"}, LeaseNamespace: "n", Identity: "i"},
		"no namespace":      {REST: connection, Audience: "a", Registries: []string{"r"}, Identity: "i"},
		"no identity":       {REST: connection, Audience: "a", Registries: []string{"r"}, LeaseNamespace: "n"},
		"no roots":          {REST: &rest.Config{Host: "https://api.example.com", TLSClientConfig: rest.TLSClientConfig{CAData: []byte("x")}}, Audience: "a", Registries: []string{"r"}, LeaseNamespace: "n", Identity: "i"},
		"no address":        {REST: &rest.Config{Host: "http://%zz"}, Audience: "a", Registries: []string{"r"}, LeaseNamespace: "n", Identity: "i"},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	log, now := testkit.QuietLogger(), time.Unix(1000, 0)
	c, err := New(Config{REST: connection, Audience: "a", Registries: []string{"r"}, LeaseNamespace: "n", Identity: "i", Logger: log, Now: func() time.Time { return now }})
	if err != nil || c.log != log || !c.now().Equal(now) {
		t.Errorf("error %v, or another logger or clock", err)
	}
	a, errA := newSettings("a", []string{"x", "y", "x"})
	b, errB := newSettings("a", []string{"y", "x"})
	if errA != nil || errB != nil || a.content() != b.content() {
		t.Errorf("the order of registries, or one twice, makes another content")
	}
	if c, _ := newSettings("a", []string{"x y"}); c.content() == b.content() {
		t.Error("other registries make the same content")
	}
}

// The numbers of kept, waiting, foreign and overdue Secrets.
func TestStatus(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		if got := r.Status(); got != (Status{}) || r.Ready() == nil {
			t.Errorf("before the Lease was read: %+v, ready: %v", got, r.Ready())
		}
		r.api.Put("serviceaccounts", object("team-a", "taken", "uid-taken", Enabled))
		taken := ours("uid-x")
		taken["metadata"].(kubetest.Object)["name"] = NamePrefix + "taken"
		r.api.Put("secrets", taken)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		expect := func(what string, kept, waiting int, overdue time.Duration) {
			t.Helper()
			s := r.Status()
			if !s.Leads || s.Kept != kept || s.Waiting != waiting || s.Foreign != 1 || s.Overdue < overdue || s.Overdue > overdue+10*time.Minute || r.Ready() != nil {
				t.Errorf("%s: %+v, ready: %v; want %d, %d, %s", what, s, r.Ready(), kept, waiting, overdue)
			}
		}
		r.settle()
		expect("in the beginning", 1, 0, 0)
		r.api.Fail("create serviceaccounts/token", kubetest.Says(http.StatusForbidden, "application/json", `{"kind":"Status","apiVersion":"v1","status":"Failure","code":403,"reason":"Forbidden","message":"no"}`))
		time.Sleep(30 * time.Minute)
		expect("before it is due", 1, 0, 0)
		time.Sleep(25 * time.Minute)
		expect("while its token counts", 1, 0, 15*time.Minute)
		time.Sleep(10 * time.Minute)
		expect("after its end", 0, 1, 25*time.Minute)
		r.api.Fail("create serviceaccounts/token", nil)
		time.Sleep(6 * time.Minute)
		expect("when all is well again", 1, 0, 0)
		if n := r.Status().Failed; n < 5 || n > 20 {
			t.Errorf("%d failures: each is tried again, ever later", n)
		}
		r.api.Fail("get leases", kubetest.Says(http.StatusInternalServerError, "text/plain", ""))
		time.Sleep(time.Minute)
		if s := r.Status(); s != (Status{Counts: r.Counts()}) || r.Ready() == nil {
			t.Errorf("without the Lease: %+v, ready: %v", s, r.Ready())
		}
		cancel()
		if err := <-ended; !errors.Is(err, controller.ErrLost) {
			t.Errorf("error %v", err)
		}
		time.Sleep(time.Minute)
	})
}

// With a wrong clock, tokens would always look old or from the future. The log reports it, and the
// rate of writes is limited.
func TestClocksThatDiffer(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"ahead": 40 * time.Minute, "behind": -5 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, r *rig) {
				r.secrets.now = func() time.Time { return time.Now().Add(ahead) }
				stop := r.leads(t)
				defer stop()
				time.Sleep(time.Hour)
				got := r.Counts()
				if claims, _ := r.secret(t, "team-a", "web"); claims == nil || got.Renewed > 20 || got.Failed != got.Renewed {
					t.Errorf("counts %+v", got)
				}
				if written := r.api.Written(); len(written) == 0 || !strings.Contains(fmt.Sprint(written[0]["message"]), "clock") {
					t.Errorf("events %v", written)
				}
			})
		})
	}
}

// Tokens that were issued together are renewed at different times.
func TestRenewalsAreSpread(t *testing.T) {
	t.Parallel()
	issued := time.Unix(1000, 0)
	first, last := time.Duration(1<<62), time.Duration(0)
	seen := map[time.Duration]bool{}
	for i := range 1000 {
		h := held{account: types.UID(fmt.Sprint("uid-", i)), noted: noted{issued: issued, expires: issued.Add(time.Hour)}}
		after := h.renewAt().Sub(issued)
		if h.renewAt().Sub(issued) != after {
			t.Fatal("it differs from time to time")
		}
		first, last = min(first, after), max(last, after)
		seen[after] = true
	}
	if first < 33*time.Minute || last > 39*time.Minute || len(seen) < 500 {
		t.Errorf("from %s to %s, at %d times", first, last, len(seen))
	}
}

// A replica that is stopped, or loses the lead, reports no failure of what it was doing.
func TestInterruptedWorkIsNoFailure(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.api.Fail("create serviceaccounts/token", kubetest.Hang)
		stop := r.leads(t)
		stop()
		if events, counts := r.api.Written(), r.Counts(); len(events) > 0 || counts.Failed > 0 {
			t.Errorf("events %v, counts %+v", events, counts)
		}
	})
}

// A time after the year 9999 has five digits in JSON, and no client can read it. The authors of a namespace can write it into
// its Secret, whose token must be renewed all the same.
func TestATimeThatIsNotReadable(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		defer r.leads(t)()
		scheme := runtime.NewScheme()
		testkit.Must(t, corev1.AddToScheme(scheme))
		at := metav1.NewTime(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC))
		r.api.Fail("put secrets", func(w http.ResponseWriter, request *http.Request) {
			content := runtime.ContentTypeJSON
			if strings.HasPrefix(request.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
				content = runtime.ContentTypeProtobuf
			}
			written := httptest.NewRecorder()
			r.api.Write(written, request)
			var secret corev1.Secret
			testkit.Must(t, json.NewDecoder(written.Body).Decode(&secret))
			secret.ManagedFields = []metav1.ManagedFieldsEntry{{Time: &at}}
			info, _ := runtime.SerializerInfoForMediaType(serializer.NewCodecFactory(scheme).SupportedMediaTypes(), content)
			w.Header().Set("Content-Type", content)
			testkit.Must(t, info.Serializer.Encode(&secret, w))
		})
		time.Sleep(2 * lifetime)
		if s := r.Status(); s.Failed != 0 || s.Renewed < 3 || s.Overdue != 0 {
			t.Errorf("%+v", s)
		}
	})
}
