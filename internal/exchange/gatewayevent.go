package exchange

import (
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/pullpass/pullpass/internal/redact"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/term"
)

// ReasonInsufficientScope is that of a token that does not allow what it was sent for
// (RFC 6750 section 3.1).
const ReasonInsufficientScope = "insufficient_scope"

// ClientOf returns what an event keeps of a request's User-Agent.
func ClientOf(r *http.Request) string {
	return term.Cut(redact.Text(r.UserAgent()), maxClientLength) // in this order: half a token would look like none
}

// HeldBy notes whom a token of the gateway was issued to.
func (e *Event) HeldBy(h *registryauth.Holder) {
	e.Cluster, e.Namespace = h.Cluster, h.Namespace
	e.ServiceAccount = &Object{Name: h.ServiceAccount, UID: h.ServiceAccountUID}
	if h.Pod != "" {
		e.Pod = &Object{Name: h.Pod, UID: h.PodUID}
	}
	if h.Node != "" {
		e.Node = &Object{Name: h.Node, UID: h.NodeUID}
	}
	e.CredentialID = credentialID(h.TokenID)
}

// EndGateway makes the event of a gateway's request ready to be recorded: what the
// client wrote holds no credential, and the request's span says what became of it.
func (e *Event) EndGateway(r *http.Request) {
	header := r.Header.Get("Authorization")
	_, value, _ := strings.Cut(header, " ")
	secrets := [2]string{header, value}
	e.redact(secrets)
	g := e.Gateway
	for _, field := range []*string{&g.Repository, &g.Reference} {
		*field = redact.Text(*field, secrets[:]...)
	}
	span := trace.SpanFromContext(r.Context())
	redactSpan(span, r, secrets)
	e.describe(span)
	if span.IsRecording() {
		span.SetAttributes(attribute.String("pullpass.upstream", g.Upstream), attribute.String("pullpass.kind", g.Kind), attribute.Int("pullpass.upstream_status", g.UpstreamStatus))
	}
}
