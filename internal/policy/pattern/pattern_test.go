package pattern

import (
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func someone() *oidc.Identity {
	return &oidc.Identity{Cluster: "prod", Kubernetes: oidc.KubernetesIdentity{Namespace: "team-a", ServiceAccount: oidc.ObjectRef{Name: "web.v1"}}}
}

func TestPatternMatch(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pattern string
		match   string // names, separated by blanks
		not     string
	}{
		{"team-a/web", "team-a/web", "team-a/webx xteam-a/web team-a/web/x team-a x/team-a/web team-a/we"},
		{"**", "a a/b a/b/c host:5000/x", ""},
		{"*", "a abc host:5000", "a/b"},
		{"a/*", "a/b a/bcd", "a a/b/c b/a"},
		{"a/**", "a a/b a/b/c", "ab/c b/a"},
		{"**/a", "a b/a c/b/a a/a", "ab b/ab a/b"},
		{"a/**/b", "a/b a/x/b a/x/y/b a/b/b", "a b a/bb a/x/bb xa/b"},
		{"**/a/**", "a b/a a/b b/a/c", "b b/c ab"},
		{"a/**/b/**/c", "a/b/c a/x/b/y/c a/b/b/c/c a/c/b/c", "a/c/b a/b a/b/c/d"},
		{"**/**", "a a/b", ""},
		{"**/x/*", "x/y a/x/y x/x/y", "x a/x x/y/z"},
		{"team-*", "team-a team-abc", "team team-a/b ateam-a"},
		{"*-x", "a-x a-x-x", "a-xy x"},
		{"a*b*c", "abc aXbXc abbcc abcbc", "ab acb abcd"},
		{"a*a", "aa aba aaa", "a ab"},
		{"{namespace}/**", "team-a team-a/x team-a/x/y", "team-ab/x team-b/x {namespace}/x team"},
		{"{namespace}", "team-a", "team-a/x team-ab"},
		{"x-{namespace}-y/*", "x-team-a-y/q", "x-team-a-y x-team-b-y/q x-team-a/q"},
		{"{cluster}/{namespace}/{serviceAccount}", "prod/team-a/web.v1", "prod/team-a/webxv1 prod/team-a/web team-a/prod/web.v1"},
		{"{cluster}{namespace}", "prodteam-a", "prod-team-a prod"},
		{"*{namespace}*", "team-a xteam-a team-ax xteam-ateam-ay", "team-b"},
		{"*-{namespace}", "a-team-a team-a-team-a", "team-a team-a-team-ab"},
		{"localhost:5000/*", "localhost:5000/x", "localhost:5001/x localhost/x"},
	} {
		p, err := Parse(test.pattern)
		if err != nil {
			t.Errorf("%s: %v", test.pattern, err)
			continue
		}
		for name := range strings.FieldsSeq(test.match) {
			if !p.Match(name, someone(), new(int)) {
				t.Errorf("%s does not match %s", test.pattern, name)
			}
		}
		for name := range strings.FieldsSeq(test.not) {
			if p.Match(name, someone(), new(int)) {
				t.Errorf("%s matches %s", test.pattern, name)
			}
		}
	}
}

func TestNothingMatchesAnEmptyName(t *testing.T) {
	t.Parallel()
	for _, test := range [][2]string{{"a", ""}, {"", "a"}, {"a/b", ""}, {"**/a", ""}} {
		if Pattern(test[0]).Match(test[1], someone(), new(int)) || MatchName(test[0], test[1]) {
			t.Errorf("%q matches %q", test[0], test[1])
		}
	}
}

// Values of a token are compared, never interpreted (docker_auth put labels into regular
// expressions unquoted). A missing value matches nothing.
func TestPlaceholdersAreLiteral(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		namespace, pattern, name string
		want                     bool
	}{
		{"*", "{namespace}/x", "a/x", false},
		{"**", "{namespace}/x", "a/b/x", false},
		{"**", "{namespace}", "a", false},
		{"{cluster}", "{namespace}/x", "prod/x", false},
		{"a/b", "{namespace}/x", "a/b/x", false}, // a value never spans components
		{"a/b", "{namespace}/**", "a/b", false},
		{"", "{namespace}/x", "/x", false},
		{"", "a{namespace}/x", "a/x", false},
		{"", "*{namespace}/x", "a/x", false},
		{"", "{namespace}*/x", "a/x", false},
		{"", "{namespace}/**", "a", false},
		{"a", "{namespace}/x", "a/x", true},
	} {
		id := &oidc.Identity{Cluster: "prod", Kubernetes: oidc.KubernetesIdentity{Namespace: test.namespace}}
		p := testkit.Value(Parse(test.pattern))(t)
		if got := p.Match(test.name, id, new(int)); got != test.want {
			t.Errorf("namespace %q, pattern %s, name %s: %v", test.namespace, test.pattern, test.name, got)
		}
	}
	p, err := Parse("{namespace}/x")
	if err != nil || p.Match("team-a/x", nil, new(int)) || p.Match("/x", nil, new(int)) {
		t.Errorf("a placeholder matches without an identity, %v", err)
	}
}

// Every pattern that could match a name is accepted. The rejected patterns are in
// testdata/faults.txtar.
func TestPatternsAccepted(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"a", "a_b", "a__b", "a--b", "a*-b", "a-*", "*.*", "a.b", "{namespace}_{cluster}", "Registry.example.com/a", "localhost:5000/a",
		"*:5000/a", "AZ.example.com/a", "**/a/**", "9/0", strings.Repeat("a", 255), strings.Repeat("{namespace}/", 42) + "abcdefgh",
	} {
		if _, err := Parse(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A placeholder that is cut off once ended the program, and a tenant's objects can hold it.
func TestClaimsAreWholeComponents(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{claims.":         "a { is not closed",
		"x/{claims./y":     "a { is not closed",
		"{claims.a":        "a { is not closed",
		"{claims.}":        "lacks the name of a claim",
		"{claims.a}-x":     `"{claims.a}" must be a whole path component`,
		"{claims.a}{b}":    `"{claims.a}" must be a whole path component`,
		"x-{claims.a}":     `"{claims.a}" must be a whole path component`,
		"{claims.a}}":      `"{claims.a}" must be a whole path component`,
		"{claims.{claims.": "a { is not closed",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

func TestPatternLength(t *testing.T) {
	t.Parallel()
	if _, err := Parse(strings.Repeat("*/", 256) + "*"); err == nil || !strings.Contains(err.Error(), "has 513 bytes; at most 512 are useful") {
		t.Errorf("error %v", err)
	}
}

func TestPatternExpand(t *testing.T) {
	t.Parallel()
	p := Pattern("x/{cluster}-{namespace}/*/{serviceAccount}")
	if got := p.Expand(someone()); got != "x/prod-team-a/*/web.v1" {
		t.Error(got)
	}
	if got := p.Expand(nil); got != string(p) {
		t.Error(got)
	}
	p = "{claims.project_path}/x"
	for path, want := range map[string]string{"Acme/web": "acme/web/x", "ghcr.io/web": string(p)} {
		job := &oidc.Identity{External: &identity.External{Profile: identity.GitLab, Claims: identity.Claims{"project_path": path}}}
		if got := p.Expand(job); got != want {
			t.Errorf("%s for %s", got, path)
		}
	}
	if got := p.Expand(someone()); got != string(p) {
		t.Error(got)
	}
}

// Patterns that make a backtracking matcher run for years. The test passes if each answer arrives
// within the test's time.
func TestPatternsCannotBlowUp(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ pattern, name string }{
		{strings.Repeat("*a", 120) + "*b", strings.Repeat("a", 255)},
		{"**/" + strings.Repeat("a/**/", 60) + "b", strings.Repeat("a/", 127) + "a"},
		{strings.Repeat("**/", 120) + "b", strings.Repeat("a/", 127) + "a"},
		{"**/" + strings.Repeat("*/", 60) + "b", strings.Repeat("a/", 127) + "a"},
		{"*" + strings.Repeat("a", 120) + "b", strings.Repeat("a", 255)},
	} {
		p := testkit.Value(Parse(test.pattern))(t)
		for range 1000 {
			if p.Match(test.name, nil, new(int)) {
				t.Fatalf("%s matches", test.pattern)
			}
		}
	}
}

// reference is a readable definition of Match: it tries everything.
func reference(pattern, name []string, id *oidc.Identity) bool {
	switch {
	case len(pattern) == 0:
		return len(name) == 0
	case pattern[0] == "**":
		return reference(pattern[1:], name, id) || len(name) > 0 && reference(pattern, name[1:], id)
	}
	return len(name) > 0 && referenceComponent(pattern[0], name[0], id) && reference(pattern[1:], name[1:], id)
}

func referenceComponent(pattern, s string, id *oidc.Identity) bool {
	for placeholder, value := range map[string]string{"{namespace}": id.Kubernetes.Namespace, "{serviceAccount}": id.Kubernetes.ServiceAccount.Name, "{cluster}": id.Cluster} {
		if rest, ok := strings.CutPrefix(pattern, placeholder); ok {
			after, ok := strings.CutPrefix(s, value)
			return ok && referenceComponent(rest, after, id)
		}
	}
	switch {
	case pattern == "":
		return s == ""
	case pattern[0] == '*':
		return referenceComponent(pattern[1:], s, id) || s != "" && referenceComponent(pattern, s[1:], id)
	}
	return s != "" && s[0] == pattern[0] && referenceComponent(pattern[1:], s[1:], id)
}

func FuzzPattern(f *testing.F) {
	f.Add("a/**/b", "a/x/y/b", "ns")
	f.Add("**/a*a*/**/{namespace}-*", "b/aa/b/ns-x", "ns")
	f.Add("{serviceAccount}/{cluster}/*", "sa/c1/q", "a")
	f.Add("**/**/*a*", "a/b/ca", "a")
	f.Add("{claims.a}/{claims.", "a/b", "a")
	f.Fuzz(func(t *testing.T, text, name, namespace string) {
		p, err := Parse(text)
		if err != nil {
			if err.Error() == "" || len(err.Error()) > 1000 {
				t.Errorf("error %q", err)
			}
			return
		}
		if !IsPath(name) || strings.Count(text, "*") > 8 || len(name) > 60 {
			return // the reference needs exponential time
		}
		id := &oidc.Identity{Cluster: "c1", Kubernetes: oidc.KubernetesIdentity{Namespace: namespace, ServiceAccount: oidc.ObjectRef{Name: "sa"}}}
		want := reference(strings.Split(text, "/"), strings.Split(name, "/"), id)
		if namespace == "" && strings.Contains(text, "{namespace}") {
			want = false
		}
		if got := p.Match(name, id, new(int)); got != want {
			t.Errorf("%s, %s, namespace %q: %v, want %v", text, name, namespace, got, want)
		}
	})
}
