package account

import (
	"crypto/sha256"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The rights of cluster add are those that the documents explain.
func TestRoleIsThatOfTheDocuments(t *testing.T) {
	t.Parallel()
	documented := map[string]*unstructured.Unstructured{}
	for _, o := range testkit.Value(parse([]byte(testkit.Read(t, testkit.InModule("deploy/kubernetes/rbac.yaml")))))(t) {
		documented[o.GetKind()] = o
	}
	made := append(testkit.Value(parse(role))(t), testkit.Value(parse(ofAccount))(t)...)
	for _, o := range made {
		if resources[o.GetKind()] == "" {
			t.Errorf("%s has no resource", o.GetKind())
		}
		want := documented[o.GetKind()]
		delete(documented, o.GetKind())
		if want == nil {
			continue // Namespace, and the right to renew the token
		}
		if !reflect.DeepEqual(o.Object["rules"], want.Object["rules"]) {
			t.Errorf("%s: rules %v, documented %v", o.GetKind(), o.Object["rules"], want.Object["rules"])
		}
	}
	if len(documented) > 0 {
		t.Errorf("not made: %v", documented)
	}
}

// server is an API server that keeps what it is sent, and answers from its fields.
type server struct {
	*httptest.Server
	mu      sync.Mutex
	got     map[string]string // bodies by method and path
	answers map[string]any    // likewise; an int is the status of a failure
}

func newServer(t *testing.T, answers map[string]any) *server {
	s := &server{got: map[string]string{}, answers: answers}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		key := r.Method + " " + r.URL.Path
		s.mu.Lock()
		defer s.mu.Unlock()
		s.got[key] = string(body)
		answer, ok := s.answers[key]
		if !ok && r.Method == http.MethodPatch {
			answer = json.RawMessage(body)
		}
		w.Header().Set("Content-Type", "application/json")
		if status, failed := answer.(int); failed {
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q,"message":"refused here"}`, status, strings.ReplaceAll(http.StatusText(status), " ", ""))
			return
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

func (s *server) connection() *rest.Config {
	return &rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{CAData: s.ca()}}
}

func (s *server) cluster(t *testing.T) *Cluster {
	t.Helper()
	return testkit.Value(New(s.connection()))(t)
}

const tokenPath = "POST /api/v1/namespaces/pullpass/serviceaccounts/pullpass-remote/token"

func issued(token string) map[string]any {
	return map[string]any{"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
		"status": map[string]any{"token": token, "expirationTimestamp": "2026-03-04T05:06:07Z"}}
}

func TestApplyForUser(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	const user = `oidc:"x": [USER]`
	testkit.Must(t, s.cluster(t).Apply(t.Context(), user))
	const bindings = "PATCH /apis/rbac.authorization.k8s.io/v1/clusterrolebindings/"
	own := fmt.Sprintf("pullpass-user-%x", sha256.Sum256([]byte(user)))[:len("pullpass-user-")+8]
	for _, name := range []string{own, own + "-issuer"} {
		var o struct {
			Subjects []struct{ Kind, Name string }
		}
		testkit.Must(t, json.Unmarshal([]byte(s.got[bindings+name]), &o))
		if len(o.Subjects) != 1 || o.Subjects[0].Kind != "User" || o.Subjects[0].Name != user {
			t.Errorf("%s: %s", name, s.got[bindings+name])
		}
	}
	if len(s.got) != 3 {
		t.Errorf("sent: %v", s.got)
	}
}

func TestApplyNamesTheObjectThatFails(t *testing.T) {
	t.Parallel()
	const path = "PATCH /api/v1/namespaces/pullpass/serviceaccounts/pullpass-remote"
	s := newServer(t, map[string]any{path: http.StatusForbidden})
	err := s.cluster(t).Apply(t.Context(), "")
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "ServiceAccount pullpass-remote: ") {
		t.Error(err)
	}
}

func TestIssuer(t *testing.T) {
	t.Parallel()
	const path = "GET /.well-known/openid-configuration"
	s := newServer(t, map[string]any{path: map[string]string{"issuer": "https://issuer.example.com"}})
	if issuer := testkit.Value(s.cluster(t).Issuer(t.Context()))(t); issuer != "https://issuer.example.com" {
		t.Error(issuer)
	}
	for _, answer := range []any{map[string]string{}, "text", http.StatusForbidden} {
		s := newServer(t, map[string]any{path: answer})
		if issuer, err := s.cluster(t).Issuer(t.Context()); err == nil {
			t.Errorf("%v: issuer %q", answer, issuer)
		}
	}
}

func TestTokenDoesNotPrint(t *testing.T) {
	t.Parallel()
	s := newServer(t, map[string]any{tokenPath: issued("the-secret")})
	token := testkit.Value(s.cluster(t).Token(t.Context()))(t)
	if token.Reveal() != "the-secret" || token.Expires.IsZero() {
		t.Errorf("%q until %s", token.Reveal(), token.Expires)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		if text := fmt.Sprintf(verb, token); strings.Contains(text, "secret") {
			t.Errorf("%s prints %s", verb, text)
		}
	}
	if !strings.Contains(s.got[tokenPath], `"expirationSeconds":259200`) {
		t.Errorf("sent %s", s.got[tokenPath])
	}
	s = newServer(t, map[string]any{tokenPath: issued("")})
	if _, err := s.cluster(t).Token(t.Context()); err == nil {
		t.Error("no token is not an error")
	}
}

func TestMissing(t *testing.T) {
	t.Parallel()
	const path = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
	rights := []Right{{Verb: "get", Resource: "pods"}, {Verb: "patch", Group: "pullpass.dev", Resource: "accesspolicies/status", Namespace: "a", Name: "b"}}
	for _, test := range []struct {
		answer any
		want   string
		fails  bool
	}{
		{map[string]any{"status": map[string]any{"allowed": true}}, "[]", false},
		{map[string]any{"status": map[string]any{"allowed": false}}, "[get pods patch accesspolicies/status.pullpass.dev called b in a]", false},
		{http.StatusForbidden, "[]", true},
	} {
		s := newServer(t, map[string]any{path: test.answer})
		missing, err := s.cluster(t).Missing(t.Context(), rights)
		if fmt.Sprint(missing) != test.want || (err != nil) != test.fails {
			t.Errorf("%v: %v, %v", test.answer, missing, err)
		}
		const last = `"resourceAttributes":{"namespace":"a","verb":"patch","group":"pullpass.dev","resource":"accesspolicies","subresource":"status","name":"b"}`
		if !test.fails && !strings.Contains(s.got[path], last) {
			t.Errorf("asked %s", s.got[path])
		}
	}
}

func TestUnserved(t *testing.T) {
	t.Parallel()
	const path = "GET /apis/pullpass.dev/v1beta1"
	served := func(names ...string) any {
		list := metav1.APIResourceList{}
		for _, name := range names {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: name})
		}
		return list
	}
	for _, test := range []struct {
		answer any
		want   string
		fails  bool
	}{
		{served("accesspolicies", "accesspolicies/status", "repositoryaccesses"), "[]", false},
		{served("accesspolicies/status", "repositoryaccesses"), "[accesspolicies]", false},
		{http.StatusNotFound, "[accesspolicies repositoryaccesses]", false},
		{http.StatusForbidden, "[]", true},
		{"text", "[]", true},
	} {
		s := newServer(t, map[string]any{path: test.answer})
		unserved, err := s.cluster(t).Unserved(t.Context(), "pullpass.dev/v1beta1", []string{"accesspolicies", "repositoryaccesses"})
		if fmt.Sprint(unserved) != test.want || (err != nil) != test.fails {
			t.Errorf("%v: %v, %v", test.answer, unserved, err)
		}
	}
}

// files writes those of an account at the server, and returns their contents.
func files(t *testing.T, s *server) map[string][]byte {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "made")
	token := Token{raw: "first"}
	if hasCA := testkit.Value(s.cluster(t).Write(dir, `a"b`, "", token))(t); !hasCA {
		t.Error("the CA is not written")
	}
	all := map[string][]byte{}
	for _, name := range []string{KubeconfigFile, CAFile, TokenFile} {
		path := filepath.Join(dir, name)
		all[name] = []byte(testkit.Read(t, path))
		if mode := testkit.Value(os.Stat(path))(t).Mode(); mode != 0o600 {
			t.Errorf("%s: mode %s", name, mode)
		}
	}
	testkit.Must(t, WriteToken(dir, Token{raw: "second"}))
	if content := testkit.Read(t, filepath.Join(dir, TokenFile)); content != "second" {
		t.Errorf("token %q", content)
	}
	if entries := testkit.Value(os.ReadDir(dir))(t); len(entries) != len(all) {
		t.Errorf("left over: %v", entries)
	}
	return all
}

const secretPath = "/api/v1/namespaces/pullpass/secrets/cluster-a"

func TestRenew(t *testing.T) {
	t.Parallel()
	away := newServer(t, map[string]any{tokenPath: issued("renewed")})
	data := files(t, away)
	home := newServer(t, map[string]any{
		"GET " + secretPath: map[string]any{"kind": "Secret", "apiVersion": "v1", "metadata": map[string]any{"name": "cluster-a", "resourceVersion": "7"}, "data": data},
		"PUT " + secretPath: map[string]any{"kind": "Secret", "apiVersion": "v1"},
	})
	if token := testkit.Value(Renew(t.Context(), home.connection(), "pullpass", "cluster-a"))(t); token.Reveal() != "renewed" {
		t.Errorf("token %q", token.Reveal())
	}
	var written struct {
		Metadata struct{ ResourceVersion string }
		Data     map[string][]byte
	}
	testkit.Must(t, json.Unmarshal([]byte(home.got["PUT "+secretPath]), &written))
	data[TokenFile] = []byte("renewed")
	if !reflect.DeepEqual(written.Data, data) || written.Metadata.ResourceVersion != "7" {
		t.Errorf("written: %s", home.got["PUT "+secretPath])
	}
}

// Nothing is written unless there is a new token. The file system is not read.
func TestRenewRefuses(t *testing.T) {
	t.Parallel()
	away := newServer(t, map[string]any{tokenPath: http.StatusForbidden})
	good := files(t, away)
	for name, change := range map[string]func(map[string][]byte){
		"no files":        func(f map[string][]byte) { clear(f) },
		"no token":        func(f map[string][]byte) { delete(f, TokenFile) },
		"no kubeconfig":   func(f map[string][]byte) { f[KubeconfigFile] = []byte("x") },
		"no such context": func(f map[string][]byte) { f[KubeconfigFile] = []byte("current-context: x") },
		"no such cluster": func(f map[string][]byte) {
			f[KubeconfigFile] = []byte("current-context: x\ncontexts: [{name: x, context: {cluster: y}}]")
		},
		"no TLS": func(f map[string][]byte) {
			f[KubeconfigFile] = []byte(strings.Replace(string(f[KubeconfigFile]), "https:", "http:", 1))
			delete(f, CAFile)
		},
		"many aliases": func(f map[string][]byte) {
			f[KubeconfigFile] = []byte("x: &a " + strings.Repeat("x", 5000) + "\ny: [" + strings.Repeat("*a,", 5000) + "]")
		},
		"a token refused":  func(map[string][]byte) {},
		"another's server": func(f map[string][]byte) { f[CAFile] = nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := maps.Clone(good)
			change(data)
			home := newServer(t, map[string]any{"GET " + secretPath: map[string]any{"kind": "Secret", "apiVersion": "v1", "data": data}})
			_, err := Renew(t.Context(), home.connection(), "pullpass", "cluster-a")
			if err == nil || !strings.Contains(err.Error(), "secret cluster-a: ") || home.got["PUT "+secretPath] != "" {
				t.Errorf("%v; written %q", err, home.got["PUT "+secretPath])
			}
			if refused := name == "a token refused" || name == "another's server"; errors.Is(err, errNotOurs) == refused {
				t.Error(err)
			}
		})
	}
	if _, err := Renew(t.Context(), newServer(t, map[string]any{"GET " + secretPath: http.StatusForbidden}).connection(), "pullpass", "cluster-a"); !apierrors.IsForbidden(err) {
		t.Error(err)
	}
}

// The token of a user is not ours to write.
func TestWriteForUser(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "made")
	c := testkit.Value(New(&rest.Config{Host: "https://api.example.com", TLSClientConfig: rest.TLSClientConfig{ServerName: "other.example.com"}}))(t)
	testkit.Mkdir(t, dir)
	testkit.Put(t, filepath.Join(dir, TokenFile), "of an earlier account")
	testkit.Put(t, filepath.Join(dir, CAFile), "of an earlier account")
	if hasCA := testkit.Value(c.Write(dir, "a", "/var/run/secrets/a/token", Token{}))(t); hasCA {
		t.Error("a CA is written")
	}
	kubeconfig := testkit.Read(t, filepath.Join(dir, KubeconfigFile))
	for _, want := range []string{"tokenFile: /var/run/secrets/a/token\n", "tls-server-name: other.example.com\n"} {
		if !strings.Contains(kubeconfig, want) {
			t.Errorf("without %s:\n%s", want, kubeconfig)
		}
	}
	if entries := testkit.Value(os.ReadDir(dir))(t); len(entries) != 1 {
		t.Errorf("written: %v", entries)
	}
}
