package state

import (
	"context"
	_ "embed"
	"errors"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed own.lua
var ownScript string

// Owned is an answer about a token of one of its callers.
type Owned struct {
	Owner string        // of the token
	Taken bool          // a limit was checked, too
	Wait  time.Duration // as Take returns it; 0 if no limit was checked
}

// OwnAndTake makes owner the owner of key until the given time, unless key has an owner. It also
// takes one unit from a bucket for the owner. Both together need one round trip to Redis, instead
// of two in sequence.
//
// In three cases it handles only the owner, and Take must still be called:
//   - The owner is known, or a unit was taken in advance, so that one of the two is free.
//   - Redis is a Cluster, which keeps the two on different nodes.
//   - The bucket cannot be counted there.
//
// An error says that the owner is not known, and says nothing of the bucket.
func (l *SharedLimits) OwnAndTake(ctx context.Context, key, owner string, until time.Time, bucket string, limit Limit) (Owned, error) {
	hashed := hashKey(bucket)
	_, isCluster := l.shared.client.(*redis.ClusterClient)
	if isCluster || limit.validate(1) != nil || l.hasAdvance(hashed, limit) || l.shared.knowsOwner(hashKey(key)) {
		current, err := l.shared.Own(ctx, key, owner, until)
		return Owned{Owner: current}, err
	}
	answer, units, err := l.shared.ownAndTake(ctx, key, owner, until, hashed, limit)
	if units > 0 {
		l.keep(hashed, limit, units)
	}
	return answer, err
}

// hasAdvance reports whether spend of one unit would succeed.
func (l *SharedLimits) hasAdvance(key hashedKey, limit Limit) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	a, ok := l.advances.Get(key)
	return ok && a.holds(limit, 1, l.now())
}

func (r *Redis) knowsOwner(key hashedKey) bool {
	known, ok := r.owners.Get(key)
	return ok && r.now().Before(known.until)
}

// ownAndTake also returns the units taken in advance.
func (r *Redis) ownAndTake(ctx context.Context, key, owner string, until time.Time, bucket hashedKey, limit Limit) (answer Owned, advance int, err error) {
	if err := checkOwner(owner); err != nil {
		return Owned{}, 0, err
	}
	hashed := hashKey(key)
	var values []any
	err = r.call(ctx, operationOwnAndTake, "own a token id and take from a limit", func(ctx context.Context) (err error) {
		keys := []string{redisKey("limit", bucket), redisKey("owner", hashed)}
		values, err = r.own.Run(ctx, r.client, keys, limit.unit(), limit.Burst, 1, advanceOneIn, owner, r.ownedFor(until).Milliseconds()).Slice()
		if err == nil {
			answer, advance, err = readOwned(values)
		}
		return err
	})
	if err != nil {
		return Owned{}, 0, err
	}
	r.owners.Add(hashed, ownership{answer.Owner, until})
	return answer, advance, nil
}

// readOwned reads the answer of own.lua. The key may hold anything.
func readOwned(values []any) (answer Owned, advance int, err error) {
	owner := ""
	if len(values) > 0 {
		owner, _ = values[0].(string)
	}
	if owner == "" {
		return Owned{}, 0, errNoOwner
	}
	if len(values) == 1 {
		return Owned{Owner: owner}, 0, nil
	}
	taken, _ := values[1].(int64)
	wait, advance := readTaken(taken)
	return Owned{owner, true, wait}, advance, nil
}

var errNoOwner = errors.New("the key holds no owner")

// readTaken reads the answer of limit.lua.
func readTaken(answer int64) (wait time.Duration, advance int) {
	if answer > 0 {
		return time.Duration(answer) * time.Microsecond, 0
	}
	return 0, int(-answer)
}

// unit is an argument of limit.lua.
func (l Limit) unit() string { return strconv.FormatFloat(1e6/l.Rate, 'f', -1, 64) }

// ownedFor returns a duration instead of a time, so that Redis's clock does not matter.
func (r *Redis) ownedFor(until time.Time) time.Duration {
	return max(until.Sub(r.now()), 0) + clockGrace
}
