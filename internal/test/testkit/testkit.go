package testkit

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func QuietLogger() *slog.Logger { return slog.New(slog.DiscardHandler) }

// ExpectNoPiece looks for pieces of 12 bytes. Three letters would be found by
// chance, in span times and trace ids.
func ExpectNoPiece(t *testing.T, where, written string, secrets ...string) {
	t.Helper()
	for _, secret := range secrets {
		for at := 0; at+12 <= len(secret); at += 6 {
			if i := strings.Index(written, secret[at:at+12]); i >= 0 {
				t.Errorf("%s has the piece at %d of %.20s…: %.200q", where, at, secret, written[max(0, i-100):])
				break
			}
		}
	}
}

// OtherEnd returns text in base64url with another end. With one fixed end, a text that has it
// by chance would stay as before.
func OtherEnd(text string) string {
	end := "AA"
	if strings.HasSuffix(text, end) {
		end = "QA"
	}
	return text[:len(text)-len(end)] + end
}

// TokenPart decodes the header (0) or the claims (1) of a token.
func TokenPart(t testing.TB, token string, part int) (fields map[string]any) {
	t.Helper()
	data, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[part])
	Must(t, err)
	Must(t, json.Unmarshal(data, &fields))
	return fields
}

func Write(t *testing.T, dir, name, content string) {
	t.Helper()
	Must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
}

// Must ends the test at an error. Without one it costs nothing: benchmarks call it in their loops.
func Must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// Value returns the value of a call that must succeed: testkit.Value(json.Marshal(v))(t).
func Value[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		Must(t, err)
		return value
	}
}

var lastPort atomic.Int32

// FreeAddress returns one of a range that the system takes for no connection of
// its own accord: it could be in use again before it is listened on. A test that can listen
// at once calls Listen: another process may be faster.
func FreeAddress(t *testing.T) string {
	t.Helper()
	l := Listen(t)
	Must(t, l.Close())
	return l.Addr().String()
}

// Listen listens on an address that no test takes when it is closed: a server that
// is down stays down.
func Listen(t *testing.T) net.Listener {
	t.Helper()
	var last error
	for range 20_000 {
		// Each process begins elsewhere: those of other packages run at the same time.
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+(int32(os.Getpid()%100)*200+lastPort.Add(1))%20_000))
		if err == nil {
			return l
		}
		last = err
	}
	Must(t, last)
	return nil
}

// Eventually waits for what happens in another goroutine.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out: %s", what)
		}
	}
}

// Bubble runs a test beside others, with a time of its own.
func Bubble(t *testing.T, test func(*testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// Clock shows a time that the test sets.
type Clock struct{ at atomic.Int64 }

func NewClock(at time.Time) *Clock {
	c := &Clock{}
	c.Set(at)
	return c
}

func (c *Clock) Now() time.Time          { return time.Unix(0, c.at.Load()) }
func (c *Clock) Set(at time.Time)        { c.at.Store(at.UnixNano()) }
func (c *Clock) Advance(d time.Duration) { c.at.Add(int64(d)) }

// Buffer is written by the service and read by the test.
type Buffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
	seen   io.Writer
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.seen == nil {
		b.seen = Seen()
	}
	if _, err := b.seen.Write(p); err != nil {
		return 0, err
	}
	return b.buffer.Write(p)
}

func (b *Buffer) Bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.buffer.Bytes())
}

func (b *Buffer) String() string { return string(b.Bytes()) }

// WithoutComments returns the lines of YAML that do not begin with #.
func WithoutComments(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		if !strings.HasPrefix(line, "#") {
			b.WriteString(line)
		}
	}
	return b.String()
}
