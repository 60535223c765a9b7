package state

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	decisionsKey = keyPrefix + "decisions"
	// maxDecisions bounds the stream: some hours of a busy day, and at most
	// MaxDecisionBytes as often.
	maxDecisions = 10_000
	// MaxDecisionBytes is the longest entry that is kept, or taken from Redis.
	MaxDecisionBytes = 4 << 10
	// decisionsAge ends the stream when nobody adds to it any more.
	decisionsAge  = 24 * time.Hour
	decisionsPage = 2000 // of one call: 8 MB at most
)

// show runs a command of which no request depends: that it fails says nothing of the
// health of Redis, whose user may not be permitted to do it.
func (r *Redis) show(ctx context.Context, operation Operation, command func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	began := time.Now()
	err := command(ctx)
	if r.observe != nil && !errors.Is(err, context.Canceled) {
		r.observe(operation, time.Since(began), err)
	}
	if err != nil {
		return fmt.Errorf("redis: %s: %w", operation, err)
	}
	return nil
}

// AddDecisions appends entries to what all replicas have decided. Those that are too
// long are left out.
func (r *Redis) AddDecisions(ctx context.Context, entries [][]byte) error {
	return r.show(ctx, operationAddDecisions, func(ctx context.Context) error {
		pipe := r.client.Pipeline()
		for _, entry := range entries {
			if len(entry) <= MaxDecisionBytes {
				pipe.XAdd(ctx, &redis.XAddArgs{Stream: decisionsKey, MaxLen: maxDecisions, Approx: true, Values: []any{"event", entry}})
			}
		}
		pipe.Expire(ctx, decisionsKey, decisionsAge)
		_, err := pipe.Exec(ctx)
		return err
	})
}

// Decisions returns what was added after an entry, in order, and where the next call
// has to begin. After "" everything is returned that is kept, over several calls:
// there is more while entries are. Redis may hold anything: entries that
// no AddDecisions wrote are left out.
func (r *Redis) Decisions(ctx context.Context, after string) (entries [][]byte, last string, err error) {
	last = after
	from := "-"
	if after != "" {
		from = "(" + after
	}
	err = r.show(ctx, operationReadDecisions, func(ctx context.Context) error {
		messages, err := r.client.XRangeN(ctx, decisionsKey, from, "+", decisionsPage).Result()
		if errors.Is(err, redis.Nil) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, m := range messages {
			last = m.ID
			if text, ok := m.Values["event"].(string); ok && len(text) <= MaxDecisionBytes {
				entries = append(entries, []byte(text))
			}
		}
		return nil
	})
	if err != nil {
		return nil, after, err
	}
	return entries, last, nil
}
