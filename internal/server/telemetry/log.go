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

	"github.com/pullpass/pullpass/internal/base/term"
)

const (
	// reportInterval bounds how often a collector that is down is reported.
	reportInterval = time.Minute

	// maxReportBytes is enough for a cause. The response of a collector may be longer.
	maxReportBytes = 512
)

// errorLog receives the errors and messages of the OpenTelemetry SDK, which has one handler for the
// process. It is safe for concurrent use.
//
// Only errors and messages are logged, without the values that the SDK adds. One of these values is
// a header that it cannot read, including its credential.
type errorLog struct {
	logger   *slog.Logger
	failures atomic.Uint64

	mu     sync.Mutex
	faults *[]error // during the start; nil after it
	last   time.Time
}

var (
	_ otel.ErrorHandler = (*errorLog)(nil)
	_ logr.LogSink      = (*errorLog)(nil)
)

// starting makes l the SDK's handler, and returns all errors that occur in open: the SDK uses a
// default for a variable that it cannot read.
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

// Handle counts an error. It logs it unless an error was logged within reportInterval.
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
