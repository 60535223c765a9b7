package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// one is the Logins of a user whose password can be changed. It counts rejections.
type one struct {
	password atomic.Value
	rejected atomic.Int64
}

func newOne(password string) *one {
	o := &one{}
	o.password.Store(password)
	return o
}

func (o *one) Login(context.Context, string) (Login, error) {
	return Login{Username: "robot", Password: registryauth.NewSecret(o.password.Load().(string))}, nil
}

func (o *one) Reject(Login) { o.rejected.Add(1) }

// registry is an upstream with a clock. It counts its requests.
type registry struct {
	*Client
	url     string
	mu      sync.Mutex
	now     time.Time
	version http.HandlerFunc // of GET /v2/; nil: as for all
	token   http.HandlerFunc // of the token endpoint; nil: a token
	other   http.HandlerFunc // of everything else
	asked   map[string]int
}

func newTestRegistry(t *testing.T, logins Logins) *registry {
	r := &registry{now: time.Unix(1e9, 0), asked: map[string]int{}}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	r.url = server.URL
	c := testkit.Value(New(Config{Name: "a", URL: server.URL, Logins: logins, Now: func() time.Time {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.now
	}}))(t)
	r.Client = c
	return r
}

func (r *registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	r.asked[q.URL.Path]++
	version, token, other := r.version, r.token, r.other
	r.mu.Unlock()
	switch {
	case q.URL.Path == "/v2/" && version != nil:
		version(w, q)
	case q.URL.Path == "/token" && token != nil:
		token(w, q)
	case q.URL.Path == "/token":
		fmt.Fprint(w, `{"token": "good", "expires_in": 300}`)
	default:
		other(w, q)
	}
}

func (r *registry) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// count returns the number of requests for a path since the last call.
func (r *registry) count(path string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.asked[path]
	delete(r.asked, path)
	return n
}

// pull requests a manifest of a repository, and returns the reason of the failure.
func (r *registry) pull(t *testing.T, repository string) refusal.Reason {
	t.Helper()
	return r.pullAs(t, "a", repository)
}

// pullAs is pull by a holder that is its own caller and tenant.
func (r *registry) pullAs(t *testing.T, holder, repository string) refusal.Reason {
	t.Helper()
	u := *r.Base()
	u.Path = "/v2/" + repository + "/manifests/v1"
	request := (&http.Request{Method: http.MethodGet, URL: &u, Header: http.Header{}}).WithContext(t.Context())
	response, err := r.Do(request, Need{Caller: holder, Holder: holder, Tenant: holder, Scopes: []registryauth.Scope{{Type: "repository", Name: repository, Actions: []string{"pull"}}}})
	var e *Error
	switch {
	case err == nil:
		Discard(response)
		return ""
	case !errors.As(err, &e):
		t.Fatal(err)
	}
	return e.Reason
}

func (r *registry) bearer(w http.ResponseWriter, q *http.Request) {
	if q.Header.Get("Authorization") != "Bearer good" {
		w.Header().Set("WWW-Authenticate", `Bearer realm="`+r.url+`/token",service="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	}
}

func basicOf(password string) http.HandlerFunc {
	return func(w http.ResponseWriter, q *http.Request) {
		if _, got, _ := q.BasicAuth(); got != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		}
	}
}

func answering(status int, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
	}
}

// The result of a GET /v2/, which holds for all, ends with the next one.
func TestWhatHoldsForAllEnds(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		version http.HandlerFunc
		want    refusal.Reason
	}{
		"401 without a challenge": {answering(401), refusal.UpstreamCredential},
		"401 of another kind":     {answering(401, "WWW-Authenticate", "Negotiate"), refusal.UpstreamCredential},
		"Bearer of nowhere":       {answering(401, "WWW-Authenticate", `Bearer realm="http://127.0.0.1:1/token"`), refusal.UpstreamUnreachable},
		"429":                     {answering(429, "Retry-After", "60"), refusal.UpstreamLimited},
		"500":                     {answering(500), refusal.UpstreamFailing},
		"404":                     {answering(404), refusal.UpstreamInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newTestRegistry(t, newOne("right"))
			r.version, r.other = test.version, basicOf("right")
			for _, repository := range []string{"a", "b"} {
				if got := r.pull(t, repository); got != test.want {
					t.Errorf("%s: %q, want %q", repository, got, test.want)
				}
			}
			r.set(func() { r.version, r.now = nil, r.now.Add(61*time.Second) })
			if name == "Bearer of nowhere" {
				r.probe(t.Context()) // by Run: pulls do not request a supported challenge anew
			}
			for _, repository := range []string{"a", "b"} {
				if got := r.pull(t, repository); got != "" {
					t.Errorf("%s, afterwards: %q", repository, got)
				}
			}
		})
	}
}

// A 429 for one repository holds for that repository and that holder. A 429 to GET /v2/ holds for
// all.
func TestHolds(t *testing.T) {
	t.Parallel()
	r := newTestRegistry(t, nil)
	r.other = func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == "/v2/hostile/manifests/v1" {
			answering(429, "Retry-After", "30")(w, q)
		}
	}
	for range 3 {
		if got := r.pull(t, "hostile"); got != refusal.UpstreamLimited {
			t.Errorf("%q", got)
		}
	}
	if n := r.count("/v2/hostile/manifests/v1"); n != 1 {
		t.Errorf("what wants fewer requests was asked %d times", n)
	}
	if got := r.pull(t, "a"); got != "" || r.Status().Held {
		t.Errorf("another repository: %q, %+v", got, r.Status())
	}
	r.set(func() { r.now, r.version = r.now.Add(31*time.Second), answering(429, "Retry-After", "30") })
	r.count("/v2/hostile/manifests/v1")
	r.probe(t.Context())
	if got := r.pull(t, "a"); got != refusal.UpstreamLimited || !r.Status().Held {
		t.Errorf("%q, %+v", got, r.Status())
	}
	r.set(func() { r.now = r.now.Add(probeAgain - time.Millisecond) })
	if got := r.pull(t, "a"); got != refusal.UpstreamLimited || !r.Status().Held {
		t.Errorf("before the next probe: %q, %+v", got, r.Status())
	}
	r.set(func() { r.now = r.now.Add(time.Millisecond) })
	if got := r.pull(t, "a"); got != "" || r.Status().Held {
		t.Errorf("afterwards: %q, %+v", got, r.Status())
	}
}

// loginPerCaller gives each caller a login of its own, and the gateway none.
type loginPerCaller struct{}

func (loginPerCaller) Login(_ context.Context, caller string) (Login, error) {
	if caller == "" {
		return Login{}, ErrNoCaller
	}
	return Login{Username: "oidc", Password: registryauth.NewSecret(caller)}, nil
}

func (loginPerCaller) Reject(Login) {}

// An upstream that counts by login limits one caller. The others are not held back.
func TestTheLimitOfOneLoginHoldsForItsCallerOnly(t *testing.T) {
	t.Parallel()
	r := newTestRegistry(t, loginPerCaller{})
	r.version = func(w http.ResponseWriter, q *http.Request) {
		switch _, password, _ := q.BasicAuth(); password {
		case "":
			answering(401, "WWW-Authenticate", `Basic realm="x"`)(w, q)
		case "limited":
			answering(429, "Retry-After", "60")(w, q)
		}
	}
	r.other = func(w http.ResponseWriter, q *http.Request) {
		if strings.HasPrefix(q.URL.Path, "/v2/mine/") { // a repository of the limited caller, behind a proxy of its own
			answering(401, "WWW-Authenticate", `Basic realm="x"`)(w, q)
		}
	}
	for range 5 {
		if got := r.pullAs(t, "limited", "mine/x"); got == "" {
			t.Error("the caller's own repository answers")
		}
		r.probe(t.Context())
		if got := r.pullAs(t, "other", "other/x"); got != "" || r.Status().Held {
			t.Errorf("another caller: %s, %+v", got, r.Status())
		}
		r.set(func() { r.now = r.now.Add(refusedFor) })
	}
}

// A login that one repository refuses is kept. A login that is refused for GET /v2/ too is
// rejected, and is not tried repeatedly.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"Basic", "Bearer"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			logins := newOne("right")
			r := newTestRegistry(t, logins)
			r.other = basicOf("right")
			r.token = func(w http.ResponseWriter, q *http.Request) {
				if q.URL.Query().Get("scope") == "repository:hostile:pull" {
					w.WriteHeader(http.StatusForbidden)
					return
				}
				basicOf("right")(w, q)
				fmt.Fprint(w, `{"token": "good", "expires_in": 300}`)
			}
			if scheme == "Bearer" {
				r.other = r.bearer
			}
			good := r.other
			r.other = func(w http.ResponseWriter, q *http.Request) {
				if scheme == "Basic" && q.URL.Path == "/v2/hostile/manifests/v1" {
					basicOf("none")(w, q)
					return
				}
				good(w, q)
			}
			for range 10 {
				if got := r.pull(t, "hostile"); got != refusal.UpstreamCredential {
					t.Errorf("the hostile one: %q", got)
				}
				if got := r.pull(t, "a"); got != "" {
					t.Errorf("the other repository: %q", got)
				}
				r.set(func() { r.now = r.now.Add(3 * time.Second) })
			}
			if n := logins.rejected.Load(); n != 0 {
				t.Errorf("a good login was rejected %d times", n)
			}

			logins.password.Store("wrong")
			r.set(func() { r.now = r.now.Add(time.Hour) })
			count := func() int { return r.count("/v2/") + r.count("/token") + r.count("/v2/b/manifests/v1") }
			count()
			for range 10 {
				if got := r.pull(t, "b"); got != refusal.UpstreamCredential {
					t.Errorf("a wrong one: %q", got)
				}
			}
			if n := count(); n > 2 || logins.rejected.Load() != 1 {
				t.Errorf("a wrong password was sent %d times, and rejected %d times", n, logins.rejected.Load())
			}
			r.set(func() { r.now = r.now.Add(refusedFor) })
			if got := r.pull(t, "b"); got != refusal.UpstreamCredential || count() != 1 {
				t.Errorf("again: %q", got)
			}
			r.set(func() { r.now = r.now.Add(refusedFor) })
			logins.password.Store("right")
			if got := r.pull(t, "b"); got != "" {
				t.Errorf("a right one: %q", got)
			}
		})
	}
}

// If the upstream accepts a password again, its callers are served again.
func TestALoginIsTakenAgain(t *testing.T) {
	t.Parallel()
	logins := newOne("right")
	r := newTestRegistry(t, logins)
	r.other = basicOf("none")
	if got := r.pull(t, "a"); got != refusal.UpstreamCredential {
		t.Errorf("%q", got)
	}
	r.set(func() { r.other = basicOf("right") })
	if got := r.pull(t, "a"); got != refusal.UpstreamCredential {
		t.Errorf("at once: %q", got)
	}
	r.set(func() { r.now = r.now.Add(refusedFor) })
	if got := r.pull(t, "a"); got != "" {
		t.Errorf("after a moment: %q", got)
	}
}

// A refused token is replaced once, and not for each request.
func TestARefusedTokenIsReplacedOnce(t *testing.T) {
	t.Parallel()
	r := newTestRegistry(t, newOne("right"))
	r.version = r.bearer
	r.other = func(w http.ResponseWriter, _ *http.Request) { r.bearer(w, &http.Request{Header: http.Header{}}) }
	for range 10 {
		if got := r.pull(t, "a"); got != refusal.UpstreamDenied {
			t.Errorf("%q", got)
		}
	}
	if n := r.count("/token"); n != 2 {
		t.Errorf("%d tokens for ten requests", n)
	}
	r.set(func() { r.now = r.now.Add(refusedFor) })
	if got := r.pull(t, "a"); got != refusal.UpstreamDenied || r.count("/token") != 1 {
		t.Errorf("%q", got)
	}
}

// If GET /v2/ requires no credential, each repository has its own challenge. A request for it is
// then not sent twice each time.
func TestARepositoryWithAChallengeOfItsOwn(t *testing.T) {
	t.Parallel()
	r := newTestRegistry(t, newOne("right"))
	r.version, r.other = answering(200), r.bearer
	for range 3 {
		if got := r.pull(t, "a"); got != "" {
			t.Errorf("%q", got)
		}
	}
	if n := r.count("/v2/a/manifests/v1"); n != 4 {
		t.Errorf("three pulls were %d requests", n)
	}
	// Its token endpoint has gone: the old challenge is forgotten.
	r.set(func() {
		r.now, r.token, r.other = r.now.Add(time.Hour), answering(500), answering(200)
	})
	if got := r.pull(t, "a"); got != refusal.UpstreamFailing {
		t.Errorf("%q", got)
	}
	if got := r.pull(t, "a"); got != "" {
		t.Errorf("afterwards: %q", got)
	}
}

// The owner of a repository may create lessons without end. They use up its own share of the memory
// for tokens and lessons, and not the shares of others.
func TestOneTenantDoesNotTakeWhatIsRemembered(t *testing.T) {
	t.Parallel()
	r := newTestRegistry(t, newOne("right"))
	n := 0
	long := strings.Repeat("x", 15<<10)
	r.version = r.bearer
	r.token = func(w http.ResponseWriter, q *http.Request) {
		token := "good"
		if q.URL.Query().Has("n") {
			token = q.URL.Query().Get("n") + long
		}
		fmt.Fprintf(w, `{"token": %q, "expires_in": 300}`, token)
	}
	r.other = func(w http.ResponseWriter, q *http.Request) {
		switch {
		case !strings.HasPrefix(q.URL.Path, "/v2/hostile"):
			if q.Header.Get("Authorization") != "Bearer good" {
				w.Header().Set("WWW-Authenticate", `Bearer realm="`+r.url+`/token",service="y"`)
				w.WriteHeader(http.StatusUnauthorized)
			}
		case len(q.Header.Get("Authorization")) < len(long):
			n++
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token?n=%d&%s",service="x"`, r.url, n, long[:7000]))
			w.WriteHeader(http.StatusUnauthorized)
		}
	}
	r.version = answering(200)
	r.pullAs(t, "neighbour", "a")
	if got := r.pullAs(t, "neighbour", "a"); got != "" || r.count("/token") != 1 || r.count("/v2/a/manifests/v1") != 3 {
		t.Fatalf("%q", got)
	}
	for i := range 300 {
		if got := r.pullAs(t, "attacker", fmt.Sprint("hostile", i)); got != "" {
			t.Fatalf("%q", got)
		}
	}
	if got := r.count("/token"); got != 300 {
		t.Fatalf("%d tokens", got)
	}
	if got := r.pullAs(t, "neighbour", "a"); got != "" || r.count("/token") != 0 || r.count("/v2/a/manifests/v1") != 1 {
		t.Errorf("%q, and what was remembered is lost", got)
	}
}

// A repository with a different challenge each time gets two requests for each.
func TestChallengesThatChangeEndlessly(t *testing.T) {
	t.Parallel()
	r := newTestRegistry(t, newOne("right"))
	r.version = answering(200)
	n := 0
	r.other = func(w http.ResponseWriter, _ *http.Request) {
		n++
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token?n=%d",service="x"`, r.url, n))
		w.WriteHeader(http.StatusUnauthorized)
	}
	for range 3 {
		if got := r.pull(t, "a"); got != refusal.UpstreamDenied && got != refusal.UpstreamCredential || r.count("/v2/a/manifests/v1") != 2 {
			t.Errorf("%q after %d requests", got, n)
		}
	}
}

// Only the needed scopes are requested, whatever the realm says. A token that registries would not
// accept is not kept.
func TestRealmsOfARepository(t *testing.T) {
	t.Parallel()
	r := newTestRegistry(t, newOne("right"))
	r.version = answering(200)
	r.other = func(w http.ResponseWriter, q *http.Request) {
		if q.Header.Get("Authorization") != "Bearer good" {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+r.url+`/token?scope=repository:other:pull&account=x",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		}
	}
	var query url.Values
	r.token = func(w http.ResponseWriter, q *http.Request) {
		query = q.URL.Query()
		fmt.Fprint(w, `{"token": "good", "expires_in": 300}`)
	}
	if got := r.pull(t, "a"); got != "" || query.Get("account") != "x" || !slices.Equal(query["scope"], []string{"repository:a:pull"}) {
		t.Errorf("%q, asked with %v", got, query)
	}
	for bytes, want := range map[int]refusal.Reason{maxTokenBytes: refusal.UpstreamDenied, maxTokenBytes + 1: refusal.UpstreamInvalid} {
		r.set(func() {
			r.token = func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprintf(w, `{"token": %q}`, strings.Repeat("x", bytes))
			}
		})
		if got := r.pull(t, fmt.Sprint("b", bytes)); got != want {
			t.Errorf("a token of %d bytes: %q, want %q", bytes, got, want)
		}
	}
}

// Callers that wait for the same key get the same value. A request without waiting callers ends.
func TestFlights(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		var f flights[string, int]
		begun, ended := 0, 0
		ask := func(ctx context.Context) int {
			begun++
			select {
			case <-ctx.Done():
				ended++
			case <-time.After(time.Minute):
			}
			return begun
		}
		first, leave := context.WithCancel(t.Context())
		second, leaveToo := context.WithCancel(t.Context())
		errs := make(chan error, 3)
		wait := func(ctx context.Context) {
			_, err := f.do(ctx, "a", ask)
			errs <- err
		}
		go wait(first)
		go wait(second)
		synctest.Wait()
		leave()
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		synctest.Wait()
		if begun != 1 || ended != 0 {
			t.Errorf("begun %d, ended %d, but one caller still waits", begun, ended)
		}
		leaveToo()
		<-errs
		synctest.Wait()
		if ended != 1 || len(f.all) != 0 {
			t.Errorf("ended %d, but no caller waits", ended)
		}
		if got, err := f.do(t.Context(), "a", ask); err != nil || got != 2 {
			t.Errorf("%d, %v", got, err)
		}
	})
}

// pipes is a listener for connections within the process, for synctest.
type pipes struct{ all chan net.Conn }

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p.all
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// Run probes soon after a failed request, but not after each one. Only the result of its own
// request decides.
func TestRunFindsOut(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		var versions, version atomic.Int64
		version.Store(http.StatusOK)
		p := pipes{make(chan net.Conn)}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Path == "/v2/" {
				versions.Add(1)
				w.WriteHeader(int(version.Load()))
				return
			}
			w.WriteHeader(http.StatusInternalServerError)
		})}
		go server.Serve(p)
		c := testkit.Value(New(Config{Name: "a", URL: "http://registry.example.com"}))(t)
		c.wire.dial = func(context.Context, string, string) (net.Conn, error) {
			client, other := net.Pipe()
			p.all <- other
			return client, nil
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan bool)
		go func() { c.Run(ctx); close(done) }()
		synctest.Wait()
		fail := func() {
			u := *c.Base()
			u.Path = "/v2/a/manifests/v1"
			_, err := c.Do((&http.Request{Method: http.MethodGet, URL: &u, Header: http.Header{}}).WithContext(ctx), Need{})
			var e *Error
			if !errors.As(err, &e) || e.Reason != refusal.UpstreamFailing {
				t.Errorf("%v", err)
			}
		}
		for range 100 {
			fail()
			time.Sleep(100 * time.Millisecond)
		}
		synctest.Wait()
		if s, n := c.Status(), versions.Load(); n > 4 || n < 2 || s.Failure != "" {
			t.Errorf("%d probes in ten seconds, %+v", n, s)
		}
		version.Store(http.StatusInternalServerError)
		fail()
		time.Sleep(2 * probeAgain)
		synctest.Wait()
		if s := c.Status(); s.Failure == "" {
			t.Errorf("%+v", s)
		}
		version.Store(http.StatusOK)
		time.Sleep(probeEvery + probeAgain)
		synctest.Wait()
		if s := c.Status(); s.Failure != "" {
			t.Errorf("%+v", s)
		}
		stop()
		<-done
		close(p.all)
		_ = server.Close()
	})
}
