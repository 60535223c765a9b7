package state

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// replyError is an error that a server answered with.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

func TestBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var answer error
		reached := 0
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
		// One answer ends a row of failures.
		for _, result := range []error{io.EOF, io.EOF, nil, io.EOF, io.EOF, replyError("OOM"), io.EOF, io.EOF, redis.Nil, io.EOF, io.EOF} {
			call(result, true)
		}
		// What the caller did is neither.
		call(fmt.Errorf("read: %w", context.Canceled), true)
		call(context.DeadlineExceeded, true)
		call(nil, false)

		time.Sleep(breakerPause - time.Nanosecond)
		call(nil, false)
		time.Sleep(time.Nanosecond)
		call(io.ErrUnexpectedEOF, true) // one tries …
		call(nil, false)                // … and the others do not wait for it
		time.Sleep(breakerPause)
		call(nil, true)
		call(nil, true)
	})
}

func TestBreakerLetsOneOfManyTry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &breaker{}
		for range breakerFailures {
			b.report(io.EOF)
		}
		time.Sleep(breakerPause)
		if b.allow() != nil {
			t.Error("nobody may try")
		}
		for range 3 { // the first has no result yet
			if err := b.allow(); !errors.Is(err, errPaused) || errors.Is(err, io.EOF) || !strings.Contains(err.Error(), io.EOF.Error()) {
				t.Errorf("%v, want one that names the last failure and is none", err)
			}
		}
		time.Sleep(breakerPause)
		if b.allow() != nil {
			t.Error("nobody may try again")
		}
	})
}

// go-redis logs in on a new connection with commands of its own, in the middle
// of the one that needs the connection.
func TestBreakerLetsThroughWhatBelongsToACall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
