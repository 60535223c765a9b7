package upstream

import (
	"fmt"
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
		"not a URL":        {[]string{`Basic realm="x"`, `Bearer realm="https://[::1"`}, schemeBasic, "", ""},
		"more behind":      {[]string{`Bearer realm="https://a.example/t", Basic realm="x"`}, schemeBearer, "https://a.example/t", ""},
		"no name":          {[]string{`Bearer =x, realm="https://a.example/t"`}, schemeUnknown, "", ""},
		"no value":         {[]string{`Basic realm=`}, schemeUnknown, "", ""},
		"a cut value":      {[]string{`Basic realm="x`}, schemeUnknown, "", ""},
		"a cut escape":     {[]string{`Basic realm="x\`}, schemeUnknown, "", ""},
		"many parameters":  {[]string{`Basic ` + parameters(maxParameters)}, schemeBasic, "", ""},
		"too many":         {[]string{`Basic ` + parameters(maxParameters+1)}, schemeUnknown, "", ""},
		"long":             {[]string{`Basic x="` + strings.Repeat("x", maxChallengeBytes-len(`Basic x=""`)) + `"`}, schemeBasic, "", ""},
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

func parameters(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("p%d=x", i))
	}
	return strings.Join(all, ", ")
}

func TestTokensOfChallenges(t *testing.T) {
	t.Parallel()
	const tchar = "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" // RFC 9110, section 5.6.2
	for c := range 256 {
		want := ""
		if c < 128 && strings.IndexByte(tchar, byte(c)) >= 0 {
			want = string([]byte{byte(c), 'x'})
		}
		if got := token(string([]byte{byte(c), 'x', '"'})); got != want {
			t.Errorf("%#x: %q", c, got)
		}
	}
}

func TestChallengesThatDiffer(t *testing.T) {
	t.Parallel()
	of := func(line string) challenge { return challengeOf(http.Header{"Www-Authenticate": {line}}) }
	all := []challenge{
		{}, of("Negotiate"), of(`Basic realm="x"`), of(`Bearer realm="https://a.example/t"`), of(`Bearer realm="https://b.example/t"`),
		of(`Bearer realm="https://a.example/t",service="s"`), {scheme: schemeBearer},
	}
	for i, a := range all {
		for j, b := range all {
			if a.equal(b) != (i == j) {
				t.Errorf("%+v equals %+v: %t", a, b, a.equal(b))
			}
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
		"localhost": false, "a.localhost": false, "localhost.": false, "2130706433": false, "0x7f.1": false, "127.1": false, "0x7f000001": false, "": false, ".": false, "a..": false, "a.0xg": false,
		"intranet": false, "registry.svc": false, "kubernetes.default.svc.cluster.local.": false, "printer.local": false, "metadata.google.internal": false, "nas.home.arpa": false,
		"home.arpa": false, "①②⑦.⓪.⓪.①": false, "kubernetes.default.ｓｖｃ": false, "intranet。": false, "a%62.example.com": false, "xn--bcher-kva.example.com": true, "a_b.example.com": true, "local.example.com": true, "svc.example.com.": true, "not-home.arpa": true,
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
