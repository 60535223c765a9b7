package main

import (
	"fmt"
	"slices"
	"strings"
)

// unreleased stands where the date of a released version is.
const unreleased = "Unreleased"

// notes are a version's section of CHANGELOG.md (https://keepachangelog.com).
type notes struct {
	date    string
	text    string
	changes []change
}

// change is one as Artifact Hub shows it.
type change struct {
	Kind        string `json:"kind"` // added, changed, deprecated, removed, fixed, security
	Description string `json:"description"`
}

func readNotes(changelog, version string) (notes, error) {
	var n notes
	found := false
	kind := ""
	var text strings.Builder
	for line := range strings.Lines(changelog) {
		if heading, ok := strings.CutPrefix(line, "## ["); ok {
			if found {
				break
			}
			name, date, _ := strings.Cut(strings.TrimSpace(heading), "]")
			found, n.date = name == version, strings.TrimPrefix(date, " - ")
			continue
		}
		if !found || strings.HasPrefix(line, "[") { // the links at the end
			continue
		}
		text.WriteString(line)
		switch item, isItem := strings.CutPrefix(line, "- "); {
		case strings.HasPrefix(line, "### "):
			kind = strings.ToLower(strings.TrimSpace(line[len("### "):]))
		case isItem && kind != "":
			n.changes = append(n.changes, change{kind, strings.TrimSpace(item)})
		case strings.HasPrefix(line, "  ") && len(n.changes) > 0:
			n.changes[len(n.changes)-1].Description += " " + strings.TrimSpace(line)
		}
	}
	if !found {
		return notes{}, fmt.Errorf("CHANGELOG.md has no section \"## [%s] - DATE\"", version)
	}
	if n.date == "" || len(n.changes) == 0 {
		return notes{}, fmt.Errorf("CHANGELOG.md: the section of %s has no date, or no changes", version)
	}
	n.text = strings.TrimSpace(text.String())
	return n, nil
}

// markdown is the text of the release: the changes, and what to pin.
func (n notes) markdown(r release, artifacts []artifact) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n## Digests\n\n| | |\n| --- | --- |\n", n.text)
	for _, a := range artifacts {
		fmt.Fprintf(&b, "| `%s:%s` | `%s` |\n", a.repository, a.tag, a.digest)
	}
	fmt.Fprintf(&b, "| GitHub action, GitLab template | `%s` |\n\n", r.commit)
	fmt.Fprintf(&b, "`SHA256SUMS` has the digests of the files. [How to verify them](%s/blob/%s/docs/start/release.md)\n", source, r.tag())
	return b.String()
}

func (n notes) security() bool {
	return slices.ContainsFunc(n.changes, func(c change) bool { return c.Kind == "security" })
}
