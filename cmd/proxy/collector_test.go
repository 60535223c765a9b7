package main

import (
	"context"
	"encoding/hex"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	collectormetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// collector receives OTLP as a collector does, with the services that
// OpenTelemetry publishes for that.
type collector struct {
	endpoint string

	mu      sync.Mutex
	spans   []*tracepb.Span
	metrics map[string]*metricspb.Metric // as last received
	about   map[string]string            // the resource
	raw     []byte                       // all that came
}

func newCollector() *collector { return &collector{metrics: map[string]*metricspb.Metric{}} }

type traceService struct {
	collectortrace.UnimplementedTraceServiceServer
	*collector
}

type metricsService struct {
	collectormetrics.UnimplementedMetricsServiceServer
	*collector
}

func (s traceService) Export(_ context.Context, r *collectortrace.ExportTraceServiceRequest) (*collectortrace.ExportTraceServiceResponse, error) {
	s.traces(r)
	return &collectortrace.ExportTraceServiceResponse{}, nil
}

func (s metricsService) Export(_ context.Context, r *collectormetrics.ExportMetricsServiceRequest) (*collectormetrics.ExportMetricsServiceResponse, error) {
	s.gauges(r)
	return &collectormetrics.ExportMetricsServiceResponse{}, nil
}

func (c *collector) traces(r *collectortrace.ExportTraceServiceRequest) {
	raw, _ := proto.Marshal(r)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw = append(c.raw, raw...)
	for _, resource := range r.ResourceSpans {
		c.about = attributes(resource.Resource.Attributes)
		for _, scope := range resource.ScopeSpans {
			c.spans = append(c.spans, scope.Spans...)
		}
	}
}

func (c *collector) gauges(r *collectormetrics.ExportMetricsServiceRequest) {
	raw, _ := proto.Marshal(r)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw = append(c.raw, raw...)
	for _, resource := range r.ResourceMetrics {
		for _, scope := range resource.ScopeMetrics {
			for _, metric := range scope.Metrics {
				c.metrics[metric.Name] = metric
			}
		}
	}
}

func startGRPCCollector(t *testing.T) *collector {
	t.Helper()
	c := newCollector()
	listener := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	server := grpc.NewServer()
	collectortrace.RegisterTraceServiceServer(server, traceService{collector: c})
	collectormetrics.RegisterMetricsServiceServer(server, metricsService{collector: c})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	c.endpoint = "http://" + listener.Addr().String()
	return c
}

func startHTTPCollector(t *testing.T) *collector {
	t.Helper()
	c := newCollector()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		traces, metrics := &collectortrace.ExportTraceServiceRequest{}, &collectormetrics.ExportMetricsServiceRequest{}
		switch {
		case err != nil || r.Header.Get("Content-Type") != "application/x-protobuf":
			w.WriteHeader(http.StatusBadRequest)
		case r.URL.Path == "/v1/traces" && proto.Unmarshal(body, traces) == nil:
			c.traces(traces)
		case r.URL.Path == "/v1/metrics" && proto.Unmarshal(body, metrics) == nil:
			c.gauges(metrics)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(server.Close)
	c.endpoint = server.URL
	return c
}

// trace returns the spans of a trace by their names.
func (c *collector) trace(id string) map[string]*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	spans := map[string]*tracepb.Span{}
	for _, s := range c.spans {
		if hex.EncodeToString(s.TraceId) == id {
			spans[s.Name] = s
		}
	}
	return spans
}

func (c *collector) metric(name string) *metricspb.Metric {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.metrics[name]
}

// expectNothingOf fails if a piece of one of the secrets came.
func (c *collector) expectNothingOf(t *testing.T, secrets ...string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	testkit.ExpectNoPiece(t, "the collector", string(c.raw), secrets...)
}

func attributes(pairs []*common.KeyValue) map[string]string {
	all := map[string]string{}
	for _, pair := range pairs {
		all[pair.Key] = pair.Value.GetStringValue()
	}
	return all
}

func spanNames(spans map[string]*tracepb.Span) string {
	return strings.Join(slices.Sorted(maps.Keys(spans)), ", ")
}
