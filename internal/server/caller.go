package server

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
)

// callerOf returns the caller of a request. A proxy that ends TLS presents its own certificate or
// none. A proxy that passes TLS through presents the client's.
func callerOf(trusted []netip.Prefix) func(*http.Request) nodeproof.Caller {
	isTrusted := func(a netip.Addr) bool { return isTrusted(trusted, a) }
	return func(r *http.Request) nodeproof.Caller {
		address := callerAddress(r, isTrusted)
		caller := nodeproof.Caller{Address: address, ViaProxy: isTrusted(address)}
		if r.TLS != nil {
			caller.Certificates = r.TLS.PeerCertificates
		}
		return caller
	}
}

func isTrusted(trusted []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Contains(a) })
}

// callerAddress returns the address of the client of a request. That is the TCP peer. If the peer
// is a trusted proxy, it is the right-most address of X-Forwarded-For that is not a trusted proxy.
// The client can write everything further left, so that proves nothing. If all readable addresses
// are trusted proxies, the result is one of theirs.
func callerAddress(r *http.Request, isTrusted func(netip.Addr) bool) netip.Addr {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	caller := peer.Addr().Unmap().WithZone("")
	if !isTrusted(caller) {
		return caller
	}
	// Several header lines are one list (RFC 9110 section 5.3). It is not split, because the client
	// can make it long.
	left := strings.Join(r.Header.Values("X-Forwarded-For"), ",")
	for more := true; more; {
		hop := left
		at := strings.LastIndexByte(left, ',')
		if more = at >= 0; more {
			left, hop = left[:at], left[at+1:]
		}
		address, err := parseHop(strings.TrimSpace(hop))
		if err != nil {
			break // an unreadable hop hides the hops to its left
		}
		caller = address
		if !isTrusted(caller) {
			break
		}
	}
	return caller
}

// parseHop reads 192.0.2.1, 192.0.2.1:443, 2001:db8::1 and [2001:db8::1]:443.
func parseHop(s string) (netip.Addr, error) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().Unmap().WithZone(""), nil
	}
	a, err := netip.ParseAddr(s)
	return a.Unmap().WithZone(""), err
}
