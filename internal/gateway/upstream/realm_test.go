package upstream

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// serveAt serves TLS at an address of the loopback network, with a certificate of ca.
func serveAt(t *testing.T, ca *pkitest.Cert, ip string, handler http.Handler) string {
	t.Helper()
	cert := pkitest.NewCert(t, pkitest.ECKey(t), ca, func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.ParseIP(ip)} })
	listener := testkit.Value(net.Listen("tcp", net.JoinHostPort(ip, "0")))(t)
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: handler}, TLS: &tls.Config{Certificates: []tls.Certificate{cert.TLS()}}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return "https://" + listener.Addr().String()
}

// The owner of a repository may control its responses. A 401 there must not send the shared login
// to the owner's host. GET /v2/ and the configuration may name a different host.
func TestALoginGoesWhereTheUpstreamSays(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		isShared bool // GET /v2/ also names the other host
		hosts    []string
		want     int32 // requests with the password there
	}{
		"one repository": {false, nil, 0}, "one repository, other hosts are configured": {false, []string{"127.0.0.3"}, 0},
		"all": {true, nil, 1}, "configured": {false, []string{"127.0.0.2"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ca := pkitest.NewCA(t, nil)
			var passwords atomic.Int32
			realm := serveAt(t, ca, "127.0.0.2", http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				if q.Header.Get("Authorization") != "" && q.URL.Query().Get("scope") != "" {
					passwords.Add(1)
				}
				_, _ = w.Write([]byte(`{"token": "good", "expires_in": 300}`))
			}))
			base := serveAt(t, ca, "127.0.0.1", http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				switch {
				case q.Header.Get("Authorization") == "Bearer good":
					return
				case q.URL.Path == "/v2/" && !test.isShared:
					w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
				default:
					w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm+`/token",service="x"`)
				}
				w.WriteHeader(http.StatusUnauthorized)
			}))
			dir := t.TempDir()
			testkit.Write(t, dir, "ca.pem", string(pkitest.CertPEM(ca)))
			c, err := New(Config{Name: "a", URL: base, CAFile: dir + "/ca.pem", Logins: newOne("secret"), RedirectHosts: test.hosts})
			testkit.Must(t, err)
			u, err := url.Parse(base + "/v2/a/manifests/v1")
			testkit.Must(t, err)
			response, err := c.Do((&http.Request{Method: http.MethodGet, URL: u, Header: http.Header{}}).WithContext(t.Context()),
				Need{Holder: "c/n/a", Scopes: []registryauth.Scope{{Type: "repository", Name: "a", Actions: []string{"pull"}}}})
			if err == nil {
				Discard(response)
			}
			if isGood := test.want > 0; isGood != (err == nil) || passwords.Load() != test.want {
				t.Errorf("%v; the password was sent there %d times, want %d", err, passwords.Load(), test.want)
			}
		})
	}
}

// net/http quotes a head that is not HTTP in its error. Such a head may repeat that of the request.
func TestAMalformedHeadRepeatsTheLogin(t *testing.T) {
	t.Parallel()
	const password = "the-password-of-the-upstream"
	for _, challenge := range []string{`Basic realm="x"`, `Bearer realm="https://HOST/token",service="x"`} {
		ca := pkitest.NewCA(t, nil)
		base := serveAt(t, ca, "127.0.0.1", http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if q.Header.Get("Authorization") == "" {
				w.Header().Set("WWW-Authenticate", strings.Replace(challenge, "HOST", q.Host, 1))
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			connection, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, decoded, _ := q.BasicAuth()
			_, _ = io.WriteString(connection, "HTTP/1.1 "+decoded+" "+q.Header.Get("Authorization")+"\r\n\r\n")
			_ = connection.Close()
		}))
		dir := t.TempDir()
		testkit.Write(t, dir, "ca.pem", string(pkitest.CertPEM(ca)))
		c := testkit.Value(New(Config{Name: "a", URL: base, CAFile: dir + "/ca.pem", Logins: newOne(password)}))(t)
		u := testkit.Value(url.Parse(base + "/v2/a/manifests/v1"))(t)
		_, err := c.Do((&http.Request{Method: http.MethodGet, URL: u, Header: http.Header{}}).WithContext(t.Context()),
			Need{Scopes: []registryauth.Scope{{Type: "repository", Name: "a", Actions: []string{"pull"}}}})
		if err == nil || !strings.Contains(err.Error(), "looks like a token") || strings.Contains(err.Error(), password) {
			t.Errorf("error %v", err)
		}
	}
}
