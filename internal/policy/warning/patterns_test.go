package warning

import (
	"strings"
	"testing"
)

// Names of clusters are known: they are ambiguous only if one is a prefix or a suffix of the other.
func TestCollisions(t *testing.T) {
	t.Parallel()
	p := parse(t, `
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
`)
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
		got := Collisions(p, test.clusters)
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

// A wildcard at the start of a rule for every service is worth a warning if it matches an upstream
// of the gateway.
func TestBehindGateway(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pattern, services string
		want              string // the upstream; empty: no warning
	}{
		{"**", "", "docker.io"},
		{"**/base", "", "docker.io"},
		{"*/base", "", "docker.io"},
		{"ghcr*/base", "", "ghcr.io"},
		{"*", "", ""},
		{"ghcr.io/**", "", ""},
		{"team-*/**", "", ""},
		{"{namespace}/**", "", ""},
		{"{namespace}*/**", "", ""},
		{"{serviceAccount}/**", "", "docker.io"}, // a possible name of a ServiceAccount
		{"ghcr.{serviceAccount}/**", "", "ghcr.io"},
		{"{serviceAccount}", "", ""},
		{"{namespace}-{serviceAccount}/**", "", ""},
		{"{claims.namespace_path}/**", "", "mirror"}, // a value is never a host
		{"{claims.namespace_path}", "", "mirror"},
		{"x/{claims.namespace_path}", "", ""},
		{"**", "  services: [registry.example.com]\n", ""},
		{"**", "  services: [registry.example.com, gateway.example.com]\n", ""},
	} {
		p := parse(t, "rules:\n- name: all\n  subjects: [{identities: [gitlab]}]\n"+
			test.services+"  allow: [{repositories: [\"x/y\", \""+test.pattern+"\"], actions: [pull]}]\n")
		got := BehindGateway(p, []string{"docker.io", "ghcr.io", "mirror"})
		if test.want == "" && len(got) > 0 || test.want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], `rule all: allow[0].repositories[1]: "`+test.pattern+`" also means what is behind the gateway, at "`+test.want+`"`)) {
			t.Errorf("%s: %q", test.pattern, got)
		}
	}
}
