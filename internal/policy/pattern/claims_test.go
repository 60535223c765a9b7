package pattern

import (
	"testing"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/oidc/identity"
)

// The name of a group is never a host, a pattern, or the path of a different owner.
func TestValuesOfClaims(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pattern, value, name string
		matches              bool
	}{
		{"{claims.namespace_path}/**", "acme/web", "acme/web/x", true},
		{"{claims.namespace_path}/**", "Acme", "acme/x", true},
		{"{claims.namespace_path}/**", "ghcr.io", "ghcr.io/acme/x", false},
		{"{claims.namespace_path}/**", "ghcr.io/acme", "ghcr.io/acme/x", false},
		{"**/{claims.namespace_path}/x", "ghcr.io/acme", "ghcr.io/acme/x", false},
		{"**/**/{claims.namespace_path}", "ghcr.io", "ghcr.io", false},
		{"**/{claims.namespace_path}", "acme.io", "ci/acme.io", false},
		{"{claims.namespace_path}/**", "acme/v1.2", "acme/v1.2/x", true},
		{"ci/{claims.namespace_path}/**", "acme.io", "ci/acme.io/x", true},
		{"*/{claims.namespace_path}/**", "acme.io", "ci/acme.io/x", true},
		{"ci/**/{claims.namespace_path}", "acme.io", "ci/acme.io", true},
		{"{claims.namespace_path}/{claims.namespace_path}", "a.b", "a.b/a.b", false},
		{"{claims.project_id}/{claims.namespace_path}", "a.b", "42/a.b", true},
		{"a/{claims.namespace_path}", "localhost:5000/b", "a/localhost:5000/b", false},
		{"{claims.namespace_path}/x", "localhost:5000/b", "localhost:5000/b/x", false},
		{"{claims.namespace_path}/x", "acme/\u212aube", "acme/kube/x", false}, // the Kelvin sign
		{"{claims.namespace_path}/x", "acme/\u00e4", "acme/\u00e4/x", false},
		{"{claims.namespace_path}/x", "a/**", "a/b/x", false},
		{"{claims.namespace_path}/x", "a/../b", "b/x", false},
		{"{claims.namespace_path}/x", "{namespace}", "a/x", false},
		{"{claims.namespace_path}/x", "", "x", false},
		{"{claims.sub}/x", "acme", "acme/x", false},
	} {
		id := &oidc.Identity{External: &identity.External{Profile: identity.GitLab, Claims: identity.Claims{"project_id": "42", "namespace_path": test.value, "sub": test.value}}}
		if got := mustPattern(t, test.pattern).Match(test.name, id, new(int)); got != test.matches {
			t.Errorf("%s of %q matches %s: %t", test.pattern, test.value, test.name, got)
		}
	}
}

// Other callers have no claims, whatever their names are.
func TestClaimsOfOthers(t *testing.T) {
	t.Parallel()
	p := mustPattern(t, "**/{claims.namespace_path}/x")
	for _, id := range []*oidc.Identity{nil, {}, {Kubernetes: oidc.KubernetesIdentity{Namespace: "acme"}}} {
		for _, name := range []string{"acme/x", "{claims.namespace_path}/x", "x"} {
			if p.Match(name, id, new(int)) {
				t.Errorf("%s matches %+v", name, id)
			}
		}
	}
}

func TestMatchText(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		glob, value string
		matches     bool
	}{
		{"refs/heads/*", "refs/heads/a/b", true}, {"*{x}", "a{x}", true}, {"a*b*c", "abxbc", true}, {"a*b*c", "abxb", false}, {"a*b*c", "axc", false}, {"a*b*", "a", false}, {"a", "a", true}, {"a", "ab", false}, {"a*", "ba", false}, {"*", "", true},
	} {
		if got := MatchText(test.glob, test.value); got != test.matches {
			t.Errorf("%s matches %q: %t", test.glob, test.value, got)
		}
	}
}
