package condition

import (
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/env"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// functions are all functions that a condition can call, including those in expanded macros:
// exists_one counts, and filter makes a list.
var functions = []string{
	operators.LogicalAnd, operators.LogicalOr, operators.LogicalNot, operators.Conditional, operators.NotStrictlyFalse,
	operators.Equals, operators.NotEquals, operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals,
	operators.In, operators.Index, operators.Add,
	overloads.StartsWith, overloads.EndsWith, overloads.Contains, overloads.Size,
	asList,
}

// environment is made when the first condition is compiled: most policies have
// none, and reading the first one takes 2 ms.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	subset := env.NewLibrarySubset().AddIncludedMacros(operators.Has)
	for _, name := range functions {
		subset.AddIncludedFunctions(env.NewFunction(name))
	}
	element := cel.TypeParamType("T")
	list := cel.ListType(element)
	options := []cel.EnvOption{
		cel.StdLib(cel.StdLibSubset(subset)), cel.ParserRecursionLimit(maxDepth), cel.EnableMacroCallTracking(), // for Normal
		cel.Function(asList, cel.Overload(asList, []*cel.Type{list}, list, cel.UnaryBinding(func(v ref.Val) ref.Val { return v }))),
		cel.CostModel(cost.Overload(asList, cost.EvalCost(cost.Const(1)), cost.ResultSize(cost.Arg(0)))),
	}
	for _, m := range []cel.Macro{cel.AllMacro, cel.ExistsMacro, cel.ExistsOneMacro, cel.FilterMacro} {
		options = append(options, cel.Macros(overLists(m)))
	}
	for name, t := range variables {
		options = append(options, cel.Variable(name, t))
	}
	return cel.NewCustomEnv(options...)
})

// asList is the function that macros put around their range. No text can call it.
const asList = "@list"

// overLists restricts a macro to lists. The names of an object have no fixed order, so the cost
// until the result is known would vary.
func overLists(m cel.Macro) cel.Macro {
	return cel.ReceiverMacro(m.Function(), m.ArgCount(), func(f cel.MacroExprFactory, target ast.Expr, args []ast.Expr) (ast.Expr, *cel.Error) {
		return m.Expander()(f, f.NewCall(asList, target), args)
	})
}

// ownCost estimates the greatest cost of a condition with empty variables, which is the cost of its
// own lists.
type ownCost struct{}

// EstimateSize implements cost.Estimator. It is asked about variables: CEL computes the sizes of the
// condition's own lists and texts.
func (ownCost) EstimateSize(cost.AstNode) *cost.SizeEstimate { return &cost.SizeEstimate{} }

// EstimateCallCost implements cost.Estimator; nil: CEL's own estimate. CEL knows no greatest size of
// a value that brackets choose, as in claims["a/b"]. It is that of a variable, or one text of a list.
func (ownCost) EstimateCallCost(function, _ string, _ *cost.AstNode, _ []cost.AstNode) *cost.CallEstimate {
	if function == operators.Index {
		return &cost.CallEstimate{CostEstimate: cost.FixedCostEstimate(1), ResultSize: &cost.SizeEstimate{}}
	}
	return nil
}

// prices corrects CEL's prices where they are too low. CEL counts the size of text, character by
// character, for one unit. A comparison of lists costs only by the number of elements, and a search
// in a list of a claim costs nothing.
type prices struct{}

// CallCost implements cost.ActualCostEstimator; nil: CEL's own price.
func (prices) CallCost(function, _ string, args []ref.Val, _ ref.Val) *uint64 {
	var price uint64
	switch function {
	case overloads.Size:
		text, _ := args[0].(types.String)
		price = 1 + uint64(len(text))/10 // as CEL's own for comparing text
	case operators.Equals, operators.NotEquals, operators.In:
		if list, ok := args[1].(traits.Lister); ok && function == operators.In && !isAggregate(args[0]) {
			size, _ := list.Size().(types.Int)
			price = 1 + uint64(max(size, 0))
			break
		}
		if !isAggregate(args[0]) {
			return nil
		}
		price = elements(args[1])
	default:
		return nil
	}
	return &price
}

func isAggregate(v ref.Val) bool {
	switch v.(type) {
	case traits.Lister, traits.Mapper:
		return true
	}
	return false
}

// elements counts the elements of a list or a map, including itself.
func elements(v ref.Val) uint64 {
	n := uint64(1)
	switch v := v.(type) {
	case traits.Mapper:
		for it := v.Iterator(); it.HasNext() == types.True; {
			n += elements(v.Get(it.Next()))
		}
	case traits.Lister:
		for it := v.Iterator(); it.HasNext() == types.True; {
			n += elements(it.Next())
		}
	}
	return n
}
