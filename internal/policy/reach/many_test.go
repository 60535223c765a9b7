package reach

import (
	"fmt"
	"testing"
	"time"
)

// As many rules as there can be are compared with each other while somebody waits.
func TestManyRulesAreComparedInTime(t *testing.T) {
	t.Parallel()
	rules := make([]any, 5000)
	for i := range rules {
		rules[i] = map[string]any{
			"name": fmt.Sprintf("r%d", i), "subjects": []any{map[string]any{"namespaces": []string{"*"}, "serviceAccounts": []string{fmt.Sprintf("*a%d", i%100)}}},
			"allow": []any{map[string]any{"repositories": []string{fmt.Sprintf("{namespace}/**/x%d", i), "shared/**"}, "actions": []string{"pull"}}},
		}
	}
	p := parse(t, map[string]any{"apiVersion": "pullpass.dev/v1alpha1", "kind": "AccessPolicy", "rules": rules})
	begin := time.Now()
	if found := Shadowed(p); found != nil {
		t.Errorf("%q", found)
	}
	if took := time.Since(begin); took > 2*time.Minute {
		t.Errorf("it took %v", took)
	} else {
		t.Log(took)
	}
}
