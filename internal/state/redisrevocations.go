package state

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed revoke.lua
var revokeScript string

const (
	// revocationsKey is a hash, and the channel that announces changes.
	revocationsKey = keyPrefix + "revocations"
	// readInterval is how long a change can stay unseen if its message is lost.
	readInterval = 5 * time.Second
	// followPause is how long to wait after a failure.
	followPause = 500 * time.Millisecond
	// writeBatch is the number of records in one write, so that no script blocks Redis for long.
	writeBatch = 200
)

// RedisRevocations keeps the revocations of all replicas in a Redis, and a copy
// of its own, which answers Revoked. It is safe for concurrent use.
//
// A revocation ends only by its time or by Remove. The copy stays while Redis is down. If Redis
// loses records (a restart without persistence, a failover to a replica that was behind), the
// replicas that know them write them again.
type RedisRevocations struct {
	revocationList
	redis *Redis
	max   int

	statusMu  sync.Mutex
	read      time.Time
	readErr   error // of the last read
	followErr error // of the last subscription
}

// RevocationsStatus is for readiness and metrics.
type RevocationsStatus struct {
	Read    time.Time // last time the whole list was read; zero: never
	Entries int       // that count now
	// LastFailure describes the last problem: the list or an entry could not be read, a lost entry
	// could not be written, or the subscription failed. It is empty once all of that works.
	LastFailure string
}

// NewRedisRevocations returns a list that has not been read yet. Run reads it.
func NewRedisRevocations(r *Redis) *RedisRevocations {
	v := &RedisRevocations{redis: r, max: maxRevocations}
	v.now = r.now
	return v
}

// Run reads the list at once, after every change, and every five seconds, until the context ends.
// Without Run, only other calls update the list.
func (v *RedisRevocations) Run(ctx context.Context) {
	for ctx.Err() == nil {
		v.follow(ctx)
	}
}

// follow subscribes, and reads after each message. It does so for one interval only. This ends
// every undetected failure of a subscription, such as a node that vanished or a master that was
// demoted.
func (v *RedisRevocations) follow(ctx context.Context) {
	subscription := v.redis.client.Subscribe(ctx, revocationsKey)
	defer subscription.Close()
	// One pending message stands for all messages that follow before the list is read.
	messages := make(chan struct{}, 1)
	go func() {
		defer close(messages)
		for {
			// The first message is the confirmation: no message is missed after it.
			_, err := subscription.Receive(ctx)
			v.noteFollow(err)
			if err != nil {
				return
			}
			select {
			case messages <- struct{}{}:
			default:
			}
		}
	}()
	end := time.NewTimer(readInterval)
	defer end.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-end.C:
			_ = v.refresh(ctx) // refresh notes the error
			return
		case _, ok := <-messages:
			_ = v.refresh(ctx)
			if ok {
				continue
			}
			select {
			case <-ctx.Done():
			case <-time.After(followPause):
			}
			return
		}
	}
}

// refresh reads the list, and writes records that Redis has lost. The error says that the list
// could not be read; the status also includes lesser faults.
func (v *RedisRevocations) refresh(ctx context.Context) error {
	var values map[string]string
	err := v.redis.call(ctx, operationRead, "read the revocations", func(ctx context.Context) (err error) {
		values, err = v.redis.client.HGetAll(ctx, revocationsKey).Result()
		return err
	})
	if err != nil {
		v.noteRead(err, false)
		return err
	}
	records := make([]*record, 0, len(values))
	var faults []error
	for field, value := range values {
		// An unreadable entry does not affect the other entries.
		r, err := decodeRecord(field, value, v.now().Add(changedAhead))
		if err != nil {
			faults = append(faults, fmt.Errorf("redis: %s: field %.50q %w", revocationsKey, field, err))
			continue
		}
		records = append(records, r)
	}
	for lost := range slices.Chunk(v.merge(records), writeBatch) {
		if _, err := v.write(ctx, "restore revocations", lost...); err != nil {
			faults = append(faults, err)
			break
		}
	}
	v.noteRead(errors.Join(faults...), true)
	return nil
}

func (v *RedisRevocations) noteRead(err error, read bool) {
	v.statusMu.Lock()
	defer v.statusMu.Unlock()
	v.readErr = err
	if read {
		v.read = v.now()
	}
}

func (v *RedisRevocations) noteFollow(err error) {
	if errors.Is(err, redis.ErrClosed) || errors.Is(err, context.Canceled) {
		return // ended by follow itself
	}
	v.statusMu.Lock()
	defer v.statusMu.Unlock()
	v.followErr = nil
	if err != nil {
		v.followErr = fmt.Errorf("redis: subscribe to %s: %w", revocationsKey, err)
	}
}

// Status returns the state of the list.
func (v *RedisRevocations) Status() RevocationsStatus {
	v.statusMu.Lock()
	defer v.statusMu.Unlock()
	status := RevocationsStatus{Read: v.read, Entries: len(v.all())}
	if err := errors.Join(v.readErr, v.followErr); err != nil {
		status.LastFailure = err.Error()
	}
	return status
}

// Add revokes, or replaces the revocation of the same target, and returns once Redis has it. Other
// replicas follow within a second. The error is ErrRevocation, ErrFull or ErrNotConfirmed, or says
// that Redis did not answer.
func (v *RedisRevocations) Add(ctx context.Context, r Revocation) error {
	r.Since = v.now()
	if err := r.Validate(r.Since); err != nil {
		return err
	}
	return v.change(ctx, "revoke", &record{Revocation: r})
}

// Remove ends a revocation. The error is ErrNotRevoked, ErrRevocation if by is
// missing, ErrNotConfirmed, or says that Redis did not answer.
func (v *RedisRevocations) Remove(ctx context.Context, target Target, by string) error {
	if err := v.refresh(ctx); err != nil {
		return err
	}
	r, err := v.removal(target, by)
	if err != nil {
		return err
	}
	return v.change(ctx, "remove a revocation", r)
}

// change writes a new record, and reads the list to verify that it counts, because the operator
// relies on the confirmation.
func (v *RedisRevocations) change(ctx context.Context, what string, r *record) error {
	written, err := v.write(ctx, what, r)
	if err != nil {
		return err
	}
	if written == 0 {
		return fmt.Errorf("%s: %w: nothing was written, because by the clock of Redis %s is past; here it is %s: set the clocks right, and try again",
			what, ErrNotConfirmed, r.Until.UTC().Format(time.RFC3339), v.now().UTC().Format(time.RFC3339))
	}
	if err := v.refresh(ctx); err != nil {
		return fmt.Errorf("%s: %w: it was written, and cannot be read again: %w", what, ErrNotConfirmed, err)
	}
	if !v.agrees(r) {
		return fmt.Errorf("%s: %w: it was written, and the list that Redis returns says otherwise: another client may have changed it at the same time, "+
			"or the clock of Redis is ahead of the one here; look at the list, at the clocks and at who can write to Redis (%s)",
			what, ErrNotConfirmed, cmp.Or(v.Status().LastFailure, "every record can be read"))
	}
	return nil
}

// IsFollowed reports whether a replica learns of changes from this Redis. Replicas of another Redis
// do not, and none does before the first one runs. The error says that Redis did not answer.
func (v *RedisRevocations) IsFollowed(ctx context.Context) (bool, error) {
	for try := 1; ; try++ {
		var receivers int64
		err := v.redis.call(ctx, operationWrite, "announce revocations", func(ctx context.Context) (err error) {
			receivers, err = v.redis.client.Publish(ctx, revocationsKey, "changed").Result()
			return err
		})
		if err != nil || receivers > 0 || try == 2 {
			return receivers > 0, err
		}
		select { // a replica may subscribe again just now: see follow
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(followPause):
		}
	}
}

// List returns the current revocations, sorted by their end. The error says that Redis did not
// answer.
func (v *RedisRevocations) List(ctx context.Context) ([]Revocation, error) {
	if err := v.refresh(ctx); err != nil {
		return nil, err
	}
	return v.all(), nil
}

// write writes records; a record with changed 0 becomes the newest of its target. It returns the
// number of records written, without those that have ended or are known.
func (v *RedisRevocations) write(ctx context.Context, what string, records ...*record) (written int, err error) {
	args := []any{v.max, clockGrace.Milliseconds(), changedAhead.Microseconds()}
	for _, r := range records {
		until, text, err := r.encode()
		if err != nil {
			return 0, fmt.Errorf("%s: %w", what, err)
		}
		args = append(args, r.Target.field(), r.changed, until, text)
	}
	err = v.redis.call(ctx, operationWrite, what, func(ctx context.Context) (err error) {
		written, err = v.redis.revoke.Run(ctx, v.redis.client, []string{revocationsKey}, args...).Int()
		return err
	})
	if err == nil && written < 0 {
		err = fmt.Errorf("%w: %d revocations; remove some, or let some end", ErrFull, v.max)
	}
	return written, err
}
