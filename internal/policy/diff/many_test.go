package diff

import (
	"fmt"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/policy"
)

// Policies of 10,000 rules are compared in seconds, whether one rule changes or all do.
func TestManyRules(t *testing.T) {
	t.Parallel()
	const rules = 9999
	of := func(actions string, more ...object) *Side {
		var w written
		for i := range rules {
			name := fmt.Sprintf("team-%d", i)
			w.Rules = append(w.Rules, object{"name": name, "subjects": []object{{"namespaces": []string{name}}}, "allow": []object{{"repositories": []string{name + "/**"}, "actions": []string{actions}}}})
		}
		w.Rules = append(w.Rules, more...)
		return w.sideOfFiles(t)
	}
	before := of("pull")
	all := object{"name": "all", "subjects": []object{{"namespaces": []string{"*"}}}, "allow": []object{{"repositories": []string{"{namespace}/**"}, "actions": []string{"pull"}}}}
	for _, test := range []struct {
		name         string
		after        *Side
		gained, lost int
	}{
		{"one rule", of("pull", all), 2, 0}, // one for each service
		{"all rules", of("push"), 2 * rules, 2 * rules},
	} {
		start := time.Now()
		d, err := Find(t.Context(), before, test.after)
		if err != nil || len(d.Gained) != test.gained || len(d.Lost) != test.lost {
			t.Errorf("%s: %v: %d gained, %d lost", test.name, err, len(d.Gained), len(d.Lost))
		}
		t.Logf("%s of %d: %v", test.name, rules, time.Since(start))
	}
}

// sideOfFiles is side, of files of the greatest size that is read.
func (w written) sideOfFiles(t testing.TB) *Side {
	t.Helper()
	half := len(w.Rules) / 2
	side := written{Rules: w.Rules[:1], Within: []string{"**"}}.side(t)
	p, err := policy.Parse(policyFile(t, w.Rules[:half]), policyFile(t, w.Rules[half:]))
	if err != nil {
		t.Fatal(err)
	}
	side.Policy = p
	return side
}

func policyFile(t testing.TB, rules []object) policy.File {
	t.Helper()
	text := asText(t, object{"apiVersion": policy.APIVersion, "kind": policy.Kind, "rules": rules})
	return policy.File{Name: "policy.yaml", Data: text}
}
