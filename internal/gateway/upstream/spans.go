package upstream

import (
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

const tracerName = "github.com/pullpass/pullpass/internal/gateway/upstream"

// The destinations of requests, as their traces name them.
const (
	spanRegistry = "ask upstream"
	spanTokens   = "ask upstream for a token"
	spanStorage  = "ask storage of upstream"
)

// traced makes one round trip, with a span below that of the client's request. The span does not
// hold the URL, which may be signed. The audit log holds the purpose. The trace is not propagated
// to the upstream, which belongs to a different operator.
func (c *Client) traced(name string, transport http.RoundTripper, r *http.Request) (*http.Response, error) {
	parent := trace.SpanFromContext(r.Context())
	if !parent.IsRecording() {
		return transport.RoundTrip(r)
	}
	_, span := parent.TracerProvider().Tracer(tracerName).Start(r.Context(), name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("pullpass.upstream", c.name), attribute.String("http.request.method", r.Method),
	))
	defer span.End()
	response, err := transport.RoundTrip(r)
	if err != nil {
		span.SetStatus(codes.Error, "")
		return nil, err
	}
	span.SetAttributes(attribute.Int("http.response.status_code", response.StatusCode))
	if response.StatusCode >= http.StatusInternalServerError { // 401 and 404 are normal for registries
		span.SetStatus(codes.Error, "")
	}
	return response, nil
}
