package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
)

// auditComplaintEvery bounds how often a failing audit log is reported.
const auditComplaintEvery = time.Minute

// maxAuditBuffer is the largest buffer that is kept for the next line, in bytes.
const maxAuditBuffer = 64 << 10

// auditLog writes each event as one line of JSON, in one Write, so that lines
// stay whole where other processes write to the same file. It is safe for
// concurrent use. A line that cannot be written does not fail the exchange; it
// is counted and reported.
type auditLog struct {
	name     string
	logger   *slog.Logger
	file     *os.File  // nil: standard output, not ours to close
	buffers  sync.Pool // of *bytes.Buffer
	failures atomic.Uint64

	mu         sync.Mutex // of what follows
	out        io.Writer
	torn       bool // the last line was written in part
	complained time.Time
}

var _ exchange.Recorder = (*auditLog)(nil)

// openAudit appends to the file, which is made (mode 0600) if it is not there,
// or writes to stdout when no file is named. Close it at the end.
func openAudit(file string, stdout io.Writer, logger *slog.Logger) (*auditLog, error) {
	a := &auditLog{name: "standard output", logger: logger, out: stdout}
	if file != "" {
		f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, fmt.Errorf("audit.file: %w", err)
		}
		a.name, a.out, a.file = file, f, f
	}
	return a, nil
}

// Record writes one event.
func (a *auditLog) Record(event *exchange.Event) {
	buffer, ok := a.buffers.Get().(*bytes.Buffer)
	if !ok {
		buffer = new(bytes.Buffer)
	}
	defer func() {
		if buffer.Cap() <= maxAuditBuffer {
			a.buffers.Put(buffer)
		}
	}()
	buffer.Reset()
	encoder := json.NewEncoder(buffer)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(event) // ends with a newline

	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		err = a.write(buffer.Bytes())
	}
	if err != nil {
		a.complain(err)
	}
}

func (a *auditLog) write(line []byte) error {
	if a.torn {
		// End the torn line first, or this one would be lost with it.
		line = append([]byte{'\n'}, line...)
	}
	n, err := a.out.Write(line)
	if n == len(line) {
		a.torn = false
	} else if n > 0 {
		a.torn = true
	}
	return err
}

// complain needs mu.
func (a *auditLog) complain(err error) {
	failures := a.failures.Add(1)
	if now := time.Now(); a.complained.IsZero() || now.Sub(a.complained) >= auditComplaintEvery {
		a.complained = now
		a.logger.Error("an audit event was not written", "to", a.name, "failures", failures, "error", err)
	}
}

// Failures returns how many events were not written since the start.
func (a *auditLog) Failures() uint64 { return a.failures.Load() }

// Close closes the file, with everything on the disk. Events that come later
// are counted as failures.
func (a *auditLog) Close() error {
	if a.file == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var err error
	if info, statErr := a.file.Stat(); statErr == nil && info.Mode().IsRegular() { // pipes and terminals cannot be synced
		err = a.file.Sync()
	}
	if err := errors.Join(err, a.file.Close()); err != nil {
		return fmt.Errorf("audit.file: %w", err)
	}
	return nil
}
