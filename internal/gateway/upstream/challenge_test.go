package upstream

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"unsafe"
)

func TestChallengeOf(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		lines   []string
		scheme  scheme
		realm   string
		service string
	}{
		"bearer":           {[]string{`Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull"`}, schemeBearer, "https://auth.docker.io/token", "registry.docker.io"},
		"basic":            {[]string{`Basic realm="Registry"`}, schemeBasic, "", ""},
		"both in a line":   {[]string{`Basic realm="x", Bearer realm="https://a.example/t" , service="s"`}, schemeBearer, "https://a.example/t", "s"},
		"a URL as a token": {[]string{`Basic realm="x"`, `bearer REALM=https://a.example/t`}, schemeBasic, "", ""},
		"a realm unquoted": {[]string{`Basic realm="x"`, `Bearer realm=a`}, schemeBasic, "", ""},
		"escapes":          {[]string{`Bearer realm="https://a.example/\t",service="a\"b"`}, schemeBearer, "https://a.example/t", `a"b`},
		"a realm twice":    {[]string{`Bearer realm="https://a.example/t",realm="https://b.example/t"`}, schemeBearer, "https://a.example/t", ""},
		"a user":           {[]string{`Bearer realm="https://u:p@a.example/t"`}, schemeUnknown, "", ""},
		"no realm":         {[]string{`Bearer service="s"`}, schemeUnknown, "", ""},
		"no host":          {[]string{`Bearer realm="/token"`}, schemeUnknown, "", ""},
		"not closed":       {[]string{`Bearer realm="https://a.example/t`}, schemeUnknown, "", ""},
		"another":          {[]string{`Negotiate`}, schemeUnknown, "", ""},
		"nothing":          {nil, schemeUnknown, "", ""},
		"too long":         {[]string{`Bearer realm="https://a.example/t",x="` + strings.Repeat("x", maxChallengeBytes) + `"`}, schemeUnknown, "", ""},
	} {
		got := challengeOf(http.Header{"Www-Authenticate": test.lines})
		realm := ""
		if got.realm != nil {
			realm = got.realm.String()
		}
		if got.scheme != test.scheme || realm != test.realm || got.service != test.service {
			t.Errorf("%s: %+v %s", name, got, realm)
		}
	}
}

// Parsed challenges that are formatted and parsed again are unchanged, for every input.
func FuzzChallenges(f *testing.F) {
	f.Add(`Basic realm="x", Bearer realm="https://a.example/t",service=s`)
	f.Add(`Bearer a = "b\\" , c=d,,Digest`)
	f.Fuzz(func(t *testing.T, line string) {
		for name, parameters := range challenges(line) {
			var b strings.Builder
			b.WriteString(name)
			separator := " "
			for _, key := range slices.Sorted(maps.Keys(parameters)) {
				b.WriteString(separator + key + `="` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(parameters[key]) + `"`)
				separator = ","
			}
			again := 0
			for n, p := range challenges(b.String()) {
				if again++; n != name || !maps.Equal(p, parameters) {
					t.Errorf("%q was read as %q %q, and of %q as %q %q", line, name, parameters, &b, n, p)
				}
			}
			if again != 1 {
				t.Errorf("%q has %d challenges", &b, again)
			}
		}
	})
}

func TestPublicHosts(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{
		"s3.eu-west-1.amazonaws.com": true, "8.8.8.8": true, "2606:4700::1111": true, "production.cloudflare.docker.com": true,
		"10.0.0.1": false, "172.16.0.1": false, "192.168.1.1": false, "127.0.0.1": false, "169.254.169.254": false, "100.64.0.1": false, "0.0.0.0": false,
		"::1": false, "::ffff:10.0.0.1": false, "fe80::1": false, "fd00::1": false, "64:ff9b::a00:1": false, "2002:a00:1::": false, "ff02::1": false,
		"localhost": false, "a.localhost": false, "localhost.": false, "2130706433": false, "0x7f.1": false, "127.1": false, "0x7f000001": false, "": false, ".": false,
		"intranet": false, "registry.svc": false, "kubernetes.default.svc.cluster.local.": false, "printer.local": false, "metadata.google.internal": false, "nas.home.arpa": false,
		"home.arpa": false, "local.example.com": true, "svc.example.com.": true, "not-home.arpa": true,
	} {
		if got := IsPublicHost(host); got != want {
			t.Errorf("%q: %t", host, got)
		}
	}
}

// A lesson must not keep the line of its challenge, of which only a part is counted.
func TestChallengesKeepNoLine(t *testing.T) {
	t.Parallel()
	line := `Bearer service=s, realm="https://registry.example.com/token", pad="` + strings.Repeat("x", 4<<10) + `"`
	from := uintptr(unsafe.Pointer(unsafe.StringData(line)))
	got := challengeOf(http.Header{"Www-Authenticate": {line}})
	for name, part := range map[string]string{"service": got.service, "realm": got.realm.Host} {
		if at := uintptr(unsafe.Pointer(unsafe.StringData(part))); from <= at && at < from+uintptr(len(line)) {
			t.Errorf("the %s %q is a part of the line", name, part)
		}
	}
}
