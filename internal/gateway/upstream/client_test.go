package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// each is Logins with a login of each caller's own.
type each struct{}

func (each) Login(_ context.Context, caller string) (Login, error) {
	if caller == "" {
		return Login{}, ErrNoCaller
	}
	return Login{}, errors.New("not in this test")
}

func (each) Reject(Login) {}

func clientOf(t *testing.T, answer http.HandlerFunc, logins Logins) *Client {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	c, err := New(Config{Name: "a", URL: server.URL, Logins: logins})
	testkit.Must(t, err)
	return c
}

// If each caller has its own credential, a probe without a caller is not a failure of the upstream.
func TestProbeWithoutACaller(t *testing.T) {
	t.Parallel()
	c := clientOf(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	}, each{})
	c.probe(t.Context())
	if s := c.Status(); s.Failure != "" || s.AnsweredAt.IsZero() {
		t.Errorf("%+v", s)
	}
}

// A stalling upstream does not block callers: before its response, in the body of a refusal, or at
// a redirect target.
func TestStallingUpstreams(t *testing.T) {
	t.Parallel()
	stall := func(begin func(http.ResponseWriter)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			begin(w)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	}
	body := func(status int) http.HandlerFunc {
		return stall(func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "100")
			w.WriteHeader(status)
			fmt.Fprint(w, "half")
		})
	}
	silent := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		want   refusal.Reason
	}{
		"no answer": {silent, refusal.UpstreamTimeout}, "500": {body(500), refusal.UpstreamFailing}, "401": {body(401), refusal.UpstreamCredential}, "429": {body(429), refusal.UpstreamLimited},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := clientOf(t, test.answer, nil)
			var e *Error
			var began time.Time
			// On a busy machine, even the status may come too late.
			for c.wire.within = 500 * time.Millisecond; c.wire.within < time.Minute && (e == nil || e.Reason == refusal.UpstreamTimeout && test.want != refusal.UpstreamTimeout); c.wire.within *= 4 {
				began = time.Now()
				if _, err := c.Do(c.versionRequest(t.Context()), Need{}); !errors.As(err, &e) {
					t.Fatal(err)
				}
			}
			if e.Reason != test.want || time.Since(began) > time.Minute {
				t.Errorf("%v after %s", e, time.Since(began))
			}
		})
	}
	t.Run("a redirect", func(t *testing.T) {
		t.Parallel()
		c := clientOf(t, silent, nil)
		c.patience = 100 * time.Millisecond
		to, err := url.Parse(c.base.String() + "/blob?signature=x")
		testkit.Must(t, err)
		_, err = c.Follow((&http.Request{Method: http.MethodGet, URL: to, Header: http.Header{}}).WithContext(t.Context()))
		var e *Error
		if !errors.As(err, &e) || e.Reason != refusal.UpstreamTimeout {
			t.Errorf("%v", err)
		}
	})
}
