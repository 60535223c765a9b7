package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// writerFunc is told of each Write.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func testEvent(id string) *exchange.Event {
	return &exchange.Event{
		ID: id, Result: exchange.ResultGranted, Status: 200, Service: "registry.example.com", GrantType: "basic",
		Requested: []string{"repository:a/<b>&c:pull"}, IssuedID: "issued-" + id,
	}
}

// openTest closes the log at the end of the test, if the test does not.
func openTest(t testing.TB, file string, out io.Writer, logger *slog.Logger) *Log {
	t.Helper()
	a := testkit.Value(Open(file, out, logger))(t)
	t.Cleanup(func() {
		if !a.closed.Load() {
			_ = a.Close()
		}
	})
	return a
}

// Lines of several requests, and of other processes on the same file, must not
// run into each other.
func TestAuditWritesLinesWhole(t *testing.T) {
	t.Parallel()
	var writes []string
	a := openTest(t, "", writerFunc(func(p []byte) (int, error) { writes = append(writes, string(p)); return len(p), nil }), testkit.QuietLogger())
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			for range 50 {
				a.Record(testEvent(strings.Repeat("x", 100)))
			}
		})
	}
	group.Wait()
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	all := strings.Join(writes, "")
	proxytest.CheckAuditLines(t, []byte(all))
	for _, text := range writes {
		if text[len(text)-1] != '\n' || len(text) > pipeBuffer {
			t.Fatalf("not whole lines that a pipe takes: %q", text)
		}
	}
	lines := strings.SplitAfter(strings.TrimSuffix(all, "\n"), "\n")
	if len(lines) != 1000 {
		t.Errorf("%d lines for 1000 events", len(lines))
	}
	for _, line := range lines {
		var event exchange.Event
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatalf("not one line of JSON: %q: %v", line, err)
		}
		if !strings.Contains(line, "repository:a/<b>&c:pull") {
			t.Fatalf("a scope is not as it was asked for: %s", line)
		}
	}
}

// Values of a client must not forge a line.
func TestAuditEscapesLineBreaks(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	a := openTest(t, "", &out, testkit.QuietLogger())
	event := testEvent("1")
	event.Client = "curl\n{\"result\":\"granted\"}\r\x1b[2J"
	a.Record(event)
	if got := out.String(); strings.Count(got, "\n") != 1 || strings.ContainsAny(got, "\r\x1b") {
		t.Errorf("line %q", got)
	}
}

func TestAuditAppendsToAFileThatOthersCannotRead(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "audit.log")
	for _, id := range []string{"one", "two"} {
		a := openTest(t, name, io.Discard, testkit.QuietLogger())
		a.Record(testEvent(id))
		testkit.Must(t, a.Close())
		a.Record(testEvent("late"))
		if a.Failures() != 1 {
			t.Errorf("%d failures after an event that came after Close, want 1", a.Failures())
		}
	}
	data := testkit.Value(os.ReadFile(name))(t)
	if lines := strings.Split(string(data), "\n"); len(lines) != 3 || !strings.Contains(lines[0], `"one"`) || !strings.Contains(lines[1], `"two"`) {
		t.Errorf("file:\n%s", data)
	}
	info := testkit.Value(os.Stat(name))(t)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %o, want 600: the log names who pulls what", info.Mode().Perm())
	}
}

func TestAuditNamesAFileThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "missing", "audit.log")
	_, err := Open(name, io.Discard, testkit.QuietLogger())
	if !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(err.Error(), "audit.file: open "+name) {
		t.Errorf("error %v, want one that names the field and the file", err)
	}
}

// A full disk must neither fail the exchange nor fill the program's own log.
func TestAuditCountsFailuresAndReportsThemOnceAMinute(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		var log testkit.Buffer
		full := true
		var out bytes.Buffer
		a := openTest(t, "", writerFunc(func(p []byte) (int, error) {
			if full {
				return 0, errors.New("no space left on device")
			}
			return out.Write(p)
		}), slog.New(slog.NewTextHandler(&log, nil)))
		a.Record(testEvent("lost"))
		synctest.Wait()
		for range 99 {
			a.Record(testEvent("lost"))
		}
		synctest.Wait()
		if n := strings.Count(log.String(), "\n"); n != 1 || a.Failures() != 100 {
			t.Errorf("%d reports and %d failures for 100 lost events, want 1 and 100", n, a.Failures())
		}
		// A report that was delayed is logged later, without a further event.
		time.Sleep(reportInterval)
		synctest.Wait()
		if want := `level=ERROR msg="audit events are not written as they should be" to="standard output" lost=100 waiting=0 error="no space left on device"`; !strings.Contains(log.String(), want) {
			t.Errorf("log:\n%s\nwant a line with %s", log.String(), want)
		}
		full = false
		a.Record(testEvent("kept"))
		if n := strings.Count(log.String(), "\n"); n != 2 || a.Failures() != 100 || !strings.Contains(out.String(), "kept") {
			t.Errorf("%d reports, %d failures, output %q", n, a.Failures(), out.String())
		}
		// The end is no reason to be silent.
		full = true
		a.Record(testEvent("lost"))
		testkit.Must(t, a.Close())
		if n := strings.Count(log.String(), "\n"); n != 3 || !strings.Contains(log.String(), "lost=101") {
			t.Errorf("%d reports at the end:\n%s", n, log.String())
		}
	})
}

func TestAuditCountsWhatIsNotJSON(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	a := openTest(t, "", &out, testkit.QuietLogger())
	event := testEvent("1")
	event.Latency = math.NaN()
	a.Record(event)
	if a.Failures() != 1 || out.Len() != 0 {
		t.Errorf("%d failures, output %q", a.Failures(), out.String())
	}
}

// Terminals obey more than what JSON escapes.
func TestAuditLinesAreASCII(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	a := openTest(t, "", &out, testkit.QuietLogger())
	event := testEvent("1")
	event.Client = "\u009b2J\u202e\x7f\U0001f600\xff~é"
	a.Record(event)
	line := out.String()
	if strings.ContainsFunc(line, func(r rune) bool { return r > '~' }) {
		t.Errorf("line %q", line)
	}
	var got exchange.Event
	if err := json.Unmarshal([]byte(line), &got); err != nil || got.Client != strings.ToValidUTF8(event.Client, "\ufffd") {
		t.Errorf("client %q, %v; want %q", got.Client, err, event.Client)
	}
}

func BenchmarkAudit(b *testing.B) {
	for _, output := range []struct{ name, file string }{{"discard", ""}, {"file", filepath.Join(b.TempDir(), "audit.log")}} {
		b.Run("output="+output.name, func(b *testing.B) {
			a := openTest(b, output.file, io.Discard, testkit.QuietLogger())
			event := testEvent("1")
			b.ReportAllocs()
			for b.Loop() {
				a.Record(event)
			}
		})
	}
}
