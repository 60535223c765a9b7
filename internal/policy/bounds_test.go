package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/registryauth"
)

// worstScopes returns the maximum number of scopes, with long and different names.
func worstScopes(prefix string) []registryauth.Scope {
	scopes := make([]registryauth.Scope, registryauth.MaxScopes)
	for i := range scopes {
		scopes[i] = registryauth.Scope{Type: "repository", Name: fmt.Sprintf("%s%d", prefix, i), Actions: []string{"push"}}
	}
	return scopes
}

// annotationOf returns an annotation filled with one item.
func annotationOf(item string) string {
	return strings.Repeat(item+" ", min(maxAnnotationItems, MaxAnnotationBytes/(len(item)+1)))
}

// rulesWithAnnotation returns a policy of different rules that apply to someone and read the
// annotation k.
func rulesWithAnnotation(t *testing.T, n int, patterns string) *Policy {
	t.Helper()
	rules := make([]string, n)
	for i := range rules {
		rules[i] = fmt.Sprintf("- {name: r%d, subjects: [{namespaces: ['*']}], annotation: k, allow: [{repositories: [%s], actions: [push]}]}\n", i, fmt.Sprintf(patterns, i))
	}
	return parseRules(t, rules)
}

// parseRules makes a policy of more rules than fit in one file.
func parseRules(t testing.TB, rules []string) *Policy {
	t.Helper()
	return mustParse(t, filesOf("rules", rules)...)
}

// filesOf returns files for the rules, or the denials.
func filesOf(list string, entries []string) (files []File) {
	for some := range slices.Chunk(entries, 2000) {
		files = append(files, File{Name: fmt.Sprintf("%s-%d.yaml", list, len(files)), Data: []byte("apiVersion: " + APIVersion + "\nkind: " + Kind + "\n" + list + ":\n" + strings.Join(some, ""))})
	}
	return files
}

// Anyone who may edit a ServiceAccount writes its annotation and chooses the request. One such
// request took 33 ms, and 2.5 s with 300 rules.
func TestWorstRequestIsBounded(t *testing.T) {
	t.Parallel()
	hostile := map[string]struct{ item, scope string }{
		"components": {strings.Repeat("*/", 15) + "*b*", "team-a/" + strings.Repeat("a/", 14) + strings.Repeat("a", 120)},
		"wildcards":  {strings.Repeat("*a", 100) + "*b*", strings.Repeat("a", 200)},
		"deep":       {strings.Repeat("a*/", 120) + "*b*", strings.Repeat("a/", 120) + "a"},
		"any depth":  {"**/" + strings.Repeat("a/", 60) + "*b*", strings.Repeat("a/", 120) + "a"},
		"items":      {"*", strings.Repeat("a", 200)},
	}
	for _, rules := range []int{10, 300, maxRules} {
		policy := rulesWithAnnotation(t, rules, "'**/x%d', '{namespace}/x/**', '**/*/a*/**/*x*'")
		for what, h := range hostile {
			subject := Subject{Identity: someone(), Annotations: map[string]string{"k": annotationOf(h.item)}}
			scopes := worstScopes(h.scope)
			alone := policy.Decide(subject, "", scopes[:1]).steps
			worst := policy.Decide(subject, "", scopes).steps
			// Deciding and explaining, each with one scope beyond the bound.
			if most := max(maxSteps, 4*alone) + 2*alone; worst > most {
				t.Errorf("%d rules, %s: %d steps, and %d for one scope: at most %d are allowed", rules, what, worst, alone, most)
			}
		}
	}
}

// One annotation is matched once for a scope, regardless of the number of rules that read it.
func TestAnnotationIsMatchedOnce(t *testing.T) {
	t.Parallel()
	const rules = 300
	subject := Subject{Identity: someone(), Annotations: map[string]string{"k": annotationOf(strings.Repeat("*/", 15) + "*b*")}}
	scope := worstScopes(strings.Repeat("a/", 15))[:1]
	one := rulesWithAnnotation(t, 1, "'**/*%d*', '**'").Decide(subject, "", scope).steps
	many := rulesWithAnnotation(t, rules, "'**/*%d*', '**'").Decide(subject, "", scope).steps
	if most := one + rules*100; many > most {
		t.Errorf("%d steps with %d rules, and %d with one: at most %d are allowed", many, rules, one, most)
	}
}

// Scopes beyond the bound on comparisons are not granted, and the last scope is judged first.
func TestTooMuchToCompare(t *testing.T) {
	t.Parallel()
	policy := rulesWithAnnotation(t, 300, "'**/*%d*', '**'")
	subject := Subject{Identity: someone(), Annotations: map[string]string{"k": annotationOf(strings.Repeat("*/", 15)+"*b*") + " **/63:push **/0:push"}}
	d := policy.Decide(subject, "", worstScopes(strings.Repeat("a/", 15)))
	first, last := d.Scopes[0], d.Scopes[len(d.Scopes)-1]
	if last.Reason != "" || len(last.Granted) != 1 {
		t.Errorf("asked for last: %+v", last)
	}
	if first.Granted != nil || first.Reason != tooMuchReason || first.Remedy != tooMuchRemedy {
		t.Errorf("asked for first: %+v", first)
	}
	for _, s := range d.Scopes {
		if s.Reason != "" && s.Reason != tooMuchReason {
			if s.Reason == untoldReason {
				t.Errorf("the first one that was judged is not explained: %+v", s)
			}
			break
		}
	}
	if alone := policy.Decide(subject, "", worstScopes(strings.Repeat("a/", 15))[:1]); len(alone.Granted()) != 1 {
		t.Errorf("alone: %+v", alone)
	}
}

// The maximum number of scopes, and the rules of a large installation.
func TestUsualRequestsAreNotTooMuch(t *testing.T) {
	t.Parallel()
	var items []string
	for i := range 200 {
		items = append(items, fmt.Sprintf("mirror/library/image-%d:push", i))
	}
	for _, patterns := range []string{"'team-%d/**', 'mirror/**'", "'mirror/library/image-%d', '**'"} {
		policy := rulesWithAnnotation(t, 20, patterns)
		subject := Subject{Identity: someone(), Annotations: map[string]string{"k": strings.Join(items, " ")}}
		if d := policy.Decide(subject, "", worstScopes("mirror/library/image-")); len(d.Granted()) != registryauth.MaxScopes {
			t.Errorf("%s: %d granted after %d steps", patterns, len(d.Granted()), d.steps)
		}
	}
}

// An explanation is derived only for scopes that are explained. The annotation is parsed once,
// because its items cause most of the allocations.
func TestToldScopesAreBounded(t *testing.T) {
	policy := rulesWithAnnotation(t, 10, "'**/x%d'")
	scopes := worstScopes("team-a/web")
	d := policy.Decide(Subject{Identity: someone()}, "", scopes)
	for i, s := range d.Scopes {
		if told := s.Reason != untoldReason; told != (i < MaxScopesTold) || s.Reason == "" || s.Remedy == "" {
			t.Errorf("scope %d: %+v", i, s)
		}
	}
	explained, _ := policy.Explain(Subject{Identity: someone()}, "", scopes)
	if i := slices.IndexFunc(explained.Scopes, func(s ScopeDecision) bool { return s.Reason == untoldReason }); i >= 0 {
		t.Errorf("Explain does not explain scope %d", i)
	}
	const noise = 24 // the race detector has sync.Pool forget some buffers; one for each scope would be more
	few := Subject{Identity: someone(), Annotations: map[string]string{"k": "a"}}
	many := Subject{Identity: someone(), Annotations: map[string]string{"k": annotationOf("a/*/web-*")}}
	parsed := testing.AllocsPerRun(20, func() { _, _ = parseAnnotation(many.Annotations["k"]) })
	base := testing.AllocsPerRun(20, func() { policy.Decide(few, "", scopes) })
	if got := testing.AllocsPerRun(20, func() { policy.Decide(many, "", scopes) }); got > base+parsed+noise {
		t.Errorf("%v allocations; %v with one item, and %v to parse the annotation once", got, base, parsed)
	}
	of8 := testing.AllocsPerRun(20, func() { policy.Decide(few, "", scopes[:MaxScopesTold]) })
	if base > of8+noise {
		t.Errorf("%v allocations for %d scopes, %v for %d", base, len(scopes), of8, MaxScopesTold)
	}
}
