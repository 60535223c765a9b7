package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	pushScope = "repository:team-a/web:pull,push"
	jobToken  = "JOB.TOKEN.SECRET"
	sealed    = "pullpass-push.SEALED"
)

func TestWhatIsPushed(t *testing.T) {
	t.Parallel()
	for value, want := range map[string][]string{
		"":           nil,
		"  ":         nil,
		"team-a/web": {pushScope},
		" team-a/web:pull,push  team-a/base:pull ": {pushScope, "repository:team-a/base:pull"},
		"web:push,delete":                          {"repository:web:push,delete"},
		"ghcr.io/acme/web quay.example:8443/a/b_c": {"repository:ghcr.io/acme/web:pull,push", "repository:quay.example:8443/a/b_c:pull,push"},
	} {
		if got, err := parsePush(value, []string{registry}); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %q, %v, want %q", value, got, err, want)
		}
	}
	const form = "is not REPOSITORY or REPOSITORY:ACTION,ACTION"
	for value, want := range map[string]string{
		"team-a/web:v1":                        "entry 1 " + form,
		"team-a/base:pull SECRET":              "entry 2 " + form,
		"team-a/web:":                          "entry 1 " + form,
		"team-a/web:pull,":                     "entry 1 " + form,
		"team-a/web,team-a/api":                "entry 1 " + form,
		"team-a/web:*":                         "entry 1 " + form,
		"team-a/*":                             "entry 1 " + form,
		"/team-a":                              "entry 1 " + form,
		"team-a//web":                          "entry 1 " + form,
		":push":                                "entry 1 " + form,
		"team-a/web\nPATH=/evil":               "entry 1 " + form,
		"registry.example.com/team-a/web:push": "entry 1 begins with the registry; leave that out",
	} {
		got, err := parsePush(value, []string{"localhost:5443", registry})
		if err == nil || !strings.HasPrefix(err.Error(), "PULLPASS_PUSH: "+want) || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%q: %q, error %v, want %s", value, got, err, want)
		}
	}
}

// tokenEndpoint is a registry and its token endpoint, which answer what a test wants.
type tokenEndpoint struct {
	*httptest.Server
	challenges []string // {realm} is the token endpoint's address
	status     int      // of /v2/
	answer     func(w http.ResponseWriter, time int)

	mu    sync.Mutex
	forms []url.Values
	asked int // times, of /v2/
}

func newTokenEndpoint(t *testing.T) *tokenEndpoint {
	t.Helper()
	e := &tokenEndpoint{
		challenges: []string{`Bearer realm="{realm}",service="registry.example.com"`}, status: http.StatusUnauthorized,
		answer: func(w http.ResponseWriter, _ int) { writePushCredential(w, sealed, tokenTypePushCredential, pushScope) },
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v2/{$}", func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		e.asked++
		e.mu.Unlock()
		if r.Header.Get("Authorization") != "" {
			t.Error("the registry gets a credential")
		}
		for _, challenge := range e.challenges {
			w.Header().Add("WWW-Authenticate", strings.ReplaceAll(challenge, "{realm}", e.URL+"/token?by=helper"))
		}
		w.Header().Set("Location", "/token")
		w.WriteHeader(e.status)
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		err := r.ParseForm()
		if err != nil || r.URL.RawQuery != "by=helper" || len(r.Header["Authorization"]) > 0 {
			t.Errorf("POST %s: %v", r.URL, err)
		}
		e.mu.Lock()
		e.forms = append(e.forms, r.PostForm)
		time := len(e.forms)
		e.mu.Unlock()
		e.answer(w, time)
	})
	mux.HandleFunc("GET /token", func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") })
	e.Server = httptest.NewTLSServer(mux)
	t.Cleanup(e.Close)
	return e
}

func (e *tokenEndpoint) host() string { return strings.TrimPrefix(e.URL, "https://") }

func (e *tokenEndpoint) exchange(t *testing.T, scopes ...string) (credential string, refused []string, err error) {
	t.Helper()
	a := newAsker()
	a.trust(e.Server)
	return a.exchange(t.Context(), e.host(), jobToken, scopes)
}

func writePushCredential(w http.ResponseWriter, credential, kind, scope string) {
	_ = json.NewEncoder(w).Encode(map[string]any{
		"token": credential, "access_token": credential, "issued_token_type": kind, "token_type": "N_A", "expires_in": 900, "scope": scope,
	})
}

func TestExchange(t *testing.T) {
	t.Parallel()
	e := newTokenEndpoint(t)
	credential, refused, err := e.exchange(t, pushScope, "repository:team-a/base:pull")
	if err != nil || credential != sealed || !slices.Equal(refused, []string{"team-a/base:pull"}) {
		t.Errorf("credential %q, refused %q, error %v", credential, refused, err)
	}
	want := url.Values{
		"grant_type": {"urn:ietf:params:oauth:grant-type:token-exchange"}, "subject_token": {jobToken},
		"subject_token_type": {"urn:ietf:params:oauth:token-type:jwt"}, "requested_token_type": {"urn:pullpass:token-type:push-credential"},
		"service": {registry}, "scope": {pushScope + " repository:team-a/base:pull"},
	}
	if len(e.forms) != 1 || !reflect.DeepEqual(e.forms[0], want) {
		t.Errorf("asked with %v", e.forms)
	}
}

func TestNotGranted(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ asked, granted, want string }{
		{"repository:a:pull,push", "repository:a:pull,push", ""},
		{"repository:a:pull,push", "repository:a:push,pull", ""},
		{"repository:a:pull,push", "repository:a:pull repository:a:push", ""},
		{"repository:a:pull,push", "repository:a:pull", "a:push"},
		{"repository:a:pull,push repository:h:1/b:push", "repository:h:1/b:push", "a:pull a:push"},
		{"repository:a:pull", "repository:ab:pull", "a:pull"},
		{"repository:a:pull", "", "a:pull"},
	} {
		if got := strings.Join(notGranted(strings.Split(test.asked, " "), test.granted), " "); got != test.want {
			t.Errorf("%+v: %q", test, got)
		}
	}
}

// The gateway answers with the names of its own, also at the host name of an upstream.
func TestGrantedAtTheHostOfAnUpstream(t *testing.T) {
	t.Parallel()
	for scope, want := range map[string]string{"repository:ghcr.io/acme/app:pull,push": "", "repository:quay.io/acme/app:pull,push": "acme/app:pull acme/app:push"} {
		body := fmt.Appendf(nil, `{"access_token": "x", "issued_token_type": %q, "scope": %q}`, tokenTypePushCredential, scope)
		_, refused, err := pushCredential(reply{status: http.StatusOK, body: body}, "ghcr.io", "token", []string{"repository:acme/app:pull,push"})
		if got := strings.Join(refused, " "); got != want || err != nil {
			t.Errorf("%s: %q, %v", scope, got, err)
		}
	}
}

// A restart of the registry or of Pullpass does not fail a running build.
func TestExchangeIsTriedAgain(t *testing.T) {
	t.Parallel()
	e := newTokenEndpoint(t)
	e.answer = func(w http.ResponseWriter, time int) {
		if time < tries {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		writePushCredential(w, sealed, tokenTypePushCredential, pushScope)
	}
	if credential, _, err := e.exchange(t, pushScope); err != nil || credential != sealed || len(e.forms) != tries {
		t.Errorf("credential %q, error %v, asked %d times", credential, err, len(e.forms))
	}
}

// However slow a server is, a client waits for its helper no longer than that says.
func TestTriesAreInTime(t *testing.T) {
	t.Parallel()
	a := newAsker()
	all := tries*a.client.Timeout + 3*a.pause
	if a.client.Timeout == 0 || all > askTimeout {
		t.Errorf("%d tries take %s, and there are %s", tries, all, askTimeout)
	}
}

// A registry that names no token endpoint gets no token, and is not asked twice.
func TestChallenges(t *testing.T) {
	t.Parallel()
	for _, challenge := range []string{
		`Bearer realm={realm},service="registry.example.com"`, // a URL is not a token of RFC 9110
		`Bearer realm="{realm}" service="registry.example.com"`,
		`Bearer realm="{realm}";service="registry.example.com"`,
		`Bearer realm="{realm}",service="registry.example.com"x`,
		`Bearer realm="{realm}",service="registry.example.com`,
		`Bearer realm="{realm}",service="registry.example.com\`,
		`Bearer realm="{realm}",realm="https://other.example",service="registry.example.com"`,
		`Bearer realm="{realm}",REALM="{realm}",service="registry.example.com"`,
		`Bearer realm="{realm}"`,
		`Bearer realm="{realm}",service=""`,
		`Bearer realm="{realm}",service="registry.example.com",`,
		`Bearer realm="{realm}",service="registry.example.com", Basic realm="x"`,
		`Bearer realm="http://registry.example.com/token",service="registry.example.com"`,
		`Bearer realm="/token",service="registry.example.com"`,
		`Bearer realm="https:///token",service="registry.example.com"`,
		`Bearer realm="https://user:pw@registry.example.com/token",service="registry.example.com"`,
		`Bearer realm="https://registry.example.com/token#x",service="registry.example.com"`,
		`Bearer realm="https://registry.example.com/%zz",service="registry.example.com"`,
		`Bearer service="registry.example.com"`,
		`Bearer`,
		`Bearer  `,
		`Bearer abc`,
	} {
		e := newTokenEndpoint(t)
		e.challenges = []string{challenge}
		_, _, err := e.exchange(t, pushScope)
		if want := "PULLPASS_PUSH: " + e.URL + "/v2/: " + errChallenge.Error(); err == nil || err.Error() != want || len(e.forms) != 0 {
			t.Errorf("%s: error %v, asked %d times", challenge, err, len(e.forms))
		}
	}
	for _, challenges := range [][]string{
		{`bearer  REALM="{realm}" , service="registry.\example.com",scope="x y",error=invalid_token`},
		{`Basic realm="x"`, `Bearer realm="{realm}",service="registry.example.com"`},
	} {
		e := newTokenEndpoint(t)
		e.challenges = challenges
		if _, _, err := e.exchange(t, pushScope); err != nil || len(e.forms) != 1 || e.forms[0].Get("service") != registry {
			t.Errorf("%q: %v, asked with %v", challenges, err, e.forms)
		}
	}
}

// FuzzChallenge: what is read of a challenge, written out, is read again.
func FuzzChallenge(f *testing.F) {
	f.Add(`realm="https://registry.example.com/token", service="a\"b"`)
	f.Add(`realm=a,service=b ,x="\\"`)
	f.Fuzz(func(t *testing.T, s string) {
		parameters, ok := parseParameters(s)
		if !ok {
			return
		}
		var again []string
		for name, value := range parameters {
			again = append(again, name+`="`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(value)+`"`)
		}
		if got, ok := parseParameters(strings.Join(again, ", ")); !ok || !reflect.DeepEqual(got, parameters) {
			t.Errorf("%q is read as %q, and that as %q", s, parameters, got)
		}
	})
}

func TestExchangeRefusals(t *testing.T) {
	t.Parallel()
	api := func(status int, challenges ...string) func(*tokenEndpoint) {
		return func(e *tokenEndpoint) { e.status, e.challenges = status, challenges }
	}
	answer := func(status int, body string) func(*tokenEndpoint) {
		return func(e *tokenEndpoint) {
			e.answer = func(w http.ResponseWriter, _ int) {
				w.Header().Set("Location", "/token")
				w.WriteHeader(status)
				fmt.Fprint(w, body)
			}
		}
	}
	issued := func(credential, kind string) func(*tokenEndpoint) {
		return func(e *tokenEndpoint) {
			e.answer = func(w http.ResponseWriter, _ int) { writePushCredential(w, credential, kind, pushScope) }
		}
	}
	const at, of = "/v2/: ", "/token?by=helper: "
	for _, test := range []struct {
		name        string
		set         func(*tokenEndpoint)
		asked       int // times, of the registry
		exchanged   int // times, of the token endpoint
		place, want string
	}{
		{"anonymous access", api(200), 1, 0, at, errNoEndpoint.Error()},
		{"moved", api(307), 1, 0, at, "answered 307, and should have asked for a token with 401"},
		{"no registry", api(404), 1, 0, at, "answered 404, and should have asked for a token with 401"},
		{"not now", api(503), tries, 0, at, "answered 503, and should have asked for a token with 401"},
		{"by password", api(401, `Basic realm="x"`), 1, 0, at, `answered 401, and names no token endpoint (WWW-Authenticate: Bearer), but the schemes ["Basic"]; ` +
			"only registries that have Pullpass as token endpoint take a push credential"},
		{"long headers", api(401, strings.Repeat("x", maxAnswerSize)), tries, 0, at, "net/http: HTTP/1.x transport connection broken: net/http: server response headers exceeded 32768 bytes; aborted"},
		{"two", api(401, `Bearer realm="{realm}",service="a"`, `Bearer realm="{realm}",service="b"`), 1, 0, at, errChallenges.Error()},

		{"refused", answer(403, `{"errors":[{"code":"DENIED","message":"push credentials are for identities[] alone"}]}`), 1, 1, of,
			"answered 403: push credentials are for identities[] alone"},
		{"unavailable", answer(503, `{"errors":[{"message":"try again"}]}`), 1, tries, of, "answered 503: try again"},
		{"redirected", answer(307, ""), 1, 1, of, "answered 307"},
		{"the token in a message", answer(401, `{"errors":[{"message":"bad token `+jobToken+`"}]}`), 1, 1, of, "answered 401"},
		{"the end of the token", answer(401, `{"errors":[{"message":"bad signature `+jobToken[len(jobToken)-maxQuoted:]+`"}]}`), 1, 1, of, "answered 401"},
		{"less of the token", answer(401, `{"errors":[{"message":"bad `+jobToken[:maxQuoted-1]+`"}]}`), 1, 1, of, "answered 401: bad " + jobToken[:maxQuoted-1]},
		{"the token with a blank", answer(401, `{"errors":[{"message":"bad `+jobToken[:5]+" "+jobToken[5:]+`"}]}`), 1, 1, of, "answered 401"},
		{"a message of two lines", answer(401, `{"errors":[{"message":"a\nb"}]}`), 1, 1, of, "answered 401"},
		{"a long message", answer(401, `{"errors":[{"message":"`+strings.Repeat("a", maxMessageSize+1)+`"}]}`), 1, 1, of, "answered 401"},
		{"too much", answer(200, strings.Repeat(" ", maxAnswerSize+1)), 1, 1, of, errAnswerSize.Error()},
		{"no JSON", answer(200, "x"), 1, 1, of, errNoPush.Error()},
		{"a token instead", issued(sealed, "urn:ietf:params:oauth:token-type:access_token"), 1, 1, of, errNoPush.Error()},
		{"no type", issued(sealed, ""), 1, 1, of, errNoPush.Error()},
		{"nothing", issued("", tokenTypePushCredential), 1, 1, of, errNoPush.Error()},
		{"an invalid password", issued("a\nb", tokenTypePushCredential), 1, 1, of, errNoPush.Error()},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			e := newTokenEndpoint(t)
			test.set(e)
			credential, _, err := e.exchange(t, pushScope)
			if want := "PULLPASS_PUSH: " + e.URL + test.place + test.want; credential != "" || err == nil || err.Error() != want {
				t.Errorf("credential %q, error %v, want %s", credential, err, want)
			}
			if e.asked != test.asked || len(e.forms) != test.exchanged {
				t.Errorf("asked the registry %d times and its token endpoint %d times", e.asked, len(e.forms))
			}
		})
	}
}

// A registry that cannot be asked is no reason to hand out what lives shorter.
func TestNoPushCredentialIsNoToken(t *testing.T) {
	t.Parallel()
	const server = "registry.example.com:port" // no address, so that it is not tried again
	now := time.Now()
	env := environment{"PULLPASS_REGISTRIES": server, "PULLPASS_ID_TOKEN": newToken(t, server, now), "PULLPASS_PUSH": "team-a/web"}
	output := printed(t, 1, []string{"get"}, env, now, strings.NewReader(server))
	if want := "docker-credential-pullpass: PULLPASS_PUSH: https://" + server + "/v2/: not an address\n"; output != want {
		t.Errorf("printed %s, want %s", output, want)
	}
}
