package setup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/state"
)

// changeInterval is how long a change of revocations may stay unlogged. The change takes effect as
// soon as it is known.
const changeInterval = time.Second

// State is the state that several replicas share in Redis. A single replica may keep it in memory.
type State struct {
	Redis *state.Redis // nil: in memory
	// list holds the revocations in Redis. It is nil without Redis: then revocations are not
	// possible.
	List *state.RedisRevocations

	Revocations exchange.Revocations
	buckets     limitBackend
	local       *state.Memory
	limits      *state.SharedLimits // nil: without Redis, local holds all
}

// StateConfig has what a State uses of its surroundings. Its zero value is usable.
type StateConfig struct {
	Observe func(state.Operation, time.Duration, error)                          // nil, or called for every call to Redis
	Dial    func(ctx context.Context, network, address string) (net.Conn, error) // nil: that of net.Dialer
	Now     func() time.Time                                                     // nil: time.Now
}

// OpenState does not connect yet.
func OpenState(cfg *config.Config, c StateConfig) (*State, error) {
	local, err := state.NewMemory(state.MemoryConfig{OwnerBytes: Caches().owners, LimitBytes: Caches().limits, Now: c.Now})
	if err != nil {
		return nil, err
	}
	s := &State{local: local, buckets: local}
	if len(cfg.State.Redis.Addresses) == 0 {
		s.Revocations = Revocations{state.NewMemoryRevocations(c.Now)}
	} else {
		if s.Redis, err = openRedis(cfg, c); err != nil {
			return nil, err
		}
		s.List = state.NewRedisRevocations(s.Redis)
		s.Revocations = Revocations{s.List}
		s.limits = state.NewSharedLimits(state.SharedLimitsConfig{Shared: s.Redis, Local: local, Now: c.Now})
		s.buckets = s.limits
	}
	return s, nil
}

func (s *State) Limiter(l config.Limit) exchange.Limiter { return limiter{s.buckets, state.Limit(l)} }

// Owners returns the owners of token ids, for callers that then take from a limit.
func (s *State) Owners(l config.Limit) exchange.Owners {
	if s.limits == nil {
		return localOwners{s.local}
	}
	return sharedOwners{s.limits, state.Limit(l)}
}

func openRedis(cfg *config.Config, c StateConfig) (*state.Redis, error) {
	r := cfg.State.Redis
	config := state.RedisConfig{Addresses: r.Addresses, MasterName: r.MasterName, Username: r.Username, PasswordFile: r.PasswordFile, Observe: c.Observe, Dial: c.Dial, Now: c.Now}
	if r.TLS.CAFile != "" || r.TLS.SystemCAs {
		config.TLS = &state.RedisTLS{CAFile: r.TLS.CAFile}
	}
	return state.OpenRedis(config)
}

func (s *State) Close() error {
	if s.Redis == nil {
		return nil
	}
	return s.Redis.Close()
}

// Run follows the revocations until ctx ends. It logs each change with its author and reason, and, for each
// configuration, the revocations without effect: a cluster that was renamed loses those under its former name.
func (s *State) Run(ctx context.Context, logger *slog.Logger, current func() *config.Config) {
	var following sync.WaitGroup
	following.Go(func() { s.List.Run(ctx) })
	defer following.Wait()
	known := map[state.Target]state.Change{}
	var judged *config.Config // by which it was found whether they have an effect
	tick := time.NewTicker(changeInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		cfg := current()
		changes := map[state.Target]state.Change{}
		for _, c := range s.List.Changes() {
			changes[c.Target] = c
			old, ok := known[c.Target]
			isKnown := ok && old.Removed == c.Removed && old.Since.Equal(c.Since)
			if (!isKnown || cfg != judged) && !c.Removed && !HasEffect(cfg, c.Target) {
				logger.Warn("revoked without effect: "+NoEffect, "target", TargetName(c.Target), "by", c.By)
			}
			if isKnown {
				continue
			}
			what := "revoked"
			if c.Removed {
				what = "no longer revoked"
			}
			logger.Info(what, "target", TargetName(c.Target), "by", c.By, "reason", c.Reason, "since", c.Since, "until", c.Until)
		}
		known, judged = changes, cfg
	}
}

// NoEffect says why a revocation has no effect, and what to do.
const NoEffect = "its cluster or identity is not configured; if it has a new name, revoke under that name"

// HasEffect reports whether a revocation can refuse tokens of a configuration.
func HasEffect(cfg *config.Config, t state.Target) bool {
	return (t.Cluster == "" || cfg.Cluster(t.Cluster) != nil) &&
		(t.Identity == "" || slices.ContainsFunc(cfg.Identities, func(p config.Provider) bool { return p.Name == t.Identity }))
}

type limitBackend interface {
	Take(ctx context.Context, key string, limit state.Limit, cost int) (ok bool, wait time.Duration, err error)
}

// limiter is one limit of the configuration.
type limiter struct {
	buckets limitBackend
	limit   state.Limit
}

// Take implements exchange.Limiter.
func (l limiter) Take(ctx context.Context, key string) time.Duration {
	ok, wait, err := l.buckets.Take(ctx, key, l.limit, 1)
	switch {
	case ok:
		return 0
	case err == nil:
		return wait
	default:
		// The request has been canceled, or the limit is invalid, which the check of the
		// configuration excludes. Refuse in both cases.
		return time.Second
	}
}

// localOwners are in memory, where two queries cost as much as one.
type localOwners struct{ memory *state.Memory }

// Own implements exchange.Owners.
func (o localOwners) Own(ctx context.Context, key, owner string, until time.Time, _ string) (exchange.Owned, error) {
	current, err := o.memory.Own(ctx, key, owner, until)
	return exchange.Owned{Owner: current}, err
}

type sharedOwners struct {
	limits *state.SharedLimits
	limit  state.Limit
}

// Own implements exchange.Owners.
func (o sharedOwners) Own(ctx context.Context, key, owner string, until time.Time, bucket string) (exchange.Owned, error) {
	owned, err := o.limits.OwnAndTake(ctx, key, owner, until, bucket, o.limit)
	return exchange.Owned(owned), err
}

// Revocations implements exchange.Revocations with the state's list.
type Revocations struct {
	List interface {
		Revoked(id *oidc.Identity) (*state.Revocation, error)
	}
}

// Revoked implements exchange.Revocations.
func (r Revocations) Revoked(id *oidc.Identity) (*exchange.Revocation, error) {
	revoked, err := r.List.Revoked(id)
	if err != nil || revoked == nil {
		return nil, err
	}
	return &exchange.Revocation{Target: TargetName(revoked.Target), By: revoked.By, Reason: revoked.Reason, Until: revoked.Until}, nil
}

// TargetName returns a target in the form of the flags of pullpass revoke.
func TargetName(t state.Target) string {
	switch t.Kind {
	case state.TargetToken:
		return "--token-id " + t.Name
	case state.TargetPod:
		return "--pod-uid " + t.Name
	case state.TargetServiceAccount:
		return "--service-account " + t.Cluster + "/" + t.Namespace + "/" + t.Name
	case state.TargetNode:
		return "--node " + t.Cluster + "/" + t.Name
	case state.TargetProject:
		return "--project " + t.Identity + "/" + t.Name
	case state.TargetRun:
		return "--run " + t.Identity + "/" + t.Name
	}
	return string(t.Kind) + " " + t.Name
}

// ErrNoRedis is the error for operators who try to revoke without Redis.
var ErrNoRedis = errors.New("revocations are kept in Redis, and none is configured (state.redis.addresses); a deny rule of the policy refuses without it")

// OpenRevocations is for commands. It does not connect yet.
func OpenRevocations(cfg *config.Config) (*state.RedisRevocations, func(), error) {
	if len(cfg.State.Redis.Addresses) == 0 {
		return nil, nil, ErrNoRedis
	}
	redis, err := openRedis(cfg, StateConfig{})
	if err != nil {
		return nil, nil, fmt.Errorf("state.redis: %w", err)
	}
	return state.NewRedisRevocations(redis), func() { _ = redis.Close() }, nil
}
