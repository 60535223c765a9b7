package upstream

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// Where there is a proxy, everything goes by way of it, and it is asked for nothing
// that need not be public.
func TestGuardedByWayOfAProxy(t *testing.T) {
	t.Parallel()
	var asked []string
	proxy := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked = append(asked, r.URL.String()) }))
	t.Cleanup(proxy.Close)
	at, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	g := newGuarded(&http.Transport{Proxy: http.ProxyURL(at)}, func(_ context.Context, host string) bool { return host == "10.0.0.2" })
	for address, passes := range map[string]bool{
		"http://storage.example.com/blob": true, "http://10.0.0.2/blob": true, "http://10.0.0.1/blob": false, "http://localhost/blob": false, "http://2130706433/": false,
	} {
		asked = nil
		request, err := http.NewRequest(http.MethodGet, address, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := g.RoundTrip(request)
		if err == nil {
			_ = response.Body.Close()
		}
		if passes != (err == nil) || passes != (len(asked) == 1) || !passes && !errors.Is(err, errPrivate) {
			t.Errorf("%s: %v, the proxy was asked for %q", address, err, asked)
		}
	}
}

// A name is resolved when it is connected to, and it is the address that counts.
func TestGuardedAddresses(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	for _, mayBePrivate := range []bool{true, false} {
		g := newGuarded(&http.Transport{Proxy: func(*http.Request) (*url.URL, error) { return nil, nil }}, func(context.Context, string) bool { return mayBePrivate })
		request, err := http.NewRequest(http.MethodGet, strings.Replace(server.URL, "127.0.0.1", "localhost", 1), nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := g.RoundTrip(request)
		if err == nil {
			_ = response.Body.Close()
		}
		if mayBePrivate != (err == nil) || !mayBePrivate && !errors.Is(err, errPrivate) {
			t.Errorf("may be private: %t; %v", mayBePrivate, err)
		}
		g.CloseIdleConnections()
	}
}
