package gateway_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/pullpass/pullpass/internal/gateway"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/test/registrytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Each request to an upstream, its token endpoint and its storage has a span below that of the
// client's request. No span holds an address or a credential, and the trace is not propagated.
func TestSpansOfUpstreams(t *testing.T) {
	t.Parallel()
	const signed = "X-Amz-Signature=0123456789abcdef0123456789abcdef"
	registry, tokens := newTokenRegistry(t)
	storage := registrytest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry, change: func(c *upstream.Config, g *gateway.Upstream) {
		c.CAFile, c.RedirectHosts, g.Follow = bothCAs(t, registry, tokens.Server, storage), []string{"127.0.0.1"}, true
	}})
	redirecting(registry, storage.URL+"/blob?"+signed)
	recorder := tracetest.NewSpanRecorder()
	ctx, root := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test").Start(t.Context(), "request")
	request := httptest.NewRequest(http.MethodGet, "/v2/ghcr.io/acme/app/blobs/"+registrytest.DigestOf(nil), nil).WithContext(ctx)
	token := r.token("web", "repository:ghcr.io/acme/app:pull")
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	w := httptest.NewRecorder()
	r.handler().ServeHTTP(w, request)
	root.End()
	if w.Code != http.StatusServiceUnavailable {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	var got []string
	for _, span := range recorder.Ended() {
		if span.Name() == "request" {
			continue
		}
		seen := attribute.NewSet(span.Attributes()...)
		status, _ := seen.Value("http.response.status_code")
		name, _ := seen.Value("pullpass.upstream")
		method, _ := seen.Value("http.request.method")
		failed := ""
		if span.Status().Code == codes.Error {
			failed = "!"
		}
		got = append(got, fmt.Sprintf("%s %s %s %d%s", span.Name(), name.AsString(), method.AsString(), status.AsInt64(), failed))
		if span.Parent().SpanID() != root.SpanContext().SpanID() || span.SpanKind() != trace.SpanKindClient || seen.Len() != 3 || len(span.Events()) > 0 || span.Status().Description != "" {
			t.Errorf("%s: %v %v %v", span.Name(), span.SpanKind(), span.Attributes(), span.Events())
		}
		testkit.ExpectNoPiece(t, "a span", fmt.Sprint(span.Name(), span.Attributes()), token, registrytest.Password, signed)
	}
	want := []string{"ask upstream ghcr.io GET 401", "ask upstream for a token ghcr.io GET 200", "ask upstream ghcr.io GET 302", "ask storage of upstream ghcr.io GET 503!"}
	if !slices.Equal(got, want) {
		t.Errorf("spans %s, want %s", strings.Join(got, ", "), strings.Join(want, ", "))
	}
	for _, asked := range slices.Concat(registry.Asked(), tokens.Asked(), storage.Asked()) {
		if asked.Header.Get("Traceparent") != "" {
			t.Errorf("%s was told of the trace", asked.URL.Host)
		}
	}
}

// A span holds no credential that a client put into its address or its name, also if the request has
// no event.
func TestSpansOfClients(t *testing.T) {
	t.Parallel()
	_, r := newGHCR(t)
	token := r.token("web", "repository:ghcr.io/acme/app:pull")
	for _, path := range []string{"/v2/", "/v2/ghcr.io/acme/app/manifests/v1", "/v2/" + token + "/manifests/v1", "/v2/ghcr.io/acme/app/manifests/" + token[:100]} {
		for _, authorization := range []string{"", "Bearer " + token} {
			recorder := tracetest.NewSpanRecorder()
			ctx, root := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test").Start(t.Context(), "request")
			request := httptest.NewRequest(http.MethodGet, path, nil).WithContext(ctx)
			request.Header.Set("User-Agent", token)
			if authorization != "" {
				request.Header.Set("Authorization", authorization)
			}
			// As the middleware does, before the handler.
			root.SetAttributes(attribute.String("user_agent.original", request.UserAgent()), attribute.String("url.path", request.URL.Path))
			r.handler().ServeHTTP(httptest.NewRecorder(), request)
			root.End()
			for _, span := range recorder.Ended() {
				testkit.ExpectNoPiece(t, "a span of "+path+", "+authorization, fmt.Sprint(span.Name(), span.Attributes()), token)
			}
		}
	}
}

// A request without a response is a span that failed. Without a trace, there is no span.
func TestSpansOfUpstreamsThatAreDown(t *testing.T) {
	t.Parallel()
	r := newRig(t, upstreamSettings{name: "ghcr.io", url: "https://" + testkit.FreeAddress(t)})
	for _, sampler := range []sdktrace.Sampler{sdktrace.AlwaysSample(), sdktrace.NeverSample()} {
		recorder := tracetest.NewSpanRecorder()
		ctx, root := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder), sdktrace.WithSampler(sampler)).Tracer("test").Start(t.Context(), "request")
		request := httptest.NewRequest(http.MethodGet, "/v2/ghcr.io/acme/app/manifests/v1", nil).WithContext(ctx)
		request.Header.Set("Authorization", "Bearer "+r.token("web", "repository:ghcr.io/acme/app:pull"))
		r.handler().ServeHTTP(httptest.NewRecorder(), request)
		root.End()
		ended := recorder.Ended()
		if !root.SpanContext().IsSampled() {
			if len(ended) > 0 {
				t.Errorf("%d spans of a trace that is not recorded", len(ended))
			}
			continue
		}
		if len(ended) != 2 || ended[0].Name() != "ask upstream" || ended[0].Status().Code != codes.Error || ended[0].Status().Description != "" || len(ended[0].Attributes()) != 2 {
			t.Errorf("%v", ended)
		}
	}
}
