package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
)

// Limits of the public listener. A token request is small and answered in
// milliseconds, but for the one that waits for an issuer's keys.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = 30 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 64 << 10 // a 16 KiB token in Basic, and room to refuse a larger one politely
	shutdownTimeout   = 20 * time.Second

	maxInFlight = 1024 // then requests wait
	maxWaiting  = 4096 // then they are refused
)

// publicHandler routes the public listener: the token endpoint, also where
// distribution's autoredirect looks for it, and the trust that registries need.
func publicHandler(token, jwks, certificates http.Handler) http.Handler {
	r := chi.NewRouter()
	for _, path := range []string{"/token", "/auth/token", "/auth/token/"} {
		r.Handle(path, token)
	}
	r.Method(http.MethodGet, "/.well-known/jwks.json", jwks)
	r.Method(http.MethodGet, "/certificates.pem", certificates)
	return r
}

// adminHandler routes the admin listener: the process, its dependencies, its
// metrics, and if so configured its profiles, which cost time and tell what the
// process holds.
func adminHandler(ready, metrics http.Handler, profiles bool) http.Handler {
	r := chi.NewRouter()
	// Liveness never depends on an upstream: restarting would not bring it back.
	r.Get("/livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	r.Method(http.MethodGet, "/readyz", ready)
	r.Method(http.MethodGet, "/metrics", metrics)
	if profiles {
		r.Get("/debug/pprof/*", pprof.Index) // and those that it lists
		r.Get("/debug/pprof/cmdline", pprof.Cmdline)
		r.Get("/debug/pprof/profile", pprof.Profile)
		r.Get("/debug/pprof/trace", pprof.Trace)
	}
	return r
}

// check is the state of one dependency.
type check struct {
	Name    string `json:"name"`
	Healthy bool   `json:"healthy"`
	// Tolerated marks a dependency without which the proxy serves all the same.
	Tolerated bool   `json:"tolerated,omitempty"`
	Message   string `json:"message,omitempty"`
}

// readiness answers /readyz. One cluster's issuer that is down must not take
// the others' pulls with it, so the proxy is unready only when a whole kind of
// dependency is down, or when it shuts down; the body names each one.
type readiness struct {
	draining atomic.Bool
	kinds    map[string]func() []check
}

func (rd *readiness) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	report := struct {
		Ready    bool               `json:"ready"`
		Draining bool               `json:"draining,omitempty"`
		Checks   map[string][]check `json:"checks"`
	}{Ready: !rd.draining.Load(), Draining: rd.draining.Load(), Checks: map[string][]check{}}
	for kind, checks := range rd.kinds {
		report.Checks[kind] = checks()
		healthy := false
		for _, c := range report.Checks[kind] {
			healthy = healthy || c.Healthy || c.Tolerated
		}
		report.Ready = report.Ready && healthy
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !report.Ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(report)
}

// lastAnswers ends connections with the next answer once the proxy shuts down,
// so that clients come back through the load balancer to another replica. Idle
// connections stay: a request may be on its way. For HTTP/2, net/http makes a
// GOAWAY of it.
func (rd *readiness) lastAnswers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rd.draining.Load() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// newServer returns a server with every limit set. A nil tlsConfig serves
// plain HTTP.
func newServer(handler http.Handler, tlsConfig *tls.Config, logger *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		TLSConfig:         tlsConfig,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		// Handshake failures of scanners and of clients without our CA: worth a look when debugging only.
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}

// serveUntil serves until ctx ends, then waits for open requests.
func serveUntil(ctx context.Context, server *http.Server, listener net.Listener) error {
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
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(drain); err != nil {
		_ = server.Close()
		return fmt.Errorf("open requests on %s did not finish in %s: %w", listener.Addr(), shutdownTimeout, err)
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving on %s: %w", listener.Addr(), err)
	}
	return nil
}
