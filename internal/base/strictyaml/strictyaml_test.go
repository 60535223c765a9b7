package strictyaml_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
)

const limit = 1 << 20

func read(text string) (any, []string, error) {
	root, _, err := strictyaml.Parse([]byte(text), limit)
	if err != nil {
		return nil, nil, err
	}
	value, faults := strictyaml.Value(root)
	return value, faults, nil
}

func TestValue(t *testing.T) {
	t.Parallel()
	type (
		object = map[string]any
		number = json.Number
	)
	for text, want := range map[string]any{
		"a: b\nc: 'no'\nd: \"1\"\ne: |\n  yes\n":     object{"a": "b", "c": "no", "d": "1", "e": "yes\n"},
		"[no, Off, n, FALSE, false]":                 []any{false, false, false, false, false},
		"[yes, On, Y, TRUE, true]":                   []any{true, true, true, true, true},
		"[1, -2.5, 1e3, 0x1f, 1_000]":                []any{number("1"), number("-2.5"), number("1e3"), number("0x1f"), number("1_000")},
		"[~, null, ]":                                []any{nil, nil},
		"[2001-01-01, 12:30, !!str 5, !!str no]":     []any{"2001-01-01", "12:30", "5", "no"},
		"[!!binary aGk=, !mine b, !!bool yes]":       []any{"hi", "b", true},
		"on: a\n1: b":                                object{"on": "a", "1": "b"},
		"a: &x {b: [c]}\nd: *x":                      object{"a": object{"b": []any{"c"}}, "d": object{"b": []any{"c"}}},
		"a: &x {b: c}\nd: {<<: *x, e: f}":            object{"a": object{"b": "c"}, "d": object{"b": "c", "e": "f"}},
		"- &x {b: c}\n- &y {d: e}\n- {<<: [*x, *y]}": []any{object{"b": "c"}, object{"d": "e"}, object{"b": "c", "d": "e"}},
		`{"a": ["b", 1, true, null]}`:                object{"a": []any{"b", number("1"), true, nil}},
	} {
		if got, faults, err := read(text); err != nil || faults != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %#v, %q, %v; want %#v", text, got, faults, err, want)
		}
	}
}

func TestFaultsOfValues(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a: 1\nb: {c: 1, c: 2}\na: 2":     `line 2: key "c" already set in map; line 3: key "a" already set in map`,
		"a: &x {b: 1}\nc: {b: 2, <<: *x}": `line 2: key "b" already set in map`,
		"- &x {b: 1}\n- {<<: [*x, *x]}":   `line 2: key "b" already set in map`,
		"a: {<<: 1}":                      "line 1: map merge requires map or sequence of maps as the value",
		"[a]: b":                          "line 1: a key is not a text",
		"a: !!bool b":                     `line 1: "b" is not a boolean`,
		"a: !!binary '*'":                 "line 1: is not base64 data",
	} {
		if _, faults, err := read(text); err != nil || strings.Join(faults, "; ") != want {
			t.Errorf("%q: %q, %v; want %s", text, faults, err, want)
		}
	}
	if _, faults, _ := read(strings.Repeat("a: 1\n", 1000)); len(faults) != 100 {
		t.Errorf("%d faults are told at once", len(faults))
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                     "is empty",
		"# a comment":          "is empty",
		"a: 1\n---\nb: 2":      "holds more than one YAML document",
		"a: 1\r...\rb: 2":      "holds more than one YAML document",
		"{a: 1}}":              "holds more than one YAML document",
		"a: [":                 "yaml: line 1: did not find expected node content",
		"a: *b":                "yaml: unknown anchor 'b' referenced",
		"a: &x\n- *x":          "line 2: the alias *x stands within what it stands for; remove it",
		"a: &x {b: {c: [*x]}}": "line 1: the alias *x stands within what it stands for; remove it",
		strings.Repeat("[", 101) + strings.Repeat("]", 101):                                                                             "line 1: is nested more than 100 deep; no more is read",
		"- &x " + strings.Repeat("[", 60) + strings.Repeat("]", 60) + "\n- " + strings.Repeat("[", 50) + "*x" + strings.Repeat("]", 50): "line 2: is nested more than 100 deep; no more is read",
	} {
		if _, _, err := strictyaml.Parse([]byte(text), limit); err == nil || err.Error() != want {
			t.Errorf("%.40q: error %v, want %s", text, err, want)
		}
	}
	for _, text := range []string{"---\na: 1\n---\n", "a: 1\n...\n# end\n", strings.Repeat("[", 100) + strings.Repeat("]", 100)} {
		if _, _, err := strictyaml.Parse([]byte(text), limit); err != nil {
			t.Errorf("%.40q: %v", text, err)
		}
	}
}

func TestParseAll(t *testing.T) {
	t.Parallel()
	roots, err := strictyaml.ParseAll([]byte("a: 1\n---\nb: 2\n"), limit)
	if err != nil || len(roots) != 2 || strictyaml.Field(roots[1], "b").Value != "2" {
		t.Errorf("%d documents, %v", len(roots), err)
	}
	if roots, err := strictyaml.ParseAll([]byte("a: 1\n---\nb: [\n"), limit); err == nil || len(roots) != 1 {
		t.Errorf("%d documents, %v", len(roots), err)
	}
	// Together they have as much room as one.
	one := "---\n- &x " + strings.Repeat("x", 1000) + "\n- [" + strings.Repeat("*x, ", 600) + "]\n"
	if roots, err := strictyaml.ParseAll([]byte(one+one), limit); err == nil || len(roots) != 1 {
		t.Errorf("%d documents, %v", len(roots), err)
	}
}

// bombs stand for gigabytes, and have less than a megabyte.
func bombs() map[string]string {
	aliases := "- &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := range 30 {
		aliases += fmt.Sprintf("- &a%d [%s]\n", i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i), 10), ","))
	}
	return map[string]string{
		"one text, often":    "x: &a " + strings.Repeat("x", 5_000) + "\nrules: [" + strings.Repeat("*a,", 200_000) + "]\n",
		"aliases of aliases": aliases,
		"a key":              "? &a " + strings.Repeat("x", 800) + "\n: [" + strings.Repeat("{*a : 1},", 20_000) + "]\n",
		"merges":             "x: &a {k: " + strings.Repeat("x", 5_000) + "}\nrules: [" + strings.Repeat("{<<: *a},", 100_000) + "]\n",
		"in documents":       strings.Repeat("---\n- &a "+strings.Repeat("x", 5_000)+"\n- ["+strings.Repeat("*a,", 200)+"]\n", 100),
	}
}

// It is alone while it measures: it does not run in parallel.
func TestAliasesAreNotWrittenOut(t *testing.T) {
	for name, text := range bombs() {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := strictyaml.ParseAll([]byte(text), limit)
		runtime.ReadMemStats(&after)
		if err == nil || !strings.HasSuffix(err.Error(), "with its aliases written out, the document has more than 1048576 bytes; use fewer") && name != "in documents" {
			t.Errorf("%s: error %v", name, err)
		}
		if allocated := (after.TotalAlloc - before.TotalAlloc) >> 20; allocated > 400 {
			t.Errorf("%s: %d bytes took %d MiB", name, len(text), allocated)
		}
	}
}

// Usual aliases are accepted.
func TestAliasesWithinTheLimit(t *testing.T) {
	t.Parallel()
	text := "x: &a " + strings.Repeat("x", 1_000) + "\nlist: [" + strings.TrimSuffix(strings.Repeat("*a,", 1_000), ",") + "]\n"
	value, _, err := read(text)
	if err != nil || len(value.(map[string]any)["list"].([]any)) != 1_000 {
		t.Error(err)
	}
	if _, _, err := strictyaml.Parse([]byte(text), 1_000_000); err == nil || errors.Is(err, strictyaml.ErrEmpty) {
		t.Errorf("beyond the limit: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range bombs() {
		f.Add(text[:min(len(text), 1000)])
	}
	f.Fuzz(func(t *testing.T, text string) {
		roots, err := strictyaml.ParseAll([]byte(text), 10_000)
		if err != nil {
			return
		}
		for _, root := range roots {
			value, _ := strictyaml.Value(root)
			if written, err := json.Marshal(value); err == nil && len(written) > 200_000+20*len(text) {
				t.Errorf("%d bytes stand for %d", len(text), len(written))
			}
		}
	})
}
