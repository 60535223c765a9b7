package upstream

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/refusal"
)

// isOwn reports whether a host is the upstream's own.
func (c *Client) isOwn(host string) bool {
	return strings.EqualFold(withoutDot(host), withoutDot(c.base.Hostname()))
}

// withoutDot returns a host without the dot of an absolute name. With it, DNS has the same name and
// asks no search domain.
func withoutDot(host string) string { return strings.TrimSuffix(host, ".") }

func (c *Client) isAnyPublic() bool { return len(c.redirectHosts) == 0 }

// isOwnAddress reports whether host:port is the upstream itself. A different port of its host may
// belong to a service that is not meant for others.
func (c *Client) isOwnAddress(at string) bool {
	host, port, _ := net.SplitHostPort(at)
	_, own, _ := net.SplitHostPort(addressOf(c.base))
	return c.isOwn(host) && port == own
}

// mayName reports whether a redirect of the upstream may name a host.
func (c *Client) mayName(host string) bool {
	if c.isAnyPublic() {
		return IsPublicHost(host)
	}
	host = withoutDot(host)
	return slices.ContainsFunc(c.redirectHosts, func(allowed string) bool {
		if below, ok := strings.CutPrefix(allowed, "*."); ok {
			return len(host) > len(below)+1 && strings.EqualFold(host[len(host)-len(below)-1:], "."+below)
		}
		return strings.EqualFold(host, allowed)
	})
}

// CheckRedirect refuses an address that a response of the upstream must not lead to. Its errors
// never contain the address, which may be signed.
func (c *Client) CheckRedirect(to *url.URL) error {
	own := to.Scheme == c.base.Scheme && c.isOwnAddress(addressOf(to))
	switch {
	case own && to.User == nil:
		return nil
	case to.Scheme != "https":
		return c.fail(refusal.UpstreamRedirect, nil, "it redirects to an address that is not https (%.20q)", to.Scheme)
	case to.User != nil:
		return c.fail(refusal.UpstreamRedirect, nil, "it redirects to an address with a user name")
	case !c.mayName(to.Hostname()):
		return c.fail(refusal.UpstreamRedirect, nil, "it redirects to the host %.100q, which it may not name; add it to redirectHosts if it is where the upstream stores its blobs", to.Hostname())
	}
	return nil
}

// Follow sends a request to a redirect target, without any credential. CheckRedirect has checked
// the URL. The address that its name resolves to is checked now.
func (c *Client) Follow(r *http.Request) (*http.Response, error) {
	response, err := c.timed(spanStorage, c.storage, r)
	if err == nil || r.Context().Err() != nil {
		return response, err
	}
	// Other causes contain the address, which may be signed.
	var refused *Error
	var op *net.OpError
	switch {
	case errors.As(err, &refused):
	case errors.As(err, &op):
		err = op
	default:
		err = errors.New("the request failed")
	}
	return nil, c.broken(err, "where it redirects to cannot be reached")
}

// storageMayBePrivate reports whether a redirect may lead to a private address: if it is the
// upstream's own, or if the configuration names its host.
func (c *Client) storageMayBePrivate(at string) bool {
	host, _, _ := net.SplitHostPort(at)
	return c.isOwnAddress(at) || !c.isAnyPublic() && c.mayName(host)
}

// realmMayBePrivate reports whether the upstream's token endpoint may have a private address. It may
// if it is on the upstream's host, or if the configuration names its host. It also may if the
// upstream itself is at a private address, as in a private network.
func (c *Client) realmMayBePrivate(at string) bool {
	host, _, _ := net.SplitHostPort(at)
	return c.isOwn(host) || !c.isAnyPublic() && c.mayName(host) || c.wire.isPrivate()
}

// realmTransport sends requests to token endpoints, which get the password. It requires TLS, except
// on the upstream's own host if the upstream is used without TLS.
type realmTransport struct {
	client *Client
	next   http.RoundTripper
}

func (t *realmTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && (r.URL.Scheme != t.client.base.Scheme || !t.client.isOwn(r.URL.Hostname())) {
		return nil, t.client.fail(refusal.UpstreamCredential, nil, "its token endpoint is not https (%.20q), and would get a password", r.URL.Scheme)
	}
	return t.next.RoundTrip(r)
}
