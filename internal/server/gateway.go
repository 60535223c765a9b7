package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/gateway"
	"github.com/pullpass/pullpass/internal/gateway/upstream/basic"
	"github.com/pullpass/pullpass/internal/registryauth/assertion"
)

// gatewayShutdownTimeout is how long streams may continue after SIGTERM. A layer takes minutes on a
// slow connection.
const gatewayShutdownTimeout = 5 * time.Minute

// openUpstreams opens the upstreams of the configuration. It reuses previous ones whose settings
// are the same.
func openUpstreams(cfg *config.Config, version string, assertions *assertion.Issuer, logger *slog.Logger, before parts) (map[string]*setup.Upstream, error) {
	all := map[string]*setup.Upstream{}
	for i := range cfg.Upstreams {
		u := &cfg.Upstreams[i]
		if old := before.upstreams[u.Name]; old != nil && reflect.DeepEqual(old.Settings, *u) && old.Assertions == assertions && old.Content == setup.CAContent(u) {
			all[u.Name] = old // its tokens and connections are kept
			continue
		}
		opened, err := setup.OpenUpstream(setup.UpstreamConfig{Settings: *u, Version: version, Assertions: assertions, Logger: logger, Dial: before.dial, Now: before.now})
		if err != nil {
			return nil, err
		}
		all[u.Name] = opened
	}
	return all, nil
}

// newGateway creates the gateway, if one is configured.
func (s *Server) newGateway(p parts) (*gateway.Handler, error) {
	c := p.cfg.Gateway
	if c == nil {
		return nil, nil
	}
	return gateway.New(gateway.Config{
		URL: c.URL, Service: c.Service, Issuer: p.cfg.Registry(c.Service).Issuer, Keys: p.keys[c.Service],
		Upstreams:   setup.ForGateway(p.upstreams),
		Revocations: s.shared.Revocations,
		Addresses:   exchange.NewAddressLimit(s.shared.Limiter(p.cfg.Limits.PerAddress), s.memory, p.now),
		Recorder:    s.recorders(p),
		Caller:      callerOf(p.cfg.Server.TrustedProxies),
		Logger:      s.logger,
		Memory:      s.gatewayMemory,
		Now:         p.now,
	})
}

// gatewayHandler serves the registry's API and all paths of the public listener, so that nodes need
// only one host.
func (s *Server) gatewayHandler(public http.Handler) http.Handler {
	registry := s.telemetry.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g := s.current.Load().gateway; g != nil {
			g.ServeHTTP(w, r)
			return
		}
		http.NotFound(w, r) // removed from the configuration, but its listener is still open
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client := http.NewResponseController(w)
		if ofRegistry(r) {
			_ = client.SetWriteDeadline(time.Time{}) // of the previous request; the gateway sets its own
			registry.ServeHTTP(w, r)
			return
		}
		_ = client.SetReadDeadline(time.Now().Add(readTimeout))
		_ = client.SetWriteDeadline(time.Now().Add(writeTimeout))
		public.ServeHTTP(w, r)
	})
}

// ofRegistry reports whether a request is for the registry's API. Bodies of such requests are passed
// on piece by piece, or not read.
func ofRegistry(r *http.Request) bool {
	return r.URL.Path == "/v2" || strings.HasPrefix(r.URL.Path, "/v2/")
}

// serveGateway serves the gateway's listener until ctx and its streams end.
func (s *Server) serveGateway(ctx context.Context, listener net.Listener) error {
	server := newHTTPServer(s.gateway, nil, s.logger)
	if !s.insecureHTTP {
		server.TLSConfig = listenerTLS(func() *tls.Config {
			if t := s.current.Load().tls; t.gateway != nil {
				return t.gateway
			}
			return s.current.Load().tls.config // removed from the configuration, but its listener is still open
		})
	}
	server.ReadTimeout, server.WriteTimeout = 0, 0 // each request has its own
	s.streams.attach(server)
	return serveUntil(ctx, server, s.streams.listener(shortQueues{Listener: listener, send: streamQueueBytes}, gatewayShutdownTimeout), gatewayShutdownTimeout)
}

// reloadUpstreams opens upstreams again whose CA file has changed.
func (s *Server) reloadUpstreams() error {
	return s.reload(&reload{read: func(read *generation) (change, error) {
		next, err := openUpstreams(read.cfg, s.version, read.assertions, s.logger, read.parts)
		if err != nil {
			return nil, err
		}
		return newPart(func(now parts) (parts, error) {
			if now.assertions == read.assertions && reflect.DeepEqual(now.cfg.Upstreams, read.cfg.Upstreams) { // else a new configuration has opened its own
				now.upstreams = next
			}
			return now, nil
		}), nil
	}})
}

// upstreamPaths returns the files of upstreams that are read only when they are opened.
func upstreamPaths(cfg *config.Config) []string {
	var paths []string
	for i := range cfg.Upstreams {
		paths = append(paths, config.NonEmpty(cfg.Upstreams[i].CAFile)...)
	}
	return paths
}

// passwordPaths returns the files with passwords of upstreams.
func passwordPaths(cfg *config.Config) []string {
	var paths []string
	for i := range cfg.Upstreams {
		if login := passwordOf(cfg, i); login != nil {
			paths = append(paths, login.PasswordFile)
		}
	}
	return paths
}

// passwordOf returns the credential of an upstream, if it is a password.
func passwordOf(cfg *config.Config, upstream int) *basic.Credential {
	if c := cfg.Upstreams[upstream].Credential; c != nil {
		return c.Basic
	}
	return nil
}

// checkPasswords reads the passwords of upstreams. Their logins read them again, and keep the last one that could be read.
func checkPasswords(cfg *config.Config) error {
	var faults []error
	for i := range cfg.Upstreams {
		if login := passwordOf(cfg, i); login != nil {
			if err := login.Check(); err != nil {
				faults = append(faults, cfg.Fault(fmt.Sprintf("upstreams[%d].credential.basic.passwordFile", i), err))
			}
		}
	}
	return errors.Join(faults...)
}

// checkUpstreams reports the state of the registries behind the gateway. The fault of one of them
// is reported to its clients, while the proxy serves the others.
func (p parts) checkUpstreams() []check {
	var checks []check
	for i := range p.cfg.Upstreams {
		name := p.cfg.Upstreams[i].Name
		status := p.upstreams[name].Status()
		c := check{Name: name, Healthy: status.Failure == "", Tolerated: status.Failure != "", Message: status.Failure}
		switch {
		case c.Healthy && status.Held:
			c.Message = "it asked for fewer requests, and is left alone until then"
		case c.Healthy && status.AnsweredAt.IsZero():
			c.Message = "it was not asked yet"
		}
		checks = append(checks, c)
	}
	return checks
}

// gatewayAddress is empty without a gateway.
func gatewayAddress(cfg *config.Config) string {
	if cfg.Gateway == nil {
		return ""
	}
	return cfg.Gateway.Address
}
