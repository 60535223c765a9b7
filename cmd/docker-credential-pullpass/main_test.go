package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/pullpass/pullpass/credential"
	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"docker-credential-pullpass": main,
		"client":                     clientMain,
		"buildkite-agent":            agentMain,
		"circleci":                   circleciMain,
	})
}

const registry = "registry.example.com"

// newToken makes a token for an audience, good for the hour from now on.
func newToken(tb testing.TB, audience string, now time.Time) string {
	tb.Helper()
	payload := testkit.Value(json.Marshal(map[string]any{
		"aud": []string{audience}, "iss": "https://127.0.0.1:6443", "sub": "system:serviceaccount:team-a:puller",
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(time.Hour).Unix(), "jti": rand.Text(),
		"kubernetes.io": map[string]any{"namespace": "team-a", "serviceaccount": map[string]any{"name": "puller"}},
	}))(tb)
	return pkitest.Token(tb, payload)
}

// environment is what os.Getenv would look into.
type environment map[string]string

func (e environment) get(name string) string { return e[name] }

// printed runs the program and returns its standard output. On standard error
// must be the same if it is a refusal in our own words, and nothing otherwise.
func printed(t *testing.T, wantCode int, args []string, env environment, now time.Time, stdin io.Reader) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := run(args, env.get, now, stdin, &stdout, &stderr); code != wantCode {
		t.Errorf("exit code %d, want %d: %s", code, wantCode, &stdout)
	}
	want := ""
	if wantCode != 0 && strings.HasPrefix(stdout.String(), "docker-credential-pullpass: ") {
		want = stdout.String()
	}
	if stderr.String() != want {
		t.Errorf("standard error %q, want %q", &stderr, want)
	}
	return stdout.String()
}

func TestGet(t *testing.T) {
	t.Parallel()
	now := time.Now()
	forRegistry, forPort, forBoth := newToken(t, registry, now), newToken(t, "localhost:5443", now), newToken(t, "pullpass", now)
	for _, test := range []struct {
		name, registries, audience, token, server, stdin string
	}{
		{"host", registry, "", forRegistry, registry, registry},
		{"one line", registry, "", forRegistry, registry, registry + "\n"},
		{"line of another system", registry, "", forRegistry, registry, registry + "\r\n"},
		{"with a port", "localhost:5443", "", forPort, "localhost:5443", "localhost:5443"},
		{"URL", registry, "", forRegistry, "https://" + registry, "https://" + registry},
		{"URL of the old API", registry, "", forRegistry, "https://" + registry + "/v1/", "https://" + registry + "/v1/"},
		{"repository", registry, "", forRegistry, registry + "/team-a/web", registry + "/team-a/web"},
		{"repository with a port", "localhost:5443", "", forPort, "localhost:5443/team-a/web", "localhost:5443/team-a/web"},
		{"second of two", "localhost:5443," + registry, "", forRegistry, registry, registry},
		{"space after the comma", "localhost:5443, " + registry, "", forRegistry, registry, registry},
		{"IPv6 address", "[::1]:5443", "pullpass", forBoth, "[::1]:5443", "[::1]:5443"},
		{"upper case", "REGISTRY:5000", "pullpass", forBoth, "REGISTRY:5000", "REGISTRY:5000"},
		{"audience that is set, first registry", registry + ",localhost:5443", "pullpass", forBoth, registry, registry},
		{"audience that is set, second registry", registry + ",localhost:5443", "pullpass", forBoth, "localhost:5443", "localhost:5443"},
		{"Docker Hub, as docker asks", "docker.io", "pullpass", forBoth, "https://index.docker.io/v1/", "https://index.docker.io/v1/"},
		{"Docker Hub, as podman asks", "index.docker.io", "pullpass", forBoth, "docker.io", "docker.io"},
		{"characters that JSON escapes", registry, "", forRegistry, registry + `/"<&`, registry + `/"<&`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			env := environment{"PULLPASS_REGISTRIES": test.registries, "PULLPASS_AUDIENCE": test.audience, "PULLPASS_TOKEN_FILE": testkit.TempFile(t, "token", test.token)}
			output := printed(t, 0, []string{"get"}, env, now, strings.NewReader(test.stdin))
			decoder := json.NewDecoder(strings.NewReader(output))
			decoder.DisallowUnknownFields()
			var got struct{ ServerURL, Username, Secret string }
			testkit.Must(t, decoder.Decode(&got))
			if err := decoder.Decode(new(any)); !errors.Is(err, io.EOF) {
				t.Errorf("more than one JSON value: %v", err)
			}
			if got.ServerURL != test.server || got.Secret != test.token {
				t.Errorf("answer %+v, want server %q and the token", got, test.server)
			}
			if got.Username == "" || got.Username == "<token>" {
				t.Errorf("username %q: clients would drop or misread the credential", got.Username)
			}
		})
	}
}

// The token is for the servers that were named, and whatever else a client asks
// about, it is told in the words that let it go on.
func TestOtherServersGetNothing(t *testing.T) {
	t.Parallel()
	now := time.Now()
	env := environment{"PULLPASS_REGISTRIES": registry + ",localhost:5443", "PULLPASS_TOKEN_FILE": testkit.TempFile(t, "token", newToken(t, registry, now))}
	for _, server := range []string{
		"https://index.docker.io/v1/", // what docker asks about with credsStore
		"docker.io",
		"ghcr.io",
		"registry.example.com.evil.example",
		"evil-registry.example.com",
		"example.com",
		"evil.example/registry.example.com",
		"https://evil.example/registry.example.com/v1/",
		"https://evil.example#registry.example.com",
		"https://evil.example?registry.example.com",
		"registry.example.com@evil.example",
		"https://registry.example.com@evil.example/",
		"https://registry.example.com:pw@evil.example/v1/",
		`registry.example.com\evil.example`,
		"registry.example.com?x",
		"registry.example.com#x",
		"registry.example.com evil.example",
		"registry.example.com\nevil.example",
		"registry.example.com,localhost:5443",
		"registry.example.com.",
		"registry.example.com:443",
		"registry.example.com:",
		"localhost",
		"localhost:54430",
		"Registry.example.com",
		"regi\u017ftry.example.com", // folds to an s
		"http://registry.example.com",
		"HTTPS://registry.example.com",
		"https://https://registry.example.com",
		"//registry.example.com",
		"https:///registry.example.com",
		"/",
		"*",
		"*.example.com",
	} {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			if got := printed(t, 1, []string{"get"}, env, now, strings.NewReader(server)); got != "credentials not found in native keychain\n" {
				t.Errorf("standard output %q", got)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	now := time.Now()
	token := newToken(t, registry, now)
	file := testkit.TempFile(t, "token", token)
	other := testkit.TempFile(t, "token", newToken(t, "vault", now))
	missing := filepath.Join(t.TempDir(), "token")
	settings := func(changes environment) environment {
		env := environment{"PULLPASS_REGISTRIES": registry, "PULLPASS_TOKEN_FILE": file}
		maps.Copy(env, changes)
		return env
	}
	const entry = "PULLPASS_REGISTRIES: entry 1 is not HOST or HOST:PORT"
	get, list := []string{"get"}, []string{"list"}

	for _, test := range []struct {
		name  string
		args  []string
		env   environment
		now   time.Time
		stdin string
		want  string
	}{
		{"no argument", nil, settings(nil), now, registry, errArguments.Error()},
		{"two arguments", []string{"get", token}, settings(nil), now, registry, errArguments.Error()},
		{"unknown argument", []string{token}, settings(nil), now, registry, errArguments.Error()},
		{"store", []string{"store"}, settings(nil), now, `{"ServerURL":"` + registry + `","Username":"u","Secret":"` + token + `"}`, errStore.Error()},
		{"erase", []string{"erase"}, settings(nil), now, registry, errErase.Error()},

		{"registries unset", get, environment{"PULLPASS_TOKEN_FILE": file}, now, registry, errNoRegistries.Error()},
		{"registries empty", get, settings(environment{"PULLPASS_REGISTRIES": ""}), now, registry, errNoRegistries.Error()},
		{"registries unset, list", list, environment{"PULLPASS_TOKEN_FILE": file}, now, "unused", errNoRegistries.Error()},
		{"a space alone", get, settings(environment{"PULLPASS_REGISTRIES": " "}), now, registry, entry},
		{"a comma alone", get, settings(environment{"PULLPASS_REGISTRIES": ","}), now, registry, entry},
		{"a comma at the end", get, settings(environment{"PULLPASS_REGISTRIES": registry + ","}), now, registry, strings.Replace(entry, "1", "2", 1)},
		{"URL", get, settings(environment{"PULLPASS_REGISTRIES": "https://" + registry}), now, registry, entry},
		{"repository", get, settings(environment{"PULLPASS_REGISTRIES": registry + "/team-a"}), now, registry, entry},
		{"glob", get, settings(environment{"PULLPASS_REGISTRIES": "*.example.com"}), now, registry, entry},
		{"everything", get, settings(environment{"PULLPASS_REGISTRIES": "*"}), now, registry, entry},
		{"user", get, settings(environment{"PULLPASS_REGISTRIES": token + "@" + registry}), now, registry, entry},
		{"not ASCII", get, settings(environment{"PULLPASS_REGISTRIES": "régistry.example.com"}), now, registry, entry},
		{"two with a space", get, settings(environment{"PULLPASS_REGISTRIES": registry + " localhost:5443"}), now, registry, entry},
		{"glob, list", list, settings(environment{"PULLPASS_REGISTRIES": "*"}), now, "unused", entry},
		{"relative file", get, settings(environment{"PULLPASS_TOKEN_FILE": "token"}), now, registry, errTokenFile.Error()},
		{"the token for its file", get, settings(environment{"PULLPASS_TOKEN_FILE": token}), now, registry, errTokenFile.Error()},

		{"server too long", get, settings(nil), now, registry + "/" + strings.Repeat("x", maxServerSize), errServerSize.Error()},

		{"no token", get, settings(environment{"PULLPASS_TOKEN_FILE": missing}), now, registry, missing + ": no token; mount a projected volume there " +
			`(volumes[].projected.sources[].serviceAccountToken of the pod with audience "registry.example.com", and volumeMounts[] of the container)`},
		{"no token at the default", get, environment{"PULLPASS_REGISTRIES": registry}, now, registry, credential.DefaultTokenFile + ": no token; mount a projected volume there " +
			`(volumes[].projected.sources[].serviceAccountToken of the pod with audience "registry.example.com", and volumeMounts[] of the container)`},
		{"audience is not the registry", get, settings(environment{"PULLPASS_TOKEN_FILE": other}), now, registry, other + `: token for another audience: it is for ["vault"]; ` +
			`set volumes[].projected.sources[].serviceAccountToken.audience of the pod to "registry.example.com" ` +
			"(or set PULLPASS_AUDIENCE, if Pullpass expects another audience)"},
		{"audience is not the one that is set", get, settings(environment{"PULLPASS_AUDIENCE": "pullpass"}), now, registry, file +
			`: token for another audience: it is for ["registry.example.com"]; ` +
			`set volumes[].projected.sources[].serviceAccountToken.audience of the pod to "pullpass" ` +
			"(or set PULLPASS_AUDIENCE, if Pullpass expects another audience)"},
		{"expired", get, settings(nil), now.Add(time.Hour), registry, file + ": token expired at " + now.Add(time.Hour).UTC().Format(time.RFC3339) +
			", and the clock here says " + now.Add(time.Hour).UTC().Format(time.RFC3339) + "; the kubelet replaces it in time, unless it is a copy or mounted with subPath"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			output := printed(t, 1, test.args, test.env, test.now, strings.NewReader(test.stdin))
			// The whole text is compared, so nothing of the token can be in it.
			if want := "docker-credential-pullpass: " + test.want + "\n"; output != want {
				t.Errorf("standard output %q, want %q", output, want)
			}
			if strings.Contains(output, token) {
				t.Error("the token is in the message, which clients print")
			}
			// Clients put it between backquotes of one line.
			if strings.ContainsAny(strings.TrimSuffix(output, "\n"), "\n`") {
				t.Errorf("standard output %q is more than a line", output)
			}
		})
	}
}

// docker-credential-helpers has this text for it.
func TestNoServer(t *testing.T) {
	t.Parallel()
	for _, stdin := range []string{"", "\n", " \r\n"} {
		env := environment{"PULLPASS_REGISTRIES": registry}
		if got := printed(t, 1, []string{"get"}, env, time.Now(), strings.NewReader(stdin)); got != "no credentials server URL\n" {
			t.Errorf("input %q: standard output %q", stdin, got)
		}
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	env := environment{"PULLPASS_REGISTRIES": registry + ",localhost:5443"} // and no token
	got := printed(t, 0, []string{"list"}, env, time.Now(), strings.NewReader("unused"))
	if want := `{"localhost:5443":"serviceaccount","registry.example.com":"serviceaccount"}` + "\n"; got != want {
		t.Errorf("standard output %q, want %q", got, want)
	}
}

// The helper leaves credentials of other registries alone.
func TestStoreAndEraseReadNothing(t *testing.T) {
	t.Parallel()
	for _, action := range []string{"store", "erase"} {
		stdin := strings.NewReader("secret")
		printed(t, 1, []string{action}, environment{}, time.Now(), stdin)
		if stdin.Len() != len("secret") {
			t.Errorf("%s read its input", action)
		}
	}
}

func TestErrorsOfStandardInputAndOutput(t *testing.T) {
	t.Parallel()
	env, broken := environment{"PULLPASS_REGISTRIES": registry}, errors.New("broken pipe")
	got := printed(t, 1, []string{"get"}, env, time.Now(), iotest.ErrReader(broken))
	if want := "docker-credential-pullpass: server on standard input: broken pipe\n"; got != want {
		t.Errorf("standard output %q, want %q", got, want)
	}
	var stderr bytes.Buffer
	if code := run([]string{"list"}, env.get, time.Now(), strings.NewReader(""), failingWriter{broken}, &stderr); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if want := "docker-credential-pullpass: writing to standard output: broken pipe\n"; stderr.String() != want {
		t.Errorf("standard error %q, want %q", &stderr, want)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// Input that never ends must not fill the memory of a pod.
func TestReadingStopsAtTheLimit(t *testing.T) {
	t.Parallel()
	stdin := strings.NewReader(strings.Repeat("x", 2*maxServerSize))
	got := printed(t, 1, []string{"get"}, environment{"PULLPASS_REGISTRIES": registry}, time.Now(), stdin)
	if want := "docker-credential-pullpass: " + errServerSize.Error() + "\n"; got != want {
		t.Errorf("standard output %q, want %q", got, want)
	}
	if read := 2*maxServerSize - stdin.Len(); read > maxServerSize+1 {
		t.Errorf("read %d bytes, want at most %d", read, maxServerSize+1)
	}
}

func TestLongestServerPasses(t *testing.T) {
	t.Parallel()
	now := time.Now()
	env := environment{"PULLPASS_REGISTRIES": registry, "PULLPASS_TOKEN_FILE": testkit.TempFile(t, "token", newToken(t, registry, now))}
	printed(t, 0, []string{"get"}, env, now, strings.NewReader(registry+strings.Repeat("/", maxServerSize-len(registry))))
}

// Whatever is asked, the token is for the registries alone.
func FuzzServer(f *testing.F) {
	for _, server := range []string{
		registry, "https://" + registry + "/v1/", registry + "/team-a/web", "localhost:5443\n", "https://index.docker.io/v1/",
		"https://registry.example.com@evil.example/", "evil.example/registry.example.com", "http://registry.example.com", "",
	} {
		f.Add(server)
	}
	now := time.Now()
	token := newToken(f, "pullpass", now)
	env := environment{"PULLPASS_REGISTRIES": registry + ",localhost:5443", "PULLPASS_AUDIENCE": "pullpass", "PULLPASS_TOKEN_FILE": testkit.TempFile(f, "token", token)}
	f.Fuzz(func(t *testing.T, server string) {
		var stdout, stderr bytes.Buffer
		code := run([]string{"get"}, env.get, now, strings.NewReader(server), &stdout, &stderr)
		if code != 0 {
			if strings.Contains(stdout.String()+stderr.String(), token) {
				t.Errorf("server %q: refused with the token: %q", server, &stdout)
			}
			return
		}
		name := strings.TrimPrefix(strings.TrimSpace(server), "https://")
		for _, registry := range []string{registry, "localhost:5443"} {
			if name == registry || strings.HasPrefix(name, registry+"/") {
				return
			}
		}
		t.Errorf("server %q got the token", server)
	})
}
