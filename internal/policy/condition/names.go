package condition

import (
	"maps"
	"slices"
	"strings"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"

	"github.com/pullpass/pullpass/internal/base/term"
)

const (
	claimRemedy    = `name one, as in claims.ref or claims["oidc.circleci.com/project-id"]`
	functionRemedy = "there are startsWith, endsWith, contains, size, has(x), and of lists all(x, TEST), exists(x, TEST), exists_one(x, TEST) and filter(x, TEST)"
)

// functionRemedies is for functions that authors may expect.
var functionRemedies = map[string]string{
	"matches": "policy has no regular expressions: use ==, in, startsWith, endsWith or contains",
	"map":     "use exists or filter",

	"now": noTimeRemedy, "timestamp": noTimeRemedy, "duration": noTimeRemedy,

	operators.Subtract: noArithmeticRemedy, operators.Multiply: noArithmeticRemedy, operators.Divide: noArithmeticRemedy,
	operators.Modulo: noArithmeticRemedy, operators.Negate: noArithmeticRemedy,

	"string": noConversionRemedy, "int": noConversionRemedy, "uint": noConversionRemedy, "double": noConversionRemedy,
	"bool": noConversionRemedy, "bytes": noConversionRemedy, "dyn": noConversionRemedy, "type": noConversionRemedy,
}

const (
	noTimeRemedy       = "conditions know no time: a token's times are checked before"
	noArithmeticRemedy = "there is no arithmetic: compare the claim as it is"
	noConversionRemedy = "there are no conversions: compare the claim as it is"
)

// nameCheck rejects unknown names before the types are checked, because its errors list the known
// names.
type nameCheck struct {
	info *ast.SourceInfo
	vars []string // of the enclosing macros, innermost last
}

func (c *nameCheck) check(e ast.Expr) error {
	switch e.Kind() {
	case ast.IdentKind:
		return c.ident(e)
	case ast.SelectKind:
		return c.selection(e)
	case ast.CallKind:
		return c.call(e)
	case ast.ListKind:
		return c.all(e.AsList().Elements()...)
	case ast.ComprehensionKind:
		return c.macro(e)
	case ast.MapKind, ast.StructKind:
		return fault(c.info, e, "has braces", "write lists, as in claims.ref in [\"a\", \"b\"]; there are no maps and no messages")
	}
	return nil
}

func (c *nameCheck) all(list ...ast.Expr) error {
	for _, e := range list {
		if err := c.check(e); err != nil {
			return err
		}
	}
	return nil
}

// ident checks a name without a selection after it.
func (c *nameCheck) ident(e ast.Expr) error {
	switch name := e.AsIdent(); {
	case slices.Contains(c.vars, name), name == service:
		return nil
	case name == claims:
		return fault(c.info, e, "looks at all claims", claimRemedy)
	default:
		return c.unknown(e, name)
	}
}

func (c *nameCheck) unknown(e ast.Expr, name string) error {
	known := slices.Sorted(maps.Keys(variables))
	known[slices.Index(known, claims)] += ".NAME"
	return fault(c.info, e, term.QuoteName(name)+" is not known", "there are "+strings.Join(known, ", ")+"; text stands in quotes")
}

func (c *nameCheck) selection(e ast.Expr) error {
	s := e.AsSelect()
	switch {
	case isIdent(s.Operand(), claims):
		return nil
	case !isIdent(s.Operand(), kubernetes):
		return c.check(s.Operand())
	case variables[prefix+s.FieldName()] == nil:
		return c.unknown(e, prefix+s.FieldName())
	case s.IsTestOnly():
		return fault(c.info, e, "has asks for a claim or a label", "compare "+prefix+s.FieldName()+" instead: where it is not known, the condition grants nothing")
	}
	return nil
}

func (c *nameCheck) call(e ast.Expr) error {
	call := e.AsCall()
	name := call.FunctionName()
	if !slices.Contains(functions, name) {
		remedy, ok := functionRemedies[name]
		if !ok {
			remedy = functionRemedy
		}
		if symbol, ok := operators.FindReverse(name); ok {
			name = symbol
		}
		return fault(c.info, e, term.QuoteName(name)+" is not available here", remedy)
	}
	args := call.Args()
	if call.IsMemberFunction() {
		return c.all(append([]ast.Expr{call.Target()}, args...)...)
	}
	if claim, ok := claimOf(e); ok && claim == "" {
		return fault(c.info, e, "chooses a claim by a value", claimRemedy)
	} else if ok {
		return nil
	}
	if name == operators.In && isIdent(args[1], claims) {
		if _, ok := text(args[0]); ok {
			return nil
		}
	}
	return c.all(args...)
}

// macro checks an expanded macro. Its variable must not hide a declared variable, because the
// meaning of a name would then depend on its position.
func (c *nameCheck) macro(e ast.Expr) error {
	m := e.AsComprehension()
	if err := c.check(m.IterRange()); err != nil {
		return err
	}
	if name := m.IterVar(); name == claims || name == kubernetes || name == service {
		return fault(c.info, e, term.QuoteName(name)+" names two things", "choose another name for the elements")
	}
	c.vars = append(c.vars, m.IterVar(), m.AccuVar())
	err := c.all(m.AccuInit(), m.LoopCondition(), m.LoopStep(), m.Result())
	c.vars = c.vars[:len(c.vars)-2]
	return err
}

// claimOf reports whether an expression is a claim, and returns its name. The name is empty if it
// is not a literal text.
func claimOf(e ast.Expr) (string, bool) {
	switch e.Kind() {
	case ast.SelectKind:
		if s := e.AsSelect(); isIdent(s.Operand(), claims) {
			return s.FieldName(), true
		}
	case ast.CallKind:
		if c := e.AsCall(); c.FunctionName() == operators.Index && isIdent(c.Args()[0], claims) {
			name, _ := text(c.Args()[1])
			return name, true
		}
	}
	return "", false
}

func isIdent(e ast.Expr, name string) bool {
	return e.AsIdent() == name
}

// text returns a literal text of the condition.
func text(e ast.Expr) (string, bool) {
	s, ok := e.AsLiteral().(types.String)
	return string(s), ok
}
