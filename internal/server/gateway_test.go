package server

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/registrytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const gatewayService = "gateway.example.com"

// gatewayed is a running service with a gateway before registries.
type gatewayed struct {
	*proxy
	url string
}

func startGateway(t *testing.T, upstreams string, files map[string]string) *gatewayed {
	t.Helper()
	return startGatewayWith(t, upstreams, files, "", memoryLimit())
}

func startGatewayWith(t *testing.T, upstreams string, files map[string]string, more string, memory int64) *gatewayed {
	t.Helper()
	address := testkit.FreeAddress(t)
	p := &proxy{Proxy: proxytest.New(t, "  kubernetes: {manifestFiles: [serviceaccounts.yaml]}", files)}
	p.Put(t, "policy.yaml", strings.Replace(proxytest.PolicyFor("ghcr.io/acme/**"), "allow:", "services: ["+gatewayService+"]\n  allow:", 1))
	testkit.Write(t, p.Dir, "password", registrytest.Password)
	p.Configure(t, "policyFiles:", fmt.Sprintf("- {service: %s, issuer: pullpass.example.com}\ngateway: {address: %q, url: %q, service: %s}\nupstreams:\n%s\n%spolicyFiles:",
		gatewayService, address, "https://"+address, gatewayService, upstreams, more))
	cfg, err := config.Load(filepath.Join(p.Dir, "pullpass.yaml"))
	testkit.Must(t, err)
	p.service, err = newServer(Config{Config: cfg, Version: "test", Getenv: func(string) string { return "" }, Stdout: p.Stdout, Logger: slog.New(slog.NewJSONHandler(p.Log, nil))}, memory)
	testkit.Must(t, err)
	p.start(t)
	g := &gatewayed{p, "https://" + address}
	testkit.Eventually(t, "the gateway listens", func() bool { status, _ := g.Fetch(t, g.url+"/v2/"); return status == http.StatusUnauthorized })
	return g
}

func upstreamEntry(name string, registry *registrytest.Server, more string) string {
	return fmt.Sprintf("- {name: %s, url: %q, caFile: %q, credential: {basic: {username: %s, passwordFile: password}}%s}", name, registry.URL, registry.CAFile, registrytest.User, more)
}

// token asks the gateway's own token endpoint, as containerd does: for the scope of
// the image's name and that of the challenge.
func (g *gatewayed) token(t *testing.T, raw string, scopes ...string) string {
	t.Helper()
	form := url.Values{"grant_type": {"password"}, "service": {gatewayService}, "username": {"x"}, "password": {raw}, "scope": {strings.Join(scopes, " ")}, "client_id": {"containerd-client"}}
	response := testkit.Value(g.Client.PostForm(g.url+"/token", form))(t)
	defer response.Body.Close()
	var answer struct{ Token string }
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s %v", response.Status, err)
	}
	return answer.Token
}

func (g *gatewayed) get(t *testing.T, path, token string) (int, string) {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, g.url+path, nil)
	testkit.Must(t, err)
	request.Header.Set("Accept", registrytest.ManifestType)
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := g.Client.Do(request)
	testkit.Must(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return response.StatusCode, err.Error()
	}
	return response.StatusCode, string(body)
}

// The whole way of a pull through the gateway: what is in the audit log, in metrics, in
// readyz, and that the name without registry is silence.
func TestGateway(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	image := registry.Put(t, "acme/app", "v1", []byte("layer"))
	g := startGateway(t, upstreamEntry("ghcr.io", registry, ""), nil)
	raw := kubetest.Token(t, "https://issuer.example.com")

	token := g.token(t, raw, "repository:acme/app:pull", "repository:ghcr.io/acme/app:pull")
	issued := g.LastEvent(t)
	if issued.Result != "granted" || len(issued.Requested) != 1 || issued.Requested[0] != "repository:ghcr.io/acme/app:pull" || len(issued.Scopes) > 0 {
		t.Errorf("the token's event: %+v", issued)
	}
	if status, body := g.get(t, "/v2/ghcr.io/acme/app/manifests/v1?ns=ghcr.io", token); status != 200 || body != image.Manifest {
		t.Errorf("%d %s", status, body)
	}
	pulled := g.LastEvent(t)
	if pulled.Gateway == nil || pulled.Gateway.TokenID != issued.IssuedID || pulled.Namespace != "team-a" || pulled.ServiceAccount.Name != "web" || pulled.CredentialID != issued.CredentialID {
		t.Errorf("the pull's event: %+v", pulled)
	}
	testkit.ExpectNoPiece(t, "the audit log", g.Stdout.String(), raw, token, registrytest.Password)
	g.Metric(t, `pullpass_gateway_requests_total{kind="manifest",reason="",result="granted",upstream="ghcr.io"} 1`)
	g.Metric(t, fmt.Sprintf(`pullpass_gateway_bytes_total{direction="sent",upstream="ghcr.io"} %d`, len(image.Manifest)))
	g.Metric(t, `pullpass_upstream_failing{upstream="ghcr.io"} 0`)
	if _, body := g.Fetch(t, "http://"+g.Admin+"/readyz"); !strings.Contains(body, `"upstreams":[{"name":"ghcr.io","healthy":true}]`) {
		t.Errorf("readyz: %s", body)
	}

	// The policy names repositories with their upstream, and only for the gateway.
	if status, _ := g.get(t, "/v2/ghcr.io/other/app/manifests/v1", g.token(t, raw, "repository:ghcr.io/other/app:pull")); status != 401 {
		t.Errorf("not allowed: %d", status)
	}
	if e := g.LastEvent(t); e.Reason != "insufficient_scope" {
		t.Errorf("%+v", e)
	}
	if access := g.Exchange(t, "/token", raw, "repository:ghcr.io/acme/app:pull"); len(access) > 0 {
		t.Errorf("at the registry that is attached directly: %v", access)
	}
	// The public listener has no registry, and the gateway's everything of the public one.
	if status, _ := g.Fetch(t, "https://"+g.Address+"/v2/"); status != http.StatusNotFound {
		t.Errorf("/v2/ of the public listener: %d", status)
	}
	if status, _ := g.Fetch(t, g.url+"/.well-known/jwks.json"); status != http.StatusOK {
		t.Errorf("the keys: %d", status)
	}
	if status, _ := g.Fetch(t, g.url+"/metrics"); status != http.StatusNotFound {
		t.Errorf("/metrics of the gateway: %d", status)
	}
}

// The gateway counts invalid tokens by address, with the clock that a service has by itself. An address that has spent its limit
// pulls again when it has waited.
func TestGatewayLimitsAddresses(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	registry.Put(t, "acme/app", "v1", []byte("layer"))
	g := startGatewayWith(t, upstreamEntry("ghcr.io", registry, ""), nil, "limits: {perAddress: {rate: 1, burst: 8}}\n", memoryLimit())
	token := g.token(t, kubetest.Token(t, "https://issuer.example.com"), "repository:ghcr.io/acme/app:pull")
	const path = "/v2/ghcr.io/acme/app/manifests/v1"
	status := http.StatusUnauthorized
	for sent := 0; status == http.StatusUnauthorized && sent < 1000; sent++ {
		status, _ = g.get(t, path, "invalid")
	}
	if status != http.StatusTooManyRequests {
		t.Errorf("an address that has spent its limit gets %d", status)
	}
	testkit.Eventually(t, "it pulls again", func() bool { status, _ = g.get(t, path, token); return status == http.StatusOK })
}

// halfABlob has a registry stop within its blobs: going tells when, gone lets it go on
// to their end, which is "whole".
func halfABlob(registry *registrytest.Server) (going <-chan bool, gone chan<- bool) {
	stopped, resumed := make(chan bool), make(chan bool)
	registry.Answer(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		w.Header().Set("Content-Length", "100005")
		_, _ = io.WriteString(w, strings.Repeat("x", 100_000))
		_ = http.NewResponseController(w).Flush()
		stopped <- true
		<-resumed
		_, _ = io.WriteString(w, "whole")
		return true
	})
	return stopped, resumed
}

// The rest of a body that arrives after the response is never read as a request.
func TestGatewayTakesNoLateBodyForARequest(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	layer := bytes.Repeat([]byte("x"), 100_000)
	registry.Put(t, "acme/app", "v1", layer)
	g := startGateway(t, upstreamEntry("ghcr.io", registry, ", actions: [pull, push]"), nil)
	raw := kubetest.Token(t, "https://issuer.example.com")
	g.Put(t, "policy.yaml", strings.Replace(proxytest.PolicyFor("ghcr.io/acme/**"), "[pull]", "[pull, push]", 1))
	testkit.Must(t, g.service.reloadPolicy())
	token := g.token(t, raw, "repository:ghcr.io/acme/app:pull,push")
	const hidden = "GET /v2/ HTTP/1.1\r\nHost: x\r\n\r\n"
	dial := func(t *testing.T) net.Conn {
		c := testkit.Value(tls.Dial("tcp", strings.TrimPrefix(g.url, "https://"), &tls.Config{InsecureSkipVerify: true}))(t)
		t.Cleanup(func() { c.Close() })
		testkit.Must(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
		return c
	}
	for name, test := range map[string]struct{ method, path, header string }{
		"a push without a token": {"PUT", "acme/app/manifests/v1", "Content-Length: %d"},
		"in chunks":              {"PUT", "acme/app/manifests/v1", "Transfer-Encoding: chunked"},
		"a pull":                 {"GET", "acme/app/manifests/v1", "Content-Length: %d\r\nAuthorization: Bearer " + token},
		"a pull of much":         {"GET", "acme/app/blobs/" + registrytest.DigestOf(layer), "Content-Length: %d\r\nAuthorization: Bearer " + token},
		"a push elsewhere":       {"PUT", "other/app/manifests/v1", "Content-Length: %d\r\nAuthorization: Bearer " + token},
		"a path that is none":    {"POST", "acme/app", "Content-Length: %d"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := dial(t)
			header := test.header
			if strings.Contains(header, "%d") {
				header = fmt.Sprintf(header, len(hidden))
			}
			_, err := fmt.Fprintf(c, "%s /v2/ghcr.io/%s HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n", test.method, test.path, header)
			testkit.Must(t, err)
			reader := bufio.NewReader(c)
			response, err := http.ReadResponse(reader, nil)
			testkit.Must(t, err)
			if _, err = io.Copy(io.Discard, response.Body); err != nil || !response.Close {
				t.Errorf("%d, the last one: %t, %v", response.StatusCode, response.Close, err)
			}
			testkit.Eventually(t, "the connection ends", func() bool {
				_, err := io.WriteString(c, hidden)
				return err != nil
			})
			if rest, _ := io.ReadAll(reader); len(rest) > 0 {
				t.Errorf("the rest of the body is answered: %q", rest)
			}
		})
	}
	c := dial(t)
	_, err := fmt.Fprintf(c, "PUT /v2/ghcr.io/acme/app/manifests/v1 HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: 2\r\nAuthorization: Bearer %s\r\n\r\n{}", registrytest.ManifestType, token)
	testkit.Must(t, err)
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	testkit.Must(t, err)
	if response.Close {
		t.Errorf("%s, and the connection ends although its body was read", response.Status)
	}
}

// Upstreams come and go with the configuration, and a stream goes on as it began.
func TestGatewayReload(t *testing.T) {
	t.Parallel()
	registry, other := registrytest.NewRegistry(t, ""), registrytest.NewRegistry(t, "")
	registry.Put(t, "acme/app", "v1", []byte("layer"))
	other.Put(t, "acme/app", "v1", []byte("another layer"))
	g := startGateway(t, upstreamEntry("ghcr.io", registry, "")+"\n"+upstreamEntry("slow.example", registry, ""), nil)
	going, gone := halfABlob(registry)
	raw := kubetest.Token(t, "https://issuer.example.com")
	ended := make(chan string)
	token := g.token(t, raw, "repository:ghcr.io/acme/slow:pull")
	go func() {
		_, body := g.get(t, "/v2/ghcr.io/acme/slow/blobs/"+registrytest.DigestOf(nil), token)
		ended <- body[max(len(body)-5, 0):]
	}()
	<-going

	added := "\n" + upstreamEntry("harbor.example", other, "")
	g.Configure(t, upstreamEntry("slow.example", registry, ""), strings.TrimSpace(added))
	g.Put(t, "policy.yaml", proxytest.PolicyFor("*/acme/**"))
	testkit.Eventually(t, "the new upstream serves", func() bool {
		status, _ := g.get(t, "/v2/harbor.example/acme/app/manifests/v1", g.token(t, raw, "repository:harbor.example/acme/app:pull"))
		return status == http.StatusOK
	})
	if status, body := g.get(t, "/v2/slow.example/acme/app/manifests/v1", g.token(t, raw, "repository:slow.example/acme/app:pull")); status != http.StatusNotFound || !strings.Contains(body, "NAME_UNKNOWN") {
		t.Errorf("an upstream that was taken out: %d %s", status, body)
	}
	gone <- true
	if end := <-ended; end != "whole" {
		t.Errorf("the stream ended with %q", end)
	}
}

// SIGTERM lets streams end.
func TestGatewayDrains(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	going, gone := halfABlob(registry)
	g := startGateway(t, upstreamEntry("ghcr.io", registry, ""), nil)
	token := g.token(t, kubetest.Token(t, "https://issuer.example.com"), "repository:ghcr.io/acme/app:pull")
	ended := make(chan string)
	go func() {
		_, body := g.get(t, "/v2/ghcr.io/acme/app/blobs/"+registrytest.DigestOf(nil), token)
		ended <- body[max(len(body)-5, 0):]
	}()
	<-going
	stopped := make(chan error)
	go func() { stopped <- g.stop() }()
	testkit.Eventually(t, "the listener is closed", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, g.url+"/v2/", nil)
		testkit.Must(t, err)
		response, err := g.Client.Do(request)
		if err == nil {
			response.Body.Close()
		}
		return err != nil
	})
	select {
	case err := <-stopped:
		t.Fatalf("it ended before the stream: %v", err)
	default:
	}
	gone <- true
	if end := <-ended; end != "whole" {
		t.Errorf("the stream ended with %q", end)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if log := g.Log.String(); strings.Contains(log, `"level":"WARN"`) || strings.Contains(log, `"level":"ERROR"`) {
		t.Errorf("all has ended in time, and the log says %s", log)
	}
}

// An upstream that is down is no reason not to be ready, and readyz names it.
func TestGatewayUpstreamDown(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	registry.Close()
	g := startGateway(t, upstreamEntry("ghcr.io", registry, ""), nil)
	var body string
	testkit.Eventually(t, "readyz names the upstream", func() bool {
		_, body = g.Fetch(t, "http://"+g.Admin+"/readyz")
		return strings.Contains(body, `{"name":"ghcr.io","healthy":false,"tolerated":true,"message":"ghcr.io: it cannot be reached`)
	})
	if !g.Ready(t) {
		t.Errorf("not ready: %s", body)
	}
}

// The files of an upstream are read again when they change.
func TestGatewayCAChanges(t *testing.T) {
	t.Parallel()
	registry, other := registrytest.NewRegistry(t, ""), registrytest.NewRegistry(t, "")
	registry.Put(t, "acme/app", "v1", []byte("layer"))
	wrong := testkit.Value(filepath.Abs(other.CAFile))(t)
	g := startGateway(t, strings.Replace(upstreamEntry("ghcr.io", registry, ""), registry.CAFile, "ca.crt", 1), map[string]string{"ca.crt": testkit.Read(t, wrong)})
	raw := kubetest.Token(t, "https://issuer.example.com")
	ask := func() int {
		status, _ := g.get(t, "/v2/ghcr.io/acme/app/manifests/v1", g.token(t, raw, "repository:ghcr.io/acme/app:pull"))
		return status
	}
	if got := ask(); got != http.StatusBadGateway {
		t.Errorf("with another CA: %d", got)
	}
	g.Put(t, "ca.crt", testkit.Read(t, registry.CAFile))
	testkit.Eventually(t, "the new CA counts", func() bool { return ask() == http.StatusOK })
}

// The password of an upstream that cannot be read is reported, and the last one stays in use.
func TestGatewayPasswordFile(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	registry.Put(t, "acme/app", "v1", []byte("layer"))
	g := startGateway(t, upstreamEntry("ghcr.io", registry, ""), nil)
	raw := kubetest.Token(t, "https://issuer.example.com")
	good := string(testkit.Read(t, filepath.Join(g.Dir, "password")))
	ask := func() {
		t.Helper()
		if status, body := g.get(t, "/v2/ghcr.io/acme/app/manifests/v1", g.token(t, raw, "repository:ghcr.io/acme/app:pull")); status != http.StatusOK {
			t.Errorf("%d %s", status, body)
		}
	}
	ask()
	testkit.Eventually(t, "it was read", func() bool {
		_, metrics := g.Fetch(t, "http://"+g.Admin+"/metrics")
		return strings.Contains(metrics, `pullpass_reloads_total{name="`+passwordsGroup+`",result="success"} `)
	})
	for content, want := range map[string]string{"": " is empty; write the password into it", strings.Repeat("a", 20<<10): " has more than 16384 bytes"} {
		g.Put(t, "password", content)
		g.Refuses(t, passwordsGroup, "upstreams[0].credential.basic.passwordFile: "+filepath.Join(g.Dir, "password")+want)
		if c := g.Reading(t, upstreamsGroup); !c.Healthy {
			t.Errorf("a CA would wait for the password: %+v", c)
		}
		if faults, _ := CheckFiles(g.service.current.Load().cfg, false); len(faults) != 1 || !strings.Contains(faults[0].Error(), want) {
			t.Errorf("check: %v", faults)
		}
		ask()
		g.Put(t, "password", good)
		g.Accepts(t, passwordsGroup)
	}
}

// A copy of another registry's key is a fault, at the start too: a registry that checks no audience would
// accept tokens for the gateway.
func TestGatewayHasKeysOfItsOwn(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	g := startGateway(t, upstreamEntry("ghcr.io", registry, ""), nil)
	key := string(pkitest.KeyPEM(t, pkitest.ECKey(t)))
	testkit.Write(t, g.Dir, "a.pem", key)
	testkit.Write(t, g.Dir, "b.pem", key)
	const want = "registries[0].signing: has a key that the gateway's service " + gatewayService + " has as well"
	text := testkit.Read(t, filepath.Join(g.Dir, "pullpass.yaml"))
	text = strings.Replace(text, "{service: "+gatewayService+", ", "{service: "+gatewayService+", signing: {keyFile: a.pem, trust: jwks}, ", 1)
	text = strings.Replace(text, "{service: registry.example.com, ", "{service: registry.example.com, signing: {keyFile: b.pem, trust: jwks}, ", 1)
	g.Put(t, "pullpass.yaml", text)
	g.Refuses(t, configGroup, want)
	cfg := testkit.Value(config.Load(filepath.Join(g.Dir, "pullpass.yaml")))(t)
	if faults, _ := CheckFiles(cfg, false); len(faults) != 1 || !strings.Contains(faults[0].Error(), want) {
		t.Errorf("check: %v", faults)
	}
	if _, err := newServer(Config{Config: cfg, Getenv: func(string) string { return "" }, Stdout: g.Stdout, Logger: testkit.QuietLogger()}, memoryLimit()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("start: %v", err)
	}
	testkit.Write(t, g.Dir, "b.pem", string(pkitest.KeyPEM(t, pkitest.ECKey(t))))
	if faults, _ := CheckFiles(cfg, false); len(faults) > 0 {
		t.Errorf("check: %v", faults)
	}
}

// The gateway's own certificate is served there alone, and its end is watched.
func TestGatewayCertificate(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	g := startGateway(t, upstreamEntry("ghcr.io", registry, ""), nil)
	before := g.service.current.Load().tls.ends.Certificate
	soon := before.Add(-time.Hour)
	cert := pkitest.NewCA(t, nil, func(c *x509.Certificate) {
		c.IPAddresses, c.KeyUsage, c.ExtKeyUsage, c.NotAfter = []net.IP{net.IPv4(127, 0, 0, 1)}, 0, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, soon
	})
	g.Put(t, "gateway.crt", string(pkitest.CertPEM(cert)))
	g.Put(t, "gateway.key", string(pkitest.KeyPEM(t, cert.Key)))
	g.Configure(t, "gateway: {", "gateway: {tls: {certFile: gateway.crt, keyFile: gateway.key}, ")
	served := func(address string) time.Time {
		c := testkit.Value(tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}))(t)
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].NotAfter
	}
	testkit.Eventually(t, "the gateway has its own certificate", func() bool { return served(g.url[len("https://"):]).Equal(soon.Truncate(time.Second)) })
	if got := served(g.Address); !got.Equal(before) {
		t.Errorf("the public listener's ends at %s, was %s", got, before)
	}
	if got := g.service.current.Load().tls.ends.Certificate; !got.Equal(soon.Truncate(time.Second)) {
		t.Errorf("the end that is watched is %s", got)
	}
}
