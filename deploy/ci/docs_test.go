package ci_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/pullpass/pullpass/internal/identity"
)

const document = "../../docs/ci.md"

// blocks returns the YAML of the document, by the file that it is of, in order.
func blocks(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	for _, part := range strings.Split(read(t, document), "```yaml\n# ")[1:] {
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

// What the document shows of Pullpass fits together, and fits what issuers write.
func TestDocumentShowsIdentitiesAndPolicies(t *testing.T) {
	t.Parallel()
	type provider struct {
		Name, Issuer, MaxTokenLifetime string
		Profile                        identity.Profile
		Audiences                      []string
		Require                        map[string][]string
	}
	type policy struct {
		APIVersion, Kind string
		Rules            []struct {
			Name     string
			Services []string
			Subjects []struct {
				Identities []string
				Claims     map[string][]string
			}
			Allow []struct{ Repositories, Actions []string }
		}
	}
	providers := map[string]provider{}
	for _, block := range blocks(t)["pullpass.yaml"] {
		for _, p := range parse[struct{ Identities []provider }](t, block).Identities {
			providers[p.Name] = p
			known, shared := identity.KnownIssuer(p.Issuer)
			tenant := len(known.Tenant) == 0 || slices.ContainsFunc(known.Tenant, func(claim string) bool { return len(p.Require[claim]) > 0 })
			if shared && (known.Profile != p.Profile || !tenant) {
				t.Errorf("identity %s: profile %s, require %v", p.Name, p.Profile, p.Require)
			}
			if !slices.Equal(p.Audiences, []string{registry}) || identity.AudienceOfOthers(p.Profile, p.Issuer, registry) != "" {
				t.Errorf("identity %s: audiences %v, and the helper asks for %s", p.Name, p.Audiences, registry)
			}
		}
	}
	policies := blocks(t)["policy.yaml"]
	if len(providers) != 2 || len(policies) != 2 {
		t.Fatalf("identities %v, %d policies", slices.Sorted(maps.Keys(providers)), len(policies))
	}
	for _, block := range policies {
		for _, rule := range parse[policy](t, block).Rules {
			if !slices.Equal(rule.Services, []string{registry}) || len(rule.Subjects) != 1 {
				t.Fatalf("rule %s: %+v", rule.Name, rule)
			}
			subject := rule.Subjects[0]
			if protected := subject.Claims["ref_protected"]; !slices.Equal(protected, []string{"true"}) {
				t.Errorf("rule %s: pushes with ref_protected %v", rule.Name, protected)
			}
			for _, name := range subject.Identities {
				for claim := range subject.Claims {
					if known, ok := providers[name].Profile.Claim(claim); !ok || known.Instead != "" {
						t.Errorf("rule %s: claim %s is no claim of %s, or a name", rule.Name, claim, providers[name].Profile)
					}
				}
			}
		}
	}
	for profile := range strings.SplitSeq("github gitlab buildkite circleci bitbucket terraform generic", " ") {
		if !slices.Contains(identity.Profile("").Values(), identity.Profile(profile)) || !strings.Contains(read(t, document), ", `"+profile+"` | ") {
			t.Errorf("profile %s is none, or not in the document's table", profile)
		}
	}
}

// What it shows of workflows and pipelines fits the action and the template.
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
