package policy

import (
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/oidc"
)

// TestPatternsThatCollide compares what is said of a pattern with what it does:
// whether there are two identities with different names, of those that stand in
// it, that have a repository in common.
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

		"{namespace}/**": "", "{serviceAccount}": "", "**": "", "*": "", "*-x-*": "", "team-{namespace}-x/*": "",
		"{cluster}/{namespace}/{serviceAccount}": "", "{cluster}_{namespace}": "", "{namespace}_*": "", "*_{namespace}": "",
		"{namespace}__{serviceAccount}/**": "", "{namespace}.{serviceAccount}": "", "{serviceAccount}.{namespace}": "", "{namespace}.*": "",
		"{namespace}/{namespace}-*": "", "{namespace}-{serviceAccount}/{namespace}": "", "{cluster}-x_y-{namespace}": "",
	} {
		example, found := mustPattern(t, pattern).collision(labels)
		if found != (want != "") || want != "-" && !strings.Contains(example, want) || want == "-" && example != "" {
			t.Errorf("%s: %t, %q", pattern, found, example)
		}
		ids := map[string]map[string]bool{} // repository → what the placeholders stood for
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
						name := strings.ReplaceAll(mustPattern(t, strings.ReplaceAll(pattern, "**", "any")).expand(id), "*", wild)
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
		// What one wildcard stands for is the same everywhere here, so that some
		// collisions do not come up.
		if collides != found && strings.Count(pattern, "*") < 2 {
			t.Errorf("%s collides: %t", pattern, collides)
		}
	}
}

func mustPattern(t *testing.T, text string) pattern {
	t.Helper()
	p, err := parsePattern(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Names of clusters are known: they are mistaken only if one begins, or ends, as
// another does.
func TestCollisions(t *testing.T) {
	t.Parallel()
	policy := mustParse(t, File{Name: "policy.yaml", Data: []byte(`
apiVersion: pullpass.dev/v1alpha1
kind: AccessPolicy
rules:
- name: begin
  subjects: [{clusters: ["prod*"]}]
  allow:
  - {registry: [catalog], actions: ["*"]}
  - {repositories: ["shared/**", "{cluster}-{namespace}/**"], actions: [pull]}
- name: end
  subjects: [{clusters: ["*-eu"], namespaces: [x]}, {clusters: [eu], namespaces: [x]}]
  annotation: pullpass.dev/repositories
  allow: [{repositories: ["{namespace}-{cluster}"], actions: [pull]}]
- name: any
  subjects: [{namespaces: ["*"]}]
  allow: [{repositories: ["{namespace}-*"], actions: [pull]}]
`)})
	begin := `rule begin: allow[1].repositories[1]: "{cluster}-{namespace}/**"`
	end := `rule end: allow[0].repositories[0]: "{namespace}-{cluster}"`
	anyone := `rule any: allow[0].repositories[0]: "{namespace}-*"`
	for _, test := range []struct{ clusters, want []string }{
		{[]string{"prod"}, []string{anyone}},
		{[]string{"prod-eu", "prod-us", "test-eu"}, []string{anyone}},
		{[]string{"prod-eu", "prod"}, []string{begin, anyone}},
		{[]string{"test-eu", "eu"}, []string{end, anyone}},
		{[]string{"test", "test-us"}, []string{anyone}}, // the others are for none of them
	} {
		got := policy.Collisions(test.clusters)
		for i, line := range got {
			why := strings.Contains(line, " gives one ServiceAccount the repositories of another, depending on their names (for example, ") &&
				strings.HasSuffix(line, "): put a / between them, or a _, which is in no name, unless there is a * on both sides")
			if i >= len(test.want) || !strings.HasPrefix(line, test.want[i]) || !why {
				t.Errorf("%q: %s", test.clusters, line)
			}
		}
		if len(got) != len(test.want) {
			t.Errorf("%q: %d warnings, want %d", test.clusters, len(got), len(test.want))
		}
	}
}
