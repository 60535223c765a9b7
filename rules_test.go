// Package pullpass_test enforces the rules of the project that no compiler
// knows: the imports of each package, and what the sources must not contain.
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

	"github.com/pullpass/pullpass/internal/test/testkit"
)

const module = "github.com/pullpass/pullpass"

// A room is a directory of internal, or a program. Imports between rooms run one way, from the end of this list to its beginning.
type room struct {
	dir   string
	owns  string
	uses  []string // rooms that it may import
	tests []string // rooms that its tests may import besides; all may import internal/test
}

var rooms = []room{
	{"internal/base", "files, names, terminals, caches, strict YAML; knows nothing of tokens", nil, nil},
	{"internal/refusal", "the catalogue of reasons", nil, nil},
	{"internal/oidc", "a token that comes in: keys, claims, identities", []string{"internal/base", "internal/refusal"}, nil},
	{"internal/registryauth", "a token that goes out: scopes, the wire, signing keys", []string{"internal/base"}, nil},
	{"internal/policy", "the decision; pure", []string{"internal/base", "internal/oidc", "internal/registryauth"}, nil},
	{"internal/exchange", "a request from its first byte to its event", []string{"internal/base", "internal/oidc", "internal/policy", "internal/refusal", "internal/registryauth"}, nil},
	{"internal/gateway", "a registry's API before other registries", []string{"internal/base", "internal/exchange", "internal/oidc", "internal/refusal", "internal/registryauth"}, nil},
	{"internal/cluster", "what Kubernetes says and is told", []string{"internal/base", "internal/exchange", "internal/oidc", "internal/policy", "internal/refusal", "internal/registryauth"}, nil},
	{"internal/state", "what replicas share", []string{"internal/base", "internal/oidc"}, nil},
	{"internal/config", "the configuration, and what is made of it", []string{
		"internal/base", "internal/cluster", "internal/exchange", "internal/gateway", "internal/oidc", "internal/policy", "internal/registryauth", "internal/state",
	}, []string{"internal/server"}},
	{"internal/node", "what nodes need", []string{"internal/base", "internal/cluster", "internal/config", "internal/exchange"}, nil},
	{"internal/pullsecrets", "image pull secrets: inventory, migration, the controller", []string{
		"internal/base", "internal/cluster", "internal/config", "internal/oidc", "internal/policy", "internal/registryauth",
	}, nil},
	{"internal/server", "listeners, reload, audit, metrics, console, explain", []string{
		"internal/base", "internal/cluster", "internal/config", "internal/exchange", "internal/gateway", "internal/node", "internal/oidc", "internal/policy",
		"internal/pullsecrets", "internal/refusal", "internal/registryauth", "internal/state",
	}, nil},
	{"internal/test", "helpers of tests", []string{"internal/base", "internal/exchange"}, nil},
	{"internal/simulation", "all of it in virtual time, and an oracle that knows no code that decides", nil, []string{"internal/config", "internal/pullsecrets", "internal/server", "internal/state"}},

	{"cmd/proxy", "flags and commands", []string{
		"internal/base", "internal/cluster", "internal/config", "internal/node", "internal/policy", "internal/pullsecrets", "internal/refusal", "internal/registryauth", "internal/server", "internal/state",
	}, []string{"internal/exchange", "internal/gateway"}},
	{"cmd/credential-provider", "the kubelet's plugin", []string{"internal/base", "internal/node"}, nil},
	{"cmd/kubectl-pullpass", "what kubectl users ask, with their own rights", []string{
		"internal/base", "internal/cluster", "internal/node", "internal/policy", "internal/refusal", "internal/server",
	}, []string{"internal/config", "internal/exchange"}},
	{"cmd/demo", "the whole flow on one machine", nil, nil},
	{"credential", "the package that others import: it brings nothing along", nil, nil},
	{"cmd/docker-credential-pullpass", "the credential helper", []string{"credential"}, nil},
	{"deploy", "files for installing", nil, []string{"internal/config", "internal/node", "internal/oidc", "internal/policy"}},
}

// libraries has every module that production code imports, and where it may. A new one needs a line, and a look at its age, maintainers and size.
var libraries = map[string][]string{
	"cel.dev/cel-go":                    {"internal/policy/condition"},
	"cloud.google.com/go":               {"internal/gateway/upstream/google"},
	"github.com/Azure/azure-sdk-for-go": {"internal/gateway/upstream/azure"},
	"github.com/CycloneDX/cyclonedx-go": {"deploy/sbom"},
	"github.com/aws/aws-sdk-go-v2":      {"internal/gateway/upstream/aws"},
	"github.com/aws/smithy-go":          {"internal/gateway/upstream/aws"},
	"github.com/coreos/go-oidc/v3":      {"internal/oidc", "internal/gateway/upstream/logins/loginstest"},
	"github.com/distribution/distribution/v3/registry/auth/token": {
		"cmd/demo", "internal/gateway", "internal/registryauth",
	},
	"github.com/distribution/distribution/v3":  {"cmd/demo", "internal/test"},
	"github.com/distribution/reference":        {"deploy/image"},
	"github.com/fsnotify/fsnotify":             {"internal/base/filewatch"},
	"github.com/go-chi/chi/v5":                 {"internal/server"},
	"github.com/go-jose/go-jose/v4":            {"cmd/demo", "internal/gateway", "internal/oidc", "internal/registryauth/signing", "internal/test"},
	"github.com/go-json-experiment/json":       {"internal/gateway", "internal/oidc"},
	"github.com/go-logr/logr":                  {"internal/server/telemetry"},
	"github.com/google/go-containerregistry":   {"cmd/demo", "deploy/image", "deploy/release"},
	"github.com/pelletier/go-toml/v2":          {"internal/node/containerd"}, // containerd's own
	"github.com/prometheus/client_golang":      {"internal/server/metrics", "internal/server/telemetry"},
	"github.com/redis/go-redis/v9":             {"internal/state"},
	"github.com/rogpeppe/go-internal":          {"internal/test"},
	"github.com/santhosh-tekuri/jsonschema/v6": {"internal/test"},
	"github.com/sirupsen/logrus":               {"cmd", "internal/test"}, // distribution's logger, which is silenced
	"github.com/spf13/cobra":                   {"cmd/proxy", "cmd/kubectl-pullpass"},
	"go.opentelemetry.io/otel/attribute":       {"internal"},
	"go.opentelemetry.io/otel/codes":           {"internal"},
	"go.opentelemetry.io/otel/trace":           {"internal"},
	"go.opentelemetry.io":                      {"internal/server/telemetry"},
	"go.yaml.in/yaml/v3":                       {"internal"},
	"golang.org/x/crypto":                      {"deploy/image/roots", "internal/test"},
	"golang.org/x/sync":                        {"internal"},
	"golang.org/x/sys":                         {"internal/node/hostfs"},
	"k8s.io/api":                               {"internal/cluster", "cmd/kubectl-pullpass", "internal/node/progress", "internal/node/rollout", "internal/pullsecrets"},
	"k8s.io/apimachinery":                      {"internal", "cmd/kubectl-pullpass"},
	"k8s.io/client-go":                         {"internal/cluster", "internal/config/setup", "cmd/kubectl-pullpass", "internal/node/progress", "internal/node/rollout", "internal/pullsecrets"},
	"k8s.io/klog/v2":                           {"cmd/proxy", "internal/cluster"},
	"sigs.k8s.io/yaml":                         {"cmd/demo", "deploy/release", "cmd/kubectl-pullpass"},
}

// unreachable says what must not be linked into a package, through whatever it
// imports.
var unreachable = map[string][]string{
	// It reads and writes where others may put links: it knows no more than files.
	"internal/node/hostfs": {"net", module + "/internal"},
	// The decision stays testable without clients, servers and telemetry.
	"internal/policy": {
		"k8s.io/client-go", "github.com/redis/go-redis/v9", "github.com/go-chi/chi/v5", "go.opentelemetry.io/otel/sdk",
		"github.com/spf13/cobra", "github.com/fsnotify/fsnotify", "github.com/prometheus",
	},
	"internal/exchange": {
		"k8s.io/client-go", "github.com/redis/go-redis/v9", "github.com/go-chi/chi/v5", "go.opentelemetry.io/otel/sdk",
		"github.com/spf13/cobra", "github.com/fsnotify/fsnotify", "github.com/prometheus",
	},
	// A client of a registry knows no cloud: its logins do.
	"internal/gateway/upstream": {"github.com/aws", "cloud.google.com", "github.com/Azure"},
	"internal/gateway":          {"github.com/aws", "cloud.google.com", "github.com/Azure", "k8s.io/client-go"},
	// They are counterparts in tests and in the demo, not parts of the product. Of
	// distribution, registryauth uses what declares the claims of a token.
	"cmd/proxy": {
		"github.com/distribution/distribution/v3/configuration", "github.com/distribution/distribution/v3/registry/handlers",
		"github.com/distribution/distribution/v3/registry/storage", "github.com/google/go-containerregistry", "k8s.io/kubernetes",
		"github.com/CycloneDX/cyclonedx-go", "golang.org/x/crypto/x509roots",
		// They link every API group there is: a quarter more of a program.
		"k8s.io/client-go/kubernetes", "k8s.io/client-go/informers", "k8s.io/client-go/tools/leaderelection",
	},
	// Developers install it: it has neither Pullpass's server nor every API group.
	"cmd/kubectl-pullpass": {
		module + "/internal/config", module + "/internal/gateway", module + "/internal/state", module + "/internal/node/hostfs",
		"k8s.io/client-go/kubernetes", "k8s.io/client-go/informers",
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
	"internal/oidc", "internal/registryauth/signing", "internal/registryauth", "internal/exchange", "cmd/proxy", "cmd/credential-provider",
}

// testHelpers are packages for the tests of others. Production code cannot
// import them: it would reach testing.
const testHelpers = "internal/test"

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
			{ImportPath: module + "/internal/registryauth/signing", TestImports: []string{module + "/internal/test/pkitest"}},
			{ImportPath: module + "/internal/registryauth", Imports: []string{module + "/internal/registryauth/signing"}},
			{ImportPath: module + "/internal/test/pkitest", Imports: []string{"testing"}, Deps: []string{"testing"}},
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

	// The files that git tracks or would add: build results and local keys do not count.
	for path := range strings.SplitSeq(string(output(t, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")), "\x00") {
		if path == "" {
			continue
		}
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted, and not committed yet
		}
		testkit.Must(t, err)
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
