package redact

import (
	"encoding/base64"
	"math/rand/v2"
	"strings"
	"testing"
)

// jwt is of the size and form of a ServiceAccount token. It is always the same: with one of a hundred
// signatures, a text of one repeated byte takes more steps than maxSteps allows.
func jwt() string {
	signature := make([]byte, 256)
	_, _ = rand.NewChaCha8([32]byte{}).Read(signature)
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"RS256","kid":"PlxSEh22kVDK5owPTE3aIyt8fxo7uq6YOGr1gIDcT9U"}`)) + "." +
		encode([]byte(`{"aud":["registry.example.com"],"exp":1795233768,"iss":"https://issuer.example.com","kubernetes.io":{"namespace":"team-a","pod":{"name":"web-0"}}}`)) + "." +
		encode(signature)
}

// ordinary are texts that clients and clusters have, and that people need to
// read.
var ordinary = []string{
	"", "docker", "containerd/v2.1.4", "registry.example.com:5000", "repository:team-a/web:pull,push", "serviceaccount",
	"docker/28.0.1 go/go1.24.0 git-commit/068a01e kernel/6.8.0-1021-aws os/linux arch/amd64 UpstreamClient(Docker-Client/28.0.1 \\(linux\\))",
	"Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/139.0.0.0 Safari/537.36",
	"JTI=63ef7a8c-1d81-4c97-8f89-724a51634a91", "RVAAVBYEBQLKHI2OMWKLLIJSK3",
	"PlxSEh22kVDK5owPTE3aIyt8fxo7uq6YOGr1gIDcT9U", // a kid of an API server
	"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
	"https://oidc.eks.eu-west-1.amazonaws.com/id/EXAMPLED539D4633E53DE1B71EXAMPLE",
	"system:serviceaccount:" + strings.Repeat("a", 63) + ":" + strings.Repeat("very-long-name.", 16),
	"KeyJSONParser/1.0", "eyJ", "keyJ eyJ.eyJ",
	strings.Repeat("A", 200), strings.Repeat("aB", 100), strings.Repeat("a1", 100),
	"33@nr=0-0-33-2827902-7d3efb1b173fecfa-e8b91a159289ff74-1-1.23456-1518469636035",
}

func TestOrdinaryTextsStay(t *testing.T) {
	t.Parallel()
	secret := jwt()
	header := "Basic " + base64.StdEncoding.EncodeToString([]byte("serviceaccount:"+secret))
	for _, s := range ordinary {
		for what, got := range map[string]string{"Text": Known(header, secret).Text(s), "Message": Known(header, secret).Message(s)} {
			if got != s {
				t.Errorf("%s: %q became %q", what, s, got)
			}
		}
	}
}

// Not parallel: others would be counted.
func TestOrdinaryTextsCostNoAllocation(t *testing.T) {
	known := Known(jwt())
	for _, s := range ordinary {
		if allocations := testing.AllocsPerRun(10, func() { _ = known.Text(s) }); allocations != 0 { // the first run is not counted
			t.Errorf("%q costs %v allocations", s, allocations)
		}
	}
}

func TestTokensGo(t *testing.T) {
	t.Parallel()
	token := jwt()
	parts := strings.Split(token, ".")
	for _, s := range []string{
		token, parts[0], parts[1], parts[2], parts[2][:minBlob], parts[0][:minPiece], "x-" + parts[0], "Bearer " + token,
		"repository:" + token + ":pull", "docker/28.0.1 " + token, base64.StdEncoding.EncodeToString([]byte("x:" + token)),
		strings.Repeat("eyJ ", 3) + parts[1], "é" + parts[0],
		"repository:pullpass-push.IpLjmaxpahDZ7RSdb0e9...", // as the end of a long scope is cut off
	} {
		if got := Text(s); !strings.HasPrefix(got, "[looks like a token, ") {
			t.Errorf("%s became %s", s, got)
		}
	}
	if got, want := Text(parts[0]), "[looks like a token, 90 bytes]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Every piece of a credential that is known, of a password too.
func TestPiecesOfSecretsGo(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{
		jwt(), strings.Repeat(jwt(), 12), "Basic " + base64.StdEncoding.EncodeToString([]byte("x:"+jwt())),
		"correct horse battery staple", "0123456789abcdef0123456789abcdef", "p$%ssword with ünicode in It",
	} {
		known := Known("another", secret)
		for at := 0; at+minPiece <= len(secret); at++ {
			piece := secret[at : at+minPiece]
			if !hasUpper(piece) && hasUpper(secret) {
				piece = "X" + piece // see holdsPiece
			}
			for _, s := range []string{piece, "a" + piece, "abcde" + piece + "fg"} {
				if known.Text(s) == s {
					t.Fatalf("%q of %.40q… at %d stays", s, secret, at)
				}
			}
		}
	}
	if s := "Battery staPle"; Known("correct horse battery staple").Text(s) != s {
		t.Error("less than a piece goes")
	}
}

func TestMessage(t *testing.T) {
	t.Parallel()
	token := jwt()
	for s, want := range map[string]string{
		`the token's key "` + token + `", is not there: see "team-a"`: `the token's key "[looks like a token, `,
		`the name ` + token + ` is not known: see "team-a"`:           `the name [looks like a token, `,
		`"` + token: `[looks like a token, `,
	} {
		got := Known().Message(s)
		if !strings.HasPrefix(got, want) || strings.Contains(s, "team-a") != strings.HasSuffix(got, `see "team-a"`) {
			t.Errorf("%s became %s", s, got)
		}
	}
	if got, want := Known("a password that is long").Message(`is "a password that" reaches`), "[looks like a token, 28 bytes]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A text that would be costly to check counts as a token, also because of the secret. A secret is
// prepared once for all texts: 64 scopes beside a long credential cost 20 ms when it was prepared for
// each.
func TestCostIsBounded(t *testing.T) {
	t.Parallel()
	const block = "aAbBcC"
	if s := strings.Repeat(block+"2", 10_000); Known(strings.Repeat(block+"1", 80)).Text(s) == s {
		t.Error("no end to the search was set")
	}
	for name, secret := range map[string]string{"preparation": strings.Repeat("A", 2<<10), "table": strings.Repeat(jwt(), 700)} {
		if s := "Another text"; Known(secret).Text(s) == s {
			t.Errorf("no end to the %s was set", name)
		}
	}
	known := Known(strings.Repeat(jwt(), 12))
	known.Text("A first text")
	table := known.all[0].table
	if s := "A second text"; known.Text(s) != s || &known.all[0].table[0] != &table[0] {
		t.Error("it was prepared again")
	}
}

func TestOpaque(t *testing.T) {
	t.Parallel()
	token := jwt()
	for at := 0; at+2*minPiece <= len(token); at++ {
		piece := token[at : at+2*minPiece]
		if !strings.Contains(piece, ".") && hasUpper(piece) && piece != strings.ToUpper(piece) && !Opaque(piece) {
			t.Fatalf("%q passes", piece)
		}
	}
	for _, s := range []string{
		"", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", "dd=s:2;o:rum;t.dm:-4;t.usr.id:baz64~~", "ot=th:8;rv:9b8233f7e3a151", ordinary[len(ordinary)-1],
		"dt=fw4;3;F1B4A5E6D7C80912;1", "es=s:0.5",
	} {
		if Opaque(s) {
			t.Errorf("%q does not pass", s)
		}
	}
}

func FuzzText(f *testing.F) {
	token := jwt()
	f.Add(token[20:60], token)
	f.Add("Docker-Client/28.0.1 (linux)", token)
	f.Add(strings.Repeat("aAbBcC2", 99), strings.Repeat("aAbBcC1", 999))
	for _, s := range ordinary {
		f.Add(s, "correct horse battery staple")
	}
	f.Fuzz(func(t *testing.T, s, secret string) {
		known := Known(secret)
		text, message := known.Text(s), known.Message(s)
		if (text == s) != (message == s) {
			t.Errorf("Text %q, Message %q", text, message)
		}
		for _, got := range []string{text, message} {
			if again := known.Text(got); again != got && !strings.Contains("[looks like a token, ", secret) && len(got) > 0 && got == s {
				t.Errorf("%q became %q, and that %q", s, got, again)
			}
		}
		if !hasUpper(s) && hasUpper(secret) {
			return
		}
		for at := 0; at+minPiece <= len(s); at++ {
			if piece := s[at : at+minPiece]; strings.Contains(secret, piece) && text == s {
				t.Errorf("%q stays in %q", piece, text)
			}
		}
	})
}

func BenchmarkText(b *testing.B) {
	token := jwt()
	header := "Basic " + base64.StdEncoding.EncodeToString([]byte("serviceaccount:"+token))
	for name, s := range map[string]string{
		"containerd": "containerd/v2.1.4", "scope": "repository:team-a/web:pull", "docker": ordinary[6],
		"hostile": strings.Repeat("aAbBcC2", 10_000),
	} {
		secret := token
		if name == "hostile" {
			secret = strings.Repeat("aAbBcC1", 2300)
		}
		b.Run("text="+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = Known(header, secret).Text(s)
			}
		})
	}
}
