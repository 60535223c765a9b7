package upstream

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// isOwn reports whether a host is the upstream's own.
func (c *Client) isOwn(host string) bool { return strings.EqualFold(host, c.base.Hostname()) }

func (c *Client) isAnyPublic() bool { return len(c.redirectHosts) == 0 }

// mayName reports whether a redirect of the upstream may name a host.
func (c *Client) mayName(host string) bool {
	switch {
	case c.isOwn(host):
		return true
	case c.isAnyPublic():
		return IsPublicHost(host)
	}
	return slices.ContainsFunc(c.redirectHosts, func(allowed string) bool {
		if below, ok := strings.CutPrefix(allowed, "*."); ok {
			return len(host) > len(below)+1 && strings.EqualFold(host[len(host)-len(below)-1:], "."+below)
		}
		return strings.EqualFold(host, allowed)
	})
}

// CheckRedirect refuses an address that an answer of the upstream must not lead to.
// The address itself, which may be signed, is in no error.
func (c *Client) CheckRedirect(to *url.URL) error {
	own := to.Scheme == c.base.Scheme && to.Host == c.base.Host
	switch {
	case own:
		return nil
	case to.Scheme != "https":
		return c.fail(ReasonRedirect, nil, "it redirects to an address that is not https (%.20q)", to.Scheme)
	case to.User != nil:
		return c.fail(ReasonRedirect, nil, "it redirects to an address with a user name")
	case !c.mayName(to.Hostname()):
		return c.fail(ReasonRedirect, nil, "it redirects to the host %.100q, which it may not name; add it to redirectHosts if it is where the upstream stores its blobs", to.Hostname())
	}
	return nil
}

// Follow asks where a redirect leads, without any credential. The address was checked
// by CheckRedirect; where its name leads is checked now.
func (c *Client) Follow(r *http.Request) (*http.Response, error) {
	response, err := c.timed(spanStorage, c.storage, r, &unsent{})
	if err == nil || r.Context().Err() != nil {
		return response, err
	}
	// Other causes hold the address, which may be signed.
	var refused *Error
	var op *net.OpError
	switch {
	case errors.As(err, &refused):
	case errors.As(err, &op):
		err = op
	default:
		err = errors.New("the request failed")
	}
	return nil, c.note(c.broken(err, "where it redirects to cannot be reached"))
}

// realmMayBePrivate reports whether the token endpoint of the upstream may have an
// address that is not public: if it is the upstream itself, if the configuration names
// its host, or if the upstream has such an address, too, as in a network of one's own.
func (c *Client) realmMayBePrivate(ctx context.Context, host string) bool {
	if c.isOwn(host) || !c.isAnyPublic() && c.mayName(host) {
		return true
	}
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", c.base.Hostname())
	return err == nil && slices.ContainsFunc(addresses, func(a netip.Addr) bool { return !isPublic(a) })
}

// realmTransport asks token endpoints, which get the password: by TLS alone, or where
// the upstream itself is asked without.
type realmTransport struct {
	client *Client
	next   http.RoundTripper
}

func (t *realmTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && (r.URL.Scheme != t.client.base.Scheme || !t.client.isOwn(r.URL.Hostname())) {
		return nil, t.client.fail(ReasonCredential, nil, "its token endpoint is not https (%.20q), and would get a password", r.URL.Scheme)
	}
	return t.next.RoundTrip(r)
}
