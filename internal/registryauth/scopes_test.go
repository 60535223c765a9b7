package registryauth

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// read is what ReadScopes returns, in texts.
type read struct {
	scopes, malformed []string
	omitted           int
}

func readTexts(fields ...string) read {
	scopes, malformed, omitted := ReadScopes(fields)
	r := read{omitted: omitted}
	for _, s := range scopes {
		r.scopes = append(r.scopes, s.String())
	}
	for _, m := range malformed {
		r.malformed = append(r.malformed, m.Text)
	}
	return r
}

func words(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, " ")
}

func TestReadScopes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fields            []string
		scopes, malformed string
		omitted           int
	}{
		"none":                     {nil, "", "", 0},
		"empty fields":             {[]string{"", " ", "  "}, "", "", 0},
		"one":                      {[]string{"repository:a:pull"}, "repository:a:pull", "", 0},
		"in the order asked":       {[]string{"repository:b:pull repository:a:pull"}, "repository:b:pull repository:a:pull", "", 0},
		"repeated":                 {[]string{"repository:b:pull", "repository:a:pull"}, "repository:b:pull repository:a:pull", "", 0},
		"repeated and joined":      {[]string{"repository:b:pull repository:a:pull", "", " repository:c:pull "}, "repository:b:pull repository:a:pull repository:c:pull", "", 0},
		"merged":                   {[]string{"repository:a:push repository:b:pull", "repository:a:pull,push"}, "repository:a:pull,push repository:b:pull", "", 0},
		"another type":             {[]string{"repository:catalog:pull registry:catalog:*"}, "repository:catalog:pull registry:catalog:*", "", 0},
		"another class":            {[]string{"repository:a:pull repository(plugin):a:pull"}, "repository:a:pull repository(plugin):a:pull", "", 0},
		"as many as are judged":    {[]string{scopeList(0, MaxScopes)}, scopeList(0, MaxScopes), "", 0},
		"the last of more":         {[]string{scopeList(0, MaxScopes+1)}, scopeList(1, MaxScopes), "", 1},
		"the last of 500, as GET":  {words(scopeList(0, 500)), scopeList(436, MaxScopes), "", 436},
		"the last of 500, as POST": {[]string{scopeList(0, 500)}, scopeList(436, MaxScopes), "", 436},
		"more scopes than are judged, of few resources": {[]string{scopeList(0, 60), scopeList(0, 60)}, scopeList(0, 60), "", 0},
		"more scopes than are read, of one resource":    {[]string{strings.Repeat("repository:a:pull ", maxScopesRead+1)}, "repository:a:pull", "", 1},

		"malformed, as zot asks":         {[]string{"repository::pull", "repository:a:pull"}, "repository:a:pull", "repository::pull", 0},
		"malformed alone":                {[]string{"nonsense x"}, "", "nonsense x", 0},
		"malformed are resources, too":   {[]string{"repository:a:pull", strings.ReplaceAll(scopeList(0, MaxScopes), "a", "A")}, "", strings.ReplaceAll(scopeList(0, MaxScopes), "a", "A"), 1},
		"many malformed":                 {[]string{strings.Repeat("x ", 10_000)}, "", strings.TrimSuffix(strings.Repeat("x ", maxScopesRead), " "), 10_000 - maxScopesRead},
		"too many actions once merged":   {[]string{"repository:a:a,b,c,d,e,f,g,h,i repository:a:j,k,l,m,n,o,p,q"}, "repository:a:a,b,c,d,e,f,g,h,i", "repository:a:j,k,l,m,n,o,p,q", 0},
		"a tab does not separate":        {[]string{"repository:a:pull\trepository:b:pull"}, "", `"repository:a:pull\trepository:b:pull"`, 0},
		"what cannot be printed":         {[]string{"\x1b[31m:\u202ea:pull"}, "", `"\x1b[31m:\u202ea:pull"`, 0},
		"what is long":                   {[]string{"repository:" + strings.Repeat("a", 60_000) + ":pull"}, "", "repository:" + strings.Repeat("a", maxMalformedBytes-len("repository:")) + "...", 0},
		"long, and a scope if it is cut": {[]string{"repository:a:" + strings.Repeat("pull,", 100) + "pull"}, "", "repository:a:" + strings.Repeat("pull,", 13) + "pu...", 0},
	} {
		want := read{words(test.scopes), words(test.malformed), test.omitted}
		got := readTexts(test.fields...)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
		// The audit log has what was read, and explain reads it again.
		if again := readTexts(slices.Concat(got.scopes, got.malformed)...); test.omitted == 0 && !reflect.DeepEqual(again, got) {
			t.Errorf("%s: %+v is read again as %+v", name, got, again)
		}
	}
}

// A form of 64 KiB has room for ten thousand scopes. Scopes beyond the limit must cost almost
// nothing, so they are not parsed.
func TestReadScopesIsBounded(t *testing.T) {
	few := testing.AllocsPerRun(10, func() { ReadScopes([]string{scopeList(0, maxScopesRead)}) })
	for name, field := range map[string]string{
		"resources":    scopeList(0, 10_000),
		"of one":       strings.Repeat("a:b:c ", 10_000),
		"malformed":    strings.Repeat("a:b:C ", 10_000),
		"no resources": strings.Repeat("a ", 10_000),
	} {
		fields := []string{field}
		if many := testing.AllocsPerRun(10, func() { ReadScopes(fields) }); many > 8*few {
			t.Errorf("%s: %v allocations, and %v for as many as are read", name, many, few)
		}
	}
}

// A second scope of a resource beyond the limit is beyond it too.
func TestReadScopesOmitsAllScopesOfAResource(t *testing.T) {
	t.Parallel()
	scopes, malformed, omitted := ReadScopes([]string{"repository:x:pull repository:x:push " + scopeList(0, MaxScopes)})
	if len(scopes) != MaxScopes || malformed != nil || omitted != 2 {
		t.Errorf("%d scopes are read, %v are malformed, %d are omitted; want %d, none and 2", len(scopes), malformed, omitted, MaxScopes)
	}
}

// Those who write scopes by hand have to correct them.
func TestParseScopesRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fields []string
		want   string
	}{
		"one bad of two":               {[]string{"repository:a:pull repository:B:pull"}, "lower case"},
		"too many":                     {[]string{scopeList(0, MaxScopes+1)}, "more than 64 scopes"},
		"too many actions once merged": {[]string{"repository:a:a,b,c,d,e,f,g,h,i repository:a:j,k,l,m,n,o,p,q"}, "more than 16 actions with those already asked for"},
	} {
		scopes, err := ParseScopes(test.fields)
		scopeRefused(t, name, err, test.want)
		if scopes != nil {
			t.Errorf("%s: returned %v with an error", name, scopes)
		}
	}
}

// scopeList returns scopes of n resources, from a number on.
func scopeList(from, n int) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf("repository:a%d:pull", from+i))
	}
	return strings.Join(list, " ")
}

// Keeping one scope must not keep the rest of the request in memory.
func TestScopesShareNoMemory(t *testing.T) {
	t.Parallel()
	field := "repository:a/b:pull " + strings.Repeat("repository:other/x:pull ", 40)
	scopes := testkit.Value(ParseScopes([]string{field}))(t)
	begin := uintptr(unsafe.Pointer(unsafe.StringData(field)))
	for _, part := range []string{scopes[0].Type, scopes[0].Name, scopes[0].Actions[0]} {
		if at := uintptr(unsafe.Pointer(unsafe.StringData(part))); at >= begin && at < begin+uintptr(len(field)) {
			t.Errorf("%q is a part of the field", part)
		}
	}
}
