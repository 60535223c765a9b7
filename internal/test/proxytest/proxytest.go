package proxytest

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/registry/auth/token"
	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Proxy is a proxy's directory with its configuration, and a client of the proxy. It
// serves team-a/web of cluster prod at registry.example.com.
type Proxy struct {
	Dir, Address, Admin string
	Client              *http.Client    // trusts the serving certificate
	Stdout, Log         *testkit.Buffer // of the proxy
}

// New writes a configuration with the fields of a cluster, and files beside it.
func New(t *testing.T, cluster string, files map[string]string) *Proxy {
	t.Helper()
	dir := t.TempDir()
	p := &Proxy{Dir: dir, Address: testkit.FreeAddress(t), Admin: testkit.FreeAddress(t), Stdout: &testkit.Buffer{}, Log: &testkit.Buffer{}}
	pool := WriteServingCertificate(t, dir, 1)
	p.Client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true,
	}}
	testkit.Write(t, dir, "issuer.json", kubetest.IssuerJWKS(t))
	testkit.Write(t, dir, "policy.yaml", PolicyFor("{namespace}/**"))
	testkit.Write(t, dir, "serviceaccounts.yaml", "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: web, namespace: team-a, uid: uid-1}\n")
	for name, content := range files {
		testkit.Write(t, dir, name, content)
	}
	testkit.Write(t, dir, "pullpass.yaml", fmt.Sprintf(`
apiVersion: pullpass.dev/v1beta1
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
`, p.Address, p.Admin, cluster))
	t.Cleanup(func() { CheckAuditLines(t, p.Stdout.Bytes()) })
	return p
}

// WriteServingCertificate makes a self-signed certificate for 127.0.0.1.
func WriteServingCertificate(t *testing.T, dir string, serial int64) *x509.CertPool {
	t.Helper()
	cert := pkitest.NewCA(t, nil, func(c *x509.Certificate) {
		c.SerialNumber, c.Subject, c.IPAddresses = big.NewInt(serial), pkix.Name{CommonName: "localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
		c.KeyUsage, c.ExtKeyUsage = 0, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	})
	testkit.Write(t, dir, "tls.crt", string(pkitest.CertPEM(cert)))
	testkit.Write(t, dir, "tls.key", string(pkitest.KeyPEM(t, cert.Key)))
	return cert.Pool()
}

// Configure replaces a text in the configuration file, in one step.
func (p *Proxy) Configure(t *testing.T, old, new string) {
	t.Helper()
	name := filepath.Join(p.Dir, "pullpass.yaml")
	text := testkit.Value(os.ReadFile(name))(t)
	if strings.Count(string(text), old) != 1 {
		t.Fatalf("%q is not there once:\n%s", old, text)
	}
	p.Put(t, "pullpass.yaml", strings.Replace(string(text), old, new, 1))
}

// Put replaces a file in one step: no reader sees half of it.
func (p *Proxy) Put(t *testing.T, name, content string) {
	t.Helper()
	testkit.Write(t, p.Dir, name+".next", content)
	testkit.Must(t, os.Rename(filepath.Join(p.Dir, name+".next"), filepath.Join(p.Dir, name)))
}

func (p *Proxy) Dial(t *testing.T) net.Conn {
	t.Helper()
	connection := testkit.Value(tls.Dial("tcp", p.Address, p.Client.Transport.(*http.Transport).TLSClientConfig))(t)
	t.Cleanup(func() { connection.Close() })
	return connection
}

func (p *Proxy) Fetch(t *testing.T, url string) (int, string) {
	t.Helper()
	response, err := p.Client.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.TeeReader(response.Body, testkit.Seen()))
	testkit.Must(t, err)
	return response.StatusCode, string(body)
}

// Status asks for a login with the token.
func (p *Proxy) Status(t *testing.T, raw string) int {
	t.Helper()
	return p.StatusFrom(t, p.Client, raw)
}

func (p *Proxy) StatusFrom(t *testing.T, client *http.Client, raw string) int {
	t.Helper()
	request := testkit.Value(http.NewRequest(http.MethodGet, "https://"+p.Address+"/token?service=registry.example.com", nil))(t)
	request.SetBasicAuth("serviceaccount", raw)
	response := testkit.Value(client.Do(request))(t)
	readAnswer(t, response)
	return response.StatusCode
}

// Exchange asks for a token, lets distribution verify it with the published
// CA, and returns what it opens.
func (p *Proxy) Exchange(t *testing.T, path, raw, scope string) []*token.ResourceActions {
	t.Helper()
	_, bundle := p.Fetch(t, "https://"+p.Address+"/certificates.pem")
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(bundle))
	request, err := http.NewRequest(http.MethodGet, "https://"+p.Address+path+"?"+url.Values{"service": {"registry.example.com"}, "scope": {scope}}.Encode(), nil)
	testkit.Must(t, err)
	request.SetBasicAuth("serviceaccount", raw)
	response, err := p.Client.Do(request)
	testkit.Must(t, err)
	defer response.Body.Close()
	var answer struct{ Token string }
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", path, response.Status, err)
	}
	testkit.Note(t, "issued token", answer.Token)
	parsed, err := token.NewToken(answer.Token, []jose.SignatureAlgorithm{jose.ES256})
	testkit.Must(t, err)
	claims, err := parsed.Verify(token.VerifyOptions{
		TrustedIssuers: []string{"pullpass.example.com"}, AcceptedAudiences: []string{"registry.example.com"}, Roots: roots,
	})
	if err != nil {
		t.Fatalf("%s: distribution refuses the token: %v", path, err)
	}
	return claims.Access
}

func (p *Proxy) Ready(t *testing.T) bool {
	t.Helper()
	status, _ := p.Fetch(t, "http://"+p.Admin+"/readyz")
	return status == http.StatusOK
}

// Expect asks for a login and looks at the answer and its audit line.
func (p *Proxy) Expect(t *testing.T, raw string, status int, reason string) exchange.Event {
	t.Helper()
	got := p.Status(t, raw)
	event := p.LastEvent(t)
	if got != status || event.Reason != reason {
		t.Errorf("status %d, reason %q (%s); want %d, %q", got, event.Reason, event.Message, status, reason)
	}
	return event
}

// CallerWith is a client with a certificate, or none, that keeps its
// connections and sessions as a node's runtime does.
func (p *Proxy) CallerWith(t *testing.T, certificate *tls.Certificate) *http.Client {
	t.Helper()
	config := p.Client.Transport.(*http.Transport).TLSClientConfig.Clone()
	if certificate != nil {
		config.GetClientCertificate = With(certificate).GetClientCertificate
	}
	config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Timeout: time.Minute, Transport: transport}
}

// LastEvent returns the newest audit line.
func (p *Proxy) LastEvent(t *testing.T) exchange.Event {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(p.Stdout.String()), "\n")
	var event exchange.Event
	testkit.Must(t, json.Unmarshal([]byte(lines[len(lines)-1]), &event))
	return event
}

// ClientFrom calls from another address of this machine.
func (p *Proxy) ClientFrom(address string) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		TLSClientConfig: p.Client.Transport.(*http.Transport).TLSClientConfig, DisableKeepAlives: true, DialContext: dialer.DialContext,
	}}
}

// Ask sends a request as one of the forms, with a traceparent.
func (p *Proxy) Ask(t *testing.T, traceparent string, request *http.Request) int {
	t.Helper()
	request.Header.Set("Traceparent", traceparent)
	response := testkit.Value(p.Client.Do(request))(t)
	readAnswer(t, response)
	return response.StatusCode
}

// readAnswer reads the response to a request. A token is for the caller alone, and nothing else holds one.
func readAnswer(t *testing.T, response *http.Response) {
	t.Helper()
	defer response.Body.Close()
	body := testkit.Value(io.ReadAll(response.Body))(t)
	var answer struct{ Token string }
	if response.StatusCode == http.StatusOK && json.Unmarshal(body, &answer) == nil && answer.Token != "" {
		testkit.Note(t, "issued token", answer.Token)
		return
	}
	testkit.Value(testkit.Seen().Write(body))(t)
}

func (p *Proxy) Get(t *testing.T, query url.Values) *http.Request {
	t.Helper()
	request := testkit.Value(http.NewRequest(http.MethodGet, "https://"+p.Address+"/token?"+query.Encode(), nil))(t)
	return request
}

func (p *Proxy) Post(t *testing.T, raw string) *http.Request {
	t.Helper()
	form := url.Values{"grant_type": {"password"}, "service": {"registry.example.com"}, "username": {"x"}, "password": {raw}, "scope": {"repository:team-a/web:pull"}}
	request := testkit.Value(http.NewRequest(http.MethodPost, "https://"+p.Address+"/auth/token", strings.NewReader(form.Encode())))(t)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return request
}

// Check is what readyz says of one dependency.
type Check struct {
	Name               string
	Healthy, Tolerated bool
	Message            string
}

// Reading returns what readyz says of a group of files.
func (p *Proxy) Reading(t *testing.T, group string) Check {
	t.Helper()
	_, body := p.Fetch(t, "http://"+p.Admin+"/readyz")
	var report struct{ Checks map[string][]Check }
	testkit.Must(t, json.Unmarshal([]byte(body), &report))
	i := slices.IndexFunc(report.Checks["files"], func(c Check) bool { return c.Name == group })
	if i < 0 {
		t.Fatalf("%s is not among the files of %s", group, body)
	}
	return report.Checks["files"][i]
}

// Refuses waits until the last reading of a group of files has failed, and
// looks at all that must say so. Then what was in use before must still be.
func (p *Proxy) Refuses(t *testing.T, group, fault string) {
	t.Helper()
	testkit.Eventually(t, group+" is refused", func() bool { return !p.Reading(t, group).Healthy })
	if c := p.Reading(t, group); !c.Tolerated || !strings.Contains(c.Message, "the last good files stay in use: ") || !strings.Contains(c.Message, fault) {
		t.Errorf("readyz says %+v, want %q", c, fault)
	}
	if !p.Ready(t) {
		t.Error("not ready because of a reload that failed")
	}
	_, metrics := p.Fetch(t, "http://"+p.Admin+"/metrics")
	if !strings.Contains(metrics, `pullpass_reloads_total{name="`+group+`",result="failure"} `) || !strings.Contains(metrics, `pullpass_reload_last_success_timestamp_seconds{name="`+group+`"} `) {
		t.Errorf("the metric does not count the failure of %s", group)
	}
	if !strings.Contains(p.Log.String(), `"msg":"reload failed, the last good files stay in use","name":"`+group+`"`) {
		t.Errorf("the log does not name %s:\n%s", group, p.Log)
	}
}

// Accepts waits until the last reading of a group of files was good.
func (p *Proxy) Accepts(t *testing.T, group string) {
	t.Helper()
	testkit.Eventually(t, group+" is read without a fault", func() bool { return p.Reading(t, group).Healthy })
}

func (p *Proxy) Metric(t *testing.T, line string) {
	t.Helper()
	if _, metrics := p.Fetch(t, "http://"+p.Admin+"/metrics"); !strings.Contains(metrics, line+"\n") {
		t.Errorf("/metrics has no line %s", line)
	}
}

func With(certificate *tls.Certificate) *tls.Config {
	return &tls.Config{GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate, nil }}
}
