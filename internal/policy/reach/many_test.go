package reach

import (
	"fmt"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/policy"
)

// manyRules returns a policy of rules that each have to be compared with every other.
func manyRules(t testing.TB, n int) *policy.Policy {
	rules := make([]any, n)
	for i := range rules {
		rules[i] = map[string]any{
			"name": fmt.Sprintf("r%d", i), "subjects": []any{map[string]any{"namespaces": []string{"*"}, "serviceAccounts": []string{fmt.Sprintf("*a%d", i%100)}}},
			"allow": []any{map[string]any{"repositories": []string{fmt.Sprintf("{namespace}/**/x%d", i), "shared/**"}, "actions": []string{"pull"}}},
		}
	}
	return parse(t, map[string]any{"apiVersion": "pullpass.dev/v1beta1", "kind": "AccessPolicy", "rules": rules})
}

// A user waits for the comparison of all rules with each other.
func TestManyRulesAreComparedInTime(t *testing.T) {
	t.Parallel()
	p := manyRules(t, 1000)
	begin := time.Now()
	if found := Shadowed(p); found != nil {
		t.Errorf("%q", found)
	}
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("it took %v", took)
	} else {
		t.Log(took)
	}
}

// The maximum number of rules.
func BenchmarkShadowed(b *testing.B) {
	p := manyRules(b, 5000)
	for b.Loop() {
		Shadowed(p)
	}
}
