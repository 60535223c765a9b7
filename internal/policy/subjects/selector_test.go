package subjects

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// labelsOf reads KEY=VALUE, separated by commas.
func labelsOf(t *testing.T, text string) labels.Set {
	t.Helper()
	set := testkit.Value(labels.ConvertSelectorToLabelsMap(text))(t)
	return set
}

func parseSelected(selector string) ([]Match, error) {
	return parseList("[{namespaceSelector: " + selector + "}]")
}

// selects reports whether a ServiceAccount of a namespace with the labels is one of the subjects.
func selects(list []Match, set labels.Set) bool {
	a := Asker{Identity: &oidc.Identity{}, NamespaceLabels: set}
	return a.MatchAny(list, nil)
}

// The limits hold for both forms. At the limit a selector still matches.
func TestSelectorLimits(t *testing.T) {
	t.Parallel()
	repeat := func(n int, format, separator string) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf(format, i))
		}
		return strings.Join(list, separator)
	}
	long := func(n int) string { return "k0=" + strings.Repeat(" ", n-len("k0=v0")) + "v0" }
	matching := labelsOf(t, repeat(40, "k%d=v0", ","))
	for _, test := range []struct{ name, selector, fault string }{
		{"bytes", long(4096), ""},
		{"bytes", long(4097), "has 4097 bytes; at most 4096 are read: write several subjects"},
		{"requirements as text", `"` + repeat(32, "k%d", ",") + `"`, ""},
		{"requirements as text", `"` + repeat(33, "k%d", ",") + `"`, "has 33 requirements; at most 32 are read: write several subjects"},
		{"requirements", "{matchLabels: {k39: v0}, matchExpressions: [" + repeat(31, "{key: k%d, operator: Exists}", ", ") + "]}", ""},
		{"requirements", "{matchLabels: {k39: v0}, matchExpressions: [" + repeat(32, "{key: k%d, operator: Exists}", ", ") + "]}", "has 33 requirements; at most 32 are read: write several subjects"},
		{"values as text", `"k0 in (` + repeat(255, "v%d", ",") + `),k1=v0"`, ""},
		{"values as text", `"k0 in (` + repeat(256, "v%d", ",") + `),k1=v0"`, "has 257 values; at most 256 are read: write several subjects"},
		{"values", "{matchExpressions: [{key: k0, operator: In, values: [" + repeat(256, "v%d", ", ") + "]}]}", ""},
		{"values", "{matchExpressions: [{key: k0, operator: In, values: [" + repeat(257, "v%d", ", ") + "]}]}", "has 257 values; at most 256 are read: write several subjects"},
	} {
		list, err := parseSelected(test.selector)
		switch {
		case test.fault == "" && err != nil:
			t.Errorf("%s, at the limit: %v", test.name, err)
		case test.fault == "":
			if !selects(list, matching) {
				t.Errorf("%s, at the limit, does not match", test.name)
			}
		case err == nil || err.Error() != "p: subjects[0].namespaceSelector: "+test.fault:
			t.Errorf("%s: error %v", test.name, err)
		}
	}
}

// Requirements that look alike and can be met. None is a contradiction.
func TestSelectorsThatCanMatch(t *testing.T) {
	t.Parallel()
	for selector, match := range map[string]string{
		"team in (a,b),team in (b,c)":             "team=b",
		"team in (a,b),team!=a":                   "team=b",
		"team,team!=a,team notin (b)":             "team=c",
		"team!=a,team!=b":                         "",
		"!team,team!=a":                           "",
		"team=,team!=a,team":                      "team=",
		"team==":                                  "team=",
		"team==a,team=a":                          "team=a",
		"team=a,env=b":                            "team=a,env=b",
		"in in (in,notin),notin notin (in),!team": "in=notin",
	} {
		list := testkit.Value(parseSelected(`"` + selector + `"`))(t)
		if !selects(list, labelsOf(t, match)) {
			t.Errorf("%q does not match %q", selector, match)
		}
	}
}

// requirement is written for the test and evaluated by the definition in
// https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/
type requirement struct {
	key, operator string
	values        []string
}

func (r requirement) matches(set map[string]string) bool {
	value, ok := set[r.key]
	switch r.operator {
	case "In":
		return ok && slices.Contains(r.values, value)
	case "NotIn":
		return !ok || !slices.Contains(r.values, value)
	case "Exists":
		return ok
	}
	return !ok
}

// Both forms of one selector match the same namespaces, and the right ones.
func TestSelectorForms(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	matched, refused := 0, 0
	for range 200 {
		var requirements []requirement
		var expressions, text []string
		for range 1 + random.IntN(3) {
			r := requirement{key: pick("team", "example.com/env", "x"), operator: pick("In", "NotIn", "Exists", "DoesNotExist")}
			written := "{key: " + r.key + ", operator: " + r.operator + "}"
			switch r.operator {
			case "In", "NotIn":
				for range 1 + random.IntN(2) {
					r.values = append(r.values, pick("a", "b", "C.1"))
				}
				list := strings.Join(r.values, ",")
				written = strings.TrimSuffix(written, "}") + ", values: [" + list + "]}"
				text = append(text, r.key+" "+strings.ToLower(r.operator)+" ("+list+")")
			case "Exists":
				text = append(text, r.key)
			case "DoesNotExist":
				text = append(text, "!"+r.key)
			}
			requirements, expressions = append(requirements, r), append(expressions, written)
		}
		object, objectErr := parseSelected("{matchExpressions: [" + strings.Join(expressions, ", ") + "]}")
		line, lineErr := parseSelected(`"` + strings.Join(text, ",") + `"`)
		// All labels that a selector of these keys and values can distinguish.
		var possible []map[string]string
		values := []string{"-", "", "a", "b", "C.1", "d"}
		for _, team := range values {
			for _, env := range values {
				for _, x := range values {
					set := map[string]string{"team": team, "example.com/env": env, "x": x}
					for key, value := range set {
						if value == "-" {
							delete(set, key)
						}
					}
					possible = append(possible, set)
				}
			}
		}
		if objectErr != nil || lineErr != nil {
			refused++
			for _, set := range possible {
				if !slices.ContainsFunc(requirements, func(r requirement) bool { return !r.matches(set) }) {
					t.Errorf("%q matches %v, yet is refused: %v, %v", text, set, objectErr, lineErr)
				}
			}
			continue
		}
		matches := false
		for _, set := range possible {
			want := !slices.ContainsFunc(requirements, func(r requirement) bool { return !r.matches(set) })
			for _, list := range [][]Match{object, line} {
				if got := selects(list, set); got != want {
					t.Errorf("%q matches %v: %t", text, set, got)
				}
			}
			matches = matches || want
		}
		if !matches {
			t.Errorf("%q matches nothing, and is not refused", text)
		}
		matched++
	}
	if matched < 50 || refused < 10 {
		t.Errorf("%d selectors can match and %d cannot: hardly tested", matched, refused)
	}
}
