package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A token endpoint gets the password. Its address may be private only if the upstream's is, or if
// the configuration names it.
func TestRealmsOfPublicUpstreams(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		url   string
		at    string // where the upstream was reached; empty: it was not
		hosts []string
		realm string
		want  bool
	}{
		{"http://8.8.8.8", "8.8.8.8:80", nil, "8.8.8.8", true}, // itself
		{"http://8.8.8.8", "8.8.8.8:80", nil, "localhost", false},
		{"http://8.8.8.8", "8.8.8.8:80", nil, "10.0.0.1", false},
		{"http://8.8.8.8", "", []string{"auth.corp.example"}, "auth.corp.example", true},
		{"http://8.8.8.8", "8.8.8.8:80", []string{"auth.corp.example"}, "localhost", false},
		{"http://registry.corp.example", "10.0.0.2:80", nil, "10.0.0.1", true},
		{"http://registry.corp.example", "[fe80::1%eth0]:80", nil, "10.0.0.1", true},
		{"http://registry.corp.example", "[::ffff:10.0.0.2]:80", nil, "auth.corp.example", true},
		{"http://registry.corp.example", "[2600::1]:80", nil, "10.0.0.1", false},
		{"http://registry.corp.example", "a pipe", nil, "10.0.0.1", false},
		{"http://10.0.0.2", "", nil, "10.0.0.1", false},
		{"http://localhost", "127.0.0.1:80", nil, "auth.corp.example", true},
	} {
		c := testkit.Value(New(Config{Name: "a", URL: test.url, RedirectHosts: test.hosts, Dial: func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go func() {
				defer there.Close()
				if _, err := http.ReadRequest(bufio.NewReader(there)); err == nil {
					_, _ = io.WriteString(there, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				}
			}()
			return connectionTo{here, test.at}, nil
		}}))(t)
		if test.at != "" {
			testkit.Must(t, orNil(c.ask(t.Context()).err))
		}
		if got := c.realmMayBePrivate(test.realm + ":5001"); got != test.want {
			t.Errorf("%s at %s with %q: realm %s: %t", test.url, test.at, test.hosts, test.realm, got)
		}
	}
}

// connectionTo is a connection to an address.
type connectionTo struct {
	net.Conn
	address string
}

func (c connectionTo) RemoteAddr() net.Addr { return named(c.address) }

type named string

func (named) Network() string  { return "tcp" }
func (n named) String() string { return string(n) }

// Where a proxy connects to is not known. The names say what is private.
func TestRealmsBehindAProxy(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{"registry.example.com": false, "8.8.8.8": false, "registry": true, "registry.corp.internal": true, "10.0.0.2": true} {
		for _, scheme := range []string{"http", "https", "socks5"} {
			proxy := &url.URL{Scheme: scheme, Host: "proxy.example.com:3128"}
			w := newWire(&url.URL{Scheme: "https", Host: host}, &http.Transport{Proxy: http.ProxyURL(proxy), TLSClientConfig: &tls.Config{}})
			if got := w.isPrivate(); got != want {
				t.Errorf("%s through a proxy with %s: %t", host, scheme, got)
			}
		}
	}
}

func TestRedirectsAreChecked(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ base, to, want string }{
		{"https://8.8.8.8", "https://8.8.8.8/x", ""},
		{"https://8.8.8.8", "http://8.8.8.8:443/x", `not https ("http")`},
		{"http://8.8.8.8", "http://8.8.8.8/x", ""},
		{"http://8.8.8.8", "http://8.8.8.8:81/x", `not https ("http")`},
		{"https://8.8.8.8", "https://u@8.8.8.8/x", "with a user name"},
		{"https://8.8.8.8", "https://a.s3.example/x", ""},
		{"https://8.8.8.8", "https://A.b.S3.example/x", ""},
		{"https://8.8.8.8", "https://u@a.s3.example/x", "with a user name"},
		{"https://8.8.8.8", "http://a.s3.example/x", `not https ("http")`},
		{"https://8.8.8.8", "https://s3.example/x", `the host "s3.example"`},
		{"https://8.8.8.8", "https://.s3.example/x", `the host ".s3.example"`},
		{"https://8.8.8.8", "https://as3.example/x", `the host "as3.example"`},
		{"https://8.8.8.8", "https://x/x", `the host "x"`},
		{"https://8.8.8.8", "https://blobs.example/x", ""},
		{"https://8.8.8.8", "https://a.blobs.example/x", `the host "a.blobs.example"`},
		{"https://8.8.8.8", "https://blobs.example./x", ""},
		{"https://8.8.8.8", "https://a.s3.example./x", ""},
		{"https://8.8.8.8", "https://blobs.example../x", `the host "blobs.example.."`},
		{"https://8.8.8.8", "https://s3.example./x", `the host "s3.example."`},
		{"https://registry.example", "https://registry.example./x", ""},
		{"https://registry.example.", "https://registry.example/x", ""},
		{"https://registry.example", "https://registry.example.:81/x", `the host "registry.example."`},
	} {
		c, err := New(Config{Name: "a", URL: test.base, RedirectHosts: []string{"*.s3.example", "blobs.example"}})
		testkit.Must(t, err)
		to, err := url.Parse(test.to)
		testkit.Must(t, err)
		err = c.CheckRedirect(to)
		if e, ok := errors.AsType[*Error](err); ok && e.Reason != refusal.UpstreamRedirect {
			t.Errorf("%s: reason %s", test.to, e.Reason)
		}
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s to %s: %v, want %q", test.base, test.to, err, test.want)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A password goes over TLS, or to the host that the operator uses without it.
func TestPasswordsNeedTLS(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		base, realm string
		want        bool
	}{
		{"https://a.example", "https://b.example/t", true},
		{"https://a.example", "http://a.example/t", false},
		{"http://a.example", "http://a.example:8080/t", true},
		{"http://a.example", "http://b.example/t", false},
		{"http://a.example", "ftp://a.example/t", false},
		{"http://a.example", "https://b.example/t", true},
	} {
		c, err := New(Config{Name: "a", URL: test.base})
		testkit.Must(t, err)
		sent := false
		transport := &realmTransport{c, roundTripper(func(*http.Request) (*http.Response, error) { sent = true; return nil, nil })}
		realm, err := url.Parse(test.realm)
		testkit.Must(t, err)
		_, err = transport.RoundTrip(&http.Request{URL: realm})
		e, _ := errors.AsType[*Error](err)
		if sent != test.want || (e == nil) != test.want || e != nil && e.Reason != refusal.UpstreamCredential {
			t.Errorf("%s with %s: sent %t, %v", test.base, test.realm, sent, err)
		}
	}
}

func TestUpstreamsThatCannotBe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	testkit.Write(t, dir, "empty.pem", "\n")
	for want, config := range map[string]Config{
		"the URL cannot be read":       {URL: "/v2/"},
		"upstream a: the URL cannot":   {URL: "https://[::1"},
		"no such file":                 {URL: "https://a.example", CAFile: dir + "/missing.pem"},
		"empty.pem holds no certifica": {URL: "https://a.example", CAFile: dir + "/empty.pem"},
	} {
		config.Name = "a"
		if _, err := New(config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
