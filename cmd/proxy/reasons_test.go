package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
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
}

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
