package upstream

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// nameServer answers every question with the current address.
type nameServer struct {
	address atomic.Pointer[netip.Addr]
	asked   atomic.Int64
	serving sync.WaitGroup
}

func (s *nameServer) dial(context.Context, string, string) (net.Conn, error) {
	here, there := net.Pipe()
	s.serving.Go(func() {
		defer there.Close()
		for s.answer(there) == nil {
		}
	})
	return here, nil
}

// answer answers one question over a stream (RFC 1035, sections 4.1 and 4.2.2).
func (s *nameServer) answer(c net.Conn) error {
	var length uint16
	if err := binary.Read(c, binary.BigEndian, &length); err != nil {
		return err
	}
	asked := make([]byte, length)
	if _, err := io.ReadFull(c, asked); err != nil {
		return err
	}
	s.asked.Add(1)
	const head = 12
	end := head + bytes.IndexByte(asked[head:], 0) + 5 // the name, type and class of the question
	kind, address := binary.BigEndian.Uint16(asked[end-4:]), s.address.Load().AsSlice()
	const a, aaaa = 1, 28
	answers := byte(0)
	text := slices.Clone(asked[:end])
	if kind == a && len(address) == net.IPv4len || kind == aaaa && len(address) == net.IPv6len {
		answers = 1
		text = append(text, 0xc0, head, 0, byte(kind), 0, 1, 0, 0, 0, 0, 0, byte(len(address)))
		text = append(text, address...)
	}
	copy(text[2:head], []byte{0x81, 0x80, 0, 1, 0, answers, 0, 0, 0, 0})
	_, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(text))), text...))
	return err
}

// A name that passed the check is resolved when it is dialed. If it then has a private address, no
// byte is sent, neither to a storage nor to a token endpoint. The upstream's own name server opens no
// private addresses to it either.
func TestNamesThatChange(t *testing.T) { // alone: it replaces the resolver of the process
	names := &nameServer{}
	before := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: names.dial}
	t.Cleanup(func() {
		net.DefaultResolver = before
		names.serving.Wait()
	})
	var reached atomic.Int64
	listener := testkit.Listen(t)
	_, port, err := net.SplitHostPort(listener.Addr().String())
	testkit.Must(t, err)
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			reached.Add(1)
			_ = c.Close()
		}
	}()
	file := filepath.Join(t.TempDir(), "ca.crt")
	testkit.Must(t, os.WriteFile(file, pkitest.CertPEM(pkitest.NewCA(t, nil)), 0o600))
	open := func(hosts ...string) *Client {
		c := testkit.Value(New(Config{Name: "ghcr.io", URL: "https://registry.example.com", CAFile: file, RedirectHosts: hosts}))(t)
		return c
	}
	to := &url.URL{Scheme: "https", Host: "storage.example.com:" + port, Path: "/blob"}
	public := open()
	testkit.Must(t, public.CheckRedirect(to))
	ways := map[string]func(*Client, *http.Request) (*http.Response, error){
		"storage":        func(c *Client, r *http.Request) (*http.Response, error) { return c.storage.RoundTrip(r) },
		"token endpoint": func(c *Client, r *http.Request) (*http.Response, error) { return c.tokens.transport.RoundTrip(r) },
	}
	ask := func(c *Client, way string) error {
		response, err := ways[way](c, (&http.Request{Method: http.MethodGet, URL: to, Host: to.Host, Header: http.Header{}}).WithContext(t.Context()))
		if err == nil {
			_ = response.Body.Close()
		}
		return err
	}
	for way := range ways {
		for _, text := range []string{"127.0.0.1", "0.0.0.0", "10.0.0.1", "169.254.169.254", "100.64.0.1", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "fd00::1", "fe80::1"} {
			address := netip.MustParseAddr(text)
			names.address.Store(&address)
			asked := names.asked.Load()
			if err := ask(public, way); !errors.Is(err, errPrivate) || names.asked.Load() == asked {
				t.Errorf("%s at %s: %v", way, text, err)
			}
		}
		if n := reached.Load(); n > 0 {
			t.Errorf("%s: %d connections", way, n)
		}
		local := netip.MustParseAddr("127.0.0.1")
		names.address.Store(&local)
		if err := ask(open("storage.example.com"), way); err == nil || strings.Contains(err.Error(), errPrivate.Error()) {
			t.Errorf("%s, configured: %v", way, err)
		}
		testkit.Eventually(t, "a configured host is reached", func() bool { return reached.Swap(0) > 0 })
	}
}
