// Package pullpass_test enforces the rules of the project that no compiler
// knows: who may import what, and what may not be in the sources at all.
//
// Each rule is a function from a project to the list of its violations. It runs
// on this repository, where it must find nothing, and on small examples that
// break it, where it must find exactly that.
package pullpass_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/pullpass/pullpass"

// allowedImports is what a package may import directly.
type allowedImports struct {
	ours   []string // packages of this module
	tests  []string // further ones, for its tests
	others []string // third-party modules; its tests may import more
}

// imports has an entry for every package. A package may be listed before it
// exists.
var imports = map[string]allowedImports{
	"internal/lru": {},
	"internal/file": {
		tests: []string{"internal/testkit"},
	},
	"internal/filewatch": {
		ours:   []string{"internal/file"},
		others: []string{"github.com/fsnotify/fsnotify"},
	},
	"internal/names": {},
	"internal/term": {
		ours: []string{"internal/names"},
	},
	"internal/redact": {},
	"internal/strictyaml": {
		ours:   []string{"internal/names", "internal/term"},
		others: []string{"go.yaml.in/yaml/v3"},
	},
	"internal/signing": {
		ours:   []string{"internal/file"},
		tests:  []string{"internal/pkitest", "internal/signing/signingtest"},
		others: []string{"github.com/go-jose/go-jose/v4"},
	},
	"internal/load": {
		ours: []string{"internal/registryauth"},
	},
	"internal/seal": {
		ours:  []string{"internal/signing"},
		tests: []string{"internal/pkitest", "internal/testkit"},
	},
	"internal/registryauth": {
		ours:   []string{"internal/signing", "internal/term"},
		tests:  []string{"internal/pkitest", "internal/signing/signingtest"},
		others: []string{"github.com/distribution/distribution/v3/registry/auth/token"},
	},
	"internal/identity": {
		ours:   []string{"internal/lru", "internal/names", "internal/term"},
		tests:  []string{"internal/testkit"},
		others: []string{"github.com/go-jose/go-jose/v4"},
	},
	"internal/oidc": {
		ours:   []string{"internal/file", "internal/identity", "internal/lru", "internal/names", "internal/term"},
		tests:  []string{"internal/pkitest", "internal/testkit"},
		others: []string{"github.com/coreos/go-oidc/v3", "github.com/go-jose/go-jose/v4", "github.com/go-json-experiment/json", "go.opentelemetry.io/otel/trace"},
	},
	"internal/condition": {
		ours:   []string{"internal/identity", "internal/term"},
		others: []string{"cel.dev/cel-go"},
	},
	"internal/selector": {
		ours:   []string{"internal/strictyaml", "internal/term"},
		others: []string{"k8s.io/apimachinery"},
	},
	"internal/nodecert": {
		ours: []string{"internal/lru"},
	},
	"internal/nodeproof": {
		ours: []string{"internal/nodecert", "internal/oidc", "internal/term"},
	},
	"internal/pattern": {
		ours:  []string{"internal/oidc", "internal/registryauth", "internal/term"},
		tests: []string{"internal/identity"},
	},
	"internal/action": {},
	"internal/subjects": {
		ours: []string{
			"internal/condition", "internal/identity", "internal/names", "internal/oidc", "internal/pattern", "internal/selector", "internal/strictyaml",
			"internal/term",
		},
		tests:  []string{"internal/testkit"},
		others: []string{"k8s.io/apimachinery"},
	},
	"internal/policy": {
		ours: []string{
			"internal/action", "internal/identity", "internal/names", "internal/oidc", "internal/pattern", "internal/registryauth", "internal/strictyaml",
			"internal/subjects", "internal/term",
		},
		tests:  []string{"internal/schematest", "internal/testkit"},
		others: []string{"k8s.io/apimachinery"},
	},
	"internal/policyobjects": {
		ours:   []string{"internal/names", "internal/pattern", "internal/policy", "internal/strictyaml", "internal/term"},
		tests:  []string{"internal/oidc", "internal/registryauth", "internal/schematest", "internal/testkit"},
		others: []string{"go.yaml.in/yaml/v3"},
	},
	"internal/policy/policytest": {
		ours:   []string{"internal/action", "internal/names", "internal/oidc", "internal/policy", "internal/registryauth", "internal/selector", "internal/strictyaml", "internal/subjects", "internal/term"},
		tests:  []string{"internal/schematest"},
		others: []string{"k8s.io/apimachinery"},
	},
	"internal/policy/warning": {
		ours:  []string{"internal/action", "internal/pattern", "internal/policy", "internal/subjects", "internal/term"},
		tests: []string{"internal/identity", "internal/oidc"},
	},
	"internal/policy/reach": {
		ours:  []string{"internal/action", "internal/names", "internal/oidc", "internal/pattern", "internal/policy", "internal/registryauth", "internal/subjects"},
		tests: []string{"internal/condition", "internal/identity"},
	},
	"internal/exchange": {
		ours: []string{
			"internal/load", "internal/lru", "internal/nodecert", "internal/nodeproof", "internal/oidc", "internal/policy", "internal/redact", "internal/registryauth",
			"internal/seal", "internal/signing", "internal/term",
		},
		tests:  []string{"internal/identity", "internal/pkitest", "internal/testkit"},
		others: []string{"go.opentelemetry.io/otel/attribute", "go.opentelemetry.io/otel/codes", "go.opentelemetry.io/otel/trace", "k8s.io/apimachinery"},
	},
	"internal/upstream": {
		ours:   []string{"internal/file", "internal/lru", "internal/registryauth", "internal/term"},
		tests:  []string{"internal/pkitest", "internal/testkit"},
		others: []string{"go.opentelemetry.io/otel/attribute", "go.opentelemetry.io/otel/codes", "go.opentelemetry.io/otel/trace", "golang.org/x/sync"},
	},
	// What the kinds of credential have in common; each SDK is in a package of its own.
	"internal/upstream/logins": {
		ours:   []string{"internal/lru", "internal/redact", "internal/registryauth", "internal/term", "internal/upstream"},
		tests:  []string{"internal/pkitest", "internal/testkit"},
		others: []string{"golang.org/x/sync"},
	},
	"internal/upstream/logins/loginstest": {
		ours:   []string{"internal/assertion", "internal/registryauth", "internal/testkit", "internal/upstream"},
		others: []string{"github.com/coreos/go-oidc/v3", "github.com/go-jose/go-jose/v4"},
	},
	"internal/upstream/aws": {
		ours:   []string{"internal/registryauth", "internal/upstream", "internal/upstream/logins"},
		tests:  []string{"internal/testkit", "internal/upstream/logins/loginstest"},
		others: []string{"github.com/aws/aws-sdk-go-v2", "github.com/aws/smithy-go"},
	},
	"internal/upstream/google": {
		ours:   []string{"internal/registryauth", "internal/upstream", "internal/upstream/logins"},
		tests:  []string{"internal/testkit", "internal/upstream/logins/loginstest"},
		others: []string{"cloud.google.com/go/auth"},
	},
	"internal/upstream/azure": {
		ours:   []string{"internal/registryauth", "internal/upstream", "internal/upstream/logins"},
		tests:  []string{"internal/testkit", "internal/upstream/logins/loginstest"},
		others: []string{"github.com/Azure/azure-sdk-for-go/sdk"},
	},
	"internal/upstream/quay": {
		ours:  []string{"internal/registryauth", "internal/upstream", "internal/upstream/logins"},
		tests: []string{"internal/testkit", "internal/upstream/logins/loginstest"},
	},
	"internal/upstream/artifactory": {
		ours:  []string{"internal/registryauth", "internal/upstream", "internal/upstream/logins"},
		tests: []string{"internal/testkit", "internal/upstream/logins/loginstest"},
	},
	"internal/assertion": {
		ours:   []string{"internal/registryauth", "internal/signing"},
		tests:  []string{"internal/pkitest", "internal/testkit"},
		others: []string{},
	},
	"internal/gateway": {
		ours: []string{
			"internal/exchange", "internal/identity", "internal/lru", "internal/nodeproof", "internal/oidc", "internal/redact", "internal/registryauth", "internal/seal",
			"internal/signing", "internal/term", "internal/upstream",
		},
		tests: []string{"internal/pkitest", "internal/registrytest", "internal/testkit"},
		others: []string{
			"github.com/distribution/distribution/v3/registry/auth/token", "github.com/go-jose/go-jose/v4", "go.opentelemetry.io/otel/attribute",
			"go.opentelemetry.io/otel/trace",
		},
	},
	"internal/kube": {
		ours: []string{
			"internal/exchange", "internal/file", "internal/lru", "internal/oidc", "internal/pattern", "internal/policy", "internal/policyobjects", "internal/strictyaml", "internal/term",
		},
		tests:  []string{"internal/kubetest", "internal/pkitest", "internal/registryauth", "internal/testkit"},
		others: []string{"go.opentelemetry.io/otel/trace", "k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go", "k8s.io/klog/v2"},
	},
	"internal/podevents": {
		ours:   []string{"internal/exchange", "internal/oidc", "internal/term"},
		tests:  []string{"internal/policy", "internal/registryauth", "internal/testkit"},
		others: []string{"k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go"},
	},
	"internal/state": {
		ours:   []string{"internal/file", "internal/lru", "internal/oidc"},
		tests:  []string{"internal/state/statetest", "internal/testkit"},
		others: []string{"github.com/redis/go-redis/v9", "go.opentelemetry.io/otel/codes", "go.opentelemetry.io/otel/trace"},
	},
	"internal/pullsecrets": {
		others: []string{"k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go"},
	},
	"internal/controller": {
		ours:   []string{"internal/kube"},
		tests:  []string{"internal/kubetest"},
		others: []string{"k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go"},
	},
	"internal/controller/objectstatus": {
		ours: []string{
			"internal/action", "internal/controller", "internal/exchange", "internal/kube", "internal/oidc", "internal/pattern", "internal/policy", "internal/policyobjects", "internal/registryauth", "internal/term",
		},
		tests:  []string{"internal/kubetest", "internal/testkit"},
		others: []string{"k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go"},
	},
	"internal/controller/rollout": {
		ours:   []string{"internal/controller", "internal/hostfs", "internal/nodeinstall", "internal/term"},
		tests:  []string{"internal/kubetest", "internal/testkit"},
		others: []string{"k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go"},
	},
	"internal/controller/tokensecrets": {
		ours:   []string{"internal/controller"},
		tests:  []string{"internal/kubetest"},
		others: []string{"k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go"},
	},
	"internal/config": {
		ours: []string{
			"internal/exchange", "internal/file", "internal/identity", "internal/names", "internal/nodeproof", "internal/oidc", "internal/pattern", "internal/registryauth", "internal/signing",
			"internal/strictyaml", "internal/term",
		},
		tests:  []string{"internal/schematest", "internal/testkit"},
		others: []string{"go.yaml.in/yaml/v3", "k8s.io/apimachinery"},
	},
	"internal/setup": {
		ours: []string{
			"internal/assertion", "internal/config", "internal/controller/objectstatus", "internal/exchange", "internal/file", "internal/filewatch", "internal/gateway", "internal/identity",
			"internal/kube", "internal/nodecert",
			"internal/nodeproof", "internal/oidc", "internal/pattern", "internal/podevents", "internal/policy", "internal/policy/warning", "internal/registryauth", "internal/signing", "internal/state", "internal/subjects", "internal/upstream",
			"internal/upstream/artifactory", "internal/upstream/aws", "internal/upstream/azure", "internal/upstream/google", "internal/upstream/logins",
			"internal/upstream/quay",
		},
		tests:  []string{"internal/audit", "internal/testkit"},
		others: []string{"golang.org/x/sync", "k8s.io/apimachinery", "k8s.io/client-go"},
	},
	"internal/audit": {
		ours:   []string{"internal/exchange", "internal/file", "internal/names", "internal/nodeproof", "internal/registryauth", "internal/term"},
		tests:  []string{"internal/proxytest", "internal/testkit"},
		others: []string{"golang.org/x/sync"},
	},
	"internal/usage": {
		ours: []string{
			"internal/action", "internal/audit", "internal/exchange", "internal/names", "internal/policy", "internal/policy/reach", "internal/registryauth", "internal/term",
		},
	},
	"internal/metrics": {
		ours: []string{
			"internal/audit", "internal/controller/objectstatus", "internal/controller/rollout", "internal/controller/tokensecrets", "internal/exchange", "internal/gateway", "internal/kube", "internal/load", "internal/nodeproof", "internal/oidc", "internal/podevents", "internal/policy",
			"internal/registryauth", "internal/signing", "internal/state", "internal/upstream",
		},
		tests:  []string{"internal/proxytest", "internal/testkit"},
		others: []string{"github.com/prometheus/client_golang"},
	},
	"internal/telemetry": {
		ours:   []string{"internal/redact", "internal/term"},
		others: []string{"github.com/go-logr/logr", "github.com/prometheus/client_golang", "go.opentelemetry.io"},
	},
	"internal/console": {
		ours:  []string{"internal/audit", "internal/exchange", "internal/explain", "internal/policy/reach", "internal/term"},
		tests: []string{"internal/config", "internal/testkit"},
	},
	"internal/server": {
		ours: []string{
			"internal/assertion", "internal/audit", "internal/config", "internal/console", "internal/controller/objectstatus", "internal/explain", "internal/exchange", "internal/file", "internal/filewatch", "internal/gateway", "internal/kube",
			"internal/load", "internal/metrics", "internal/nodecert", "internal/nodeproof", "internal/oidc", "internal/policy", "internal/policy/reach", "internal/registryauth", "internal/setup", "internal/signing", "internal/state",
			"internal/strictyaml", "internal/telemetry", "internal/term", "internal/upstream",
		},
		tests:  []string{"internal/kubetest", "internal/pkitest", "internal/proxytest", "internal/registrytest", "internal/testkit"},
		others: []string{"github.com/go-chi/chi/v5"},
	},
	"internal/explain": {
		ours: []string{
			"internal/audit", "internal/config", "internal/exchange", "internal/file", "internal/names", "internal/nodeproof", "internal/oidc", "internal/policy", "internal/policy/reach",
			"internal/registryauth", "internal/setup", "internal/term",
		},
	},
	"internal/nodeconfig": {
		ours:   []string{"internal/config", "internal/exchange", "internal/file", "internal/nodeproof", "internal/strictyaml", "internal/term"},
		tests:  []string{"internal/testkit"},
		others: []string{"go.yaml.in/yaml/v3", "k8s.io/apimachinery"},
	},
	// It reads and writes where others may put links: it knows no more than files.
	"internal/hostfs": {
		tests: []string{"internal/testkit"},
	},
	"internal/nodeinstall": {
		ours:   []string{"internal/hostfs", "internal/strictyaml", "internal/term"},
		tests:  []string{"internal/testkit"},
		others: []string{"go.yaml.in/yaml/v3"},
	},
	"internal/migration": {
		ours: []string{
			"internal/config", "internal/kube", "internal/names", "internal/oidc", "internal/policy", "internal/pullsecrets", "internal/registryauth",
			"internal/setup", "internal/term",
		},
		tests: []string{"internal/kubetest", "internal/testkit"},
	},
	"cmd/proxy": {
		ours: []string{
			"internal/audit", "internal/config", "internal/controller", "internal/controller/rollout", "internal/controller/tokensecrets", "internal/explain", "internal/file", "internal/filewatch", "internal/hostfs",
			"internal/metrics", "internal/migration", "internal/names", "internal/nodeconfig", "internal/nodeinstall", "internal/pattern", "internal/policy", "internal/policyobjects",
			"internal/policy/policytest", "internal/policy/reach", "internal/server", "internal/setup", "internal/signing", "internal/state",
			"internal/strictyaml", "internal/term", "internal/usage",
		},
		tests: []string{
			"internal/exchange", "internal/gateway", "internal/kubetest", "internal/nodeproof", "internal/pkitest", "internal/proxytest", "internal/state/statetest",
			"internal/telemetry", "internal/testkit",
		},
		others: []string{"github.com/sirupsen/logrus", "github.com/spf13/cobra", "k8s.io/klog/v2"},
	},

	// For tests.
	"internal/pkitest": {},
	"internal/kubetest": {
		ours:   []string{"internal/pkitest", "internal/testkit"},
		others: []string{"github.com/go-jose/go-jose/v4", "go.yaml.in/yaml/v3"},
	},
	"internal/proxytest": {
		ours: []string{"internal/exchange", "internal/kubetest", "internal/pkitest", "internal/testkit"},
		others: []string{
			"github.com/distribution/distribution/v3/registry/auth/token", "github.com/go-jose/go-jose/v4", "github.com/rogpeppe/go-internal",
			"github.com/santhosh-tekuri/jsonschema/v6",
		},
	},
	"internal/registrytest": {
		ours:   []string{"internal/pkitest"},
		others: []string{"github.com/distribution/distribution/v3", "github.com/sirupsen/logrus", "golang.org/x/crypto"},
	},
	"internal/schematest": {
		ours:   []string{"internal/strictyaml"},
		others: []string{"github.com/santhosh-tekuri/jsonschema/v6", "go.yaml.in/yaml/v3"},
	},
	"internal/testkit": {},
	"internal/signing/signingtest": {
		others: []string{"github.com/distribution/distribution/v3/registry/auth/token", "github.com/go-jose/go-jose/v4"},
	},
	"internal/state/statetest": {
		ours:   []string{"internal/identity", "internal/oidc", "internal/pkitest", "internal/state"},
		others: []string{"github.com/redis/go-redis/v9"},
	},

	"cmd/credential-provider": {},
	"deploy/image": {
		others: []string{
			"github.com/CycloneDX/cyclonedx-go", "github.com/distribution/reference", "github.com/google/go-containerregistry",
			"golang.org/x/crypto/x509roots/fallback",
		},
	},
	"deploy/ci": {
		tests: []string{"internal/config", "internal/identity", "internal/policy", "internal/policy/warning", "internal/subjects"},
	},
	"deploy/helm":       {},
	"deploy/monitoring": {},
	"cmd/demo": {
		others: []string{
			"github.com/distribution/distribution/v3", "github.com/go-jose/go-jose/v4",
			"github.com/google/go-containerregistry", "github.com/sirupsen/logrus", "sigs.k8s.io/yaml",
		},
	},
	"cmd/docker-credential-pullpass": {
		ours: []string{"credential"},
	},
	// The only package that others import: it brings nothing along.
	"credential": {},
}

// unreachable says what must not be linked into a package, through whatever it
// imports.
var unreachable = map[string][]string{
	// The decision stays testable without clients, servers and telemetry.
	"internal/policy": {
		"k8s.io/client-go", "github.com/redis/go-redis/v9", "github.com/go-chi/chi/v5", "go.opentelemetry.io/otel/sdk",
		"github.com/spf13/cobra", "github.com/fsnotify/fsnotify", "github.com/prometheus",
	},
	"internal/exchange": {
		"k8s.io/client-go", "github.com/redis/go-redis/v9", "github.com/go-chi/chi/v5", "go.opentelemetry.io/otel/sdk",
		"github.com/spf13/cobra", "github.com/fsnotify/fsnotify", "github.com/prometheus",
	},
	// What asks a registry knows no cloud: its logins do.
	"internal/upstream": {"github.com/aws", "cloud.google.com", "github.com/Azure"},
	"internal/gateway":  {"github.com/aws", "cloud.google.com", "github.com/Azure", "k8s.io/client-go"},
	// They are counterparts in tests and in the demo, not parts of the product. Of
	// distribution, registryauth uses what declares the claims of a token.
	"cmd/proxy": {
		"github.com/distribution/distribution/v3/configuration", "github.com/distribution/distribution/v3/registry/handlers",
		"github.com/distribution/distribution/v3/registry/storage", "github.com/google/go-containerregistry", "k8s.io/kubernetes",
		"github.com/CycloneDX/cyclonedx-go", "golang.org/x/crypto/x509roots",
		// They link every API group there is: a quarter more of a program.
		"k8s.io/client-go/kubernetes", "k8s.io/client-go/informers", "k8s.io/client-go/tools/leaderelection",
	},
	// It runs at every pull and passes a token on without looking into it.
	"cmd/credential-provider": {"net", "crypto"},
	// It is in other people's programs, and verifies nothing. The helper that uses it
	// asks GitHub's token service, over TLS.
	"credential": {"net", "crypto"},
}

// essential packages must be seen, or the rules would hold because they look at
// nothing.
var essential = []string{
	"internal/oidc", "internal/signing", "internal/registryauth", "internal/exchange", "cmd/proxy", "cmd/credential-provider",
}

// testHelpers are packages for the tests of others. Production code cannot
// import them: it would reach testing.
var testHelpers = []string{"internal/kubetest", "internal/pkitest", "internal/proxytest", "internal/registrytest", "internal/schematest", "internal/testkit"}

type rule struct {
	name     string
	check    func(project) []string
	examples []example
}

// example is a project that breaks a rule.
type example struct {
	project project
	want    string // part of the only violation
}

func TestRulesHold(t *testing.T) {
	t.Parallel()
	p := thisProject(t)
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			for _, violation := range r.check(p) {
				t.Error(violation)
			}
		})
	}
}

func TestRulesFindViolations(t *testing.T) {
	t.Parallel()
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			if len(r.examples) == 0 {
				t.Error("no example of a violation")
			}
			for _, e := range r.examples {
				if got := r.check(e.project); len(got) != 1 || !strings.Contains(got[0], e.want) {
					t.Errorf("found %q, want one violation with %q", got, e.want)
				}
			}
		})
	}
}

// Each of these looks like a violation and is none.
func TestRulesAcceptWhatIsAllowed(t *testing.T) {
	t.Parallel()
	p := project{
		packages: []listedPackage{
			{ImportPath: module + "/internal/oidc", Imports: []string{"crypto/sha256", "github.com/go-jose/go-jose/v4/jwt"},
				Deps: []string{"net/http"}, TestImports: []string{"testing", "github.com/coreos/go-oidc/v3/oidc/oidctest"}},
			{ImportPath: module + "/internal/signing", TestImports: []string{module + "/internal/pkitest"}},
			{ImportPath: module + "/internal/registryauth", Imports: []string{module + "/internal/signing"}},
			{ImportPath: module + "/internal/pkitest", Imports: []string{"testing"}, Deps: []string{"testing"}},
			{ImportPath: module + "/internal/exchange", Imports: []string{module + "/internal/oidc"},
				XTestImports: []string{module + "/internal/exchange"}, Deps: []string{"go.opentelemetry.io/otel/sdkless"}},
			{ImportPath: module + "/internal/state/statetest", Imports: []string{"testing", module + "/internal/state"}, Deps: []string{"testing"}},
			{ImportPath: module + "/cmd/proxy", Imports: []string{module + "/cmd/proxy/internal/console"}},
			{ImportPath: module + "/cmd/proxy/internal/console"},
			{ImportPath: module + "/cmd/credential-provider", Imports: []string{"encoding/json"}, Deps: []string{"networks"}},
			{ImportPath: module, XTestImports: []string{"testing"}},
		},
		files: map[string]string{
			"go.mod":                      "module " + module + "\n// replace is not used\n",
			"README.md":                   "[a](docs/a.md#part) [b](docs) [c](https://example.com/) [d](#what-if---it-does-not) [h](docs/a.md#part-1) ![e](docs/a.md \"title\")\n```\n[f](missing.md)\n```\n`[g](missing.md)`\n### What `if` - it does not?",
			"docs/a.md":                   "# Part\n## Part\n[up](../README.md) [self](a.md) [root](/README.md)",
			"testdata/key.pem":            pemHeader,
			"a/a.go":                      "// Package a mentions http.DefaultClient.\npackage a\nimport \"regexp\"\nvar skip = reader.Skip(1)\nfunc (T) init() {}",
			"a/b.go":                      "package a" + strings.Repeat("\n", 500),
			"a/a_test.go":                 "package a" + strings.Repeat("\n", 700),
			"b/b_test.go":                 "package b\nimport _ \"math/rand/v2\"\nvar _ = http.DefaultClient",
			"internal/exchange/a_test.go": "package exchange\nimport _ \"regexp\"",
			"cmd/proxy/main.go":           "// Command pullpass serves.\npackage main\nvar _ = os.Getenv(\"HOME\")",
		},
	}
	for _, r := range rules {
		for _, violation := range r.check(p) {
			t.Errorf("%s: %s", r.name, violation)
		}
	}
}

// project is what the rules look at.
type project struct {
	packages []listedPackage
	files    map[string]string // content by slash-separated path
}

// listedPackage is a package of this module as "go list -json" prints it.
type listedPackage struct {
	ImportPath   string
	Imports      []string // of production code
	TestImports  []string
	XTestImports []string
	Deps         []string // of production code, direct and indirect
}

// dir returns the directory of the package in the module, with slashes.
func (p listedPackage) dir() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

func thisProject(t *testing.T) project {
	t.Helper()
	p := project{files: map[string]string{}}

	list := json.NewDecoder(bytes.NewReader(output(t, "go", "list", "-json=ImportPath,Imports,TestImports,XTestImports,Deps", "./...")))
	for {
		var listed listedPackage
		err := list.Decode(&listed)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		p.packages = append(p.packages, listed)
	}

	// What git tracks or would add: build results and local keys do not count.
	for path := range strings.SplitSeq(string(output(t, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")), "\x00") {
		if path == "" {
			continue
		}
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		p.files[path] = string(content)
	}
	return p
}

func output(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, stderr.Bytes())
	}
	return out
}

// within tells whether an import path or file path is root or lies below it.
func within(path, root string) bool {
	return path == root || strings.HasPrefix(path, root+"/")
}

func withinAny(path string, roots []string) bool {
	return slices.ContainsFunc(roots, func(root string) bool { return within(path, root) })
}
