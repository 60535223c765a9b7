package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/pullpass/pullpass/internal/base/filewatch"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/gateway"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/registryauth/assertion"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
)

// settleTimeout bounds how long a new configuration waits for its new parts, and a new policy for
// the annotations that it reads. In the largest clusters, a list of all pods takes seconds.
const settleTimeout = 30 * time.Second

// parts are the objects that a configuration and its files open. The next configuration keeps the
// parts whose settings are the same, with their state. So a change of a limit does not list or
// fetch anything again.
type parts struct {
	cfg    *config.Config
	dial   func(ctx context.Context, network, address string) (net.Conn, error) // nil: that of net.Dialer
	now    func() time.Time
	policy *policy.Policy
	// pending is a policy whose rules do not apply yet, because annotations that they read are
	// missing. Its denials apply. Usually it is nil.
	pending  *policy.Policy
	trial    *policy.Policy // decides nothing; nil: no files are tried
	objects  *setup.Objects
	verifier *oidc.Verifier
	keys     map[string]*setup.SigningKeys // by service
	tls      *serverTLS                    // nil: plain HTTP
	// upstreams of the gateway, by name.
	upstreams  map[string]*setup.Upstream
	assertions *assertion.Issuer // nil: no upstream uses the caller's identity
}

// open opens the parts of a configuration. It reuses parts of before, which may be empty, without
// changing them.
func open(cfg *config.Config, insecureHTTP bool, version string, logger *slog.Logger, before parts) (parts, error) {
	if before.cfg == nil {
		before.cfg = &config.Config{}
	}
	next := before
	next.cfg = cfg
	if before.objects == nil {
		before.objects = &setup.Objects{Dial: before.dial, Now: before.now}
	}
	var err error
	// A cluster that is new must not get what the rules before allow, and rules depend on the identities.
	if cfg != before.cfg {
		if next.policy, err = setup.LoadPolicy(cfg); err != nil {
			return parts{}, err
		}
	}
	if !reflect.DeepEqual(cfg.PolicyTrial, before.cfg.PolicyTrial) || !reflect.DeepEqual(cfg.Identities, before.cfg.Identities) {
		if next.trial, err = setup.LoadTrial(cfg); err != nil { // what decides nothing must not keep a replica from serving
			logger.Error("the policy trial is not judged", "error", err)
		}
	}
	if next.objects, err = setup.OpenObjects(cfg, next.annotationKeys(), logger, before.objects); err != nil {
		return parts{}, err
	}
	if issuers := setup.Issuers(cfg); !reflect.DeepEqual(issuers, setup.Issuers(before.cfg)) {
		if before.verifier == nil {
			next.verifier, err = oidc.New(oidc.Config{Issuers: issuers, CacheBytes: setup.Caches().Verified, Logger: logger, Dial: before.dial, Now: before.now})
		} else {
			next.verifier, err = before.verifier.WithIssuers(issuers)
		}
		if err != nil {
			return parts{}, err
		}
	}
	if next.keys, err = openKeys(cfg, logger, before); err != nil {
		return parts{}, err
	}
	if !reflect.DeepEqual(cfg.Assertions, before.cfg.Assertions) {
		if next.assertions, err = openAssertions(cfg, logger); err != nil {
			return parts{}, err
		}
	}
	if next.upstreams, err = openUpstreams(cfg, version, next.assertions, logger, before); err != nil {
		return parts{}, err
	}
	if !insecureHTTP && (before.tls == nil || !reflect.DeepEqual(tlsSettingsOf(cfg), tlsSettingsOf(before.cfg))) {
		if next.tls, err = openTLS(cfg, time.Now()); err != nil {
			return parts{}, err
		}
	}
	return next, nil
}

func openKeys(cfg *config.Config, logger *slog.Logger, before parts) (map[string]*setup.SigningKeys, error) {
	all := map[string]*setup.SigningKeys{}
	for i := range cfg.Registries {
		r := &cfg.Registries[i]
		if old := before.cfg.Registry(r.Service); old != nil && old.TokenLifetime == r.TokenLifetime && old.Signing == r.Signing {
			all[r.Service] = before.keys[r.Service]
			continue
		}
		keys, err := setup.NewSigningKeys(r, logger)
		if err != nil {
			return nil, err
		}
		if keys.Managed != nil {
			if err := keys.Managed.Maintain(); err != nil {
				logger.Error("managed signing keys", "service", r.Service, "error", err)
			}
		}
		all[r.Service] = keys
	}
	return all, setup.CheckGatewayKeys(cfg, all)
}

// openAssertions returns nil if none are configured.
func openAssertions(cfg *config.Config, logger *slog.Logger) (*assertion.Issuer, error) {
	issuer, err := setup.NewAssertions(cfg, logger)
	if issuer == nil || err != nil {
		return nil, err
	}
	if err := issuer.Maintain(); err != nil {
		logger.Error("managed keys of assertions", "error", err)
	}
	return issuer, nil
}

// annotationKeys returns the annotations that the policy or its trial reads.
func (p parts) annotationKeys() []string { return setup.AnnotationKeys(p.policy, p.trial) }

// worker is a part that works in the background until ctx ends.
type worker interface{ Run(ctx context.Context) }

func (p parts) workers() []worker {
	all := []worker{p.verifier}
	for _, c := range p.objects.Connected {
		all = append(all, c.Cluster)
		if c.Events != nil {
			all = append(all, c.Events)
		}
		if c.ObjectStatus != nil {
			all = append(all, c.ObjectStatus)
		}
	}
	for _, keys := range p.keys {
		all = append(all, keys)
	}
	for _, u := range p.upstreams {
		all = append(all, u)
	}
	if p.assertions != nil {
		all = append(all, p.assertions)
	}
	return all
}

// settle waits until the new parts are ready, or until ctx ends. It returns an error if a part that
// worked before does not work then. A new cluster may be down: as at the start, that is not an
// error.
func (p parts) settle(ctx context.Context, before parts) error {
	var waiting sync.WaitGroup
	waiting.Go(func() { p.verifier.FetchFirst(ctx) })
	for _, c := range p.objects.Connected {
		if !slices.Contains(before.objects.Connected, c) {
			waiting.Go(func() { _ = c.Synced(ctx) }) // faults are among the checks
		}
	}
	waiting.Wait()

	var losses []error
	had, has := before.checks(), p.checks()
	for _, kind := range slices.Sorted(maps.Keys(had)) {
		for _, old := range had[kind] {
			i := slices.IndexFunc(has[kind], func(c check) bool { return c.Name == old.Name })
			if i >= 0 && old.Healthy && !has[kind][i].Healthy && !has[kind][i].late {
				losses = append(losses, fmt.Errorf("%s: %s works as it is, and would not with what is new: %s", kind, old.Name, has[kind][i].Message))
			}
		}
	}
	if len(losses) > 0 {
		return filewatch.RetryLater{Err: errors.Join(losses...)}
	}
	return nil
}

// generation holds the parts, ready to serve. It never changes. One generation serves a request
// from its beginning to its end.
type generation struct {
	parts
	registries map[string]*registryauth.Issuer // by service
	exchanger  *exchange.Exchanger
	handler    *exchange.Handler
	gateway    *gateway.Handler // nil: no gateway
	replaced   []replacedKeys
}

// replacedKeys are keys that are no longer configured, but whose last tokens have not expired.
type replacedKeys struct {
	signing.Keys
	until time.Time
}

// assemble makes a generation of parts, for the requests that begin from now on. before is the
// present generation, or nil.
func (s *Server) assemble(p parts, before *generation) (*generation, error) {
	g := &generation{parts: p, registries: map[string]*registryauth.Issuer{}}
	previous := &generation{parts: parts{cfg: &config.Config{}}}
	if before != nil {
		previous = before
	}
	for i := range p.cfg.Registries {
		r := &p.cfg.Registries[i]
		isGateway := p.cfg.IsGateway(r.Service)
		if old := previous.cfg.Registry(r.Service); old != nil && *old == *r && previous.cfg.IsGateway(r.Service) == isGateway {
			g.registries[r.Service] = previous.registries[r.Service] // tokens are remembered for it
			continue
		}
		issuer, err := registryauth.NewIssuer(registryauth.IssuerConfig{
			Issuer: r.Issuer, Service: r.Service, Lifetime: r.TokenLifetime.Duration(), Keys: p.keys[r.Service], NamesHolder: isGateway, Now: p.now,
		})
		if err != nil {
			return nil, fmt.Errorf("registry %s: %w", r.Service, err)
		}
		g.registries[r.Service] = issuer
	}
	g.replaced = previous.stillPublished(p.keys, time.Now())

	var nodeCAs map[string]*nodeproof.CAs
	if p.tls != nil {
		nodeCAs = p.tls.nodes
	}
	nodes, err := setup.NodeChecks(p.cfg, nodeCAs)
	if err != nil {
		return nil, err
	}
	policy := p.policy
	if p.pending != nil {
		policy = policy.AndDenials(p.pending)
	}
	g.exchanger, err = exchange.New(exchange.Config{
		Verifier: p.verifier, Objects: p.objects, Nodes: nodes, Revocations: s.shared.Revocations,
		Replay: p.cfg.State.Replay, Owners: s.shared.Owners(p.cfg.Limits.PerServiceAccount),
		ServiceAccounts: s.shared.Limiter(p.cfg.Limits.PerServiceAccount),
		Registries:      slices.Collect(maps.Values(g.registries)), Policy: policy, Trial: p.trial, Scopes: setup.Scopes(p.cfg),
		Memory: s.memory, Now: p.now,
	})
	if err != nil {
		return nil, err
	}
	g.handler, err = exchange.NewHandler(exchange.HandlerConfig{
		Exchanger: g.exchanger,
		Recorder:  s.recorders(p),
		Caller:    callerOf(p.cfg.Server.TrustedProxies),
		Addresses: s.shared.Limiter(p.cfg.Limits.PerAddress),
		Logger:    s.logger,
		Memory:    s.memory,
		Now:       p.now,
	})
	if err != nil {
		return nil, err
	}
	if g.gateway, err = s.newGateway(p); err != nil {
		return nil, err
	}
	return g, nil
}

// stillPublished returns the keys that are not among the next ones, but that registries need until
// the tokens of these keys have expired.
func (g *generation) stillPublished(next map[string]*setup.SigningKeys, now time.Time) []replacedKeys {
	still := slices.DeleteFunc(slices.Clone(g.replaced), func(r replacedKeys) bool { return !now.Before(r.until) })
	for i := range g.cfg.Registries {
		r := &g.cfg.Registries[i]
		if keys := g.keys[r.Service]; next[r.Service] != keys {
			still = append(still, replacedKeys{keys, now.Add(r.TokenLifetime.Duration() + setup.RegistryLeeway)})
		}
	}
	return still
}

// published returns the keys that registries must trust now.
func (g *generation) published() []signing.Keys {
	var all []signing.Keys
	for i := range g.cfg.Registries {
		all = append(all, g.keys[g.cfg.Registries[i].Service])
	}
	for _, r := range g.stillPublished(g.keys, time.Now()) {
		all = append(all, r)
	}
	return all
}
