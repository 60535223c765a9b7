package exchange_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// trialPolicy differs from testPolicy: no annotation counts, team-b gets shared/base, another namespace is denied.
const trialPolicy = `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: own-namespace
  subjects: [{namespaces: ["team-*"]}]
  allow: [{repositories: ["{namespace}/**"], actions: [pull]}]
- name: shared
  subjects: [{namespaces: ["team-b"]}]
  allow: [{repositories: ["shared/base"], actions: [pull]}]
deny:
- name: closed
  subjects: [{namespaces: ["team-c"]}]
`

// A trial never changes a response. Its event says what would have been different.
func TestTrial(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		namespace string // empty: anonymous
		scopes    []string
		want      string
	}{
		"the same":              {"team-a", []string{"repository:team-a/web:pull"}, "no difference"},
		"the same refusal":      {"team-a", []string{"repository:team-b/web:pull"}, "no difference"},
		"a login":               {"team-a", nil, "no difference"},
		"less":                  {"team-a", []string{"repository:team-a/web:pull,push"}, "partial [repository:team-a/web:pull] own-namespace scope_not_granted, gained false, lost true"},
		"nothing":               {"team-a", []string{"repository:team-a/web:push"}, "none []  scope_not_granted, gained false, lost true"},
		"more":                  {"team-b", []string{"repository:shared/base:pull"}, "granted [repository:shared/base:pull] shared , gained true, lost false"},
		"one more, another not": {"team-b", []string{"repository:shared/base:pull", "repository:team-b/web:push"}, "partial [repository:shared/base:pull] shared scope_not_granted, gained true, lost true"},
		"denied":                {"team-c", []string{"repository:team-c/web:pull"}, "refused [] closed subject_denied, gained false, lost true"},
		"a denied login":        {"team-c", nil, "refused [] closed subject_denied, gained false, lost true"},
		"not denied any more":   {"team-bad", []string{"repository:x:pull"}, "none []  scope_not_granted, gained true, lost false"},
		"nobody":                {"", []string{"repository:public/x:pull"}, "refused []  anonymous, gained false, lost true"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(c *rigConfig) { c.objects = annotated("team-a/web:push team-b/web:push") })
			credential := ""
			if test.namespace != "" {
				credential = r.token(t, inNamespace(test.namespace))
			}
			before := r.do(t, get(credential, test.scopes...))
			r.follow(t, func(c *exchange.Config) { c.Trial = parsePolicy(t, trialPolicy) })
			after := r.do(t, get(credential, test.scopes...))
			if before.status != after.status || fmt.Sprint(before.access, before.body.Errors) != fmt.Sprint(after.access, after.body.Errors) {
				t.Errorf("with the trial: %+v, before %+v", after, before)
			}
			if e := r.recorded()[0]; e.Trial != nil {
				t.Errorf("without a trial: %+v", e.Trial)
			}
			if got := trialOf(r.lastEvent(t, 2)); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}

func trialOf(e *exchange.Event) string {
	if e.Trial == nil {
		return "no difference"
	}
	gained, lost := e.TrialChange()
	return fmt.Sprintf("%s %v %s %s, gained %t, lost %t", e.Trial.Result, e.Trial.Granted, e.Trial.Rule, e.Trial.Reason, gained, lost)
}

// Objects that are only tried are judged beside the policy that decides, or beside its trial.
func TestTrialOfObjects(t *testing.T) {
	t.Parallel()
	object := policy.ParseObject("next", map[string]any{
		"trial": true,
		"deny":  []any{map[string]any{"name": "web", "subjects": []any{map[string]any{"serviceAccounts": []any{"web"}}}}},
	})
	testkit.Must(t, object.Err())
	r := newRig(t, func(c *rigConfig) {
		c.objects = objects{byUID: map[string]exchange.Facts{webUID: {Objects: policy.Objects{Policies: policy.NewPolicies(nil, object), Trial: policy.NewTrial(nil, object)}}}}
	})
	const denied = "refused [] next/web subject_denied, gained false, lost true"
	for i, trial := range []*policy.Policy{nil, parsePolicy(t, trialPolicy)} {
		r.follow(t, func(c *exchange.Config) { c.Trial = trial })
		if a := r.do(t, get(r.token(t, nil), "repository:team-a/web:pull")); a.status != http.StatusOK || len(a.access) != 1 {
			t.Errorf("%d, %v", a.status, a.access)
		}
		if got := trialOf(r.lastEvent(t, i+1)); got != denied {
			t.Errorf("%s, want %s", got, denied)
		}
	}
}

// Objects that decide also count where only a file is tried.
func TestTrialBesideObjects(t *testing.T) {
	t.Parallel()
	object := policy.ParseObject("shared", map[string]any{"rules": []any{map[string]any{
		"name": "all", "subjects": []any{map[string]any{"namespaces": []any{"team-a"}}},
		"allow": []any{map[string]any{"repositories": []any{"shared/base"}, "actions": []any{"pull"}}},
	}}})
	testkit.Must(t, object.Err())
	within := testkit.Value(pattern.Parse("shared/**"))(t)
	r := newRig(t, func(c *rigConfig) {
		c.objects = objects{byUID: map[string]exchange.Facts{webUID: {Objects: policy.Objects{Policies: policy.NewPolicies([]pattern.Pattern{within}, object)}}}}
	})
	for i, trial := range []*policy.Policy{nil, parsePolicy(t, testPolicy)} {
		r.follow(t, func(c *exchange.Config) { c.Trial = trial })
		if a := r.do(t, get(r.token(t, nil), "repository:shared/base:pull")); a.status != http.StatusOK || len(a.access) != 1 {
			t.Errorf("%d, %v", a.status, a.access)
		}
		if got := trialOf(r.lastEvent(t, i+1)); got != "no difference" {
			t.Error(got)
		}
	}
}

// A push credential limits the trial, too.
func TestTrialOfAPushCredential(t *testing.T) {
	t.Parallel()
	r := newRig(t, jobs)
	credential := r.pushCredential(t)
	r.follow(t, func(c *exchange.Config) {
		c.Trial = parsePolicy(t, strings.Replace(jobPolicy, `["team-a/web"]`, `["**"]`, 1))
	})
	for scope, want := range map[string]string{pushScope: "no difference", "repository:team-a/other:push": "no difference"} {
		a := r.do(t, get(credential, scope))
		events := r.recorded()
		if got := trialOf(events[len(events)-1]); a.status != http.StatusOK || got != want {
			t.Errorf("%s: %d, %s, want %s", scope, a.status, got, want)
		}
	}
}
