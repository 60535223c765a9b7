package pullpass_test

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"
)

// markdownLinks looks at inline links, outside code: the file is there, and if it is a
// document, so is the heading.
func markdownLinks(p project) (violations []string) {
	for _, name := range p.paths() {
		if path.Ext(name) != ".md" {
			continue
		}
		for i, line := range unfenced(p.files[name]) {
			for _, target := range linkTargets(line) {
				to, heading, _ := strings.Cut(target, "#")
				file := path.Join(path.Dir(name), to)
				if rooted, found := strings.CutPrefix(to, "/"); found {
					file = path.Clean(rooted)
				}
				if to == "" {
					file = name
				}
				switch {
				case !slices.ContainsFunc(p.paths(), func(path string) bool { return within(path, file) }):
					violations = append(violations, fmt.Sprintf("%s:%d: %s is not there", name, i+1, to))
				case heading != "" && path.Ext(file) == ".md" && !slices.Contains(anchors(p.files[file]), heading):
					violations = append(violations, fmt.Sprintf("%s:%d: %s has no heading #%s", name, i+1, file, heading))
				}
			}
		}
	}
	return violations
}

// unfenced returns the lines, with nothing where code is.
func unfenced(text string) []string {
	lines, fenced := strings.Split(text, "\n"), false
	for i, line := range lines {
		isFence := strings.HasPrefix(strings.TrimSpace(line), "```")
		if isFence {
			fenced = !fenced
		}
		if isFence || fenced {
			lines[i] = ""
		}
	}
	return lines
}

// linkTargets returns the paths and headings that the inline links of a line name. Links
// to the web are left out.
func linkTargets(line string) (targets []string) {
	for i, text := range strings.Split(line, "`") {
		if i%2 == 1 {
			continue // code
		}
		for _, after := range strings.Split(text, "](")[1:] {
			target, _, _ := strings.Cut(after, ")")
			target, _, _ = strings.Cut(target, " ") // a title
			if target != "" && !strings.Contains(target, ":") {
				targets = append(targets, target)
			}
		}
	}
	return targets
}

// anchors returns what links call the headings of a document, as GitHub makes it of
// their text.
func anchors(text string) (all []string) {
	for _, line := range unfenced(text) {
		heading := strings.TrimLeft(line, "#")
		if heading == line || !strings.HasPrefix(heading, " ") {
			continue
		}
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(heading))
		for n, first := 1, anchor; slices.Contains(all, anchor); n++ {
			anchor = fmt.Sprintf("%s-%d", first, n)
		}
		all = append(all, anchor)
	}
	return all
}
