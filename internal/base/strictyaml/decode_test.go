package strictyaml_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

type settings struct {
	Name  string              `json:"name"`
	On    bool                `json:"on"`
	Count int                 `json:"count"`
	Rate  float64             `json:"rate"`
	List  []element           `json:"list"`
	Named map[string][]string `json:"named"`
}

type element struct {
	A string `json:"a"`
	B string `json:"b"`
}

func (e *element) SetDefaults() { e.B = "default" }

func decode(t *testing.T, text string) (settings, *strictyaml.Decoder) {
	t.Helper()
	root, _, err := strictyaml.Parse([]byte(text), limit)
	testkit.Must(t, err)
	var s settings
	d := strictyaml.NewDecoder("f")
	d.Decode("", root, &s)
	return s, d
}

func TestDecode(t *testing.T) {
	t.Parallel()
	got, d := decode(t, "name: off\non: true\ncount: 2\nrate: 1.5\nlist: [{a: x}, {b: y}]\nnamed: {a.b/c: [d, e], f: []}")
	want := settings{"off", true, 2, 1.5, []element{{"x", "default"}, {"", "y"}}, map[string][]string{"a.b/c": {"d", "e"}, "f": {}}}
	if err := d.Err(); err != nil || !reflect.DeepEqual(got, want) || !d.Set["list[0].a"] || d.Set["list[0].b"] {
		t.Errorf("%+v, %v, %v; want %+v", got, err, d.Set, want)
	}
}

func TestDecodeFindsAllFaults(t *testing.T) {
	t.Parallel()
	text := "Name: a\nname: 1\nname: b\non: off\ncount: 1.5\nrate: .nan\nlist:\n- {a: ~, c: d}\n- e\nnamed: {a.b: [c], a.b: [d], 1: [e], f: ~, g: h, i: [2]}\n"
	_, d := decode(t, text)
	want := `f: Name: is not a field here; names are case-sensitive, write name
f: name: must be a text (is 1); put it in quotes if it is one
f: name: is there twice; keep one
f: on: must be true or false (is "off")
f: count: must be a whole number (is 1.5)
f: rate: must be a number (is .nan)
f: list[0].a: has no value; give it one or remove the field
f: list[0].c: is not a field here; the fields are a, b
f: list[1]: must be a mapping (is "e"); its fields stand on the lines below it, indented
f: named."a.b": is there twice; keep one
f: named: has a name that is not text (1); put it in quotes if it is one
f: named.f: has no value; give it one or remove the field
f: named.g: must be a list (is "h"); write [a, b], or each value on a line of its own after a dash
f: named.i[0]: must be a text (is 2); put it in quotes if it is one`
	if err := d.Err(); err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	root, _, err := strictyaml.Parse([]byte(text), limit)
	testkit.Must(t, err)
	for path, line := range map[string]int{"name": 3, "list[0].c": 8, "list[1]": 9, "missing": 1} {
		if got := strictyaml.LineOf(root, path); got != line {
			t.Errorf("%s is on line %d, want %d", path, got, line)
		}
	}
	// A message for each of very many faults would itself be a flood.
	_, d = decode(t, "list: ["+strings.Repeat("1, ", 1000)+"]")
	if err := d.Err(); err == nil || strings.Count(err.Error(), "\n") != 100 || !strings.HasSuffix(err.Error(), "\nand 900 more faults") {
		t.Errorf("error %v", err)
	}
}
