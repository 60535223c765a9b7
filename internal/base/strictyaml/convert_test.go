package strictyaml_test

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const (
	before = "pullpass.dev/v1alpha1"
	after  = "pullpass.dev/v1beta1"
)

// IS is where a version of a known kind stands: the only bytes that change.
const convertible = `# apiVersion: pullpass.dev/v1alpha1
apiVersion: IS # pullpass.dev/v1alpha1
kind: AccessPolicy
note: "apiVersion: pullpass.dev/v1alpha1"
---
{"kind": "AccessPolicy", "apiVersion": "IS", "é": 'pullpass.dev/v1alpha1'}
---
# nothing
---
apiVersion: pullpass.dev/v1alpha1
kind: Unknown
---
apiVersion: v1
kind: List
items:
- kind: AccessPolicy
  apiVersion: !!str 'IS'
  metadata:
    annotations:
      last-applied: |
        apiVersion: pullpass.dev/v1alpha1
        kind: AccessPolicy
- apiVersion: other.dev/v1alpha1
  kind: AccessPolicy
- {"ключ": "значение", kind: AccessPolicy, apiVersion: IS}
...
`

func TestConvert(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"lines":                convertible,
		"lines with \\r\\n":    strings.ReplaceAll(convertible, "\n", "\r\n"),
		"a byte order mark":    "\ufeffapiVersion: IS\nkind: AccessPolicy\n",
		"no newline":           "{kind: AccessPolicy, apiVersion: IS}",
		"a line of YAML alone": "a: \"\u2028 b\"\napiVersion: IS\nkind: AccessPolicy\n",
		"no document":          "# nothing\n",
		"an item twice":        "items: [&a {kind: AccessPolicy, apiVersion: IS}, *a]\n",
		"the new version":      "apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicy\n",
	} {
		got, err := strictyaml.Convert([]byte(strings.ReplaceAll(text, "IS", before)), limit, "AccessPolicy")
		if want := strings.ReplaceAll(text, "IS", after); err != nil || string(got) != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, got, want)
		}
	}
}

func TestConvertRefusesWhatItCannotKeep(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a: [":                       "is not valid YAML: ",
		"a: 1\na: 2\n":               `is not valid YAML: line 2: key "a" already set in map`,
		"a: \xff":                    "is not UTF-8: save it as UTF-8",
		strings.Repeat("#", limit+1): "has 1048577 bytes; at most 1048576 are read: split it into several files",
		"a: &v " + before + "\nkind: AccessPolicy\napiVersion: *v\n":       "line 1: apiVersion: cannot be converted: write it out, on the line of its name, without an anchor or alias",
		"kind: AccessPolicy\napiVersion: &v " + before + "\na: *v\n":       "line 1: apiVersion: cannot be converted",
		"kind: AccessPolicy\napiVersion: >-\n  " + before + "\n":           "line 1: apiVersion: cannot be converted",
		"kind: AccessPolicy\napiVersion: \"pullpass.dev/\\x761alpha1\"\n":  "line 1: apiVersion: cannot be converted",
		"a: &a {apiVersion: " + before + "}\n<<: *a\nkind: AccessPolicy\n": "line 1: apiVersion: cannot be converted",
		"kind: AccessPolicy\napiVersion: " + before + "\n...\nkind: [}\n":  "is not valid YAML: ",
	} {
		got, err := strictyaml.Convert([]byte(text), limit, "AccessPolicy")
		if got != nil || err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.80q: %q, %v; want %s", text, got, err, want)
		}
	}
}

// A converted file says the same, in the new version, and a second conversion changes nothing.
func FuzzConvert(f *testing.F) {
	f.Add([]byte(strings.ReplaceAll(convertible, "IS", before)))
	f.Add([]byte("items: [&a {kind: AccessPolicy, apiVersion: " + before + "}, *a]"))
	f.Add([]byte("\ufeff\u2028{kind: AccessPolicy, apiVersion: !!str\t\"" + before + "\"}\u0085"))
	f.Fuzz(func(t *testing.T, data []byte) {
		const limit = 10_000
		out, err := strictyaml.Convert(data, limit, "AccessPolicy")
		if err != nil {
			return
		}
		if !bytes.Equal(bytes.ReplaceAll(out, []byte(after), []byte(before)), bytes.ReplaceAll(data, []byte(after), []byte(before))) {
			t.Errorf("changed more than versions: %q, %q", data, out)
		}
		if again, err := strictyaml.Convert(out, limit, "AccessPolicy"); err != nil || !bytes.Equal(again, out) {
			t.Errorf("a second conversion: %v, %q; want %q", err, again, out)
		}
		was, is := values(t, data, limit), values(t, out, limit)
		for i := range was {
			upgrade(was[i])
		}
		if !reflect.DeepEqual(was, is) {
			t.Errorf("%#v became %#v", was, is)
		}
	})
}

func values(t *testing.T, data []byte, limit int) (all []any) {
	t.Helper()
	for _, root := range testkit.Value(strictyaml.ParseAll(data, limit))(t) {
		value, _ := strictyaml.Value(root)
		all = append(all, value)
	}
	return all
}

// upgrade is the meaning of Convert.
func upgrade(value any) {
	fields, _ := value.(map[string]any)
	if fields["apiVersion"] == before && fields["kind"] == "AccessPolicy" {
		fields["apiVersion"] = after
	}
	items, _ := fields["items"].([]any)
	for _, item := range items {
		upgrade(item)
	}
}
