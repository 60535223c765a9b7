package pullpass

import (
	"context"
	"crypto/rand"
	cryptotls "crypto/tls"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/testenv"
)

// Host is a machine that asks Pullpass for tokens, one at a time. Asked by several goroutines, net/http would open connections
// that it does not use in the end; the server closes such a one after a while, and a POST that begins just then fails.
type Host struct {
	proxy        *Proxy
	client       *http.Client
	forwardedFor string
}

// From says how a Host appears to Pullpass.
type From struct {
	Address      string                 // of the machine, in 127.0.0.0/8; empty: 127.0.0.1
	Certificate  *cryptotls.Certificate // that it presents; nil: none
	ForwardedFor string                 // X-Forwarded-For; empty: without
}

// Host returns a new machine, with connections of its own.
func (p *Proxy) Host(t testing.TB, from From) *Host {
	t.Helper()
	dialer := &net.Dialer{}
	if from.Address != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from.Address)}
	}
	config := &cryptotls.Config{RootCAs: p.ca.Pool(), ClientSessionCache: cryptotls.NewLRUClientSessionCache(0)}
	if from.Certificate != nil {
		// Not Certificates: from those, Go presents only what is of a CA that the server names.
		config.GetClientCertificate = func(*cryptotls.CertificateRequestInfo) (*cryptotls.Certificate, error) {
			return from.Certificate, nil
		}
	}
	transport := &http.Transport{DialContext: dialer.DialContext, TLSClientConfig: config}
	t.Cleanup(transport.CloseIdleConnections)
	return &Host{p, &http.Client{Transport: transport, Timeout: 30 * time.Second}, from.ForwardedFor}
}

// Ask asks as containerd does.
func (h *Host) Ask(t testing.TB, service, token string, scopes ...string) Answer {
	t.Helper()
	answer := testenv.Value(h.Try(t.Context(), service, token, scopes...))(t)
	return answer
}

// Try is Ask for goroutines, which must not end a test. Each request has a User-Agent of its own, by which its audit line is
// found among others.
func (h *Host) Try(ctx context.Context, service, token string, scopes ...string) (Answer, error) {
	req, err := h.proxy.post(ctx, service, token, scopes)
	if err != nil {
		return Answer{}, err
	}
	name := "e2e-" + rand.Text()
	req.Header.Set("User-Agent", name)
	if h.forwardedFor != "" {
		req.Header.Set("X-Forwarded-For", h.forwardedFor)
	}
	answer, err := h.proxy.send(h.client, req, token)
	if err != nil {
		return Answer{}, err
	}
	if !testenv.Poll(auditLimit, func() (written bool) { answer.Audit, written = h.proxy.audit.of(name); return written }) {
		return Answer{}, fmt.Errorf("no audit line about a request that was answered %d", answer.Status)
	}
	return answer, nil
}

// Disconnect closes the connections that are not in use. TLS sessions are kept, to be resumed.
func (h *Host) Disconnect() { h.client.CloseIdleConnections() }
