package telemetry

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"

	"github.com/pullpass/pullpass/internal/term"
)

const (
	// reportInterval bounds how often a collector that is down is reported.
	reportInterval = time.Minute

	// maxReportBytes is enough for a cause. A collector may answer with more.
	maxReportBytes = 512
)

// errorLog takes what the OpenTelemetry SDK has to say, which it says to one
// place in the process. It is safe for concurrent use.
//
// Only errors and messages are passed on, without the values that the SDK puts
// beside them: one is the header that it cannot read, with the credential in it.
type errorLog struct {
	logger   *slog.Logger
	failures atomic.Uint64

	mu     sync.Mutex
	faults *[]error // of the start; nil: it is over
	last   time.Time
}

var (
	_ otel.ErrorHandler = (*errorLog)(nil)
	_ logr.LogSink      = (*errorLog)(nil)
)

// starting makes l that place, and returns all that goes wrong in open: the SDK
// goes on with a default where it cannot read a variable.
func (l *errorLog) starting(open func() error) error {
	var faults []error
	l.mu.Lock()
	l.faults = &faults
	l.mu.Unlock()
	otel.SetErrorHandler(l)
	otel.SetLogger(logr.New(l))
	err := open()
	l.mu.Lock()
	l.faults = nil
	l.mu.Unlock()
	return errors.Join(append(faults, err)...)
}

// Handle counts an error, and writes it to the log unless one was written a
// moment ago.
func (l *errorLog) Handle(err error) {
	if err == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.faults != nil {
		*l.faults = append(*l.faults, err)
		return
	}
	failures := l.failures.Add(1)
	if now := time.Now(); l.last.IsZero() || now.Sub(l.last) >= reportInterval {
		l.last = now
		l.logger.Warn("telemetry is not delivered", "failures", failures, "error", term.Abbreviate(err.Error(), maxReportBytes))
	}
}

// Init is part of logr.LogSink.
func (l *errorLog) Init(logr.RuntimeInfo) {}

// Enabled is part of logr.LogSink. The SDK's warnings have level 1.
func (l *errorLog) Enabled(level int) bool { return level <= 1 }

// Info is part of logr.LogSink.
func (l *errorLog) Info(_ int, message string, _ ...any) { l.Handle(errors.New(message)) }

// Error is part of logr.LogSink.
func (l *errorLog) Error(err error, message string, _ ...any) {
	l.Handle(fmt.Errorf("%s: %w", message, err))
}

// WithValues is part of logr.LogSink.
func (l *errorLog) WithValues(...any) logr.LogSink { return l }

// WithName is part of logr.LogSink.
func (l *errorLog) WithName(string) logr.LogSink { return l }
