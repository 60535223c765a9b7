package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pullpass/pullpass/internal/base/filewatch"
	"github.com/pullpass/pullpass/internal/cluster/objectstatus"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/gateway"
	"github.com/pullpass/pullpass/internal/registryauth/assertion"
	"github.com/pullpass/pullpass/internal/server/audit"
	"github.com/pullpass/pullpass/internal/server/console"
	"github.com/pullpass/pullpass/internal/server/metrics"
	"github.com/pullpass/pullpass/internal/server/telemetry"
)

// Server holds all running parts of serve.
type Server struct {
	// These fields stay the same while the process runs.
	started       *config.Config // what the settings were at the start
	insecureHTTP  bool
	version       string
	logger        *slog.Logger
	shared        *setup.State
	memory        *exchange.Memory
	audit         *audit.Log
	metrics       *metrics.Metrics
	telemetry     *telemetry.Telemetry
	ready         *readiness
	connections   *connections // of the public listener
	streams       *connections // of the gateway's listener; nil: no gateway
	Public        http.Handler
	gateway       http.Handler
	gatewayMemory *gateway.Memory
	admin         http.Handler
	decisions     *console.Log                         // nil: the console is off
	after         func(time.Duration) <-chan time.Time // time.After
	settleTimeout time.Duration                        // the constant, except in tests
	listen        func(network, address string) (net.Listener, error)
	watch         func(context.Context, *slog.Logger, func() []filewatch.Group, <-chan struct{}, func(string, error))

	// The serving state, which a reload replaces.
	current  atomic.Pointer[generation]
	reloads  chan *reload // to the goroutine that reconciles
	readings readings

	// Background work and the admin listener outlive the public listener. So open requests finish,
	// and readyz reports the shutdown meanwhile.
	background     context.Context
	stopBackground context.CancelFunc
	running        sync.WaitGroup
	workers        map[worker]context.CancelFunc // belongs to the goroutine that reconciles
	waits          map[*reload]bool              // for annotations; belongs to the goroutine that reconciles
}

// Config configures a Server. Every field except InsecureHTTP, Network and Now must be set.
type Config struct {
	Config       *config.Config
	InsecureHTTP bool                    // plain HTTP, on a loopback address
	Version      string                  // of the program, for metrics, traces and the log
	Getenv       func(key string) string // for telemetry: os.Getenv
	Stdout       io.Writer
	Logger       *slog.Logger
	Network      Network
	Now          func() time.Time // of what the configuration opens; nil: time.Now. Replicas' clocks differ in simulations.
}

// Network replaces the network of the operating system, for simulations in virtual time. There, only what waits
// in memory lets time pass, so files are polled. The zero Network is the operating system's.
type Network struct {
	Listen func(network, address string) (net.Listener, error)
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
}

// New reads all files of the configuration. Parts that may become available later (an issuer, a
// signing key of a directory that cannot be written now) do not prevent the start.
func New(c Config) (*Server, error) { return newServer(c, memoryLimit()) }

// newServer takes the memory limit of the process.
func newServer(c Config, limit int64) (*Server, error) {
	cfg, insecureHTTP, logger := c.Config, c.InsecureHTTP, c.Logger
	s := &Server{
		started: cfg, insecureHTTP: insecureHTTP, version: c.Version, logger: logger, metrics: metrics.New(c.Version),
		after: time.After, settleTimeout: settleTimeout, listen: net.Listen, watch: filewatch.Watch,
		reloads: make(chan *reload), readings: readings{faults: map[string]string{}}, workers: map[worker]context.CancelFunc{}, waits: map[*reload]bool{},
	}
	s.background, s.stopBackground = context.WithCancel(context.Background())
	if c.Network.Listen != nil {
		s.listen, s.watch = c.Network.Listen, filewatch.Poll
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	isProxy := func(a netip.Addr) bool { return isTrusted(s.current.Load().cfg.Server.TrustedProxies, a) }
	memory, streams := limit/4, 0
	if cfg.Gateway != nil {
		memory /= 2 // the same amount again for its streams
		s.streams = newConnections(memory, streamBytes, isProxy)
		streams = s.streams.most
	}
	s.gatewayMemory = gateway.NewMemory(streams)
	s.connections = newConnections(memory, connectionBytes, isProxy)
	var err error
	if s.telemetry, err = telemetry.Open(telemetry.Config{Version: c.Version, Getenv: c.Getenv, Metrics: s.metrics.Registry, Logger: logger}); err != nil {
		return nil, err
	}
	first, err := open(cfg, insecureHTTP, c.Version, logger, parts{dial: c.Network.Dial, now: c.Now})
	if err != nil {
		return nil, err
	}
	s.warn(slices.Concat(cfg.Warnings, setup.PolicyWarnings(cfg, first.policy)))
	if first.tls != nil {
		s.warn(first.tls.warnings(cfg))
	}
	s.memory = exchange.NewMemory(exchange.MemoryConfig{IssuedBytes: setup.Caches().Issued, InFlight: maxInFlight, Waiting: maxWaiting})
	if s.shared, err = setup.OpenState(cfg, setup.StateConfig{Observe: s.metrics.RedisCall, Dial: c.Network.Dial, Now: c.Now}); err != nil {
		return nil, err
	}
	if s.audit, err = audit.Open(cfg.Audit.File, c.Stdout, logger); err != nil {
		return nil, err
	}
	s.decisions = s.newDecisions()
	g, err := s.assemble(first, nil)
	if err != nil {
		return nil, err
	}
	s.serve(g)
	s.ready = &readiness{checks: s.checks}
	token := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.current.Load().handler.ServeHTTP(w, r) })
	public := wholeRequests(publicHandler(s.telemetry.Handler(token), http.HandlerFunc(s.serveJWKS), http.HandlerFunc(s.serveCertificates),
		s.ofAssertions((*assertion.Issuer).ServeDiscovery), s.ofAssertions((*assertion.Issuer).ServeKeys)))
	s.Public = s.connections.handler(s.ready.lastAnswers(public))
	if s.streams != nil {
		s.gateway = s.streams.handler(s.ready.lastAnswers(s.gatewayHandler(public)))
	}
	page, err := s.page()
	if err != nil {
		return nil, err
	}
	s.admin = adminHandler(s.ready, s.metrics.Handler(), page, func() bool { return s.current.Load().cfg.Admin.PProf })
	return s, nil
}

// serve makes a generation serve from now on.
func (s *Server) serve(g *generation) {
	s.metrics.Use(s.sources(g))
	s.current.Store(g)
	deciding := objectstatus.Serving{Policy: g.exchanger.Policy(), Services: slices.Sorted(maps.Keys(g.registries))}
	if s.shared.Redis != nil {
		deciding.Shared = s.shared.Redis
	}
	g.objects.Use(deciding)
}

func (s *Server) warn(warnings []string) {
	for _, warning := range warnings {
		s.logger.Warn(warning)
	}
}

// Run serves until ctx ends, and server.shutdownDelay after that. It also ends if the public
// listener fails.
func (s *Server) Run(ctx context.Context) error {
	defer s.stopBackground()
	public, err := s.listen("tcp", s.started.Server.Address)
	if err != nil {
		return fmt.Errorf("server.address: %w", err)
	}
	admin, err := s.listen("tcp", s.started.Admin.Address)
	if err != nil {
		return fmt.Errorf("admin.address: %w", errors.Join(err, public.Close()))
	}
	var gatewayListener net.Listener
	if g := s.started.Gateway; g != nil {
		if gatewayListener, err = s.listen("tcp", g.Address); err != nil {
			return fmt.Errorf("gateway.address: %w", errors.Join(err, public.Close(), admin.Close()))
		}
		s.logger.Info("serving the gateway", "address", gatewayListener.Addr().String())
	}
	s.logger.Info("serving", "version", s.version, "address", public.Addr().String(), "admin", admin.Addr().String())

	// If the reader of standard output is gone, writes fail and are counted. They must not end the
	// process and all pulls. Notify, not Ignore: the plugins of a kubeconfig would inherit Ignore.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)

	s.work(s.current.Load().parts)
	s.running.Go(s.reconcile)
	if s.shared.List != nil {
		s.running.Go(func() { s.shared.Run(s.background, s.logger, func() *config.Config { return s.current.Load().cfg }) })
	}
	if s.decisions != nil {
		s.running.Go(func() { s.decisions.Run(s.background) })
	}
	all := make(chan struct{}, 1)
	files := func() []filewatch.Group { return s.watched(s.current.Load()) }
	s.running.Go(func() { s.watch(s.background, s.logger, files, all, s.reloaded) })
	s.running.Go(func() { s.readAgainAt(hangup, all) })
	adminEnded := make(chan error, 1)
	go func() {
		adminEnded <- serveAdmin(s.background, s.admin, admin, s.logger)
	}()

	listening, closeListener := context.WithCancel(s.background)
	s.running.Go(func() {
		s.drain(ctx, listening)
		closeListener()
	})
	var config *tls.Config
	if !s.insecureHTTP {
		config = listenerTLS(func() *tls.Config { return s.current.Load().tls.config })
	}
	server := newHTTPServer(s.Public, config, s.logger)
	s.connections.attach(server)
	gatewayEnded := make(chan error, 1)
	if gatewayListener != nil {
		s.running.Go(func() { s.gatewayMemory.Run(s.background) })
		go func() { gatewayEnded <- s.serveGateway(listening, gatewayListener) }()
	} else {
		gatewayEnded <- nil
	}
	err = serveUntil(listening, server, s.connections.listener(shortQueues{public, queueBytes, queueBytes}, drainTimeout), shutdownTimeout)
	closeListener() // also the gateway's listener, if the public one has failed
	err = errors.Join(err, <-gatewayEnded)
	s.stopBackground()
	s.running.Wait()
	err = errors.Join(err, <-adminEnded, s.shared.Close(), s.audit.Close())
	s.telemetry.Close() // last, because all other parts may still send data
	return err
}

// readAgainAt reads all files again at each signal.
func (s *Server) readAgainAt(signals <-chan os.Signal, all chan<- struct{}) {
	for {
		select {
		case <-s.background.Done():
			return
		case <-signals:
		}
		s.audit.Reopen()
		select {
		case all <- struct{}{}:
		default: // a reading is already due
		}
		s.running.Go(func() { s.current.Load().verifier.Fetch(s.background) })
	}
}

// reloaded records the result of reading a group of files.
func (s *Server) reloaded(name string, err error) {
	s.metrics.Reloaded(name, err)
	s.readings.note(name, err)
}

// drain returns when the public listener must be closed: its shutdown was announced for long
// enough, or it has stopped serving.
func (s *Server) drain(ctx, listening context.Context) {
	select {
	case <-ctx.Done():
	case <-listening.Done():
	}
	s.ready.draining.Store(true)
	if delay := s.current.Load().cfg.Server.ShutdownDelay.Duration(); delay > 0 && listening.Err() == nil {
		s.logger.Info("shutting down, and serving until load balancers look away", "delay", delay.String())
		select {
		case <-s.after(delay):
		case <-listening.Done():
		}
	}
}

// recorders passes each event to all, in order.
type recorders []exchange.Recorder

func (rs recorders) Record(e *exchange.Event) {
	for _, r := range rs {
		r.Record(e)
	}
}
