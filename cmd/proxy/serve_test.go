package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/registry/auth/token"
	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/pullpass/pullpass/internal/pkitest"
)

// issuerKey signs the tokens of all tests: RSA keys are dear.
var issuerKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

// proxy is a running service with files of its own.
type proxy struct {
	service             *service
	dir, address, admin string
	client              *http.Client
	stdout, log         *syncBuffer
	stop                func() error
}

// startService waits until the service is ready. extra are fields of its
// cluster, which may go on with further clusters.
func startService(t *testing.T, extra string) *proxy {
	t.Helper()
	p := startServiceWith(t, "  kubernetes: {manifestFiles: [serviceaccounts.yaml]}\n"+extra, nil)
	eventually(t, "the service gets ready", func() bool {
		status, _ := p.fetch(t, "http://"+p.admin+"/readyz")
		return status == http.StatusOK
	})
	return p
}

// startServiceWith runs a newTestService and waits until it listens.
func startServiceWith(t *testing.T, cluster string, files map[string]string) *proxy {
	t.Helper()
	p := newTestService(t, cluster, files)
	p.start(t)
	return p
}

// start runs the service and waits until it listens.
func (p *proxy) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.service.run(ctx) }()
	p.stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() {
		if err := p.stop(); err != nil {
			t.Errorf("the service ended with: %v\n%s", err, p.log)
		}
	})
	eventually(t, "the service listens", func() bool {
		status, _ := p.fetch(t, "http://"+p.admin+"/livez")
		return status == http.StatusOK
	})
}

// newTestService takes the fields of the cluster, and files for the directory of
// the configuration.
func newTestService(t *testing.T, cluster string, files map[string]string) *proxy {
	t.Helper()
	dir := t.TempDir()
	p := &proxy{dir: dir, address: freeAddress(t), admin: freeAddress(t), stdout: &syncBuffer{}, log: &syncBuffer{}}
	pool := writeServingCertificate(t, dir, 1)
	p.client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true,
	}}
	write(t, dir, "issuer.json", issuerJWKS(t))
	write(t, dir, "policy.yaml", policyFor("{namespace}/**"))
	write(t, dir, "serviceaccounts.yaml", "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: web, namespace: team-a, uid: uid-1}\n")
	for name, content := range files {
		write(t, dir, name, content)
	}
	write(t, dir, "pullpass.yaml", fmt.Sprintf(`
apiVersion: pullpass.dev/v1alpha1
kind: ProxyConfiguration
server: {address: %q, tls: {certFile: tls.crt, keyFile: tls.key}}
admin: {address: %q}
clusters:
- name: prod
  issuer: https://issuer.example.com
  audiences: [registry.example.com]
  discovery: {jwksFile: issuer.json}
%s
registries:
- {service: registry.example.com, issuer: pullpass.example.com}
policyFiles: [policy.yaml]
`, p.address, p.admin, cluster))
	cfg, err := LoadConfig(filepath.Join(dir, "pullpass.yaml"))
	must(t, err)
	p.service, err = newService(cfg, false, p.stdout, slog.New(slog.NewJSONHandler(p.log, nil)))
	must(t, err)
	t.Cleanup(func() { checkAuditLines(t, p.stdout.Bytes()) })
	return p
}

// configure replaces a text in the configuration file, in one step.
func (p *proxy) configure(t *testing.T, old, new string) {
	t.Helper()
	name := filepath.Join(p.dir, "pullpass.yaml")
	text, err := os.ReadFile(name)
	must(t, err)
	if strings.Count(string(text), old) != 1 {
		t.Fatalf("%q is not there once:\n%s", old, text)
	}
	p.put(t, "pullpass.yaml", strings.Replace(string(text), old, new, 1))
}

// put replaces a file in one step: nobody reads a half of it.
func (p *proxy) put(t *testing.T, name, content string) {
	t.Helper()
	write(t, p.dir, name+".next", content)
	must(t, os.Rename(filepath.Join(p.dir, name+".next"), filepath.Join(p.dir, name)))
}

// The whole of serve: the endpoint under its three names, what registries
// trust, the audit line, health, metrics, and an orderly end.
func TestServe(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	raw := serviceAccountToken(t, "https://issuer.example.com")

	status, bundle := p.fetch(t, "https://"+p.address+"/certificates.pem")
	if status != 200 {
		t.Fatalf("/certificates.pem: %d", status)
	}
	if strings.Contains(bundle, "PRIVATE") {
		t.Fatalf("/certificates.pem: %s", bundle)
	}
	for _, path := range []string{"/token", "/auth/token", "/auth/token/"} {
		access := p.exchange(t, path, raw, "repository:team-a/web:pull")
		if len(access) != 1 || access[0].Name != "team-a/web" {
			t.Errorf("%s: access %v", path, access)
		}
	}
	if status, body := p.fetch(t, "https://"+p.address+"/.well-known/jwks.json"); status != 200 || !strings.Contains(body, `"keys"`) || strings.Contains(body, `"d"`) {
		t.Errorf("/.well-known/jwks.json: %d %s", status, body)
	}
	// The admin listener's paths are not on the public one, and neither tells what it runs.
	for _, path := range []string{"/metrics", "/readyz", "/livez", "/debug/pprof/", "/"} {
		if status, _ := p.fetch(t, "https://"+p.address+path); status != http.StatusNotFound {
			t.Errorf("public %s: %d, want 404", path, status)
		}
	}
	if status, _ := p.fetch(t, "http://"+p.admin+"/debug/pprof/"); status != http.StatusNotFound {
		t.Errorf("profiling is on by default: %d", status)
	}
	if status, _ := p.fetch(t, "http://"+p.admin+"/livez"); status != 200 {
		t.Errorf("/livez: %d", status)
	}
	if _, body := p.fetch(t, "http://"+p.admin+"/readyz"); !strings.Contains(body, `"prod"`) || !strings.Contains(body, `"registry.example.com"`) {
		t.Errorf("/readyz names no dependencies: %s", body)
	}
	_, metrics := p.fetch(t, "http://"+p.admin+"/metrics")
	for _, want := range []string{
		`pullpass_exchanges_total{cluster="prod",grant_type="basic",reason="",result="granted",service="registry.example.com"} 3`,
		`pullpass_issuer_keys{cluster="prod"} 1`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics has no line %s:\n%s", want, metrics)
		}
	}
	must(t, p.stop())
	lines := 0
	for scanner := bufio.NewScanner(bytes.NewReader(p.stdout.Bytes())); scanner.Scan(); lines++ {
		var event struct {
			Result, Cluster, Namespace, CredentialID, Caller string
			ServiceAccount                                   struct{ Name, UID string }
			Granted                                          []string
		}
		must(t, json.Unmarshal(scanner.Bytes(), &event))
		if event.Result != "granted" || event.Cluster != "prod" || event.Namespace != "team-a" || event.ServiceAccount.UID != "uid-1" ||
			event.CredentialID != "JTI=id-1" || event.Caller != "127.0.0.1" || len(event.Granted) != 1 {
			t.Errorf("audit line %s", scanner.Text())
		}
	}
	if lines != 3 {
		t.Errorf("%d audit lines for 3 exchanges", lines)
	}
	if all := p.stdout.String() + p.log.String(); strings.Contains(all, strings.Split(raw, ".")[2]) {
		t.Error("a token stands in what the service wrote")
	}
}

// Policy and serving certificate are re-read when they change, also by the
// symbolic links with which Kubernetes swaps a volume; a bad file changes nothing.
func TestServeReloads(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	raw := serviceAccountToken(t, "https://issuer.example.com")
	granted := func() int { return len(p.exchange(t, "/token", raw, "repository:team-a/web:pull")) }
	if granted() != 1 {
		t.Fatal("not granted")
	}
	write(t, p.dir, "policy.yaml", "nonsense")
	eventually(t, "the bad policy is reported", func() bool { return strings.Contains(p.log.String(), "policy.yaml") })
	if granted() != 1 {
		t.Error("a bad policy replaced the good one")
	}
	write(t, p.dir, "policy.yaml", policyFor("elsewhere/**"))
	eventually(t, "the new policy counts", func() bool { return granted() == 0 })

	// A rule that reads an annotation, and then a ServiceAccount that has it.
	write(t, p.dir, "policy.yaml", policyFor("elsewhere/**")+annotationRule)
	write(t, p.dir, "serviceaccounts.yaml", "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: web, namespace: team-a, uid: uid-1, annotations: {pullpass.dev/repositories: team-a/web}}\n")
	eventually(t, "the annotation counts", func() bool { return granted() == 1 })
	write(t, p.dir, "serviceaccounts.yaml", "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: web, namespace: team-a, uid: uid-9, annotations: {pullpass.dev/repositories: team-a/web}}\n")
	eventually(t, "the recreated ServiceAccount is another one", func() bool { return granted() == 0 })

	// A key made beside the running server signs.
	_, before := p.fetch(t, "https://"+p.address+"/.well-known/jwks.json")
	var stderr bytes.Buffer
	if code := run(t.Context(), []string{"keys", "rotate", "--config", filepath.Join(p.dir, "pullpass.yaml")}, nil, io.Discard, &stderr); code != 0 {
		t.Fatal(stderr.String())
	}
	eventually(t, "the new key is published", func() bool {
		_, after := p.fetch(t, "https://"+p.address+"/.well-known/jwks.json")
		return after != before
	})
	p.exchange(t, "/token", raw, "repository:team-a/web:pull") // and the CA is still the same

	p.client.Transport.(*http.Transport).TLSClientConfig.RootCAs = writeServingCertificate(t, p.dir, 2)
	eventually(t, "the new certificate is served", func() bool {
		response, err := p.client.Get("https://" + p.address + "/certificates.pem")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		return response.TLS.PeerCertificates[0].SerialNumber.Int64() == 2
	})
}

// The settings of a cluster reach the code that enforces them.
func TestServeJudgesAsConfigured(t *testing.T) {
	t.Parallel()
	p := startService(t, "  node: {claim: required}\n  maxTokenLifetime: 2h\n  bound: pod\n")
	type object = map[string]any
	for reason, change := range map[string]func(claims object){
		"token_audience":  func(c object) { c["aud"] = []string{"https://kubernetes.default.svc"} },
		"token_no_node":   func(c object) { delete(c["kubernetes.io"].(object), "node") },
		"token_not_bound": func(c object) { delete(c["kubernetes.io"].(object), "pod") },
		"token_lifetime":  func(c object) { c["exp"] = time.Now().Add(3 * time.Hour).Unix() },
	} {
		claims := tokenClaims("https://issuer.example.com")
		change(claims)
		if status := p.status(t, signToken(t, claims)); status != http.StatusUnauthorized || !strings.Contains(p.stdout.String(), `"reason":"`+reason+`"`) {
			t.Errorf("%s: status %d", reason, status)
		}
	}
}

// One cluster's issuer that is down is that cluster's trouble alone: the proxy
// starts, serves the others, and says who is missing.
func TestServeWithAnIssuerDown(t *testing.T) {
	t.Parallel()
	p := startService(t, `
- name: lost
  issuer: https://127.0.0.1:1
  audiences: [registry.example.com]
`)
	if access := p.exchange(t, "/token", serviceAccountToken(t, "https://issuer.example.com"), "repository:team-a/web:pull"); len(access) != 1 {
		t.Errorf("the other cluster's token opens %v", access)
	}
	if status := p.status(t, serviceAccountToken(t, "https://127.0.0.1:1")); status != http.StatusServiceUnavailable {
		t.Errorf("a token of the lost cluster: %d", status)
	}
	status, body := p.fetch(t, "http://"+p.admin+"/readyz")
	if status != http.StatusOK || !strings.Contains(body, `{"name":"lost","healthy":false,"message":"`) || !strings.Contains(body, `{"name":"prod","healthy":true}`) {
		t.Errorf("/readyz: %d %s", status, body)
	}
}

// A slow client must not hold a connection for ever; net/http has no limits of
// its own.
func TestServerHasEveryLimit(t *testing.T) {
	t.Parallel()
	s := newServer(http.NotFoundHandler(), nil, slog.New(slog.DiscardHandler))
	if s.ReadHeaderTimeout <= 0 || s.ReadTimeout <= 0 || s.WriteTimeout <= 0 || s.IdleTimeout <= 0 || s.MaxHeaderBytes <= 0 {
		t.Errorf("a limit is missing: %+v", s)
	}
}

// What is larger than any token request is refused before it is read.
func TestServeCapsSizes(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	request, err := http.NewRequest(http.MethodGet, "https://"+p.address+"/token?service=registry.example.com", nil)
	must(t, err)
	request.Header.Set("X-Large", strings.Repeat("x", maxHeaderBytes+8<<10))
	response, err := p.client.Do(request)
	must(t, err)
	response.Body.Close()
	if response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a header of more than %d bytes: %s", maxHeaderBytes, response.Status)
	}
	// The header alone is enough: nothing of the body is waited for.
	connection := p.dial(t)
	_, err = fmt.Fprintf(connection, "POST /token HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n", 1<<20)
	must(t, err)
	response, err = http.ReadResponse(bufio.NewReader(connection), nil)
	must(t, err)
	response.Body.Close()
	if response.StatusCode != http.StatusBadRequest {
		t.Errorf("a body of 1 MiB: %s", response.Status)
	}
}

func (p *proxy) dial(t *testing.T) net.Conn {
	t.Helper()
	connection, err := tls.Dial("tcp", p.address, p.client.Transport.(*http.Transport).TLSClientConfig)
	must(t, err)
	t.Cleanup(func() { connection.Close() })
	return connection
}

func (p *proxy) fetch(t *testing.T, url string) (int, string) {
	t.Helper()
	response, err := p.client.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must(t, err)
	return response.StatusCode, string(body)
}

// status asks for a login with the token.
func (p *proxy) status(t *testing.T, raw string) int {
	t.Helper()
	return p.statusFrom(t, p.client, raw)
}

func (p *proxy) statusFrom(t *testing.T, client *http.Client, raw string) int {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, "https://"+p.address+"/token?service=registry.example.com", nil)
	must(t, err)
	request.SetBasicAuth("serviceaccount", raw)
	response, err := client.Do(request)
	must(t, err)
	_, err = io.Copy(io.Discard, response.Body)
	must(t, err)
	response.Body.Close()
	return response.StatusCode
}

// exchange asks for a token, lets distribution verify it with the published
// CA, and returns what it opens.
func (p *proxy) exchange(t *testing.T, path, raw, scope string) []*token.ResourceActions {
	t.Helper()
	_, bundle := p.fetch(t, "https://"+p.address+"/certificates.pem")
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(bundle))
	request, err := http.NewRequest(http.MethodGet, "https://"+p.address+path+"?"+url.Values{"service": {"registry.example.com"}, "scope": {scope}}.Encode(), nil)
	must(t, err)
	request.SetBasicAuth("serviceaccount", raw)
	response, err := p.client.Do(request)
	must(t, err)
	defer response.Body.Close()
	var answer struct{ Token string }
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", path, response.Status, err)
	}
	parsed, err := token.NewToken(answer.Token, []jose.SignatureAlgorithm{jose.ES256})
	must(t, err)
	claims, err := parsed.Verify(token.VerifyOptions{
		TrustedIssuers: []string{"pullpass.example.com"}, AcceptedAudiences: []string{"registry.example.com"}, Roots: roots,
	})
	if err != nil {
		t.Fatalf("%s: distribution refuses the token: %v", path, err)
	}
	return claims.Access
}

func policyFor(repositories string) string {
	return `apiVersion: pullpass.dev/v1alpha1
kind: AccessPolicy
rules:
- name: own-namespace
  subjects: [{namespaces: ["team-*"]}]
  allow: [{repositories: ["` + repositories + `"], actions: [pull]}]
`
}

func issuerJWKS(t *testing.T) string {
	t.Helper()
	jwks, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: issuerKey().Public(), KeyID: "k1", Algorithm: "RS256", Use: "sig"}}})
	must(t, err)
	return string(jwks)
}

func serviceAccountToken(t *testing.T, issuer string) string {
	return signToken(t, tokenClaims(issuer))
}

const annotationRule = `- name: asked-for
  subjects: [{namespaces: ["team-*"]}]
  annotation: pullpass.dev/repositories
  allow: [{repositories: ["team-a/**"], actions: [pull]}]
`

// tokenClaims are those of a pod of team-a/web.
func tokenClaims(issuer string) map[string]any {
	now := time.Now()
	return map[string]any{
		"iss": issuer, "aud": []string{"registry.example.com"}, "sub": "system:serviceaccount:team-a:web", "jti": "id-1",
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(time.Hour).Unix(),
		"kubernetes.io": map[string]any{
			"namespace":      "team-a",
			"serviceaccount": map[string]string{"name": "web", "uid": "uid-1"},
			"pod":            map[string]string{"name": "web-0", "uid": "uid-2"},
			"node":           map[string]string{"name": "node1", "uid": "uid-3"},
		},
	}
}

func signToken(t *testing.T, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: issuerKey()}, (&jose.SignerOptions{}).WithHeader("kid", "k1"))
	must(t, err)
	raw, err := jwt.Signed(signer).Claims(claims).Serialize()
	must(t, err)
	return raw
}

// writeServingCertificate makes a self-signed certificate for 127.0.0.1.
func writeServingCertificate(t *testing.T, dir string, serial int64) *x509.CertPool {
	t.Helper()
	cert := pkitest.NewCA(t, nil, func(c *x509.Certificate) {
		c.SerialNumber, c.Subject, c.IPAddresses = big.NewInt(serial), pkix.Name{CommonName: "localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
		c.KeyUsage, c.ExtKeyUsage = 0, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	})
	write(t, dir, "tls.crt", string(pkitest.CertPEM(cert)))
	write(t, dir, "tls.key", string(pkitest.KeyPEM(t, cert.Key)))
	return cert.Pool()
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var lastPort atomic.Int32

// freeAddress returns one of a range that the system takes for no connection of
// its own accord: it could be in use again before it is listened on.
func freeAddress(t *testing.T) string {
	t.Helper()
	for {
		address := fmt.Sprintf("127.0.0.1:%d", 10_000+lastPort.Add(1)%20_000)
		if l, err := net.Listen("tcp", address); err == nil {
			must(t, l.Close())
			return address
		}
	}
}

// eventually waits for what happens in another goroutine.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out: %s", what)
		}
	}
}

// syncBuffer is written by the service and read by the test.
type syncBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *syncBuffer) Bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.buffer.Bytes())
}

func (b *syncBuffer) String() string { return string(b.Bytes()) }
