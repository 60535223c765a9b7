package pattern

import (
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// TestPatternsThatCollide compares Collision with the behaviour of a pattern: whether two
// identities with different names have a repository in common. Only the placeholders of the pattern
// count.
func TestPatternsThatCollide(t *testing.T) {
	t.Parallel()
	labels := []string{"a", "b", "a-a", "a-b", "aa", "ab", "axa"}
	subdomains := append([]string{"a.a", "a.b", "a.a.a"}, labels...)
	for pattern, want := range map[string]string{ // an example, "-" for none
		"{cluster}-{namespace}/**":        "{cluster} a with {namespace} b-c and {cluster} a-b with {namespace} c both have a-b-c",
		"{cluster}{namespace}":            "{cluster} a with {namespace} bc and {cluster} ab with {namespace} c both have abc",
		"{namespace}-{serviceAccount}":    "{namespace} a with {serviceAccount} b-c and {namespace} a-b with {serviceAccount} c both have a-b-c",
		"{namespace}x{serviceAccount}":    "{namespace} a with {serviceAccount} bxc and {namespace} axb with {serviceAccount} c both have axbxc",
		"{namespace}-*/**":                "{namespace} a and {namespace} a-b both have a-b-c",
		"**/{namespace}-*":                "{namespace} a and {namespace} a-b both have a-b-c",
		"x/*-{namespace}":                 "{namespace} b-c and {namespace} c both have a-b-c",
		"{namespace}*":                    "{namespace} a and {namespace} ab both have abc",
		"*{namespace}":                    "{namespace} bc and {namespace} c both have abc",
		"y-{cluster}-{namespace}_*":       "{cluster} a with {namespace} b-c and {cluster} a-b with {namespace} c both have y-a-b-c_x",
		"{serviceAccount}.*":              "{serviceAccount} a and {serviceAccount} a.b both have a.b.c",
		"{namespace}/{serviceAccount}-*":  "{serviceAccount} a and {serviceAccount} a-b both have a-b-c",
		"{serviceAccount}.{namespace}.*":  "-", // only where the second is a.b
		"*_{namespace}_*":                 "-", // a wildcard may hold _
		"**/{namespace}/**/{namespace}-*": "both have a-b-c",
		"*/{namespace}-*":                 "{namespace} a and {namespace} a-b both have a-b-c",
		"{cluster}{namespace}*":           "{cluster} a with {namespace} bc and {cluster} ab with {namespace} c both have abcx",
		"{namespace}-*-*":                 "{namespace} a and {namespace} a-b both have a-b-c-x",
		"*-{namespace}-*":                 "{namespace} b-c and {namespace} c both have a-b-c-x",
		// Only an example with parts in between would show these.
		"{namespace}/{serviceAccount}-{namespace}-*": "-",
		"{namespace}/{cluster}{namespace}*":          "-",
		"{namespace}-{namespace}-*/*":                "-",
		"{cluster}-{namespace}-{namespace}-*/*":      "-",

		"{namespace}/**": "", "{serviceAccount}": "", "**": "", "*": "", "*-x-*": "", "team-{namespace}-x/*": "",
		"{cluster}/{namespace}/{serviceAccount}": "", "{cluster}_{namespace}": "", "{namespace}_*": "", "*_{namespace}": "",
		"{namespace}__{serviceAccount}/**": "", "{namespace}.{serviceAccount}": "", "{serviceAccount}.{namespace}": "", "{namespace}.*": "",
		"{namespace}/{namespace}-*": "", "{namespace}-{serviceAccount}/{namespace}": "", "{cluster}-x_y-{namespace}": "",
	} {
		example, found := mustPattern(t, pattern).Collision(labels)
		if found != (want != "") || want != "-" && !strings.Contains(example, want) || want == "-" && example != "" {
			t.Errorf("%s: %t, %q", pattern, found, example)
		}
		ids := map[string]map[string]bool{} // repository → the values of the placeholders
		for _, cluster := range labels {
			for _, namespace := range labels {
				for _, account := range subdomains {
					id := &oidc.Identity{Cluster: cluster, Kubernetes: oidc.KubernetesIdentity{Namespace: namespace, ServiceAccount: oidc.ObjectRef{Name: account}}}
					var values []string
					for _, placeholder := range []string{"{cluster}", "{namespace}", "{serviceAccount}"} {
						if strings.Contains(pattern, placeholder) {
							value, _ := placeholderValue(strings.Trim(placeholder, "{}"), id)
							values = append(values, value)
						}
					}
					for _, wild := range subdomains {
						name := strings.ReplaceAll(mustPattern(t, strings.ReplaceAll(pattern, "**", "any")).Expand(id), "*", wild)
						if ids[name] == nil {
							ids[name] = map[string]bool{}
						}
						ids[name][strings.Join(values, "/")] = true
					}
				}
			}
		}
		collides := false
		for _, who := range ids {
			collides = collides || len(who) > 1
		}
		// One wildcard has the same value everywhere here, so some collisions do not occur.
		if collides != found && strings.Count(pattern, "*") < 2 {
			t.Errorf("%s collides: %t", pattern, collides)
		}
	}
}

// The names of the clusters are known, so their end may be clear.
func TestClustersThatCollide(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pattern  string
		clusters string
		want     bool
	}{
		{"{cluster}-{namespace}", "prod dev", false},
		{"{cluster}-{namespace}", "prod prod-eu", true},
		{"{cluster}-{namespace}", "eu prod-eu", false},
		{"{namespace}-{cluster}", "prod dev", false},
		{"{namespace}-{cluster}", "prod prod-eu", false},
		{"{namespace}-{cluster}", "eu prod-eu", true},
		{"{namespace}-{serviceAccount}", "prod dev", true},
	} {
		if _, found := mustPattern(t, test.pattern).Collision(strings.Fields(test.clusters)); found != test.want {
			t.Errorf("%s in %s: %t", test.pattern, test.clusters, found)
		}
	}
}

func mustPattern(t *testing.T, text string) Pattern {
	t.Helper()
	p := testkit.Value(Parse(text))(t)
	return p
}

func TestTextsOfNames(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		variable, text string
		want           bool
	}{
		{"{namespace}", "az09-", true}, {"{cluster}", "a", true}, {"{serviceAccount}", "a.b", true}, {"*", "_/.", true},
		{"{namespace}", ".", false}, {"{namespace}", "_", false}, {"{namespace}", "{", false}, {"{namespace}", "/", false}, {"{namespace}", ":", false},
		{"{namespace}", "`", false}, {"{serviceAccount}", "_", false}, {"{serviceAccount}", "a_", false},
	} {
		if got := holds(test.variable, test.text); got != test.want {
			t.Errorf("%s can have %q in it: %t", test.variable, test.text, got)
		}
	}
}
