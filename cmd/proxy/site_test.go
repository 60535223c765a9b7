package main

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
	"github.com/pullpass/pullpass/internal/pkitest"
)

// site is a proxy's directory with its configuration, and what asks the proxy. It
// serves team-a/web of cluster prod at registry.example.com.
type site struct {
	dir, address, admin string
	client              *http.Client // trusts the serving certificate
	stdout, log         *syncBuffer  // of the proxy
}

// newSite writes a configuration with the fields of a cluster, and files beside it.
func newSite(t *testing.T, cluster string, files map[string]string) *site {
	t.Helper()
	dir := t.TempDir()
	p := &site{dir: dir, address: freeAddress(t), admin: freeAddress(t), stdout: &syncBuffer{}, log: &syncBuffer{}}
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
	t.Cleanup(func() { checkAuditLines(t, p.stdout.Bytes()) })
	return p
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

// configure replaces a text in the configuration file, in one step.
func (p *site) configure(t *testing.T, old, new string) {
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
func (p *site) put(t *testing.T, name, content string) {
	t.Helper()
	write(t, p.dir, name+".next", content)
	must(t, os.Rename(filepath.Join(p.dir, name+".next"), filepath.Join(p.dir, name)))
}

func (p *site) dial(t *testing.T) net.Conn {
	t.Helper()
	connection, err := tls.Dial("tcp", p.address, p.client.Transport.(*http.Transport).TLSClientConfig)
	must(t, err)
	t.Cleanup(func() { connection.Close() })
	return connection
}

func (p *site) fetch(t *testing.T, url string) (int, string) {
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
func (p *site) status(t *testing.T, raw string) int {
	t.Helper()
	return p.statusFrom(t, p.client, raw)
}

func (p *site) statusFrom(t *testing.T, client *http.Client, raw string) int {
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
func (p *site) exchange(t *testing.T, path, raw, scope string) []*token.ResourceActions {
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

func (p *site) ready(t *testing.T) bool {
	t.Helper()
	status, _ := p.fetch(t, "http://"+p.admin+"/readyz")
	return status == http.StatusOK
}

// expect asks for a login and looks at the answer and its audit line.
func (p *site) expect(t *testing.T, raw string, status int, reason string) exchange.Event {
	t.Helper()
	got := p.status(t, raw)
	event := p.lastEvent(t)
	if got != status || event.Reason != reason {
		t.Errorf("status %d, reason %q (%s); want %d, %q", got, event.Reason, event.Message, status, reason)
	}
	return event
}

// callerWith is a client with a certificate, or none, that keeps its
// connections and sessions as a node's runtime does.
func (p *site) callerWith(t *testing.T, certificate *tls.Certificate) *http.Client {
	t.Helper()
	config := p.client.Transport.(*http.Transport).TLSClientConfig.Clone()
	if certificate != nil {
		config.GetClientCertificate = with(certificate).GetClientCertificate
	}
	config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Timeout: 10 * time.Second, Transport: transport}
}

// lastEvent returns the newest audit line.
func (p *site) lastEvent(t *testing.T) exchange.Event {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(p.stdout.String()), "\n")
	var event exchange.Event
	must(t, json.Unmarshal([]byte(lines[len(lines)-1]), &event))
	return event
}

// clientFrom calls from another address of this machine.
func (p *site) clientFrom(address string) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		TLSClientConfig: p.client.Transport.(*http.Transport).TLSClientConfig, DisableKeepAlives: true, DialContext: dialer.DialContext,
	}}
}

// ask sends a request as one of the forms, with a traceparent.
func (p *site) ask(t *testing.T, traceparent string, request *http.Request) int {
	t.Helper()
	request.Header.Set("Traceparent", traceparent)
	response, err := p.client.Do(request)
	must(t, err)
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	must(t, err)
	return response.StatusCode
}

func (p *site) get(t *testing.T, query url.Values) *http.Request {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, "https://"+p.address+"/token?"+query.Encode(), nil)
	must(t, err)
	return request
}

func (p *site) post(t *testing.T, raw string) *http.Request {
	t.Helper()
	form := url.Values{"grant_type": {"password"}, "service": {"registry.example.com"}, "username": {"x"}, "password": {raw}, "scope": {"repository:team-a/web:pull"}}
	request, err := http.NewRequest(http.MethodPost, "https://"+p.address+"/auth/token", strings.NewReader(form.Encode()))
	must(t, err)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return request
}

// reportedCheck is what readyz says of one dependency.
type reportedCheck struct {
	Name               string
	Healthy, Tolerated bool
	Message            string
}

// reading returns what readyz says of a group of files.
func (p *site) reading(t *testing.T, group string) reportedCheck {
	t.Helper()
	_, body := p.fetch(t, "http://"+p.admin+"/readyz")
	var report struct{ Checks map[string][]reportedCheck }
	must(t, json.Unmarshal([]byte(body), &report))
	i := slices.IndexFunc(report.Checks["files"], func(c reportedCheck) bool { return c.Name == group })
	if i < 0 {
		t.Fatalf("%s is not among the files of %s", group, body)
	}
	return report.Checks["files"][i]
}

// refuses waits until the last reading of a group of files has failed, and
// looks at all that must say so. Then what was in use before must still be.
func (p *site) refuses(t *testing.T, group, fault string) {
	t.Helper()
	eventually(t, group+" is refused", func() bool { return !p.reading(t, group).Healthy })
	if c := p.reading(t, group); !c.Tolerated || !strings.Contains(c.Message, "the last good files stay in use: ") || !strings.Contains(c.Message, fault) {
		t.Errorf("readyz says %+v, want %q", c, fault)
	}
	if !p.ready(t) {
		t.Error("not ready because of a reload that failed")
	}
	_, metrics := p.fetch(t, "http://"+p.admin+"/metrics")
	if !strings.Contains(metrics, `pullpass_reloads_total{name="`+group+`",result="failure"} `) || !strings.Contains(metrics, `pullpass_reload_last_success_timestamp_seconds{name="`+group+`"} `) {
		t.Errorf("the metric does not count the failure of %s", group)
	}
	if !strings.Contains(p.log.String(), `"msg":"reload failed, the last good files stay in use","name":"`+group+`"`) {
		t.Errorf("the log does not name %s:\n%s", group, p.log)
	}
}

// accepts waits until the last reading of a group of files was good.
func (p *site) accepts(t *testing.T, group string) {
	t.Helper()
	eventually(t, group+" is read without a fault", func() bool { return p.reading(t, group).Healthy })
}

func (p *site) metric(t *testing.T, line string) {
	t.Helper()
	if _, metrics := p.fetch(t, "http://"+p.admin+"/metrics"); !strings.Contains(metrics, line+"\n") {
		t.Errorf("/metrics has no line %s", line)
	}
}
