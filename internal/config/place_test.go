package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Files that must not be shared are compared by location, for every form of the name, also before
// they exist.
func TestNamesOfOnePlace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"keys", "other", "deep"} {
		testkit.Must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
	}
	for name, to := range map[string]string{"link": "keys", "link-to-link": "link", "above": ".", "to-new": "new", "to-above-new": "above/new", "loop": "loop", "absolute": filepath.Join(dir, "keys")} {
		testkit.Must(t, os.Symlink(to, filepath.Join(dir, name)))
	}
	for _, name := range []string{"a.pem", "b.pem"} {
		testkit.Write(t, dir, name, "x")
	}
	testkit.Must(t, os.Link(filepath.Join(dir, "a.pem"), filepath.Join(dir, "hard.pem")))
	const registries = `
clusters: [{name: a, issuer: https://issuer.example.com, audiences: [x], kubernetes: {manifestFiles: [x]}}]
policyFiles: [policy.yaml]
registries:
- {service: one, issuer: i, signing: {managedDir: %q}}
- {service: two, issuer: i, signing: {managedDir: %q}}
`
	const keys = `
clusters: [{name: a, issuer: https://issuer.example.com, audiences: [x], kubernetes: {manifestFiles: [x]}}]
policyFiles: [policy.yaml]
registries:
- {service: one, issuer: i, signing: {keyFile: %q, trust: jwks}}
- {service: two, issuer: i, signing: {keyFile: %q, trust: jwks}}
gateway: {url: https://gateway.example.com, service: one}
upstreams: [{name: ghcr.io}]
`
	const assertions = `
clusters: [{name: a, issuer: https://issuer.example.com, audiences: [x], kubernetes: {manifestFiles: [x]}}]
policyFiles: [policy.yaml]
registries: [{service: one, issuer: i, signing: {managedDir: %q}}]
assertions: {issuer: https://pullpass.example.com, managedDir: %q}
`
	const policies = `
clusters: [{name: a, issuer: https://issuer.example.com, audiences: [x], kubernetes: {manifestFiles: [x]}}]
policyFiles: [%q, %q]
registries: [{service: one, issuer: i}]
`
	const cas = `
clusters:
- {name: a, issuer: https://a.example.com, audiences: [x], kubernetes: {manifestFiles: [x]}, node: {proof: {mode: enforce, methods: [certificate], clientCAFile: %q}}}
- {name: b, issuer: https://b.example.com, audiences: [x], kubernetes: {manifestFiles: [x]}, node: {proof: {mode: enforce, methods: [certificate], clientCAFile: %q}}}
policyFiles: [policy.yaml]
registries: [{service: one, issuer: i}]
`
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, test := range []struct {
		one, other string
		same       bool
	}{
		{"keys", "keys", true}, {"keys", "./keys/", true}, {"keys", in("keys"), true}, {"keys", "deep/../keys", true}, {"keys", "link", true}, {"link", in("link-to-link"), true},
		{"keys", "above/keys", true}, {"keys", "above/above/link", true}, {"keys", "absolute", true}, {"new", "new", true}, {"new", in("new"), true}, {"new", "above/new", true},
		{"new", "to-new", true}, {"to-above-new", "to-new", true}, {"new/deeper", in("above/to-new/deeper"), true}, {"a.pem", "hard.pem", true},
		{"keys", "other", false}, {"keys", "new", false}, {"new", "new2", false}, {"keys/new", "other/new", false}, {"keys", "keys/keys", false}, {"a.pem", "b.pem", false}, {"loop", "keys", false},
	} {
		for name, document := range map[string]string{"registries": registries, "keys": keys, "assertions": assertions, "policies": policies, "cas": cas} {
			_, err := Parse([]byte("apiVersion: pullpass.dev/v1beta1\nkind: ProxyConfiguration"+fmt.Sprintf(document, test.one, test.other)), "pullpass.yaml", dir)
			if said := err != nil && (strings.Contains(err.Error(), "is the same as") || strings.Contains(err.Error(), "as well") || strings.Contains(err.Error(), "is the file of")); said != test.same || !test.same && err != nil {
				t.Errorf("%s: %q and %q: %v", name, test.one, test.other, err)
			}
		}
	}
}
