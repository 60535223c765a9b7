package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// valve is an output that can stall.
type valve struct {
	open chan struct{} // closed: it lets everything through
	out  bytes.Buffer
}

func (v *valve) Write(p []byte) (int, error) {
	<-v.open
	return v.out.Write(p)
}

// A log collector that stops reading delays each answer for a bounded time, and
// loses nothing.
func TestAuditThatStallsHangsNoAnswer(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		var log testkit.Buffer
		v := &valve{open: make(chan struct{})}
		a := openTest(t, "", v, slog.New(slog.NewTextHandler(&log, nil)))
		for i := range 3 {
			begin := time.Now()
			a.Record(testEvent(fmt.Sprint(i)))
			if took := time.Since(begin); took != maxWait {
				t.Errorf("an answer waited %s for its line, want %s", took, maxWait)
			}
			synctest.Wait()
		}
		if !strings.Contains(log.String(), `waiting=1 error="`+errSlow.Error()+`"`) || a.Failures() != 0 {
			t.Errorf("%d failures, log:\n%s", a.Failures(), &log)
		}
		close(v.open)
		begin := time.Now()
		a.Record(testEvent("after"))
		if took := time.Since(begin); took != 0 {
			t.Errorf("an answer waited %s though the output works again", took)
		}
		testkit.Must(t, a.Close())
		if got := proxytest.EventIDs(t, v.out.Bytes()); strings.Join(got, " ") != "0 1 2 after" || a.Failures() != 0 {
			t.Errorf("events %q, %d failures", got, a.Failures())
		}
	})
}

// Lines that arrived during a slow write are written together, up to the size that a pipe keeps
// together.
func TestAuditWritesTogetherWhatWaits(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		gate := make(chan struct{})
		var writes []string
		a := openTest(t, "", writerFunc(func(p []byte) (int, error) {
			<-gate
			writes = append(writes, string(p))
			return len(p), nil
		}), testkit.QuietLogger())
		record := func(ids ...string) {
			for _, id := range ids {
				go a.Record(testEvent(id))
				synctest.Wait()
			}
		}
		long := strings.Repeat("x", pipeBuffer)
		record("first", "a", "b", long, "c", "d")
		close(gate)
		synctest.Wait()
		record("last")
		testkit.Must(t, a.Close())
		var got []string
		for _, text := range writes {
			got = append(got, strings.Join(proxytest.EventIDs(t, []byte(text)), " "))
		}
		if want := []string{"first", "a b", long, "c d", "last"}; !slices.Equal(got, want) {
			t.Errorf("written as %q", got)
		}
	})
}

// Of lines that are written together, those that are whole are not lost, nor are those
// after the one that is not.
func TestAuditWritesTheRestAfterATornLine(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		v := &valve{open: make(chan struct{})}
		tear := -1 // how much of a Write fits
		a := openTest(t, "", writerFunc(func(p []byte) (int, error) {
			if n := tear; n >= 0 {
				tear = -1
				_, _ = v.Write(p[:n])
				return n, errors.New("no space left on device")
			}
			return v.Write(p)
		}), testkit.QuietLogger())
		together := func(ids ...string) {
			for _, id := range ids {
				go a.Record(testEvent(id))
				synctest.Wait()
			}
		}
		size := len(encoded(t, testEvent("1")))
		for _, test := range []struct {
			fits   int
			events string
			lost   uint64
		}{
			{0, "0 2 3", 1},
			{10, "0 2 3", 1},
			{size, "0 1 3", 1},
			{size + 10, "0 1 3", 1},
			{3*size - 1, "0 1 2 3", 1}, // only its line break is missing, and comes with the next line
		} {
			before := a.Failures()
			v.open, v.out = make(chan struct{}), bytes.Buffer{}
			together("0", "1", "2", "3")
			tear = test.fits
			close(v.open)
			synctest.Wait()
			// The torn line is on its own line and is not an event.
			var whole []byte
			for line := range bytes.Lines(v.out.Bytes()) {
				if json.Valid(line) {
					whole = append(whole, line...)
				}
			}
			if got := strings.Join(proxytest.EventIDs(t, whole), " "); got != test.events || a.Failures()-before != test.lost {
				t.Errorf("%d bytes fit: events %q, %d lost; want %q, %d", test.fits, got, a.Failures()-before, test.events, test.lost)
			}
			together("between") // ends what is torn
		}
		testkit.Must(t, a.Close())
	})
}

// The line break that ends a torn line is none of the next line's bytes.
func TestAuditTearsTwice(t *testing.T) {
	t.Parallel()
	line := &pendingLine{text: []byte("{}\n")}
	o := &output{torn: true, out: writerFunc(func([]byte) (int, error) { return len(line.text), io.ErrShortWrite })}
	if written, err := o.write([]*pendingLine{line, line}); written != 0 || err == nil || !o.torn {
		t.Errorf("%d lines written, torn %t, %v", written, o.torn, err)
	}
}

func encoded(t *testing.T, event *exchange.Event) []byte {
	t.Helper()
	line := &pendingLine{}
	line.encoder = json.NewEncoder(&line.buffer)
	line.encoder.SetEscapeHTML(false)
	testkit.Must(t, line.encode(event))
	return line.text
}

// While nothing can be written, memory stays bounded, and each event is either
// kept or counted.
func TestAuditThatStallsIsBounded(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		const events, size = 20, 1 << 20
		var log testkit.Buffer
		v := &valve{open: make(chan struct{})}
		a := openTest(t, "", v, slog.New(slog.NewTextHandler(&log, nil)))
		var group sync.WaitGroup
		for range events {
			group.Go(func() { a.Record(testEvent(strings.Repeat("x", size))) })
		}
		group.Wait()
		lost := a.Failures()
		if kept := events - lost; kept == 0 || kept*size > MaxPending {
			t.Errorf("%d events of %d bytes were kept, and there is room for %d bytes", kept, size, MaxPending)
		}
		time.Sleep(reportInterval)
		synctest.Wait()
		if !strings.Contains(log.String(), fmt.Sprintf("lost=%d waiting=%d", lost, events-lost)) {
			t.Errorf("log:\n%s", &log)
		}
		close(v.open)
		testkit.Must(t, a.Close())
		if n := bytes.Count(v.out.Bytes(), []byte("\n")); n+int(lost) != events || a.Failures() != lost {
			t.Errorf("%d lines and %d losses of %d events; %d losses later", n, lost, events, a.Failures())
		}
	})
}

// Lines that could not be written at the end are reported.
func TestAuditCloseHasADeadline(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		v := &valve{open: make(chan struct{})}
		a := openTest(t, "", v, testkit.QuietLogger())
		a.Record(testEvent("1"))
		a.Record(testEvent("2"))
		begin := time.Now()
		err := a.Close()
		if err == nil || err.Error() != "the audit log (standard output) did not end in 5s: 2 events were not written" || time.Since(begin) != flushTimeout {
			t.Errorf("after %s: %v", time.Since(begin), err)
		}
		if a.Failures() != 2 {
			t.Errorf("%d failures, want 2", a.Failures())
		}
		a.Record(testEvent("3"))
		if a.Failures() != 3 {
			t.Errorf("%d failures after an event that came after Close, want 3", a.Failures())
		}
		close(v.open) // or the writer would outlive the test
	})
}

// Standard error is often the same pipe as standard output.
func TestAuditThatStallsTogetherWithTheLogHangsNoAnswer(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		out, log := &valve{open: make(chan struct{})}, &valve{open: make(chan struct{})}
		a := openTest(t, "", out, slog.New(slog.NewTextHandler(log, nil)))
		begin := time.Now()
		for range 5 {
			a.Record(testEvent("1"))
		}
		if took := time.Since(begin); took != 5*maxWait {
			t.Errorf("5 answers waited %s", took)
		}
		close(out.open)
		close(log.open)
		testkit.Must(t, a.Close())
	})
}

// Under load, the file is moved away again and again; all lines are there, once
// and whole.
func TestAuditRotation(t *testing.T) {
	t.Parallel()
	const writers, rotations = 4, 20
	for name, reopen := range map[string]bool{"asked for": true, "noticed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "audit.log")
			a := openTest(t, file, io.Discard, testkit.QuietLogger())
			ctx, cancel := context.WithCancel(t.Context())
			var group sync.WaitGroup
			recorded := make([]int, writers)
			for w := range writers {
				group.Go(func() {
					for ctx.Err() == nil {
						a.Record(testEvent(fmt.Sprintf("%d-%d", w, recorded[w])))
						recorded[w]++
					}
				})
			}
			turns := rotations
			if !reopen {
				turns = 2 // each takes up to followInterval
			}
			for i := range turns {
				testkit.Must(t, os.Rename(file, fmt.Sprintf("%s.%d", file, i)))
				switch {
				case reopen:
					a.Reopen()
				case i > 0: // as logrotate does with "create"
					testkit.Must(t, os.WriteFile(file, nil, 0o600))
				}
				testkit.Eventually(t, "lines go into a new file", func() bool {
					info, err := os.Stat(file)
					return err == nil && info.Size() > 0
				})
			}
			cancel()
			group.Wait()
			testkit.Must(t, a.Close())

			var all []string
			names := testkit.Value(filepath.Glob(file + "*"))(t)
			if len(names) != turns+1 {
				t.Errorf("files %q", names)
			}
			for _, name := range names {
				data := testkit.Value(os.ReadFile(name))(t)
				all = append(all, proxytest.EventIDs(t, data)...)
			}
			seen := map[string]int{}
			for _, id := range all {
				seen[id]++
			}
			total := 0
			for w, n := range recorded {
				total += n
				for i := range n {
					if id := fmt.Sprintf("%d-%d", w, i); seen[id] != 1 {
						t.Fatalf("event %s was written %d times", id, seen[id])
					}
				}
			}
			if len(all) != total || a.Failures() != 0 {
				t.Errorf("%d lines and %d failures for %d events", len(all), a.Failures(), total)
			}
		})
	}
}

// A directory that cannot be written to must not lose what the open file takes.
func TestAuditKeepsTheFileWhenThereIsNoNewOne(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "log")
	testkit.Mkdir(t, dir)
	var log testkit.Buffer
	file := filepath.Join(dir, "audit.log")
	a := openTest(t, file, io.Discard, slog.New(slog.NewTextHandler(&log, nil)))
	a.Record(testEvent("1"))
	testkit.Must(t, os.Rename(dir, dir+".moved"))
	a.Reopen()
	testkit.Eventually(t, "it is reported", func() bool { return strings.Contains(log.String(), "audit.file: open "+file) })
	a.Record(testEvent("2"))
	testkit.Must(t, a.Close())
	data := testkit.Value(os.ReadFile(filepath.Join(dir+".moved", "audit.log")))(t)
	if got := proxytest.EventIDs(t, data); strings.Join(got, " ") != "1 2" || a.Failures() != 0 {
		t.Errorf("events %q, %d failures", got, a.Failures())
	}
}

// A FIFO that nothing reads, in the place of the file, must not stop the log.
func TestAuditWaitsForNoReaderOfAFIFO(t *testing.T) {
	t.Parallel()
	var log testkit.Buffer
	file := filepath.Join(t.TempDir(), "audit.log")
	a := openTest(t, file, io.Discard, slog.New(slog.NewTextHandler(&log, nil)))
	a.Record(testEvent("1"))
	testkit.Must(t, os.Rename(file, file+".1"))
	testkit.Must(t, syscall.Mkfifo(file, 0o600))
	a.Reopen()
	testkit.Eventually(t, "it is reported", func() bool { return strings.Contains(log.String(), "audit.file: open "+file) })
	a.Record(testEvent("2"))
	testkit.Must(t, a.Close())
	data, err := os.ReadFile(file + ".1")
	testkit.Must(t, err)
	if got := proxytest.EventIDs(t, data); strings.Join(got, " ") != "1 2" || a.Failures() != 0 {
		t.Errorf("events %q, %d failures", got, a.Failures())
	}
}

// The line after one that a crash cut off must be whole.
func TestAuditEndsATornLineOfAnEarlierRun(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "audit.log")
	for before, want := range map[string]string{`{"id":"to`: "{\"id\":\"to\n{", "{}\n": "{}\n{", "": "{"} {
		testkit.Must(t, os.WriteFile(file, []byte(before), 0o600))
		a := openTest(t, file, io.Discard, testkit.QuietLogger())
		a.Record(testEvent("1"))
		testkit.Must(t, a.Close())
		data := testkit.Value(os.ReadFile(file))(t)
		if !strings.HasPrefix(string(data), want) || !json.Valid(data[len(want)-1:]) {
			t.Errorf("after %q the file is %q", before, data)
		}
	}
}
