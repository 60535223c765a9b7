package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The catalogue has every reason that there is, once, and no other.
func TestCatalogueIsWhole(t *testing.T) {
	t.Parallel()
	listed := map[string]bool{}
	for _, e := range refusal.All() {
		if listed[string(e.Reason)] {
			t.Errorf("%s is there twice", e.Reason)
		}
		listed[string(e.Reason)] = true
		if e.Class.Status() == 0 || e.Message == "" || e.Remedy == "" {
			t.Errorf("%s has no class, message or remedy: %+v", e.Reason, e)
		}
	}
	sameSet(t, "reasons in use", reasonsUsed(t, "internal/oidc", "internal/exchange", "internal/gateway"), "in the catalogue", listed)
	declared := map[string]bool{}
	for _, word := range stringConstants(t, "../../internal/refusal/catalogue.go") {
		declared[word] = true
	}
	sameSet(t, "constants", declared, "in the catalogue", listed)
	for _, name := range []string{"alerts.yaml", "dashboard.json"} {
		data := testkit.Read(t, "../../deploy/monitoring/"+name)
		matchers := regexp.MustCompile(`\breason[!=]~?\\?"([a-z_|]+)`).FindAllStringSubmatch(data, -1)
		if matchers == nil {
			t.Errorf("%s selects no reason", name)
		}
		for _, matcher := range matchers {
			for word := range strings.SplitSeq(matcher[1], "|") {
				if !listed[word] {
					t.Errorf("%s: %q is not in the catalogue", name, word)
				}
			}
		}
	}
}

var updateReasons = flag.Bool("update-reasons", false, "write the reasons into docs/reference/audit.md and docs/audit.schema.json")

// The documents have the reasons of the catalogue. They are written by make docs.
func TestReasonsDocument(t *testing.T) {
	t.Parallel()
	atTokens, inGateway := reasonsUsed(t, "internal/oidc", "internal/exchange"), reasonsUsed(t, "internal/gateway")
	checkPart(t, "../../docs/reference/audit.md", `(?ms)^\| reason \|.*?\n\n`,
		reasonsTable("reason", atTokens, nil))
	checkPart(t, "../../docs/reference/audit.md", `(?ms)^\| gateway reason \|.*?\n\n`, reasonsTable("gateway reason", inGateway, atTokens))
	var enum strings.Builder
	for i, reason := range refusal.Reasons() {
		if i > 0 {
			enum.WriteString(",\n")
		}
		fmt.Fprintf(&enum, "        %q", reason)
	}
	checkPart(t, "../../docs/audit.schema.json", `(?s)    "reason": \{\n      "enum": \[\n.*?\n      \]`, "    \"reason\": {\n      \"enum\": [\n"+enum.String()+"\n      ]")
}

// checkPart checks, or writes, the part of a document that a pattern matches.
func checkPart(t *testing.T, name, pattern, want string) {
	t.Helper()
	data := testkit.Value(os.ReadFile(name))(t)
	at := regexp.MustCompile(pattern).FindIndex(data)
	switch {
	case at == nil:
		t.Fatalf("%s has nothing like %s", name, pattern)
	case *updateReasons:
		testkit.Must(t, os.WriteFile(name, slices.Concat(data[:at[0]], []byte(want), data[at[1]:]), 0o644))
	case string(data[at[0]:at[1]]) != want:
		t.Errorf("the reasons in %s are stale: run make docs", name)
	}
}

func reasonsTable(column string, used, elsewhere map[string]bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s | meaning | remedy |\n| --- | --- | --- |\n", column)
	for _, e := range refusal.All() {
		if used[string(e.Reason)] && !elsewhere[string(e.Reason)] {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", e.Reason, inMarkdown(e.Message), inMarkdown(e.Remedy))
		}
	}
	return b.String() + "\n"
}

var (
	fieldName = regexp.MustCompile(`\b[a-z]+\[\](\.[a-zA-Z]+)*|\b[a-z]+[A-Z][a-zA-Z]*(\.[a-zA-Z]+)*|\b[a-z]+\.[a-zA-Z.]+[a-zA-Z]|/readyz`)
	// pages explain some words of the catalogue.
	pages = strings.NewReplacer(
		"no rule grants", "[no rule](policy.md) grants",
		"64 resources", "[64 resources](../how-to/in-pod.md#mirrors)",
		"the kubelet's plugin", "the [kubelet's plugin](../how-to/kubelet.md)",
		"deleted and recreated", "[deleted and recreated](../how-to/kubernetes.md)",
		"`node.proof`", "[`node.proof`](../how-to/node-proof.md)",
		"`state.replay`", "[`state.replay`](../how-to/redis.md#replay)",
		"share of the streams", "[share of the streams](capacity.md#connections)",
		"redirects to an address", "[redirects](../how-to/gateway.md#redirects) to an address",
	)
)

func inMarkdown(text string) string { return pages.Replace(fieldName.ReplaceAllString(text, "`$0`")) }

// reasonsUsed returns the reasons that the sources below some directories name.
func reasonsUsed(t *testing.T, dirs ...string) map[string]bool {
	t.Helper()
	words, used := stringConstants(t, "../../internal/refusal/catalogue.go"), map[string]bool{}
	for _, dir := range dirs {
		testkit.Must(t, filepath.WalkDir("../../"+dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			testkit.Must(t, err)
			ast.Inspect(file, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok && words[s.Sel.Name] != "" {
					if x, ok := s.X.(*ast.Ident); ok && x.Name == "refusal" {
						used[words[s.Sel.Name]] = true
					}
				}
				return true
			})
			return nil
		}))
	}
	return used
}
