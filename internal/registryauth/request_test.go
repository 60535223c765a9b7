package registryauth

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"unsafe"

	"golang.org/x/tools/txtar"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

const (
	requestJWT      = "eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJpc3MiOiJodHRwczovL2sifQ.c2lnbmF0dXJl"
	requestExchange = "urn:ietf:params:oauth:grant-type:token-exchange"
	requestPassword = "grant_type=password&password=p&service=s"
)

// TestParseRequest replays every distinct shape of request that ten real clients send, and further
// ones that the standards allow. testdata/requests holds pairs: a request as sent (except its
// Content-Length), and its meaning.
func TestParseRequest(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/requests/*.txtar")
	if err != nil || len(files) < 12 {
		t.Fatalf("found %d files: %v", len(files), err)
	}
	for _, file := range files {
		archive := testkit.Value(txtar.ParseFile(file))(t)
		if len(archive.Files) == 0 || len(archive.Files)%2 != 0 {
			t.Fatalf("%s holds %d parts, want pairs", file, len(archive.Files))
		}
		for i := 0; i < len(archive.Files); i += 2 {
			request, want := archive.Files[i], archive.Files[i+1]
			name := strings.TrimSuffix(request.Name, ".http")
			if want.Name != name+".want" {
				t.Fatalf("%s: %s is followed by %s", file, request.Name, want.Name)
			}
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar")+"/"+name, func(t *testing.T) {
				t.Parallel()
				req := testkit.Value(ParseRequest(requestFromWire(t, string(request.Data))))(t)
				if got := requestString(req); got != string(want.Data) {
					t.Errorf("got\n%swant\n%s", got, want.Data)
				}
			})
		}
	}
}

// The limits themselves are allowed.
func TestParseRequestTakesTheLongestCredential(t *testing.T) {
	t.Parallel()
	token, name := strings.Repeat("p", MaxTokenBytes), strings.Repeat("n", maxTextBytes)
	for what, r := range map[string]*http.Request{
		"Basic":  requestGet("service=s", "Authorization", requestBasic("Basic", name, token)),
		"Bearer": requestGet("service=s&account="+name, "Authorization", "Bearer "+token),
		"form":   requestForm("grant_type=password&service=s&password=" + token + "&username=" + name),
	} {
		req, err := ParseRequest(r)
		if err != nil || req.Credential.Reveal() != token || req.Account != name {
			t.Errorf("%s: account of %d bytes, credential of %d bytes, %v", what, len(req.Account), len(req.Credential.Reveal()), err)
		}
	}
}

func TestParseRequestForAPushCredential(t *testing.T) {
	t.Parallel()
	exchange := "grant_type=" + requestExchange + "&service=s&subject_token=x&subject_token_type=" + tokenTypeJWT
	for form, want := range map[string]bool{
		exchange: false,
		exchange + "&requested_token_type=" + tokenTypeAccessToken:                                           false,
		exchange + "&requested_token_type=" + TokenTypePushCredential:                                        true,
		"grant_type=password&service=s&password=p&requested_token_type=" + TokenTypePushCredential:           false,
		"grant_type=refresh_token&service=s&refresh_token=p&requested_token_type=" + TokenTypePushCredential: false,
	} {
		if req, err := ParseRequest(requestForm(form)); err != nil || req.Push != want {
			t.Errorf("%s: %t, %v", form, req.Push, err)
		}
	}
}

func TestParseRequestRefuses(t *testing.T) {
	t.Parallel()
	basic := requestBasic("Basic", "u", "p")
	exchange := "grant_type=" + requestExchange + "&service=s&subject_token=x&subject_token_type=" + tokenTypeJWT
	twoOf := func(r *http.Request, name string) *http.Request {
		r.Header[name] = append(r.Header[name], r.Header[name]...)
		return r
	}
	without := func(r *http.Request, name string) *http.Request {
		r.Header.Del(name)
		return r
	}
	cases := map[string]requestRefusal{
		"HEAD":         {httptest.NewRequest("HEAD", "/token?service=s", nil), "invalid_request", "method", "use GET or POST"},
		"PUT":          {httptest.NewRequest("PUT", "/token?service=s", nil), "invalid_request", "method", "use GET or POST"},
		"GET, a body":  {httptest.NewRequest("GET", "/token?service=s", strings.NewReader("x")), "invalid_request", "body", "a GET has none"},
		"GET, chunked": {requestChunked("GET", "x"), "invalid_request", "body", "a GET has none"},

		// What is the target? distribution always says.
		"no service":             {requestGet("scope=repository:a:pull"), "invalid_request", "service", "is missing"},
		"an empty service":       {requestGet("service="), "invalid_request", "service", "is missing"},
		"a form, no service":     {requestForm("grant_type=password&password=p"), "invalid_request", "service", "is missing"},
		"an audience alone":      {requestForm("grant_type=password&password=p&audience=s"), "invalid_target", "audience", "differs from service"},
		"another audience":       {requestForm(exchange + "&audience=t"), "invalid_target", "audience", "differs from service"},
		"a resource":             {requestForm(exchange + "&resource=https%3A%2F%2Fr"), "invalid_target", "resource", "not supported"},
		"too many parameters":    {requestGet("service=s" + strings.Repeat("&x", maxParameters)), "invalid_request", "parameters", "more than 2048"},
		"too many form fields":   {requestForm(requestPassword + strings.Repeat("&", 1+maxParameters)), "invalid_request", "parameters", "more than 2048"},
		"too long a query":       {requestGet("service=s&x=" + strings.Repeat("x", MaxBodyBytes)), "invalid_request", "query", "longer than 65536"},
		"too long a POST query":  {requestFormAt("/token?x="+strings.Repeat("x", MaxBodyBytes), requestPassword), "invalid_request", "query", "longer than 65536"},
		"a semicolon":            {requestGet("service=s;scope=x"), "invalid_request", "parameters", "write %3B"},
		"a semicolon in a form":  {requestForm(requestPassword + ";x=y"), "invalid_request", "parameters", "write %3B"},
		"half an escape":         {requestGet("service=s&x=%2"), "invalid_request", "parameters", "two hexadecimal digits"},
		"an escape in a name":    {requestGet("service=s&%zz=x"), "invalid_request", "parameters", "two hexadecimal digits"},
		"no escape in a form":    {requestForm(requestPassword + "&username=100%"), "invalid_request", "parameters", "two hexadecimal digits"},
		"a bad query on a POST":  {requestFormAt("/token?%", requestPassword), "invalid_request", "parameters", "two hexadecimal digits"},
		"service in a POST URL":  {requestFormAt("/token?service=s", requestPassword), "invalid_request", "service", "in the URL of a POST"},
		"scope in a POST URL":    {requestFormAt("/token?scope=repository:a:pull", requestPassword), "invalid_request", "scope", "in the URL of a POST"},
		"password in a POST URL": {requestFormAt("/token?password=p", "grant_type=password&service=s"), "invalid_request", "password", "in the URL of a POST"},

		// Two headers: a proxy in front may have judged the other one.
		"two Authorization headers": {twoOf(requestGet("service=s", "Authorization", basic), "Authorization"), "invalid_request", "Authorization", "several times"},
		// The header and the form: which one is the client?
		"Authorization and a form":         {requestForm(requestPassword, "Authorization", basic), "invalid_request", "Authorization", "in the form alone"},
		"Authorization and no credential":  {requestForm("grant_type=password&service=s", "Authorization", basic), "invalid_request", "Authorization", "in the form alone"},
		"an empty Authorization":           {requestGet("service=s", "Authorization", ""), "invalid_request", "Authorization", "the scheme Basic or Bearer"},
		"an empty Authorization on a POST": {requestForm(requestPassword, "Authorization", ""), "invalid_request", "Authorization", "in the form alone"},
		"another scheme":                   {requestGet("service=s", "Authorization", "Digest x"), "invalid_request", "Authorization", "the scheme Basic or Bearer"},
		"no scheme":                        {requestGet("service=s", "Authorization", requestJWT), "invalid_request", "Authorization", "the scheme Basic or Bearer"},
		"a look-alike scheme":              {requestGet("service=s", "Authorization", "Ba\u017fic dTpw"), "invalid_request", "Authorization", "the scheme Basic or Bearer"},
		"Bearer alone":                     {requestGet("service=s", "Authorization", "Bearer"), "invalid_request", "Authorization", "holds no password or token"},
		"two Bearer tokens":                {requestGet("service=s", "Authorization", "Bearer a, Bearer b"), "invalid_request", "Authorization", "one token"},
		"Bearer and two spaces":            {requestGet("service=s", "Authorization", "Bearer  a"), "invalid_request", "Authorization", "one token"},
		"too long a list of tokens":        {requestGet("service=s", "Authorization", "Bearer a, "+strings.Repeat("a", MaxTokenBytes)), "invalid_request", "Authorization", "longer than 16384"},
		"too long a Bearer token":          {requestGet("service=s", "Authorization", "Bearer "+strings.Repeat("a", MaxTokenBytes+1)), "invalid_request", "Authorization", "longer than 16384"},
		"Basic alone":                      {requestGet("service=s", "Authorization", "Basic"), "invalid_request", "Authorization", "no ':'"},
		"Basic without a colon":            {requestGet("service=s", "Authorization", "Basic dXNlcg=="), "invalid_request", "Authorization", "no ':'"},
		"Basic without a password":         {requestGet("service=s", "Authorization", requestBasic("Basic", "u", "")), "invalid_request", "Authorization", "holds no password or token"},
		"Basic without padding":            {requestGet("service=s", "Authorization", "Basic dTpwcA"), "invalid_request", "Authorization", "padded standard base64"},
		"Basic with trailing bits":         {requestGet("service=s", "Authorization", "Basic dTpwcB=="), "invalid_request", "Authorization", "padded standard base64"},
		"Basic in the URL alphabet":        {requestGet("service=s", "Authorization", "Basic dTo_Pz8-"), "invalid_request", "Authorization", "padded standard base64"},
		"Basic over two lines":             {requestGet("service=s", "Authorization", "Basic dTpw\r\n"), "invalid_request", "Authorization", "padded standard base64"},
		"Basic and two spaces":             {requestGet("service=s", "Authorization", "Basic  dTpw"), "invalid_request", "Authorization", "padded standard base64"},
		"two Basic credentials in one":     {requestGet("service=s", "Authorization", basic+", "+basic), "invalid_request", "Authorization", "padded standard base64"},
		"too long to decode":               {requestGet("service=s", "Authorization", "Basic "+strings.Repeat("A", maxBasicBytes+4)), "invalid_request", "Authorization", "longer than a username of 256"},
		"too long a Basic password":        {requestGet("service=s", "Authorization", requestBasic("Basic", "", strings.Repeat("a", MaxTokenBytes+1))), "invalid_request", "Authorization", "longer than 16384"},
		"too long a Basic username":        {requestGet("service=s", "Authorization", requestBasic("Basic", strings.Repeat("a", maxTextBytes+1), "p")), "invalid_request", "Authorization", "the username is longer than 256"},
		"a control character in Basic":     {requestGet("service=s", "Authorization", requestBasic("Basic", "u\n", "p")), "invalid_request", "Authorization", "cannot be printed"},
		"a Basic password with a newline":  {requestGet("service=s", "Authorization", requestBasic("Basic", "u", "p\n")), "invalid_request", "Authorization", "the end of a line"},

		"no grant type":             {requestForm("password=p&service=s"), "invalid_request", "grant_type", "is missing"},
		"no form at all":            {requestForm(""), "invalid_request", "grant_type", "is missing"},
		"client_credentials":        {requestForm("grant_type=client_credentials&service=s"), "unsupported_grant_type", "grant_type", "want password"},
		"grant types have case":     {requestForm("grant_type=Password&password=p&service=s"), "unsupported_grant_type", "grant_type", "want password"},
		"no password":               {requestForm("grant_type=password&username=u&service=s"), "invalid_request", "password", "holds no password or token"},
		"an empty password":         {requestForm("grant_type=password&username=u&password=&service=s"), "invalid_request", "password", "holds no password or token"},
		"no refresh token":          {requestForm("grant_type=refresh_token&service=s"), "invalid_request", "refresh_token", "holds no password or token"},
		"no subject token":          {requestForm("grant_type=" + requestExchange + "&service=s&subject_token_type=" + tokenTypeJWT), "invalid_request", "subject_token", "holds no password or token"},
		"no subject token type":     {requestForm("grant_type=" + requestExchange + "&service=s&subject_token=x"), "invalid_request", "subject_token_type", "is missing"},
		"another subject token":     {requestForm("grant_type=" + requestExchange + "&service=s&subject_token=x&subject_token_type=urn:ietf:params:oauth:token-type:saml2"), "invalid_request", "subject_token_type", "want urn:"},
		"another requested token":   {requestForm(exchange + "&requested_token_type=urn:ietf:params:oauth:token-type:refresh_token"), "invalid_request", "requested_token_type", "want urn:"},
		"an actor":                  {requestForm(exchange + "&actor_token=y"), "invalid_request", "actor_token", "send its subject_token alone"},
		"too long a password":       {requestForm("grant_type=password&service=s&password=" + strings.Repeat("p", MaxTokenBytes+1)), "invalid_request", "password", "longer than 16384"},
		"a token with a newline":    {requestForm("grant_type=refresh_token&service=s&refresh_token=x%0A"), "invalid_request", "refresh_token", "the end of a line"},
		"a token with a DEL":        {requestForm("grant_type=refresh_token&service=s&refresh_token=x%7F"), "invalid_request", "refresh_token", "control character"},
		"JSON":                      {requestForm(`{"grant_type":"password"}`, "Content-Type", "application/json"), "invalid_request", "Content-Type", "want application/x-www-form-urlencoded"},
		"no media type":             {without(requestForm(requestPassword), "Content-Type"), "invalid_request", "Content-Type", "exactly one"},
		"two media types":           {twoOf(requestForm(requestPassword), "Content-Type"), "invalid_request", "Content-Type", "exactly one"},
		"too long a body":           {requestForm(requestPassword + "&x=" + strings.Repeat("x", MaxBodyBytes)), "invalid_request", "body", "larger than 65536"},
		"too long a body, chunked":  {requestChunked("POST", requestPassword+"&x="+strings.Repeat("x", MaxBodyBytes)), "invalid_request", "body", "larger than 65536"},
		"a body that breaks off":    {requestBroken(), "invalid_request", "body", "could not be read to its end"},
		"a password in another URL": {requestGet("service=s&password"), "invalid_request", "password", "ends up in logs"},
	}
	// A credential in a URL is in the access logs of every proxy. One in a form
	// next to that of the grant leaves open which one counts.
	for field := firstCredential; field < parameterCount; field++ {
		name := parameterNames[field]
		cases[name+" in the URL of a GET"] = requestRefusal{requestGet("service=s&" + name + "=x"), "invalid_request", name, "ends up in logs"}
		cases[name+" in the URL of a GET with Basic"] = requestRefusal{requestGet("service=s&"+name+"=p", "Authorization", basic), "invalid_request", name, "ends up in logs"}
		cases[name+" in the URL of a POST"] = requestRefusal{requestFormAt("/token?"+name+"=x", requestPassword), "invalid_request", name, "in the URL of a POST"}
		if field != paramPassword {
			cases[name+" and an equal password"] = requestRefusal{requestForm(requestPassword + "&" + name + "=p"), "invalid_request", name, "send its password alone"}
		}
		if field != paramRefreshToken {
			cases[name+" and a refresh token"] = requestRefusal{requestForm("grant_type=refresh_token&refresh_token=x&service=s&" + name + "=x"), "invalid_request", name, "send its refresh_token alone"}
		}
	}
	// Which one counts, the first or the last?
	for field := paramScope + 1; field < parameterCount; field++ {
		name := parameterNames[field]
		pair := "&" + name + "=x&" + name + "=x"
		cases[name+" twice in a query"] = requestRefusal{requestGet("x" + pair), "invalid_request", name, "several times"}
		cases[name+" twice in a form"] = requestRefusal{requestForm("x" + pair), "invalid_request", name, "several times"}
		cases[name+" twice, once empty"] = requestRefusal{requestForm(name + "=&" + name + "=x"), "invalid_request", name, "several times"}
		cases[name+" twice, once escaped"] = requestRefusal{requestForm(name + "=x&" + fmt.Sprintf("%%%02X", name[0]) + name[1:] + "=x"), "invalid_request", name, "several times"}
	}
	// These go to the audit log, where they must not forge a line.
	for _, name := range []string{"service", "client_id", "account", "username"} {
		for what, value := range map[string]string{
			"a newline": "a%0Ab", "NUL": "%00", "an escape": "%1B[2J", "DEL": "%7F", "a C1 control": "%C2%9B", "a bidi override": "%E2%80%AE",
			"a line separator": "%E2%80%A8", "a zero-width space": "%E2%80%8B", "no UTF-8": "%FF",
		} {
			r := requestForm("grant_type=password&password=p&" + name + "=" + value + "&" + cmp.Or(map[string]string{"service": "x"}[name], "service") + "=s")
			cases[what+" in "+name] = requestRefusal{r, "invalid_request", name, "cannot be printed"}
		}
		r := requestForm("grant_type=password&password=p&" + name + "=" + strings.Repeat("a", maxTextBytes+1) + "&" + cmp.Or(map[string]string{"service": "x"}[name], "service") + "=s")
		cases["too long a "+name] = requestRefusal{r, "invalid_request", name, "longer than 256"}
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := ParseRequest(tc.r)
			e, ok := errors.AsType[*RequestError](err)
			if !ok {
				t.Fatalf("got %+v and error %v, want a *RequestError with %q", got, err, tc.message)
			}
			if e.Code != tc.code || e.Field != tc.field || !strings.Contains(e.Message, tc.message) {
				t.Errorf("got %q, %q, %q, want %q, %q, …%s…", e.Code, e.Field, e.Message, tc.code, tc.field, tc.message)
			}
			if !reflect.DeepEqual(got, Request{}) {
				t.Errorf("returned %+v with an error", got)
			}
			if !strings.Contains(err.Error(), e.Field+": ") {
				t.Errorf("Error() = %q does not name the field", err)
			}
		})
	}
}

// A refused request is logged and answered with its error: a token that came in
// the wrong place must not travel on in it.
func TestParseRequestErrorsHoldNoCredential(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]*http.Request{
		"no scheme":           requestGet("service=s", "Authorization", requestJWT),
		"another scheme":      requestGet("service=s", "Authorization", "Token "+requestJWT),
		"not base64":          requestGet("service=s", "Authorization", "Basic "+requestJWT),
		"Basic, no colon":     requestGet("service=s", "Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(requestJWT))),
		"username":            requestGet("service=s", "Authorization", requestBasic("Basic", requestJWT+strings.Repeat("x", maxTextBytes), "p")),
		"Bearer, two":         requestGet("service=s", "Authorization", "Bearer "+requestJWT+" "+requestJWT),
		"a query":             requestGet("service=s&token=" + requestJWT),
		"a query, bad escape": requestGet("service=s&password=" + requestJWT + "%"),
		"grant_type":          requestForm("service=s&grant_type=" + requestJWT),
		"subject_token_type":  requestForm("service=s&subject_token=x&subject_token_type=" + requestJWT + "&grant_type=" + requestExchange),
		"newline":             requestForm("service=s&grant_type=password&password=" + requestJWT + "%0A"),
		"two credentials":     requestForm("service=s&grant_type=password&password=" + requestJWT + "&refresh_token=" + requestJWT),
		"service":             requestForm("grant_type=password&password=p&service=" + requestJWT + "%0A"),
		"media type":          requestForm(requestPassword, "Content-Type", requestJWT),
	} {
		_, err := ParseRequest(r)
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		for _, part := range strings.Split(requestJWT, ".") {
			if strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// A body that says it is too long is refused unread, and one that does not say it
// is read no further than the limit: memory stays bounded.
func TestParseRequestReadsNoMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		declared int64
		most     int
	}{
		"declared": {MaxBodyBytes + 1, 0},
		"chunked":  {-1, MaxBodyBytes + 1},
	} {
		body := &requestEndless{}
		r := requestForm("")
		r.Body, r.ContentLength = body, tc.declared
		_, err := ParseRequest(r)
		if e, ok := errors.AsType[*RequestError](err); !ok || e.Field != "body" {
			t.Errorf("%s: %v", name, err)
		}
		if body.read > tc.most {
			t.Errorf("%s: read %d bytes, want at most %d", name, body.read, tc.most)
		}
	}
}

// The texts of a request that caches and the audit log keep must not keep its credential in memory.
// A substring of the same query or form would.
func TestParseRequestCopiesWhatIsKept(t *testing.T) {
	t.Parallel()
	raw := strings.Clone("service=s&account=a&client_id=c&scope=repository:a:pull&password=p")
	form := testkit.Value(parseParameters(raw))(t)
	req := testkit.Value(form.request())(t)
	first := uintptr(unsafe.Pointer(unsafe.StringData(raw)))
	for _, kept := range []string{req.Service, req.Account, req.ClientID, req.Scopes[0].Type, req.Scopes[0].Name, req.Scopes[0].Actions[0]} {
		if at := uintptr(unsafe.Pointer(unsafe.StringData(kept))); kept == "" || first <= at && at < first+uintptr(len(raw)) {
			t.Errorf("%q shares memory with the form", kept)
		}
	}
}

func FuzzRequest(f *testing.F) {
	f.Add("GET", "service=s&scope=repository:a:pull", "Basic dTpw", "", "")
	f.Add("GET", "service=s", "Bearer x", "", "")
	f.Add("GET", "service=s&account=a", "", "", "")
	f.Add("POST", "", "", "application/x-www-form-urlencoded; charset=utf-8", requestPassword+"&scope=repository:a:pull+repository:b:push")
	f.Add("POST", "", "", "application/x-www-form-urlencoded", "grant_type=refresh_token&refresh_token=x&service=s")
	f.Add("POST", "x=1", "", "application/x-www-form-urlencoded", "audience=s&subject_token=x&subject_token_type="+tokenTypeJWT+"&grant_type="+requestExchange)
	f.Fuzz(func(t *testing.T, method, query, authorization, contentType, body string) {
		r := &http.Request{
			Method:        method,
			URL:           &url.URL{Path: "/token", RawQuery: query},
			Header:        http.Header{},
			Body:          io.NopCloser(strings.NewReader(body)),
			ContentLength: int64(len(body)),
		}
		if authorization != "" {
			r.Header["Authorization"] = []string{authorization}
		}
		if contentType != "" {
			r.Header["Content-Type"] = []string{contentType}
		}
		req, err := ParseRequest(r)
		if err != nil {
			if _, ok := errors.AsType[*RequestError](err); !ok || !reflect.DeepEqual(req, Request{}) {
				t.Fatalf("got %+v, %#v", req, err)
			}
			return
		}
		if len(req.Scopes) > MaxScopes || len(req.Malformed) > maxScopesRead || len(req.Credential.Reveal()) > MaxTokenBytes || len(req.Account) > maxTextBytes || len(req.ClientID) > maxTextBytes {
			t.Fatalf("a limit is passed: %+v", req)
		}
		if (req.GrantType == GrantAnonymous) != req.Credential.IsZero() {
			t.Fatalf("grant type %s, credential is zero: %v", req.GrantType, req.Credential.IsZero())
		}
		if (req.GrantType == GrantAnonymous) != (method == "GET" && authorization == "") {
			t.Fatalf("grant type %s for %s with Authorization %q", req.GrantType, method, authorization)
		}
		// Whatever we accept, net/url reads in the same way.
		raw := query
		if method == "POST" {
			raw = body
		}
		values, err := url.ParseQuery(raw)
		if err != nil {
			t.Fatalf("url.ParseQuery(%q): %v", raw, err)
		}
		if service := cmp.Or(values.Get("service"), values.Get("audience")); req.Service != service || req.ClientID != values.Get("client_id") {
			t.Fatalf("got %+v, but net/url reads %v", req, values)
		}
		if req.GrantType == GrantPassword && req.Credential.Reveal() != values.Get("password") {
			t.Fatalf("another password than net/url reads in %q", raw)
		}
	})
}

func BenchmarkParseRequest(b *testing.B) {
	token := strings.Repeat("a", 1050)
	form := url.Values{
		"client_id": {"containerd-client"}, "grant_type": {"password"}, "password": {token},
		"scope": {"repository:team/app:pull"}, "service": {"e2e-registry"}, "username": {"serviceaccount"},
	}.Encode()
	post := requestForm(form)
	body := &requestReplay{Reader: strings.NewReader(form)}
	post.Body = body
	get := requestGet("scope=repository%3Ateam%2Fapp%3Apull&service=e2e-registry", "Authorization", requestBasic("Basic", "serviceaccount", token))
	for name, r := range map[string]*http.Request{"password": post, "basic": get} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				body.Reset(form)
				if _, err := ParseRequest(r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

type requestRefusal struct {
	r                    *http.Request
	code, field, message string
}

func requestGet(query string, header ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/token", nil)
	r.URL.RawQuery = query
	return requestWith(r, header)
}

func requestForm(form string, header ...string) *http.Request {
	return requestFormAt("/token", form, header...)
}

func requestFormAt(target, form string, header ...string) *http.Request {
	path, query, _ := strings.Cut(target, "?")
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(form))
	r.URL.RawQuery = query
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return requestWith(r, header)
}

func requestWith(r *http.Request, header []string) *http.Request {
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

func requestChunked(method, body string) *http.Request {
	r := requestForm("")
	r.Method, r.URL.RawQuery = method, map[string]string{"GET": "service=s"}[method]
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), -1
	return r
}

func requestBroken() *http.Request {
	r := requestForm("")
	r.Body = io.NopCloser(io.MultiReader(strings.NewReader(requestPassword), iotest.ErrReader(errors.New("read tcp 10.0.0.1:443: reset"))))
	r.ContentLength = 100
	return r
}

func requestBasic(scheme, username, password string) string {
	return scheme + " " + base64.StdEncoding.EncodeToString([]byte(username+":"+password))
}

// requestFromWire reads a request as a server does. The body's length is set
// here, so that the files need not count it.
func requestFromWire(t *testing.T, wire string) *http.Request {
	t.Helper()
	head, body, found := strings.Cut(wire, "\n\n")
	if !found {
		t.Fatal("no empty line after the header")
	}
	body = strings.TrimSuffix(body, "\n")
	if body != "" {
		head += fmt.Sprintf("\nContent-Length: %d", len(body))
	}
	raw := strings.ReplaceAll(head, "\n", "\r\n") + "\r\n\r\n" + body
	r := testkit.Value(http.ReadRequest(bufio.NewReader(bytes.NewBufferString(raw))))(t)
	return r
}

// requestString prints all of a request, one part a line.
func requestString(r Request) string {
	var b strings.Builder
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%s: %s\n", name, value)
		}
	}
	line("grant", string(r.GrantType))
	line("service", r.Service)
	line("credential", r.Credential.Reveal())
	line("account", r.Account)
	line("client", r.ClientID)
	for _, s := range r.Scopes {
		line("scope", s.String())
	}
	return b.String()
}

// requestEndless is a body without end that counts what is read of it.
type requestEndless struct{ read int }

func (e *requestEndless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	e.read += len(p)
	return len(p), nil
}

func (e *requestEndless) Close() error { return nil }

// requestReplay is a body that a benchmark can send again.
type requestReplay struct{ *strings.Reader }

func (*requestReplay) Close() error { return nil }
