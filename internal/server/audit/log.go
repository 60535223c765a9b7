package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/exchange"
)

const (
	// maxWait is how long a response waits for its line. Usually the line is written before the
	// response is sent. A stalled disk or log collector delays responses by at most this time.
	maxWait = time.Second

	// MaxPending is how many bytes of lines may wait in memory while the log cannot be written.
	// Lines beyond that are lost and counted.
	MaxPending = 16 << 20

	minWeight = 1 << 10 // minimum that a line counts towards MaxPending, in bytes
	maxBuffer = 4 << 10 // larger buffers are not kept for another line

	// maxTogether is the maximum number of short lines that are written at once.
	maxTogether = 16
	// pipeBuffer is how many bytes a write to a pipe keeps together while other processes write to
	// it (PIPE_BUF of Linux, pipe(7)).
	pipeBuffer = 4 << 10

	flushTimeout = 5 * time.Second

	// reportInterval bounds how often a failing audit log is reported.
	reportInterval = time.Minute
)

var (
	errClosed = errors.New("the audit log is closed")
	errFull   = errors.New("nothing can be written, and there is no more room for events that wait")
	errSlow   = errors.New("writing takes long; events wait in memory")
)

// Log writes each event as one line of JSON, in one Write, so that lines stay whole if other
// processes write to the same file. It is safe for concurrent use. A line that cannot be written
// does not fail the exchange. It is counted and reported.
//
// A write cannot be interrupted, so a separate goroutine writes. Another goroutine reports faults,
// because standard error may stall together with standard output.
type Log struct {
	out      *output // belongs to the writer
	logger   *slog.Logger
	lines    sync.Pool           // of *pendingLine
	room     *semaphore.Weighted // of waiting lines; a goroutine with room may send to queue
	queue    chan *pendingLine   // never full: room allows fewer lines
	reopen   chan struct{}
	trouble  chan error
	pending  atomic.Int64 // events that are neither written nor lost
	failures atomic.Uint64
	closed   atomic.Bool
	stop     chan struct{}
	ended    chan error
}

var _ exchange.Recorder = (*Log)(nil)

// pendingLine is one event that is not written yet.
type pendingLine struct {
	buffer  bytes.Buffer
	encoder *json.Encoder // to buffer
	text    []byte
	weight  int64
	done    chan struct{} // receives one value when the writer has finished the line
	waited  *time.Timer   // stopped, except while its request waits
}

// Open appends to the file, which it creates (mode 0600) if necessary. Without a file name, it
// writes to stdout. The caller must call Close at the end.
func Open(file string, stdout io.Writer, logger *slog.Logger) (*Log, error) {
	out, err := openOutput(file, stdout)
	if err != nil {
		return nil, err
	}
	a := &Log{
		out:     out,
		logger:  logger.With("to", out.String()),
		room:    semaphore.NewWeighted(MaxPending),
		queue:   make(chan *pendingLine, MaxPending/minWeight),
		reopen:  make(chan struct{}, 1),
		trouble: make(chan error, 1),
		stop:    make(chan struct{}),
		ended:   make(chan error, 1),
	}
	reported := make(chan struct{})
	go func() { defer close(reported); a.report() }()
	go func() { err := a.write(); <-reported; a.ended <- err }()
	return a, nil
}

// Record writes one event.
func (a *Log) Record(event *exchange.Event) {
	line, ok := a.lines.Get().(*pendingLine)
	if !ok {
		line = &pendingLine{done: make(chan struct{}, 1), waited: time.NewTimer(maxWait)}
		line.encoder = json.NewEncoder(&line.buffer)
		line.encoder.SetEscapeHTML(false)
	}
	if err := line.encode(event); err != nil {
		a.lose(err)
		return
	}
	a.pending.Add(1) // before the check for a closed log, because Close counts the remaining events
	if a.closed.Load() {
		a.pending.Add(-1)
		a.lose(errClosed)
		return
	}
	if !a.room.TryAcquire(line.weight) {
		a.recordLate(line)
		return
	}
	a.queue <- line
	line.waited.Reset(maxWait)
	select {
	case <-line.done:
		line.waited.Stop()
		if line.buffer.Cap() <= maxBuffer {
			a.lines.Put(line)
		}
	case <-line.waited.C: // from now on the line belongs to the writer
		a.complain(errSlow)
	}
}

// recordLate waits for room until the end of maxWait.
func (a *Log) recordLate(line *pendingLine) {
	patience, cancel := context.WithTimeout(context.Background(), maxWait)
	defer cancel()
	if a.room.Acquire(patience, line.weight) != nil {
		a.pending.Add(-1)
		a.lose(errFull)
		return
	}
	a.queue <- line
}

func (l *pendingLine) encode(event *exchange.Event) error {
	l.buffer.Reset()
	if err := l.encoder.Encode(event); err != nil { // ends with a newline
		return err
	}
	l.text = term.ASCIIJSON(l.buffer.Bytes())
	l.weight = int64(max(minWeight, l.buffer.Cap(), len(l.text)))
	return nil
}

// write is the writer. It ends at stop and returns the error of closing the file.
func (a *Log) write() error {
	var lines []*pendingLine
	for {
		select {
		case line := <-a.queue:
			if err := a.out.follow(time.Now()); err != nil {
				a.complain(err)
			}
			lines = a.gather(append(lines[:0], line))
			for rest := lines; len(rest) > 0; {
				rest = rest[a.writeSome(rest):]
			}
		case <-a.reopen:
			if err := a.out.reopen(); err != nil {
				a.complain(err)
			}
		case <-a.stop:
			return a.out.close()
		}
	}
}

// gather adds waiting lines to a first line. Under load, it first lets other requests run, so that
// their lines are written together: a write costs more than all other work for a line.
func (a *Log) gather(lines []*pendingLine) []*pendingLine {
	runtime.Gosched()
	for len(lines) < maxTogether {
		select {
		case line := <-a.queue:
			lines = append(lines, line)
		default:
			return lines
		}
	}
	return lines
}

// writeSome writes the first of the lines, and further lines that fit into the same write to a
// pipe. It returns the number of finished lines. If a Write fails for some lines, only the first of
// them is finished: a later Write of the others may succeed.
func (a *Log) writeSome(lines []*pendingLine) int {
	n, size := 1, len(lines[0].text)
	for n < len(lines) && size+len(lines[n].text) <= pipeBuffer {
		size += len(lines[n].text)
		n++
	}
	written, err := a.out.write(lines[:n])
	if written < n {
		a.lose(err)
		n = written + 1
	}
	for _, line := range lines[:n] {
		a.room.Release(line.weight)
		a.pending.Add(-1)
		line.done <- struct{}{} // last, because the line may be used again at once
	}
	return n
}

// Reopen opens the file again by its name, for the rotation of logs. Pending lines go into the old
// or into the new file.
func (a *Log) Reopen() {
	select {
	case a.reopen <- struct{}{}:
	default: // a reopening is already due
	}
}

func (a *Log) lose(err error) {
	a.failures.Add(1)
	a.complain(err)
}

func (a *Log) complain(err error) {
	select {
	case a.trouble <- err:
	default: // a report is already due
	}
}

// report logs faults until stop, at most once in reportInterval.
func (a *Log) report() {
	say := func(err error) {
		a.logger.Error("audit events are not written as they should be", "lost", a.failures.Load(), "waiting", a.pending.Load(), "error", err)
	}
	for {
		select {
		case err := <-a.trouble:
			say(err)
		case <-a.stop:
			select {
			case err := <-a.trouble:
				say(err)
			default:
			}
			return
		}
		select {
		case <-time.After(reportInterval):
		case <-a.stop:
		}
	}
}

// Failures returns the number of events that were not written since the start.
func (a *Log) Failures() uint64 { return a.failures.Load() }

// Status is for metrics.
type Status struct {
	Failures uint64 // events that were not written since the start
	Waiting  int64  // events that are not written yet
}

// Status returns the state of the log.
func (a *Log) Status() Status {
	return Status{Failures: a.failures.Load(), Waiting: a.pending.Load()}
}

// Close writes the waiting lines and closes the file, after a sync to the disk. It gives up after
// flushTimeout. Lines that still wait then are lost. Later events count as failures. Close must be
// called once.
func (a *Log) Close() error {
	a.closed.Store(true)
	patience, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	// If all the room is acquired, no line waits and none can be added.
	flushed := a.room.Acquire(patience, MaxPending) == nil
	close(a.stop)
	if flushed {
		select {
		case err := <-a.ended:
			return err
		case <-patience.Done():
		}
	}
	lost := a.pending.Load()
	a.failures.Add(uint64(lost))
	return fmt.Errorf("the audit log (%s) did not end in %s: %d events were not written", a.out, flushTimeout, lost)
}
