package config

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

const filesConfig = `
apiVersion: pullpass.dev/v1beta1
kind: ProxyConfiguration
server:
  tls: {certFile: tls.crt, keyFile: tls.key}
clusters:
- name: a
  issuer: https://a.example.com
  audiences: [registry.example.com]
  discovery: {caFile: ca.crt, tokenFile: token}
  kubernetes: {manifestFiles: [serviceaccounts.yaml]}
- name: b
  issuer: https://b.example.com
  audiences: [registry.example.com]
  discovery: {jwksFile: jwks.json}
  node: {proof: {clientCAFile: nodes.crt}}
  kubernetes: {kubeconfigFile: kubeconfig}
identities:
- {name: ci, issuer: "https://ci.example.com", profile: generic, audiences: [a], discovery: {caFile: ci-ca.crt, tokenFile: ci-token}}
- {name: spire, issuer: "https://spire.example.com", profile: spiffe, audiences: [a], discovery: {jwksFile: spire.json}}
registries:
- service: files.example.com
  issuer: pullpass.example.com
  signing: {certFile: sign.crt, keyFile: sign.key, caFile: sign-ca.crt}
- service: managed.example.com
  issuer: pullpass.example.com
  signing: {managedDir: keys}
policyFiles: [policy.yaml]
audit: {file: log/audit.log}
`

func filesIn(t *testing.T, dir string) *Config {
	t.Helper()
	c := testkit.Value(Parse([]byte(filesConfig), "config.yaml", dir))(t)
	return c
}

func TestCheckFilesNamesEachMissingFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	err := filesIn(t, dir).CheckFiles()
	if !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("error %v, want one that is fs.ErrNotExist", err)
	}
	got := strings.ReplaceAll(err.Error(), dir, "DIR")
	var want []string
	for _, f := range [][2]string{
		{"clusters[0].discovery.caFile", "ca.crt"},
		{"clusters[0].discovery.tokenFile", "token"},
		{"clusters[0].kubernetes.manifestFiles[0]", "serviceaccounts.yaml"},
		{"clusters[1].discovery.jwksFile", "jwks.json"},
		{"clusters[1].kubernetes.kubeconfigFile", "kubeconfig"},
		{"identities[0].discovery.caFile", "ci-ca.crt"},
		{"identities[0].discovery.tokenFile", "ci-token"},
		{"identities[1].discovery.jwksFile", "spire.json"},
		{"registries[0].signing.certFile", "sign.crt"},
		{"registries[0].signing.keyFile", "sign.key"},
		{"registries[0].signing.caFile", "sign-ca.crt"},
		{"policyFiles[0]", "policy.yaml"},
	} {
		want = append(want, "config.yaml: "+f[0]+": stat DIR/"+f[1]+": no such file or directory; "+
			"put the file there or correct its name, which is relative to the configuration file")
	}
	want = append(want, "config.yaml: audit.file: stat DIR/log: no such file or directory; make the directory")
	if want := strings.Join(want, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestCheckFilesAcceptsWhatIsThere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"ca.crt", "token", "serviceaccounts.yaml", "jwks.json", "kubeconfig", "sign.crt", "sign.key", "sign-ca.crt", "policy.yaml", "ci-ca.crt", "ci-token", "spire.json"} {
		testkit.Put(t, filepath.Join(dir, name), "")
	}
	testkit.Mkdir(t, filepath.Join(dir, "log"))
	c := filesIn(t, dir)
	if err := c.CheckFiles(); err != nil {
		t.Errorf("before anything is made: %v", err)
	}
	testkit.Mkdir(t, filepath.Join(dir, "keys"))
	testkit.Put(t, filepath.Join(dir, "log/audit.log"), "")
	if err := c.CheckFiles(); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func TestCheckFilesRefusesOtherThingsThanFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"ca.crt", "token", "serviceaccounts.yaml", "jwks.json", "kubeconfig", "sign.crt", "sign.key", "sign-ca.crt", "ci-ca.crt", "ci-token", "spire.json"} {
		testkit.Put(t, filepath.Join(dir, name), "")
	}
	testkit.Mkdir(t, filepath.Join(dir, "policy.yaml"))
	testkit.Mkdir(t, filepath.Join(dir, "log/audit.log"))
	testkit.Put(t, filepath.Join(dir, "keys"), "")
	c := filesIn(t, dir)
	check := func(want string) {
		t.Helper()
		err := c.CheckFiles()
		if err == nil {
			t.Fatalf("no error, want\n%s", want)
		}
		if got := strings.ReplaceAll(err.Error(), dir, "DIR"); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
	check("config.yaml: registries[1].signing.managedDir: DIR/keys is not a directory; name one for the signing keys\n" +
		"config.yaml: policyFiles[0]: DIR/policy.yaml is not a regular file but a directory; name one\n" +
		"config.yaml: audit.file: DIR/log/audit.log is a directory; name a file in it")

	testkit.Remove(t, filepath.Join(dir, "log"))
	testkit.Put(t, filepath.Join(dir, "log"), "")
	testkit.Remove(t, filepath.Join(dir, "keys"))
	testkit.Remove(t, filepath.Join(dir, "policy.yaml"))
	testkit.Put(t, filepath.Join(dir, "policy.yaml"), "")
	check("config.yaml: audit.file: stat DIR/log/audit.log: not a directory")
}

// Missing directories of keys are made, so check says when they cannot be.
func TestCheckFilesAcceptsDirectoriesThatCanBeMade(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	testkit.Put(t, filepath.Join(dir, "file"), "")
	for _, test := range []struct{ name, want string }{
		{filepath.Join(dir, "deep/er/keys"), ""},
		{"/proc/sys", ""}, // with trust jwks, keys that are there may never change
		{filepath.Join(dir, "file/deep/keys"), "DIR/file is not a directory; name one for the signing keys"},
		{"/proc/sys/deep/keys", "/proc/sys/deep/keys cannot be made: access /"}, // not even by root
	} {
		c := &Config{File: "config.yaml", Registries: []Registry{{Signing: Signing{ManagedDir: test.name}}}, Assertions: &Assertions{ManagedDir: test.name}}
		got := ""
		if err := c.CheckFiles(); err != nil {
			got = strings.ReplaceAll(err.Error(), dir, "DIR")
		}
		if test.want == "" {
			if got != "" {
				t.Errorf("%s: %s", test.name, got)
			}
			continue
		}
		faults := strings.Split(got, "\n")
		for i, field := range []string{"registries[0].signing.managedDir", "assertions.managedDir"} {
			if want := "config.yaml: " + field + ": " + test.want; len(faults) != 2 || !strings.HasPrefix(faults[i], want) {
				t.Errorf("%s:\n%s\nwant\n%s", test.name, got, want)
			}
		}
	}
}

func TestListenersNeedTLSOrLoopback(t *testing.T) {
	t.Parallel()
	const noCert = "config.yaml: server.tls.certFile: is missing; name the certificate for the name that clients use, or serve a loopback address with --insecure-http"
	const noKey = "config.yaml: server.tls.keyFile: is missing; name the private key of certFile, or serve a loopback address with --insecure-http"
	notLoopback := func(address string) string {
		return `config.yaml: server.address: is not a loopback address ("` + address + `"); --insecure-http sends tokens in the clear, so write 127.0.0.1:PORT`
	}
	for _, test := range []struct {
		name     string
		server   Server
		nodeCAs  string // of the cluster
		insecure bool
		want     string
	}{
		{"TLS", Server{Address: ":8443", TLS: TLSFiles{CertFile: "c", KeyFile: "k"}}, "", false, ""},
		{"no TLS", Server{Address: "127.0.0.1:1"}, "", false, noCert + "\n" + noKey},
		{"no certificate", Server{Address: ":1", TLS: TLSFiles{KeyFile: "k"}}, "", false, noCert},
		{"no key", Server{Address: ":1", TLS: TLSFiles{CertFile: "c"}}, "", false, noKey},
		{"HTTP on 127.0.0.1", Server{Address: "127.0.0.1:1"}, "", true, ""},
		{"HTTP on localhost", Server{Address: "localhost:1"}, "", true, ""},
		{"HTTP on ::1", Server{Address: "[::1]:1"}, "", true, ""},
		{"HTTP everywhere", Server{Address: ":1"}, "", true, notLoopback(":1")},
		{"HTTP on all addresses", Server{Address: "0.0.0.0:1"}, "", true, notLoopback("0.0.0.0:1")},
		{"HTTP on an address", Server{Address: "192.0.2.1:1"}, "", true, notLoopback("192.0.2.1:1")},
		{"HTTP on a name", Server{Address: "localhost.example.com:1"}, "", true, notLoopback("localhost.example.com:1")},
		// A setting for security must not be dropped without a word.
		{"HTTP with client certificates", Server{Address: "127.0.0.1:1", TLS: TLSFiles{ClientCAFile: "ca"}}, "", true,
			`config.yaml: server.tls.clientCAFile: asks for client certificates ("ca"), which plain HTTP has not; remove it or do without --insecure-http`},
		{"HTTP with client certificates of a cluster", Server{Address: "127.0.0.1:1"}, "ca", true,
			`config.yaml: clusters[0].node.proof.clientCAFile: asks for client certificates ("ca"), which plain HTTP has not; remove it or do without --insecure-http`},
		{"TLS with both", Server{Address: ":1", TLS: TLSFiles{CertFile: "c", KeyFile: "k", ClientCAFile: "ca"}}, "ca", false, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := ""
			c := &Config{File: "config.yaml", Server: test.server, Clusters: []Cluster{{Node: Node{Proof: Proof{ClientCAFile: test.nodeCAs}}}}}
			c.Resolve()
			if err := c.CheckListeners(test.insecure); err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}
