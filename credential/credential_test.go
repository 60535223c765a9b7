package credential

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// now is inside the life of the tokens that kubeletClaims makes.
var now = time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)

const audienceInTests = "registry.example.com"

// kubeletClaims are those of a token that the kubelet 1.36.3 was seen to get for
// a pod. Changes replace claims; nil takes one away.
func kubeletClaims(changes map[string]any) map[string]any {
	claims := map[string]any{
		"aud": []string{audienceInTests},
		"exp": now.Add(time.Hour).Unix(),
		"iat": now.Unix(),
		"iss": "https://127.0.0.1:6443",
		"jti": "63ef7a8c-1d81-4c97-8f89-724a51634a91",
		"kubernetes.io": map[string]any{
			"namespace":      "team-a",
			"node":           map[string]any{"name": "node1", "uid": "2bf1cc3e-4f38-4595-b30d-f4751860f82e"},
			"pod":            map[string]any{"name": "app-1", "uid": "da2e7a3c-63e8-4855-9874-2073194456f5"},
			"serviceaccount": map[string]any{"name": "puller", "uid": "6d2b46cf-ca6d-4816-a59d-1d08107f9180"},
		},
		"nbf": now.Unix(),
		"sub": "system:serviceaccount:team-a:puller",
	}
	maps.Copy(claims, changes)
	maps.DeleteFunc(claims, func(_ string, value any) bool { return value == nil })
	return claims
}

func sign(tb testing.TB, claims map[string]any) string {
	tb.Helper()
	payload := testkit.Value(json.Marshal(claims))(tb)
	return pkitest.Token(tb, payload)
}

func TestFromFile(t *testing.T) {
	t.Parallel()
	token := sign(t, kubeletClaims(nil))
	for _, end := range []string{"", "\n", "\r\n"} {
		c := testkit.Value(FromFile(testkit.TempFile(t, "token", token+end), audienceInTests, now))(t)
		if c.Password() != token {
			t.Errorf("file ends with %q: password %q, want the token %q", end, c.Password(), token)
		}
		if want := now.Add(time.Hour); !c.Expiry.Equal(want) {
			t.Errorf("expiry %s, want %s", c.Expiry, want)
		}
	}
}

// Allowed values, up to their limits.
func TestAccepted(t *testing.T) {
	t.Parallel()
	padded, padding := kubeletClaims(nil), 11<<10
	for len(sign(t, padded)) < maxTokenSize {
		padding++
		padded["padding"] = strings.Repeat("x", padding)
	}
	for _, test := range []struct {
		name   string
		claims map[string]any
		now    time.Time
	}{
		{"audience as a string", kubeletClaims(map[string]any{"aud": audienceInTests}), now},
		{"one of two audiences", kubeletClaims(map[string]any{"aud": []string{"second", audienceInTests}}), now},
		{"no nbf", kubeletClaims(map[string]any{"nbf": nil}), now},
		{"in the last second", kubeletClaims(nil), now.Add(time.Hour - time.Second)},
		{"clock of the API server one minute ahead", kubeletClaims(nil), now.Add(-clockSkew)},
		{"not bound to anything", kubeletClaims(map[string]any{"kubernetes.io": nil}), now},
		{"claims of a newer API server", kubeletClaims(map[string]any{"new": []any{1, map[string]any{"a": nil}}}), now},
		{"longest", padded, now},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			token := sign(t, test.claims)
			c := testkit.Value(FromFile(testkit.TempFile(t, "token", token), audienceInTests, test.now))(t)
			if c.Password() != token {
				t.Error("the password is not the token")
			}
		})
	}
}

// refusal is a token that must not be used, wherever it comes from.
type refusal struct {
	name  string
	token string
	now   time.Time
	kind  error
	want  string // part of the text after the source of the token
}

func refusals(t *testing.T) []refusal {
	valid := sign(t, kubeletClaims(nil))
	parts := strings.Split(valid, ".")
	claims := func(changes map[string]any) string { return sign(t, kubeletClaims(changes)) }
	const (
		noJWT      = "not an OpenID token: not a JWT of three parts"
		noBase64   = "not an OpenID token: not a JWT of three base64url parts"
		noObject   = "not an OpenID token: payload: not one JSON object"
		noExpiry   = `payload: "exp" is not a time between 1970 and 9999`
		wrongBegin = `payload: "nbf" is not a time between 1970 and 9999`
		apiServer  = `token for another audience: it is for its issuer, such as the API server (["https://`
	)
	return []refusal{
		{"empty", "", now, ErrMalformed, "not an OpenID token: empty"},
		{"a password", "hunter2", now, ErrMalformed, noJWT},
		{"two parts", parts[0] + "." + parts[1], now, ErrMalformed, noJWT},
		{"four parts", valid + "." + parts[2], now, ErrMalformed, noJWT},
		{"two tokens", valid + "\n" + valid, now, ErrMalformed, noJWT},
		{"no header", "." + parts[1] + "." + parts[2], now, ErrMalformed, noBase64},
		{"no payload", parts[0] + ".." + parts[2], now, ErrMalformed, noBase64},
		{"no signature", parts[0] + "." + parts[1] + ".", now, ErrMalformed, noBase64},
		{"header with padding", parts[0] + "=." + parts[1] + "." + parts[2], now, ErrMalformed, noBase64},
		{"space in front", " " + valid, now, ErrMalformed, noBase64},
		{"line end inside the header", "e\n" + valid[1:], now, ErrMalformed, noBase64},
		{"line end inside the signature", valid[:len(valid)-3] + "\r\n" + valid[len(valid)-3:], now, ErrMalformed, noBase64},
		{"line end in front", "\n" + valid, now, ErrMalformed, noBase64},
		{"quotes", `"` + valid + `"`, now, ErrMalformed, noBase64},
		{"too long", valid + strings.Repeat("A", maxTokenSize-len(valid)+1), now, ErrMalformed, "longer than 16 KiB"},

		{"payload is not JSON", pkitest.Token(t, []byte("payload")), now, ErrMalformed, noObject},
		{"payload is an array", pkitest.Token(t, []byte(`["iss"]`)), now, ErrMalformed, noObject},
		{"something after the payload", pkitest.Token(t, []byte(`{"iss":"a"}{}`)), now, ErrMalformed, noObject},
		{"issuer twice", pkitest.Token(t, []byte(`{"iss":"a","iss":"b"}`)), now, ErrMalformed, "payload: a name is there twice in the JSON"},
		{"issuer missing", claims(map[string]any{"iss": nil}), now, ErrMalformed, `payload: "iss" is missing`},
		{"issuer is a number", claims(map[string]any{"iss": 1}), now, ErrMalformed, `payload: "iss" has the wrong type`},
		{"names in another case", claims(map[string]any{"iss": nil, "ISS": "https://127.0.0.1:6443"}), now, ErrMalformed, `payload: "iss" is missing`},
		{"audience missing", claims(map[string]any{"aud": nil}), now, ErrMalformed, `payload: "aud" is missing`},
		{"audience empty", claims(map[string]any{"aud": []string{}}), now, ErrMalformed, `payload: "aud" is missing`},
		{"audience is a number", claims(map[string]any{"aud": 1}), now, ErrMalformed, `payload: "aud" has the wrong type`},
		{"end missing", claims(map[string]any{"exp": nil}), now, ErrMalformed, noExpiry},
		{"end is a string", claims(map[string]any{"exp": "1795234011"}), now, ErrMalformed, `payload: "exp" has the wrong type`},
		{"end is a fraction", claims(map[string]any{"exp": 1795234011.5}), now, ErrMalformed, `payload: "exp" has the wrong type`},
		{"end before 1970", claims(map[string]any{"exp": -1}), now, ErrMalformed, noExpiry},
		{"end after 9999", claims(map[string]any{"exp": maxUnixTime + 1}), now, ErrMalformed, noExpiry},
		{"begin is a string", claims(map[string]any{"nbf": "now"}), now, ErrMalformed, `payload: "nbf" has the wrong type`},
		{"begin before 1970", claims(map[string]any{"nbf": -1}), now, ErrMalformed, wrongBegin},
		{"begin after 9999", claims(map[string]any{"nbf": maxUnixTime + 1}), now, ErrMalformed, wrongBegin},
		{"kubernetes.io is a string", claims(map[string]any{"kubernetes.io": "x"}), now, ErrMalformed, `payload: "kubernetes.io" has the wrong type`},

		{"another audience", claims(map[string]any{"aud": []string{"vault"}}), now, ErrAudience,
			`token for another audience: it is for ["vault"]; set `},
		{"audience of a longer name", claims(map[string]any{"aud": []string{audienceInTests + ".evil.example"}}), now, ErrAudience, "it is for [\"registry.example.com.evil.example\"]; set "},
		{"many audiences", claims(map[string]any{"aud": []string{"a", "b", "c", "d", "e"}}), now, ErrAudience, `it is for ["a" "b" "c" "d"]; set `},
		{"long audience", claims(map[string]any{"aud": []string{strings.Repeat("x", 1000)}}), now, ErrAudience, `["` + strings.Repeat("x", 100) + `"]`},
		{"control characters in the audience", claims(map[string]any{"aud": []string{"a\n\x1b[0m"}}), now, ErrAudience, `["a\n\x1b[0m"]`},

		// The token of every pod, in /var/run/secrets/kubernetes.io/serviceaccount.
		{"for the API server", claims(map[string]any{"aud": []string{"https://127.0.0.1:6443"}}), now, ErrAudience, apiServer},
		{"for the API server as well", claims(map[string]any{"aud": []string{audienceInTests, "https://127.0.0.1:6443"}}), now, ErrAudience,
			`it is for its issuer, such as the API server (["registry.example.com" "https://127.0.0.1:6443"])`},
		{"for an API server whose audience is not its issuer", claims(map[string]any{
			"aud": []string{"https://kubernetes.default.svc"}, "exp": now.AddDate(1, 0, 0).Unix(),
			"kubernetes.io": map[string]any{"warnafter": now.Add(time.Hour).Unix()},
		}), now, ErrAudience, apiServer},
		{"token of a Secret", sign(t, map[string]any{
			"iss":                                    legacyIssuer,
			"kubernetes.io/serviceaccount/namespace": "team-a",
			"kubernetes.io/serviceaccount/secret.name":          "puller-legacy",
			"kubernetes.io/serviceaccount/service-account.name": "puller",
			"sub": "system:serviceaccount:team-a:puller",
		}), now, ErrAudience, "it is the token of a Secret, which has no audience and never ends (KEP-2799); set "},

		{"not valid yet", valid, now.Add(-clockSkew - time.Second), ErrNotYetValid,
			"token not valid yet: it begins at 2026-11-21T04:00:00Z, and the clock here says 2026-11-21T03:58:59Z"},
		{"expired", valid, now.Add(time.Hour), ErrExpired,
			"token expired at 2026-11-21T05:00:00Z, and the clock here says 2026-11-21T05:00:00Z; "},
		{"expired, and for another audience", claims(map[string]any{"aud": []string{"vault"}}), now.Add(2 * time.Hour), ErrAudience, `["vault"]`},
		{"clock of another zone", valid, now.Add(time.Hour).In(time.FixedZone("", 3600)), ErrExpired, "the clock here says 2026-11-21T05:00:00Z"},
	}
}

// checkRefusal compares an error with the expected error of a source.
func checkRefusal(t *testing.T, r refusal, source string, c Credential, err error) {
	t.Helper()
	if !errors.Is(err, r.kind) {
		t.Fatalf("error %v, want %v", err, r.kind)
	}
	for _, kind := range []error{ErrMissing, ErrMalformed, ErrAudience, ErrNotYetValid, ErrExpired} {
		if kind != r.kind && errors.Is(err, kind) {
			t.Errorf("the error is %q as well as %q", kind, r.kind)
		}
	}
	if rest, found := strings.CutPrefix(err.Error(), source); !found || !strings.Contains(rest, r.want) {
		t.Errorf("error %q, want %q first and then %q", err, source, r.want)
	}
	if c.Password() != "" || !c.Expiry.IsZero() {
		t.Error("a credential came with the error")
	}
	checkHidden(t, err.Error(), r.token)
}

// checkHidden looks for each part of a token; those that are too short to tell
// are left out.
func checkHidden(t *testing.T, text, token string) {
	t.Helper()
	for _, part := range strings.FieldsFunc(token, func(r rune) bool { return strings.ContainsRune(".\r\n \"=", r) }) {
		if len(part) > 3 && strings.Contains(text, part) {
			t.Errorf("%q holds a part of the token", text)
		}
	}
}

func TestFileRefusals(t *testing.T) {
	t.Parallel()
	for _, r := range refusals(t) {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			path := testkit.TempFile(t, "token", r.token)
			c, err := FromFile(path, audienceInTests, r.now)
			checkRefusal(t, r, path+": ", c, err)
		})
	}
}

// Each message ends with what to change.
func TestFileRemedies(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		claims map[string]any
		now    time.Time
		want   string
	}{
		{map[string]any{"aud": "vault"}, now, `; set volumes[].projected.sources[].serviceAccountToken.audience of the pod to "registry.example.com"`},
		{nil, now.Add(time.Hour), "; the kubelet replaces it in time, unless it is a copy or mounted with subPath"},
	} {
		_, err := FromFile(testkit.TempFile(t, "token", sign(t, kubeletClaims(test.claims))), audienceInTests, test.now)
		if err == nil || !strings.HasSuffix(err.Error(), test.want) {
			t.Errorf("error %v, want it to end with %q", err, test.want)
		}
	}
}

func TestUnreadableFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	missing := filepath.Join(dir, "token")

	_, err := FromFile(missing, audienceInTests, now)
	want := missing + ": no token; mount a projected volume there (volumes[].projected.sources[].serviceAccountToken " +
		`of the pod with audience "registry.example.com", and volumeMounts[] of the container)`
	if !errors.Is(err, ErrMissing) || err.Error() != want {
		t.Errorf("missing file: %v, want %s", err, want)
	}

	_, err = FromFile(dir, audienceInTests, now)
	var pathError *fs.PathError
	if !errors.As(err, &pathError) || errors.Is(err, ErrMissing) {
		t.Errorf("directory: %v, want the error of package os", err)
	}

	// Another reason than its absence: the parent is a file.
	_, err = FromFile(filepath.Join(testkit.TempFile(t, "token", "x"), "token"), audienceInTests, now)
	if !errors.As(err, &pathError) || errors.Is(err, ErrMissing) {
		t.Errorf("below a file: %v, want the error of package os", err)
	}
}

// An endless file must not fill the memory.
func TestReadingStopsAtTheLimit(t *testing.T) {
	t.Parallel()
	reader, writer, err := os.Pipe()
	testkit.Must(t, err)
	defer func() { _ = reader.Close() }()
	if _, err := writer.Write(bytes.Repeat([]byte("A"), 2*maxTokenSize)); err != nil {
		t.Fatal(err)
	}
	testkit.Must(t, writer.Close())
	_, err = FromFile(fmt.Sprintf("/dev/fd/%d", reader.Fd()), audienceInTests, now)
	if !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), "longer than 16 KiB") {
		t.Errorf("error %v, want %v", err, ErrMalformed)
	}
	left, err := io.ReadAll(reader)
	testkit.Must(t, err)
	if read := 2*maxTokenSize - len(left); read > maxTokenSize+1 {
		t.Errorf("read %d bytes, want at most %d", read, maxTokenSize+1)
	}
}

// Nothing may switch the check off, not even a token that has no audience.
func TestAudienceMustNotBeEmpty(t *testing.T) {
	t.Parallel()
	token := sign(t, kubeletClaims(map[string]any{"aud": []string{""}}))
	if _, err := FromFile(testkit.TempFile(t, "token", token), "", now); !errors.Is(err, errNoAudience) {
		t.Errorf("FromFile: error %v, want %v", err, errNoAudience)
	}
	if _, err := FromCSI(csiValues(t, map[string]any{"": entry(token)}), "", now); !errors.Is(err, errNoAudience) {
		t.Errorf("FromCSI: error %v, want %v", err, errNoAudience)
	}
}

// The kubelet writes a new directory and swaps the link ..data by renaming
// a new link over it (pkg/volume/util/atomic_writer.go).
func TestFileIsReadAfreshAfterRotation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "token")
	testkit.Must(t, os.Symlink(filepath.Join("..data", "token"), path))
	for generation := range 3 {
		token := sign(t, kubeletClaims(map[string]any{"jti": fmt.Sprint(generation)}))
		data := fmt.Sprintf("..2026_11_21_%d", generation)
		if err := errors.Join(
			os.Mkdir(filepath.Join(dir, data), 0o700),
			os.WriteFile(filepath.Join(dir, data, "token"), []byte(token), 0o600),
			os.Symlink(data, filepath.Join(dir, "..data_tmp")),
			os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")),
		); err != nil {
			t.Fatal(err)
		}
		c := testkit.Value(FromFile(path, audienceInTests, now))(t)
		if c.Password() != token {
			t.Errorf("generation %d: the password is not the token that is there now", generation)
		}
	}
}

func TestCredentialDoesNotPrintItsPassword(t *testing.T) {
	t.Parallel()
	token := sign(t, kubeletClaims(nil))
	c := testkit.Value(FromFile(testkit.TempFile(t, "token", token), audienceInTests, now))(t)
	holder := struct {
		public  Credential
		pointer *Credential
	}{c, &c}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%p"} {
		fmt.Fprintf(&out, verb+verb+verb+"\n", c, &c, holder)
	}
	encoded := testkit.Value(json.Marshal(c))(t)
	out.Write(encoded)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("c", "c", c, "pointer", &c)
	slog.New(slog.NewTextHandler(&out, nil)).Info("c", "c", c, "pointer", &c)
	checkHidden(t, out.String(), token)
	for _, part := range strings.Split(token, ".") {
		if strings.Contains(out.String(), fmt.Sprintf("%x", part)) {
			t.Errorf("%s holds a part of the token", &out)
		}
	}
}

func TestZeroCredential(t *testing.T) {
	t.Parallel()
	if password := (Credential{}).Password(); password != "" {
		t.Errorf("password %q, want none", password)
	}
}

// See Username.
func TestUsername(t *testing.T) {
	t.Parallel()
	if Username == "" || Username == "<token>" || strings.Contains(Username, ":") {
		t.Errorf("username %q: clients would drop or misread the credential", Username)
	}
}

// A token from another source, of an issuer that is not a cluster.
func TestFromToken(t *testing.T) {
	t.Parallel()
	job := func(changes map[string]any) string {
		claims := map[string]any{
			"iss": "https://ci.example.com", "aud": audienceInTests, "sub": "project:42", "iat": now.Unix(), "exp": now.Add(5 * time.Minute).Unix(),
		}
		maps.Copy(claims, changes)
		return sign(t, claims)
	}
	from := Source{Name: "JOB_TOKEN", Audience: "aud of the job", Renewal: "start the job again"}

	token := job(nil)
	c, err := FromToken(token, from, audienceInTests, now)
	if err != nil || c.Password() != token || !c.Expiry.Equal(now.Add(5*time.Minute)) {
		t.Errorf("expiry %s, the token: %t, error %v", c.Expiry, c.Password() == token, err)
	}
	for _, test := range []struct {
		name, token, audience string
		kind                  error
		want                  string
	}{
		{"no audience", token, "", errNoAudience, errNoAudience.Error()},
		{"no token", "", audienceInTests, ErrMalformed, "JOB_TOKEN: not an OpenID token: empty"},
		{"another audience", job(map[string]any{"aud": "vault"}), audienceInTests, ErrAudience,
			`JOB_TOKEN: token for another audience: it is for ["vault"]; set aud of the job to "registry.example.com"`},
		{"good at its issuer", job(map[string]any{"aud": []string{audienceInTests, "https://ci.example.com"}}), audienceInTests, ErrAudience,
			`JOB_TOKEN: token for another audience: it is for its issuer, such as the API server (["registry.example.com" "https://ci.example.com"]), ` +
				`where a registry could act as its owner with it; set aud of the job to "registry.example.com"`},
		{"expired", job(map[string]any{"exp": now.Unix()}), audienceInTests, ErrExpired,
			"JOB_TOKEN: token expired at 2026-11-21T04:00:00Z, and the clock here says 2026-11-21T04:00:00Z; start the job again"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c, err := FromToken(test.token, from, test.audience, now)
			if !errors.Is(err, test.kind) || err.Error() != test.want || c.Password() != "" {
				t.Errorf("error %v, want %s", err, test.want)
			}
		})
	}
}
