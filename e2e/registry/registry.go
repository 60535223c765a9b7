// Package registry runs a distribution registry as a process, over TLS on localhost: with Pullpass as its token server, with another, or
// with a file of users.
package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const startLimit = 2 * time.Minute

// Config configures one registry.
type Config struct {
	// Address is where it listens; empty: a free port of 127.0.0.1.
	Address string
	// Names are those that its certificate has, beside localhost.
	Names []string
	// Program is the registry's program, of version 2 or 3.
	Program string
	// Realm is the URL of the token endpoint; with Htpasswd, only a name; empty: the registry asks for no credential.
	Realm string
	// Service and Issuer are the aud and iss of the tokens that it accepts.
	Service, Issuer string
	// RootCertBundle (PEM) and JWKS are what it trusts, at least one of them.
	RootCertBundle, JWKS []byte
	// Htpasswd has it ask for a user and password of this file, and for no token.
	Htpasswd []byte
	// ReadOnlyStorage is the Storage of another registry, which is served here
	// as well, to be read; empty: storage of its own.
	ReadOnlyStorage string
	// RedirectURL is where blobs are, and clients are sent for them; empty: here.
	RedirectURL string
}

// Registry is a running registry.
type Registry struct {
	// Host is localhost:port.
	Host string
	// Storage is the directory that holds what was pushed.
	Storage string
	process *process.Process
}

// Mounted reports whether the registry mounted a blob of one repository into another, instead of taking an upload. It
// reads the access log.
func (r *Registry) Mounted(from, to string) bool {
	for line := range strings.Lines(r.process.Output()) {
		line = strings.ReplaceAll(line, "%2F", "/") // some clients escape it
		if strings.Contains(line, `"POST /v2/`+to+`/blobs/uploads/?`) && strings.Contains(line, "from="+from) && strings.Contains(line, `" 201 `) {
			return true
		}
	}
	return false
}

// Digest is that of the manifest with a tag, as the storage has it; empty: there is none.
func (r *Registry) Digest(t testing.TB, repository, tag string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(r.Storage, "docker/registry/v2/repositories", repository, "_manifests/tags", tag, "current/link"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(content))
}

// Log is what the registry wrote.
func (r *Registry) Log() string { return r.process.Output() }

// Address is where it listens, for something that passes connections on to it.
func (r *Registry) Address() string { return "127.0.0.1" + r.Host[strings.LastIndex(r.Host, ":"):] }

// Stop ends the registry before the test does. It finishes the requests that it has.
func (r *Registry) Stop(t testing.TB) {
	t.Helper()
	if err := r.process.Stop(); err != nil {
		t.Fatalf("stop the registry: %v", err)
	}
}

// Start runs a registry until the test ends. Its TLS certificate is of ca.
func Start(t testing.TB, ca *certs.CA, config Config) *Registry {
	t.Helper()
	dir := t.TempDir()
	address := config.Address
	if address == "" {
		address = process.FreeAddress(t)
	}
	host := "localhost" + address[strings.LastIndex(address, ":"):]
	serving := ca.Server(t, "registry", config.Names...)
	var trust []string
	if config.RootCertBundle != nil {
		trust = append(trust, "rootcertbundle: "+testenv.WriteFile(t, filepath.Join(dir, "token-ca.pem"), config.RootCertBundle))
	}
	if config.JWKS != nil {
		trust = append(trust, "jwks: "+testenv.WriteFile(t, filepath.Join(dir, "token-keys.json"), config.JWKS))
	}
	storage, maintenance := filepath.Join(dir, "data"), "{}"
	if config.ReadOnlyStorage != "" {
		storage, maintenance = config.ReadOnlyStorage, "{readonly: {enabled: true}}"
	}
	middleware := "{}"
	if config.RedirectURL != "" {
		middleware = fmt.Sprintf("{storage: [{name: redirect, options: {baseurl: %q}}]}", config.RedirectURL)
	}
	auth := fmt.Sprintf("token:\n    realm: %q\n    service: %q\n    issuer: %q\n    %s", config.Realm, config.Service, config.Issuer, strings.Join(trust, "\n    "))
	switch {
	case config.Realm == "":
		auth = "{}"
	case config.Htpasswd != nil:
		auth = fmt.Sprintf("htpasswd: {realm: %q, path: %q}", config.Realm, testenv.WriteFile(t, filepath.Join(dir, "htpasswd"), config.Htpasswd))
	}
	configFile := testenv.WriteFile(t, filepath.Join(dir, "config.yaml"), fmt.Appendf(nil, `version: 0.1
log: {level: info}
storage:
  filesystem: {rootdirectory: %q}
  delete: {enabled: true}
  maintenance: %s
middleware: %s
http:
  addr: %q
  secret: not-a-secret
  draintimeout: 10s
  tls: {certificate: %q, key: %q}
auth:
  %s
`, storage, maintenance, middleware, address, serving.CertFile, serving.KeyFile, auth))

	cmd := exec.Command(config.Program, "serve", configFile)
	cmd.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none") // version 3 exports traces otherwise
	registry := process.Start(t, cmd)
	client := &http.Client{Transport: ca.Transport(t), Timeout: startLimit}
	registry.Await(t, startLimit, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host+"/v2/", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if challenge := resp.Header.Get("WWW-Authenticate"); !strings.Contains(challenge, config.Realm) {
			return fmt.Errorf("GET /v2/: %s with the challenge %q", resp.Status, challenge)
		}
		return nil
	})
	return &Registry{Host: host, Storage: storage, process: registry}
}
