package pattern

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/oidc/identity"
)

func TestContains(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pattern string
		yes, no string // patterns, separated by blanks
	}{
		{"**", "a a/b ** */* {namespace}/** {claims.project_path}/x **/x", ""},
		{"*", "a * {namespace} a-{namespace}-*", "** */* {claims.project_path} a/b"},
		{"team-a/**", "team-a team-a/x team-a/*/y team-a/**/z team-a/{namespace} team-a/{claims.project_path}", "team-ab/x ** */x team-*/x {namespace}/x {claims.project_path}/x"},
		{"*x/**", "ax/y *x", "{claims.project_path}/y x*/y"},
		{"*/a", "b/a */a {namespace}/a", "{claims.project_path}/a a"},
		{"team-*/web", "team-a/web team-*/web team-*x/web team-{namespace}/web", "team/web *team-a/web t*/web team-a/*"},
		{"*a*b*", "ab a*b xaxbx *ab* *a*{namespace}b", "ba a b *a* *b*a"},
		{"{namespace}/**", "{namespace} {namespace}/x {namespace}/**/y", "{serviceAccount}/x *{namespace}/x */x x"},
		{"*-{namespace}", "a-{namespace} {cluster}-{namespace} *-{namespace}", "{namespace} {namespace}-x"},
		{"{claims.project_path}/**", "{claims.project_path} {claims.project_path}/x", "{claims.repository}/x a x/{claims.project_path} **/{claims.project_path}"},
		{"**/{claims.project_path}", "{claims.project_path} **/{claims.project_path}", "a/{claims.project_path}"},
		{"a/{claims.project_path}", "a/{claims.project_path}", "{claims.project_path} a/**"},
		{"*/**", "** a **/a a/** {claims.project_path} {claims.project_path}/**", ""},
		{"**/*/*", "a/b **/a/b a/**/b a/b/** {claims.project_path}/a", "** a a/** {claims.project_path}"},
		{"a/**/b/**/c", "a/b/c a/**/b/x/**/c a/b/**/b/c", "a/**/c a/c/b"},
	} {
		p := Pattern(test.pattern)
		for q := range strings.FieldsSeq(test.yes) {
			if !p.Contains(Pattern(q)) {
				t.Errorf("%s does not contain %s", p, q)
			}
		}
		for q := range strings.FieldsSeq(test.no) {
			if p.Contains(Pattern(q)) {
				t.Errorf("%s contains %s", p, q)
			}
		}
	}
}

// A value that looks like a host is rejected at the start and accepted elsewhere. So a pattern that
// starts with the claim does not contain one that does not.
func TestContainsKnowsHosts(t *testing.T) {
	t.Parallel()
	id := &oidc.Identity{External: &identity.External{Profile: identity.GitLab, Claims: identity.Claims{"project_path": "ghcr.io/x"}}}
	if p := Pattern("**/{claims.project_path}"); p.Match("a/ghcr.io/x", id, new(int)) || !Pattern("a/{claims.project_path}").Match("a/ghcr.io/x", id, new(int)) {
		t.Error("hosts are judged otherwise than this test thinks")
	}
}

// samplePattern returns a pattern over few letters, so that many match and contain each other.
func samplePattern(random *rand.Rand, withPlaceholders bool) Pattern {
	parts := []string{"a", "b", "*"}
	if withPlaceholders {
		parts = append(parts, "{namespace}", "{serviceAccount}")
	}
	components := make([]string, 1+random.IntN(4))
	for i := range components {
		if random.IntN(4) == 0 {
			components[i] = "**"
			continue
		}
		for range 1 + random.IntN(3) {
			components[i] += parts[random.IntN(len(parts))]
		}
		if strings.Contains(components[i], "**") {
			components[i] = "**"
		}
	}
	return Pattern(strings.Join(components, "/"))
}

func sampleName(random *rand.Rand) string {
	components := make([]string, 1+random.IntN(4))
	for i := range components {
		for range 1 + random.IntN(4) {
			components[i] += string("ab"[random.IntN(2)])
		}
	}
	return strings.Join(components, "/")
}

func sampleIdentity(random *rand.Rand) *oidc.Identity {
	values := []string{"a", "b", "ab", "ba", "aab"}
	return &oidc.Identity{Cluster: "prod", Kubernetes: oidc.KubernetesIdentity{
		Namespace: values[random.IntN(len(values))], ServiceAccount: oidc.ObjectRef{Name: values[random.IntN(len(values))]},
	}}
}

// Names of a contained pattern are matched. If a pattern is not contained, some name shows it.
func TestContainsIsExact(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	contained := 0
	for range 200_000 {
		p, q := samplePattern(random, true), samplePattern(random, true)
		if p.Contains(q) {
			contained++
			for range 10 {
				name, id := sampleName(random), sampleIdentity(random)
				if q.Match(name, id, new(int)) && !p.Match(name, id, new(int)) {
					t.Fatalf("%s is said to contain %s, and does not match %s of %+v", p, q, name, id.Kubernetes)
				}
			}
			continue
		}
		if all := withoutWildcards(q); !slices.ContainsFunc(all, func(name string) bool { return !p.Match(name, stranger, new(int)) }) {
			t.Fatalf("%s is said not to contain %s, and matches %s", p, q, all)
		}
	}
	if contained < 1000 {
		t.Errorf("only %d pairs were contained", contained)
	}
}

// Solve finds all choices that Match accepts, and no others.
func TestSolveAgreesWithMatch(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	matched := 0
	for range 100_000 {
		p, name, id := samplePattern(random, true), sampleName(random), sampleIdentity(random)
		choices, whole := p.Solve(name)
		if !whole {
			continue
		}
		found := false
		for _, values := range choices {
			found = found || isChosen(values, "namespace", id.Kubernetes.Namespace) && isChosen(values, "serviceAccount", id.Kubernetes.ServiceAccount.Name)
		}
		if found != p.Match(name, id, new(int)) {
			t.Fatalf("%s on %s of %+v: %v, and the choices are %v", p, name, id.Kubernetes, !found, choices)
		}
		if found {
			matched++
		}
	}
	if matched < 1000 {
		t.Errorf("only %d matched", matched)
	}
}

var stranger = &oidc.Identity{Kubernetes: oidc.KubernetesIdentity{Namespace: "x", ServiceAccount: oidc.ObjectRef{Name: "y"}}}

// withoutWildcards returns names that the pattern matches. Their letters for wildcards occur in no
// pattern.
func withoutWildcards(p Pattern) []string {
	var names []string
	for _, components := range []string{"", "z/", "z/z/z/z/z/z/"} {
		name := strings.ReplaceAll(p.Expand(stranger)+"/", "**/", components)
		if name = strings.TrimSuffix(strings.ReplaceAll(name, "*", "z"), "/"); name == "" {
			name = "z" // a name is never empty
		}
		names = append(names, name)
	}
	return names
}

func isChosen(values Values, name, value string) bool {
	chosen, ok := values[name]
	return !ok || chosen == value
}

func TestSolveClaims(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ pattern, name, want string }{
		{"{claims.project_path}/**", "group/sub/web", "group, group/sub, group/sub/web"},
		{"ci/{claims.project_path}", "ci/group/web", "group/web"},
		{"{claims.project_path}", "ghcr.io/x", ""},
		{"x/{claims.project_path}", "x/ghcr.io/x", "ghcr.io/x"},
		{"x/{claims.project_path}", "y/z", ""},
		{"x/{claims.project_path}", "x/-a", ""},
	} {
		choices, whole := Pattern(test.pattern).Solve(test.name)
		var got []string
		for _, values := range choices {
			got = append(got, values["claims.project_path"])
		}
		if strings.Join(got, ", ") != test.want || !whole {
			t.Errorf("%s on %s: %q, whole %v", test.pattern, test.name, got, whole)
		}
	}
}

func TestSolveNamesEachChoiceOnce(t *testing.T) {
	t.Parallel()
	if choices, _ := Pattern("**/{namespace}/**").Solve("a/a"); len(choices) != 1 {
		t.Errorf("%v", choices)
	}
	if choices, whole := Pattern("**").Solve("a//b"); len(choices) != 0 || !whole {
		t.Errorf("%v for a name that is not a path", choices)
	}
}

// A pattern with very many solutions must not take long, or return all of them.
func TestSolveIsBounded(t *testing.T) {
	t.Parallel()
	name := strings.TrimSuffix(strings.Repeat("a/", 128), "/")
	for _, text := range []string{strings.TrimSuffix(strings.Repeat("**/", 60), "/"), "**/*{namespace}*/**/*{serviceAccount}*/**", strings.Repeat("*a", 100)} {
		if choices, whole := Pattern(text).Solve(name); len(choices) > maxSolutions+1 {
			t.Errorf("%s: %d choices, whole %v", text, len(choices), whole)
		}
	}
	if choices, whole := Pattern("*{namespace}*").Solve(strings.Repeat("ab", 50)); whole || len(choices) > maxSolutions+1 {
		t.Errorf("%d choices of hundreds, whole %v", len(choices), whole)
	}
	if _, whole := Pattern(strings.Repeat("*a", 100)).Solve(strings.Repeat("a", 200) + "b"); whole {
		t.Error("a search that was given up is called whole")
	}
	for length, want := range map[int]bool{maxSolutions: true, maxSolutions + 1: false} {
		if _, whole := Pattern("{namespace}*").Solve(strings.Repeat("a", length)); whole != want {
			t.Errorf("%d choices: whole %v", length, whole)
		}
	}
	if Pattern(strings.Repeat("**/", 100) + "x").Contains(Pattern(strings.Repeat("a/", 200) + "y")) {
		t.Error("x contains y")
	}
}

func TestOverlaps(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(5, 6))
	apart := 0
	for range 100_000 {
		p, q := samplePattern(random, true), samplePattern(random, true)
		if p.Overlaps(q) {
			continue
		}
		apart++
		for range 10 {
			if name, id := sampleName(random), sampleIdentity(random); p.Match(name, id, new(int)) && q.Match(name, id, new(int)) {
				t.Fatalf("%s and %s are said to be apart, and both match %s", p, q, name)
			}
		}
	}
	if apart < 1000 {
		t.Errorf("only %d were apart", apart)
	}
	for _, test := range [][2]string{{"team-a/**", "team-b/x"}, {"a/*", "a/b/c"}, {"*-x", "*-y"}, {"a/**/b", "a/c"}, {"y", "x/**"}, {"z", "x/z"}} {
		if Pattern(test[0]).Overlaps(Pattern(test[1])) {
			t.Errorf("%s overlaps %s", test[0], test[1])
		}
	}
	for _, test := range [][2]string{{"team-*/x", "*-a/**"}, {"**/x", "a/**"}, {"a*", "*b"}, {"{claims.project_path}/x", "a/b/x"}} {
		if !Pattern(test[0]).Overlaps(Pattern(test[1])) {
			t.Errorf("%s does not overlap %s", test[0], test[1])
		}
	}
}

// A wildcard or a claim at the start can stand for an upstream of the gateway.
func TestCovers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ pattern, upstreams, want string }{
		{"**", "ghcr.io quay.io", "ghcr.io"},
		{"**/x", "ghcr.io", "ghcr.io"},
		{"*/x", "ghcr.io", "ghcr.io"},
		{"*", "ghcr.io", ""},
		{"ghcr.io/**", "ghcr.io", ""},
		{"ghcr.*/x", "quay.io mirror", ""},
		{"ghcr.*/x", "quay.io ghcr.io", "ghcr.io"},
		{"{claims.project_path}/x", "ghcr.io", ""},
		{"{claims.project_path}", "ghcr.io mirror", "mirror"},
	} {
		if got, found := Pattern(test.pattern).Covers(strings.Fields(test.upstreams)); got != test.want || found != (test.want != "") {
			t.Errorf("%s of %s: %q, %t", test.pattern, test.upstreams, got, found)
		}
	}
}

func TestNameContains(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		p, q string
		want bool
	}{{"team-*", "team-a", true}, {"team-*", "team-*-x", true}, {"team-a", "team-*", false}, {"*", "a/b", true}} {
		if got := NameContains(test.p, test.q); got != test.want {
			t.Errorf("%s contains %s: %t", test.p, test.q, got)
		}
	}
}
