package diff

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A comment of GitHub has at most 65,536 characters. Each entry is in it, or is counted.
func TestMarkdownIsShort(t *testing.T) {
	t.Parallel()
	entries := func(n int, where string) []Entry {
		all := make([]Entry, n)
		for i := range all {
			all[i] = Entry{Who: "*/team/*", Where: []string{where}, Service: "*", Repositories: "**", Actions: []string{"pull"}, Rule: "r"}
		}
		return all
	}
	short, long, huge := strings.Repeat("s", 100), strings.Repeat("l", 5000), strings.Repeat("h", 70_000)
	for name, test := range map[string]struct {
		difference           Difference
		gained, more         int // rows, and those that are only counted
		lost, moreLost, size int // size: at least
	}{
		"few":                      {Difference{Gained: entries(3, short), Lost: entries(2, short)}, 3, 0, 2, 0, 0},
		"many":                     {Difference{Gained: entries(150, short)}, 100, 50, 0, 0, 0},
		"long":                     {Difference{Gained: entries(90, long)}, 11, 79, 0, 0, 50_000},
		"long, of both":            {Difference{Gained: entries(90, long), Lost: entries(90, long)}, 5, 85, 6, 84, 50_000},
		"long, and some that fit":  {Difference{Gained: entries(90, long), Lost: entries(50, short)}, 5, 85, 50, 0, 0},
		"huge":                     {Difference{Lost: entries(1, huge)}, 0, 0, 0, 1, 0},
		"huge, and some after it":  {Difference{Gained: append(entries(1, huge), entries(3, short)...)}, 3, 1, 0, 0, 0},
		"lost that are huge alone": {Difference{Gained: entries(3, short), Lost: entries(2, huge)}, 3, 0, 0, 2, 0},
	} {
		var out strings.Builder
		testkit.Must(t, WriteMarkdown(&out, &test.difference))
		text := out.String()
		if len(text) > 61_000 || len(text) < test.size || !strings.HasPrefix(text, "### Pullpass policy: "+test.difference.summary()+"\n") {
			t.Errorf("%s: %d bytes: %.100s", name, len(text), text)
		}
		gained, lost, _ := strings.Cut(text, "#### Lost")
		for _, part := range []struct {
			text       string
			rows, more int
		}{{gained, test.gained, test.more}, {lost, test.lost, test.moreLost}} {
			rows, counted := strings.Count(part.text, "| `*/team/*"), strings.Count(part.text, fmt.Sprintf("\n\n%d more: `pullpass policy diff -o json`\n", part.more))
			if rows != part.rows || (counted == 1) != (part.more > 0) || strings.Count(part.text, " more: ") != counted {
				t.Errorf("%s: %d rows, and a line for %d more: %t; want %d", name, rows, part.more, counted == 1, part.rows)
			}
		}
	}
}
