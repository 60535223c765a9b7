package config

import (
	"encoding/json"
	"errors"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

var updateConfig = flag.Bool("update-config", false, "write what ParseConfig says into testdata/config")

// Each file of testdata/config holds a configuration and what ParseConfig makes
// of it: faults, or the whole configuration (want) and warnings.
func TestParseConfig(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("testdata/config/*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			t.Parallel()
			archive, err := txtar.ParseFile(name)
			testkit.Must(t, err)
			config, err := Parse(section(t, archive, "config.yaml"), "config.yaml", "/etc/pullpass")
			got := map[string]string{"faults": "", "warnings": "", "want": ""}
			if err != nil {
				got["faults"] = err.Error() + "\n"
			} else {
				if len(config.Warnings) > 0 {
					got["warnings"] = strings.Join(config.Warnings, "\n") + "\n"
				}
				got["want"] = marshalled(t, config)
			}
			for i := range archive.Files {
				file := &archive.Files[i]
				if file.Name == "config.yaml" {
					continue
				}
				if *updateConfig {
					file.Data = []byte(got[file.Name])
				}
				if want := string(file.Data); got[file.Name] != want {
					t.Errorf("%s:\n%s\nwant:\n%s", file.Name, got[file.Name], want)
				}
				delete(got, file.Name)
			}
			delete(got, "want") // most cases are not about the whole of it
			for name, text := range got {
				if text != "" {
					t.Errorf("%s:\n%s\nwant none", name, text)
				}
			}
			if *updateConfig {
				testkit.Must(t, os.WriteFile(name, txtar.Format(archive), 0o644))
			}
		})
	}
}

func section(t *testing.T, archive *txtar.Archive, name string) []byte {
	t.Helper()
	i := slices.IndexFunc(archive.Files, func(f txtar.File) bool { return f.Name == name })
	if i < 0 {
		t.Fatalf("the case has no %s", name)
	}
	return archive.Files[i].Data
}

func marshalled(t testing.TB, config *Config) string {
	t.Helper()
	text := testkit.Value(yaml.Marshal(config))(t)
	return string(text)
}

// A field that is added without a thought about its default and its file name
// would be missing in the case that shows every field.
func TestEveryFieldIsInTheExampleOfAllFields(t *testing.T) {
	t.Parallel()
	archive := testkit.Value(txtar.ParseFile("testdata/config/every-field.txtar"))(t)
	var written any
	testkit.Must(t, yaml.Unmarshal(section(t, archive, "config.yaml"), &written))
	fieldsIn(t, "", reflect.TypeFor[Config](), written)
}

func fieldsIn(t *testing.T, path string, typ reflect.Type, written any) {
	t.Helper()
	switch typ.Kind() {
	case reflect.Pointer:
		fieldsIn(t, path, typ.Elem(), written)
	case reflect.Slice:
		if list, ok := written.([]any); ok && len(list) > 0 {
			fieldsIn(t, path+"[0]", typ.Elem(), together(list))
		}
	case reflect.Struct:
		mapping, ok := written.(map[string]any)
		if !ok {
			return // netip.Prefix
		}
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			if name == "" || name == "-" {
				continue
			}
			value, ok := mapping[name]
			if !ok {
				t.Errorf("%s is not in the example", strictyaml.Join(path, name))
				continue
			}
			fieldsIn(t, strictyaml.Join(path, name), typ.Field(i).Type, value)
		}
	}
}

// together has the fields of all elements: of some fields, one of them can have
// only one.
func together(list []any) any {
	all, ok := list[0].(map[string]any)
	if !ok {
		return list[0]
	}
	all = maps.Clone(all)
	for _, element := range list[1:] {
		for name, value := range element.(map[string]any) {
			if have, ok := all[name].(map[string]any); ok {
				value = together([]any{have, value})
			}
			all[name] = value
		}
	}
	return all
}

// With every field at its default, and with every field written out, the
// configuration is the same.
func TestDefaultsAreWhatTheExampleOfAllFieldsShows(t *testing.T) {
	t.Parallel()
	config := func(name string) *Config {
		archive := testkit.Value(txtar.ParseFile("testdata/config/" + name))(t)
		c := testkit.Value(Parse(section(t, archive, "config.yaml"), name, "/etc/pullpass"))(t)
		return c
	}
	want := config("every-field.txtar")
	want.Server.TLS, want.Gateway, want.Upstreams = TLSFiles{}, nil, []Upstream{} // which have no default
	want.Assertions, want.Clusters = nil, want.Clusters[:1]
	want.Server.TrustedProxies = nil
	got := config("defaults.txtar")
	got.Server.TrustedProxies = nil
	if got, want := marshalled(t, got), marshalled(t, want); got != want {
		t.Errorf("the defaults are\n%s\nthe example shows\n%s", got, want)
	}
}

func TestExampleConfigurationIsAccepted(t *testing.T) {
	t.Parallel()
	c := testkit.Value(Load("../../examples/pullpass.yaml"))(t)
	if len(c.Warnings) > 0 {
		t.Errorf("warnings: %q", c.Warnings)
	}
	if want := filepath.Join("../../examples", "policy.yaml"); c.PolicyFiles[0] != want {
		t.Errorf("policyFiles[0] is %q, want %q: relative to the file", c.PolicyFiles[0], want)
	}
	if err := c.CheckListeners(false); err != nil {
		t.Error(err)
	}
}

// Two services must never share a directory of keys, and no service may choose
// a directory outside: the name is part of a path.
func TestServicesHaveDirectoriesOfTheirOwn(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, service := range []string{"a", "A", "a/b", "a%2fb", "a b", "a_b", ".", "..", "../a", "a..b", "%41", "registry.example.com:5000"} {
		name := escapeFileName(service)
		if name == "." || name == ".." || strings.ContainsAny(name, "/\\ ") {
			t.Errorf("%q becomes %q, which is not the name of a directory", service, name)
		}
		if other, twice := seen[strings.ToLower(name)]; twice {
			t.Errorf("%q and %q both become %q", service, other, name)
		}
		seen[strings.ToLower(name)] = service
	}
}

func TestLoadConfigNamesAFileThatCannotBeRead(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "missing.yaml")
	_, err := Load(name)
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), name) {
		t.Errorf("error %v, want one about %s that does not exist", err, name)
	}
}

// The size is judged before anything is parsed.
func TestLoadConfigRefusesAHugeFile(t *testing.T) {
	t.Parallel()
	const minimal = "kind: AccessPolicy\n#"
	name := filepath.Join(t.TempDir(), "huge.yaml")
	testkit.Must(t, os.WriteFile(name, []byte(minimal+strings.Repeat("x", MaxBytes)), 0o600))
	if _, err := Load(name); err == nil || !strings.Contains(err.Error(), "more than 1048576 bytes") {
		t.Errorf("LoadConfig: %v, want a refusal for its size", err)
	}
	if _, err := Parse([]byte(minimal+strings.Repeat("x", MaxBytes)), "huge.yaml", "/"); err == nil || !strings.Contains(err.Error(), "more than 1048576 bytes") {
		t.Errorf("ParseConfig: %v, want a refusal for its size", err)
	}
}

// A small file must not become a large one by aliases of aliases.
func TestAliasesDoNotMultiply(t *testing.T) {
	t.Parallel()
	text := "apiVersion: pullpass.dev/v1beta1\nkind: ProxyConfiguration\nclusters:\n" +
		"- &c {name: a, audiences: [" + strings.Repeat("a, ", 1000) + "a]}\n" + strings.Repeat("- *c\n", 1000)
	_, err := Parse([]byte(text), "config.yaml", "/")
	if err == nil || !strings.Contains(err.Error(), "config.yaml: line 522: with its aliases written out, the document has more than 1048576 bytes; use fewer") {
		t.Errorf("error %.200v, want a refusal for the size", err)
	}
}

func FuzzConfig(f *testing.F) {
	names := testkit.Value(filepath.Glob("testdata/config/*.txtar"))(f)
	for _, name := range names {
		archive := testkit.Value(txtar.ParseFile(name))(f)
		f.Add(archive.Files[0].Data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := Parse(data, "config.yaml", "/etc/pullpass")
		if (first == nil) == (err == nil) {
			t.Fatalf("configuration %v with error %v", first, err)
		}
		if err != nil {
			if strings.Contains(err.Error(), "\x1b") {
				t.Fatalf("the fault would write to a terminal: %q", err)
			}
			return
		}
		text, err := json.Marshal(first)
		testkit.Must(t, err)
		again, err := Parse(text, "config.yaml", "/etc/pullpass")
		if err != nil {
			t.Fatalf("what was accepted is refused when it is written out: %v\n%s", err, text)
		}
		first.Warnings, again.Warnings = nil, nil // some are about what was written out
		if !reflect.DeepEqual(first, again) {
			t.Fatalf("%+v\nbecame\n%+v", first, again)
		}
	})
}

func TestLimitsAreAccepted(t *testing.T) {
	t.Parallel()
	for _, limit := range []Limit{{Rate: maxRate, Burst: 1}, {Rate: 1. / 86400, Burst: 1}, {Rate: 25000, Burst: 2147483647}} {
		v := &validator{Validator: strictyaml.NewValidator(strictyaml.NewDecoder(""))}
		if v.limit("limit", limit); len(v.List) > 0 {
			t.Errorf("%+v: %v", limit, v.List[0])
		}
	}
}

// The configuration in the document is accepted. Its values are the defaults.
func TestConfigurationDocument(t *testing.T) {
	t.Parallel()
	block := []byte(testkit.Read(t, "../../docs/reference/configuration.yaml"))
	shown := testkit.Value(Parse(block, "shown", "/etc/pullpass"))(t)
	var written any
	testkit.Must(t, yaml.Unmarshal(block, &written))
	fieldsIn(t, "", reflect.TypeFor[Config](), written)

	plain := testkit.Value(Parse([]byte(`
apiVersion: pullpass.dev/v1beta1
kind: ProxyConfiguration
server: {tls: {certFile: tls.crt, keyFile: tls.key}}
clusters: [{name: prod-eu, issuer: "https://oidc.prod-eu.example.com", audiences: [registry.example.com]},
  {name: autopilot, issuer: "https://oidc.autopilot.example.com", audiences: [registry.example.com], kubernetes: {kubeconfigFile: autopilot.kubeconfig},
  pullSecrets: {audience: pull.registry.example.com, namespaces: ["team-*"]}}]
identities: [{name: github, issuer: "https://token.actions.githubusercontent.com", profile: github, audiences: [registry.example.com], require: {repository_owner_id: ["1234"]}}]
registries: [{service: registry.example.com, issuer: pullpass.example.com}, {service: gateway.example.com, issuer: pullpass.example.com}]
gateway: {url: "https://gateway.example.com", service: gateway.example.com}
upstreams: [{name: ghcr.io, credential: {basic: {username: acme-robot, passwordFile: ghcr.pass}}}, {name: 123456789012.dkr.ecr.eu-central-1.amazonaws.com, credential: {aws: {}}},
  {name: europe-docker.pkg.dev, credential: {google: {}}}, {name: acme.azurecr.io, credential: {azure: {}}},
  {name: quay.io, credential: {quay: {robot: acme+pullpass}}}, {name: acme.jfrog.io, credential: {artifactory: {provider: pullpass}}}]
assertions: {issuer: "https://pullpass.example.com"}
policyFiles: [policy.yaml]
`), "plain", "/etc/pullpass"))(t)
	// Written out, an empty list is a list.
	shown.Warnings, shown.File, plain.File = nil, "", ""
	left := testkit.Value(yaml.Marshal(shown))(t)
	right := testkit.Value(yaml.Marshal(plain))(t)
	if string(left) != string(right) {
		t.Errorf("the document shows\n%s\nand the defaults are\n%s", left, right)
	}
}

// Each entry that docs/how-to/upstreams.md shows is accepted.
func TestUpstreamsDocument(t *testing.T) {
	t.Parallel()
	document := testkit.Read(t, "../../docs/how-to/upstreams.md")
	shown := 0
	for _, block := range strings.Split(document, "```yaml\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		if !strings.HasPrefix(block, "upstreams:") {
			continue
		}
		shown++
		text := `
apiVersion: pullpass.dev/v1beta1
kind: ProxyConfiguration
server: {tls: {certFile: tls.crt, keyFile: tls.key}}
clusters: [{name: prod-eu, issuer: "https://oidc.prod-eu.example.com", audiences: [gateway.example.com]}]
registries: [{service: gateway.example.com, issuer: pullpass.example.com}]
gateway: {url: "https://gateway.example.com", service: gateway.example.com}
assertions: {issuer: https://pullpass.example.com}
policyFiles: [policy.yaml]
` + block
		if _, err := Parse([]byte(text), "shown", "/etc/pullpass"); err != nil {
			t.Errorf("%v\n%s", err, block)
		}
	}
	if shown < 6 {
		t.Errorf("%d examples are shown, want one for passwords and one for each kind of login", shown)
	}
}
