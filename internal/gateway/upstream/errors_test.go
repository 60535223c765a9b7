package upstream

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/pullpass/pullpass/internal/refusal"
)

func TestErrorsThatRepeatAreTheSame(t *testing.T) {
	t.Parallel()
	address := func(text string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(text)) }
	broken := func(from, to string) error {
		return &net.OpError{Op: "read", Net: "tcp", Source: address(from), Addr: address(to), Err: syscall.ECONNRESET}
	}
	unresolved := func(port int) error {
		return &net.DNSError{Err: fmt.Sprintf("read udp 10.0.3.17:%d->10.96.0.10:53: i/o timeout", port), Name: "ghcr.io", Server: "10.96.0.10:53", IsTimeout: true}
	}
	for name, c := range map[string]struct {
		first, second error
		want          string
	}{
		"broken":       {broken("10.0.3.17:43478", "192.0.2.1:443"), broken("10.0.3.17:51022", "192.0.2.1:443"), "read tcp 192.0.2.1:443: connection reset by peer"},
		"broken, IPv6": {broken("[2001:db8::1]:43478", "[2001:db8::2]:443"), broken("[2001:db8::1]:51022", "[2001:db8::2]:443"), "read tcp [2001:db8::2]:443: connection reset by peer"},
		"unresolved":   {unresolved(43478), unresolved(51022), "lookup ghcr.io on 10.96.0.10:53: read udp 10.96.0.10:53: i/o timeout"},
		"another":      {errors.New("a -> b"), errors.New("a -> b"), "a -> b"},
	} {
		for _, cause := range []error{c.first, c.second} {
			failed := &Error{Reason: refusal.UpstreamUnreachable, Upstream: "ghcr.io", Message: "it cannot be reached", Err: cause}
			if got, want := failed.Error(), "ghcr.io: it cannot be reached: "+c.want; got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	}
}
