package oidc

import (
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Mistake: a check that an empty setting switches off. Every setting that is
// empty or unknown is a fault of the configuration.
func TestFaultyConfigurations(t *testing.T) {
	t.Parallel()
	with := func(change func(*Issuer)) Config {
		i := validIssuer("jwks.json")
		change(&i)
		return Config{Issuers: []Issuer{i}}
	}
	two := func(change func(*Issuer)) Config {
		c := with(func(*Issuer) {})
		i := validIssuer("jwks.json")
		i.Cluster, i.URL = "prod-us", "https://us.example"
		change(&i)
		c.Issuers = append(c.Issuers, i)
		return c
	}
	provider := func(change func(*Issuer)) Config {
		i := Issuer{
			Provider: &Provider{Name: "ci", Profile: identity.Generic}, URL: "https://ci.example.com", Audiences: []string{audience1},
			MaxLifetime: time.Hour, MaxKeyAge: time.Hour,
		}
		if _, err := New(Config{Issuers: []Issuer{i}}); err != nil {
			t.Fatal(err)
		}
		change(&i)
		return Config{Issuers: []Issuer{validIssuer("jwks.json"), i}}
	}
	discovery := func(d Discovery) Config { return with(func(i *Issuer) { i.Discovery = d }) }
	for _, test := range []struct {
		name   string
		config Config
		want   string
	}{
		{"no issuers", Config{}, "issuers: at least one is required"},
		{"negative cache", Config{Issuers: []Issuer{validIssuer("x")}, CacheBytes: -1}, "cache of -1 bytes: must not be negative"},
		{"no cluster", with(func(i *Issuer) { i.Cluster = "" }), "name: must be 1 to 63 letters"},
		{"cluster with a slash", with(func(i *Issuer) { i.Cluster = "a/b" }), "name: must be 1 to 63 letters"},
		{"cluster too long", with(func(i *Issuer) { i.Cluster = strings.Repeat("a", 64) }), "name: must be 1 to 63 letters"},
		{"same cluster", two(func(i *Issuer) { i.Cluster = "prod-eu" }), "another issuer has the same name"},
		{"same issuer", two(func(i *Issuer) { i.URL = issuerURL }), `another entry has the same issuer "https://issuer.example"`},
		{"audience of pull secrets too", with(func(i *Issuer) { i.PullSecrets = PullSecrets{audience1, []string{"*"}} }), "pullSecrets.audience: must be none of audiences"},
		{"pull secrets of no audience", with(func(i *Issuer) { i.PullSecrets.Namespaces = []string{"*"} }), "pullSecrets.audience: is required"},
		{"pull secrets of no namespace", with(func(i *Issuer) { i.PullSecrets.Audience = "a" }), "pullSecrets.namespaces: at least one is required"},
		{"pull secrets of a long audience", with(func(i *Issuer) { i.PullSecrets = PullSecrets{strings.Repeat("a", 513), []string{"*"}} }), "pullSecrets.audience: must be at most 512 printable"},
		{"pull secrets with a space", with(func(i *Issuer) { i.PullSecrets = PullSecrets{"a b", []string{"*"}} }), "pullSecrets.audience: must be at most 512 printable"},
		{"pull secrets of an invalid namespace", with(func(i *Issuer) { i.PullSecrets = PullSecrets{"a", []string{"a[b]"}} }), "pullSecrets.namespaces[0]: must be the name"},
		{"pull secrets of an empty namespace", with(func(i *Issuer) { i.PullSecrets = PullSecrets{"a", []string{""}} }), "pullSecrets.namespaces[0]: must be the name"},
		{"pull secrets of no cluster", provider(func(i *Issuer) { i.PullSecrets = PullSecrets{"a", []string{"*"}} }), "cluster, bound, node and pullSecrets are of clusters"},
		{"no issuer", with(func(i *Issuer) { i.URL = "" }), `issuer: "" is not an https URL`},
		{"http issuer", with(func(i *Issuer) { i.URL = "http://issuer.example" }), "is not an https URL"},
		{"issuer without scheme", with(func(i *Issuer) { i.URL = "issuer.example" }), "is not an https URL"},
		{"issuer without host", with(func(i *Issuer) { i.URL = "https:///x" }), "is not an https URL"},
		{"issuer with port only", with(func(i *Issuer) { i.URL = "https://:443" }), "is not an https URL"},
		{"issuer of legacy tokens", with(func(i *Issuer) { i.URL = legacyIssuer }), "is not an https URL"},
		{"issuer with a query", with(func(i *Issuer) { i.URL += "?x" }), "must not have a query"},
		{"issuer with an empty query", with(func(i *Issuer) { i.URL += "?" }), "must not have a query"},
		{"issuer with a fragment", with(func(i *Issuer) { i.URL += "#x" }), "must not have a fragment"},
		{"issuer with an empty fragment", with(func(i *Issuer) { i.URL += "#" }), "must not have a fragment"},
		{"issuer with a password", with(func(i *Issuer) { i.URL = "https://u:hunter2@issuer.example" }), "must not hold a user name or password"},
		{"issuer that is no URL", with(func(i *Issuer) { i.URL = "https://[" }), "is not a URL"},
		{"no audience", with(func(i *Issuer) { i.Audiences = nil }), "audiences: at least one is required"},
		{"empty list of audiences", with(func(i *Issuer) { i.Audiences = []string{} }), "audiences: at least one is required"},
		{"empty audience", with(func(i *Issuer) { i.Audiences = []string{"a", ""} }), "audiences[1]: must be 1 to 512 printable characters"},
		{"audience with a space", with(func(i *Issuer) { i.Audiences = []string{"a b"} }), "audiences[0]: must be 1 to 512 printable characters"},
		{"audience too long", with(func(i *Issuer) { i.Audiences = []string{strings.Repeat("a", 513)} }), "audiences[0]: must be"},
		{"no bound", with(func(i *Issuer) { i.Bound = "" }), `bound: "" is not one of "pod", "pod-or-node" and "any"`},
		{"unknown bound", with(func(i *Issuer) { i.Bound = "Pod" }), `bound: "Pod" is not one of`},
		{"no lifetime", with(func(i *Issuer) { i.MaxLifetime = 0 }), "maxTokenLifetime: must be positive"},
		{"negative lifetime", with(func(i *Issuer) { i.MaxLifetime = -time.Hour }), "maxTokenLifetime: must be positive"},
		{"no age of keys", with(func(i *Issuer) { i.MaxKeyAge = 0 }), "discovery.maxKeyAge: must be positive"},
		{"two sources", discovery(Discovery{URL: "https://a.example", JWKSURL: "https://a.example"}), "at most one of url, jwksURL and jwksFile"},
		{"file and URL", discovery(Discovery{JWKSFile: "x", JWKSURL: "https://a.example"}), "at most one of url, jwksURL and jwksFile"},
		{"http discovery", discovery(Discovery{URL: "http://a.example"}), `discovery.url: "http://a.example" is not an https URL`},
		{"http keys", discovery(Discovery{JWKSURL: "http://a.example"}), `discovery.jwksURL: "http://a.example" is not an https URL`},
		{"keys with a password", discovery(Discovery{JWKSURL: "https://u:hunter2@a.example"}), "discovery.jwksURL: must not hold a user name or password"},
		{"file and CA", discovery(Discovery{JWKSFile: "x", CAFile: "y"}), "caFile and tokenFile have no use with jwksFile"},
		{"file and token", discovery(Discovery{JWKSFile: "x", TokenFile: "y"}), "caFile and tokenFile have no use with jwksFile"},
		{"identity without name", provider(func(i *Issuer) { i.Provider.Name = "" }), `issuer 1 (identity ""): name: must be 1 to 63 letters`},
		{"identity with the name of a cluster", provider(func(i *Issuer) { i.Provider.Name = "prod-eu" }), "another issuer has the same name"},
		{"identity with the issuer of a cluster", provider(func(i *Issuer) { i.URL = issuerURL }), "another entry has the same issuer"},
		{"identity of a cluster", provider(func(i *Issuer) { i.Cluster = "prod-us" }), "are of clusters, and this is none"},
		{"identity with bound", provider(func(i *Issuer) { i.Bound = BoundPod }), "are of clusters, and this is none"},
		{"identity with node", provider(func(i *Issuer) { i.RequireNode = true }), "are of clusters, and this is none"},
		{"identity without audience", provider(func(i *Issuer) { i.Audiences = nil }), "audiences: at least one is required"},
		{"identity without lifetime", provider(func(i *Issuer) { i.MaxLifetime = 0 }), "maxTokenLifetime: must be positive"},
		{"unknown profile", provider(func(i *Issuer) { i.Provider.Profile = "" }), `profile: "" is not one of`},
		{"requirement without values", provider(func(i *Issuer) { i.Provider.Require = map[string][]string{"ref": {}} }), `require: claim "ref" needs values`},
		{"requirement of nothing", provider(func(i *Issuer) { i.Provider.Require = map[string][]string{"ref": {"a", ""}} }), `require: claim "ref" needs values`},
		{"requirement without claim", provider(func(i *Issuer) { i.Provider.Require = map[string][]string{"": {"a"}} }), `require: claim "" needs values`},
		{"other profile than the issuer's", provider(func(i *Issuer) {
			i.URL, i.Provider.Require = "https://gitlab.com", map[string][]string{"project_id": {"1"}}
		}), `profile: must be gitlab for issuer "https://gitlab.com"`},
		{"no tenant", provider(func(i *Issuer) { i.URL, i.Provider.Profile = "https://gitlab.com", identity.GitLab }), `require: needs one of ["project_id" "namespace_id"]`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			v, err := New(test.config)
			if err == nil || v != nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %v, want an error with %q", err, test.want)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one fault: %v", err)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("a password in %v", err)
			}
		})
	}
}

func TestAllFaultsAreReportedAtOnce(t *testing.T) {
	t.Parallel()
	_, err := New(Config{CacheBytes: -1, Issuers: []Issuer{
		{Cluster: "a"},
		{Cluster: "b", URL: issuerURL, Discovery: Discovery{URL: "x", JWKSURL: "y", JWKSFile: "z", CAFile: "c"}},
	}})
	want := []string{
		"cache of",
		`issuer 0 (cluster "a"): issuer:`, `issuer 0 (cluster "a"): audiences:`, `issuer 0 (cluster "a"): bound:`,
		`issuer 0 (cluster "a"): maxTokenLifetime:`, `issuer 0 (cluster "a"): discovery.maxKeyAge:`,
		`issuer 1 (cluster "b"): discovery: at most one`, `issuer 1 (cluster "b"): discovery.url:`,
		`issuer 1 (cluster "b"): discovery.jwksURL:`, `issuer 1 (cluster "b"): discovery: caFile`,
	}
	for _, text := range want {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("no %q in %v", text, err)
		}
	}
}

// Start-up depends neither on the network nor on files that a later step of a
// deployment brings.
func TestNewNeedsNoFileAndNoNetwork(t *testing.T) {
	t.Parallel()
	missing := t.TempDir() + "/missing"
	for _, d := range []Discovery{
		{},
		{JWKSFile: missing},
		{URL: "https://192.0.2.1/.well-known/openid-configuration", CAFile: missing, TokenFile: missing},
		{JWKSURL: "https://192.0.2.1/keys?format=jwks", CAFile: missing},
	} {
		i := validIssuer("")
		i.Discovery = d
		v := testkit.Value(New(Config{Issuers: []Issuer{i}}))(t)
		if s := v.Status()[0]; s != (IssuerStatus{Name: "prod-eu", Issuer: issuerURL}) {
			t.Errorf("status %+v", s)
		}
	}
}

// The Verifier keeps the checked settings, whatever the caller does with its slice.
func TestConfigurationIsCopied(t *testing.T) {
	t.Parallel()
	audiences := []string{audience1}
	f := newFixture(t, func(c *Config) { c.Issuers[0].Audiences = audiences })
	audiences[0] = "vault"
	accept(t, f.Verifier, keys().rsa.sign(t, payload(t, "kubelet")))
}
