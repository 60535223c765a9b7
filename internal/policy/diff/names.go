package diff

import (
	"iter"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/policy/pattern"
)

// kind is a kind of name: of a namespace, of a ServiceAccount or node, or the value of a claim.
type kind struct {
	grammar grammar
	isName  func(string) bool
}

const (
	atStart uint32 = 1 << iota
	inText
	afterDash
)

func label(dots bool) grammar {
	return grammar{start: atStart, final: inText, step: func(states uint32, c byte) uint32 {
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
			return inText
		case c == '-' && states&atStart == 0:
			return afterDash
		case c == '.' && dots && states == inText:
			return atStart
		}
		return 0
	}}
}

var (
	labels     = kind{label(false), names.IsLabel}
	subdomains = kind{label(true), names.IsSubdomain}
	texts      = kind{grammar{start: inText, final: inText, step: func(_ uint32, c byte) uint32 {
		if c == '/' { // the end of a component; see freeText
			return 0
		}
		return inText
	}}, func(text string) bool { return text != "" && len(text) <= 512 }}
)

// freeText hides the slashes of values of claims from patterns. It is its own inverse.
var freeText = strings.NewReplacer("/", "\x01", "\x01", "/")

// representatives yields names that match all of the globs. Of the names that no other glob tells
// apart, it yields at least one. others can also have names without *, each of which is yielded
// alone. The first name is one for people, if the globs allow it.
func (k kind) representatives(word string, globs, others []string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		allowed := func(name string) bool {
			return k.isName(name) && !slices.ContainsFunc(globs, func(glob string) bool { return !pattern.MatchText(glob, name) })
		}
		exact, wild := map[string]bool{}, []string(nil)
		for _, list := range [][]string{globs, others} {
			for _, glob := range list {
				if !strings.Contains(glob, "*") {
					exact[glob] = true
				} else if !slices.Contains(wild, glob) && glob != "*" {
					wild = append(wild, glob)
				}
			}
		}
		isOne := slices.ContainsFunc(globs, func(glob string) bool { return !strings.Contains(glob, "*") })
		hasFirst := false
		if !isOne {
			for _, first := range friendly(word, globs) {
				if hasFirst = allowed(first) && !exact[first]; hasFirst {
					if !yield(first, nil) {
						return
					}
					break
				}
			}
		}
		var sorted []string
		for name := range exact {
			if allowed(name) {
				sorted = append(sorted, name)
			}
		}
		slices.Sort(sorted)
		for _, name := range sorted {
			if !yield(name, nil) {
				return
			}
		}
		// Without other wildcards, all other names are alike.
		if isOne || hasFirst && !slices.ContainsFunc(wild, func(glob string) bool { return !slices.Contains(globs, glob) }) {
			return
		}
		all, err := k.search(globs, wild, exact)
		if err != nil {
			yield("", err)
			return
		}
		for _, name := range all {
			if !yield(name, nil) {
				return
			}
		}
	}
}

// friendly returns names that people can read, of which one probably matches the globs.
func friendly(word string, globs []string) []string {
	base := word
	for _, glob := range globs {
		if len(strings.ReplaceAll(glob, "*", "")) > 0 && (base == word || len(glob) > len(base)) {
			base = glob
		}
	}
	return []string{strings.ReplaceAll(base, "*", word), strings.ReplaceAll(base, "*", word+"-1"), strings.ReplaceAll(base, "*", word+"-2")}
}

// search returns one name for each set of wild globs that match some name and no others. The
// names of exact are left out. Those of one kind can be among the shortest, so the search reaches each
// state again until it has found another name, or there are too many names to be all of them.
func (k kind) search(globs, wild []string, exact map[string]bool) ([]string, error) {
	slices.Sort(wild)
	s := search{grammar: k.grammar}
	var written []string
	for _, glob := range wild {
		written = append(written, freeText.Replace(glob))
		if slices.Contains(globs, glob) {
			s.needed = append(s.needed, len(written)-1)
		}
	}
	for _, text := range written {
		s.patterns = append(s.patterns, compile(text))
	}
	s.alphabet = letters(written)
	for s.visits = 1; ; s.visits *= 4 {
		found, missed := map[string]string{}, map[string]bool{}
		var order []string
		err := s.words(func(word string, matches func(int) bool) bool {
			vector := make([]byte, len(s.patterns))
			for i := range vector {
				if matches(i) {
					vector[i] = 1
				}
			}
			name := freeText.Replace(word)
			switch key := string(vector); {
			case found[key] != "" || !k.isName(name):
			case exact[name]:
				missed[key] = true
			default:
				found[key] = name
				order = append(order, name)
			}
			return false
		})
		if err != nil {
			return nil, err
		}
		isWhole := true
		for key := range missed {
			isWhole = isWhole && found[key] != ""
		}
		if isWhole || s.visits > len(exact) {
			return order, nil
		}
	}
}
