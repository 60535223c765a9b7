package upstream

import (
	"net/http"
	"strings"
	"testing"
)

func TestNextLink(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		lines []string
		want  string
	}{
		"quoted":             {[]string{`</a>; rel="next"`}, "/a"},
		"a token":            {[]string{`</a>;rel=next`}, "/a"},
		"spaced":             {[]string{" \t, </a> \t; \tREL \t= \t\"Next\" \t"}, "/a"},
		"several relations":  {[]string{`</a>; rel="last  NEXT"`}, "/a"},
		"an address's signs": {[]string{`</a?x=,;"&rel=next>; rel=next`}, `/a?x=,;"&rel=next`},
		"no address":         {[]string{`<>; rel=next`}, ""},
		"behind another":     {[]string{`</a>; rel="previous", </b>; rel="next"`}, "/b"},
		"behind none":        {[]string{`</a>, ,</b>; rel="next"`}, "/b"},
		"in another line":    {[]string{`</a>; rel="prev"`, `</b>; rel="next"`}, "/b"},
		"two of them":        {[]string{`</a>; rel="next", </b>; rel="next"`, `</c>; rel="next"`}, "/a"},
		"other parameters":   {[]string{`</a>; title="x, </b>; rel=\"next\""; hreflang; type=a/b; rel=next; x=y`}, "/a"},
		"escapes":            {[]string{`</a>; rel="n\ext"`}, "/a"},
		"a quoted comma":     {[]string{`</a>; title="\", </b>; rel=next"; rel=prev`}, "none"},
		"a second rel":       {[]string{`</a>; rel=prev; rel=next`}, "none"},
		"an empty rel":       {[]string{`</a>; rel; rel=next`}, "none"},
		"a part":             {[]string{`</a>; rel="nextto", </b>; rel="not-next"`}, "none"},
		"another parameter":  {[]string{`</a>; rev=next; title="next"; rel=`}, "none"},
		"no relation":        {[]string{`</a>`}, "none"},
		"no link":            {[]string{`/a; rel="next"`}, "none"},
		"not closed":         {[]string{`</a; rel="next"`}, "none"},
		"a cut value":        {[]string{`</a>; rel="next`}, "none"},
		"a cut escape":       {[]string{`</a>; rel="next\`}, "none"},
		"text behind it":     {[]string{`</a>; rel="next" x`, `</b> x; rel="next"`}, "none"},
		"a link behind text": {[]string{`x, </a>; rel="next"`, `</b>; rel="next"`}, "/b"},
		"nothing":            {nil, "none"},
		"empty":              {[]string{""}, "none"},
	} {
		got, ok := NextLink(http.Header{"Link": test.lines})
		if !ok {
			got += "none"
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// Parsed links that are formatted and parsed again are unchanged, for every input.
func FuzzLinks(f *testing.F) {
	f.Add(`</v2/a/tags/list?last=a&n=1>; rel="previous", </v2/a/tags/list?last=c&n=1>; rel="next"`)
	f.Add(`<https://a.example/?x=,;>;title="a\"b, <c>";rel = next prev ; x,,<>;rel;rel=next`)
	f.Fuzz(func(t *testing.T, line string) {
		for address, relations := range links(line) {
			formatted := "<" + address + `>; rel="` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(relations) + `"`
			again := 0
			for a, r := range links(formatted) {
				if again++; a != address || r != relations {
					t.Errorf("%q was read as %q %q, and of %q as %q %q", line, address, relations, formatted, a, r)
				}
			}
			if again != 1 {
				t.Errorf("%q has %d links", formatted, again)
			}
		}
	})
}
