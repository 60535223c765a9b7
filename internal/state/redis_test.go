package state_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/state"
	"github.com/pullpass/pullpass/internal/state/statetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestOpenRedisRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config state.RedisConfig
		want   string
	}{
		"no address":       {state.RedisConfig{}, "addresses are required"},
		"no port":          {state.RedisConfig{Addresses: []string{"a:1", "redis"}}, `address "redis" is not host:port`},
		"no host":          {state.RedisConfig{Addresses: []string{":6379"}}, `address ":6379" is not host:port`},
		"named port":       {state.RedisConfig{Addresses: []string{"redis:redis"}}, `address "redis:redis" is not host:port`},
		"no such port":     {state.RedisConfig{Addresses: []string{"redis:0"}}, `address "redis:0" is not host:port`},
		"URL":              {state.RedisConfig{Addresses: []string{"redis://redis:6379"}}, `address "redis://redis:6379" is not host:port`},
		"user alone":       {state.RedisConfig{Addresses: []string{"a:1"}, Username: "pullpass"}, `user "pullpass" has no password`},
		"both":             {state.RedisConfig{Username: "pullpass"}, "addresses are required\nredis: user"},
		"negative timeout": {state.RedisConfig{Addresses: []string{"a:1"}, Timeout: -1}, "timeout"},
	} {
		if _, err := state.OpenRedis(c.config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestWhatRedisHolds checks every key: it does not reveal a caller's text, and it expires when it
// is no longer useful.
func TestWhatRedisHolds(t *testing.T) {
	t.Parallel()
	admin := administrator(t, statetest.Redis(t))
	r := open(t, state.RedisConfig{Addresses: []string{admin.Options().Addr}, Timeout: patient})
	const name = "of a caller"
	if _, err := r.Own(t.Context(), name, "node-1", time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Own(t.Context(), name+" whose token has ended", "node-1", time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Take(t.Context(), name, state.Limit{Rate: 0.01, Burst: 10}, 7); err != nil {
		t.Fatal(err)
	}
	revocations := state.NewRedisRevocations(r)
	if err := revocations.Add(t.Context(), anyRevocation("a reason")); err != nil { // for an hour
		t.Fatal(err)
	}
	lives := map[string][]time.Duration{}
	keys := testkit.Value(admin.Keys(t.Context(), "*").Result())(t)
	for _, key := range keys {
		ttl := testkit.Value(admin.PTTL(t.Context(), key).Result())(t)
		prefix, use, hash := key[:len("pullpass:")], "", ""
		if use, hash, _ = strings.Cut(strings.TrimPrefix(key, prefix), ":"); prefix != "pullpass:" || strings.Contains(key, "caller") || hash != "" && len(hash) != 43 {
			t.Errorf("key %q", key)
		}
		lives[use] = append(lives[use], ttl.Round(10*time.Minute))
	}
	if len(keys) != 4 || len(lives["owner"]) != 2 || lives["owner"][0]+lives["owner"][1] != time.Hour || // one of them a minute
		fmt.Sprint(lives["limit"]) != "[10m0s]" || fmt.Sprint(lives["revocations"]) != "[1h0m0s]" {
		t.Errorf("keys %q live for %v", keys, lives)
	}
	// An empty value must not be read as an owner.
	for _, key := range keys {
		if strings.HasPrefix(key, "pullpass:owner:") {
			testkit.Must(t, admin.Set(t.Context(), key, "", time.Hour).Err())
		}
	}
	another := open(t, state.RedisConfig{Addresses: []string{admin.Options().Addr}, Timeout: patient})
	if owner, err := another.Own(t.Context(), name, "node-2", time.Now().Add(time.Hour)); err == nil || owner != "" {
		t.Errorf("a key without an owner: %q, %v", owner, err)
	}
}

// The clocks of two replicas differ. The late replica still finds the owner when the other treats
// the token as ended.
func TestOwnersOutliveTheirTokensByAMinute(t *testing.T) {
	t.Parallel()
	admin := administrator(t, statetest.Redis(t))
	r := open(t, state.RedisConfig{Addresses: []string{admin.Options().Addr}, Timeout: patient})
	if _, err := r.Own(t.Context(), "key", "node-1", time.Now().Add(10*time.Minute)); err != nil {
		t.Fatal(err)
	}
	keys, err := admin.Keys(t.Context(), "pullpass:owner:*").Result()
	if err != nil || len(keys) != 1 {
		t.Fatal(keys, err)
	}
	if ttl, err := admin.PTTL(t.Context(), keys[0]).Result(); err != nil || ttl > 11*time.Minute || ttl < 10*time.Minute+30*time.Second {
		t.Errorf("TTL %s, %v", ttl, err)
	}
}

// A replica reads a known owner again from Redis when the token has ended.
func TestKnownOwnersEnd(t *testing.T) {
	t.Parallel()
	admin := administrator(t, statetest.Redis(t))
	c := newClock()
	r := open(t, state.RedisConfig{Addresses: []string{admin.Options().Addr}, Timeout: patient, Now: c.Now})
	own := func(owner, want string) {
		t.Helper()
		if got, err := r.Own(t.Context(), "key", owner, c.Now().Add(time.Hour)); got != want || err != nil {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	own("node-1", "node-1")
	testkit.Must(t, admin.FlushAll(t.Context()).Err())
	c.Advance(time.Hour - 1)
	own("node-2", "node-1")
	c.Advance(1)
	own("node-2", "node-2")
}

func TestRedisStatus(t *testing.T) {
	t.Parallel()
	server := statetest.Redis(t)
	c := newClock()
	r := open(t, state.RedisConfig{Addresses: []string{server.Address()}, Timeout: patient, Now: c.Now})
	take := func() { r.Take(t.Context(), "key", state.Limit{Rate: 1, Burst: 1}, 1) }
	if status := r.Status(); status != (state.RedisStatus{}) {
		t.Errorf("before the first call: %+v", status)
	}
	first := c.Now()
	take()
	c.Advance(time.Second)
	take()
	if status := r.Status(); status != (state.RedisStatus{Healthy: true, Since: first}) {
		t.Errorf("two answers: %+v", status)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := r.Take(canceled, "key", state.Limit{Rate: 1, Burst: 1}, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	if status := r.Status(); !status.Healthy || status.Failures != 0 {
		t.Errorf("a caller that went away: %+v", status)
	}
	server.Kill()
	c.Advance(time.Second)
	second := c.Now()
	take()
	c.Advance(time.Second)
	take()
	if status := r.Status(); status.Healthy || status.Since != second || status.Failures != 2 || status.LastFailureAt != c.Now() || !strings.Contains(status.LastFailure, "take from a limit") {
		t.Errorf("two failures: %+v", status)
	}
	server.Start()
	take()
	if status := r.Status(); !status.Healthy || status.Since != c.Now() || status.Failures != 2 || status.LastFailure == "" {
		t.Errorf("an answer: %+v", status)
	}
}

func TestRedisCallsAreObserved(t *testing.T) {
	t.Parallel()
	server := statetest.Redis(t)
	var mu sync.Mutex
	var seen []string
	r := open(t, state.RedisConfig{Addresses: []string{server.Address()}, Timeout: patient, Observe: func(operation state.Operation, took time.Duration, err error) {
		mu.Lock()
		defer mu.Unlock()
		if took <= 0 || !slices.Contains(state.Operations(), operation) {
			t.Errorf("%s took %s", operation, took)
		}
		seen = append(seen, fmt.Sprint(operation, " ", err == nil))
	}})
	recorder := tracetest.NewSpanRecorder()
	ctx, _ := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test").Start(t.Context(), "state")
	call := func() {
		_, _ = r.Own(ctx, "token", "node-1", time.Now().Add(time.Hour))
		_, _ = r.Own(ctx, "token", "node-1", time.Now().Add(time.Hour)) // known: no call
		_, _, _ = r.Take(ctx, "key", state.Limit{Rate: 1, Burst: 1}, 1)
		_ = state.NewRedisRevocations(r).Add(t.Context(), anyRevocation("a reason"))
	}
	call()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, _ = r.Take(canceled, "key", state.Limit{Rate: 1, Burst: 1}, 1)
	server.Kill()
	call()
	mu.Lock()
	defer mu.Unlock()
	want := "own true,take true,write_revocations true,read_revocations true,take false,write_revocations false"
	if got := strings.Join(seen, ","); got != want {
		t.Errorf("saw %s, want %s", got, want)
	}
	var spans []string
	for _, span := range recorder.Ended() {
		spans = append(spans, fmt.Sprint(span.Name(), " ", span.Status().Code, span.Attributes(), span.Status().Description))
	}
	if got, want := strings.Join(spans, ","), "redis own Unset [],redis take Unset [],redis take Error []"; got != want {
		t.Errorf("spans %s, want %s", got, want)
	}
}

func TestRedisFiles(t *testing.T) {
	t.Parallel()
	caFile, args := statetest.TLS(t)
	otherCA, _ := statetest.TLS(t)
	ca := testkit.Read(t, caFile)
	server, tlsAddress := statetest.RedisWithTLS(t, args...)
	setUser(t, administrator(t, server), documentedRights(t, false))
	dir := t.TempDir()
	good := state.RedisConfig{
		Addresses: []string{tlsAddress}, Username: user, Timeout: patient,
		PasswordFile: testkit.TempFile(t, "password", password+"\r\n"),
		TLS:          &state.RedisTLS{CAFile: caFile},
	}
	huge := testkit.TempFile(t, "huge", strings.Repeat("x", 1<<20+1))
	for name, c := range map[string]struct {
		change func(*state.RedisConfig)
		want   string // empty: works
	}{
		"good":             {func(*state.RedisConfig) {}, ""},
		"another CA":       {func(c *state.RedisConfig) { c.TLS = &state.RedisTLS{CAFile: otherCA} }, "certificate signed by unknown authority"},
		"the system's CAs": {func(c *state.RedisConfig) { c.TLS = &state.RedisTLS{} }, "certificate signed by unknown authority"},
		"no CA file":       {func(c *state.RedisConfig) { c.TLS = &state.RedisTLS{CAFile: filepath.Join(dir, "none")} }, "tls.caFile: open"},
		"no certificate":   {func(c *state.RedisConfig) { c.TLS = &state.RedisTLS{CAFile: c.PasswordFile} }, "holds no certificate"},
		"a huge CA file":   {func(c *state.RedisConfig) { c.TLS = &state.RedisTLS{CAFile: huge} }, "has more than 1048576 bytes"},
		"no TLS":           {func(c *state.RedisConfig) { c.TLS = nil }, "EOF"},
		"another host": {func(c *state.RedisConfig) {
			c.Addresses = []string{strings.Replace(tlsAddress, "127.0.0.1", "localhost", 1)}
		}, "certificate is not valid for any names"},
		"no password file":  {func(c *state.RedisConfig) { c.PasswordFile = filepath.Join(dir, "none") }, "passwordFile: open"},
		"an empty password": {func(c *state.RedisConfig) { c.PasswordFile = testkit.TempFile(t, "empty", "\n") }, "is empty"},
		"a huge password":   {func(c *state.RedisConfig) { c.PasswordFile = huge }, "has more than 1048576 bytes"},
		"a wrong password": {func(c *state.RedisConfig) {
			c.PasswordFile = testkit.TempFile(t, "wrong", password+"\n\n")
		}, "WRONGPASS"},
	} {
		config := good
		c.change(&config)
		r := open(t, config)
		_, err := r.Own(t.Context(), "key", "owner", time.Now().Add(time.Hour))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if err != nil && (strings.Contains(err.Error(), password) || strings.Contains(err.Error(), "xxx")) {
			t.Errorf("%s: the error holds what is in a file", name)
		}
	}
	// A new CA takes effect without a restart.
	config := good
	config.TLS = &state.RedisTLS{CAFile: testkit.TempFile(t, "ca.crt", "not yet")}
	r := open(t, config)
	own := func(ctx context.Context) error {
		_, err := r.Own(ctx, "key", "owner", time.Now().Add(time.Hour))
		return err
	}
	if err := own(t.Context()); err == nil {
		t.Error("no error without a certificate")
	}
	testkit.Put(t, config.TLS.CAFile, ca)
	statetest.Eventually(t, "the new CA is used", func(ctx context.Context) bool { return own(ctx) == nil })
}

func TestSharedLimitsWithoutRedis(t *testing.T) {
	t.Parallel()
	server := statetest.Redis(t)
	limits := sharedLimits(t, open(t, state.RedisConfig{Addresses: []string{server.Address()}, Timeout: patient}), nil)
	slow := state.Limit{Rate: 0.001, Burst: 2}
	take := func(want bool) {
		t.Helper()
		if ok, _, err := limits.Take(t.Context(), "key", slow, 1); ok != want || err != nil {
			t.Errorf("%t, %v; want %t", ok, err, want)
		}
	}
	for _, want := range []bool{true, true, false} {
		take(want)
	}
	server.Kill()
	for _, want := range []bool{true, true, false} { // each replica's own
		take(want)
	}
	if _, _, err := limits.Take(t.Context(), "key", state.Limit{}, 1); !errors.Is(err, state.ErrLimit) {
		t.Errorf("no limit: %v", err)
	}
}

func TestRedisRevocationsAreBounded(t *testing.T) {
	t.Parallel()
	admin := administrator(t, statetest.Redis(t))
	r := open(t, state.RedisConfig{Addresses: []string{admin.Options().Addr}, Timeout: patient})
	revocations := state.NewRedisRevocations(r)
	revocations.SetMax(3)
	add := func(i int) error {
		revocation := anyRevocation("a reason")
		revocation.Target.Name = fmt.Sprint("pod ", i)
		return revocations.Add(t.Context(), revocation)
	}
	// Revocations that ended more than a minute ago are deleted.
	ago := time.Now().Add(-2 * time.Minute).UnixMilli()
	testkit.Must(t, admin.HSet(t.Context(), "pullpass:revocations", "ended", fmt.Sprintf("1 %d {}", ago), "no record", "x").Err())
	for i := range 3 {
		testkit.Must(t, add(i))
	}
	if err := add(3); !errors.Is(err, state.ErrFull) {
		t.Errorf("one too many: %v", err)
	}
	if err := add(2); err != nil {
		t.Errorf("replaced: %v", err)
	}
	if n, err := admin.HLen(t.Context(), "pullpass:revocations").Result(); err != nil || n != 3 {
		t.Errorf("%d fields, %v", n, err)
	}
}

// TestUnreadableRevocations writes foreign entries into the hash. The rest of the list counts, and
// the status reports the unreadable entries.
func TestUnreadableRevocations(t *testing.T) {
	t.Parallel()
	admin := administrator(t, statetest.Redis(t))
	r := open(t, state.RedisConfig{Addresses: []string{admin.Options().Addr}, Timeout: patient})
	revocations := state.NewRedisRevocations(r)
	testkit.Must(t, revocations.Add(t.Context(), anyRevocation("a reason")))
	record, err := admin.HVals(t.Context(), "pullpass:revocations").Result()
	if err != nil || len(record) != 1 {
		t.Fatal(record, err)
	}
	end := fmt.Sprint(time.Now().Add(time.Hour).UnixMilli())
	for field, c := range map[string]struct{ value, want string }{
		"of another target": {record[0], "holds a record of another target"},
		"empty":             {"", "begins with no number"},
		"no JSON":           {"1 " + end + " x", "holds no record in JSON"},
		"no target":         {"1 " + end + " {}", "unknown kind"},
	} {
		testkit.Must(t, admin.HSet(t.Context(), "pullpass:revocations", field, c.value).Err())
		list, err := revocations.List(t.Context())
		if err != nil || len(list) != 1 {
			t.Errorf("%s: %v, %v", field, list, err)
		}
		if failure := revocations.Status().LastFailure; !strings.Contains(failure, field) || !strings.Contains(failure, c.want) {
			t.Errorf("%s: status %q, want %q", field, failure, c.want)
		}
		testkit.Must(t, admin.HDel(t.Context(), "pullpass:revocations", field).Err())
	}
	if _, err := revocations.List(t.Context()); err != nil || revocations.Status().LastFailure != "" {
		t.Errorf("%v, %+v", err, revocations.Status())
	}
}

// TestNewerRevocationsCount changes records in Redis while a replica restores its own, and after a
// failover to a server whose clock is late.
func TestNewerRevocationsCount(t *testing.T) {
	t.Parallel()
	admin := administrator(t, statetest.Redis(t))
	revocations := state.NewRedisRevocations(open(t, state.RedisConfig{Addresses: []string{admin.Options().Addr}, Timeout: patient}))
	count := func(want string) {
		t.Helper()
		list, err := revocations.List(t.Context())
		if err != nil || len(list) != 1 || list[0].Reason != want {
			t.Errorf("%+v, %v; want %q", list, err, want)
		}
	}
	add := func(reason string) {
		t.Helper()
		testkit.Must(t, revocations.Add(t.Context(), anyRevocation(reason)))
		count(reason)
	}
	restore := func(r state.Revocation, changed int64) {
		t.Helper()
		testkit.Must(t, revocations.Restore(t.Context(), r, changed))
	}
	add("first")
	restore(anyRevocation("older"), 1)
	count("first")
	inAnHour := time.Now().Add(time.Hour).UnixMicro()
	restore(anyRevocation("of a clock that is early"), inAnHour)
	count("of a clock that is early")
	restore(anyRevocation("as new"), inAnHour)
	count("of a clock that is early")
	add("second")
	testkit.Must(t, revocations.Remove(t.Context(), anyRevocation("").Target, "an operator"))
	if list, err := revocations.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("removed: %+v, %v", list, err)
	}

	// A revocation that ended, by more than clocks may differ, is not restored.
	ended := anyRevocation("ended")
	ended.Target.Name, ended.Until = "another", time.Now().Add(-2*time.Minute)
	restore(ended, inAnHour)
	if n, err := admin.HLen(t.Context(), "pullpass:revocations").Result(); err != nil || n != 1 {
		t.Errorf("%d fields, %v", n, err)
	}
}

// A bucket that has been full for long holds a burst, and no more.
func TestRedisLimitsSaveNoMoreThanABurst(t *testing.T) {
	t.Parallel()
	admin := administrator(t, statetest.Redis(t))
	r := open(t, state.RedisConfig{Addresses: []string{admin.Options().Addr}, Timeout: patient})
	take := func(want bool) {
		t.Helper()
		if ok, _, err := r.Take(t.Context(), "key", state.Limit{Rate: 0.001, Burst: 2}, 2); ok != want || err != nil {
			t.Errorf("%t, %v; want %t", ok, err, want)
		}
	}
	take(true)
	keys, err := admin.Keys(t.Context(), "*").Result()
	if err != nil || len(keys) != 1 {
		t.Fatal(keys, err)
	}
	testkit.Must(t, admin.Set(t.Context(), keys[0], "1", 0).Err())
	take(true)
	take(false)
}

// Before the list is read, no token may be reported as not revoked.
func TestRevokedBeforeTheListIsRead(t *testing.T) {
	t.Parallel()
	server := statetest.Redis(t)
	server.Kill()
	revocations := follow(t, open(t, state.RedisConfig{Addresses: []string{server.Address()}, Timeout: patient}))
	statetest.Eventually(t, "the status tells of it", func(context.Context) bool { return revocations.Status().LastFailure != "" })
	if r, err := revocations.Revoked(&oidc.Identity{}); r != nil || !errors.Is(err, state.ErrNotRead) {
		t.Errorf("%v, %v", r, err)
	}
	if status := revocations.Status(); !status.Read.IsZero() {
		t.Errorf("%+v", status)
	}
	server.Start()
	statetest.Eventually(t, "the list is read", func(context.Context) bool {
		r, err := revocations.Revoked(&oidc.Identity{})
		return r == nil && err == nil && !revocations.Status().Read.IsZero()
	})
}

// TestRevocationsAreFollowedByMessages measures how long a replica needs to learn of a change. That
// time is too short to be the regular reading every five seconds.
func TestRevocationsAreFollowedByMessages(t *testing.T) {
	t.Parallel()
	admin := administrator(t, statetest.Redis(t))
	config := state.RedisConfig{Addresses: []string{admin.Options().Addr}, Timeout: patient}
	operator, replica := state.NewRedisRevocations(open(t, config)), follow(t, open(t, config))
	var fastest time.Duration
	for i := range 5 {
		added := anyRevocation(fmt.Sprint("reason ", i))
		begin := time.Now()
		testkit.Must(t, operator.Add(t.Context(), added))
		statetest.Eventually(t, "the replica has followed", func(context.Context) bool {
			r, err := replica.Revoked(&revokedPod)
			return err == nil && r != nil && r.Reason == added.Reason
		})
		if took := time.Since(begin); i == 0 || took < fastest {
			fastest = took
		}
	}
	if fastest > time.Second {
		t.Errorf("the fastest of five changes took %s", fastest)
	}

	// The regular reading compensates for a lost message (here: none is sent).
	lost := anyRevocation("without a message")
	list, err := operator.List(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	values, err := admin.HGetAll(t.Context(), "pullpass:revocations").Result()
	testkit.Must(t, err)
	for field, value := range values {
		_, rest, _ := strings.Cut(value, " ")
		later := fmt.Sprint(time.Now().Add(time.Minute).UnixMicro(), " ")
		testkit.Must(t, admin.HSet(t.Context(), "pullpass:revocations", field, later+strings.Replace(rest, list[0].Reason, lost.Reason, 1)).Err())
	}
	statetest.Eventually(t, "the list is read without a message", func(context.Context) bool {
		r, err := replica.Revoked(&revokedPod)
		return err == nil && r != nil && r.Reason == lost.Reason
	})
}
