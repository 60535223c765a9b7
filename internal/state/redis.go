package state

import (
	"cmp"
	"context"
	"crypto/fips140"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/pullpass/pullpass/internal/base/lru"
)

//go:embed limit.lua
var limitScript string

// RedisConfig configures a Redis.
type RedisConfig struct {
	// Addresses are host:port of one Redis; of Sentinels, if MasterName is set; or
	// of two or more nodes of a Cluster. Required.
	Addresses  []string
	MasterName string // of the master that Sentinels watch
	Username   string // ACL user; empty: default
	// PasswordFile is read for every new connection. A line break at its end is
	// not part of the password. Empty: no password.
	PasswordFile string
	TLS          *RedisTLS // nil: no TLS
	// Timeout is how long a call may take; 0 means 500 milliseconds. A token
	// request waits for it, and clients of token endpoints give up after seconds.
	Timeout time.Duration
	// Observe is called for every call, answered or not, except calls that the caller gave up; nil:
	// not called.
	Observe func(operation Operation, took time.Duration, err error)
	Now     func() time.Time                                                     // nil means time.Now
	Dial    func(ctx context.Context, network, address string) (net.Conn, error) // nil: that of net.Dialer
}

// Operation is a kind of call to Redis. The set is closed, because it is a metric label.
type Operation string

// The operations.
const (
	operationOwn  Operation = "own"
	operationTake Operation = "take"
	// operationOwnAndTake does both at once, for most requests with new tokens.
	operationOwnAndTake Operation = "own_and_take"

	operationRead  Operation = "read_revocations"
	operationWrite Operation = "write_revocations"

	operationAddDecisions  Operation = "add_decisions"
	operationReadDecisions Operation = "read_decisions"
	operationAddUses       Operation = "add_uses"
	operationReadUses      Operation = "read_uses"
)

// Operations returns all operations.
func Operations() []Operation {
	return []Operation{operationOwn, operationTake, operationOwnAndTake, operationRead, operationWrite, operationAddDecisions, operationReadDecisions, operationAddUses, operationReadUses}
}

// RedisTLS configures TLS.
type RedisTLS struct {
	// CAFile is read for every new connection; empty: the system's CAs. A certificate must be for
	// the dialed address. With Sentinel and Cluster, that is the address that they announce.
	CAFile string
}

const (
	defaultTimeout = 500 * time.Millisecond
	// maxConnections bounds the connections to one node. A call uses a connection for less than a
	// millisecond.
	maxConnections = 50
	idleTime       = 5 * time.Minute
	// ownerBytes has room for 12,000 known owners. A pull sends the same token twice, within a
	// short time.
	ownerBytes = 4 << 20

	// RedisCacheBytes is the most that a replica keeps of Redis's answers: owners, and units taken
	// from limits in advance.
	RedisCacheBytes = ownerBytes + advanceBytes

	keyPrefix = "pullpass:"
	// clockGrace is the greatest difference between the clocks of replicas that is tolerated.
	// Beyond it, a replica treats a token as ended, and its owner as forgotten, too early.
	clockGrace = time.Minute
	// changedAhead is how far a change of revocations may seem to be in the future. Changes are in
	// Redis's time, so this is for wrong clocks, such as one set to local time. Without the bound,
	// one record with a distant time in Redis could never be superseded.
	changedAhead = 24 * time.Hour

	tracerName = "github.com/pullpass/pullpass/internal/state"
)

// Redis keeps owners and limits of all replicas in one Redis, of version 7.0 or
// later. It is safe for concurrent use.
//
// Every call returns within Timeout. An error says that the answer is not known, and never that
// there is no entry. After some calls without an answer, further calls fail at once. One call a
// second is let through to detect a recovery, so no restart is needed.
type Redis struct {
	client  redis.UniversalClient
	timeout time.Duration
	observe func(Operation, time.Duration, error)
	now     func() time.Time
	limit   *redis.Script
	own     *redis.Script
	revoke  *redis.Script
	owners  *lru.Cache[hashedKey, ownership] // answers of Redis

	mu     sync.Mutex
	status RedisStatus
}

// ownership is an answer of Redis. It stays true until the token ends.
type ownership struct {
	owner string
	until time.Time
}

// RedisStatus is for readiness and metrics.
type RedisStatus struct {
	Healthy bool      // the last call was answered
	Since   time.Time // when that began; zero before the first call
	// LastFailure says why a call was not answered, even if later calls were; empty: none failed.
	LastFailure   string
	LastFailureAt time.Time
	Failures      uint64 // calls without an answer since the start
}

// OpenRedis returns a Redis without connecting to it. All faults of the
// configuration are reported at once.
func OpenRedis(c RedisConfig) (*Redis, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	r := &Redis{
		timeout: c.Timeout, observe: c.Observe, now: c.Now,
		limit:  newScript(limitScript),
		own:    newScript("local function take()\n" + limitScript + "end\n" + ownScript),
		revoke: newScript(revokeScript),
	}
	r.timeout = cmp.Or(r.timeout, defaultTimeout)
	if r.now == nil {
		r.now = time.Now
	}
	r.owners = lru.New(ownerBytes, func(_ hashedKey, o ownership) int { return lru.Bytes(len(o.owner)) })
	// Each failure is returned to a caller or kept in the status. go-redis would also write it to
	// standard error, for the whole process.
	logging.Disable()
	r.client = redis.NewUniversalClient(c.options(r.timeout))
	switch client := r.client.(type) {
	case *redis.ClusterClient:
		client.OnNewNode(func(node *redis.Client) { node.AddHook(&breaker{stats: node.PoolStats}) })
	default:
		client.AddHook(&breaker{stats: client.PoolStats})
	}
	return r, nil
}

// newScript computes the script's name, its SHA-1, which protects nothing: GODEBUG=fips140=only would end the process for it.
func newScript(text string) (script *redis.Script) {
	fips140.WithoutEnforcement(func() { script = redis.NewScript(text) })
	return script
}

func (c RedisConfig) validate() error {
	var faults []error
	if len(c.Addresses) == 0 {
		faults = append(faults, errors.New("redis: addresses are required"))
	}
	for _, address := range c.Addresses {
		if err := checkAddress(address); err != nil {
			faults = append(faults, err)
		}
	}
	if c.Username != "" && c.PasswordFile == "" {
		faults = append(faults, fmt.Errorf("redis: user %q has no password: without one, connections would be those of the default user", c.Username))
	}
	if c.Timeout < 0 {
		faults = append(faults, fmt.Errorf("redis: timeout %s is negative", c.Timeout))
	}
	return errors.Join(faults...)
}

func (c RedisConfig) options(timeout time.Duration) *redis.UniversalOptions {
	return &redis.UniversalOptions{
		Addrs:      c.Addresses,
		MasterName: c.MasterName,

		Dialer:                     c.dialer(timeout),
		CredentialsProviderContext: c.credentials,

		// A retry would exceed the caller's time limit. Redirections of a Cluster are not retries;
		// all of them end with the call.
		MaxRetries:            -1,
		DialerRetries:         1,
		DialTimeout:           timeout,
		ReadTimeout:           timeout,
		WriteTimeout:          timeout,
		PoolTimeout:           timeout,
		ContextTimeoutEnabled: true,

		PoolSize:         maxConnections,
		MaxActiveConns:   maxConnections,
		ConnMaxIdleTime:  idleTime,
		PipelinePoolSize: -1,
		ReadBufferSize:   4096,
		WriteBufferSize:  4096,

		// Both would need additional permissions.
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// Close closes all connections.
func (r *Redis) Close() error { return r.client.Close() }

// Status says how Redis answers.
func (r *Redis) Status() RedisStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// call runs one command within its time limit. The text what describes it in errors.
func (r *Redis) call(ctx context.Context, operation Operation, what string, command func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	ctx, span := trace.SpanFromContext(ctx).TracerProvider().Tracer(tracerName).Start(ctx, "redis "+string(operation), trace.WithSpanKind(trace.SpanKindClient))
	defer span.End()
	began := time.Now() // not r.now, which tests may have stopped
	err := command(ctx)
	if err != nil {
		span.SetStatus(codes.Error, "")
		err = fmt.Errorf("redis: %s: %w", what, err)
	}
	r.note(operation, time.Since(began), err)
	return err
}

func (r *Redis) note(operation Operation, took time.Duration, err error) {
	if errors.Is(err, context.Canceled) {
		return // cancelled by the caller
	}
	if r.observe != nil {
		r.observe(operation, took, err)
	}
	now := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if healthy := err == nil; healthy != r.status.Healthy || r.status.Since.IsZero() {
		r.status.Healthy, r.status.Since = healthy, now
	}
	if err != nil {
		r.status.LastFailure, r.status.LastFailureAt = err.Error(), now
		r.status.Failures++
	}
}

// redisKey names a key of a caller. The key is hashed, because callers' keys may have any content
// and length. Users who can list keys must not see the content.
func redisKey(use string, key hashedKey) string {
	return keyPrefix + use + ":" + base64.RawURLEncoding.EncodeToString(key[:])
}

// Own makes owner the owner of key until the given time, unless key has an owner, and returns the
// owner. An answer of Redis stays valid until the token ends, including while Redis is down.
func (r *Redis) Own(ctx context.Context, key, owner string, until time.Time) (string, error) {
	if err := checkOwner(owner); err != nil {
		return "", err
	}
	hashed := hashKey(key)
	if known, ok := r.owners.Get(hashed); ok && r.now().Before(known.until) {
		return known.owner, nil
	}
	current := owner
	err := r.call(ctx, operationOwn, "own a token id", func(ctx context.Context) error {
		old, err := r.client.SetArgs(ctx, redisKey("owner", hashed), owner, redis.SetArgs{
			Mode: "NX", Get: true, TTL: r.ownedFor(until),
		}).Result()
		switch {
		case errors.Is(err, redis.Nil):
			return nil // there was none
		case err == nil && old == "":
			return errNoOwner
		case err == nil:
			current = old
		}
		return err
	})
	if err != nil {
		return "", err
	}
	r.owners.Add(hashed, ownership{current, until})
	return current, nil
}

// Take takes cost units from the bucket of key, if they are available. If not, it takes none and
// returns the time until they are. The error is ErrLimit, or says that Redis did not answer.
func (r *Redis) Take(ctx context.Context, key string, limit Limit, cost int) (bool, time.Duration, error) {
	if err := limit.validate(cost); err != nil {
		return false, 0, err
	}
	wait, _, err := r.take(ctx, hashKey(key), limit, cost, 0)
	return err == nil && wait == 0, wait, err
}

// take is Take with a checked limit. If it succeeds and oneIn is not 0, it also takes one in oneIn
// of the remaining units in advance.
func (r *Redis) take(ctx context.Context, key hashedKey, limit Limit, cost, oneIn int) (wait time.Duration, advance int, err error) {
	var answer int64
	err = r.call(ctx, operationTake, "take from a limit", func(ctx context.Context) (err error) {
		answer, err = r.limit.Run(ctx, r.client, []string{redisKey("limit", key)}, limit.unit(), limit.Burst, cost, oneIn).Int64()
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	wait, advance = readTaken(answer)
	return wait, advance, nil
}
