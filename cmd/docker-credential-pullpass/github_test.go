package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const asking = "TOKEN-FOR-ASKING"

// newService starts a token service, and returns what asks it and how often it
// was asked.
func newService(t *testing.T, handler func(w http.ResponseWriter, r *http.Request, time int)) (gitHub, *httptest.Server, *atomic.Int64) {
	t.Helper()
	asked := new(atomic.Int64)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler(w, r, int(asked.Add(1)))
	}))
	t.Cleanup(server.Close)
	return newGitHubOf(server, server.URL+"/idtoken?api-version=2.0"), server, asked
}

func newGitHubOf(server *httptest.Server, address string) gitHub {
	g := newGitHub(environment{"ACTIONS_ID_TOKEN_REQUEST_URL": address, "ACTIONS_ID_TOKEN_REQUEST_TOKEN": asking}.get)
	g.trust(server)
	return g
}

// trust has it ask a server of tests, without pauses.
func (a *asker) trust(server *httptest.Server) {
	a.pause = 0
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	a.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: roots}
}

func TestGitHubIsAskedForTheAudience(t *testing.T) {
	t.Parallel()
	g, _, asked := newService(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		if got, want := r.Method+" "+r.RequestURI, "GET /idtoken?api-version=2.0&audience=localhost%3A5443"; got != want {
			t.Errorf("request %s, want %s", got, want)
		}
		if got := r.Header.Values("Authorization"); len(got) != 1 || got[0] != "bearer "+asking {
			t.Errorf("Authorization %q", got)
		}
		fmt.Fprint(w, `{"count":1,"value":"a.b.c"}`)
	})
	token, err := g.token(t.Context(), "localhost:5443")
	if err != nil || token != "a.b.c" || asked.Load() != 1 {
		t.Errorf("token %q, error %v, asked %d times", token, err, asked.Load())
	}
}

func TestGitHubIsAskedAgain(t *testing.T) {
	t.Parallel()
	for _, fault := range []func(w http.ResponseWriter){
		func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) },
		func(w http.ResponseWriter) { w.WriteHeader(http.StatusTooManyRequests) },
		func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		func(w http.ResponseWriter) { // ends in the middle
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, `{"value":`)
		},
	} {
		g, _, asked := newService(t, func(w http.ResponseWriter, _ *http.Request, time int) {
			if time < tries {
				fault(w)
				return
			}
			fmt.Fprint(w, `{"value":"a.b.c"}`)
		})
		token, err := g.token(t.Context(), registry)
		if err != nil || token != "a.b.c" || asked.Load() != tries {
			t.Errorf("token %q, error %v, asked %d times", token, err, asked.Load())
		}
	}
}

func TestGitHubRefusals(t *testing.T) {
	t.Parallel()
	status := func(code int) func(w http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.WriteHeader(code)
			fmt.Fprint(w, asking)
		}
	}
	body := func(text string) func(w http.ResponseWriter) {
		return func(w http.ResponseWriter) { fmt.Fprint(w, text) }
	}
	const permission = "; give the job permissions: {id-token: write}, and note that a job can ask for about six hours"
	for _, test := range []struct {
		name   string
		answer func(w http.ResponseWriter)
		asked  int64
		want   string
	}{
		{"not now", status(503), tries, "answered 503"},
		{"401", status(401), 1, "answered 401" + permission},
		{"403", status(403), 1, "answered 403" + permission},
		{"404", status(404), 1, "answered 404"},
		{"no content", status(204), 1, "answered 204"},
		{"somewhere else", func(w http.ResponseWriter) {
			w.Header().Set("Location", "/idtoken?"+asking)
			w.WriteHeader(http.StatusTemporaryRedirect)
		}, 1, "answered 307"},
		{"too much", body(`{"value":"` + strings.Repeat("x", maxAnswerSize) + `"}`), 1, "answered more than 32 KiB"},
		{"no JSON", body(asking), 1, errAnswer.Error()},
		{"no value", body(`{"token":"` + asking + `"}`), 1, errAnswer.Error()},
		{"an empty value", body(`{"value":""}`), 1, errAnswer.Error()},
		{"a number", body(`{"value":1}`), 1, errAnswer.Error()},
		{"two objects", body(`{"value":"a"}{"value":"b"}`), 1, errAnswer.Error()},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			g, _, asked := newService(t, func(w http.ResponseWriter, _ *http.Request, _ int) { test.answer(w) })
			token, err := g.token(t.Context(), registry)
			if token != "" || err == nil || err.Error() != test.want {
				t.Errorf("token %q, error %v, want %s", token, err, test.want)
			}
			if asked.Load() != test.asked {
				t.Errorf("asked %d times, want %d", asked.Load(), test.asked)
			}
		})
	}
}

// The helper sends its request token only over TLS, and only to a valid address.
func TestGitHubAddresses(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	plain := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(plain.Close)
	_, server, _ := newService(t, func(http.ResponseWriter, *http.Request, int) { asked.Add(1) })
	host := strings.TrimPrefix(server.URL, "https://")
	for _, address := range []string{
		plain.URL, host, "//" + host, "https:///idtoken", "https://user:pw@" + host, "file:///etc/passwd", "https://" + host + "/%zz", "https://\x7f",
	} {
		_, err := newGitHubOf(server, address).token(t.Context(), registry)
		if want := "not an https URL; it has to be as the runner set it"; err == nil || err.Error() != want {
			t.Errorf("%q: error %v, want %s", address, err, want)
		}
	}
	if asked.Load() != 0 {
		t.Errorf("asked %d times", asked.Load())
	}
}

// The message for a server that does not respond leaves out the address, which does not belong in a line of a log.
func TestGitHubCannotBeReached(t *testing.T) {
	t.Parallel()
	g, server, _ := newService(t, nil)
	server.Close()
	_, err := g.token(t.Context(), registry)
	if err == nil || !strings.Contains(err.Error(), "connection refused") || strings.Contains(err.Error(), "idtoken") {
		t.Errorf("error %v", err)
	}
}

func TestGitHubIsNotWaitedForLongerThanAllowed(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	g, _, asked := newService(t, func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(http.StatusServiceUnavailable) })
	g.pause = time.Hour
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := g.token(ctx, registry); err == nil || asked.Load() > 1 {
		t.Errorf("error %v, asked %d times", err, asked.Load())
	}
}
