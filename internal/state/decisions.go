package state

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// MaxDecisionBytes is the longest entry that is kept, or taken from Redis.
	MaxDecisionBytes = 4 << 10
	// MaxUseBytes is that of uses.
	MaxUseBytes = 1 << 10
)

// stream is entries that replicas add for one another.
type stream struct {
	key       string
	most      int64 // entries, about
	mostBytes int   // of one
	// age ends the stream when nobody adds to it any more.
	age       time.Duration
	page      int64 // entries of one call
	add, read Operation
}

// decisions are some hours of a busy day.
var decisions = stream{keyPrefix + "decisions", 10_000, MaxDecisionBytes, 24 * time.Hour, 2000, operationAddDecisions, operationReadDecisions}

// usesOf is what 20,000 patterns of one cluster have by three replicas, a day.
func usesOf(cluster string) stream {
	return stream{keyPrefix + "uses:" + cluster, 60_000, MaxUseBytes, 72 * time.Hour, 5000, operationAddUses, operationReadUses}
}

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
	return r.addTo(ctx, decisions, entries)
}

// Decisions returns what was added after an entry, in order, and where the next call
// has to begin. After "" everything is returned that is kept, over several calls:
// there is more while entries are. Redis may hold anything: entries that
// no AddDecisions wrote are left out.
func (r *Redis) Decisions(ctx context.Context, after string) (entries [][]byte, last string, err error) {
	return r.readFrom(ctx, decisions, after)
}

// AddUses is AddDecisions for what was used in a cluster.
func (r *Redis) AddUses(ctx context.Context, cluster string, entries [][]byte) error {
	return r.addTo(ctx, usesOf(cluster), entries)
}

// Uses is Decisions for what was used in a cluster.
func (r *Redis) Uses(ctx context.Context, cluster, after string) (entries [][]byte, last string, err error) {
	return r.readFrom(ctx, usesOf(cluster), after)
}

func (r *Redis) addTo(ctx context.Context, s stream, entries [][]byte) error {
	return r.show(ctx, s.add, func(ctx context.Context) error {
		pipe := r.client.Pipeline()
		for _, entry := range entries {
			if len(entry) <= s.mostBytes {
				pipe.XAdd(ctx, &redis.XAddArgs{Stream: s.key, MaxLen: s.most, Approx: true, Values: []any{"event", entry}})
			}
		}
		pipe.Expire(ctx, s.key, s.age)
		_, err := pipe.Exec(ctx)
		return err
	})
}

func (r *Redis) readFrom(ctx context.Context, s stream, after string) (entries [][]byte, last string, err error) {
	last = after
	from := "-"
	if after != "" {
		from = "(" + after
	}
	err = r.show(ctx, s.read, func(ctx context.Context) error {
		messages, err := r.client.XRangeN(ctx, s.key, from, "+", s.page).Result()
		if errors.Is(err, redis.Nil) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, m := range messages {
			last = m.ID
			if text, ok := m.Values["event"].(string); ok && len(text) <= s.mostBytes {
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
