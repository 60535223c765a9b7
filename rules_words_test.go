package pullpass_test

import (
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// forms are habits that make a reader read a sentence twice. CONTRIBUTING.md has what to write instead.
var forms = map[string]*regexp.Regexp{
	"is no X":         regexp.MustCompile(`\b(?:[Tt]here )?(?:is|are|was|were) no [a-z]+`),
	"another one":     regexp.MustCompile(`\banother one\b`),
	"so many":         regexp.MustCompile(`\bso (?:many|much) [a-z]+`),
	"in vain":         regexp.MustCompile(`\bin vain\b`),
	"somebody":        regexp.MustCompile(`\b(?i:somebody|nobody|everybody|strangers?|whoever)\b`),
	"a free clause":   regexp.MustCompile(`(?:[.;:] |\b(?:of|to|for|and|but|or|with|by) )(?i:what|who) [a-z]+`),
	"What … . begins": regexp.MustCompile(`(?m)(?:^|\. )(?:What|Who) [^?\n.]*\.`),
}

// usual are good English that looks like one of the forms.
var usual = regexp.MustCompile(`^[Tt]here |^(?:is|are|was|were) no (?:longer|more|less|need|reason|way|doubt)$|^so (?:many|much) (?:that|as)$|(?:what|who) (?:is|are|was|does|do|did|it|the|if|to|happens?|you)$|who can$`)

// mostForms is a number that only falls.
const mostForms = 9

func TestPlainEnglish(t *testing.T) {
	t.Parallel()
	counts := map[string]int{}
	all := 0
	for name, text := range prose(thisProject(t)) {
		for form, pattern := range forms {
			for _, hit := range pattern.FindAllString(text, -1) {
				if !usual.MatchString(hit) {
					counts[form]++
					all++
					if testing.Verbose() {
						t.Logf("%s: %s: %q", name, form, hit)
					}
				}
			}
		}
	}
	if all > mostForms {
		t.Errorf("%d places have one of the forms, and there were %d before: %v; go test -v -run TestPlainEnglish . lists them", all, mostForms, counts)
	}
	t.Log(all, counts)
}

func TestFormsAreFound(t *testing.T) {
	t.Parallel()
	for form, text := range map[string]string{
		"is no X": "a parameter tag is no tag", "another one": "it is another one", "so many": "unused for so many days", "in vain": "which rules are in vain",
		"somebody": "Nobody reaches it", "a free clause": "it counts for what passes", "What … . begins": "What is not good changes nothing.",
	} {
		if !forms[form].MatchString(text) || usual.MatchString(forms[form].FindString(text)) {
			t.Errorf("%s is not found in %q", form, text)
		}
	}
	for _, text := range []string{"it is no longer there", "There is no key.", "the pods of a node that pull", "so many that they wait", "to what the"} {
		for form, pattern := range forms {
			if hit := pattern.FindString(text); hit != "" && !usual.MatchString(hit) {
				t.Errorf("%s is found in %q", form, text)
			}
		}
	}
}

var codeBlock = regexp.MustCompile("(?s)```.*?```")

// prose returns what people read: documents, comments, and texts with a space in them.
func prose(p project) map[string]string {
	texts := map[string]string{}
	for name, content := range p.files {
		if path.Ext(name) == ".md" {
			texts[name] = codeBlock.ReplaceAllString(content, "")
		}
	}
	for _, file := range p.goFiles() {
		if strings.HasPrefix(file.path, "rules_words") {
			continue
		}
		var text strings.Builder
		declared := map[string]bool{}
		ast.Inspect(file.syntax, func(n ast.Node) bool {
			switch d := n.(type) {
			case *ast.FuncDecl:
				declared[d.Name.Name] = true
			case *ast.TypeSpec:
				declared[d.Name.Name] = true
			}
			return true
		})
		for _, comments := range file.syntax.Comments {
			if name, rest, _ := strings.Cut(comments.Text(), " "); declared[name] {
				text.WriteString(rest + "\n")
			} else {
				text.WriteString(comments.Text() + "\n")
			}
		}
		ast.Inspect(file.syntax, func(n ast.Node) bool {
			if s, ok := n.(*ast.BasicLit); ok && s.Kind == token.STRING && strings.Contains(s.Value, " ") {
				if value, err := strconv.Unquote(s.Value); err == nil {
					text.WriteString(value + "\n")
				}
			}
			return true
		})
		texts[file.path] = text.String()
	}
	return texts
}
