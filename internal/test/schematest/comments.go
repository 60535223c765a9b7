package schematest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// comments returns those of the structs in a directory and of their fields, by
// TYPE and TYPE.FIELD.
func comments(t *testing.T, dir string) map[string]string {
	t.Helper()
	names := testkit.Value(filepath.Glob(filepath.Join(dir, "*.go")))(t)
	texts := map[string]string{}
	for _, name := range names {
		file := testkit.Value(parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments))(t)
		ast.Inspect(file, func(n ast.Node) bool {
			declaration, ok := n.(*ast.GenDecl)
			if !ok || declaration.Tok != token.TYPE {
				return true
			}
			for _, spec := range declaration.Specs {
				typ := spec.(*ast.TypeSpec)
				texts[typ.Name.Name] = oneLine(declaration.Doc)
				fields, ok := typ.Type.(*ast.StructType)
				if !ok {
					continue
				}
				for _, field := range fields.Fields.List {
					for _, name := range field.Names {
						texts[typ.Name.Name+"."+name.Name] = oneLine(field.Doc, field.Comment)
					}
				}
			}
			return true
		})
	}
	return texts
}

func oneLine(groups ...*ast.CommentGroup) string {
	var words []string
	for _, group := range groups {
		words = append(words, strings.Fields(group.Text())...)
	}
	return strings.Join(words, " ")
}
