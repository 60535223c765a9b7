package state_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pullpass/pullpass/internal/state"
	"github.com/pullpass/pullpass/internal/state/statetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// ownRig counts the calls of a replica to Redis.
type ownRig struct {
	*testing.T
	admin  *redis.Client
	redis  *state.Redis
	limits *state.SharedLimits
	asked  []state.Operation
}

func newOwnRig(t *testing.T, addresses ...string) *ownRig {
	r := &ownRig{T: t}
	r.redis = open(t, state.RedisConfig{
		Addresses: addresses, Timeout: patient,
		Observe: func(operation state.Operation, _ time.Duration, _ error) { r.asked = append(r.asked, operation) },
	})
	now := time.Now()
	r.limits = sharedLimits(t, r.redis, func() time.Time { return now })
	return r
}

func redisRig(t *testing.T) *ownRig {
	admin := administrator(t, statetest.Redis(t))
	r := newOwnRig(t, admin.Options().Addr)
	r.admin = admin
	return r
}

// own calls OwnAndTake with a token and a bucket, and asserts the answer and the calls to Redis.
func (r *ownRig) own(key, owner, bucket string, limit state.Limit, want state.Owned, asked ...state.Operation) {
	r.Helper()
	r.asked = nil
	got, err := r.limits.OwnAndTake(r.Context(), key, owner, time.Now().Add(time.Hour), bucket, limit)
	if got.Wait > 900*time.Second { // of a bucket that fills slowly
		got.Wait = time.Hour
	}
	if err != nil || got != want || fmt.Sprint(r.asked) != fmt.Sprint(asked) {
		r.Errorf("%+v, %v, asked %s; want %+v, %s", got, err, r.asked, want, asked)
	}
}

func TestOwnAndTakeAsksOnce(t *testing.T) {
	t.Parallel()
	r := redisRig(t)
	one := state.Limit{Rate: 0.001, Burst: 2} // nothing is taken in advance
	mine := state.Owned{Owner: "node-1", Taken: true}
	r.own("token", "node-1", "bucket", one, mine, "own_and_take")
	// A known token needs no call, and the answer says nothing of the bucket.
	r.own("token", "node-1", "bucket", one, state.Owned{Owner: "node-1"})
	r.own("token 2", "node-1", "bucket", one, mine, "own_and_take")
	mine.Wait = time.Hour
	r.own("token 3", "node-1", "bucket", one, mine, "own_and_take")
	// The limit refuses, but the owner is still stored.
	r.own("token 3", "node-2", "bucket", one, state.Owned{Owner: "node-1"})
	// While units remain that were taken in advance, there is no call for the bucket.
	r.own("token 4", "node-1", "large", large, state.Owned{Owner: "node-1", Taken: true}, "own_and_take")
	r.own("token 5", "node-1", "large", large, state.Owned{Owner: "node-1"}, "own")
	// Take rejects invalid limits.
	r.own("token 6", "node-1", "bucket", state.Limit{}, state.Owned{Owner: "node-1"}, "own")
}

// A caller that presents a different owner's token takes no units from the pods' buckets.
func TestOwnAndTakeTakesForTheOwnerAlone(t *testing.T) {
	t.Parallel()
	r := redisRig(t)
	one := state.Limit{Rate: 0.001, Burst: 2}
	r.own("token", "node-1", "bucket", one, state.Owned{Owner: "node-1", Taken: true}, "own_and_take")
	for range 3 {
		thief := newOwnRig(t, r.admin.Options().Addr) // calls from a different replica
		thief.own("token", "node-2", "bucket", one, state.Owned{Owner: "node-1"}, "own_and_take")
	}
	r.own("token 2", "node-1", "bucket", one, state.Owned{Owner: "node-1", Taken: true}, "own_and_take")
}

// Owners are deleted a minute after the token ends, by Redis's clock.
func TestOwnAndTakeForgetsOwners(t *testing.T) {
	t.Parallel()
	r := redisRig(t)
	r.own("token", "node-1", "bucket", large, state.Owned{Owner: "node-1", Taken: true}, "own_and_take")
	keys, err := r.admin.Keys(t.Context(), "pullpass:owner:*").Result()
	if err != nil || len(keys) != 1 {
		t.Fatal(keys, err)
	}
	if left, err := r.admin.PTTL(t.Context(), keys[0]).Result(); err != nil || left > time.Hour+time.Minute || left < time.Hour {
		t.Errorf("forgotten in %s, %v", left, err)
	}
}

// If Redis cannot count a bucket, the later call of Take handles it. An unreadable owner is an
// error.
func TestOwnAndTakeOfBrokenKeys(t *testing.T) {
	t.Parallel()
	r := redisRig(t)
	r.own("token", "node-1", "bucket", large, state.Owned{Owner: "node-1", Taken: true}, "own_and_take")
	buckets, err := r.admin.Keys(t.Context(), "pullpass:limit:*").Result()
	if err != nil || len(buckets) != 1 {
		t.Fatal(buckets, err)
	}
	owners, err := r.admin.Keys(t.Context(), "pullpass:owner:*").Result()
	if err != nil || len(owners) != 1 {
		t.Fatal(owners, err)
	}
	testkit.Must(t, r.admin.Del(t.Context(), buckets[0]).Err())
	testkit.Must(t, r.admin.HSet(t.Context(), buckets[0], "no", "number").Err())
	other := newOwnRig(t, r.admin.Options().Addr)
	other.own("token 2", "node-1", "bucket", large, state.Owned{Owner: "node-1"}, "own_and_take")
	if ok, _, err := other.limits.Take(t.Context(), "bucket", large, 1); !ok || err != nil {
		t.Errorf("counted here: %t, %v", ok, err)
	}

	for name, set := range map[string]func() error{
		"an empty owner": func() error { return r.admin.Set(t.Context(), owners[0], "", 0).Err() },
		"no owner": func() error {
			r.admin.Del(t.Context(), owners[0])
			return r.admin.HSet(t.Context(), owners[0], "a", "b").Err()
		},
	} {
		testkit.Must(t, set())
		owned, err := newOwnRig(t, r.admin.Options().Addr).limits.OwnAndTake(t.Context(), "token", "node-1", time.Now().Add(time.Hour), "another", large)
		if err == nil || owned != (state.Owned{}) {
			t.Errorf("%s: %+v, %v", name, owned, err)
		}
	}
	for _, owner := range []string{"", strings.Repeat("o", 1025)} {
		if owned, err := other.limits.OwnAndTake(t.Context(), "badly owned", owner, time.Now().Add(time.Hour), "another", large); err == nil || owned != (state.Owned{}) {
			t.Errorf("an owner of %d bytes: %+v, %v", len(owner), owned, err)
		}
	}
}

// A Cluster keeps the two on different nodes, so the call handles only the owner.
func TestOwnAndTakeInACluster(t *testing.T) {
	t.Parallel()
	r := newOwnRig(t, statetest.StartCluster(t).Addresses...)
	for i := range 5 {
		r.own(fmt.Sprint("token ", i), "node-1", "bucket", large, state.Owned{Owner: "node-1"}, "own")
	}
}

func TestOwnAndTakeWithoutRedis(t *testing.T) {
	t.Parallel()
	server := statetest.Redis(t)
	r := newOwnRig(t, server.Address())
	server.Kill()
	for range 5 { // the breaker opens meanwhile
		owned, err := r.limits.OwnAndTake(t.Context(), "token", "node-1", time.Now().Add(time.Hour), "bucket", large)
		if err == nil || owned != (state.Owned{}) {
			t.Fatalf("%+v, %v", owned, err)
		}
	}
	if ok, _, err := r.limits.Take(t.Context(), "bucket", large, 1); !ok || err != nil {
		t.Errorf("the limit is this replica's own: %t, %v", ok, err)
	}
}
