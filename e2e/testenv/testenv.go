// Package testenv has what every end-to-end test needs: to end at an error, to wait, and to read and write files.
package testenv

import (
	"encoding/base64"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// Poll asks more and more rarely: a wait that ends soon is measured exactly, and a long one leaves the processors to what it waits for.
const (
	shortestPause = time.Millisecond
	longestPause  = 50 * time.Millisecond
)

// Must ends the test at an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Value returns the value of a call that must succeed: testenv.Value(json.Marshal(v))(t).
func Value[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		Must(t, err)
		return value
	}
}

// Await waits until a condition holds, and returns how long that took. After the limit, it ends the test and says what did not happen.
func Await(t testing.TB, limit time.Duration, what string, holds func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	if !Poll(limit, holds) {
		t.Fatalf("%s: not within %v", what, limit)
	}
	return time.Since(start)
}

// Poll is Await for a test that has more to say: it returns false when the condition does not hold within the limit.
func Poll(limit time.Duration, holds func() bool) bool {
	for start := time.Now(); !holds(); {
		waited := time.Since(start)
		if waited > limit {
			return false
		}
		time.Sleep(min(max(waited/8, shortestPause), longestPause))
	}
	return true
}

func ReadFile(t testing.TB, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	Must(t, err)
	return string(content)
}

// WriteFile writes a file that only its owner may read, and returns its path.
func WriteFile[T string | []byte](t testing.TB, path string, content T) string {
	t.Helper()
	Must(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func ContainsAll(text string, parts []string) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
}

// Replace replaces the only occurrence of old.
func Replace(t testing.TB, text, old, with string) string {
	t.Helper()
	if n := strings.Count(text, old); n != 1 {
		t.Fatalf("%q is there %d times, want once, in:\n%s", old, n, text)
	}
	return strings.Replace(text, old, with, 1)
}

// TokenPart is a part of a signed token: 0 is its header, 1 what it says.
func TokenPart(t testing.TB, token string, n int) []byte {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("a token has 3 parts, and %.20q… has %d", token, len(parts))
	}
	content, err := base64.RawURLEncoding.DecodeString(parts[n])
	Must(t, err)
	return content
}
