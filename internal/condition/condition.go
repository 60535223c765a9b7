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

	"github.com/pullpass/pullpass/internal/identity"
	"github.com/pullpass/pullpass/internal/term"
)

const (
	maxBytes = 4096 // of the text
	// maxDepth bounds the stack of whatever walks the expression. A usual one nests
	// to 5, and so does a long chain of && and ||, which the parser balances.
	maxDepth = 32
	// maxCost is in CEL's units, about one for each step; a usual condition needs 10.
	// It is enough to look at more than a thousand elements of a list, and is spent in
	// at most a few milliseconds. Azure writes at most 200 groups into a token.
	maxCost = 10_000
	// maxTime is only for what the prices do not know of: what it ended would differ
	// from run to run. A replica that is given a twentieth of a core stands still for
	// most of each 100 ms, and must not refuse anybody because of that.
	maxTime = 2 * time.Second
	// interruptEvery is after how many elements of a list the time is looked at.
	interruptEvery = 100
	// maxMessage bounds what an error repeats of the condition and the claims.
	maxMessage = 200
)

// Condition is a condition that was compiled. It is immutable and safe for
// concurrent use.
type Condition struct {
	text    string
	program cel.Program
	uses    []Use
	// mayLoop: it has a macro that goes through a list. Nothing else takes time that
	// is worth a timer, which costs as much again as a usual condition.
	mayLoop bool
}

// Use is a claim that a condition looks at. Type is that of what it is compared
// with, or what it has to be for the condition to have a result; it is empty where
// that cannot be seen. IsPresence: has(claims.NAME) or "NAME" in claims, which say
// nothing of the value.
type Use struct {
	Claim      string
	Type       identity.Type
	IsPresence bool
}

// Compile reads a condition and checks its types. An error is about the first
// fault, as LINE:COLUMN: what is wrong: remedy; both count from 1, columns in
// characters. What is wrong with the whole has no place.
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
	return &Condition{text: text, program: program, uses: uses.uses, mayLoop: uses.hasMacro}, nil
}

// String returns the text as it was written.
func (c *Condition) String() string { return c.text }

// Uses returns each claim with each type once, in the order of the text. It must
// not be changed.
func (c *Condition) Uses() []Use { return c.uses }

// Holds evaluates the condition. An error means that it cannot be known whether it
// holds: a claim is missing or of another type, something was asked for that is not
// known, or it costs too much. The error repeats little of what the claims say.
// The same variables have the same result, unless it takes longer than maxTime.
// spent is raised by what it cost, in CEL's units.
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

// costOf takes what nobody has counted for dear.
func costOf(details *cel.EvalDetails) uint64 {
	if cost := details.ActualCost(); cost != nil {
		return *cost
	}
	return maxCost
}

func answer(result ref.Val, err error) (bool, error) {
	var canceled interpreter.EvalCancelledError
	switch {
	case errors.As(err, &canceled) && canceled.Cause == interpreter.CostLimitExceeded:
		return false, fmt.Errorf("it costs more than %d units with these claims", maxCost)
	case errors.Is(err, interpreter.InterruptError{}):
		return false, fmt.Errorf("it was not known within %v", maxTime)
	case err != nil:
		return false, errors.New(message(err.Error()))
	}
	return result == types.True, nil
}

// isBoolean refuses what may be something else. For a claim alone, that would be
// known only when it is too late.
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

// firstIssue returns what the parser or the checker found first in the text.
func firstIssue(issues *cel.Issues, remedy string) error {
	if issues.Err() == nil {
		return nil
	}
	// The parser's limits have no place. Beside something else they follow from it.
	found := slices.DeleteFunc(slices.Clone(issues.Errors()), func(e *cel.Error) bool { return e.Location.Line() < 1 })
	if len(found) == 0 {
		return fmt.Errorf("%s: %s", message(issues.Errors()[0].Message), depthRemedy)
	}
	first := slices.MinFunc(found, func(a, b *cel.Error) int {
		return cmp.Or(cmp.Compare(a.Location.Line(), b.Location.Line()), cmp.Compare(a.Location.Column(), b.Location.Column()))
	})
	// What the parser would take next is a long list of its own words.
	what, _, _ := strings.Cut(first.Message, " expecting {")
	what = message(what)
	switch {
	case strings.Contains(what, "has() macro"):
		remedy = hasRemedy
	case strings.Contains(what, asList):
		what, remedy = "is no list", listRemedy
	}
	return at(first.Location.Line(), first.Location.Column(), what, remedy)
}

func fault(info *ast.SourceInfo, e ast.Expr, what, remedy string) error {
	location := info.GetStartLocation(e.ID())
	return at(location.Line(), location.Column(), what, remedy)
}

// at takes a column as CEL does, which counts them from 0.
func at(line, column int, what, remedy string) error {
	return fmt.Errorf("%d:%d: %s: %s", line, column+1, what, remedy)
}

// message makes a line of what a library says. It quotes the text, and at times a
// claim.
func message(s string) string {
	return term.Line(term.Shorten(s, maxMessage))
}
