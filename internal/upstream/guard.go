package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const dialTimeout = 10 * time.Second

// errPrivate refuses to connect to where an upstream's answer must not lead.
var errPrivate = errors.New("is not a public address")

// notPublic are networks that netip has no word for: this one's own, shared ones
// (RFC 6598), those of protocols and tests, and those through which IPv4 is reached.
var notPublic = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("2001::/32"),
	netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("fec0::/10"),
}

// isPublic reports whether an address is one that anybody could reach.
func isPublic(a netip.Addr) bool {
	a = a.Unmap()
	if !a.IsGlobalUnicast() || a.IsPrivate() {
		return false
	}
	for _, p := range notPublic {
		if p.Contains(a) {
			return false
		}
	}
	return true
}

// IsPublicHost reports whether a host may be named by an upstream that need not be
// trusted with the names of others: a name, or a public address. What browsers read
// as an address although it does not look like one (0x7f.1, 2130706433) is none.
func IsPublicHost(host string) bool {
	if a, err := netip.ParseAddr(host); err == nil {
		return isPublic(a)
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	last := name[strings.LastIndexByte(name, '.')+1:]
	if _, err := strconv.ParseUint(last, 0, 64); err == nil || last == "" {
		return false
	}
	return last != "localhost" && !strings.HasPrefix(last, "0x")
}

// guarded connects to public addresses, and to any address of the hosts that
// mayBePrivate names. Names are resolved, and addresses checked, when it connects: a
// name that leads elsewhere the next time leads nowhere. Behind a proxy it is the proxy
// that resolves names, so there names alone are judged.
type guarded struct {
	direct, proxied *http.Transport
	proxy           func(*http.Request) (*url.URL, error)
	mayBePrivate    func(ctx context.Context, host string) bool
}

func newGuarded(like *http.Transport, mayBePrivate func(ctx context.Context, host string) bool) *guarded {
	g := &guarded{direct: like.Clone(), proxied: like.Clone(), proxy: like.Proxy, mayBePrivate: mayBePrivate}
	g.direct.Proxy = nil
	open := inRecords(&net.Dialer{Timeout: dialTimeout})
	checked := inRecords(&net.Dialer{Timeout: dialTimeout, Control: func(_, address string, _ syscall.RawConn) error {
		if at, err := netip.ParseAddrPort(address); err != nil || !isPublic(at.Addr()) {
			return fmt.Errorf("%s %w", address, errPrivate)
		}
		return nil
	}})
	g.direct.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		if mayBePrivate(ctx, host) {
			return open(ctx, network, address)
		}
		return checked(ctx, network, address)
	}
	return g
}

func (g *guarded) RoundTrip(r *http.Request) (*http.Response, error) {
	switch proxy, err := g.proxy(r); {
	case err != nil:
		return nil, err
	case proxy == nil:
		return g.direct.RoundTrip(r)
	}
	if host := r.URL.Hostname(); !IsPublicHost(host) && !g.mayBePrivate(r.Context(), host) {
		return nil, fmt.Errorf("%s %w", host, errPrivate)
	}
	return g.proxied.RoundTrip(r)
}

func (g *guarded) CloseIdleConnections() {
	g.direct.CloseIdleConnections()
	g.proxied.CloseIdleConnections()
}
