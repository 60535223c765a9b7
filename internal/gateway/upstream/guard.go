package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
)

const dialTimeout = 10 * time.Second

// errPrivate refuses to connect to an address that an upstream's response must not lead to.
var errPrivate = errors.New("is not a public address")

// publicIPv6 is the part of IPv6 that is assigned for the Internet. Other addresses may be IPv4
// addresses in disguise: ::127.0.0.1, 64:ff9b::7f00:1 (NAT64).
var publicIPv6 = netip.MustParsePrefix("2000::/3")

// notPublic are networks that netip does not classify (the special-purpose registries of RFC 6890):
// the local network, shared ones, those of protocols, examples and tests, and translations of IPv4.
var notPublic = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"), netip.MustParsePrefix("192.0.2.0/24"),
	netip.MustParsePrefix("192.88.99.0/24"), netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("3fff::/20"),
}

// isPublic reports whether an address is reachable from the Internet.
func isPublic(a netip.Addr) bool {
	a = a.Unmap()
	if !a.IsGlobalUnicast() || a.IsPrivate() || a.Is6() && !publicIPv6.Contains(a) {
		return false
	}
	return !slices.ContainsFunc(notPublic, func(p netip.Prefix) bool { return p.Contains(a) })
}

// privateTops are the last labels of names that only private networks resolve: RFC 6761, RFC 6762,
// ICANN's reservation of "internal" (2024), and the short form of Services in Kubernetes.
var privateTops = []string{"localhost", "local", "internal", "svc"}

// IsPublicHost reports whether an upstream may name a host without being trusted with internal
// names. The host is a public address or a name that the Internet can have: it has a dot, and is
// not reserved for private networks (also RFC 8375). Forms that only browsers read as addresses
// (0x7f.1, 2130706433) are not allowed. Neither are other characters than those of host names:
// clients map them first (UTS #46), so that ⓪ is 0, and ｓｖｃ is svc.
func IsPublicHost(host string) bool {
	if a, err := netip.ParseAddr(host); err == nil {
		return isPublic(a)
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	last := name[strings.LastIndexByte(name, '.')+1:]
	if _, err := strconv.ParseUint(last, 0, 64); err == nil || last == "" {
		return false
	}
	return !strings.ContainsFunc(name, isForeign) && last != name && !slices.Contains(privateTops, last) && !strings.HasSuffix("."+name, ".home.arpa") && !strings.HasPrefix(last, "0x")
}

func isForeign(r rune) bool {
	return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '-' && r != '_' && r != '.'
}

// guarded connects to public addresses. It also connects to any address of the hosts that
// mayBePrivate allows; its argument is host:port. Names are resolved and addresses checked on each
// connection, so that a name cannot resolve differently later. A proxy resolves names itself, so
// with a proxy only names are checked.
type guarded struct {
	direct, proxied *http.Transport
	proxy           func(*http.Request) (*url.URL, error)
	mayBePrivate    func(at string) bool
}

func newGuarded(like *http.Transport, mayBePrivate func(at string) bool) *guarded {
	g := &guarded{direct: like.Clone(), proxied: like.Clone(), proxy: like.Proxy, mayBePrivate: mayBePrivate}
	// Upstreams choose the hosts, so a limit per host alone would not bound idle connections.
	g.direct.MaxIdleConns, g.proxied.MaxIdleConns = maxIdle, maxIdle
	g.direct.Proxy = nil
	open := inRecords(&net.Dialer{Timeout: dialTimeout})
	checked := inRecords(&net.Dialer{Timeout: dialTimeout, Control: refusePrivate})
	g.direct.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if mayBePrivate(address) {
			return open(ctx, network, address)
		}
		return checked(ctx, network, address)
	}
	return g
}

// refusePrivate is a Control of net.Dialer. It gets the address that a name was resolved to.
func refusePrivate(_, address string, _ syscall.RawConn) error {
	if at, err := netip.ParseAddrPort(address); err != nil || !isPublic(at.Addr()) {
		return fmt.Errorf("%s %w", address, errPrivate)
	}
	return nil
}

func (g *guarded) RoundTrip(r *http.Request) (*http.Response, error) {
	switch proxy, err := g.proxy(r); {
	case err != nil:
		return nil, err
	case proxy == nil:
		return g.direct.RoundTrip(r)
	}
	if host := r.URL.Hostname(); !IsPublicHost(host) && !g.mayBePrivate(addressOf(r.URL)) {
		return nil, fmt.Errorf("%s %w", host, errPrivate)
	}
	return g.proxied.RoundTrip(r)
}

// addressOf returns the host:port of a URL.
func addressOf(u *url.URL) string {
	port := u.Port()
	switch {
	case port != "":
	case u.Scheme == "https":
		port = "443"
	default:
		port = "80"
	}
	return net.JoinHostPort(u.Hostname(), port)
}

func (g *guarded) CloseIdleConnections() {
	g.direct.CloseIdleConnections()
	g.proxied.CloseIdleConnections()
}
