package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A body that will be sent again is not read through the old reader, and a body of which a part was sent is not
// sent again. Its error stays.
func TestUnsentBodies(t *testing.T) {
	t.Parallel()
	from := strings.NewReader("body")
	body := &unsent{from: io.NopCloser(from)}
	if !body.isWhole() {
		t.Error("nothing was read, and it is not whole")
	}
	if n, err := body.Read(make([]byte, 1)); n != 0 || !errors.Is(err, errAbandoned) || from.Len() != 4 {
		t.Errorf("%d, %v, %d are left", n, err, from.Len())
	}
	body = &unsent{from: io.NopCloser(from)}
	testkit.Value(body.Read(make([]byte, 1)))(t)
	if body.isWhole() {
		t.Error("it is whole without its first byte")
	}
	if rest, err := io.ReadAll(body); string(rest) != "ody" || err != nil || body.failure() != nil {
		t.Errorf("%q, %v, %v", rest, err, body.failure())
	}
	body = &unsent{from: io.NopCloser(iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader("body"))))}
	var errs []error
	for range 3 {
		_, err := body.Read(make([]byte, 1))
		errs = append(errs, err)
	}
	if errs[1] == nil || errs[2] != nil || !errors.Is(body.failure(), ErrBody) {
		t.Errorf("%v, then %v", errs, body.failure())
	}
}

// challengeToken sends a challenge of the token endpoint unless the request has the token.
func (r *registry) challengeToken(token string) http.HandlerFunc {
	return func(w http.ResponseWriter, q *http.Request) {
		if q.Header.Get("Authorization") != "Bearer "+token {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+r.url+`/token",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		}
	}
}

// Each refusal costs the upstream as few requests as it can. at is how long after the first pull the second one begins.
func TestRequestsOfRefusals(t *testing.T) {
	t.Parallel()
	negotiate := answering(401, "WWW-Authenticate", "Negotiate")
	for name, test := range map[string]struct {
		logins                 Logins
		version, token, other  func(r *registry) http.HandlerFunc
		at                     time.Duration
		first, second          refusal.Reason
		versions, tokens, sent int // requests of both pulls
	}{
		"a repository refuses a good login": {
			logins: newOne("right"), version: func(*registry) http.HandlerFunc { return basicOf("right") }, other: func(*registry) http.HandlerFunc { return basicOf("none") },
			first: refusal.UpstreamCredential, second: refusal.UpstreamCredential, versions: 2, sent: 2,
		},
		"a repository refuses a login that is not known to be good": {
			logins: newOne("right"), other: func(*registry) http.HandlerFunc { return basicOf("none") },
			version: func(*registry) http.HandlerFunc {
				return func(w http.ResponseWriter, q *http.Request) {
					if q.Header.Get("Authorization") != "" {
						answering(500)(w, q)
						return
					}
					basicOf("right")(w, q)
				}
			},
			first: refusal.UpstreamCredential, second: refusal.UpstreamCredential, versions: 2, sent: 1,
		},
		"a bare 401": {
			logins: newOne("right"), version: func(*registry) http.HandlerFunc { return answering(200) }, other: func(*registry) http.HandlerFunc { return answering(401) },
			first: refusal.UpstreamCredential, second: refusal.UpstreamCredential, versions: 1, sent: 2,
		},
		"a scheme that is not known, soon": {
			logins: newOne("right"), version: func(*registry) http.HandlerFunc { return negotiate }, at: refusedFor - 1,
			first: refusal.UpstreamCredential, second: refusal.UpstreamCredential, versions: 1,
		},
		"a scheme that is not known, later": {
			logins: newOne("right"), version: func(*registry) http.HandlerFunc { return negotiate }, at: refusedFor,
			first: refusal.UpstreamCredential, second: refusal.UpstreamCredential, versions: 2,
		},
		"another scheme for a token that is not valid any more": {
			logins: newOne("right"), version: func(r *registry) http.HandlerFunc { return r.challengeToken("none") },
			token: func(*registry) http.HandlerFunc {
				n := 0
				return func(w http.ResponseWriter, _ *http.Request) {
					n++
					fmt.Fprintf(w, `{"token": "t%d", "expires_in": 300}`, n)
				}
			},
			other: func(*registry) http.HandlerFunc {
				return func(w http.ResponseWriter, q *http.Request) {
					if q.Header.Get("Authorization") != "Bearer t2" {
						negotiate(w, q)
					}
				}
			},
			versions: 1, tokens: 2, sent: 3,
		},
		"a token is refused": {
			logins: newOne("right"), version: func(r *registry) http.HandlerFunc { return r.challengeToken("none") }, other: func(r *registry) http.HandlerFunc { return r.challengeToken("none") },
			first: refusal.UpstreamDenied, second: refusal.UpstreamDenied, versions: 1, tokens: 2, sent: 3,
		},
		"a token endpoint refuses anonymous requests": {
			version: func(r *registry) http.HandlerFunc { return r.challengeToken("none") }, token: func(*registry) http.HandlerFunc { return answering(401) },
			first: refusal.UpstreamCredential, second: refusal.UpstreamCredential, versions: 1, tokens: 1,
		},
		"a token endpoint fails": {
			logins: newOne("right"), version: func(r *registry) http.HandlerFunc { return r.challengeToken("none") }, token: func(*registry) http.HandlerFunc { return answering(500) },
			first: refusal.UpstreamFailing, second: refusal.UpstreamFailing, versions: 1, tokens: 2,
		},
		"a token endpoint refuses these scopes": {
			logins: &changingLogins{}, version: func(r *registry) http.HandlerFunc { return r.challengeToken("good") },
			token: func(*registry) http.HandlerFunc {
				return func(w http.ResponseWriter, q *http.Request) {
					if q.URL.Query().Has("scope") {
						w.WriteHeader(http.StatusForbidden)
						return
					}
					fmt.Fprint(w, `{"token": "good"}`)
				}
			},
			first: refusal.UpstreamCredential, second: refusal.UpstreamCredential, versions: 3, tokens: 4,
		},
		"a token endpoint refuses each login": {
			logins: &changingLogins{}, version: func(r *registry) http.HandlerFunc { return r.challengeToken("good") }, token: func(*registry) http.HandlerFunc { return answering(401) },
			first: refusal.UpstreamCredential, second: refusal.UpstreamCredential, versions: 1, tokens: 6,
		},
		"a token endpoint refuses the only login": {
			logins: &changingLogins{last: 1}, version: func(r *registry) http.HandlerFunc { return r.challengeToken("good") }, token: func(*registry) http.HandlerFunc { return answering(401) },
			first: refusal.UpstreamCredential, second: refusal.UpstreamCredential, versions: 1, tokens: 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newTestRegistry(t, test.logins)
			r.version = test.version(r)
			if test.token != nil {
				r.token = test.token(r)
			}
			r.other = answering(200)
			if test.other != nil {
				r.other = test.other(r)
			}
			first := r.pull(t, "a")
			r.set(func() { r.now = r.now.Add(test.at) })
			second := r.pull(t, "a")
			versions, tokens, sent := r.count("/v2/"), r.count("/token"), r.count("/v2/a/manifests/v1")
			if first != test.first || second != test.second || versions != test.versions || tokens != test.tokens || sent != test.sent {
				t.Errorf("%q, then %q; %d versions, %d tokens, %d manifests", first, second, versions, tokens, sent)
			}
		})
	}
}

// changingLogins has another login each time, or none after the last.
type changingLogins struct{ n, last int }

func (l *changingLogins) Login(context.Context, string) (Login, error) {
	if l.n++; l.last > 0 && l.n%2 == 0 {
		return Login{}, errors.New("no other login")
	}
	if l.last > 0 {
		return Login{Username: "robot", Password: registryauth.NewSecret("only")}, nil
	}
	return Login{Username: "robot", Password: registryauth.NewSecret(fmt.Sprint("password", l.n))}, nil
}

func (l *changingLogins) Reject(Login) {}

// A token stays in use as long as it is valid, also after its login was refused elsewhere.
func TestTokensOutliveTheirLogins(t *testing.T) {
	t.Parallel()
	logins := newOne("right")
	r := newTestRegistry(t, logins)
	r.version, r.other = r.bearer, r.bearer
	if got := r.pull(t, "a"); got != "" {
		t.Fatal(got)
	}
	r.set(func() { r.token = answering(401) })
	if got := r.pull(t, "b"); got != refusal.UpstreamCredential || logins.rejected.Load() != 1 {
		t.Errorf("%q", got)
	}
	if got := r.pull(t, "a"); got != "" {
		t.Errorf("what has a token: %q", got)
	}
	// Its verdict is not asked for again while it is good.
	r.set(func() { r.now, r.token = r.now.Add(refusedFor), nil })
	if got := r.pull(t, "b"); got != "" {
		t.Errorf("taken again: %q", got)
	}
	r.count("/v2/")
	r.set(func() { r.now = r.now.Add(2 * refusedFor) })
	if got := r.pull(t, "c"); got != "" || r.count("/v2/") != 0 {
		t.Errorf("%q, and its login was tried without a reason", got)
	}
}

// Only a token that is still there is replaced.
func TestTokensThatReplace(t *testing.T) {
	t.Parallel()
	c := newTestClient(t, nil)
	useful := c.now().Add(time.Minute)
	refused, other := upstreamToken{value: registryauth.NewSecret("a"), useful: useful}, upstreamToken{value: registryauth.NewSecret("b"), useful: useful}
	for name, test := range map[string]struct{ known, want upstreamToken }{
		"it": {refused, upstreamToken{instead: true}}, "another": {other, other},
	} {
		key := tokenKey{realm: name}
		c.tokens.cache.Add("a", key, test.known)
		isTried := c.tokens.replace("a", key, refused)
		if got, _ := c.tokens.cache.Get(key); !isTried || got.value.Hash() != test.want.value.Hash() || got.instead != test.want.instead {
			t.Errorf("%s: %t, %+v", name, isTried, got)
		}
	}
	if c.tokens.replace("a", tokenKey{}, refused); c.tokens.cache.Len() != 2 {
		t.Error("one that is not there was replaced")
	}
	// The request before this one has just brought one.
	if got := c.tokens.ask(t.Context(), tokenKey{realm: "another"}, challenge{}, nil, Need{}); got.value.Hash() != other.value.Hash() {
		t.Errorf("%+v", got)
	}
}

// Requests to token endpoints are counted, and say what they are for.
func TestTokenRequests(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		logins Logins
		realm  string
		token  http.HandlerFunc
		want   refusal.Reason
		query  string
		failed uint64
	}{
		"a service":    {newOne("right"), `",service="x"`, nil, "", "scope=repository%3Aa%3Apull&service=x", 0},
		"no service":   {newOne("right"), `"`, nil, "", "scope=repository%3Aa%3Apull", 0},
		"with a login": {newOne("right"), `"`, answering(404), refusal.UpstreamCredential, "", 2},
		"without":      {nil, `"`, answering(404), refusal.UpstreamCredential, "scope=repository%3Aa%3Apull", 1},
		"cut": {nil, `"`, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, `{"token": "good"}`)
		}, refusal.UpstreamUnreachable, "scope=repository%3Aa%3Apull", 1},
	} {
		r := newTestRegistry(t, test.logins)
		r.other = func(w http.ResponseWriter, q *http.Request) {
			if q.Header.Get("Authorization") != "Bearer good" {
				w.Header().Set("WWW-Authenticate", `Bearer realm="`+r.url+`/token`+test.realm)
				w.WriteHeader(http.StatusUnauthorized)
			}
		}
		query := ""
		r.token = func(w http.ResponseWriter, q *http.Request) {
			query = q.URL.RawQuery
			if test.token == nil {
				fmt.Fprint(w, `{"token": "good"}`)
				return
			}
			test.token(w, q)
		}
		got := r.pull(t, "a")
		if s := r.Status(); got != test.want || query != test.query || s.TokenFailures != test.failed || s.TokenRequests != max(test.failed, 1) {
			t.Errorf("%s: %q, asked with %q, %+v", name, got, query, s)
		}
	}
	known, anonymous := newTestRegistry(t, newOne("right")), newTestRegistry(t, nil)
	for r, want := range map[*registry]string{known: "the gateway's user name", anonymous: "anonymous requests"} {
		r.token, r.other = answering(401), r.bearer
		if _, e := r.tokens.request(t.Context(), challenge{realm: testkit.Value(url.Parse(r.url + "/token"))(t)}, loginOf(r.Client), nil); e == nil || !strings.Contains(e.Message, want) {
			t.Errorf("%v, want %s", e, want)
		}
	}
}

func loginOf(c *Client) *Login {
	if c.logins == nil {
		return nil
	}
	login, _ := c.logins.Login(context.Background(), "")
	return &login
}

// A caller that hangs up while its login is tried is not told that the login is wrong, and the next caller's is tried anew.
func TestCallersThatHangUpDuringAVerdict(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"Basic", "Bearer"} {
		r := newTestRegistry(t, newOne("right"))
		ctx, cancel := context.WithCancel(t.Context())
		r.version = func(w http.ResponseWriter, q *http.Request) {
			if scheme == "Bearer" {
				r.bearer(w, q)
				return
			}
			if q.Header.Get("Authorization") != "" && ctx.Err() == nil {
				cancel()
				<-q.Context().Done()
			}
			basicOf("right")(w, q)
		}
		r.token = func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Query().Has("scope") {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			if ctx.Err() == nil {
				cancel()
				<-q.Context().Done()
			}
			fmt.Fprint(w, `{"token": "good"}`)
		}
		r.other = basicOf("none")
		u := *r.Base()
		u.Path = "/v2/a/manifests/v1"
		scopes := []registryauth.Scope{{Type: "repository", Name: "a", Actions: []string{"pull"}}}
		if _, err := r.Do((&http.Request{Method: http.MethodGet, URL: &u, Header: http.Header{}}).WithContext(ctx), Need{Holder: "a", Scopes: scopes}); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", scheme, err)
		}
		login := loginOf(r.Client)
		found, err := r.verdictOn(t.Context(), login, loginHash(login))
		if err != nil || found.failure != nil {
			t.Errorf("%s: %v, %v", scheme, found.failure, err)
		}
	}
}

// tryLogin says why a login was not accepted, and sends none that was not asked for.
func TestLoginsThatAreTried(t *testing.T) {
	t.Parallel()
	login := &Login{Username: "robot", Password: registryauth.NewSecret("right")}
	for name, test := range map[string]struct {
		login   *Login
		version http.HandlerFunc // once a credential is sent
		first   http.HandlerFunc
		want    refusal.Reason
		limited int
	}{
		"accepted":      {login, answering(200), answering(401, "WWW-Authenticate", "Basic"), "", 0},
		"refused":       {login, answering(401, "WWW-Authenticate", "Basic"), answering(401, "WWW-Authenticate", "Basic"), refusal.UpstreamCredential, 0},
		"not asked for": {login, answering(200), answering(200), refusal.UpstreamInvalid, 0},
		"no login":      {nil, answering(200), answering(401, "WWW-Authenticate", "Basic"), refusal.UpstreamInvalid, 0},
		"no answer":     {login, answering(200), answering(500), refusal.UpstreamFailing, 0},
		"fails then":    {login, answering(500), answering(401, "WWW-Authenticate", "Basic"), refusal.UpstreamFailing, 0},
		"limited then":  {login, answering(429), answering(401, "WWW-Authenticate", "Basic"), refusal.UpstreamLimited, 1},
		"hangs up then": {login, func(w http.ResponseWriter, _ *http.Request) {
			connection, _, _ := http.NewResponseController(w).Hijack()
			_ = connection.Close()
		}, answering(401, "WWW-Authenticate", "Basic"), refusal.UpstreamUnreachable, 0},
	} {
		r := newTestRegistry(t, newOne("right"))
		r.version = func(w http.ResponseWriter, q *http.Request) {
			if q.Header.Get("Authorization") == "" {
				test.first(w, q)
				return
			}
			if name == "not asked for" {
				t.Errorf("%s: the login was sent", name)
			}
			test.version(w, q)
		}
		reason := refusal.Reason("")
		if e := r.tryLogin(t.Context(), test.login); e != nil {
			reason = e.Reason
		}
		if reason != test.want {
			t.Errorf("%s: %q", name, reason)
		}
		if test.login == nil {
			continue
		}
		if found, err := r.verdictOn(t.Context(), login, loginHash(login)); err != nil || (found.failure == nil) != (test.want == "") || len(r.doubts) != test.limited {
			t.Errorf("%s: %v, %v, %d doubts", name, found.failure, err, len(r.doubts))
		}
	}
}

// A probe finds the state of the upstream. Failures for one repository or one caller do not count.
func TestProbes(t *testing.T) {
	t.Parallel()
	bearer := func(r *registry) http.HandlerFunc { return r.challengeToken("good") }
	basic := func(*registry) http.HandlerFunc { return basicOf("right") }
	with := func(status int) func(*registry) http.HandlerFunc {
		return func(*registry) http.HandlerFunc {
			return func(w http.ResponseWriter, q *http.Request) {
				if q.Header.Get("Authorization") != "" {
					w.WriteHeader(status)
					return
				}
				basicOf("right")(w, q)
			}
		}
	}
	for name, test := range map[string]struct {
		logins  Logins
		version func(r *registry) http.HandlerFunc
		token   http.HandlerFunc
		failure string
		held    bool
	}{
		"no credential":       {nil, func(*registry) http.HandlerFunc { return answering(200) }, nil, "", false},
		"down":                {nil, func(*registry) http.HandlerFunc { return answering(500) }, nil, "answers 500", false},
		"a good login":        {newOne("right"), basic, nil, "", false},
		"a wrong login":       {newOne("wrong"), basic, nil, "refuses the gateway's credential", false},
		"none for it":         {&changingLogins{n: 1, last: 1}, basic, nil, "no other login", false},
		"a caller's own":      {each{}, basic, nil, "", false},
		"another scheme":      {newOne("right"), func(*registry) http.HandlerFunc { return answering(401, "WWW-Authenticate", "Negotiate") }, nil, "neither Basic nor a token", false},
		"anonymous":           {nil, bearer, nil, "", false},
		"not anonymous":       {nil, bearer, answering(401), "", false},
		"no tokens":           {nil, bearer, answering(500), "answers 500", false},
		"tokens for nothing":  {newOne("right"), func(r *registry) http.HandlerFunc { return r.challengeToken("none") }, nil, "", false},
		"fails with a login":  {newOne("right"), with(500), nil, "answers 500", false},
		"limits it":           {newOne("right"), with(429), nil, "asks for fewer requests", true},
		"limits token":        {newOne("right"), bearer, answering(429), "asks for fewer requests", true},
		"limits all requests": {nil, func(*registry) http.HandlerFunc { return answering(429) }, nil, "asks for fewer requests", true},
	} {
		r := newTestRegistry(t, test.logins)
		r.version, r.token = test.version(r), test.token
		r.probe(t.Context())
		s := r.Status()
		if (s.Failure == "") != (test.failure == "") || !strings.Contains(s.Failure, test.failure) || s.AnsweredAt.IsZero() != (test.failure != "") || s.Held != test.held {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// A probe that is given up, or a caller that hangs up, leaves the state as it is.
func TestProbesThatAreGivenUp(t *testing.T) {
	t.Parallel()
	for _, credential := range []bool{false, true} {
		r := newTestRegistry(t, newOne("right"))
		ctx, cancel := context.WithCancel(t.Context())
		r.version = func(w http.ResponseWriter, q *http.Request) {
			if (q.Header.Get("Authorization") != "") == credential {
				cancel()
				<-q.Context().Done()
			}
			basicOf("right")(w, q)
		}
		r.probe(ctx)
		if l := r.ask(ctx); l.err == nil {
			t.Errorf("%+v", l)
		}
		if _, err := r.learn(ctx); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if s := r.Status(); s.Failure != "" || !s.AnsweredAt.IsZero() {
			t.Errorf("%+v", s)
		}
	}
}

// An upstream that asked for fewer requests is not probed until then.
func TestNoProbeWhileHeld(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		c := testkit.Value(New(Config{Name: "a", URL: "http://registry.example.com", Dial: func(context.Context, string, string) (net.Conn, error) {
			return nil, errors.New("dialed")
		}}))(t)
		c.heldUntil.Store(time.Now().Add(2*probeEvery + time.Second).UnixNano())
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan bool)
		go func() { c.Run(ctx); close(done) }()
		time.Sleep(2*probeEvery + time.Second/2)
		synctest.Wait()
		if s := c.Status(); s.Failure != "" {
			t.Errorf("while it is held: %+v", s)
		}
		time.Sleep(2 * probeEvery)
		synctest.Wait()
		if s := c.Status(); !strings.Contains(s.Failure, "dialed") {
			t.Errorf("afterwards: %+v", s)
		}
		stop()
		<-done
	})
}

// The rest of the wait is that of the moment.
func TestRestOfAWait(t *testing.T) {
	t.Parallel()
	c := newTestClient(t, nil)
	limited, other := &Error{Reason: refusal.UpstreamLimited, RetryAfter: 7 * time.Second}, &Error{Reason: refusal.UpstreamCredential}
	for _, test := range []struct {
		lesson lesson
		want   refusal.Reason
		after  time.Duration
	}{
		{lesson{}, "", 0},
		{lesson{refusal: limited, until: c.now().Add(3 * time.Second)}, refusal.UpstreamLimited, 3 * time.Second},
		{lesson{refusal: limited, until: c.now()}, "", 0},
		{lesson{refusal: other, until: c.now().Add(3 * time.Second)}, refusal.UpstreamCredential, 0},
	} {
		e := c.refusal(test.lesson)
		if e == nil {
			e = &Error{}
		}
		if e.Reason != test.want || e.RetryAfter != test.after {
			t.Errorf("%+v: %+v", test.lesson, e)
		}
	}
}

// The target of a redirect may be signed: its address is in no error. The time limit and a client that hangs up are told apart.
func TestErrorsOfStorages(t *testing.T) {
	t.Parallel()
	hangUp := func(w http.ResponseWriter, _ *http.Request) {
		connection, _, _ := http.NewResponseController(w).Hijack()
		_ = connection.Close()
	}
	c := clientOf(t, hangUp, nil)
	for at, want := range map[string]string{c.base.String(): "the request failed", "http://" + testkit.FreeAddress(t): "connection refused"} {
		to := testkit.Value(url.Parse(at + "/path?signature"))(t)
		c.base.Host = to.Host // so that it may be private
		_, err := c.Follow((&http.Request{Method: http.MethodGet, URL: to, Header: http.Header{}}).WithContext(t.Context()))
		var e *Error
		if !errors.As(err, &e) || e.Reason != refusal.UpstreamUnreachable || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "signature") || strings.Contains(err.Error(), "path") {
			t.Errorf("%s: %v", at, err)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := c.Follow((&http.Request{Method: http.MethodGet, URL: to, Header: http.Header{}}).WithContext(gone)); !errors.Is(err, context.Canceled) || errors.As(err, &e) {
			t.Errorf("%s, when the client is gone: %v", at, err)
		}
	}
	// The response comes at the moment at which the time is over.
	c.patience = time.Millisecond
	var closed atomic.Bool
	response, err := c.timed("", roundTripper(func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return &http.Response{StatusCode: http.StatusOK, Body: closing{&closed}}, nil
	}), c.versionRequest(t.Context()))
	var e *Error
	if !errors.As(err, &e) || e.Reason != refusal.UpstreamTimeout || !closed.Load() {
		t.Errorf("%v, %v", response, err)
	}
	_, err = c.timed("", roundTripper(func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, errors.New("use of closed network connection")
	}), c.versionRequest(t.Context()))
	if e = nil; !errors.As(err, &e) || e.Reason != refusal.UpstreamTimeout {
		t.Errorf("%v", err)
	}
}

type closing struct{ closed *atomic.Bool }

func (closing) Read([]byte) (int, error) { return 0, io.EOF }

func (c closing) Close() error { c.closed.Store(true); return nil }

// A fault of a server is a span that failed. A usual answer of a registry is not.
func TestSpansThatFail(t *testing.T) {
	t.Parallel()
	c := newTestClient(t, nil)
	for status, want := range map[int]codes.Code{200: codes.Unset, 404: codes.Unset, 499: codes.Unset, 500: codes.Error, 503: codes.Error} {
		recorder := tracetest.NewSpanRecorder()
		ctx, root := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test").Start(t.Context(), "request")
		_, err := c.traced("x", roundTripper(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, Body: http.NoBody}, nil
		}), c.versionRequest(ctx))
		testkit.Must(t, err)
		root.End()
		if got := recorder.Ended()[0].Status().Code; got != want {
			t.Errorf("%d: %s", status, got)
		}
	}
}

// Without a result of the proxy's settings, nothing is asked directly.
func TestNoWayAroundAProxy(t *testing.T) {
	t.Parallel()
	failed := errors.New("no proxy")
	g := newGuarded(&http.Transport{Proxy: func(*http.Request) (*url.URL, error) { return nil, failed }}, func(string) bool { return true })
	c := clientOf(t, func(http.ResponseWriter, *http.Request) { t.Error("it was asked directly") }, nil)
	if _, err := g.RoundTrip(c.versionRequest(t.Context())); !errors.Is(err, failed) {
		t.Error(err)
	}
}

// Flights of different keys are apart, and one that was given up does not end the next one of its key.
func TestFlightsOfOneKey(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		var f flights[string, int]
		begun := 0
		var let []chan bool
		ask := func(context.Context) int {
			n := begun
			begun++
			let = append(let, make(chan bool))
			<-let[n]
			return n
		}
		results := make(chan int, 3)
		wait := func(ctx context.Context, key string) {
			go func() {
				value, _ := f.do(ctx, key, ask)
				results <- value
			}()
			synctest.Wait()
		}
		wait(t.Context(), "a")
		wait(t.Context(), "b")
		wait(t.Context(), "a")
		if begun != 2 {
			t.Fatalf("%d for two keys", begun)
		}
		close(let[0])
		close(let[1])
		for range 3 {
			<-results
		}
		ctx, leave := context.WithCancel(t.Context())
		wait(ctx, "a")
		leave()
		<-results
		wait(t.Context(), "a")
		close(let[2]) // what was given up ends now
		synctest.Wait()
		wait(t.Context(), "a")
		if begun != 4 {
			t.Fatalf("%d begun: the third caller did not wait for the second", begun)
		}
		close(let[3])
		if one, other := <-results, <-results; one != 3 || other != 3 {
			t.Errorf("%d and %d", one, other)
		}
	})
}

// A request whose body was begun is not sent again with the rest of it.
func TestABodyThatWasBegun(t *testing.T) {
	t.Parallel()
	var pushed atomic.Int64
	c := clientOf(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			pushed.Add(1)
			_, _ = io.ReadFull(r.Body, make([]byte, 3))
			answering(401, "WWW-Authenticate", "Basic")(w, r)
		}
	}, newOne("right"))
	r := c.versionRequest(t.Context())
	r.Method, r.Body, r.ContentLength = http.MethodPut, io.NopCloser(strings.NewReader("content")), 7
	var e *Error
	if _, err := c.Do(r, Need{}); !errors.As(err, &e) || e.Reason != refusal.UpstreamCredential || pushed.Load() != 1 {
		t.Errorf("%v; sent %d times", err, pushed.Load())
	}
}

// A request without a body is sent without one, whatever its method. Its connection serves the next one, also without TLS.
func TestRequestsWithoutABody(t *testing.T) {
	t.Parallel()
	from := make(chan string, 1)
	c := clientOf(t, func(_ http.ResponseWriter, r *http.Request) {
		if len(r.TransferEncoding) > 0 || r.ContentLength != 0 || r.Header.Get("Expect") != "" {
			t.Errorf("%s %v %d %v", r.Method, r.TransferEncoding, r.ContentLength, r.Header)
		}
		from <- r.RemoteAddr
	}, nil)
	c.wants.Store(&learned{})
	first := ""
	for i, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
		r := c.versionRequest(t.Context())
		r.Method, r.Body = method, http.NoBody
		Discard(testkit.Value(c.Do(r, Need{}))(t))
		if got := <-from; i == 0 {
			first = got
		} else if got != first {
			t.Errorf("%s: another connection", method)
		}
	}
}

// replaced is a login that was replaced when the upstream refuses it.
type replaced struct{ one }

func (r *replaced) Reject(Login) { r.password.Store("right") }

// A password that was changed is used at once.
func TestPasswordsThatWereReplaced(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"Basic", "Bearer"} {
		logins := &replaced{}
		logins.password.Store("old")
		r := newTestRegistry(t, logins)
		r.other = basicOf("right")
		if scheme == "Bearer" {
			r.other = r.bearer
			r.token = func(w http.ResponseWriter, q *http.Request) {
				basicOf("right")(w, q)
				fmt.Fprint(w, `{"token": "good"}`)
			}
		}
		if got := r.pull(t, "a"); got != "" {
			t.Errorf("%s: %q", scheme, got)
		}
	}
}

// A verdict that was given up is none.
func TestVerdictsThatAreGivenUp(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		c := testkit.Value(New(Config{Name: "a", URL: "http://registry.example.com", Logins: newOne("right"), Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}))(t)
		c.wants.Store(&learned{challenge: challenge{scheme: schemeBasic}})
		ctx, leave := context.WithCancel(t.Context())
		login := loginOf(c)
		go func() { _, _ = c.verdictOn(ctx, login, loginHash(login)) }()
		synctest.Wait()
		leave()
		synctest.Wait()
		if found, ok := c.verdicts.known.Get(loginHash(login)); ok {
			t.Errorf("%v", found.failure)
		}
	})
}

// The token that a login is tried with is counted like the others.
func TestTokensOfVerdictsAreCounted(t *testing.T) {
	t.Parallel()
	for status, failed := range map[int]uint64{200: 0, 401: 1} {
		r := newTestRegistry(t, newOne("right"))
		r.other = r.bearer
		r.token = func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, `{"token": "good"}`)
		}
		if e := r.tryLogin(t.Context(), loginOf(r.Client)); (e == nil) != (failed == 0) || r.Status().TokenRequests != 1 || r.Status().TokenFailures != failed {
			t.Errorf("%d: %v, %+v", status, e, r.Status())
		}
	}
}

func TestMemoryOfLessons(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 5000)
	for name, test := range map[string]struct {
		lesson lesson
		least  int
	}{
		"none":    {lesson{}, 0},
		"Basic":   {lesson{wants: &challenge{scheme: schemeBasic}}, 256},
		"service": {lesson{wants: &challenge{service: long}}, 5000},
		"realm":   {lesson{wants: &challenge{realm: &url.URL{Host: long}}}, 5000},
		"refusal": {lesson{refusal: &Error{Message: long}}, 5000},
	} {
		if got := test.lesson.bytes(); got < test.least || got > 2*test.least+1024 || test.least == 0 && got != 0 {
			t.Errorf("%s: %d bytes", name, got)
		}
	}
}

// Data that does not begin like a record of TLS is read as it comes.
func TestWhatIsARecord(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		kind, version byte
		isRecord      bool
	}{{19, 3, false}, {20, 3, true}, {23, 3, true}, {24, 3, true}, {25, 3, false}, {23, 2, false}, {23, 4, false}} {
		stream := append([]byte{test.kind, test.version, 3, 0, 1}, make([]byte, 100)...)
		r := &records{Conn: readerConn{Reader: strings.NewReader(string(stream))}}
		p := make([]byte, 200)
		testkit.Value(r.Read(p))(t)
		if n, err := r.Read(p); (n == 1) != test.isRecord || (n == 100) == test.isRecord || err != nil {
			t.Errorf("%d %d: %d bytes, %v", test.kind, test.version, n, err)
		}
	}
	for none, want := range map[bool]error{true: io.EOF, false: errCut} {
		r := &records{Conn: readerConn{Reader: strings.NewReader("")}, whole: true, none: none}
		if _, err := r.Read(make([]byte, 1)); !errors.Is(err, want) {
			t.Errorf("none %t: %v", none, err)
		}
	}
	if (&records{}).isQuiet(nil) {
		t.Error("what cannot be looked at is quiet")
	}
}

// Where http.Transport is used, nothing goes another way.
func TestWireUsesTheOtherWay(t *testing.T) {
	t.Parallel()
	c := clientOf(t, func(http.ResponseWriter, *http.Request) { t.Error("it was asked directly") }, nil)
	c.wire.other = roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 204, Body: http.NoBody}, nil
	})
	if response, err := c.wire.RoundTrip(c.versionRequest(t.Context())); err != nil || response.StatusCode != 204 {
		t.Errorf("%v, %v", response, err)
	}
}

// A proxy that cannot be reached, or that hangs up, is named. Without a user name, it gets none.
func TestWireProxiesThatFail(t *testing.T) {
	t.Parallel()
	w := newWire(&url.URL{Scheme: "https", Host: "registry.example.com"}, &http.Transport{
		Proxy: func(*http.Request) (*url.URL, error) { return nil, nil }, MaxResponseHeaderBytes: 64 << 10, TLSHandshakeTimeout: time.Minute,
		TLSClientConfig: &tls.Config{},
	})
	ask := func() string {
		_, err := w.RoundTrip((&http.Request{Method: http.MethodGet, URL: &url.URL{Scheme: "https", Host: "registry.example.com", Path: "/v2/"}, Header: http.Header{}}).WithContext(t.Context()))
		return fmt.Sprint(err)
	}
	for _, scheme := range []string{"http", "https"} {
		w.proxy = &url.URL{Scheme: scheme, Host: testkit.FreeAddress(t)}
		if got := ask(); !strings.HasPrefix(got, "the proxy on the way: ") || !strings.Contains(got, "connection refused") {
			t.Errorf("%s: %s", scheme, got)
		}
	}
	heard := make(chan string, 1)
	listener := testkit.Listen(t)
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			head := make([]byte, 4096)
			n, _ := c.Read(head)
			heard <- string(head[:n])
			_ = c.Close()
		}
	}()
	for scheme, begin := range map[string]string{"http": "CONNECT registry.example.com:443 HTTP/1.1\r\n", "https": "\x16\x03"} {
		w.proxy = &url.URL{Scheme: scheme, Host: listener.Addr().String()}
		if got, said := ask(), <-heard; !strings.HasPrefix(got, "the proxy on the way: ") || !strings.HasPrefix(said, begin) || strings.Contains(said, "Authorization") {
			t.Errorf("%s: %s, asked with %.100q", scheme, got, said)
		}
	}
	testkit.Must(t, listener.Close())
}

// Idle connections are closed after their time, also without another request.
func TestWireSweeps(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		w := &wire{}
		put := func() {
			ours, _ := net.Pipe()
			w.put(&wireConn{Conn: ours})
		}
		for _, step := range []struct {
			after      time.Duration
			put        bool
			idle       int
			isSweeping bool
		}{{0, true, 1, true}, {idleFor / 2, true, 2, true}, {idleFor, false, 1, true}, {idleFor, false, 0, false}, {idleFor, false, 0, false}, {0, true, 1, true}, {2 * idleFor, false, 0, false}} {
			time.Sleep(step.after)
			synctest.Wait()
			if step.put {
				put()
			}
			w.mu.Lock()
			if len(w.idle) != step.idle || w.sweeping != step.isSweeping {
				t.Errorf("%+v: %d idle, %t", step, len(w.idle), w.sweeping)
			}
			w.mu.Unlock()
		}
	})
}
