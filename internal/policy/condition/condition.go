package condition

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/oidc/identity"
)

const (
	maxBytes = 4096 // of the text
	// maxDepth bounds the stack of functions that walk the expression. A usual one nests to 5, and
	// so does a long chain of && and ||, which the parser balances.
	maxDepth = 32
	// maxCost is in CEL's units, about one for each step; a usual condition needs 10. It is enough
	// to visit more than a thousand elements of a list, and takes at most a few milliseconds. Azure
	// writes at most 200 groups into a token.
	maxCost = 10_000
	// maxTime is only for work that the prices do not cover, because a time limit makes results
	// differ from run to run. A replica with a twentieth of a core stands still for most of each
	// 100 ms. That must not cause a refusal.
	maxTime = 2 * time.Second
	// interruptEvery is the number of list elements between two looks at the time.
	interruptEvery = 100
	// maxMessage bounds the text of the condition and the claims in an error.
	maxMessage = 200
)

// Condition is a condition that was compiled. It is immutable and safe for
// concurrent use.
type Condition struct {
	text    string
	program cel.Program
	uses    []Use
	// mayLoop is set if the condition has a macro that goes through a list. Nothing else takes long
	// enough to need a timer, which costs as much again as a usual condition.
	mayLoop bool
	// readsToken is set if the condition reads the node or claims.jti.
	readsToken bool
}

// Use is a claim that a condition reads. Type is the type of the value that the claim is compared
// with, or the type that gives the condition a result. Type is empty if it is not known. IsPresence
// is set for has(claims.NAME) or "NAME" in claims, which do not read the value.
type Use struct {
	Claim      string
	Type       identity.Type
	IsPresence bool
}

// Compile reads a condition and checks its types. An error describes the first fault, as
// LINE:COLUMN: what is wrong: remedy. Both count from 1, columns in characters. A fault of the
// whole condition has no position.
func Compile(text string) (*Condition, error) {
	switch {
	case strings.TrimSpace(text) == "":
		return nil, errors.New(`is blank: fill it or remove it`)
	case len(text) > maxBytes:
		return nil, fmt.Errorf("has %d bytes; at most %d are read: write several subjects", len(text), maxBytes)
	}
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("cannot set CEL up: %w", err)
	}
	parsed, issues := env.Parse(text)
	if err := firstIssue(issues, syntaxRemedy); err != nil {
		return nil, err
	}
	names := nameCheck{info: parsed.NativeRep().SourceInfo()}
	if err := names.check(parsed.NativeRep().Expr()); err != nil {
		return nil, err
	}
	checked, issues := env.Check(parsed)
	if err := firstIssue(issues, typeRemedy); err != nil {
		return nil, err
	}
	uses := typeCheck{ast: checked.NativeRep()}
	if err := uses.check(checked.NativeRep().Expr(), identity.Boolean); err != nil {
		return nil, err
	}
	if err := isBoolean(checked); err != nil {
		return nil, err
	}
	cost, err := env.EstimateCost(checked, ownCost{})
	switch {
	case err != nil:
		return nil, fmt.Errorf("its cost cannot be estimated: %s", message(err.Error()))
	case cost.Max > maxCost:
		return nil, fmt.Errorf("may cost %d units whatever the claims are; at most %d are spent: write shorter lists, or no list within another's macro", cost.Max, maxCost)
	}
	program, err := env.Program(checked, cel.EvalOptions(cel.OptOptimize), cel.CostTracking(prices{}), cel.CostLimit(maxCost),
		cel.InterruptCheckFrequency(interruptEvery))
	if err != nil {
		return nil, fmt.Errorf("cannot be evaluated: %s", message(err.Error()))
	}
	readsToken := slices.ContainsFunc(uses.uses, func(u Use) bool { return u.Claim == "jti" })
	for _, reference := range checked.NativeRep().ReferenceMap() {
		readsToken = readsToken || reference.Name == node
	}
	return &Condition{text: text, program: program, uses: uses.uses, mayLoop: uses.hasMacro, readsToken: readsToken}, nil
}

// String returns the text as it was written.
func (c *Condition) String() string { return c.text }

// Normal returns the text without needless white space and parentheses, and with texts in double quotes.
func (c *Condition) Normal() string {
	env, err := environment()
	if err != nil {
		return c.text
	}
	parsed, issues := env.Parse(c.text)
	if issues.Err() != nil {
		return c.text
	}
	normal, err := cel.AstToString(parsed)
	if err != nil {
		return c.text
	}
	return normal
}

// Uses returns each claim with each type once, in the order of the text. It must
// not be changed.
func (c *Condition) Uses() []Use { return c.uses }

// ReadsToken reports whether the condition reads a value of a ServiceAccount that only a token has:
// the node, or the id of the token.
func (c *Condition) ReadsToken() bool { return c.readsToken }

// Holds evaluates the condition. An error means that the result is unknown: a claim is missing or
// has a different type, a variable is not known, or the cost is too high. The error repeats little
// of the claims. The same variables have the same result, unless it takes longer than maxTime.
// Holds adds its cost to spent, in CEL's units.
func (c *Condition) Holds(v Variables, spent *uint64) (bool, error) {
	if !c.mayLoop {
		result, details, err := c.program.Eval(activation{&v})
		*spent += costOf(details)
		return answer(result, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), maxTime)
	defer cancel()
	return c.holdsWithin(ctx, &v, spent)
}

func (c *Condition) holdsWithin(ctx context.Context, v *Variables, spent *uint64) (bool, error) {
	result, details, err := c.program.ContextEval(ctx, activation{v})
	*spent += costOf(details)
	return answer(result, err)
}

// costOf assumes the maximum cost if no cost was tracked.
func costOf(details *cel.EvalDetails) uint64 {
	if cost := details.ActualCost(); cost != nil {
		return *cost
	}
	return maxCost
}

func answer(result ref.Val, err error) (bool, error) {
	canceled, _ := errors.AsType[interpreter.EvalCancelledError](err)
	switch {
	case canceled.Cause == interpreter.CostLimitExceeded:
		return false, fmt.Errorf("it costs more than %d units with these claims", maxCost)
	case errors.Is(err, interpreter.InterruptError{}):
		return false, fmt.Errorf("it was not known within %v", maxTime)
	case err != nil:
		return false, errors.New(message(err.Error()))
	}
	return result == types.True, nil
}

// isBoolean rejects a condition that may have a different type. The type of a claim alone would be
// known only during evaluation.
func isBoolean(checked *cel.Ast) error {
	info, expr := checked.NativeRep().SourceInfo(), checked.NativeRep().Expr()
	switch output := checked.OutputType(); {
	case output.IsExactType(cel.BoolType):
		return nil
	case output.IsExactType(cel.DynType):
		return fault(info, expr, "may be anything, and a condition is true or false", `compare it, as in claims.flag == true`)
	default:
		return fault(info, expr, "is a "+output.String()+", and a condition is true or false", `compare it, as in claims.ref == "refs/heads/main"`)
	}
}

const (
	syntaxRemedy = `write CEL, as in claims.event_name == "push" && claims.ref.startsWith("refs/tags/")`
	hasRemedy    = `write has(claims.NAME) or "NAME" in claims`
	listRemedy   = `all, exists, exists_one and filter are for lists; ask for a label as in kubernetes.labels["team"] == "a"`
	typeRemedy   = "compare values of one type; text stands in quotes"
	depthRemedy  = "nest less, or write several subjects"
)

// firstIssue returns the first issue of the parser or the checker, by position.
func firstIssue(issues *cel.Issues, remedy string) error {
	if issues.Err() == nil {
		return nil
	}
	// The parser's limits have no position. Beside another issue they follow from it.
	found := slices.DeleteFunc(slices.Clone(issues.Errors()), func(e *cel.Error) bool { return e.Location.Line() < 1 })
	if len(found) == 0 {
		return fmt.Errorf("%s: %s", message(issues.Errors()[0].Message), depthRemedy)
	}
	first := slices.MinFunc(found, func(a, b *cel.Error) int {
		return cmp.Or(cmp.Compare(a.Location.Line(), b.Location.Line()), cmp.Compare(a.Location.Column(), b.Location.Column()))
	})
	// The parser lists the tokens that it expects, which is long.
	what, _, _ := strings.Cut(first.Message, " expecting {")
	what = message(what)
	switch {
	case strings.Contains(what, "has() macro"):
		remedy = hasRemedy
	case strings.Contains(what, asList):
		what, remedy = "is not a list", listRemedy
	}
	return at(first.Location.Line(), first.Location.Column(), what, remedy)
}

func fault(info *ast.SourceInfo, e ast.Expr, what, remedy string) error {
	location := info.GetStartLocation(e.ID())
	return at(location.Line(), location.Column(), what, remedy)
}

// at takes a column that counts from 0, as in CEL.
func at(line, column int, what, remedy string) error {
	return fmt.Errorf("%d:%d: %s: %s", line, column+1, what, remedy)
}

// message makes one line of a library's message. It quotes the text, and sometimes a claim.
func message(s string) string {
	return term.Line(term.Shorten(s, maxMessage))
}
