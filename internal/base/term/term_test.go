package term

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestForPeople(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 79) + "é" + "b" // the character lies on the border of 80
	for _, test := range []struct{ name, got, want string }{
		{"Cut", Cut("abc", 3), "abc"},
		{"Cut longer", Cut("abcd", 3), "abc"},
		{"Cut within a character", Cut("aé", 2), "a"},
		{"Abbreviate", Abbreviate("abcd", 3), "abc..."},
		{"Abbreviate short", Abbreviate("abc", 3), "abc"},
		{"Shorten", Shorten("abcdef", 5), "ab..."},
		{"Shorten short", Shorten("abcde", 5), "abcde"},
		{"Shorten within a character", Shorten("aéééé", 5), "a..."},
		{"Quote", Quote("a\n\x1b\u202e\"", 10), `"a\n\x1b\u202e\""`},
		{"Quote long", Quote("abcd", 3), `"abc..."`},
		{"QuoteValue", QuoteValue("a b"), `"a b"`},
		{"QuoteValue long", QuoteValue(long), `"` + long[:79] + `..."`},
		{"QuoteValue of several lines", QuoteValue("a\nb"), "a text of several lines"},
		{"QuoteValue with a last line's end", QuoteValue("a\n"), `"a\n"`},
		{"CutValue", CutValue(long), long[:79] + "..."},
		{"Plain", Plain("a-b"), "a-b"},
		{"Plain of two words", Plain("a b"), `"a b"`},
		{"Plain long", Plain(strings.Repeat("a", 254)), `"` + strings.Repeat("a", 80) + `..."`},
		{"Plain longest", Plain(strings.Repeat("a", 253)), strings.Repeat("a", 253)},
		{"Words", Words("a", "", "b c", `d"`, "é", "\x7f"), `a "b c" "d\"" "\u00e9" "\x7f"`},
		{"Line", Line(`a "b" c`), `a "b" c`},
		{"Line with an escape", Line("a\x1b[2J"), `"a\x1b[2J"`},
	} {
		if test.got != test.want {
			t.Errorf("%s: got %s, want %s", test.name, test.got, test.want)
		}
	}
}

// A shell reads the word as what it was.
func TestShellWord(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "a", "a/b:c@d%e+f,g=h-i.j_k", "a b", "$(id)", "`id`", "'", `"`, `\`, "a'b'", "~", "*", "!x", "é", "a\nb"} {
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s "+ShellWord(s)).Output()
		if err != nil || string(out) != s {
			t.Errorf("%q: the shell reads %q, %v", s, out, err)
		}
	}
	if got := ShellWord("registry.example.com:5000/a_b"); got != "registry.example.com:5000/a_b" {
		t.Errorf("needs no quotes, got %s", got)
	}
}

func TestASCIIJSON(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "a", "é\u009b\u202e\x7f", "😀", "\xff"} {
		line := testkit.Value(json.Marshal(s))(t)
		var before, after string
		escaped := ASCIIJSON(line)
		testkit.Must(t, json.Unmarshal(line, &before))
		if err := json.Unmarshal(escaped, &after); err != nil || before != after {
			t.Errorf("%s became %s: %v", line, escaped, err)
		}
		if strings.ContainsFunc(string(escaped), func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%q is not plain", escaped)
		}
	}
}
