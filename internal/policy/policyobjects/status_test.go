package policyobjects

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func aStatus() *RepositoryAccessStatus {
	return &RepositoryAccessStatus{
		ObservedGeneration: 2,
		Conditions:         []Condition{{Type: Accepted, Status: "True", Reason: "Valid"}, {Type: Granted, Status: "False", Reason: "NotGranted", Message: "m"}},
		Repositories:       []RepositoryStatus{{Repository: "a", Granted: All, Rules: []string{"r"}, LastUsed: "2026-03-04"}, {Repository: "b", Granted: None, Reason: "x"}},
	}
}

// asJSON returns a value in the form that an API server returns.
func asJSON(t *testing.T, value any) any {
	t.Helper()
	text := testkit.Value(json.Marshal(value))(t)
	var back any
	testkit.Must(t, json.Unmarshal(text, &back))
	return back
}

// An unchanged status is not written again, and every change is written.
func TestSeenStatus(t *testing.T) {
	t.Parallel()
	first, later := time.Unix(1000, 0), time.Unix(5000, 0)
	written := aStatus()
	var none Seen
	if _, differs := none.Complete(written, first); !differs || written.Conditions[0].LastTransitionTime != "1970-01-01T00:16:40Z" {
		t.Fatalf("%+v", written)
	}
	seen := see(asJSON(t, written))
	if seen.LastUsed("a") != "2026-03-04" || seen.LastUsed("b") != "" || len(seen.lastUsed) != 1 {
		t.Errorf("%+v", seen)
	}
	next := aStatus()
	if _, differs := seen.Complete(next, later); differs || next.Conditions[1].LastTransitionTime != "1970-01-01T00:16:40Z" {
		t.Errorf("the same differs: %+v", next)
	}
	for what, change := range map[string]func(*RepositoryAccessStatus){
		"generation": func(s *RepositoryAccessStatus) { s.ObservedGeneration++ },
		"reason":     func(s *RepositoryAccessStatus) { s.Repositories[1].Reason = "y" },
		"last use":   func(s *RepositoryAccessStatus) { s.Repositories[1].LastUsed = "2026-03-04" },
		"message":    func(s *RepositoryAccessStatus) { s.Conditions[1].Message = "n" },
		"one less":   func(s *RepositoryAccessStatus) { s.Repositories = s.Repositories[:1] },
	} {
		next := aStatus()
		change(next)
		if _, differs := seen.Complete(next, later); !differs || next.Conditions[1].LastTransitionTime != "1970-01-01T00:16:40Z" {
			t.Errorf("%s: %+v", what, next)
		}
	}
	next = aStatus()
	next.Conditions[1].Status = "True"
	if _, differs := seen.Complete(next, later); !differs || next.Conditions[1].LastTransitionTime != "1970-01-01T01:23:20Z" || next.Conditions[0].LastTransitionTime == next.Conditions[1].LastTransitionTime {
		t.Errorf("a transition: %+v", next)
	}
	for _, no := range []any{nil, "x", map[string]any{"conditions": "x"}, map[string]any{}} {
		seen := see(no)
		if _, differs := seen.Complete(aStatus(), later); !differs {
			t.Errorf("%v is as good", no)
		}
	}
	for _, no := range []any{nil, "x", map[string]any{"observedGeneration": 2, "conditions": "x"}} {
		if seen := see(no); !reflect.DeepEqual(seen, Seen{}) {
			t.Errorf("of %v, %+v is remembered", no, seen)
		}
	}
	odd := aStatus()
	odd.Repositories[1].LastUsed = "2026-03-05"
	seen = see(asJSON(t, odd)) // its conditions have no times
	if seen.LastUsed("a") != "2026-03-04" || seen.LastUsed("b") != "2026-03-05" {
		t.Errorf("%+v", seen)
	}
	next = aStatus()
	if seen.Complete(next, later); next.Conditions[0].LastTransitionTime != "1970-01-01T01:23:20Z" {
		t.Errorf("a condition without a time: %+v", next)
	}
}

func TestRemember(t *testing.T) {
	t.Parallel()
	r := Remember(policy.KindRequest, "web", asJSON(t, map[string]any{"serviceAccounts": []any{"web", 3}, "repositories": []string{"a"}, "actions": []string{"pull"}}), nil)
	if want := (policy.RequestSpec{ServiceAccounts: []string{"web"}, Repositories: []string{"a"}, Actions: []policy.ActionName{"pull"}}); !reflect.DeepEqual(r.Asks, want) {
		t.Errorf("%+v", r.Asks)
	}
	r = Remember(policy.Kind, "p", asJSON(t, map[string]any{"rules": []any{
		map[string]any{"name": "r", "allow": []any{map[string]any{"repositories": []string{"a", "b"}}, map[string]any{"repositories": []string{"c"}}}}, "x",
	}}), nil)
	if want := map[string][]string{"p/r": {"a", "b", "c"}}; !reflect.DeepEqual(r.Allows, want) {
		t.Errorf("%+v", r.Allows)
	}
	for _, odd := range []any{nil, 1, []any{}, map[string]any{"rules": 1, "repositories": map[string]any{}}} {
		Remember(policy.Kind, "p", odd, odd)
		Remember(policy.KindRequest, "p", odd, odd)
	}
}
