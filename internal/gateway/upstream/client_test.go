package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// each is Logins with a login of each caller's own.
type each struct{}

func (each) Login(_ context.Context, caller string) (Login, error) {
	if caller == "" {
		return Login{}, ErrNoCaller
	}
	return Login{}, errors.New("not in this test")
}

func (each) Reject(Login) {}

func clientOf(t *testing.T, answer http.HandlerFunc, logins Logins) *Client {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	c := testkit.Value(New(Config{Name: "a", URL: server.URL, Logins: logins}))(t)
	return c
}

// If each caller has its own credential, a probe without a caller is not a failure of the upstream.
func TestProbeWithoutACaller(t *testing.T) {
	t.Parallel()
	c := clientOf(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	}, each{})
	c.probe(t.Context())
	if s := c.Status(); s.Failure != "" || s.AnsweredAt.IsZero() {
		t.Errorf("%+v", s)
	}
}

// A stalling upstream does not block callers: before its response, in the body of a refusal, or at
// a redirect target.
func TestStallingUpstreams(t *testing.T) {
	t.Parallel()
	stall := func(begin func(http.ResponseWriter)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			begin(w)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	}
	body := func(status int) http.HandlerFunc {
		return stall(func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "100")
			w.WriteHeader(status)
			fmt.Fprint(w, "half")
		})
	}
	silent := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		want   refusal.Reason
	}{
		"no answer": {silent, refusal.UpstreamTimeout}, "500": {body(500), refusal.UpstreamFailing}, "401": {body(401), refusal.UpstreamCredential}, "429": {body(429), refusal.UpstreamLimited},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := clientOf(t, test.answer, nil)
			var e *Error
			var began time.Time
			// On a busy machine, even the status may come too late.
			for c.wire.within = 500 * time.Millisecond; c.wire.within < time.Minute && (e == nil || e.Reason == refusal.UpstreamTimeout && test.want != refusal.UpstreamTimeout); c.wire.within *= 4 {
				began = time.Now()
				if _, err := c.Do(c.versionRequest(t.Context()), Need{}); !errors.As(err, &e) {
					t.Fatal(err)
				}
			}
			if e.Reason != test.want || time.Since(began) > time.Minute {
				t.Errorf("%v after %s", e, time.Since(began))
			}
		})
	}
	t.Run("a redirect", func(t *testing.T) {
		t.Parallel()
		c := clientOf(t, silent, nil)
		c.patience = 100 * time.Millisecond
		to, err := url.Parse(c.base.String() + "/blob?signature=x")
		testkit.Must(t, err)
		_, err = c.Follow((&http.Request{Method: http.MethodGet, URL: to, Header: http.Header{}}).WithContext(t.Context()))
		var e *Error
		if !errors.As(err, &e) || e.Reason != refusal.UpstreamTimeout {
			t.Errorf("%v", err)
		}
	})
}

// One repository's 401 must not lead the login to a host of its own.
func TestWhereALoginMayGo(t *testing.T) {
	t.Parallel()
	realm := func(text string) challenge {
		return challengeOf(http.Header{"Www-Authenticate": {`Bearer realm="` + text + `"`}})
	}
	basic := challenge{scheme: schemeBasic}
	for _, test := range []struct {
		what   string
		logins Logins
		hosts  []string
		shared *challenge
		says   challenge
		want   bool
	}{
		{"without a login", nil, nil, nil, realm("https://evil.example/t"), true},
		{"Basic", newOne("secret"), nil, nil, basic, true},
		{"the upstream's own host", newOne("secret"), nil, nil, realm("https://a.example:8443/t"), true},
		{"another host", newOne("secret"), nil, nil, realm("https://evil.example/t"), false},
		{"a host of the configuration", newOne("secret"), []string{"auth.example"}, nil, realm("https://auth.example/t"), true},
		{"a host beside that", newOne("secret"), []string{"auth.example"}, nil, realm("https://evil.example/t"), false},
		{"GET /v2/ says so", newOne("secret"), nil, new(realm("https://auth.example/t")), realm("https://auth.example:443/other"), true},
		{"GET /v2/ says another", newOne("secret"), nil, new(realm("https://auth.example/t")), realm("https://evil.example/t"), false},
		{"GET /v2/ says Basic", newOne("secret"), nil, &basic, realm("https://evil.example/t"), false},
	} {
		c, err := New(Config{Name: "a", URL: "https://a.example", Logins: test.logins, RedirectHosts: test.hosts})
		testkit.Must(t, err)
		if test.shared != nil {
			c.wants.Store(&learned{challenge: *test.shared})
		}
		if got := c.mayHaveLogin(test.says); got != test.want {
			t.Errorf("%s: %t", test.what, got)
		}
	}
}

func TestChallengesThatCanBeMet(t *testing.T) {
	t.Parallel()
	known, anonymous := newTestClient(t, newOne("secret")), newTestClient(t, nil)
	for s, want := range map[scheme][2]bool{schemeNone: {true, true}, schemeBearer: {true, true}, schemeBasic: {true, false}, schemeUnknown: {false, false}} {
		if got := [2]bool{known.canMeet(challenge{scheme: s}), anonymous.canMeet(challenge{scheme: s})}; got != want {
			t.Errorf("scheme %d: %v with a login and without, want %v", s, got, want)
		}
	}
}

// A token endpoint that answers 400 or 404 may only want a scope.
func TestVerdictsThatRefuse(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		failure *Error
		want    bool
	}{
		{nil, false},
		{&Error{Reason: refusal.UpstreamCredential, Status: 401}, true},
		{&Error{Reason: refusal.UpstreamCredential, Status: 403}, true},
		{&Error{Reason: refusal.UpstreamCredential, Status: 400}, false},
		{&Error{Reason: refusal.UpstreamCredential, Status: 404}, false},
		{&Error{Reason: refusal.UpstreamDenied, Status: 401}, false},
	} {
		if got := (verdict{failure: test.failure}).isRefusal(); got != test.want {
			t.Errorf("%+v: %t", test.failure, got)
		}
	}
}

func TestReasonsOfFailures(t *testing.T) {
	t.Parallel()
	c := newTestClient(t, nil)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	own := &Error{Reason: refusal.UpstreamLimited}
	for _, test := range []struct {
		got  error
		want refusal.Reason
	}{
		{c.broken(fmt.Errorf("x: %w", errPrivate), "m"), refusal.UpstreamRedirect},
		{c.broken(context.DeadlineExceeded, "m"), refusal.UpstreamTimeout},
		{c.broken(errors.New("x"), "m"), refusal.UpstreamUnreachable},
		{c.broken(fmt.Errorf("x: %w", own), "m"), refusal.UpstreamLimited},
		{c.asError(errors.New("x")), refusal.UpstreamTimeout},
		{c.asError(own), refusal.UpstreamLimited},
		{c.noLogin(t.Context(), errors.New("x")), refusal.UpstreamCredential},
		{c.noLogin(t.Context(), own), refusal.UpstreamLimited},
	} {
		if e, ok := errors.AsType[*Error](test.got); !ok || e.Reason != test.want {
			t.Errorf("%v, want %s", test.got, test.want)
		}
	}
	if err := c.noLogin(canceled, context.Canceled); !errors.Is(err, context.Canceled) || errors.As(err, &own) {
		t.Errorf("%v of a caller that is gone", err)
	}
}

// A request that fails makes Run look at the upstream, and so does one that succeeds after a failure.
func TestRequestsThatRaiseDoubt(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		status  int
		failing string
		gone    bool
		want    int
	}{{200, "", false, 0}, {200, "it failed", false, 1}, {500, "", false, 1}, {200, "it failed", true, 0}} {
		c := clientOf(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v2/" {
				w.WriteHeader(test.status)
			}
		}, nil)
		_, err := c.shared(t.Context())
		testkit.Must(t, err)
		c.status.Failure = test.failing
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if test.gone {
			cancel()
		}
		u := *c.Base()
		u.Path = "/v2/a/manifests/v1"
		response, err := c.Do((&http.Request{Method: http.MethodGet, URL: &u, Header: http.Header{}}).WithContext(ctx), Need{Holder: "c/n/a"})
		if err == nil {
			Discard(response)
		}
		if len(c.doubts) != test.want {
			t.Errorf("%+v: %d doubts, %v", test, len(c.doubts), err)
		}
	}
}

func TestTokenRequestsAreCounted(t *testing.T) {
	t.Parallel()
	c := newTestClient(t, nil)
	c.tokenRequested(true)
	c.tokenRequested(false)
	if s := c.Status(); s.TokenRequests != 2 || s.TokenFailures != 1 {
		t.Errorf("%+v", s)
	}
}

// Certificates beside those that lead to a CA fill no memory.
func TestCertificatesOfServersAreBounded(t *testing.T) {
	t.Parallel()
	cert := pkitest.NewCA(t, nil, func(c *x509.Certificate) {
		c.IPAddresses, c.KeyUsage, c.ExtKeyUsage = []net.IP{net.IPv4(127, 0, 0, 1)}, 0, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	})
	file := testkit.TempFile(t, "ca.pem", string(pkitest.CertPEM(cert)))
	for _, more := range []bool{false, true} {
		served := cert.TLS()
		for size := len(cert.Raw); size+len(cert.Raw) <= maxChainBytes || more && size <= maxChainBytes; size += len(cert.Raw) {
			served.Certificate = append(served.Certificate, cert.Raw)
		}
		server := httptest.NewUnstartedServer(http.NotFoundHandler())
		server.TLS = &tls.Config{Certificates: []tls.Certificate{served}}
		server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
		server.StartTLS()
		t.Cleanup(server.Close)
		c := testkit.Value(New(Config{Name: "a", URL: server.URL, CAFile: file}))(t)
		for name, ask := range map[string]http.RoundTripper{"upstream": c.wire, "storage": c.storage.direct} {
			request := testkit.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, http.NoBody))(t)
			response, err := ask.RoundTrip(request)
			if err == nil {
				testkit.Must(t, response.Body.Close())
			}
			if errors.Is(err, errChain) != more || (err != nil) != more {
				t.Errorf("%s, %d certificates: %v", name, len(served.Certificate), err)
			}
		}
	}
}
