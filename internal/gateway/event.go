package gateway

import (
	"crypto/rand"
	"net/http"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/pullpass/pullpass/internal/base/redact"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
)

// newEvent creates the event of a request before the request is read.
func (h *Handler) newEvent(r *http.Request, caller nodeproof.Caller) *exchange.Event {
	event := &exchange.Event{
		Time: h.Now(), ID: rand.Text(), Service: h.Service, Caller: caller.String(),
		Client:  term.Cut(redact.Text(r.UserAgent()), exchange.MaxClientLength), // in this order: half a token would look like none
		Gateway: &exchange.GatewayRequest{Method: shortMethod(r.Method)},
	}
	if id := trace.SpanFromContext(r.Context()).SpanContext().TraceID(); id.IsValid() {
		event.TraceID = id.String()
	}
	return event
}

// holds notes the holder of a token.
func holds(e *exchange.Event, b *bearer) {
	h := b.holder
	e.CredentialID = "JTI=" + h.TokenID
	if h.Identity != "" {
		e.Identity = &exchange.Identity{Name: h.Identity, Subject: b.subject, Project: h.Project, Run: h.Run}
		e.PushCredential = h.PushCredential
		return
	}
	e.Cluster, e.Namespace = h.Cluster, h.Namespace
	e.ServiceAccount = &exchange.Object{Name: h.ServiceAccount, UID: h.ServiceAccountUID}
	if h.Pod != "" {
		e.Pod = &exchange.Object{Name: h.Pod, UID: h.PodUID}
	}
	if h.Node != "" {
		e.Node = &exchange.Object{Name: h.Node, UID: h.NodeUID}
	}
}

// conceal removes credentials from an event, wherever the client put them, and records the outcome
// in the request's span.
func conceal(e *exchange.Event, r *http.Request) {
	header := r.Header.Get("Authorization")
	scheme, token, _ := strings.Cut(header, " ")
	secrets := redact.Known(token)
	if !strings.EqualFold(scheme, "Bearer") { // the value may be a credential, too
		secrets = redact.Known(token, header)
	}
	g := e.Gateway
	for _, field := range []*string{&e.Client, &g.Repository} {
		*field = secrets.Text(*field)
	}
	g.Reference = secrets.Name(g.Reference)
	g.Tags = slices.Clone(g.Tags) // the forwarded tags stay unchanged
	for i := range g.Tags {
		g.Tags[i] = secrets.Name(g.Tags[i])
	}
	for i := range e.Requested {
		e.Requested[i] = secrets.Text(e.Requested[i])
	}
	e.Message = secrets.Message(e.Message)
	span := trace.SpanFromContext(r.Context())
	if !span.IsRecording() {
		return
	}
	exchange.RedactSpan(span, r, secrets)
	e.Describe(span)
	span.SetAttributes(
		attribute.String("pullpass.upstream", g.Upstream),
		attribute.String("pullpass.kind", g.Kind),
		attribute.Int("pullpass.upstream_status", g.UpstreamStatus),
	)
}
