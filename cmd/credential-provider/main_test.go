package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	credentialprovider "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"github.com/pullpass/pullpass/internal/node/hoststoml"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"pullpass-credential-provider": main})
}

func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("GORACE", "atexit_sleep_ms=0") // or the race detector lets each program sleep for a second at its end
			return nil
		},
	})
}

// token is a canary: no test may find it anywhere but in the password.
const token = "eyJhbGciOiJSUzI1NiJ9.Y2FuYXJ5.c2lnbmF0dXJl"

// kubeletRequest is what the kubelet 1.36.3 was seen to write for an image,
// with another token.
func kubeletRequest(image string) string {
	return `{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"` + image + `",` +
		`"kind":"CredentialProviderRequest","serviceAccountAnnotations":{"registry.example/claims":"team/app:pull"},` +
		`"serviceAccountToken":"` + token + `"}`
}

// kubeletTypes are the kubelet's own: it refuses a response that they cannot hold.
func kubeletTypes(t *testing.T) runtime.Decoder {
	t.Helper()
	scheme := runtime.NewScheme()
	testkit.Must(t, credentialprovider.AddToScheme(scheme))
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}

// decodeAsKubelet decodes as the kubelet does and returns the only key of auth
// with its password.
func decodeAsKubelet(t *testing.T, output []byte) (host, password string) {
	t.Helper()
	object, _, err := kubeletTypes(t).Decode(output, nil, nil)
	if err != nil {
		t.Fatalf("response %q: %v", output, err)
	}
	r, ok := object.(*credentialprovider.CredentialProviderResponse)
	if !ok {
		t.Fatalf("response is a %T", object)
	}
	if r.CacheKeyType != credentialprovider.RegistryPluginCacheKeyType {
		t.Errorf("cacheKeyType = %q, want Registry", r.CacheKeyType)
	}
	if r.CacheDuration == nil || r.CacheDuration.Duration != 0 {
		t.Errorf("cacheDuration = %v, want 0s: the kubelet's default would apply", r.CacheDuration)
	}
	if len(r.Auth) != 1 {
		t.Fatalf("auth = %v, want one key", r.Auth)
	}
	for key, credential := range r.Auth {
		if credential.Username == "" {
			t.Error("empty username: containerd would drop the credential and pull anonymously")
		}
		host, password = key, credential.Password
	}
	return host, password
}

// The request of these tests is one that the kubelet can write.
func TestRequestIsTheKubelets(t *testing.T) {
	t.Parallel()
	object, _, err := kubeletTypes(t).Decode([]byte(kubeletRequest("registry.example.com/team/app")), nil, nil)
	testkit.Must(t, err)
	want := &credentialprovider.CredentialProviderRequest{
		Image:                     "registry.example.com/team/app",
		ServiceAccountToken:       token,
		ServiceAccountAnnotations: map[string]string{"registry.example/claims": "team/app:pull"},
	}
	want.SetGroupVersionKind(credentialprovider.SchemeGroupVersion.WithKind("CredentialProviderRequest"))
	if !reflect.DeepEqual(object, want) {
		t.Errorf("decoded %+v", object)
	}
}

func TestTokenIsPassedThroughForTheRegistryOfTheImage(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ image, host string }{
		{"127.0.0.1:5443/team/app", "127.0.0.1:5443"},
		{"registry.example.com/team/app", "registry.example.com"},
		{"registry.example.com/app", "registry.example.com"},
		{"localhost/app", "localhost"},
		{"localhost:5443/app", "localhost:5443"},
		{"REGISTRY/app", "REGISTRY"},
		{"[::1]:5443/app", "[::1]:5443"},
		{"[2001:DB8::1]:5443/app", "[2001:DB8::1]:5443"},
		{"my-registry.example:80/a/b/c", "my-registry.example:80"},
		// The kubelet sends full names; these are for callers that do not.
		{"docker.io/library/nginx", "docker.io"},
		{"library/nginx", "docker.io"},
		{"nginx", "docker.io"},
		{"nginx:1.29", "docker.io"},
		{"registry.example.com/app:v1", "registry.example.com"},
		{"registry.example.com/app@sha256:0123", "registry.example.com"},
	} {
		t.Run(test.image, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			if code := run(nil, strings.NewReader(kubeletRequest(test.image)), &stdout, &stderr); code != 0 {
				t.Fatalf("exit code %d: %s", code, stderr.String())
			}
			if stderr.Len() > 0 {
				t.Errorf("standard error: %q", stderr.String())
			}
			host, password := decodeAsKubelet(t, stdout.Bytes())
			if host != test.host {
				t.Errorf("key of auth = %q, want %q", host, test.host)
			}
			if password != token {
				t.Errorf("password = %q, want the token", password)
			}
		})
	}
}

func TestTokenIsPassedToNamedRegistries(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--registry=registry.example.com"},
		{"--registry", "registry.example.com"},
		{"--registry=127.0.0.1:5443", "--registry", "registry.example.com", "--registry=[::1]:5443", "--registry=docker.io"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(args, strings.NewReader(kubeletRequest("registry.example.com/team/app")), &stdout, &stderr); code != 0 {
			t.Fatalf("%q: exit code %d: %s", args, code, stderr.String())
		}
		if host, password := decodeAsKubelet(t, stdout.Bytes()); host != "registry.example.com" || password != token {
			t.Errorf("%q: %q for %q", args, password, host)
		}
	}
}

// Other programs rewrite containerd's directory, and the next pull must not send the
// token to the registry.
func TestTokenIsPassedOnlyWhileContainerdAsksTheGateway(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	own := filepath.Join(dir, "registry.example.com")
	testkit.Must(t, os.Mkdir(own, 0o755))
	const good = "server = \"https://gateway.example.com:8443/v2/registry.example.com\"\noverride_path = true\n[host]\n"
	args := []string{"--registry=registry.example.com", "--registry=gateway.example.com:8443", "--gateway", "https://gateway.example.com:8443", "--certs-dir", dir}
	ask := func(image string, want error) {
		t.Helper()
		var stdout, stderr bytes.Buffer
		code := run(args, strings.NewReader(kubeletRequest(image)), &stdout, &stderr)
		if want == nil {
			if host, password := decodeAsKubelet(t, stdout.Bytes()); code != 0 || password != token || !strings.HasPrefix(image, host+"/") {
				t.Errorf("exit code %d, %q for %q: %s", code, password, host, stderr.String())
			}
			return
		}
		if said := "pullpass-credential-provider: " + gatewayError(want).Error() + "\n"; code != 1 || stdout.Len() > 0 || stderr.String() != said {
			t.Errorf("exit code %d, %q, %q; want %q", code, stdout.String(), stderr.String(), said)
		}
	}
	ask("registry.example.com/app", hoststoml.ErrMissing)
	ask("gateway.example.com:8443/harbor/app", nil) // it is asked itself
	testkit.Write(t, own, "hosts.toml", good)
	ask("registry.example.com/app", nil)
	testkit.Write(t, own, "hosts.toml", "server = 'https://registry.example.com'\n[host.'http://10.0.3.17:30020']\n")
	ask("registry.example.com/app", hoststoml.ErrServer)
	testkit.Write(t, own, "hosts.toml", good+"[host.'http://10.0.3.17:30020']\n")
	ask("registry.example.com/app", hoststoml.ErrHost)
	testkit.Must(t, os.RemoveAll(own))
	ask("registry.example.com/app", hoststoml.ErrMissing)
}

// CRI-O asks whatever host the name leads to.
func TestNamesThatLeadToTheGateway(t *testing.T) {
	t.Parallel()
	const (
		none  = "/etc/hosts: has no address of the image's registry"
		other = "/etc/hosts: gives the image's registry an address that it does not give the gateway"
		text  = "/etc/hosts: a line with the image's registry does not begin with an IP address"
		proxy = "HTTPS_PROXY is set, and NO_PROXY does not have the image's registry"
		line  = "/etc/hosts: has a line of 64 KiB or more, after which CRI-O reads nothing"
		port  = "the image's registry has a port, and the gateway has the names of registries at port 443"
	)
	for _, test := range []struct{ hosts, registry, want string }{
		{"10.0.0.5 gateway.example.com ghcr.io", "ghcr.io", ""},
		{"127.0.0.1 localhost\n10.0.0.5\tGHCR.io # ours\n10.0.0.5 gateway.example.com\n", "ghcr.io", ""},
		{"10.0.0.5 gateway.example.com ghcr.io\n10.0.0.6 ghcr.io gateway.example.com", "ghcr.io", ""},
		{"", "ghcr.io", none},
		{"10.0.0.5 gateway.example.com # ghcr.io", "ghcr.io", none},
		{"10.0.0.5 gateway.example.com x.ghcr.io ghcr.io.example", "ghcr.io", none},
		{"ghcr.io gateway.example.com", "ghcr.io", none},
		{"fd00::5 gateway.example.com ghcr.io", "ghcr.io", ""},
		{"10.0.0.5 gateway.example.com\n::ffff:10.0.0.5 ghcr.io\r\n", "ghcr.io", ""},
		{"10.0.0.5 gateway.example.com ghcr.io ghcr.io.", "ghcr.io", ""},
		{"10.0.0.5 gateway.example.com ghcr.io\n10.0.0.6 ghcr.io.", "ghcr.io", other},
		// Resolvers do not read these as people do, nor all alike.
		{"10.0.0.5 gateway.example.com ghcr.io.", "ghcr.io", none},
		{"10.0.0.5 gateway.example.com.\n10.0.0.5 ghcr.io", "ghcr.io", other},
		{"10.0.0.6\vghcr.io x\n10.0.0.5 gateway.example.com ghcr.io", "ghcr.io", other},
		{"fe80::5%eth0 gateway.example.com ghcr.io", "ghcr.io", text},
		{"ADDRESS gateway.example.com ghcr.io", "ghcr.io", text},
		{"10.0.0.300 gateway.example.com ghcr.io", "ghcr.io", text},
		{"10.0.0.09 gateway.example.com ghcr.io", "ghcr.io", text},
		{"10.0.0.5:443 gateway.example.com ghcr.io", "ghcr.io", text},
		{"10.0.0.5/32 gateway.example.com ghcr.io", "ghcr.io", text},
		{"[fd00::5] gateway.example.com ghcr.io", "ghcr.io", text},
		{"\ufeff10.0.0.5 gateway.example.com ghcr.io", "ghcr.io", text},
		{"10.0.0.5 gateway.example.com ghcr.io\nADDRESS ghcr.io", "ghcr.io", text},
		{"10.0.0.5\u00a0gateway.example.com ghcr.io", "ghcr.io", text},
		{"10.0.0.5\u00a0x ghcr.io\n10.0.0.5 gateway.example.com", "ghcr.io", text},
		{"10.0.0.5 gateway.example.com\u00a0ghcr.io", "ghcr.io", none},
		{"10.0.0.5 gateway.example.com\vghcr.io", "ghcr.io", none},
		{"10.0.0.5 ghcr.io", "ghcr.io", other},
		{"10.0.0.5 gateway.example.com ghcr.io\n10.0.0.6 ghcr.io", "ghcr.io", other},
		{strings.Repeat("#", 64<<10-2) + "\n10.0.0.5 gateway.example.com ghcr.io", "ghcr.io", ""},
		{strings.Repeat("#", 64<<10-1) + "\n10.0.0.5 gateway.example.com ghcr.io", "ghcr.io", line},
		{"10.0.0.5 gateway.example.com ghcr.io\n#" + strings.Repeat("x", 64<<10), "ghcr.io", line},
		{"10.0.0.5 ghcr.io:443 gateway.example.com", "ghcr.io:443", port},
		{"10.0.0.5 GATEWAY gateway.example.com", "GATEWAY", "the image's registry has no dot, and CRI-O takes such a name for a short one"},
	} {
		err := verifyNames(test.hosts, func(string) string { return "" }, test.registry, "gateway.example.com:8443")
		if (err == nil) != (test.want == "") || err != nil && err.Error() != nameError(test.want).Error() {
			t.Errorf("%q, %s: %v, want %q", test.hosts, test.registry, err, test.want)
		}
	}
	proxied := func(name string) string {
		return map[string]string{"HTTPS_PROXY": "http://10.0.0.7:3128", "NO_PROXY": "localhost"}[name]
	}
	if err := verifyNames("10.0.0.5 gateway.example.com ghcr.io", proxied, "ghcr.io", "gateway.example.com"); err == nil || err.Error() != nameError(proxy).Error() {
		t.Errorf("through a proxy: %v", err)
	}
	var stdout, stderr bytes.Buffer
	args := []string{"--gateway=https://gateway.example.com", "--by-name"}
	if code := run(args, strings.NewReader(kubeletRequest("registry.example.com/app")), &stdout, &stderr); code != 1 || stdout.Len() > 0 || !strings.Contains(stderr.String(), nameError(none).Error()) {
		t.Errorf("exit code %d, %q, %q", code, stdout.String(), stderr.String())
	}
	stderr.Reset()
	if code := run(args, strings.NewReader(kubeletRequest("gateway.example.com/harbor/app")), &stdout, &stderr); code != 0 { // it is asked itself
		t.Errorf("exit code %d, %q", code, stderr.String())
	}
}

// CRI-O looks up a short name in registries.conf, and the kubelet asks for the same image as for that of docker.io.
func TestShortNamesLeadAnywhere(t *testing.T) {
	t.Parallel()
	for image, want := range map[string]error{
		"docker.io/library/centos": errShortName,
		"centos":                   errShortName,
		"acme/app":                 errShortName,
		"gateway.example.com/docker.io/library/centos":      nil,
		"gateway.example.com/registry-1.docker.io/acme/app": nil,
		"registry-1.docker.io/library/centos":               nameError("/etc/hosts: has no address of the image's registry"),
		"docker.io.example.com/library/centos":              nameError("/etc/hosts: has no address of the image's registry"),
	} {
		for _, registries := range [][]string{nil, {"--registry=docker.io", "--registry=gateway.example.com", "--registry=registry-1.docker.io", "--registry=docker.io.example.com"}} {
			_, err := answer(append(registries, "--gateway=https://gateway.example.com", "--by-name"), strings.NewReader(kubeletRequest(image)))
			if (err == nil) != (want == nil) || err != nil && err.Error() != want.Error() {
				t.Errorf("%s, %q: %v, want %v", image, registries, err, want)
			}
		}
	}
	if _, err := answer([]string{"--gateway=https://docker.io", "--by-name"}, strings.NewReader(kubeletRequest("docker.io/library/centos"))); !errors.Is(err, errShortName) {
		t.Errorf("the gateway itself: %v", err)
	}
}

// A newer kubelet may add fields to the request.
func TestUnknownFieldsOfTheRequestAreIgnored(t *testing.T) {
	t.Parallel()
	input := strings.Replace(kubeletRequest("registry.example.com/app"), "{", `{"podUID":"1",`, 1)
	var stdout, stderr bytes.Buffer
	if code := run(nil, strings.NewReader(input), &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	valid := kubeletRequest("registry.example.com/app")
	replaced := func(from, to string) string {
		if !strings.Contains(valid, from) {
			t.Fatalf("%q is not in the valid request", from)
		}
		return strings.Replace(valid, from, to, 1)
	}
	image := func(image string) string { return kubeletRequest(image) }
	withToken := func(value string) string { return replaced(token, value) }

	for _, test := range []struct {
		name  string
		args  []string
		input string
		want  error
	}{
		{"unknown argument", []string{"--token=" + token}, valid, errArguments},
		{"two arguments", []string{"--version", token}, valid, errArguments},
		{"subcommand", []string{token}, valid, errArguments},
		{"version and a registry", []string{"--registry=registry.example.com", "--version"}, valid, errArguments},
		{"registry without a host", []string{"--registry"}, valid, errArguments},
		{"empty registry", []string{"--registry="}, valid, errRegistry},
		{"registry with a scheme", []string{"--registry=https://registry.example.com"}, valid, errRegistry},
		{"registry with a path", []string{"--registry=registry.example.com/app"}, valid, errRegistry},
		{"registry with a wildcard", []string{"--registry=*.example.com"}, valid, errRegistry},
		{"registry that is a repository of docker.io", []string{"--registry=registry"}, valid, errRegistry},
		{"second registry is none", []string{"--registry=registry.example.com", "--registry", token + "/"}, valid, errRegistry},

		{"gateway without a URL", []string{"--gateway"}, valid, errArguments},
		{"empty gateway", []string{"--gateway="}, valid, errGateway},
		{"gateway without a scheme", []string{"--gateway=gateway.example.com"}, valid, errGateway},
		{"gateway of another scheme", []string{"--gateway=ftp://gateway.example.com"}, valid, errGateway},
		{"gateway with a path", []string{"--gateway=https://gateway.example.com/v2"}, valid, errGateway},
		{"gateway with a slash", []string{"--gateway", "https://gateway.example.com/"}, valid, errGateway},
		{"gateway with a quote", []string{`--gateway=https://gateway.example.com"`}, valid, errGateway},
		{"two gateways", []string{"--gateway=https://a.example.com", "--gateway=https://b.example.com"}, valid, errArguments},
		{"directory that is relative", []string{"--gateway=https://gateway.example.com", "--certs-dir=certs.d"}, valid, errCertsDir},
		{"empty directory", []string{"--gateway=https://gateway.example.com", "--certs-dir="}, valid, errCertsDir},
		{"directory without a gateway", []string{"--certs-dir=/etc/containerd/certs.d"}, valid, errCertsDir},
		{"names without a gateway", []string{"--by-name"}, valid, errByName},
		{"names twice", []string{"--gateway=https://gateway.example.com", "--by-name", "--by-name"}, valid, errArguments},
		{"names with a value", []string{"--gateway=https://gateway.example.com", "--by-name=true"}, valid, errArguments},
		{"names and a directory", []string{"--gateway=https://gateway.example.com", "--by-name", "--certs-dir=/a"}, valid, errCertsDir},
		{"two directories", []string{"--gateway=https://gateway.example.com", "--certs-dir=/a", "--certs-dir=/b"}, valid, errArguments},

		{"other registry", []string{"--registry=other.example.com"}, valid, errOtherRegistry},
		{"other port", []string{"--registry", "registry.example.com:5443"}, valid, errOtherRegistry},
		{"registry above", []string{"--registry=example.com"}, valid, errOtherRegistry},
		{"registry below", []string{"--registry=eu.registry.example.com"}, valid, errOtherRegistry},
		{"docker.io, which a short name means", []string{"--registry=registry.example.com"}, image("team/app"), errOtherRegistry},

		{"nothing", nil, "", errRequestJSON},
		{"no JSON", nil, token, errRequestJSON},
		{"cut off", nil, valid[:len(valid)-2], errRequestJSON},
		{"something after the request", nil, valid + token, errRequestJSON},
		{"second request", nil, valid + valid, errRequestJSON},
		{"array", nil, "[" + valid + "]", errRequestJSON},
		{"string", nil, `"` + token + `"`, errRequestJSON},
		{"token is a number", nil, replaced(`"`+token+`"`, "12345678901234567890"), errRequestJSON},
		{"token is an object", nil, replaced(`"`+token+`"`, `{"`+token+`":"`+token+`"}`), errRequestJSON},
		{"image is an array", nil, replaced(`"registry.example.com/app"`, `["`+token+`"]`), errRequestJSON},
		{"invalid escape after the token", nil, replaced(token, token+`\x`), errRequestJSON},
		{"too large", nil, valid + strings.Repeat(" ", maxRequestSize), errRequestSize},

		{"null", nil, "null", errAPIVersion},
		{"no apiVersion", nil, replaced(`"apiVersion":"`+apiVersion+`",`, ""), errAPIVersion},
		{"older apiVersion", nil, replaced(apiVersion, apiVersion+"beta1"), errAPIVersion},
		{"other apiVersion", nil, replaced(apiVersion, token), errAPIVersion},
		{"no kind", nil, replaced(`"kind":"CredentialProviderRequest",`, ""), errKind},
		{"other kind", nil, replaced("CredentialProviderRequest", token), errKind},

		{"no token", nil, replaced(`,"serviceAccountToken":"`+token+`"`, ""), errEmptyToken},
		{"empty token", nil, withToken(""), errEmptyToken},
		{"null token", nil, replaced(`"`+token+`"`, "null"), errEmptyToken},
		{"token too long", nil, withToken(token + strings.Repeat("x", maxTokenSize-len(token)+1)), errTokenSize},

		{"no image", nil, replaced(`"image":"registry.example.com/app",`, ""), errEmptyImage},
		{"empty image", nil, image(""), errEmptyImage},
		{"no host", nil, image("/app"), errImage},
		{"host without repository", nil, image("registry.example.com/"), errImage},
		{"port without host", nil, image(":5443/app"), errImage},
		{"port without digits", nil, image("registry.example.com:/app"), errImage},
		{"port with letters", nil, image("registry.example.com:https/app"), errImage},
		{"two ports", nil, image("registry.example.com:1:2/app"), errImage},
		{"URL", nil, image("https://registry.example.com/app"), errImage},
		{"user in front of the host", nil, image(token + "@registry.example.com/app"), errImage},
		{"space", nil, image("registry.example.com /app"), errImage},
		{"not ASCII", nil, image("régistry.example.com/app"), errImage},
		{"percent", nil, image("registry%2eexample.com/app"), errImage},
		// The kubelet takes keys of auth as globs: these would offer the token
		// to other registries.
		{"star in the host", nil, image("*.example.com/app"), errImage},
		{"question mark in the host", nil, image("registr?.example.com/app"), errImage},
		{"character class in the host", nil, image("r[a-z]gistry.example.com/app"), errImage},
		{"backslash in the host", nil, image(`registry\\.example.com/app`), errImage},
		{"character class as IPv6 address", nil, image("[a-z]:5443/app"), errImage},
		{"glob after an IPv6 address", nil, image("[::1]*:5443/app"), errImage},
		{"IPv6 port with letters", nil, image("[::1]:https/app"), errImage},
		{"IPv6 address without end", nil, image("[::1/app"), errImage},
		{"empty IPv6 address", nil, image("[]:5443/app"), errImage},
		{"IPv6 address without port", nil, image("[::1]/app"), errIPv6},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			if code := run(test.args, strings.NewReader(test.input), &stdout, &stderr); code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			if stdout.Len() > 0 {
				t.Errorf("standard output: %q, want nothing", stdout.String())
			}
			// The whole text is compared, so nothing of the request can be in it.
			if want := "pullpass-credential-provider: " + test.want.Error() + "\n"; stderr.String() != want {
				t.Errorf("standard error: %q, want %q", stderr.String(), want)
			}
			if strings.Contains(stderr.String(), token) {
				t.Error("the token is on standard error, from where the kubelet logs it")
			}
		})
	}
}

func TestLargestTokenPasses(t *testing.T) {
	t.Parallel()
	input := strings.Replace(kubeletRequest("registry.example.com/app"), token, strings.Repeat("x", maxTokenSize), 1)
	var stdout, stderr bytes.Buffer
	if code := run(nil, strings.NewReader(input), &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
}

func TestErrorsOfStandardInputAndOutputAreReported(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken pipe")
	for _, test := range []struct {
		name   string
		stdin  io.Reader
		stdout io.Writer
		want   string
	}{
		{"input", iotest.ErrReader(broken), io.Discard, "reading the request from standard input: broken pipe"},
		{"output", strings.NewReader(kubeletRequest("registry.example.com/app")), failingWriter{broken}, "writing to standard output: broken pipe"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var stderr bytes.Buffer
			if code := run(nil, test.stdin, test.stdout, &stderr); code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			if want := "pullpass-credential-provider: " + test.want + "\n"; stderr.String() != want {
				t.Errorf("standard error: %q, want %q", stderr.String(), want)
			}
		})
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// A request that never ends must not fill the memory of the node.
func TestReadingStopsAtTheLimit(t *testing.T) {
	t.Parallel()
	endless := &countingReader{}
	var stdout, stderr bytes.Buffer
	if code := run(nil, endless, &stdout, &stderr); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if !strings.Contains(stderr.String(), errRequestSize.Error()) {
		t.Errorf("standard error: %q, want %q", stderr.String(), errRequestSize)
	}
	if endless.read > maxRequestSize+1 {
		t.Errorf("read %d bytes, want at most %d", endless.read, maxRequestSize+1)
	}
}

// The kubelet kills a plugin after a minute, and its log then says nothing about
// the reason.
func TestSlowRequestIsGivenUp(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		start := time.Now()
		var stdout, stderr bytes.Buffer
		if code := run(nil, trickle{start.Add(2 * readTimeout)}, &stdout, &stderr); code != 1 || stdout.Len() > 0 {
			t.Errorf("exit code %d with %q, want 1 with nothing", code, stdout.String())
		}
		if want := "pullpass-credential-provider: " + errSlow.Error() + "\n"; stderr.String() != want {
			t.Errorf("standard error: %q, want %q", stderr.String(), want)
		}
		if took := time.Since(start); took != readTimeout {
			t.Errorf("took %v, want %v", took, readTimeout)
		}
		time.Sleep(2 * readTimeout) // the reader comes to its end
	})
}

// trickle is a request of which a byte comes now and then, for twice the time.
type trickle struct{ end time.Time }

func (r trickle) Read(b []byte) (int, error) {
	if !time.Now().Before(r.end) {
		return 0, io.EOF
	}
	time.Sleep(time.Second)
	b[0] = ' '
	return 1, nil
}

type countingReader struct{ read int }

func (r *countingReader) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	r.read += len(b)
	return len(b), nil
}

func FuzzRequest(f *testing.F) {
	f.Add([]byte(kubeletRequest("127.0.0.1:5443/team/app")))
	f.Add([]byte(kubeletRequest("nginx")))
	f.Add([]byte(kubeletRequest("[::1]:5443/app")))
	f.Add([]byte(kubeletRequest("*.example.com/app")))
	f.Add([]byte(`{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderRequest"}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, input []byte) {
		var stdout, stderr bytes.Buffer
		if code := run(nil, bytes.NewReader(input), &stdout, &stderr); code != 0 {
			if stdout.Len() > 0 || stderr.Len() == 0 {
				t.Fatalf("refused with standard output %q and standard error %q", stdout.String(), stderr.String())
			}
			return
		}
		var r request
		if err := json.Unmarshal(input, &r); err != nil {
			t.Fatalf("answered a request that is no JSON: %v", err)
		}
		host, password := decodeAsKubelet(t, stdout.Bytes())
		if password != r.ServiceAccountToken {
			t.Errorf("password %q, token %q", password, r.ServiceAccountToken)
		}
		if host != defaultHost && !strings.HasPrefix(r.Image, host+"/") {
			t.Errorf("key of auth %q is not the host of the image %q", host, r.Image)
		}
		// Brackets are there around an IPv6 address only; the kubelet takes
		// them off before it matches.
		plain := strings.TrimPrefix(strings.Replace(host, "]:", ":", 1), "[")
		if strings.ContainsAny(plain, `*?[]\/%@ `) {
			t.Errorf("key of auth %q is more than a host", host)
		}
	})
}
