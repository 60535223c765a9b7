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

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/term"
)

const (
	// maxWait is how long an answer waits for its line. Usually the line is
	// written before the answer leaves; a disk or a log collector that stalls
	// delays answers by this much and no more.
	maxWait = time.Second

	// MaxPending is how much may wait in memory while nothing can be written, in
	// bytes. Lines that find no room are lost, and counted.
	MaxPending = 16 << 20

	minWeight = 1 << 10 // bytes that a line takes up of the room at least
	maxBuffer = 4 << 10 // bytes of a buffer that is kept for another line

	// maxTogether is how many lines are written at once at most, if they are short.
	maxTogether = 16
	// pipeBuffer is how many bytes a pipe takes whole, whoever else writes to it
	// (PIPE_BUF of Linux, pipe(7)).
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

// Log writes each event as one line of JSON, whole in one Write, so that lines
// stay whole where other processes write to the same file. It is safe for
// concurrent use. A line that cannot be written does not fail the exchange; it
// is counted and reported.
//
// A write cannot be interrupted, so a goroutine of its own does it, and another
// one reports: standard error may stall together with standard output.
type Log struct {
	out      *output // belongs to the writer
	logger   *slog.Logger
	lines    sync.Pool           // of *pendingLine
	room     *semaphore.Weighted // of what waits; whoever has it may send to queue
	queue    chan *pendingLine   // never full: room is for less
	reopen   chan struct{}
	trouble  chan error
	pending  atomic.Int64 // events that are neither written nor lost
	failures atomic.Uint64
	closed   atomic.Bool
	stop     chan struct{}
	ended    chan error
}

var _ exchange.Recorder = (*Log)(nil)

// pendingLine is one event on its way.
type pendingLine struct {
	buffer  bytes.Buffer
	encoder *json.Encoder // to buffer
	text    []byte
	weight  int64
	done    chan struct{} // holds one value when the writer is done with it
	waited  *time.Timer   // stopped, but while its request waits
}

// Open appends to the file, which is made (mode 0600) if it is not there,
// or writes to stdout when no file is named. Close it at the end.
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
	a.pending.Add(1) // before the question whether the log is closed: Close counts what it leaves behind
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
	case <-line.waited.C: // the line is the writer's from now on
		a.complain(errSlow)
	}
}

// recordLate waits for room, and then no longer.
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

// write is the writer. It ends at stop, with what closing the file gave.
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

// gather adds those that wait to a first line. Under load, the requests that can run do so
// first, and have their lines written together: a write costs more than all the rest of a line.
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

// writeSome writes the first of the lines, and those that a pipe takes together with
// it. It returns how many are done with. Of those that one Write did not write whole, only the
// first is: another Write may succeed.
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
		line.done <- struct{}{} // last: it may be used again at once
	}
	return n
}

// Reopen opens the file anew under its name, for the rotation of logs. Lines
// that are on their way go into the old or into the new one.
func (a *Log) Reopen() {
	select {
	case a.reopen <- struct{}{}:
	default: // it is about to be done
	}
}

func (a *Log) lose(err error) {
	a.failures.Add(1)
	a.complain(err)
}

func (a *Log) complain(err error) {
	select {
	case a.trouble <- err:
	default: // one complaint waits already
	}
}

// report tells of trouble until stop, at most once in reportInterval.
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

// Failures returns how many events were not written since the start.
func (a *Log) Failures() uint64 { return a.failures.Load() }

// Status is for metrics.
type Status struct {
	Failures uint64 // events that were not written since the start
	Waiting  int64  // events that are not written yet
}

// Status says how the writing goes.
func (a *Log) Status() Status {
	return Status{Failures: a.failures.Load(), Waiting: a.pending.Load()}
}

// Close writes what waits and closes the file, with everything on the disk. It
// gives up after flushTimeout; what waits then is lost. Events that come
// later are counted as failures. Close must be called once.
func (a *Log) Close() error {
	a.closed.Store(true)
	patience, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	// Whoever has all the room knows that nothing waits, and that nothing will.
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
