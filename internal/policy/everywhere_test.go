package policy

import (
	"strings"
	"testing"
)

// Wildcards that a rule for every service begins with are worth a warning if they mean
// an upstream of the gateway.
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
		{"{claims.namespace_path}/**", "", "mirror"}, // a value is no host
		{"{claims.namespace_path}", "", "mirror"},
		{"x/{claims.namespace_path}", "", ""},
		{"**", "  services: [registry.example.com]\n", ""},
		{"**", "  services: [registry.example.com, gateway.example.com]\n", ""},
	} {
		policy, err := Parse(File{Name: "policy.yaml", Data: []byte("apiVersion: pullpass.dev/v1alpha1\nkind: AccessPolicy\nrules:\n- name: all\n  subjects: [{identities: [gitlab]}]\n" +
			test.services + "  allow: [{repositories: [\"x/y\", \"" + test.pattern + "\"], actions: [pull]}]\n")})
		if err != nil {
			t.Fatal(err)
		}
		got := policy.BehindGateway([]string{"docker.io", "ghcr.io", "mirror"})
		if test.want == "" && len(got) > 0 || test.want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], `rule all: allow[0].repositories[1]: "`+test.pattern+`" also means what is behind the gateway, at "`+test.want+`"`)) {
			t.Errorf("%s: %q", test.pattern, got)
		}
	}
}
