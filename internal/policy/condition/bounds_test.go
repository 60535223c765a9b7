package condition

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// fullToken has claims that fill a token, each in a different way.
func fullToken() Variables {
	list, nested := make([]string, 2500), make([]any, 3000)
	for i := range list {
		list[i] = "x"
	}
	for i := range nested {
		nested[i] = []any{int64(1)}
	}
	object := map[string]any{}
	for i := range 1000 {
		object[fmt.Sprint(i)] = int64(1)
	}
	return Variables{Claims: map[string]any{
		"list": list, "groups": list[:1000], "nested": nested, "within": []any{nested}, "text": strings.Repeat("a", 12000), "object": object, "objects": []any{object},
	}}
}

// unhurried ignores the time limit, which depends on the machine.
func unhurried(c *Condition, v Variables) (bool, error) {
	return c.holdsWithin(context.Background(), &v, new(uint64))
}

const tooDear = "it costs more than 10000 units with these claims"

// hostile are accepted conditions that would take long on a full token.
var hostile = map[string]string{
	"loops":               `claims.list.all(x, claims.list.all(y, claims.list.all(z, z == x)))`,
	"loops over filters":  `claims.list.all(x, claims.list.filter(y, true) == claims.list.filter(y, true))`,
	"equal lists":         `claims.list.all(x, claims.within == claims.within)`,
	"unequal lists":       `claims.list.all(x, !(claims.within != claims.within))`,
	"equal objects":       `claims.list.all(x, claims.objects == claims.objects)`,
	"lists in lists":      `claims.list.all(x, claims.nested in claims.within)`,
	"sizes of text":       `claims.list.all(x, size(claims.text) > 0)`,
	"sizes of text, too":  `claims.list.all(x, claims.text.size() > 0)`,
	"equal text":          `claims.list.all(x, claims.text == claims.text)`,
	"text within text":    `claims.list.all(x, !claims.text.contains(claims.text + "b"))`,
	"text in lists":       `claims.list.all(x, !(claims.text in claims.list))`,
	"text that is joined": `claims.list.all(x, claims.text + "" != "")`,
	"text that doubles":   `[claims.text + ""].exists(x, ` + strings.Repeat(`[x + "" + x].exists(x, `, 20) + `x == ""` + strings.Repeat(")", 21),
}

// The cost is bounded, and not the time, which is single milliseconds.
func TestHostileConditionsEnd(t *testing.T) {
	t.Parallel()
	for what, text := range hostile {
		if holds, err := unhurried(compile(t, text), fullToken()); holds || err == nil || err.Error() != tooDear {
			t.Errorf("%s: %v, %v; want %s", what, holds, err, tooDear)
		}
	}
}

// CEL's own price ignores the number of characters for size, and the nested elements of elements.
func TestPrices(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct{ least, most uint64 }{
		`size(claims.text) == 1`:           {1201, 1220},
		`claims.text.size() == 1`:          {1201, 1220},
		`size(claims.list) == 1`:           {1, 20},
		`claims.within == claims.within`:   {6002, 6020}, // 3,000 lists of one number, the list of these, and the list of this
		`claims.within != claims.within`:   {6002, 6020},
		`claims.nested in claims.within`:   {6002, 6020},
		`claims.objects == claims.objects`: {1002, 1020},
		`claims.text == claims.nested`:     {1, 320},
		`claims.nested == claims.text`:     {1, 320},
		`claims.text in claims.within`:     {1, 20},
		`"y" in claims.list`:               {2501, 2520},
		`claims.event_name == "push"`:      {1, 20},
	} {
		v := fullToken()
		_, details, err := compile(t, text).program.Eval(activation{&v})
		if got := costOf(details); got < want.least || got > want.most {
			t.Errorf("%s: %d units, %v; want %d to %d", text, got, err, want.least, want.most)
		}
	}
}

// An untracked cost counts as the maximum.
func TestCostOfNothing(t *testing.T) {
	t.Parallel()
	if got := costOf(nil); got != maxCost {
		t.Errorf("%d units", got)
	}
}

// Usual conditions on lists stay within the bound for a full token.
func TestUsualConditionsAreNotTooDear(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`!("y" in claims.list)`, `!claims.groups.exists(x, x == "y")`, `claims.groups.all(x, x.startsWith("x"))`, `claims.nested == claims.nested`,
		`claims.text.startsWith("aaa") && size(claims.text) == 12000`, `claims.object == claims.object`,
	} {
		if holds, err := unhurried(compile(t, text), fullToken()); !holds || err != nil {
			t.Errorf("%s: %v, %v", text, holds, err)
		}
	}
}

// The second line: a loop over a list checks the time.
func TestConditionsAreInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	c, v := compile(t, `claims.list.all(x, x == "x")`), fullToken()
	if holds, err := c.holdsWithin(ctx, &v, new(uint64)); holds || err == nil || err.Error() != "it was not known within 2s" {
		t.Errorf("%v, %v", holds, err)
	}
	for text, mayLoop := range map[string]bool{
		`claims.a == "x"`: false, `has(claims.a)`: false, `claims.a == "x" || !claims.b.exists_one(x, x)`: true, `claims.b.filter(x, x) == []`: true,
	} {
		if compile(t, text).mayLoop != mayLoop {
			t.Errorf("%s: not %v", text, mayLoop)
		}
	}
}

// The names of an object have no fixed order, but a condition has the same result each time.
func TestSameEachTime(t *testing.T) {
	t.Parallel()
	for _, text := range append([]string{`claims.object.exists(x, x == "7")`, `claims.objects.all(o, o == claims.object)`}, hostile["equal objects"]) {
		c, v := compile(t, text), fullToken()
		first, firstErr := unhurried(c, v)
		for range 20 {
			if holds, err := unhurried(c, v); holds != first || fmt.Sprint(err) != fmt.Sprint(firstErr) {
				t.Errorf("%s: %v, %v, and %v, %v", text, first, firstErr, holds, err)
			}
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	c, v := compile(t, `claims.groups.exists(g, g == kubernetes.namespace) && kubernetes.labels.team == "a"`), someone()
	for range 8 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			for range 100 {
				if holds, err := c.Holds(v, new(uint64)); !holds || err != nil {
					t.Errorf("%v, %v", holds, err)
				}
			}
		})
	}
}

const typical = `claims.event_name == "push" && claims.ref.startsWith("refs/tags/")`

// Nothing is built for claims that a condition does not use. The race detector adds
// some allocations.
func TestAllocations(t *testing.T) {
	c, v := compile(t, typical), fullToken()
	v.Claims["event_name"], v.Claims["ref"] = "push", "refs/tags/v1"
	if got := testing.AllocsPerRun(100, func() { _, _ = c.Holds(v, new(uint64)) }); got > 20 {
		t.Errorf("%v allocations", got)
	}
}
