package exchange_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// zot requests repository::pull. A malformed scope is not granted, and the others are judged.
func TestMalformedScopes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		scopes, granted, requested []string
		result                     exchange.Result
		reason                     string
		told                       []exchange.ScopeEvent
	}{
		"beside a good one": {
			scopes: []string{"repository::pull", "repository:team-a/web:pull"}, granted: []string{"repository:team-a/web:pull"},
			requested: []string{"repository:team-a/web:pull", "repository::pull"},
			result:    exchange.ResultPartial, reason: "scope_malformed",
			told: []exchange.ScopeEvent{{Scope: "repository::pull", Reason: `it is not a scope: "repository::pull": the name is empty or has a leading, trailing or double slash`}},
		},
		"alone": {
			scopes: []string{"nonsense"}, requested: []string{"nonsense"},
			result: exchange.ResultNone, reason: "scope_malformed",
			told: []exchange.ScopeEvent{{Scope: "nonsense", Reason: `it is not a scope: "nonsense": want type:name:action,action`}},
		},
		"beside one that is not granted": {
			scopes: []string{"a", "registry:catalog:*"}, requested: []string{"registry:catalog:*", "a"},
			result: exchange.ResultNone, reason: "scope_not_granted",
			told: []exchange.ScopeEvent{
				{
					Scope:  "registry:catalog:*",
					Reason: "no rule for prod/team-a/web allows registry:catalog:*; rule own-namespace allows pull on team-a/**; rule asked-for lets the annotation pullpass.dev/repositories ask for pull, push on team-a/**; rule public allows pull on public/**",
					Remedy: "an administrator of Pullpass has to allow registry:catalog:* to prod/team-a/web; no rule does",
				},
				{Scope: "a", Reason: `it is not a scope: "a": want type:name:action,action`},
			},
		},
	} {
		r := newRig(t, nil)
		for i, request := range []answer{r.do(t, get(r.token(t, nil), test.scopes...)), r.do(t, post(r.token(t, nil), test.scopes...))} {
			e := r.lastEvent(t, 2)
			if granted := textsOf(request.access); request.status != 200 || !slices.Equal(granted, test.granted) {
				t.Errorf("%s, %d: status %d, granted %q", name, i, request.status, granted)
			}
			if e.Result != test.result || e.Reason != test.reason || e.ServiceAccount.Name != "web" || !slices.Equal(e.Requested, test.requested) || !reflect.DeepEqual(e.Scopes, test.told) {
				t.Errorf("%s: event %+v", name, e)
			}
		}
	}
}

// regclient requests all scopes that it ever requested, the newest last.
func TestMoreScopesThanAreJudged(t *testing.T) {
	t.Parallel()
	scopes := make([]string, 500)
	for i := range scopes {
		scopes[i] = fmt.Sprintf("repository:team-a/mirror-%d:pull", i)
	}
	latest := scopes[len(scopes)-registryauth.MaxScopes:]
	r := newRig(t, nil)
	for i, a := range []answer{r.do(t, get(r.token(t, nil), scopes...)), r.do(t, post(r.token(t, nil), scopes...))} {
		e := r.lastEvent(t, 2)
		if granted := textsOf(a.access); a.status != 200 || !slices.Equal(granted, slices.Sorted(slices.Values(latest))) {
			t.Errorf("%d: status %d, granted %q", i, a.status, granted)
		}
		if e.Result != exchange.ResultPartial || e.Reason != "scopes_omitted" || e.Omitted != 436 || !slices.Equal(e.Requested, latest) || e.Scopes != nil || e.ServiceAccount.Name != "web" {
			t.Errorf("event %+v", e)
		}
	}
	// An event has few scopes, however many were sent.
	r = newRig(t, nil)
	r.do(t, post(r.token(t, nil), strings.Repeat("x ", 20_000)))
	if e := r.lastEvent(t, 1); len(e.Scopes) != 8 || len(e.Requested) != 8 || e.Omitted != 20_000-2*registryauth.MaxScopes || e.Reason != "scope_malformed" {
		t.Errorf("%d told, %d requested, %d omitted", len(e.Scopes), len(e.Requested), e.Omitted)
	}
}

func textsOf(scopes []registryauth.Scope) []string {
	var list []string
	for _, s := range scopes {
		list = append(list, s.String())
	}
	return list
}
