package server

import (
	"crypto/tls"
	"crypto/x509"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// A caller that is not a trusted proxy must not choose its own address. Neither must a client
// behind one: only the right-most untrusted hop counts.
func TestCallerAddress(t *testing.T) {
	t.Parallel()
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for _, test := range []struct {
		name, peer string
		forwarded  []string
		want       string
		viaProxy   bool
	}{
		{"direct", "192.0.2.7:4000", nil, "192.0.2.7", false},
		{"direct, header ignored", "192.0.2.7:4000", []string{"198.51.100.1"}, "192.0.2.7", false},
		{"one proxy", "10.0.0.1:4000", []string{"198.51.100.1"}, "198.51.100.1", false},
		{"spoofed left part", "10.0.0.1:4000", []string{"203.0.113.9, 198.51.100.1"}, "198.51.100.1", false},
		{"two proxies", "10.0.0.1:4000", []string{"203.0.113.9, 198.51.100.1, 10.0.0.2"}, "198.51.100.1", false},
		{"two header lines", "10.0.0.1:4000", []string{"203.0.113.9", "198.51.100.1"}, "198.51.100.1", false},
		{"unreadable hop stops", "10.0.0.1:4000", []string{"203.0.113.9, nonsense, 10.0.0.2"}, "10.0.0.2", true},
		{"proxy without header", "10.0.0.1:4000", nil, "10.0.0.1", true},
		{"only proxies", "10.0.0.1:4000", []string{"10.0.0.3"}, "10.0.0.3", true},
		{"IPv6", "[fd00::1]:4000", []string{"2001:db8::1"}, "2001:db8::1", false},
		{"IPv6 with port", "[fd00::1]:4000", []string{"[2001:db8::1]:99"}, "2001:db8::1", false},
		{"IPv4 in IPv6", "[::ffff:10.0.0.1]:4000", []string{"::ffff:198.51.100.1"}, "198.51.100.1", false},
		{"no address", "@", nil, "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequest("GET", "/token", nil)
			r.RemoteAddr = test.peer
			for _, f := range test.forwarded {
				r.Header.Add("X-Forwarded-For", f)
			}
			if got := callerOf(trusted)(r); got.String() != test.want || got.ViaProxy != test.viaProxy {
				t.Errorf("got %q, via proxy %t, want %q, %t", got, got.ViaProxy, test.want, test.viaProxy)
			}
		})
	}
}

// The client writes most of the header, and need not have a credential.
func TestCallerAddressReadsNoMoreHopsThanCount(t *testing.T) {
	r := httptest.NewRequest("GET", "/token", nil)
	r.RemoteAddr = "10.0.0.1:4000"
	r.Header.Set("X-Forwarded-For", strings.Repeat(",", maxHeaderBytes)+"198.51.100.1:4000")
	address := callerOf([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")})
	if n := testing.AllocsPerRun(10, func() { address(r) }); n > 0 {
		t.Errorf("%.0f allocations", n)
	}
}

// The client's whole chain is passed on, the leaf first.
func TestCallerCertificates(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequest("GET", "/token", nil)
	if got := callerOf(nil)(r).Certificates; got != nil {
		t.Errorf("certificates %v without TLS", got)
	}
	presented := []*x509.Certificate{{}, {}}
	r.TLS = &tls.ConnectionState{PeerCertificates: presented}
	if got := callerOf(nil)(r).Certificates; !slices.Equal(got, presented) {
		t.Errorf("certificates %v, want %v", got, presented)
	}
}
