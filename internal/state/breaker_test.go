package state

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// replyError is an error in a server's answer.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

func TestBreaker(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		var answer error
		reached := 0
		late := errors.New("no answer in time")
		command := (&breaker{}).ProcessHook(func(context.Context, redis.Cmder) error {
			reached++
			return answer
		})
		call := func(result error, wantReached bool) {
			t.Helper()
			answer, reached = result, 0
			err := command(t.Context(), redis.NewCmd(t.Context()))
			switch {
			case wantReached && (reached != 1 || err != result):
				t.Errorf("the command was sent %d times, %v; want once, %v", reached, err, result)
			case !wantReached && (reached != 0 || !errors.Is(err, errPaused)):
				t.Errorf("the command was sent %d times, %v; want no attempt", reached, err)
			}
		}
		// One answer ends a series of failures.
		for _, result := range []error{late, late, nil, late, late, replyError("OOM"), late, late, redis.Nil, late, late} {
			call(result, true)
		}
		// A cancellation by the caller counts as neither.
		call(fmt.Errorf("read: %w", context.Canceled), true)
		call(context.DeadlineExceeded, true)
		call(nil, false)

		time.Sleep(breakerPause - time.Nanosecond)
		call(nil, false)
		time.Sleep(time.Nanosecond)
		call(late, true) // one tries …
		call(nil, false) // … and the others do not wait for it
		time.Sleep(breakerPause)
		call(nil, true)
		call(nil, true)
	})
}

// A broken connection says nothing about other idle connections, or about a new one. Other failures
// are not retried.
func TestBreakerTriesOtherConnections(t *testing.T) {
	t.Parallel()
	const idle = 3
	reset := &net.OpError{Op: "read", Err: syscall.ECONNRESET}
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNRESET}
	for _, test := range []struct {
		results []error
		want    int // how many of them are seen, the last one by the caller
	}{
		{[]error{nil}, 1},
		{[]error{io.EOF, fmt.Errorf("tls: %w", io.ErrUnexpectedEOF), reset, &net.OpError{Op: "write", Err: syscall.EPIPE}, nil}, 5},
		{[]error{reset, reset, reset, reset, reset, nil}, 2 + idle},
		{[]error{reset, refused, nil}, 2},
		{[]error{reset, replyError("OOM"), nil}, 2},
		{[]error{refused, nil}, 1},
		{[]error{context.DeadlineExceeded, nil}, 1},
		{[]error{replyError("LOADING"), nil}, 1},
	} {
		seen := 0
		command := (&breaker{stats: func() *redis.PoolStats { return &redis.PoolStats{IdleConns: idle} }}).ProcessHook(func(context.Context, redis.Cmder) error {
			seen++
			return test.results[seen-1]
		})
		if err := command(t.Context(), redis.NewCmd(t.Context())); seen != test.want || err != test.results[test.want-1] {
			t.Errorf("%v: %v after %d attempts, want %d", test.results, err, seen, test.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	attempts := 0
	command := (&breaker{stats: func() *redis.PoolStats { return &redis.PoolStats{IdleConns: idle} }}).ProcessHook(func(context.Context, redis.Cmder) error {
		if attempts++; attempts == 2 {
			cancel()
		}
		return io.EOF
	})
	if err := command(ctx, redis.NewCmd(ctx)); err != io.EOF || attempts != 2 {
		t.Errorf("%v after %d attempts, of which the caller waited for 2", err, attempts)
	}
}

func TestBreakerLetsOneOfManyTry(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		b := &breaker{}
		for range breakerFailures {
			b.report(io.EOF)
		}
		time.Sleep(breakerPause)
		if b.allow() != nil {
			t.Error("no request may try")
		}
		for range 3 { // the first has no result yet
			if err := b.allow(); !errors.Is(err, errPaused) || errors.Is(err, io.EOF) || !strings.Contains(err.Error(), io.EOF.Error()) {
				t.Errorf("%v, want one that names the last failure and is none", err)
			}
		}
		time.Sleep(breakerPause)
		if b.allow() != nil {
			t.Error("no request may try again")
		}
	})
}

// go-redis logs in on a new connection with its own commands, within the command that needs the
// connection.
func TestBreakerLetsThroughWhatBelongsToACall(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		b := &breaker{}
		for range breakerFailures {
			b.report(io.EOF)
		}
		time.Sleep(breakerPause)
		var command redis.ProcessHook
		depth := 0
		command = b.ProcessHook(func(ctx context.Context, cmd redis.Cmder) error {
			if depth++; depth == 1 {
				return command(ctx, cmd)
			}
			return nil
		})
		if err := command(t.Context(), redis.NewCmd(t.Context())); err != nil || depth != 2 {
			t.Errorf("%v at depth %d", err, depth)
		}
	})
}
