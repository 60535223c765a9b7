// Package pullpass runs "pullpass serve" as a process, asks it for tokens and reads its audit lines.
package pullpass

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	cryptotls "crypto/tls"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/programs"
)

const (
	startLimit = 30 * time.Second
	auditLimit = 5 * time.Second // from an answer to its audit line
)

// Issuer is the issuer of the registry tokens.
const Issuer = "pullpass.example.com"

// Proxy is a running Pullpass.
type Proxy struct {
	// URL is https://localhost:port. Not 127.0.0.1: clients refuse a realm at a loopback address unless the registry is there as well.
	URL string

	process *process.Process
	client  *http.Client
	audit   lines

	mu      sync.Mutex
	secrets []string // tokens that were presented or issued: none may appear in what the process writes
}

// Start runs Pullpass until the test ends. Its TLS certificate is of ca.
func Start(t testing.TB, ca *certs.CA, config Config) *Proxy {
	t.Helper()
	dir := t.TempDir()
	serving := ca.Server(t, "pullpass")
	address := process.FreeAddress(t)
	policy := filepath.Join(dir, "policy.yaml")
	writeFile(t, policy, config.Policy)
	if config.Signing.KeyFile == "" {
		config.Signing.ManagedDir = filepath.Join(dir, "keys")
	}
	content, err := json.MarshalIndent(file{
		APIVersion:  "pullpass.dev/v1alpha1",
		Kind:        "ProxyConfiguration",
		Server:      server{Address: address, TLS: tls{CertFile: serving.CertFile, KeyFile: serving.KeyFile}},
		Admin:       admin{Address: process.FreeAddress(t)},
		Clusters:    config.Clusters,
		Registries:  []registry{{Service: config.Service, Issuer: Issuer, Signing: config.Signing}},
		PolicyFiles: []string{policy},
	}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	configFile := filepath.Join(dir, "config.yaml")
	writeFile(t, configFile, string(content))

	transport := &http.Transport{TLSClientConfig: &cryptotls.Config{RootCAs: ca.Pool()}}
	t.Cleanup(transport.CloseIdleConnections)
	p := &Proxy{
		URL:    "https://localhost" + address[strings.LastIndex(address, ":"):],
		client: &http.Client{Transport: transport, Timeout: 30 * time.Second},
	}
	cmd := exec.Command(programs.Pullpass(t), "serve", "--config", configFile)
	cmd.Stdout = &p.audit
	p.process = process.Start(t, cmd)
	p.process.Await(t, startLimit, func(ctx context.Context) error {
		_, err := p.fetch(ctx, "/.well-known/jwks.json")
		return err
	})
	t.Cleanup(func() { p.checkSecrets(t) })
	return p
}

// Stop ends Pullpass before the test does.
func (p *Proxy) Stop(t testing.TB) {
	t.Helper()
	if err := p.process.Stop(); err != nil {
		t.Fatalf("stop pullpass: %v", err)
	}
}

// Certificates is the trust bundle that Pullpass publishes for registries (PEM).
func (p *Proxy) Certificates(t testing.TB) []byte {
	t.Helper()
	return p.published(t, "/certificates.pem")
}

// JWKS is the key set that Pullpass publishes for registries.
func (p *Proxy) JWKS(t testing.TB) []byte {
	t.Helper()
	return p.published(t, "/.well-known/jwks.json")
}

func (p *Proxy) published(t testing.TB, path string) []byte {
	t.Helper()
	content, err := p.fetch(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func (p *Proxy) fetch(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s: %s", path, resp.Status, content)
	}
	return content, nil
}

// Answer is what the token endpoint answered, and what Pullpass wrote to its audit log about it.
type Answer struct {
	Status int
	Header http.Header
	Body   Body
	Audit  Event
}

// Body is the body of an answer: a token, or an error in the registry's form and in that of RFC 6749.
type Body struct {
	Token       string    `json:"token"`
	AccessToken string    `json:"access_token"`
	ExpiresIn   int       `json:"expires_in"`
	IssuedAt    time.Time `json:"issued_at"`
	Scope       *string   `json:"scope"`
	Refresh     string    `json:"refresh_token"`

	Errors []struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"errors"`
	Error            string `json:"error"`
	ErrorDescription string `json:"error_description"`
}

// Get asks as most clients do: GET, the token as the password of Basic.
func (p *Proxy) Get(t testing.TB, service, token string, scopes ...string) Answer {
	t.Helper()
	query := url.Values{"service": {service}, "scope": scopes}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.URL+"/token?"+query.Encode(), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth("serviceaccount", token)
	return p.ask(t, req, token)
}

// Post asks as containerd does: POST, the token as the password in the form.
func (p *Proxy) Post(t testing.TB, service, token string, scopes ...string) Answer {
	t.Helper()
	form := url.Values{
		"grant_type": {"password"}, "client_id": {"containerd-client"}, "username": {"serviceaccount"},
		"service": {service}, "scope": {strings.Join(scopes, " ")}, "password": {token},
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.URL+"/token", strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
	return p.ask(t, req, token)
}

// ask expects that no other request is under way: the next audit line is about this one.
func (p *Proxy) ask(t testing.TB, req *http.Request, token string) Answer {
	t.Helper()
	before := len(p.Audit(t))
	resp, err := p.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer := Answer{Status: resp.StatusCode, Header: resp.Header}
	if err := json.NewDecoder(resp.Body).Decode(&answer.Body); err != nil {
		t.Fatalf("the body of %s %s (%s) is not the JSON that it should be: %v", req.Method, req.URL.Path, resp.Status, err)
	}
	p.NeverLog(token)
	p.NeverLog(answer.Body.Token)
	for deadline := time.Now().Add(auditLimit); ; time.Sleep(5 * time.Millisecond) {
		events := p.Audit(t)
		if len(events) == before+1 {
			answer.Audit = events[before]
			return answer
		}
		if len(events) > before+1 || time.Now().After(deadline) {
			t.Fatalf("%d audit lines about one request, want 1", len(events)-before)
		}
	}
}

func writeFile(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
