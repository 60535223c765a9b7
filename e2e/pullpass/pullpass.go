// Package pullpass runs "pullpass serve" as a process, asks it for tokens and reads its audit lines.
package pullpass

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/secrets"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	startLimit = 2 * time.Minute
	auditLimit = 30 * time.Second // on a machine that is busy, from an answer to its audit line
	eventLimit = 3 * time.Minute  // for an action of a kubelet or a client
	readyLimit = 3 * time.Minute
)

// Issuer is the issuer of the registry tokens.
const Issuer = "pullpass.example.com"

// Proxy is a running Pullpass.
type Proxy struct {
	// URL is https://localhost:port. Not 127.0.0.1: clients refuse a realm at a loopback address unless the registry is there as well.
	URL string
	// GatewayURL is https://localhost:port, too, or what the configuration says; empty: there is no gateway.
	GatewayURL string
	// GatewayAddress is where the gateway listens, for something that passes connections on to it.
	GatewayAddress string
	// ConfigFile is its configuration.
	ConfigFile string

	admin   string // URL of the admin listener
	process *process.Process
	ca      *certs.CA
	client  *http.Client
	audit   audit
	answers io.Writer // for package secrets: all that it answers but tokens

	mu      sync.Mutex
	secrets map[string]bool // tokens that were presented or issued: none may appear in what the process writes
}

// plenty is what no test asks for: the load of many nodes comes from one ServiceAccount and one address here.
var plenty = Limit{Rate: 100_000, Burst: 100_000}

// Start runs Pullpass until the test ends. Its TLS certificate is of ca.
func Start(t testing.TB, ca *certs.CA, config Config) *Proxy {
	t.Helper()
	dir := t.TempDir()
	serving := ca.Server(t, "pullpass", config.Names...)
	address := process.FreeAddress(t)
	policy := filepath.Join(dir, "policy.yaml")
	testenv.WriteFile(t, policy, config.Policy)
	if config.Signing.KeyFile == "" && config.Signing.ManagedDir == "" {
		config.Signing.ManagedDir = filepath.Join(dir, "keys")
	}
	adminAddress := process.FreeAddress(t)
	var front *gateway
	var gatewayURL, gatewayAddress string
	if len(config.Upstreams) > 0 {
		// A certificate of its own: that of the public listener would hide that the other one was not read.
		serving := ca.Server(t, "gateway", config.Names...)
		gatewayAddress = process.FreeAddress(t)
		gatewayURL = cmp.Or(config.GatewayURL, "https://localhost"+gatewayAddress[strings.LastIndex(gatewayAddress, ":"):])
		front = &gateway{Address: gatewayAddress, TLS: tls{CertFile: serving.CertFile, KeyFile: serving.KeyFile}, URL: gatewayURL, Service: config.Service}
	}
	content := testenv.Value(json.MarshalIndent(file{
		APIVersion: cmp.Or(config.APIVersion, "pullpass.dev/v1beta1"),
		Kind:       "ProxyConfiguration",
		Server: server{
			Address:        address,
			TLS:            tls{CertFile: serving.CertFile, KeyFile: serving.KeyFile, ClientCAFile: config.ClientCAFile},
			TrustedProxies: config.TrustedProxies,
			ShutdownDelay:  config.ShutdownDelay,
		},
		Admin:       admin{Address: adminAddress, Console: config.Console},
		Clusters:    config.Clusters,
		Identities:  config.Identities,
		Registries:  []registry{{Service: config.Service, Issuer: Issuer, Signing: config.Signing, TokenLifetime: config.TokenLifetime}},
		Gateway:     front,
		Upstreams:   config.Upstreams,
		PolicyFiles: []string{policy},
		State:       config.State,
		Limits:      limits{cmp.Or(config.PerServiceAccount, plenty), plenty},
		Audit:       auditFile{config.AuditFile},
	}, "", "  "))(t)
	configFile := filepath.Join(dir, "config.yaml")
	testenv.WriteFile(t, configFile, string(content))

	p := &Proxy{
		URL:        "https://localhost" + address[strings.LastIndex(address, ":"):],
		GatewayURL: gatewayURL, GatewayAddress: gatewayAddress,
		ConfigFile: configFile,
		admin:      "http://" + adminAddress,
		ca:         ca,
		client:     &http.Client{Transport: ca.Transport(t), Timeout: 30 * time.Second},
		audit:      audit{schema: auditSchema(t), byClient: map[string]Event{}},
		secrets:    map[string]bool{},
		answers:    secrets.Seen("pullpass-answers"),
	}
	cmd := exec.Command(cmp.Or(config.Program, programs.Pullpass(t)), "serve", "--config", configFile)
	cmd.Env = append(os.Environ(), config.Environment...)
	cmd.Stdout = &p.audit
	p.process = process.Start(t, cmd)
	p.process.Await(t, startLimit, func(ctx context.Context) error {
		_, err := p.fetch(ctx, "/.well-known/jwks.json")
		return err
	})
	t.Cleanup(func() { p.checkOutput(t) })
	t.Cleanup(func() { p.capture(config.Signing) })
	return p
}

// StartReady is Start, and waits until Pullpass has read what it needs, such as the objects of a cluster.
func StartReady(t testing.TB, ca *certs.CA, config Config) *Proxy {
	t.Helper()
	p := Start(t, ca, config)
	testenv.Await(t, readyLimit, "Pullpass is ready", func() bool { return p.IsReady(t.Context()) })
	return p
}

// Stop ends Pullpass before the test does.
func (p *Proxy) Stop(t testing.TB) {
	t.Helper()
	if err := p.process.Stop(); err != nil {
		t.Fatalf("stop pullpass: %v", err)
	}
}

// Kill ends Pullpass at once, as a crash does.
func (p *Proxy) Kill(t testing.TB) { t.Helper(); p.process.Kill(t) }

// Freeze stops Pullpass where it is, without ending it. Thaw ends that.
func (p *Proxy) Freeze(t testing.TB) { t.Helper(); p.process.Freeze(t) }

// Thaw lets Pullpass go on after Freeze.
func (p *Proxy) Thaw(t testing.TB) { t.Helper(); p.process.Thaw(t) }

// WritePolicy replaces the policy file, at once and complete.
func (p *Proxy) WritePolicy(t testing.TB, content string) {
	t.Helper()
	file := filepath.Join(filepath.Dir(p.ConfigFile), "policy.yaml")
	testenv.WriteFile(t, file+".new", content)
	testenv.Must(t, os.Rename(file+".new", file))
}

// Address is where Pullpass listens, for something that passes connections on to it.
func (p *Proxy) Address() string { return "127.0.0.1" + p.URL[strings.LastIndex(p.URL, ":"):] }

// Command runs another command of Pullpass with the same configuration, and returns what it printed.
func (p *Proxy) Command(t testing.TB, name string, args ...string) string {
	t.Helper()
	output := testenv.Value(p.TryCommand(t, name, args...))(t)
	return output
}

// TryCommand is Command where it may fail. The error holds what was printed then.
func (p *Proxy) TryCommand(t testing.TB, name string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), programs.Pullpass(t), append([]string{name, "--config", p.ConfigFile}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	fmt.Fprintf(secrets.Seen("pullpass-"+name), "%s%s", output, &stderr)
	if err != nil {
		return "", fmt.Errorf("pullpass %s %q: %w\n%s%s", name, args, err, output, &stderr)
	}
	return string(output), nil
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
	content := testenv.Value(p.fetch(t.Context(), path))(t)
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
