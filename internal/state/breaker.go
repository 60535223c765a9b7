package state

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// One late answer says nothing yet; so many in a row, and the next is not
	// waited for.
	breakerFailures = 3
	// breakerPause is how long nobody asks; then one call tries.
	breakerPause = time.Second
)

// errPaused refuses a call at once, because the ones before it failed.
var errPaused = errors.New("failed lately, tried again every second")

// breaker keeps calls away from a Redis node that does not answer, so that not
// every request waits for its full time limit. One call in a while is let
// through, and ends the pause if it succeeds. It is a hook of the node's client
// and safe for concurrent use.
type breaker struct {
	stats func() *redis.PoolStats // of the node's client

	mu       sync.Mutex
	failures int // in a row
	next     time.Time
	last     error
}

func (b *breaker) allow() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures < breakerFailures {
		return nil
	}
	now := time.Now()
	if now.Before(b.next) {
		// Not wrapped: go-redis would read a time limit in it as a reason to retry.
		return fmt.Errorf("%w: %v", errPaused, b.last)
	}
	b.next = now.Add(breakerPause)
	return nil
}

func (b *breaker) report(err error) {
	if errors.Is(err, context.Canceled) {
		return // the caller's own doing says nothing of the node
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil || answered(err) {
		b.failures, b.last = 0, nil
		return
	}
	b.failures++
	b.last = err
	b.next = time.Now().Add(breakerPause)
}

// answered tells answers that are errors, which cost no time, from no answer.
// A refused login is none: it costs a new connection each time.
func answered(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply) && !redis.IsAuthError(err)
}

// broken tells a connection that was there and is not any more.
func broken(err error) bool {
	var failed *net.OpError
	if errors.As(err, &failed) && failed.Op == "dial" {
		return false
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// allowed marks the context of a command that was let through.
type allowed struct{}

// ProcessHook is part of redis.Hook.
func (b *breaker) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		// For a new connection, go-redis logs in with commands that pass here again:
		// they are part of the one that needs the connection.
		if ctx.Value(allowed{}) != nil {
			return next(ctx, cmd)
		}
		if err := b.allow(); err != nil {
			cmd.SetErr(err)
			return err
		}
		ctx = context.WithValue(ctx, allowed{}, true)
		err := next(ctx, cmd)
		// A server whose machine was replaced knows nothing of the connections of
		// before, and each of them fails when it is used. Without this, one a second
		// would. Whatever a call does, it may do twice.
		if broken(err) {
			for range b.stats().IdleConns + 1 {
				if err = next(ctx, cmd); !broken(err) || ctx.Err() != nil {
					break
				}
			}
		}
		b.report(err)
		return err
	}
}

// ProcessPipelineHook is part of redis.Hook. There are no pipelines but those
// with which go-redis sets up connections.
func (b *breaker) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// DialHook is part of redis.Hook.
func (b *breaker) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}
