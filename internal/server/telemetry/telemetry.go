package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/pullpass/pullpass/internal/base/redact"
	"github.com/pullpass/pullpass/internal/base/term"
)

const (
	// flushTimeout is how long the end of the process waits for a collector.
	flushTimeout = 3 * time.Second

	// maxAttributeBytes bounds a caller's value in a span, a User-Agent for example, unless the
	// environment sets a bound.
	maxAttributeBytes = 1 << 10

	maxBatchNumber = 1_000_000 // of spans and of milliseconds
)

// Telemetry sends traces and metrics to an OpenTelemetry collector, if the environment names one.
// The data waits in bounded queues, so requests never wait for a collector.
//
// The OTEL_* variables are those of the specification. The only exporters are otlp and none:
// "console" would write into the audit log, and metrics are always served to Prometheus.
type Telemetry struct {
	traces  *sdktrace.TracerProvider // nil: none are sent
	metrics *sdkmetric.MeterProvider // nil: none are sent
	said    *errorLog
}

// Config configures Telemetry. Every field must be set.
type Config struct {
	Version string                  // of the program
	Getenv  func(key string) string // os.Getenv; the SDK also reads the environment itself
	Metrics prometheus.Gatherer
	Logger  *slog.Logger
}

// Open does not connect yet. Invalid variables are errors, except those that the SDK ignores without
// a word. If there is data to send, it sets the SDK's global state of the process.
func Open(c Config) (*Telemetry, error) {
	traces, tracesErr := otlpSignal("TRACES", c.Getenv)
	meters, metersErr := otlpSignal("METRICS", c.Getenv)
	if traces != "" {
		tracesErr = checkBatches(c.Getenv)
	}
	if err := errors.Join(tracesErr, metersErr); err != nil {
		return nil, err
	}
	t := &Telemetry{said: &errorLog{logger: c.Logger}}
	if traces == "" && meters == "" {
		return t, nil
	}
	err := t.said.starting(func() error { return t.open(c.Version, traces, meters, c.Metrics) })
	if err != nil {
		return nil, fmt.Errorf("telemetry: OTEL_* variables of the environment: %w", err)
	}
	return t, nil
}

// checkBatches refuses what the SDK replaces by a default without a word, or panics for.
func checkBatches(getenv func(string) string) error {
	for _, name := range []string{"SCHEDULE_DELAY", "EXPORT_TIMEOUT", "MAX_QUEUE_SIZE", "MAX_EXPORT_BATCH_SIZE"} {
		value := getenv("OTEL_BSP_" + name)
		if n, err := strconv.Atoi(value); value != "" && (err != nil || n < 1 || n > maxBatchNumber) {
			return fmt.Errorf("telemetry: OTEL_BSP_%s is %s; write a number from 1 to %d", name, term.QuoteValue(value), maxBatchNumber)
		}
	}
	return nil
}

// otlpSignal returns the protocol by which a signal is sent, or "" if it is not.
func otlpSignal(signal string, getenv func(string) string) (protocol string, err error) {
	if getenv("OTEL_SDK_DISABLED") == "true" {
		return "", nil
	}
	named := false
	for _, variable := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_" + signal + "_ENDPOINT"} {
		endpoint := getenv(variable)
		if endpoint == "" {
			continue
		}
		named = true
		// The message omits the value, because it may contain a password.
		if u, err := url.Parse(endpoint); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
			return "", fmt.Errorf("telemetry: %s is not a URL such as http://collector:4318 (credentials go into OTEL_EXPORTER_OTLP_HEADERS)", variable)
		}
	}
	variable := "OTEL_" + signal + "_EXPORTER"
	switch exporter := getenv(variable); {
	case exporter == "none", exporter == "" && !named:
		return "", nil
	case exporter != "" && exporter != "otlp":
		return "", fmt.Errorf("telemetry: %s is %s; there are otlp and none", variable, term.QuoteValue(exporter))
	}
	for _, variable := range []string{"OTEL_EXPORTER_OTLP_" + signal + "_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		switch protocol := getenv(variable); protocol {
		case "":
		case ProtocolGRPC, ProtocolHTTP:
			return protocol, nil
		default:
			return "", fmt.Errorf("telemetry: %s is %s; there are %s and %s", variable, term.QuoteValue(protocol), ProtocolGRPC, ProtocolHTTP)
		}
	}
	return ProtocolHTTP, nil
}

const (
	ProtocolGRPC = "grpc"
	ProtocolHTTP = "http/protobuf" // the default of the specification
)

func (t *Telemetry) open(version, traces, meters string, metrics prometheus.Gatherer) error {
	ctx := context.Background()
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(), resource.WithService(), resource.WithAttributes(
		attribute.String("service.name", "pullpass"), attribute.String("service.version", version),
	), resource.WithFromEnv())
	if err != nil {
		return err
	}
	if traces != "" {
		var exporter sdktrace.SpanExporter
		if traces == ProtocolGRPC {
			exporter, err = otlptracegrpc.New(ctx)
		} else {
			exporter, err = otlptracehttp.New(ctx, otlptracehttp.WithProxy(proxy))
		}
		if err != nil {
			return err
		}
		t.traces = newTracerProvider(sdktrace.NewBatchSpanProcessor(exporter), about)
	}
	if meters != "" {
		var exporter sdkmetric.Exporter
		if meters == ProtocolGRPC {
			exporter, err = otlpmetricgrpc.New(ctx)
		} else {
			exporter, err = otlpmetrichttp.New(ctx, otlpmetrichttp.WithProxy(proxy))
		}
		if err != nil {
			return err
		}
		producer := bridge.NewMetricProducer(bridge.WithGatherer(metrics))
		t.metrics = sdkmetric.NewMeterProvider(sdkmetric.WithResource(about),
			sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter, sdkmetric.WithProducer(producer))))
	}
	return nil
}

var errRedirect = errors.New("it redirects; name the collector itself")

// proxy is http.ProxyFromEnvironment. It refuses redirects: net/http would send the headers of
// OTEL_EXPORTER_OTLP_HEADERS to another host. A client of our own could refuse them, too, but the
// exporters would then ignore the environment's certificates and timeout.
func proxy(r *http.Request) (*url.URL, error) {
	if r.Response != nil {
		return nil, errRedirect
	}
	return http.ProxyFromEnvironment(r)
}

// newTracerProvider samples according to OTEL_TRACES_SAMPLER.
func newTracerProvider(to sdktrace.SpanProcessor, about *resource.Resource) *sdktrace.TracerProvider {
	limits := sdktrace.NewSpanLimits()
	if limits.AttributeValueLengthLimit < 0 {
		limits.AttributeValueLengthLimit = maxAttributeBytes
	}
	return sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(to), sdktrace.WithResource(about), sdktrace.WithRawSpanLimits(limits),
		// The value of a panic may contain anything, also a token.
		sdktrace.WithoutPanicRecording())
}

// Handler returns a handler that traces requests, each as part of the trace that its caller names
// (W3C Trace Context). Baggage is ignored: it is not needed here, and any client could send it.
func (t *Telemetry) Handler(next http.Handler) http.Handler {
	if t.traces == nil {
		return next
	}
	traced := otelhttp.NewHandler(next, "",
		otelhttp.WithTracerProvider(t.traces),
		otelhttp.WithPropagators(propagation.TraceContext{}),
		otelhttp.WithMeterProvider(noop.NewMeterProvider()), // Pullpass counts requests by result itself
	)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { traced.ServeHTTP(w, withoutOpaqueState(r)) })
}

// withoutOpaqueState removes a trace state that may contain a piece of a credential from the
// request. A span has the trace state from its beginning and cannot change it. Other texts of the
// caller are redacted when the credential is known. W3C Trace Context allows dropping the trace
// state.
func withoutOpaqueState(r *http.Request) *http.Request {
	const field = "Tracestate"
	if !slices.ContainsFunc(r.Header.Values(field), redact.Opaque) {
		return r
	}
	clean := r.WithContext(r.Context())
	clean.Header = r.Header.Clone()
	clean.Header.Del(field)
	return clean
}

// Failures returns a function that counts failed transmissions, or nil if nothing is sent.
func (t *Telemetry) Failures() func() uint64 {
	if t.traces == nil && t.metrics == nil {
		return nil
	}
	return t.said.failures.Load
}

// Close sends the waiting data, for at most flushTimeout.
func (t *Telemetry) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	var both sync.WaitGroup
	if t.traces != nil {
		both.Go(func() { t.said.Handle(t.traces.Shutdown(ctx)) })
	}
	if t.metrics != nil {
		both.Go(func() { t.said.Handle(t.metrics.Shutdown(ctx)) })
	}
	both.Wait()
}
