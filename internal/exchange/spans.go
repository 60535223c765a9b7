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
	stepKube   = "kube"   // are the objects that it names still there
	stepState  = "state"  // replay and limit, which replicas share
	stepDecide = "decide" // by the policy
	stepIssue  = "issue"  // sign, or find what was signed before
)

const tracerName = "github.com/pullpass/pullpass/internal/exchange"

// begin starts the span of a step below that of the request. Whoever traces
// requests has put that into ctx; where nobody does, looking for it is all that
// a step costs.
func begin(ctx context.Context, step string) (context.Context, trace.Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, parent // which ignores all that is done to it
	}
	return parent.TracerProvider().Tracer(tracerName).Start(ctx, step)
}

// end ends the span of a step. What the error says is for the audit log: a span
// goes to others, and the text may quote the caller.
func end(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, "")
	}
	span.End()
}

// Describe tells the span of a request what became of it, in words from closed
// sets and from the configuration, and where the audit line is that says more.
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
		// Instead of what X-Forwarded-For says, whoever sent it.
		attribute.String("client.address", e.Caller),
	)
}
