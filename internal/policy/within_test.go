package policy

import (
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/registryauth"
)

func TestWithin(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ granted, within, want string }{
		{"repository:x:pull,push", "repository:x:pull,push", "pull push"},
		{"repository:x:pull,push", "repository:x:pull", "pull"},
		{"repository:x:pull,push", "repository:x:pull repository:x:push", "pull push"},
		{"repository:x:pull", "repository:y:pull", ""},
		{"repository:x:pull", "repository(plugin):x:pull", ""},
		{"repository(plugin):x:pull", "repository:x:pull", ""},
		{"registry:catalog:*", "repository:catalog:*", ""},
		{"repository:x:*", "repository:x:*", "*"},
		{"repository:x:metadata", "repository:x:metadata", "metadata"},
		{"repository:x:anything", "repository:x:metadata", ""},
		{"repository:x:anything,metadata", "repository:x:metadata", "metadata"},
		{"repository:x:anything,pull", "repository:x:metadata,pull", "pull"},
		{"repository:x:anything", "repository:x:*", "anything"},
		{"repository:x:anything", "repository:x:pull", ""},
	} {
		scope := scopesOf(t, test.granted)[0]
		s := ScopeDecision{Requested: scope, Granted: slices.Clone(scope.Actions), Rules: []string{"r"}}
		d := Decision{Scopes: []ScopeDecision{s}}
		got := d.Within(strings.Fields(test.within), "why", "how").Scopes[0]
		isWhole := len(got.Granted) == len(scope.Actions)
		if strings.Join(got.Granted, " ") != test.want || (got.Reason == "") != isWhole || (got.Granted == nil) != (got.Rules == nil) || (got.Granted == nil) != (test.want == "") {
			t.Errorf("%s within %s: %+v", test.granted, test.within, got)
		}
		if !slices.Equal(d.Scopes[0].Granted, scope.Actions) {
			t.Errorf("%s within %s changes what it was made of", test.granted, test.within)
		}
	}
	if d := (Decision{Scopes: []ScopeDecision{{Requested: registryauth.Scope{Type: "repository", Name: "x"}, Granted: []string{"pull"}}}}).Within([]string{"nonsense"}, "", ""); d.Scopes[0].Granted != nil {
		t.Errorf("%+v", d)
	}
}
