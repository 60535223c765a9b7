package main

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
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log syncBuffer
		v := &valve{open: make(chan struct{})}
		a := openTestAudit(t, "", v, slog.New(slog.NewTextHandler(&log, nil)))
		for i := range 3 {
			begin := time.Now()
			a.Record(testEvent(fmt.Sprint(i)))
			if took := time.Since(begin); took != auditPatience {
				t.Errorf("an answer waited %s for its line, want %s", took, auditPatience)
			}
			synctest.Wait()
		}
		if !strings.Contains(log.String(), `waiting=1 error="`+errAuditSlow.Error()+`"`) || a.Failures() != 0 {
			t.Errorf("%d failures, log:\n%s", a.Failures(), &log)
		}
		close(v.open)
		begin := time.Now()
		a.Record(testEvent("after"))
		if took := time.Since(begin); took != 0 {
			t.Errorf("an answer waited %s though the output works again", took)
		}
		must(t, a.Close())
		if got := ids(t, v.out.Bytes()); strings.Join(got, " ") != "0 1 2 after" || a.Failures() != 0 {
			t.Errorf("events %q, %d failures", got, a.Failures())
		}
	})
}

// While nothing can be written, memory stays bounded, and each event is either
// kept or counted.
func TestAuditThatStallsIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const events, size = 20, 1 << 20
		var log syncBuffer
		v := &valve{open: make(chan struct{})}
		a := openTestAudit(t, "", v, slog.New(slog.NewTextHandler(&log, nil)))
		var group sync.WaitGroup
		for range events {
			group.Go(func() { a.Record(testEvent(strings.Repeat("x", size))) })
		}
		group.Wait()
		lost := a.Failures()
		if kept := events - lost; kept == 0 || kept*size > auditRoom {
			t.Errorf("%d events of %d bytes were kept, and there is room for %d bytes", kept, size, auditRoom)
		}
		time.Sleep(auditComplaintEvery)
		synctest.Wait()
		if !strings.Contains(log.String(), fmt.Sprintf("lost=%d waiting=%d", lost, events-lost)) {
			t.Errorf("log:\n%s", &log)
		}
		close(v.open)
		must(t, a.Close())
		if n := bytes.Count(v.out.Bytes(), []byte("\n")); n+int(lost) != events || a.Failures() != lost {
			t.Errorf("%d lines and %d losses of %d events; %d losses later", n, lost, events, a.Failures())
		}
	})
}

// What could not be written at the end is told.
func TestAuditCloseHasADeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := &valve{open: make(chan struct{})}
		a := openTestAudit(t, "", v, quietLogger())
		a.Record(testEvent("1"))
		a.Record(testEvent("2"))
		begin := time.Now()
		err := a.Close()
		if err == nil || err.Error() != "the audit log (standard output) did not end in 5s: 2 events were not written" || time.Since(begin) != auditFlushTimeout {
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		out, log := &valve{open: make(chan struct{})}, &valve{open: make(chan struct{})}
		a := openTestAudit(t, "", out, slog.New(slog.NewTextHandler(log, nil)))
		begin := time.Now()
		for range 5 {
			a.Record(testEvent("1"))
		}
		if took := time.Since(begin); took != 5*auditPatience {
			t.Errorf("5 answers waited %s", took)
		}
		close(out.open)
		close(log.open)
		must(t, a.Close())
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
			a := openTestAudit(t, file, io.Discard, quietLogger())
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
				turns = 2 // each takes up to auditLookEvery
			}
			for i := range turns {
				must(t, os.Rename(file, fmt.Sprintf("%s.%d", file, i)))
				switch {
				case reopen:
					a.Reopen()
				case i > 0: // as logrotate does with "create"
					must(t, os.WriteFile(file, nil, 0o600))
				}
				eventually(t, "lines go into a new file", func() bool {
					info, err := os.Stat(file)
					return err == nil && info.Size() > 0
				})
			}
			cancel()
			group.Wait()
			must(t, a.Close())

			var all []string
			names, err := filepath.Glob(file + "*")
			must(t, err)
			if len(names) != turns+1 {
				t.Errorf("files %q", names)
			}
			for _, name := range names {
				data, err := os.ReadFile(name)
				must(t, err)
				all = append(all, ids(t, data)...)
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
	mkdir(t, dir)
	var log syncBuffer
	file := filepath.Join(dir, "audit.log")
	a := openTestAudit(t, file, io.Discard, slog.New(slog.NewTextHandler(&log, nil)))
	a.Record(testEvent("1"))
	must(t, os.Rename(dir, dir+".moved"))
	a.Reopen()
	eventually(t, "it is reported", func() bool { return strings.Contains(log.String(), "audit.file: open "+file) })
	a.Record(testEvent("2"))
	must(t, a.Close())
	data, err := os.ReadFile(filepath.Join(dir+".moved", "audit.log"))
	must(t, err)
	if got := ids(t, data); strings.Join(got, " ") != "1 2" || a.Failures() != 0 {
		t.Errorf("events %q, %d failures", got, a.Failures())
	}
}

// The line after one that a crash cut off must be whole.
func TestAuditEndsATornLineOfAnEarlierRun(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "audit.log")
	for before, want := range map[string]string{`{"id":"to`: "{\"id\":\"to\n{", "{}\n": "{}\n{", "": "{"} {
		must(t, os.WriteFile(file, []byte(before), 0o600))
		a := openTestAudit(t, file, io.Discard, quietLogger())
		a.Record(testEvent("1"))
		must(t, a.Close())
		data, err := os.ReadFile(file)
		must(t, err)
		if !strings.HasPrefix(string(data), want) || !json.Valid(data[len(want)-1:]) {
			t.Errorf("after %q the file is %q", before, data)
		}
	}
}

// The signal reaches the file, and ends nothing.
func TestServeReopensTheAuditFileAtSIGHUP(t *testing.T) {
	t.Parallel()
	p := startServiceWith(t, "audit: {file: audit.log}", nil)
	file := filepath.Join(p.dir, "audit.log")
	p.status(t, "no token")
	must(t, os.Rename(file, file+".1"))
	must(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	eventually(t, "there is a new file", func() bool {
		_, err := os.Stat(file)
		return err == nil
	})
	p.status(t, "no token")
	must(t, p.stop())
	for _, name := range []string{file, file + ".1"} {
		data, err := os.ReadFile(name)
		must(t, err)
		if got := ids(t, data); len(got) != 1 {
			t.Errorf("%s has %d lines, want 1", name, len(got))
		}
	}
	if p.stdout.String() != "" {
		t.Errorf("standard output: %s", p.stdout)
	}
}

// ids returns the ids of the events in lines that must be whole.
func ids(t *testing.T, lines []byte) []string {
	t.Helper()
	checkAuditLines(t, lines)
	var all []string
	for decoder := json.NewDecoder(bytes.NewReader(lines)); ; {
		var event exchange.Event
		err := decoder.Decode(&event)
		if errors.Is(err, io.EOF) {
			return all
		}
		must(t, err)
		all = append(all, event.ID)
	}
}
