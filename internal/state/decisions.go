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
	// MaxUseBytes is the longest entry of uses.
	MaxUseBytes = 1 << 10
)

// stream is entries that replicas share with each other.
type stream struct {
	key       string
	most      int64 // entries, about
	mostBytes int   // of one
	// age is the time after the last addition when the stream ends.
	age       time.Duration
	page      int64 // entries of one call
	add, read Operation
}

// decisions holds some hours of a busy day.
var decisions = stream{keyPrefix + "decisions", 10_000, MaxDecisionBytes, 24 * time.Hour, 2000, operationAddDecisions, operationReadDecisions}

// usesOf has room for 20,000 patterns of one cluster from three replicas for a day.
func usesOf(cluster string) stream {
	return stream{keyPrefix + "uses:" + cluster, 60_000, MaxUseBytes, 72 * time.Hour, 5000, operationAddUses, operationReadUses}
}

// show runs a command that no request depends on. Its failure does not count for the health of
// Redis, whose user may not have the right to run it.
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

// AddDecisions appends entries to the decisions of all replicas. It leaves out entries that are too
// long.
func (r *Redis) AddDecisions(ctx context.Context, entries [][]byte) error {
	return r.addTo(ctx, decisions, entries)
}

// Decisions returns the entries after a given one, in order, and the position for the next call.
// Several calls, beginning with "", return all kept entries: there may be more until a call returns
// none. Redis may hold anything, so entries that AddDecisions did not write are left out.
func (r *Redis) Decisions(ctx context.Context, after string) (entries [][]byte, last string, err error) {
	return r.readFrom(ctx, decisions, after)
}

// AddUses is AddDecisions for uses in a cluster.
func (r *Redis) AddUses(ctx context.Context, cluster string, entries [][]byte) error {
	return r.addTo(ctx, usesOf(cluster), entries)
}

// Uses is Decisions for uses in a cluster.
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
