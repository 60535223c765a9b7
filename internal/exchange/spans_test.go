package exchange_test

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// Each step of a request has a span below that of the request. The last span has failed if the
// request was refused. No span holds the identity, the scopes, or the cause of a refusal.
func TestSpans(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change  func(*rigConfig)
		request func(*testing.T, *rig) *http.Request
		want    string // steps in their order; "!": failed
		reason  string
	}{
		"granted": {nil, func(t *testing.T, r *rig) *http.Request { return get(r.token(t, nil), "repository:team-a/web:pull") },
			"verify state decide issue", ""},
		"objects": {func(c *rigConfig) { c.objects = objects{} }, func(t *testing.T, r *rig) *http.Request { return get(r.token(t, nil), "repository:team-a/web:pull") },
			"verify kube state decide issue", ""},
		"forged": {nil, func(t *testing.T, r *rig) *http.Request {
			return get(sign(t, r.stranger, r.claims()), "repository:team-a/web:pull")
		},
			"verify!", "token_signature"},
		"objects are not known": {func(c *rigConfig) { c.objects = objects{err: errors.New("team-a cannot be asked for")} },
			func(t *testing.T, r *rig) *http.Request { return get(r.token(t, nil), "repository:team-a/web:pull") },
			"verify kube!", "kubernetes_unavailable"},
		"too many": {func(c *rigConfig) { c.limits = limiterFunc(func(string) time.Duration { return time.Minute }) },
			func(t *testing.T, r *rig) *http.Request { return get(r.token(t, nil), "repository:team-a/web:pull") },
			"verify state!", "limited_service_account"},
		"denied": {nil, func(t *testing.T, r *rig) *http.Request {
			return get(r.token(t, inNamespace("team-bad")), "repository:team-bad/web:pull")
		},
			"verify state decide", "subject_denied"},
		"anonymous": {nil, func(t *testing.T, r *rig) *http.Request { return get("", "repository:public/web:pull") },
			"decide issue", ""},
		"no request": {nil, func(t *testing.T, r *rig) *http.Request { return with(get(r.token(t, nil)), "service", "") }, "", "request_malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, test.change)
			r.do(t, get(r.token(t, nil), "repository:team-a/web:pull")) // the keys are known afterwards
			recorder := tracetest.NewSpanRecorder()
			ctx, root := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test").Start(t.Context(), "request")
			r.do(t, test.request(t, r).WithContext(ctx))
			root.End()
			var steps []string
			ended := recorder.Ended()
			for _, span := range ended[:len(ended)-1] {
				if span.Status().Code == codes.Error {
					steps = append(steps, span.Name()+"!")
				} else {
					steps = append(steps, span.Name())
				}
				if span.Parent().SpanID() != root.SpanContext().SpanID() || len(span.Attributes())+len(span.Events()) > 0 || span.Status().Description != "" {
					t.Errorf("span %s: %v %v %v below %s", span.Name(), span.Attributes(), span.Events(), span.Status(), span.Parent().SpanID())
				}
			}
			if got := strings.Join(steps, " "); got != test.want {
				t.Errorf("steps %s, want %s", got, test.want)
			}
			event := r.lastEvent(t, 2)
			if event.TraceID != root.SpanContext().TraceID().String() || event.Reason != test.reason {
				t.Errorf("event %+v", event)
			}
			want := []attribute.KeyValue{
				attribute.String("client.address", event.Caller), attribute.String("pullpass.cluster", event.Cluster),
				attribute.String("pullpass.grant_type", event.GrantType), attribute.String("pullpass.reason", test.reason),
				attribute.String("pullpass.request_id", event.ID), attribute.String("pullpass.result", string(event.Result)),
				attribute.String("pullpass.service", event.Service),
			}
			got := ended[len(ended)-1].Attributes()
			slices.SortFunc(got, func(a, b attribute.KeyValue) int { return strings.Compare(string(a.Key), string(b.Key)) })
			if !slices.Equal(got, want) {
				t.Errorf("the request's span has %v, want %v", got, want)
			}
		})
	}
}

// A trace that is not sampled costs no span. The event still has its id, because other services may
// have recorded it.
func TestSpansOfATraceThatIsNotSampled(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder), sdktrace.WithSampler(sdktrace.NeverSample()))
	ctx, root := provider.Tracer("test").Start(t.Context(), "request")
	r.do(t, get(r.token(t, nil), "repository:team-a/web:pull").WithContext(ctx))
	root.End()
	if ended := recorder.Ended(); len(ended) > 0 {
		t.Errorf("spans %v", ended)
	}
	if id := r.lastEvent(t, 1).TraceID; id != root.SpanContext().TraceID().String() {
		t.Errorf("the event is of trace %q", id)
	}
	r.do(t, get(r.token(t, nil), "repository:team-a/web:pull"))
	if id := r.lastEvent(t, 2).TraceID; id != "" {
		t.Errorf("without a trace, the event is of trace %q", id)
	}
}
