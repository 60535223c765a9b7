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
	// One late answer may be an exception. After this number of failures in a row, further calls
	// fail at once.
	breakerFailures = 3
	// breakerPause is the time without calls; then one call tries.
	breakerPause = time.Second
)

// errPaused rejects a call at once, because the calls before it failed.
var errPaused = errors.New("failed lately, tried again every second")

// breaker keeps calls away from a Redis node that does not answer, so that not every request waits
// for its full time limit. One call per pause is let through, and ends the pause if it succeeds. It
// is a hook of the node's client and safe for concurrent use.
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
		return fmt.Errorf("%w: %v", errPaused, b.last) //nolint:errorlint // go-redis would read a time limit in it as a reason to retry
	}
	b.next = now.Add(breakerPause)
	return nil
}

func (b *breaker) report(err error) {
	if errors.Is(err, context.Canceled) {
		return // the caller's cancellation is not a failure of the node
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

// answered distinguishes error answers, which cost no time, from missing answers. A refused login
// is not an answer: it costs a new connection each time.
func answered(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply) && !redis.IsAuthError(err)
}

// broken reports whether an established connection was lost.
func broken(err error) bool {
	if failed, ok := errors.AsType[*net.OpError](err); ok && failed.Op == "dial" {
		return false
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// allowed marks the context of a command that was let through.
type allowed struct{}

// ProcessHook is part of redis.Hook.
func (b *breaker) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		// For a new connection, go-redis logs in with commands that pass here again. They are part
		// of the command that needs the connection.
		if ctx.Value(allowed{}) != nil {
			return next(ctx, cmd)
		}
		if err := b.allow(); err != nil {
			cmd.SetErr(err)
			return err
		}
		ctx = context.WithValue(ctx, allowed{}, true)
		err := next(ctx, cmd)
		// A server whose machine was replaced does not know the earlier connections, and each of
		// them fails when it is used. Without this, only one a second would be tried. Every call
		// may safely run twice.
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

// ProcessPipelineHook is part of redis.Hook. The only pipelines are those with which go-redis sets
// up connections.
func (b *breaker) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// DialHook is part of redis.Hook.
func (b *breaker) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}
