package logins

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const secret = "s3cret-that-was-sent-along"

func answer(t *testing.T, handler http.HandlerFunc) (got map[string]string, err error) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
	testkit.Must(t, err)
	return got, JSON(NewClient(nil), request, &got, registryauth.NewSecret(secret))
}

func TestAnAnswerIsDecoded(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"agent": %q, "accept": %q}`, r.UserAgent(), r.Header.Get("Accept"))
	}))
	defer server.Close()
	request := testkit.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil))(t)
	var got map[string]string
	testkit.Must(t, JSON(NewClient(nil), request, &got))
	if got["agent"] != "pullpass" || got["accept"] != "application/json" {
		t.Errorf("the request had %v", got)
	}
}

func TestWhatIsNoAnswer(t *testing.T) {
	t.Parallel()
	token := "eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9." + strings.Repeat("Ab1", 100)
	write := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	for _, c := range []struct {
		name    string
		handler http.HandlerFunc
		want    string
	}{
		{"OAuth", write(400, `{"error": "invalid_grant", "error_description": "No matching federated identity"}`), "answers 400 Bad Request: No matching federated identity"},
		{"a code alone", write(401, `{"error": "invalid_grant"}`), "401 Unauthorized: invalid_grant"},
		{"Google", write(403, `{"error": {"code": 403, "message": "Permission denied"}}`), "403 Forbidden: Permission denied"},
		{"a registry", write(401, `{"errors": [{"code": "UNAUTHORIZED", "message": "not here"}]}`), "401 Unauthorized: not here"},
		{"Quay", write(401, `{"detail": "unknown robot"}`), "unknown robot"},
		{"a page", write(502, "<html>"+secret), "502 Bad Gateway"},
		{"what repeats a secret", write(400, `{"message": "bad `+secret+` here"}`), "bad [looks like a token, 26 bytes] here"},
		{"what repeats a piece of it", write(400, `{"message": "bad `+secret[3:20]+`"}`), "bad [looks like"},
		{"what repeats a token", write(400, `{"message": "bad `+token+`"}`), "bad [looks like"},
		{"several lines", write(400, `{"message": "one\r\ntwo\u001b[1m \u202eü"}`), "one two?[1m ?ü"},
		{"a long text", write(400, `{"message": "`+strings.Repeat("a ", 4000)+`"}`), "..."},
		{"rubbish", write(200, "{"+secret), "not the JSON that it should be"},
		{"another type", write(200, `{"a": {"`+secret+`": 1}}`), "not the JSON that it should be"},
		{"no end", func(w http.ResponseWriter, _ *http.Request) {
			for range 100 {
				if _, err := w.Write(make([]byte, 16<<10)); err != nil {
					return
				}
			}
		}, "more than 262144 bytes"},
		{"a redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://other.example.com/"+secret, http.StatusTemporaryRedirect)
		}, "307 Temporary Redirect"},
		{"nothing", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "EOF"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := answer(t, c.handler)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v, error %v, want %q", got, err, c.want)
			}
			text := fmt.Sprintf("%v %+v %#v", err, err, err)
			testkit.ExpectNoPiece(t, "the error", text, secret, token)
			if len(err.Error()) > 500 || strings.HasSuffix(err.Error(), ":") || strings.ContainsAny(err.Error(), "\r\n") {
				t.Errorf("the error is %q", err)
			}
		})
	}
}

func TestAFailureKeepsOnlyTheEndOfTheTimeAsItsCause(t *testing.T) {
	t.Parallel()
	other := errors.New("other")
	err := Failure(fmt.Errorf("%w and %w", context.DeadlineExceeded, other))
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, other) || errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if err := Failure(other); errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		t.Errorf("%v is the end of the time", err)
	}
}

func TestEnd(t *testing.T) {
	t.Parallel()
	jwt := func(payload string) string {
		return "h." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".s"
	}
	for token, want := range map[string]time.Time{
		jwt(`{"exp": 1800000000}`):           time.Unix(1800000000, 0),
		jwt(`{"exp": 1800000000.5}`):         time.Unix(1800000000, 0),
		jwt(`{"exp": "soon"}`):               {},
		jwt(`{"exp": 1e300}`):                {},
		jwt(`{"exp": -1}`):                   {},
		jwt(`{}`):                            {},
		jwt(`{"exp": 1099511627776}`):        time.Unix(1<<40, 0),
		jwt(`{"exp": 1800000000, "sub": 1}`): {},
		"h." + base64.RawURLEncoding.EncodeToString([]byte(`{"exp": 1800000000  }`)) + "!.s": {},
		"opaque": {},
		"a.!.b":  {},
	} {
		if got := End(token); !got.Equal(want) {
			t.Errorf("%s ends at %s, want %s", token, got, want)
		}
	}
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	now := time.Unix(1700000000, 0)
	token := "h." + base64.RawURLEncoding.EncodeToString([]byte(`{"exp": 1700001000}`)) + ".s"
	for _, c := range []struct {
		seconds int64
		token   string
		want    time.Duration
	}{{60, token, time.Minute}, {0, token, 1000 * time.Second}, {1 << 31, token, 1000 * time.Second}, {1 << 40, token, 1000 * time.Second}, {-1, "opaque", assumed}} {
		if got := Expiry(now, c.seconds, c.token).Sub(now); got != c.want {
			t.Errorf("%d seconds and %s: %s, want %s", c.seconds, c.token, got, c.want)
		}
	}
}
