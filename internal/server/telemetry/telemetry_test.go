package telemetry

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// A panic's value may be anything, and the SDK would send it.
func TestTelemetryHoldsNoPanic(t *testing.T) {
	t.Parallel()
	recorder := tracetest.NewSpanRecorder()
	traced := (&Telemetry{traces: newTracerProvider(recorder, nil)}).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("a.secret.token") }))
	func() {
		defer func() { _ = recover() }()
		traced.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/token", nil))
	}()
	ended := recorder.Ended()
	if len(ended) != 1 || strings.Contains(fmt.Sprintf("%+v", ended[0].Events()), "secret") {
		t.Errorf("spans %+v", ended)
	}
}

func TestTelemetryOffIsNoMiddleware(t *testing.T) {
	t.Parallel()
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	if got := (&Telemetry{}).Handler(next); fmt.Sprintf("%p", got) != fmt.Sprintf("%p", next) {
		t.Error("there is a middleware")
	}
}
