package ci_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/subjects"
	"github.com/pullpass/pullpass/internal/policy/warning"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const document = "../../docs/how-to/ci.md"

// blocks returns the YAML of the document, by the file that it is of, in order.
func blocks(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	for _, part := range strings.Split(testkit.Read(t, document), "```yaml\n# ")[1:] {
		block, _, _ := strings.Cut(part, "```")
		file, content, _ := strings.Cut(block, "\n")
		found[file] = append(found[file], content)
	}
	return found
}

func parse[T any](t *testing.T, block string) (value T) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(block), &value); err != nil {
		t.Fatalf("%v:\n%s", err, block)
	}
	return value
}

// What the document shows of Pullpass is accepted, and nothing is to be said
// against it.
func TestDocumentShowsIdentitiesAndPolicies(t *testing.T) {
	t.Parallel()
	configurations, policies := blocks(t)["pullpass.yaml"], blocks(t)["policy.yaml"]
	if len(configurations) != 2 || len(policies) != 2 {
		t.Fatalf("%d configurations, %d policies", len(configurations), len(policies))
	}
	for i := range configurations {
		c := testkit.Value(config.Parse([]byte(`
apiVersion: pullpass.dev/v1beta1
kind: ProxyConfiguration
server: {tls: {certFile: tls.crt, keyFile: tls.key}}
registries: [{service: registry.example.com, issuer: pullpass.example.com}]
policyFiles: [policy.yaml]
`+configurations[i]), document, "/"))(t)
		shown := c.Identities[0]
		if !slices.Equal(shown.Audiences, []string{registry}) {
			t.Errorf("identity %s: audiences %v, and the helper asks for %s", shown.Name, shown.Audiences, registry)
		}
		p := testkit.Value(policy.ParseFor(map[string]identity.Profile{shown.Name: shown.Profile}, policy.File{Name: document, Data: []byte(policies[i])}))(t)
		known := map[string]subjects.KnownIdentity{shown.Name: {Profile: shown.Profile, Require: slices.Sorted(maps.Keys(shown.Require))}}
		for _, caution := range warning.Cautions(p, known) {
			t.Error(caution)
		}
	}
	for _, profile := range identity.Generic.Values() {
		isCI := profile.RunClaim() != "" || profile == identity.Generic
		if strings.Contains(testkit.Read(t, document), ", `"+string(profile)+"` | ") != isCI {
			t.Errorf("profile %s: in the document's table: %t", profile, !isCI)
		}
	}
}

// The workflows and pipelines of the document fit the action and the template.
func TestDocumentShowsJobs(t *testing.T) {
	t.Parallel()
	workflows, pipelines := blocks(t)[".github/workflows/push.yaml"], blocks(t)[".gitlab-ci.yml"]
	if len(workflows) != 1 || len(pipelines) != 1 {
		t.Fatalf("%d workflows, %d pipelines", len(workflows), len(pipelines))
	}
	workflow := parse[struct {
		On          map[string]any
		Permissions map[string]string
		Jobs        map[string]struct {
			RunsOn string `json:"runs-on"`
			Steps  []struct {
				Uses, Run string
				With      map[string]string
			}
		}
	}](t, strings.Replace(workflows[0], "on: ", `"on": `, 1)) // which YAML 1.1 takes for true
	if workflow.Permissions["id-token"] != "write" {
		t.Errorf("permissions %v", workflow.Permissions)
	}
	step := workflow.Jobs["push"].Steps[1]
	if !strings.Contains(step.Uses, "/deploy/ci/github@") || step.With["registries"] != registry {
		t.Errorf("step %+v", step)
	}
	for input := range step.With {
		if _, found := readAction(t).Inputs[input]; !found {
			t.Errorf("the action has no input %s", input)
		}
	}

	steps := parse[[]struct {
		Uses, Run string
		With      map[string]string
	}](t, blocks(t)["a step of the workflow"][0])
	if steps[0].Uses != step.Uses || steps[0].With["push"] == "" || !strings.Contains(steps[1].Run, "--push --tag "+registry+"/team-a/web:") {
		t.Errorf("steps for BuildKit %+v", steps)
	}
	for input := range steps[0].With {
		if _, found := readAction(t).Inputs[input]; !found {
			t.Errorf("the action has no input %s", input)
		}
	}

	pipeline := parse[struct {
		Include []struct {
			Project, Ref, File string
			Inputs             map[string]string
		}
		Push struct {
			Extends, Image   string
			Services, Script []string
		}
	}](t, pipelines[0])
	template := readGitLab(t)
	if _, found := template.jobs[pipeline.Push.Extends]; !found || pipeline.Include[0].Inputs["registry"] != registry {
		t.Errorf("pipeline %+v", pipeline)
	}
	for input := range pipeline.Include[0].Inputs {
		if _, found := template.spec.Spec.Inputs[input]; !found {
			t.Errorf("the template has no input %s", input)
		}
	}
}
