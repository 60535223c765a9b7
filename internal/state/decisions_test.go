package state_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/pullpass/pullpass/internal/state"
	"github.com/pullpass/pullpass/internal/state/statetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// consoleRights are the additional rights for the console in docs/how-to/redis.md.
var consoleRights = []string{"+xadd", "+xrange", "+expire"}

func TestDecisionsAreSharedAndBounded(t *testing.T) {
	t.Parallel()
	admin := administrator(t, statetest.Redis(t))
	config := state.RedisConfig{Addresses: []string{admin.Options().Addr}, Username: user, PasswordFile: testkit.TempFile(t, "password", password), Timeout: patient}
	setUser(t, admin, slices.Concat(documentedRights(t, false), consoleRights))
	one, two := open(t, config), open(t, config)
	if entries, last, err := two.Decisions(t.Context(), ""); err != nil || entries != nil || last != "" {
		t.Fatalf("before the first: %q, %q, %v", entries, last, err)
	}
	long := bytes.Repeat([]byte("x"), state.MaxDecisionBytes+1)
	testkit.Must(t, one.AddDecisions(t.Context(), [][]byte{[]byte("a"), long, []byte("b")}))
	if length, err := admin.XLen(t.Context(), "pullpass:decisions").Result(); err != nil || length != 2 {
		t.Errorf("%d entries are kept, %v: what is too long is not", length, err)
	}
	entries, last, err := two.Decisions(t.Context(), "")
	if err != nil || len(entries) != 2 || string(entries[1]) != "b" {
		t.Fatalf("%q, %v", entries, err)
	}
	// Foreign content of the stream is ignored unless it could be an entry.
	for _, values := range []map[string]any{{"event": string(long)}, {"other": "x"}} {
		testkit.Must(t, admin.XAdd(t.Context(), &redis.XAddArgs{Stream: "pullpass:decisions", Values: values}).Err())
	}
	testkit.Must(t, one.AddDecisions(t.Context(), [][]byte{[]byte("c")}))
	entries, last, err = two.Decisions(t.Context(), last)
	if err != nil || len(entries) != 1 || string(entries[0]) != "c" {
		t.Fatalf("%q, %v", entries, err)
	}
	if entries, _, err := two.Decisions(t.Context(), last); err != nil || len(entries) != 0 {
		t.Errorf("after the last: %q, %v", entries, err)
	}
	for i := range 30 {
		batch := make([][]byte, 500)
		for j := range batch {
			batch[j] = fmt.Appendf(nil, "%d %d", i, j)
		}
		testkit.Must(t, one.AddDecisions(t.Context(), batch))
	}
	if length, err := admin.XLen(t.Context(), "pullpass:decisions").Result(); err != nil || length < 10_000 || length > 11_000 {
		t.Errorf("%d entries are kept, %v", length, err)
	}
	if ttl, err := admin.TTL(t.Context(), "pullpass:decisions").Result(); err != nil || ttl.Hours() < 23 || ttl.Hours() > 24 {
		t.Errorf("they live for %v, %v", ttl, err)
	}
}

// A replica without the right to keep decisions still serves, and is healthy.
func TestDecisionsWithoutRights(t *testing.T) {
	t.Parallel()
	admin := administrator(t, statetest.Redis(t))
	config := state.RedisConfig{Addresses: []string{admin.Options().Addr}, Username: user, PasswordFile: testkit.TempFile(t, "password", password), Timeout: patient}
	for i, right := range consoleRights {
		setUser(t, admin, slices.Concat(documentedRights(t, false), slices.Delete(slices.Clone(consoleRights), i, i+1)))
		r := open(t, config)
		err := r.AddDecisions(t.Context(), [][]byte{[]byte("a")})
		if err == nil {
			_, _, err = r.Decisions(t.Context(), "")
		}
		if err == nil || !strings.Contains(err.Error(), "permission") {
			t.Errorf("without %s: %v", right, err)
		}
		if status := r.Status(); status.Failures != 0 {
			t.Errorf("without %s: %+v", right, status)
		}
	}
}

// Each cluster has its own uses, with the rights for the console.
func TestUsesAreShared(t *testing.T) {
	t.Parallel()
	admin := administrator(t, statetest.Redis(t))
	config := state.RedisConfig{Addresses: []string{admin.Options().Addr}, Username: user, PasswordFile: testkit.TempFile(t, "password", password), Timeout: patient}
	setUser(t, admin, slices.Concat(documentedRights(t, false), consoleRights))
	one, two := open(t, config), open(t, config)
	long := bytes.Repeat([]byte("x"), state.MaxUseBytes+1)
	testkit.Must(t, one.AddUses(t.Context(), "a", [][]byte{[]byte("1"), long, []byte("2")}))
	entries, last, err := two.Uses(t.Context(), "a", "")
	if err != nil || len(entries) != 2 || string(entries[1]) != "2" {
		t.Fatalf("%q, %v", entries, err)
	}
	if entries, _, err := two.Uses(t.Context(), "a", last); err != nil || len(entries) != 0 {
		t.Errorf("%q, %v", entries, err)
	}
	if entries, _, err := two.Uses(t.Context(), "b", ""); err != nil || len(entries) != 0 {
		t.Errorf("%q, %v", entries, err)
	}
	if left, err := admin.TTL(t.Context(), "pullpass:uses:a").Result(); err != nil || left <= 0 {
		t.Errorf("it has no end: %v, %v", left, err)
	}
}
