package upstream

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// With a proxy, all requests pass through it. It gets no request for a private address that is not
// allowed.
func TestGuardedByWayOfAProxy(t *testing.T) {
	t.Parallel()
	var asked []string
	proxy := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked = append(asked, r.URL.String()) }))
	t.Cleanup(proxy.Close)
	at := testkit.Value(url.Parse(proxy.URL))(t)
	g := newGuarded(&http.Transport{Proxy: http.ProxyURL(at)}, func(at string) bool { return at == "10.0.0.2:80" })
	for address, passes := range map[string]bool{
		"http://storage.example.com/blob": true, "http://10.0.0.2/blob": true, "http://10.0.0.1/blob": false, "http://localhost/blob": false, "http://2130706433/": false,
	} {
		asked = nil
		request, err := http.NewRequest(http.MethodGet, address, nil)
		testkit.Must(t, err)
		response, err := g.RoundTrip(request)
		if err == nil {
			_ = response.Body.Close()
		}
		if passes != (err == nil) || passes != (len(asked) == 1) || !passes && !errors.Is(err, errPrivate) {
			t.Errorf("%s: %v, the proxy was asked for %q", address, err, asked)
		}
	}
}

// A name is resolved on each connection, and the address counts.
func TestGuardedAddresses(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	for _, mayBePrivate := range []bool{true, false} {
		g := newGuarded(&http.Transport{Proxy: func(*http.Request) (*url.URL, error) { return nil, nil }}, func(string) bool { return mayBePrivate })
		request, err := http.NewRequest(http.MethodGet, strings.Replace(server.URL, "127.0.0.1", "localhost", 1), nil)
		testkit.Must(t, err)
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

// An upstream that chooses the hosts does not choose the number of open connections.
func TestGuardedConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	idle := map[net.Conn]bool{}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(idle)
	}
	listener := testkit.Value(net.Listen("tcp", "0.0.0.0:0"))(t)
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Listener.Close()
	server.Listener = listener
	server.Config.ConnState = func(c net.Conn, state http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		if delete(idle, c); state == http.StateIdle {
			idle[c] = true
		}
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	port := strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
	tunnels := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		there, err := net.Dial("tcp", r.Host)
		if err != nil {
			return
		}
		defer there.Close()
		here, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer here.Close()
		_, _ = io.WriteString(here, "HTTP/1.1 200 OK\r\n\r\n")
		go func() {
			_, _ = io.Copy(there, here)
			_ = there.Close()
		}()
		_, _ = io.Copy(here, there)
	}))
	t.Cleanup(tunnels.Close)
	proxy := testkit.Value(url.Parse(tunnels.URL))(t)
	for name, by := range map[string]*url.URL{"directly": nil, "by a proxy": proxy} {
		g := newGuarded(&http.Transport{Proxy: http.ProxyURL(by), TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, func(string) bool { return true })
		const hosts = maxIdle + 10
		for i := range hosts {
			r := testkit.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("https://127.0.1.%d:%s/", i+1, port), nil))(t)
			response := testkit.Value(g.RoundTrip(r))(t)
			Discard(response)
		}
		testkit.Eventually(t, name+": the others are closed", func() bool { return count() == maxIdle })
		g.CloseIdleConnections()
		testkit.Eventually(t, name+": all are closed", func() bool { return count() == 0 })
	}
}

// Addresses that are not assigned for the Internet are not public. This includes an IPv4 address
// within an IPv6 address, in any form.
func TestPublicAddresses(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{
		"8.8.8.8": true, "192.31.196.1": true, "2606:4700::1111": true, "2a00:1450:4001::1": true, "::ffff:8.8.8.8": true,
		"127.0.0.1": false, "0.0.0.0": false, "0.1.2.3": false, "10.0.0.1": false, "100.64.0.1": false, "169.254.169.254": false, "172.16.0.1": false, "192.0.0.1": false, "192.0.2.1": false,
		"192.88.99.1": false, "192.168.0.1": false, "198.18.0.1": false, "198.51.100.1": false, "203.0.113.1": false, "224.0.0.1": false, "240.0.0.1": false, "255.255.255.255": false,
		"::": false, "::1": false, "::127.0.0.1": false, "::10.0.0.1": false, "::8.8.8.8": false, "::ffff:127.0.0.1": false, "::ffff:0:127.0.0.1": false, "64:ff9b::127.0.0.1": false,
		"64:ff9b:1::10.0.0.1": false, "100::1": false, "2001::1": false, "2001:20::1": false, "2001:db8::1": false, "2002:7f00:1::": false, "2002:a00:1::1": false, "3fff::1": false,
		"4000::1": false, "5f00::1": false, "fc00::1": false, "fd00::1": false, "fe80::1": false, "fe80::1%eth0": false, "2606:4700::1111%eth0": false, "fec0::1": false, "ff02::1": false,
	} {
		if got := IsPublicHost(address); got != want {
			t.Errorf("%s: %t", address, got)
		}
	}
}

// A redirect may lead to the upstream's own address. A different port of its host may belong to a
// different service, and is refused unless the configuration names the host.
func TestRedirectsToOtherPorts(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		url   string
		hosts []string
		to    string
		named bool
		dials bool // a private address
	}{
		{"https://10.0.0.1", nil, "https://10.0.0.1/x", true, true},
		{"https://10.0.0.1", nil, "https://10.0.0.1:443/x", true, true},
		{"https://10.0.0.1:8443", nil, "https://10.0.0.1:8443/x", true, true},
		{"https://10.0.0.1", nil, "https://10.0.0.1:6443/x", false, false},
		{"https://10.0.0.1", nil, "https://user@10.0.0.1/x", false, true},
		{"https://10.0.0.1", []string{"cdn.example.com"}, "https://10.0.0.1:6443/x", false, false},
		{"https://10.0.0.1", []string{"10.0.0.1"}, "https://10.0.0.1:6443/x", true, true},
		{"https://registry.example.com", nil, "https://REGISTRY.example.com/x", true, true},
		{"https://registry.example.com", nil, "https://registry.example.com./x", true, true},
		{"https://registry.example.com", nil, "https://registry.example.com.:6443/x", true, false},
		{"https://registry.example.com", []string{"cdn.example.com"}, "https://cdn.example.com.:6443/x", true, true},
		{"https://registry.example.com", []string{"cdn.example.com"}, "https://cdn.example.org./x", false, false},
		{"https://registry.example.com", nil, "https://registry.example.com:6443/x", true, false}, // if it is public
		{"https://registry.example.com", []string{"cdn.example.com"}, "https://registry.example.com:6443/x", false, false},
	} {
		c := testkit.Value(New(Config{Name: "a", URL: test.url, RedirectHosts: test.hosts}))(t)
		to := testkit.Value(url.Parse(test.to))(t)
		if named, dials := c.CheckRedirect(to) == nil, c.storageMayBePrivate(addressOf(to)); named != test.named || dials != test.dials {
			t.Errorf("%s with %q to %s: may be named: %t, may be private: %t", test.url, test.hosts, test.to, named, dials)
		}
	}
}

func TestPrivateConnectionsAreRefused(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{"8.8.8.8:443": true, "[2606:4700::1111]:443": true, "10.0.0.1:443": false, "[::1]:443": false, "8.8.8.8": false, "": false} {
		if err := refusePrivate("tcp", address, nil); (err == nil) != want || err != nil && !errors.Is(err, errPrivate) {
			t.Errorf("%q: %v", address, err)
		}
	}
}
