// Package collector is an OpenTelemetry collector for tests: it takes traces by OTLP over HTTP and keeps them, and all bytes that
// came.
package collector

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	common "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/pullpass/pullpass/e2e/secrets"
)

// Collector is a running collector. Its methods may be called from several goroutines.
type Collector struct {
	// Environment makes a program send to it, and soon.
	Environment []string

	mu    sync.Mutex
	spans []Span
	raw   []byte
}

// Span is what the tests read of a span.
type Span struct {
	Service, Name     string
	Trace, ID, Parent string // in hex, as audit lines have them; Parent of a trace's first span is empty
}

// Start runs a collector until the test ends.
func Start(t testing.TB) *Collector {
	t.Helper()
	c, seen := &Collector{}, secrets.Seen("otlp")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		body, err := io.ReadAll(io.TeeReader(r.Body, seen))
		c.raw = append(c.raw, body...)
		// The body of a request to /v1/traces is a TracesData under another name.
		traces := &tracepb.TracesData{}
		switch {
		case err != nil || r.Header.Get("Content-Encoding") != "":
			t.Errorf("%s with the encoding %q: %v", r.URL.Path, r.Header.Get("Content-Encoding"), err)
			w.WriteHeader(http.StatusBadRequest)
		case r.URL.Path != "/v1/traces": // metrics
		case proto.Unmarshal(body, traces) != nil:
			t.Errorf("the request to %s has no traces", r.URL.Path)
			w.WriteHeader(http.StatusBadRequest)
		default:
			c.add(traces)
		}
	}))
	t.Cleanup(server.Close)
	c.Environment = []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + server.URL, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "OTEL_BSP_SCHEDULE_DELAY=100",
	}
	return c
}

func (c *Collector) add(traces *tracepb.TracesData) {
	for _, resource := range traces.ResourceSpans {
		service := ""
		if i := slices.IndexFunc(resource.GetResource().GetAttributes(), func(a *common.KeyValue) bool { return a.Key == "service.name" }); i >= 0 {
			service = resource.Resource.Attributes[i].Value.GetStringValue()
		}
		for _, scope := range resource.ScopeSpans {
			for _, s := range scope.Spans {
				c.spans = append(c.spans, Span{
					Service: service, Name: s.Name,
					Trace: hex.EncodeToString(s.TraceId), ID: hex.EncodeToString(s.SpanId), Parent: hex.EncodeToString(s.ParentSpanId),
				})
			}
		}
	}
}

// Trace returns the spans of a trace so far, by their ids.
func (c *Collector) Trace(id string) map[string]Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	spans := map[string]Span{}
	for _, s := range c.spans {
		if s.Trace == id {
			spans[s.ID] = s
		}
	}
	return spans
}

// Received returns all bytes that were sent so far.
func (c *Collector) Received() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.raw)
}
