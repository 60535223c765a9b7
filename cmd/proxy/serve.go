package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/kube"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/registryauth"
)

func serveCommand() *cobra.Command {
	var config string
	var insecureHTTP bool
	command := &cobra.Command{
		Use:   "serve",
		Short: "Serve the token endpoint",
		Long: `Serve the token endpoint until SIGTERM or SIGINT, then finish open requests.
Audit events go to standard output (or audit.file), one JSON object a line; the
program's own log goes to standard error. SIGHUP opens audit.file anew, after
it was moved away.`,
		Example: `  pullpass serve --config /etc/pullpass/pullpass.yaml`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logger := slog.New(slog.NewJSONHandler(cmd.ErrOrStderr(), nil))
			klog.SetSlogLogger(logger) // what client-go has to say, for the whole process
			cfg, err := LoadConfig(config)
			if err != nil {
				return err
			}
			if err := cfg.CheckListeners(insecureHTTP); err != nil {
				return err
			}
			s, err := newService(cfg, insecureHTTP, cmd.OutOrStdout(), logger)
			if err != nil {
				return err
			}
			return s.run(cmd.Context())
		},
	}
	configFlag(command, &config)
	command.Flags().BoolVar(&insecureHTTP, "insecure-http", false, "serve plain HTTP, on a loopback address only, behind something that ends TLS")
	return command
}

// service is everything that serve keeps running.
type service struct {
	cfg       *Config
	logger    *slog.Logger
	verifier  *oidc.Verifier
	objects   *objects
	policy    *exchange.Policy // in use; belongs to its reload
	shared    *sharedState
	exchanger *exchange.Exchanger
	keys      map[string]*signingKeys // by service
	tls       *serverTLS              // nil: plain HTTP
	audit     *auditLog
	metrics   *metrics
	telemetry *telemetry
	podEvents *kube.PodEvents
	ready     *readiness
	public    http.Handler
	admin     http.Handler
	after     func(time.Duration) <-chan time.Time // time.After
}

// newService reads everything that the configuration names. What may come later
// (an issuer, a signing key of a directory that cannot be written just now) is
// no reason not to start.
func newService(cfg *Config, insecureHTTP bool, stdout io.Writer, logger *slog.Logger) (*service, error) {
	s := &service{cfg: cfg, logger: logger, keys: map[string]*signingKeys{}, metrics: newMetrics(programVersion()), after: time.After}
	var err error
	if s.telemetry, err = openTelemetry(s.metrics.registry, logger); err != nil {
		return nil, err
	}
	if s.policy, err = loadPolicy(cfg); err != nil {
		return nil, err
	}
	for _, warning := range slices.Concat(cfg.Warnings, policyWarnings(cfg, s.policy)) {
		logger.Warn(warning)
	}
	if s.objects, err = openObjects(cfg, s.policy, logger); err != nil {
		return nil, err
	}
	if s.verifier, err = newVerifier(cfg, logger); err != nil {
		return nil, err
	}
	registries, err := s.openRegistries()
	if err != nil {
		return nil, err
	}
	var nodeCAs func(cluster string) *x509.CertPool
	if !insecureHTTP {
		if s.tls, err = newServerTLS(cfg); err != nil {
			return nil, err
		}
		nodeCAs = s.tls.nodeCAs
	}
	nodes, err := nodeChecks(cfg, nodeCAs)
	if err != nil {
		return nil, err
	}
	if s.shared, err = openState(cfg, s.metrics.redisCall); err != nil {
		return nil, err
	}
	s.exchanger, err = exchange.New(exchange.Config{
		Verifier: s.verifier, Objects: s.objects, Nodes: nodes, Revocations: s.shared.revocations,
		Replay: exchange.ReplayMode(cfg.State.Replay), Owners: s.shared.owners, ServiceAccounts: s.shared.serviceAccounts,
		Registries: registries, Policy: s.policy,
	})
	if err != nil {
		return nil, err
	}
	if s.podEvents, err = s.newPodEvents(); err != nil {
		return nil, err
	}
	if s.audit, err = openAudit(cfg.Audit.File, stdout, logger); err != nil {
		return nil, err
	}
	handler, err := exchange.NewHandler(exchange.HandlerConfig{
		Exchanger: s.exchanger,
		Recorder:  recorders{s.audit, s.metrics, s.podEvents},
		Caller:    callerOf(cfg.Server.TrustedProxies),
		Addresses: s.shared.addresses,
		Logger:    logger,
		InFlight:  maxInFlight,
		Waiting:   maxWaiting,
	})
	if err != nil {
		return nil, err
	}
	s.metrics.use(s.sources(handler))
	s.ready = &readiness{kinds: map[string]func() []check{"issuers": s.checkIssuers, "signingKeys": s.checkSigningKeys}}
	if len(s.objects.connected) > 0 {
		s.ready.kinds["kubernetes"] = func() []check { return s.objects.checks(cfg) }
	}
	if s.shared.redis != nil {
		s.ready.kinds["redis"] = s.shared.check
	}
	s.public = s.ready.lastAnswers(publicHandler(s.telemetry.trace(handler), http.HandlerFunc(s.serveJWKS), http.HandlerFunc(s.serveCertificates)))
	s.admin = adminHandler(s.ready, s.metrics.handler(), cfg.Admin.PProf)
	return s, nil
}

// newPodEvents is for the clusters whose pods are told of refusals.
func (s *service) newPodEvents() (*kube.PodEvents, error) {
	clusters := map[string]*rest.Config{}
	for _, c := range s.objects.connected {
		if c.podEvents {
			clusters[c.name] = c.rest
		}
	}
	return kube.NewPodEvents(kube.PodEventsConfig{Clusters: clusters, Logger: s.logger})
}

func (s *service) openRegistries() ([]*registryauth.Issuer, error) {
	var registries []*registryauth.Issuer
	for i := range s.cfg.Registries {
		r := &s.cfg.Registries[i]
		keys, err := newSigningKeys(r, s.logger)
		if err != nil {
			return nil, err
		}
		if keys.managed != nil {
			if err := keys.managed.Maintain(); err != nil {
				s.logger.Error("managed signing keys", "service", r.Service, "error", err)
			}
		}
		s.keys[r.Service] = keys
		issuer, err := registryauth.NewIssuer(registryauth.IssuerConfig{
			Issuer: r.Issuer, Service: r.Service, Lifetime: r.TokenLifetime.Duration(), Keys: keys,
		})
		if err != nil {
			return nil, fmt.Errorf("registry %s: %w", r.Service, err)
		}
		registries = append(registries, issuer)
	}
	return registries, nil
}

// run serves until ctx ends, and server.shutdownDelay after that, or until the
// public listener fails.
func (s *service) run(ctx context.Context) error {
	public, err := net.Listen("tcp", s.cfg.Server.Address)
	if err != nil {
		return fmt.Errorf("server.address: %w", err)
	}
	admin, err := net.Listen("tcp", s.cfg.Admin.Address)
	if err != nil {
		return fmt.Errorf("admin.address: %w", errors.Join(err, public.Close()))
	}
	s.logger.Info("serving", "version", programVersion(), "address", public.Addr().String(), "admin", admin.Addr().String())

	// Background work and the admin listener outlive the public listener, so
	// that open requests finish and readyz tells that no more should come.
	background, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBackground()
	var others errgroup.Group

	// When the reader of standard output is gone, writing fails and is counted,
	// instead of ending the process and with it every pull. Notify and not Ignore,
	// which the plugins that a kubeconfig names would inherit.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	others.Go(func() error { s.audit.reopenAt(background, hangup); return nil })
	others.Go(func() error { return s.verifier.Run(background) })
	others.Go(func() error {
		Watch(background, s.logger, s.watched(background), s.metrics.reloaded)
		return nil
	})
	for _, c := range s.objects.connected {
		others.Go(func() error { c.Run(background); return nil })
	}
	if s.shared.list != nil {
		others.Go(func() error { s.shared.run(background, s.logger); return nil })
	}
	others.Go(func() error { s.podEvents.Run(background); return nil })
	for _, keys := range s.keys {
		others.Go(func() error { keys.run(background); return nil })
	}
	others.Go(func() error { return serveUntil(background, newServer(s.admin, nil, s.logger), admin) })

	open, closeListener := context.WithCancel(background)
	others.Go(func() error {
		s.drain(ctx, open)
		closeListener()
		return nil
	})
	var config *tls.Config
	if s.tls != nil {
		config = s.tls.config()
	}
	err = serveUntil(open, newServer(s.public, config, s.logger), public)
	stopBackground()
	err = errors.Join(err, others.Wait(), s.shared.close(), s.audit.Close())
	s.telemetry.close() // last: all the others may have something to tell
	return err
}

// drain returns when the public listener is to be closed: when its shutdown was
// announced for long enough, or when it does not serve any more by itself.
func (s *service) drain(ctx, open context.Context) {
	select {
	case <-ctx.Done():
	case <-open.Done():
	}
	s.ready.draining.Store(true)
	if delay := s.cfg.Server.ShutdownDelay.Duration(); delay > 0 && open.Err() == nil {
		s.logger.Info("shutting down, and serving until load balancers look away", "delay", delay.String())
		select {
		case <-s.after(delay):
		case <-open.Done():
		}
	}
}

// watched names the files that are re-read when they change. ctx ends what a
// reload waits for.
func (s *service) watched(ctx context.Context) []WatchGroup {
	groups := []WatchGroup{{Name: "policy", Paths: s.cfg.PolicyFiles, Reload: func() error { return s.reloadPolicy(ctx) }}}
	var manifests []string
	for _, c := range s.cfg.Clusters {
		manifests = append(manifests, c.Kubernetes.ManifestFiles...)
	}
	if len(manifests) > 0 {
		groups = append(groups, WatchGroup{Name: "manifests", Paths: manifests, Reload: s.objects.manifests.Reload})
	}
	for _, r := range s.cfg.Registries {
		groups = append(groups, WatchGroup{Name: "signing-keys/" + r.Service, Paths: r.Signing.paths(), Reload: s.keys[r.Service].reload})
	}
	if s.tls != nil {
		groups = append(groups, WatchGroup{Name: "tls", Paths: s.tls.paths(), Reload: s.tls.Reload})
	}
	return groups
}

// reloadPolicy leaves everything as it is when it fails; the watch tries it again.
func (s *service) reloadPolicy(ctx context.Context) error {
	next, err := loadPolicy(s.cfg)
	if err != nil {
		return err
	}
	// Annotations first: a policy that asks for a key must not meet
	// ServiceAccounts that were read without it. Those of the policy in use stay,
	// for it goes on if one cluster of several cannot give them.
	keys := slices.Concat(s.policy.AnnotationKeys(), next.AnnotationKeys())
	slices.Sort(keys)
	if err := s.objects.setAnnotationKeys(ctx, slices.Compact(keys)); err != nil {
		return err
	}
	s.exchanger.SetPolicy(next)
	s.policy = next
	return nil
}

func (s *service) checkIssuers() []check {
	var checks []check
	for _, status := range s.verifier.Status() {
		c := check{Name: status.Cluster, Healthy: status.Keys > 0, Message: status.LastFailure}
		if !c.Healthy && c.Message == "" {
			c.Message = "no keys fetched yet"
		}
		checks = append(checks, c)
	}
	return checks
}

func (s *service) checkSigningKeys() []check {
	var checks []check
	for i := range s.cfg.Registries {
		c := check{Name: s.cfg.Registries[i].Service, Healthy: true}
		if _, err := s.keys[c.Name].Signing(); err != nil {
			c.Healthy, c.Message = false, err.Error()
		}
		checks = append(checks, c)
	}
	return checks
}

func (s *service) allKeys() []registryauth.Keys {
	all := make([]registryauth.Keys, 0, len(s.keys))
	for i := range s.cfg.Registries {
		all = append(all, s.keys[s.cfg.Registries[i].Service])
	}
	return all
}

// trustMaxAge is how long caches may keep what registries trust, in seconds:
// short against the time for which a key is published before and after it signs.
const trustMaxAge = "max-age=60"

func (s *service) serveJWKS(w http.ResponseWriter, _ *http.Request) {
	data, err := registryauth.MarshalJWKS(s.allKeys()...)
	if err != nil {
		s.logger.Error("publishing the key set", "error", err)
		http.Error(w, "the key set cannot be published now", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/jwk-set+json")
	w.Header().Set("Cache-Control", trustMaxAge)
	_, _ = w.Write(data)
}

func (s *service) serveCertificates(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/pem-certificate-chain")
	w.Header().Set("Cache-Control", trustMaxAge)
	_, _ = w.Write(registryauth.MarshalCertificates(s.allKeys()...))
}

// recorders hands each event to all, in order.
type recorders []exchange.Recorder

func (rs recorders) Record(e *exchange.Event) {
	for _, r := range rs {
		r.Record(e)
	}
}
