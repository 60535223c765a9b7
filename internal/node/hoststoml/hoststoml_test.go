package hoststoml

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

const (
	gateway = "https://gateway.example.com"
	good    = `server = "https://gateway.example.com/v2/ghcr.io"
override_path = true
[host] # empty: no mirrors
`
	// The replacement that Spegel writes (pkg/oci/containerd/mirror.go), with and without
	// prependExisting. It keeps nothing of a file with an empty [host].
	spegel = `server = 'https://ghcr.io'

[host.'http://10.0.3.17:30020']
capabilities = ['pull', 'resolve']
dial_timeout = '200ms'`
)

func TestVerifyContent(t *testing.T) {
	t.Parallel()
	with := func(from, to string) string {
		if !strings.Contains(good, from) {
			t.Fatalf("%q is not in the good file", from)
		}
		return strings.Replace(good, from, to, 1)
	}
	above := func(line string) string { return with("[host]", line+"\n[host]") }
	for _, test := range []struct {
		name, content string
		want          error
	}{
		{"as printed", good, nil},
		{"comments, empty lines, other quotes", "# by hand\n\n  server='https://gateway.example.com/v2/ghcr.io' # here\r\noverride_path=true# so\r\n\t[host]", nil},
		{"a CA and the kubelet's certificate", above("ca = \"ca.crt\" # beside it\nclient = [[\"/a.crt\", \"/a.key\"]]"), nil},
		{"all that containerd does", above(`capabilities = ["pull", "resolve"]`), nil},

		{"a tab", with("server =", "server\t="), nil},
		{"other quotes around spaces and #", above(`ca = '/a #b'`), nil},
		{"a string of one character", above(`ca = "a"`), nil},
		{"several CAs", above(`ca = ["/a", "/b"]`), nil},
		{"a certificate with its key", above(`client = ["/a.pem"]`), nil},
		{"the kubelet's certificate, with its key in the same file", above(`client = "/a.pem"`), nil},
		{"a flag that is on", above(`pass_upstream_credentials = true`), nil},
		{"a flag that is off", above(`pass_upstream_credentials = false`), nil},
		{"ended by half a line end", strings.TrimSuffix(good, "\n") + "\r", ErrForm}, // containerd 2 decodes nothing of it
		{"half a line end, in a comment", good + "# by hand\r", ErrForm},
		{"half a line end, alone", good + " \r", ErrForm},

		{"empty", "", ErrServer},
		{"comments alone", "# " + good[:10] + "\n", ErrServer},
		{"Spegel's", spegel, ErrServer},
		{"Spegel's, in front of this", spegel + "\n\n" + good, ErrServer},
		{"Spegel's for all registries", strings.TrimPrefix(spegel, "server = 'https://ghcr.io'\n"), ErrForm},
		{"a mirror", good + "[host.\"http://10.0.3.17:30020\"]\n", ErrHost},
		{"a mirror above", above(`[host."http://10.0.3.17:30020"]`), ErrForm},
		{"the registry itself", with("https://gateway.example.com/v2/ghcr.io", "https://ghcr.io"), ErrServer},
		{"another gateway", with("gateway.example.com", "gateway.example.org"), ErrServer},
		{"another registry of the gateway", with("/ghcr.io", "/docker.io"), ErrServer},
		{"more after the registry", with("/ghcr.io", "/ghcr.io/"), ErrServer},
		{"in the clear", with("https", "http"), ErrServer},
		{"no server", with("server", "# server"), ErrServer},
		{"server twice", "server = \"https://ghcr.io\"\n" + good, ErrServer},
		{"server twice, the right one first", above(`server = "https://ghcr.io"`), ErrForm},
		{"the same server twice", good[:strings.Index(good, "\n")+1] + good, ErrForm},
		{"server with something behind it", with("ghcr.io\"", "ghcr.io\" x"), ErrForm},
		{"server with an escape", with("gateway.", `gateway\u002e`), ErrServer},
		{"server without an end", with("ghcr.io\"", "ghcr.io"), ErrServer},
		{"server without quotes", strings.ReplaceAll(good, `"`, ""), ErrServer},
		{"no override_path", with("override_path", "# override_path"), ErrOverride},
		{"override_path is false", with("true", "false"), ErrOverride},
		{"override_path is a string", with("true", `"true"`), ErrOverride},
		{"no [host]", with("[host]", "# [host]"), ErrHost},
		{"[host] twice", good + "[host]\n", ErrForm},
		{"[host] has a value", with("[host] #", "[host] = 1 #"), ErrForm},
		{"[host] has something behind it", with("[host] #", "[host] x #"), ErrForm},
		{"[host] is a list", with("[host]", "[[host]]"), ErrForm},
		{"something in [host]", good + "skip_verify = true\n", ErrHost},
		{"no verification", above("skip_verify = true"), ErrForm},
		{"a header", above("[header]"), ErrForm},
		{"a header below", good + "[header]\nAuthorization = \"Basic eDp5\"\n", ErrHost},
		{"a key in parts", above("host.x = 1"), ErrForm},
		{"a quoted key", with("server", `"server"`), ErrForm},
		{"no key", above("x"), ErrForm},
		{"a string over lines", above("ca = \"\"\"\n\"\"\""), ErrForm},
		{"a list over lines", above("ca = [\n]"), ErrForm},
		{"a list with a comment in it", above(`ca = [ # ]`), ErrForm},
		{"a list with a comment behind a comma", above(`ca = ["/a", # "/b"]`), ErrForm},
		{"a list without an end", above(`ca = ["/a"`), ErrForm},
		{"no list, but its end", above(`ca = "/a"]`), ErrForm},
		{"an escape", above(`ca = "/\q"`), ErrForm},
		{"an escape in a list", above(`ca = ["/\q"]`), ErrForm},
		{"an empty string", above(`ca = ""`), ErrForm},
		{"a string without an end", above(`ca = "/a`), ErrForm},
		{"something behind a value", above(`ca = "/a" "/b"`), ErrForm},
		{"no value", above("ca ="), ErrForm},
		{"a number", above("ca = 5"), ErrForm},
		{"a word", above("ca = xyz"), ErrForm},
		{"a word that begins as it ends", above("ca = aa"), ErrForm},
		{"half a string", above(`ca = ["]`), ErrForm},
		{"a capability without quotes", above(`capabilities = [xpullx]`), ErrForm},
		{"a list that ends twice", above(`client = ["a", "b"]]`), ErrForm},
		{"a list that begins twice", above(`client = [["a", "b"]`), ErrForm},
		{"a pair of numbers", above(`client = [[1, 2]]`), ErrForm},
		{"no list of CAs", above("ca = true"), ErrForm},
		{"numbers", above("ca = [1, 2]"), ErrForm},
		{"two lists", above(`ca = [] junk []`), ErrForm},
		{"a list without commas", above(`client = [["a" "b"]]`), ErrForm},
		{"a list of three", above(`client = [["a", "b", "c"]]`), ErrForm},
		{"a list of numbers", above(`client = [[1]]`), ErrForm},
		{"a capability that there is not", above(`capabilities = ["nope"]`), ErrForm},
		{"capabilities are not a list", above(`capabilities = "pull"`), ErrForm},
		{"a flag that is none", above(`pass_upstream_credentials = 1`), ErrForm},
		{"a space that TOML does not have", above("\u00a0ca = \"/a\""), ErrForm},
		{"one behind a value", above("ca = \"/a\"\u2028"), ErrForm},
		{"one before a value", above("ca =\u3000\"/a\""), ErrForm},
		{"a form feed", above("\fca = \"/a\""), ErrForm},
		{"a vertical tab at the end", above("ca = \"/a\"\v"), ErrForm},
		{"a next line", above("ca = \"/a\"\u0085"), ErrForm},
		{"a character that TOML does not have", above("# \x00"), ErrForm},
		{"a character that TOML does not have either", above("# \x7f"), ErrForm},
		{"not UTF-8", above("# \xff"), ErrForm},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if err := VerifyContent([]byte(test.content), Server(gateway, "ghcr.io")); !errors.Is(err, test.want) || test.want == nil && err != nil {
				t.Errorf("%v, want %v:\n%s", err, test.want, test.content)
			}
		})
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()
	const registry = "registry.example:5000"
	content := strings.ReplaceAll(good, "ghcr.io", registry)
	dir := t.TempDir()
	verify := func(want error) {
		t.Helper()
		if err := Verify(dir, gateway, registry); !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("%v, want %v", err, want)
		}
	}
	verify(ErrMissing)
	own := filepath.Join(dir, registry)
	testkit.Must(t, os.Mkdir(own, 0o755))
	verify(ErrMissing)
	testkit.Write(t, own, "hosts.toml", content)
	verify(nil)
	testkit.Write(t, own, "hosts.toml", content+strings.Repeat("#\n", maxBytes))
	verify(ErrUnreadable)
	testkit.Must(t, os.Remove(filepath.Join(own, "hosts.toml")))
	testkit.Must(t, os.Mkdir(filepath.Join(own, "hosts.toml"), 0o755))
	verify(ErrUnreadable)
	testkit.Must(t, os.Remove(filepath.Join(own, "hosts.toml")))
	testkit.Must(t, syscall.Mkfifo(filepath.Join(own, "hosts.toml"), 0o600)) // it never has a writer
	verify(ErrUnreadable)
	testkit.Must(t, os.Remove(filepath.Join(own, "hosts.toml")))
	testkit.Write(t, own, "hosts.toml", content)

	// containerd does not look further.
	preferred := filepath.Join(dir, "registry.example_5000_")
	testkit.Must(t, os.Mkdir(preferred, 0o755))
	verify(ErrMissing)
	testkit.Write(t, preferred, "hosts.toml", spegel)
	verify(ErrServer)
	testkit.Write(t, preferred, "hosts.toml", content)
	verify(nil)
}

// containerd looks for a directory of the other name only if the registry has a port.
func TestPathWithoutPort(t *testing.T) {
	t.Parallel()
	if got := Path("/etc/containerd/certs.d", "ghcr.io"); got != "/etc/containerd/certs.d/ghcr.io/hosts.toml" {
		t.Errorf("%s", got)
	}
}
