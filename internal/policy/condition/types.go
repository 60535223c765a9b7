package condition

import (
	"cel.dev/cel-go/parser"
	"slices"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"

	"github.com/pullpass/pullpass/internal/oidc/identity"
)

// typeCheck notes how claims are used, and refuses what would let values grow
// beyond what is paid for: see the package's comment.
type typeCheck struct {
	ast      *ast.AST
	uses     []Use
	hasMacro bool // that goes through a list
}

// check looks at an expression that has to be of a type; empty: of any.
func (c *typeCheck) check(e ast.Expr, wanted identity.Type) error {
	if claim, ok := claimOf(e); ok {
		if e.AsSelect().IsTestOnly() {
			c.note(Use{Claim: claim, IsPresence: true})
		} else {
			c.note(Use{Claim: claim, Type: wanted})
		}
		return nil
	}
	switch e.Kind() {
	case ast.SelectKind:
		if claim, ok := claimOf(e.AsSelect().Operand()); ok && e.AsSelect().IsTestOnly() { // has(claims.a.b)
			c.note(Use{Claim: claim, IsPresence: true})
			return nil
		}
		return c.check(e.AsSelect().Operand(), "")
	case ast.CallKind:
		return c.call(e, wanted)
	case ast.ListKind:
		return c.list(e)
	case ast.ComprehensionKind:
		c.hasMacro = true
		m := e.AsComprehension()
		if err := c.check(m.IterRange(), ""); err != nil {
			return err
		}
		return c.all("", m.LoopStep(), m.Result())
	}
	return nil
}

func (c *typeCheck) note(use Use) {
	if !slices.Contains(c.uses, use) {
		c.uses = append(c.uses, use)
	}
}

func (c *typeCheck) all(wanted identity.Type, list ...ast.Expr) error {
	for _, e := range list {
		if err := c.check(e, wanted); err != nil {
			return err
		}
	}
	return nil
}

func (c *typeCheck) call(e ast.Expr, wanted identity.Type) error {
	call := e.AsCall()
	args := call.Args()
	switch call.FunctionName() {
	case operators.LogicalAnd, operators.LogicalOr, operators.LogicalNot:
		return c.all(identity.Boolean, args...)
	case operators.Conditional:
		if err := c.check(args[0], identity.Boolean); err != nil {
			return err
		}
		return c.all(wanted, args[1:]...)
	case operators.Equals, operators.NotEquals, operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals:
		if err := c.check(args[0], c.typeOf(args[1])); err != nil {
			return err
		}
		return c.check(args[1], c.typeOf(args[0]))
	case operators.In:
		if isIdent(args[1], claims) {
			claim, _ := text(args[0])
			c.note(Use{Claim: claim, IsPresence: true})
			return nil
		}
		if err := c.check(args[0], c.elementOf(args[1])); err != nil {
			return err
		}
		return c.check(args[1], identity.List)
	case operators.Index:
		within := identity.List
		if c.typeOf(args[1]) != identity.Number {
			within = "" // an object
		}
		if err := c.check(args[0], within); err != nil {
			return err
		}
		return c.check(args[1], "")
	case operators.Add:
		return c.sum(e)
	case overloads.StartsWith, overloads.EndsWith, overloads.Contains:
		if err := c.check(call.Target(), identity.String); err != nil {
			return err
		}
		return c.all(identity.String, args...)
	case asList:
		return c.check(args[0], identity.List)
	case overloads.Size:
		if call.IsMemberFunction() {
			return c.check(call.Target(), "")
		}
	}
	return c.all("", args...)
}

// sum lets + join texts only. Macros add to their accumulator, too.
func (c *typeCheck) sum(e ast.Expr) error {
	args := e.AsCall().Args()
	switch {
	case isIdent(args[0], parser.HiddenAccumulatorName):
		return nil
	case c.typeOf(e) != identity.String:
		return fault(c.ast.SourceInfo(), e, "+ joins text, and this may be something else", `let one side be text for sure, as in claims.a + "/" + claims.b`)
	}
	return c.all(identity.String, args...)
}

// list refuses elements that may be lists.
func (c *typeCheck) list(e ast.Expr) error {
	for _, element := range e.AsList().Elements() {
		if t := c.typeOf(element); t == "" || t == identity.List {
			return fault(c.ast.SourceInfo(), element, "an element may be a list", "write lists of text, numbers, true and false; claims are compared one by one")
		}
		if err := c.check(element, ""); err != nil {
			return err
		}
	}
	return nil
}

// typeOf returns the type that an expression has for sure, or nothing.
func (c *typeCheck) typeOf(e ast.Expr) identity.Type { return typeOf(c.ast.GetType(e.ID())) }

// elementOf returns the type of a list's elements.
func (c *typeCheck) elementOf(e ast.Expr) identity.Type {
	t := c.ast.GetType(e.ID())
	if t.Kind() != types.ListKind && t.Kind() != types.MapKind {
		return ""
	}
	return typeOf(t.Parameters()[0])
}

func typeOf(t *types.Type) identity.Type {
	switch t.Kind() {
	case types.StringKind:
		return identity.String
	case types.IntKind, types.UintKind, types.DoubleKind:
		return identity.Number
	case types.BoolKind:
		return identity.Boolean
	case types.ListKind:
		return identity.List
	}
	return ""
}
