package main

import (
	"net/http/httptest"
	"net/netip"
	"testing"
)

// A caller that is not a trusted proxy must not choose its own address, and a
// client behind one must not either: only the right-most untrusted hop counts.
func TestCallerAddress(t *testing.T) {
	t.Parallel()
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for _, test := range []struct {
		name, peer string
		forwarded  []string
		want       string
	}{
		{"direct", "192.0.2.7:4000", nil, "192.0.2.7"},
		{"direct, header ignored", "192.0.2.7:4000", []string{"198.51.100.1"}, "192.0.2.7"},
		{"one proxy", "10.0.0.1:4000", []string{"198.51.100.1"}, "198.51.100.1"},
		{"spoofed left part", "10.0.0.1:4000", []string{"203.0.113.9, 198.51.100.1"}, "198.51.100.1"},
		{"two proxies", "10.0.0.1:4000", []string{"203.0.113.9, 198.51.100.1, 10.0.0.2"}, "198.51.100.1"},
		{"two header lines", "10.0.0.1:4000", []string{"203.0.113.9", "198.51.100.1"}, "198.51.100.1"},
		{"unreadable hop stops", "10.0.0.1:4000", []string{"203.0.113.9, nonsense, 10.0.0.2"}, "10.0.0.2"},
		{"proxy without header", "10.0.0.1:4000", nil, "10.0.0.1"},
		{"only proxies", "10.0.0.1:4000", []string{"10.0.0.3"}, "10.0.0.3"},
		{"IPv6", "[fd00::1]:4000", []string{"2001:db8::1"}, "2001:db8::1"},
		{"IPv6 with port", "[fd00::1]:4000", []string{"[2001:db8::1]:99"}, "2001:db8::1"},
		{"IPv4 in IPv6", "[::ffff:10.0.0.1]:4000", []string{"::ffff:198.51.100.1"}, "198.51.100.1"},
		{"no address", "@", nil, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequest("GET", "/token", nil)
			r.RemoteAddr = test.peer
			for _, f := range test.forwarded {
				r.Header.Add("X-Forwarded-For", f)
			}
			if got := callerOf(trusted)(r).String(); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
