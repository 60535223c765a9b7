package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// proxy is a running service with files of its own.
type proxy struct {
	*proxytest.Proxy
	service *Server
	stop    func() error
}

// startService waits until the service is ready. extra are fields of its
// cluster, which may go on with further clusters.
func startService(t *testing.T, extra string) *proxy {
	t.Helper()
	p := startServiceWith(t, "  kubernetes: {manifestFiles: [serviceaccounts.yaml]}\n"+extra, nil)
	testkit.Eventually(t, "the service gets ready", func() bool {
		status, _ := p.Fetch(t, "http://"+p.Admin+"/readyz")
		return status == http.StatusOK
	})
	// Otherwise a file that a test changes at once could be the first that is read.
	testkit.Eventually(t, "the configuration was read by the watch", func() bool {
		_, metrics := p.Fetch(t, "http://"+p.Admin+"/metrics")
		return strings.Contains(metrics, `pullpass_reload_last_success_timestamp_seconds{name="config"}`)
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
	go func() { ended <- p.service.Run(ctx) }()
	p.stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() {
		if err := p.stop(); err != nil {
			t.Errorf("the service ended with: %v\n%s", err, p.Log)
		}
	})
	testkit.Eventually(t, "the service listens", func() bool {
		status, _ := p.Fetch(t, "http://"+p.Admin+"/livez")
		return status == http.StatusOK
	})
}

// reconcile lets a service that was not started make changes.
func (p *proxy) reconcile(t *testing.T) {
	t.Helper()
	var ended sync.WaitGroup
	ended.Go(p.service.reconcile)
	t.Cleanup(func() { p.service.stopBackground(); ended.Wait(); p.service.running.Wait() })
}

// newTestService takes the fields of the cluster, and files for the directory of
// the configuration.
func newTestService(t *testing.T, cluster string, files map[string]string) *proxy {
	t.Helper()
	p := &proxy{Proxy: proxytest.New(t, cluster, files)}
	p.open(t)
	return p
}

// open makes the service that the configuration describes.
func (p *proxy) open(t *testing.T) {
	t.Helper()
	cfg, err := config.Load(filepath.Join(p.Dir, "pullpass.yaml"))
	testkit.Must(t, err)
	p.service, err = New(Config{Config: cfg, Version: "test", Getenv: func(string) string { return "" }, Stdout: p.Stdout, Logger: slog.New(slog.NewJSONHandler(p.Log, nil))})
	testkit.Must(t, err)
}

// The whole of serve: the endpoint under its three names, what registries
// trust, the audit line, health, metrics, and an orderly end.
func TestServe(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	raw := kubetest.Token(t, "https://issuer.example.com")

	status, bundle := p.Fetch(t, "https://"+p.Address+"/certificates.pem")
	if status != 200 {
		t.Fatalf("/certificates.pem: %d", status)
	}
	if strings.Contains(bundle, "PRIVATE") {
		t.Fatalf("/certificates.pem: %s", bundle)
	}
	for _, path := range []string{"/token", "/auth/token", "/auth/token/"} {
		access := p.Exchange(t, path, raw, "repository:team-a/web:pull")
		if len(access) != 1 || access[0].Name != "team-a/web" {
			t.Errorf("%s: access %v", path, access)
		}
	}
	if status, body := p.Fetch(t, "https://"+p.Address+"/.well-known/jwks.json"); status != 200 || !strings.Contains(body, `"keys"`) || strings.Contains(body, `"d"`) {
		t.Errorf("/.well-known/jwks.json: %d %s", status, body)
	}
	// The admin listener's paths are not on the public one, and neither tells what it runs.
	for _, path := range []string{"/metrics", "/readyz", "/livez", "/debug/pprof/", "/"} {
		if status, _ := p.Fetch(t, "https://"+p.Address+path); status != http.StatusNotFound {
			t.Errorf("public %s: %d, want 404", path, status)
		}
	}
	if status, _ := p.Fetch(t, "http://"+p.Admin+"/debug/pprof/"); status != http.StatusNotFound {
		t.Errorf("profiling is on by default: %d", status)
	}
	if status, _ := p.Fetch(t, "http://"+p.Admin+"/livez"); status != 200 {
		t.Errorf("/livez: %d", status)
	}
	if _, body := p.Fetch(t, "http://"+p.Admin+"/readyz"); !strings.Contains(body, `"prod"`) || !strings.Contains(body, `"registry.example.com"`) {
		t.Errorf("/readyz names no dependencies: %s", body)
	}
	_, metrics := p.Fetch(t, "http://"+p.Admin+"/metrics")
	for _, want := range []string{
		`pullpass_exchanges_total{cluster="prod",grant_type="basic",reason="",result="granted",service="registry.example.com"} 3`,
		`pullpass_issuer_keys{cluster="prod"} 1`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics has no line %s:\n%s", want, metrics)
		}
	}
	testkit.Must(t, p.stop())
	lines := 0
	for scanner := bufio.NewScanner(bytes.NewReader(p.Stdout.Bytes())); scanner.Scan(); lines++ {
		var event struct {
			Result, Cluster, Namespace, CredentialID, Caller string
			ServiceAccount                                   struct{ Name, UID string }
			Granted                                          []string
		}
		testkit.Must(t, json.Unmarshal(scanner.Bytes(), &event))
		if event.Result != "granted" || event.Cluster != "prod" || event.Namespace != "team-a" || event.ServiceAccount.UID != "uid-1" ||
			event.CredentialID != "JTI=id-1" || event.Caller != "127.0.0.1" || len(event.Granted) != 1 {
			t.Errorf("audit line %s", scanner.Text())
		}
	}
	if lines != 3 {
		t.Errorf("%d audit lines for 3 exchanges", lines)
	}
	if all := p.Stdout.String() + p.Log.String(); strings.Contains(all, strings.Split(raw, ".")[2]) {
		t.Error("a token stands in what the service wrote")
	}
}

// Policy and serving certificate are read again when they change, also through the symbolic links
// by which Kubernetes replaces a volume. An invalid file changes nothing.
func TestServeReloads(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	raw := kubetest.Token(t, "https://issuer.example.com")
	granted := func() int { return len(p.Exchange(t, "/token", raw, "repository:team-a/web:pull")) }
	if granted() != 1 {
		t.Fatal("not granted")
	}
	testkit.Write(t, p.Dir, "policy.yaml", "nonsense")
	testkit.Eventually(t, "the bad policy is reported", func() bool { return strings.Contains(p.Log.String(), "policy.yaml") })
	if granted() != 1 {
		t.Error("a bad policy replaced the good one")
	}
	testkit.Write(t, p.Dir, "policy.yaml", proxytest.PolicyFor("elsewhere/**"))
	testkit.Eventually(t, "the new policy counts", func() bool { return granted() == 0 })

	// A rule that reads an annotation, and then a ServiceAccount that has it.
	testkit.Write(t, p.Dir, "policy.yaml", proxytest.PolicyFor("elsewhere/**")+proxytest.AnnotationRule)
	testkit.Write(t, p.Dir, "serviceaccounts.yaml", "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: web, namespace: team-a, uid: uid-1, annotations: {pullpass.dev/repositories: team-a/web}}\n")
	testkit.Eventually(t, "the annotation counts", func() bool { return granted() == 1 })
	testkit.Write(t, p.Dir, "serviceaccounts.yaml", "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: web, namespace: team-a, uid: uid-9, annotations: {pullpass.dev/repositories: team-a/web}}\n")
	testkit.Eventually(t, "the recreated ServiceAccount does not inherit the grant", func() bool { return granted() == 0 })

	// A key made beside the running server signs.
	_, before := p.Fetch(t, "https://"+p.Address+"/.well-known/jwks.json")
	keys := testkit.Value(setup.NewSigningKeys(&p.service.started.Registries[0], testkit.QuietLogger()))(t)
	testkit.Value(keys.Managed.Rotate(signing.RotateOptions{}))(t)
	testkit.Eventually(t, "the new key is published", func() bool {
		_, after := p.Fetch(t, "https://"+p.Address+"/.well-known/jwks.json")
		return after != before
	})
	p.Exchange(t, "/token", raw, "repository:team-a/web:pull") // and the CA is still the same

	p.Client.Transport.(*http.Transport).TLSClientConfig.RootCAs = proxytest.WriteServingCertificate(t, p.Dir, 2)
	testkit.Eventually(t, "the new certificate is served", func() bool {
		response, err := p.Client.Get("https://" + p.Address + "/certificates.pem")
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
		claims := kubetest.TokenClaims("https://issuer.example.com")
		change(claims)
		if status := p.Status(t, kubetest.SignToken(t, claims)); status != http.StatusUnauthorized || !strings.Contains(p.Stdout.String(), `"reason":"`+reason+`"`) {
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
	if access := p.Exchange(t, "/token", kubetest.Token(t, "https://issuer.example.com"), "repository:team-a/web:pull"); len(access) != 1 {
		t.Errorf("the other cluster's token opens %v", access)
	}
	if status := p.Status(t, kubetest.Token(t, "https://127.0.0.1:1")); status != http.StatusServiceUnavailable {
		t.Errorf("a token of the lost cluster: %d", status)
	}
	status, body := p.Fetch(t, "http://"+p.Admin+"/readyz")
	if status != http.StatusOK || !strings.Contains(body, `{"name":"lost","healthy":false,"message":"`) || !strings.Contains(body, `{"name":"prod","healthy":true}`) {
		t.Errorf("/readyz: %d %s", status, body)
	}
}

// A slow client must not hold a connection for ever; net/http has no limits of
// its own.
func TestServerHasEveryLimit(t *testing.T) {
	t.Parallel()
	s := newHTTPServer(http.NotFoundHandler(), nil, slog.New(slog.DiscardHandler))
	if !s.DisableGeneralOptionsHandler || s.ReadHeaderTimeout <= 0 || s.ReadTimeout <= 0 || s.WriteTimeout <= 0 || s.IdleTimeout <= 0 || s.MaxHeaderBytes <= 0 {
		t.Errorf("a limit is missing: %+v", s)
	}
}

// Requests that are larger than any token request are refused before they are read.
func TestServeCapsSizes(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	request, err := http.NewRequest(http.MethodGet, "https://"+p.Address+"/token?service=registry.example.com", nil)
	testkit.Must(t, err)
	request.Header.Set("X-Large", strings.Repeat("x", maxHeaderBytes+8<<10))
	response, err := p.Client.Do(request)
	testkit.Must(t, err)
	response.Body.Close()
	if response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a header of more than %d bytes: %s", maxHeaderBytes, response.Status)
	}
	// The header alone is enough: nothing of the body is waited for.
	connection := p.Dial(t)
	_, err = fmt.Fprintf(connection, "POST /token HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n", 1<<20)
	testkit.Must(t, err)
	response, err = http.ReadResponse(bufio.NewReader(connection), nil)
	testkit.Must(t, err)
	response.Body.Close()
	if response.StatusCode != http.StatusBadRequest {
		t.Errorf("a body of 1 MiB: %s", response.Status)
	}
}
