package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/pullpass/pullpass/internal/registryauth/assertion"
	"github.com/pullpass/pullpass/internal/server/console"
)

// Limits of the public listener. A token request is small and takes milliseconds, unless it waits
// for an issuer's keys.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = 30 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 64 << 10         // a 16 KiB token in Basic, and room to refuse a larger one with a message
	drainTimeout      = 15 * time.Second // longer than a request takes to arrive
	shutdownTimeout   = 20 * time.Second

	adminConnections = 64 // of probes, scrapers and browsers

	maxInFlight = 1024 // further requests wait
	maxWaiting  = 4096 // further requests are refused
)

// publicHandler routes the public listener: the token endpoint, also at the path that
// distribution's autoredirect uses, and the keys and certificates that registries need.
func publicHandler(token, jwks, certificates, discovery, assertionKeys http.Handler) http.Handler {
	r := chi.NewRouter()
	for _, path := range []string{"/token", "/auth/token", "/auth/token/"} {
		r.Handle(path, token)
	}
	r.Method(http.MethodGet, "/.well-known/jwks.json", jwks)
	r.Method(http.MethodGet, "/certificates.pem", certificates)
	r.Method(http.MethodGet, assertion.DiscoveryPath, discovery)
	r.Method(http.MethodGet, assertion.KeysPath, assertionKeys)
	return r
}

// adminHandler routes the admin listener: liveness, readiness, metrics, and the console. While
// profiles returns true, it also serves profiles, which cost time and reveal the memory of the
// process.
//
// page is nil if the console is off.
func adminHandler(ready, metrics, page http.Handler, profiles func() bool) http.Handler {
	r := chi.NewRouter()
	if page != nil {
		r.Handle(console.Prefix+"*", page)
	}
	// Liveness never depends on an upstream, because a restart would not repair it.
	r.Get("/livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	r.Method(http.MethodGet, "/readyz", ready)
	r.Method(http.MethodGet, "/metrics", metrics)
	r.Route("/debug/pprof", func(r chi.Router) {
		r.Use(func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !profiles() {
					http.NotFound(w, r)
					return
				}
				next.ServeHTTP(w, r)
			})
		})
		r.Get("/*", pprof.Index) // also serves the profiles that it lists
		r.Get("/cmdline", pprof.Cmdline)
		r.Get("/profile", pprof.Profile)
		r.Get("/trace", pprof.Trace)
	})
	return r
}

// ServeAdmin serves an admin listener until ctx ends, for commands without other listeners:
// liveness, readiness and metrics.
func ServeAdmin(ctx context.Context, address string, ready, metrics http.Handler, logger *slog.Logger) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return serveAdmin(ctx, adminHandler(ready, metrics, nil, func() bool { return false }), listener, logger)
}

// serveAdmin serves an admin listener until ctx ends. Where no NetworkPolicy holds, any pod can
// connect to it, and must not use up the memory of the process.
func serveAdmin(ctx context.Context, handler http.Handler, listener net.Listener, logger *slog.Logger) error {
	c := newConnections(adminConnections*connectionBytes, connectionBytes, func(netip.Addr) bool { return false })
	server := newHTTPServer(c.handler(handler), nil, logger)
	c.attach(server)
	return serveUntil(ctx, server, c.listener(shortQueues{listener, queueBytes, queueBytes}, drainTimeout), shutdownTimeout)
}

const (
	// streamQueueBytes is the kernel's send buffer for a stream whose client does not read. By default it
	// would be megabytes, which count as the container's memory.
	streamQueueBytes = 256 << 10
	// queueBytes is the kernel's buffer in each direction where requests and responses are small.
	queueBytes = 16 << 10
)

// shortQueues is a listener whose connections have these buffers in the kernel, in bytes; receive may be 0: as the kernel
// chooses.
type shortQueues struct {
	net.Listener
	send, receive int
}

func (l shortQueues) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetWriteBuffer(l.send)
		if l.receive > 0 {
			_ = t.SetReadBuffer(l.receive)
		}
	}
	return c, err
}

// newHTTPServer returns a server with every limit set. A nil tlsConfig serves
// plain HTTP.
func newHTTPServer(handler http.Handler, tlsConfig *tls.Config, logger *slog.Logger) *http.Server {
	// Not HTTP/2: a client needs few packets to make net/http hold 300 KiB for a connection.
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	return &http.Server{
		Handler:           handler,
		Protocols:         protocols,
		TLSConfig:         tlsConfig,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		// OPTIONS * would be answered without our handlers, which count memory and limit time.
		DisableGeneralOptionsHandler: true,
		// Handshake failures of scanners and of clients without our CA are useful only for
		// debugging.
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}

// serveUntil serves until ctx ends. Then it waits for open requests, at most for patience.
func serveUntil(ctx context.Context, server *http.Server, listener net.Listener, patience time.Duration) error {
	failed := make(chan error, 1)
	go func() {
		if server.TLSConfig != nil {
			failed <- server.ServeTLS(listener, "", "")
		} else {
			failed <- server.Serve(listener)
		}
	}()
	select {
	case err := <-failed:
		return fmt.Errorf("serving on %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if err := server.Shutdown(drain); err != nil {
		_ = server.Close()
		return fmt.Errorf("open requests on %s did not finish in %s: %w", listener.Addr(), patience, err)
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving on %s: %w", listener.Addr(), err)
	}
	return nil
}
