package policy

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/registryauth"
)

func scopeNamed(name string) registryauth.Scope {
	return registryauth.Scope{Type: "repository", Name: name, Actions: []string{"pull"}}
}

func itemStrings(items []annotationItem) []string {
	var list []string
	for _, item := range items {
		list = append(list, item.String())
	}
	return list
}

func TestParseAnnotation(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		text string
		want []string
	}{
		{"", nil},
		{" \t\n", nil},
		{"team-a/web team-a/worker:pull,push shared/**", []string{"team-a/web:pull", "team-a/worker:pull,push", "shared/**:pull"}},
		{"\n  a:push\r\n\tb:*\n", []string{"a:push", "b:*"}},
		{"a:delete,push,push", []string{"a:delete,push"}},
		{"**", []string{"**:pull"}},
		{"*:*", []string{"*:*"}},
		// After the last ':' a '/' makes it host:port.
		{"host:5000/x", []string{"host:5000/x:pull"}},
		{"host:5000/x:push", []string{"host:5000/x:push"}},
	} {
		items, err := parseAnnotation(test.text)
		if got := itemStrings(items); err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%q: %q, %v; want %q", test.text, got, err, test.want)
		}
	}
}

// Half of an annotation must never count. So every fault refuses the whole annotation, and names
// its item.
func TestAnnotationFaults(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ text, want string }{
		{"a b:pul", `item 2, "b:pul": "pul" is not an action; use pull, push, delete or *`},
		{"a:", `item 1, "a:": "" is not an action; use pull, push, delete or *`},
		{"a:pull,", `item 1, "a:pull,": "" is not an action; use pull, push, delete or *`},
		{"a:PULL", `item 1, "a:PULL": "PULL" is not an action; use pull, push, delete or *`},
		{"host:5000", `item 1, "host:5000": "5000" is not an action; use pull, push, delete or *`},
		{":pull", `item 1, ":pull": pattern is empty; write ** for every repository`},
		{"a //b c", `item 2, "//b": pattern "//b": has a leading, trailing or double slash`},
		{"a/../b", `item 1, "a/../b": pattern "a/../b" can match no repository: names are lower-case letters and digits, joined by '.', '_', '__' or '-', and only a host at the start may have a port`},
		{"{namespace}/x", `item 1, "{namespace}/x": placeholders work in the policy only; write the name itself`},
		{"x/{claims.", `item 1, "x/{claims.": pattern "x/{claims.": a { is not closed in its path component`},
		{"a/**/b/**", `item 1, "a/**/b/**": more than one ** works in the policy only; write an item for each repository`},
		{"a,b", `item 1, "a,b": pattern "a,b": "," cannot be part of a repository's name, and patterns are not regular expressions; use * and **`},
		// Text whose number of items is easily misread.
		{"a\u00a0b", `item 1, "a\u00a0b": pattern "a\u00a0b": "\u00a0" cannot be part of a repository's name, and patterns are not regular expressions; use * and **`},
		{"a\vb", `item 1, "a\vb": pattern "a\vb": "\v" cannot be part of a repository's name, and patterns are not regular expressions; use * and **`},
		{"a\x1b[2J", `item 1, "a\x1b[2J": pattern "a\x1b[2J": "\x1b" cannot be part of a repository's name, and patterns are not regular expressions; use * and **`},
	} {
		items, err := parseAnnotation(test.text)
		if err == nil || err.Error() != test.want || items != nil {
			t.Errorf("%q: %v, %v\nwant %s", test.text, items, err, test.want)
		}
	}
}

// Sizes are capped before anything is parsed (CVE-2025-30204).
func TestAnnotationLimits(t *testing.T) {
	t.Parallel()
	full := strings.TrimSpace(strings.Repeat("a ", maxAnnotationItems))
	if items, err := parseAnnotation(full); err != nil || len(items) != maxAnnotationItems {
		t.Errorf("%d items, %v", len(items), err)
	}
	if _, err := parseAnnotation(full + " ?"); err == nil || err.Error() != "it has 257 items; at most 256 are read" {
		t.Errorf("error %v", err)
	}
	spaces := strings.Repeat(" ", MaxAnnotationBytes)
	if _, err := parseAnnotation(spaces); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	if _, err := parseAnnotation(spaces + "?"); err == nil || err.Error() != "it has too many bytes; at most 8192 are read" {
		t.Errorf("error %v", err)
	}
	if _, err := parseAnnotation(AnnotationBeyond); !errors.Is(err, errBeyond) {
		t.Errorf("error %v", err)
	}
	if _, err := parseAnnotation(strings.Repeat("?", 5000)); err == nil || len(err.Error()) > 400 {
		t.Errorf("error %v", err)
	}
}

func FuzzAnnotation(f *testing.F) {
	f.Add("team-a/web team-a/worker:pull,push shared/**")
	f.Add("host:5000/x:* **:delete\ta*b/**/c **/x/**")
	f.Add("{namespace}/x {claims.a}/*")
	f.Fuzz(func(t *testing.T, text string) {
		items, err := parseAnnotation(text)
		if err != nil {
			if items != nil {
				t.Errorf("items %v beside the error %v", items, err)
			}
			return
		}
		again, err := parseAnnotation(strings.Join(itemStrings(items), " "))
		if err != nil && !strings.Contains(err.Error(), "bytes; at most") { // implied actions are written out
			t.Fatalf("%q: %v", itemStrings(items), err)
		}
		if err == nil && !slices.Equal(again, items) {
			t.Errorf("%q became %q", itemStrings(items), itemStrings(again))
		}
	})
}
