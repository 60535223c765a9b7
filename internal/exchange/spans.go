package exchange

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// The steps of a request, as its trace names them.
const (
	stepVerify = "verify" // the credential
	stepKube   = "kube"   // do the objects that the credential names still exist
	stepState  = "state"  // replay and limit, which replicas share
	stepDecide = "decide" // by the policy
	stepIssue  = "issue"  // sign, or reuse a token that was signed before
)

const tracerName = "github.com/pullpass/pullpass/internal/exchange"

// begin starts the span of a step, as a child of the request's span. The tracing middleware puts
// the request's span into ctx. Without one, a step only costs the lookup.
func begin(ctx context.Context, step string) (context.Context, trace.Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, parent // a span that records nothing
	}
	return parent.TracerProvider().Tracer(tracerName).Start(ctx, step)
}

// end ends the span of a step. The text of the error is only for the audit log: spans are sent to
// other systems, and the text may quote the caller.
func end(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, "")
	}
	span.End()
}

// Describe records the outcome of a request in its span, and the id of its audit line. The values
// come from closed sets and from the configuration.
func (e *Event) Describe(span trace.Span) {
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(
		attribute.String("pullpass.request_id", e.ID),
		attribute.String("pullpass.result", string(e.Result)),
		attribute.String("pullpass.reason", e.Reason),
		attribute.String("pullpass.cluster", e.IssuerName()),
		attribute.String("pullpass.service", e.Service),
		attribute.String("pullpass.grant_type", e.GrantType),
		// Replaces the value from X-Forwarded-For, which any client can set.
		attribute.String("client.address", e.Caller),
	)
}
