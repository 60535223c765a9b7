package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// variant is how a site differs from one that a company would have.
type variant struct {
	pprof             bool   // Go's profiles on the admin listener
	plainHTTP         bool   // as behind something that ends TLS
	oneCore           bool   // for each program
	replay            string // state.replay; empty: the default
	perServiceAccount int    // rate of limits.perServiceAccount, with a burst of four seconds; 0: the default

	env      []string          // of its programs
	clusters string            // further ones, as YAML
	files    map[string][]byte // that they name
	gateway  string            // its registry, itself and its upstreams, as YAML
	group    *group            // that Pullpass is in; nil: none of its own
}

// site is a Pullpass with an issuer, and Redis if it was asked for.
type site struct {
	options
	variant
	dir       string // configuration, keys, logs
	tokens    string // URL of the token endpoint's host
	admin     string
	issuer    string
	pullpass  *process
	processes []*process // in the order of their start
	client    *http.Client
}

// The configuration is what a company would have, with the defaults where there are any: limits are on.
const configuration = `apiVersion: pullpass.dev/v1beta1
kind: ProxyConfiguration
server:
  address: "%[1]s"
  tls: {certFile: tls.crt, keyFile: tls.key}
admin: {address: "%[2]s"}
clusters:
- name: prod-eu
  issuer: https://%[3]s
  audiences: [registry.example.com]
  discovery: {caFile: ca.crt}
registries:
- {service: registry.example.com, issuer: pullpass.example.com}
policyFiles: [policy.yaml]
`

const policy = `apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: own-namespace
  subjects: [{clusters: [prod-eu], namespaces: ["team-*"]}]
  allow: [{repositories: ["{namespace}/**"], actions: [pull]}]
- name: builders
  subjects: [{namespaces: ["team-*"], serviceAccounts: [builder]}]
  allow: [{repositories: ["{namespace}/**"], actions: [push, delete]}]
- name: mirrored
  subjects: [{namespaces: ["team-*"]}]
  services: [gateway.example.com]
  allow: [{repositories: ["ghcr.io/**"], actions: [pull]}]
- name: public
  anonymous: true
  allow: [{repositories: ["public/**"], actions: [pull]}]
deny:
- name: quarantine
  subjects: [{nodes: [node-quarantined]}]
`

// logs has what programs write all the time, apart from the configuration: Pullpass
// watches the directories of its files, and each line would be a change to look at.
const logs = "logs"

// openSite starts everything.
func openSite(ctx context.Context, o options, v variant) (_ *site, err error) {
	s := &site{options: o, variant: v}
	if s.dir, err = os.MkdirTemp("", "pullpass-loadtest-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if err := os.Mkdir(s.file(logs), 0o755); err != nil {
		return nil, err
	}
	if err := writeCertificates(s.dir); err != nil {
		return nil, err
	}
	if s.client, err = clientOf(filepath.Join(s.dir, "ca.crt")); err != nil {
		return nil, err
	}
	addresses, err := freeAddresses(4)
	if err != nil {
		return nil, err
	}
	public, admin, issuer, redis := addresses[0], addresses[1], addresses[2], addresses[3]
	s.issuer, s.admin = "https://"+issuer, "http://"+admin
	if err := s.start(ctx, s.healthy(s.issuer+"/openid/v1/jwks"), filepath.Join(o.programs, "issuer"), "-listen", issuer,
		"-keys", s.file("issuer-keys"), "-tls-cert", s.file("tls.crt"), "-tls-key", s.file("tls.key")); err != nil {
		return nil, err
	}
	config := fmt.Sprintf(configuration, public, admin, issuer)
	state := []string{}
	if o.redis {
		if err := s.startRedis(ctx, redis); err != nil {
			return nil, err
		}
		state = append(state, fmt.Sprintf("redis: {addresses: [%q]}", redis))
	}
	if v.replay != "" {
		state = append(state, "replay: "+v.replay)
	}
	config += "state: {" + strings.Join(state, ", ") + "}\n"
	config = strings.Replace(config, "registries:\n", v.clusters+"registries:\n", 1)
	config = strings.Replace(config, "policyFiles:", v.gateway+"policyFiles:", 1)
	for name, content := range v.files {
		if err := os.WriteFile(s.file(name), content, 0o600); err != nil {
			return nil, err
		}
	}
	arguments := []string{"serve", "--config", s.file("pullpass.yaml")}
	s.tokens = "https://" + public
	if rate := v.perServiceAccount; rate > 0 {
		config += fmt.Sprintf("limits: {perServiceAccount: {rate: %d, burst: %d}}\n", rate, 4*rate)
	}
	if v.pprof {
		config = strings.Replace(config, "admin: {", "admin: {pprof: true, ", 1)
	}
	if v.plainHTTP {
		s.tokens = "http://" + public
		arguments = append(arguments, "--insecure-http")
		config = strings.Replace(config, "  tls: {certFile: tls.crt, keyFile: tls.key}\n", "", 1)
	}
	if err := errors.Join(os.WriteFile(s.file("pullpass.yaml"), []byte(config), 0o600), os.WriteFile(s.file("policy.yaml"), []byte(policy), 0o600)); err != nil {
		return nil, err
	}
	program, arguments := v.group.enter(filepath.Join(o.programs, "pullpass"), arguments)
	if err := s.start(ctx, s.healthy(s.admin+"/readyz"), program, arguments...); err != nil {
		return nil, err
	}
	s.pullpass = s.processes[len(s.processes)-1]
	return s, nil
}

// close ends everything, and removes the directory unless a program failed.
func (s *site) close() error {
	var errs []error
	for i := len(s.processes) - 1; i >= 0; i-- {
		errs = append(errs, s.processes[i].stop())
	}
	if s.client != nil {
		s.client.CloseIdleConnections()
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w (everything is still in %s)", err, s.dir)
	}
	return os.RemoveAll(s.dir)
}

func (s *site) file(name string) string { return filepath.Join(s.dir, name) }

func (s *site) start(ctx context.Context, ready func(context.Context) error, program string, args ...string) error {
	env := s.env
	if s.oneCore {
		env = append(env, "GOMAXPROCS=1")
	}
	p, err := start(ctx, s.file(logs), env, program, args...)
	if err != nil {
		return err
	}
	s.processes = append(s.processes, p)
	return p.await(ctx, ready)
}

func (s *site) startRedis(ctx context.Context, address string) error {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return errors.New("redis-server is not installed: as root on Debian, .ci/install loadtest does that")
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	return s.start(ctx, listening(address), program, "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", s.dir)
}

// listening is for programs that listen when they are ready.
func listening(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

func (s *site) healthy(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := s.ask(ctx, http.MethodGet, url)
		return err
	}
}

func (s *site) ask(ctx context.Context, method, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %s", method, url, response.Status, body)
	}
	return body, err
}

// prepare has the issuer sign the tokens of some pods, so that this does not take the processors from what is measured.
func (s *site) prepare(ctx context.Context, first, pods int) error {
	const batch = 100
	for from := first; from < first+pods; from += batch {
		if _, err := s.ask(ctx, http.MethodGet, fmt.Sprintf("%s/tokens?from=%d&count=%d", s.issuer, from, min(batch, first+pods-from))); err != nil {
			return err
		}
	}
	return nil
}

// rotateSigningKey has Pullpass sign with a new key.
func (s *site) rotateSigningKey(ctx context.Context) error {
	program := filepath.Join(s.programs, "pullpass")
	if out, err := exec.CommandContext(ctx, program, "keys", "rotate", "--config", s.file("pullpass.yaml")).CombinedOutput(); err != nil {
		return fmt.Errorf("pullpass keys rotate: %w\n%s", err, out)
	}
	return nil
}

// rotateIssuerKey has the cluster publish a new key now, and sign its tokens with it later.
func (s *site) rotateIssuerKey(ctx context.Context, after time.Duration) error {
	_, err := s.ask(ctx, http.MethodPost, s.issuer+"/rotate?after="+after.String())
	return err
}

// clientOf trusts the servers of the load test and no others.
func clientOf(caFile string) (*http.Client, error) {
	ca, err := os.ReadFile(caFile)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}, Timeout: time.Minute}, nil
}
