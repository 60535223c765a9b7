package kube

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const kubeconfig = `apiVersion: v1
kind: Config
current-context: %s
clusters:
- name: c
  cluster: {server: %q, certificate-authority: ca.crt}
- name: skips
  cluster: {server: %[2]q, insecure-skip-tls-verify: true}
- name: plain
  cluster: {server: "http://127.0.0.1:8001"}
users:
- name: u
  user: {tokenFile: token}
contexts:
- name: good
  context: {cluster: c, user: u}
- name: no-user
  context: {cluster: c, user: none}
- name: skips
  context: {cluster: skips, user: u}
- name: plain
  context: {cluster: plain, user: u}
`

// The whole path over TLS, as the user of a file with relative paths.
func TestKubeconfig(t *testing.T) {
	t.Parallel()
	s := newAPIServer(team()...)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "Bearer the-token" {
			t.Errorf("Authorization %q", got)
		}
		s.ServeHTTP(w, r)
	}))
	defer server.Close()
	dir := t.TempDir()
	ca := pkitest.PEM("CERTIFICATE", server.Certificate().Raw)
	for name, content := range map[string]string{"ca.crt": string(ca), "token": "the-token", "config": fmt.Sprintf(kubeconfig, "good", server.URL)} {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	connection := testkit.Value(Kubeconfig(filepath.Join(dir, "config")))(t)
	c := testkit.Value(NewCluster(ClusterConfig{Name: "one", REST: connection, PodChecks: true, NodeFallback: true, NodeAddresses: true}))(t)
	if facts, err := c.Lookup(t.Context(), webPod(), nil); err != nil || facts.Node.UID != "uid-node" || s.Count("get") != 5 {
		t.Errorf("facts %+v, %v", facts, err)
	}
}

func TestKubeconfigFaults(t *testing.T) {
	t.Parallel()
	const secret = "hunter2hunter2"
	in := func(context string) string {
		return strings.Replace(fmt.Sprintf(kubeconfig, context, "https://api.example.com"), "tokenFile: token", "token: "+secret, 1)
	}
	for _, test := range []struct{ name, content, want string }{
		{"a token", secret, "is not a kubeconfig: "},
		{"broken", "a: [" + secret, "is not a kubeconfig: "},
		{"another shape", "apiVersion: v1\nkind: Config\nusers: [{name: u, user: {token: [" + secret + "]}}]", "is not a kubeconfig: "},
		{"another type", "apiVersion: v1\nkind: Config\nusers: [{name: u, user: " + secret + "}]", "is not a kubeconfig: "},
		{"no base64", "apiVersion: v1\nkind: Config\nusers: [{name: u, user: {client-key-data: '!" + secret + "'}}]", "is not a kubeconfig: "},
		{"another kind", "apiVersion: v1\nkind: Pod", "write it as kubectl config view --raw --minify prints it"},
		{"empty", "", "has no current-context: choose one with kubectl config use-context"},
		{"no context", in(""), "has no current-context: choose one with kubectl config use-context"},
		{"no such context", in("none"), `context "none": `},
		{"no such user", in("no-user"), `context "no-user": `},
		{"any server", in("skips"), `context "skips": the server is not authenticated: give it an https URL and certificate-authority, without insecure-skip-tls-verify`},
		{"without TLS", in("plain"), `context "plain": the server is not authenticated`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			file := testkit.TempFile(t, "config", test.content)
			_, err := Kubeconfig(file)
			if err == nil || !strings.HasPrefix(err.Error(), file+": "+test.want) && !has(err, file+": ", test.want) || strings.Contains(err.Error(), secret) {
				t.Errorf("error %v", err)
			}
		})
	}
	large := testkit.TempFile(t, "large", "")
	testkit.Must(t, os.Truncate(large, maxKubeconfigBytes+1))
	if _, err := Kubeconfig(large); !has(err, large+": has more than 1048576 bytes") {
		t.Errorf("large: %v", err)
	}
	missing := filepath.Join(t.TempDir(), "missing")
	if _, err := Kubeconfig(missing); !has(err, missing, "no such file", "give the path of a kubeconfig") {
		t.Errorf("missing: %v", err)
	}
	if _, err := Kubeconfig(t.TempDir()); err == nil {
		t.Error("a directory was accepted")
	}
	// client-go would read these files itself, and wait for a writer.
	for _, field := range []string{"certificate-authority", "client-certificate", "client-key", "tokenFile"} {
		user, cluster := "tokenFile: token", ""
		if field == "certificate-authority" {
			cluster = ", certificate-authority: fifo"
		} else {
			user = field + ": fifo"
		}
		name := testkit.TempFile(t, "config", "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\n"+
			"clusters: [{name: c, cluster: {server: 'https://a'"+cluster+"}}]\nusers: [{name: u, user: {"+user+"}}]\n")
		testkit.Must(t, syscall.Mkfifo(filepath.Join(filepath.Dir(name), "fifo"), 0o600))
		if _, err := Kubeconfig(name); !has(err, name+": "+field+": ", "fifo is not a regular file but a FIFO") {
			t.Errorf("%s is a FIFO: %v", field, err)
		}
	}
}

func TestInCluster(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := InCluster(); !has(err, "no connection from inside the cluster: ", "run as a pod with automountServiceAccountToken, or give a kubeconfig file") {
		t.Errorf("error %v", err)
	}
	if err := requireCA(&rest.Config{Host: "https://10.0.0.1"}); !has(err, "ca.crt beside the ServiceAccount's token cannot be read") {
		t.Errorf("without CA: %v", err)
	}
	if err := requireCA(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAFile: "ca.crt"}}); err != nil {
		t.Error(err)
	}
}

func TestNewClusterFaults(t *testing.T) {
	t.Parallel()
	if _, err := NewCluster(ClusterConfig{Name: "one"}); !has(err, "cluster one: no connection is given") {
		t.Errorf("no connection: %v", err)
	}
	bad := &rest.Config{Host: "https://api.example.com", TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(t.TempDir(), "missing.crt")}}
	if _, err := NewCluster(ClusterConfig{Name: "one", REST: bad}); !has(err, "cluster one: ", "missing.crt") {
		t.Errorf("no CA: %v", err)
	}
}
