package troubletest

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// shown is a command of the page, and the lines that it prints.
type shown struct {
	command string
	lines   []string
}

// missing is the first line that the output does not have; empty: it has all.
func (s shown) missing(output string) string {
	for _, line := range s.lines {
		if !strings.Contains(plain(output), plain(line)) {
			return line
		}
	}
	return ""
}

// readPage returns what the page shows under each of its headings.
func readPage(t *testing.T) map[string][]shown {
	t.Helper()
	page, heading, fenced := map[string][]shown{}, "", false
	for line := range strings.Lines(testenv.ReadFile(t, filepath.Join(programs.Checkout(t), "docs/how-to/troubleshooting.md"))) {
		line = strings.TrimRight(line, "\n")
		sections := page[heading]
		command, isCommand := strings.CutPrefix(line, "$ ")
		switch {
		case strings.HasPrefix(line, "```"):
			fenced = !fenced
		case !fenced:
			if name, found := strings.CutPrefix(line, "## "); found {
				heading = name
			}
		case isCommand:
			page[heading] = append(sections, shown{command: command})
		case len(sections) > 0 && strings.TrimSpace(line) != "":
			last := &sections[len(sections)-1]
			last.lines = append(last.lines, line)
		}
	}
	return page
}

var patterns = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`sha256:[0-9a-f]{64}`), "sha256:DIGEST"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d| \+0000 UTC)?`), "TIME"},
	{regexp.MustCompile(`\b(\d+h)?(\d+m)?\d+(\.\d+)?(s|ms|µs)\b`), "DURATION"},
	{regexp.MustCompile(`\b\d+\.\d+\.\d+\.\d+:\d+`), "ADDRESS"},
	{regexp.MustCompile(`\b(` + regexp.QuoteMeta(noProviderName) + `|` + regexp.QuoteMeta(otherAudienceName) + `)\b`), registryName},
	{regexp.MustCompile(`\s+`), " "},
}

// plain replaces what varies, in what programs print as in the page.
func plain(text string) string {
	for _, p := range patterns {
		text = p.pattern.ReplaceAllString(text, p.with)
	}
	return strings.TrimSpace(text)
}

// checkIndex has each text of the page's first table be in the section that its row names.
func checkIndex(t *testing.T, page map[string][]shown) {
	t.Helper()
	content := testenv.ReadFile(t, filepath.Join(programs.Checkout(t), "docs/how-to/troubleshooting.md"))
	rows := regexp.MustCompile("(?m)^\\| (`.*`) \\| \\[(.+)\\]\\(#").FindAllStringSubmatch(content, -1)
	if len(rows) < len(page) {
		t.Errorf("%d rows name the texts of %d sections", len(rows), len(page))
	}
	for _, row := range rows {
		var all strings.Builder
		for _, shown := range page[row[2]] {
			all.WriteString(strings.Join(shown.lines, "\n") + "\n")
		}
		for i, text := range strings.Split(row[1], "`") {
			if i%2 == 0 {
				continue // between two texts
			}
			for _, part := range strings.Split(text, "…") {
				if !strings.Contains(all.String(), strings.TrimSpace(part)) {
					t.Errorf("no text under %q has %q", row[2], part)
				}
			}
		}
	}
}
