package warning

import (
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func parse(t testing.TB, rules string) *policy.Policy {
	t.Helper()
	p := testkit.Value(policy.Parse(policy.File{Name: "policy.yaml", Data: []byte("apiVersion: " + policy.APIVersion + "\nkind: " + policy.Kind + "\n" + rules)}))(t)
	return p
}

func same(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A denial with a mistyped cluster would silently deny no subject.
func TestUnused(t *testing.T) {
	t.Parallel()
	p := parse(t, `
rules:
- name: good
  subjects: [{clusters: ["prod-*"]}, {namespaces: [a]}]
  services: [registry.example.com]
  allow: [{repositories: ["**"], actions: [pull]}]
- name: bad
  subjects: [{clusters: [prod-eu, stage]}, {identities: [github, gitlab]}]
  services: [registry.example.org]
  allow: [{repositories: ["**"], actions: [pull]}]
deny:
- name: mistyped
  subjects: [{clusters: [pord-eu], namespaces: [a]}]
`)
	want := []string{
		`rule bad: clusters: "stage" matches nothing that is configured (clusters[].name)`,
		`rule bad: identities: "gitlab" matches nothing that is configured (identities[].name)`,
		`rule bad: services: "registry.example.org" matches nothing that is configured (registries[].service)`,
		`deny rule mistyped: clusters: "pord-eu" matches nothing that is configured (clusters[].name)`,
	}
	same(t, Unused(p, []string{"prod-eu", "prod-us"}, []string{"github"}, []string{"registry.example.com"}), want)
}

func TestWithoutAnnotations(t *testing.T) {
	t.Parallel()
	p := parse(t, `
rules:
- {name: plain, subjects: [{clusters: ["*"]}], allow: [{repositories: [a], actions: [pull]}]}
- {name: asked, subjects: [{clusters: ["eu-*"]}, {namespaces: [a]}], annotation: k, allow: [{repositories: [a], actions: [pull]}]}
`)
	const end = ": its ServiceAccounts' annotations are not known without a connection or manifestFiles (clusters[].kubernetes)"
	want := []string{
		`rule asked: subjects[0] gets nothing in cluster "eu-1"` + end,
		`rule asked: subjects[1] gets nothing in cluster "eu-1"` + end,
		`rule asked: subjects[1] gets nothing in cluster "us"` + end,
	}
	same(t, WithoutAnnotations(p, []string{"eu-1", "us"}), want)
	if got := WithoutAnnotations(p, nil); got != nil {
		t.Errorf("without such clusters: %q", got)
	}
}

func TestWithoutLabels(t *testing.T) {
	t.Parallel()
	p := parse(t, `
rules:
- name: everywhere
  subjects: [{namespaces: [a]}, {namespaceSelector: team}]
  allow: [{repositories: [a], actions: [pull]}]
- name: elsewhere
  subjects: [{clusters: [prod], namespaceSelector: team}]
  allow: [{repositories: [a], actions: [pull]}]
- name: without-selector
  subjects: [{clusters: ["edge-*"]}]
  allow: [{repositories: [a], actions: [pull]}]
- name: public
  anonymous: true
  allow: [{repositories: [a], actions: [pull]}]
deny:
- {name: quarantine, subjects: [{clusters: ["*-2"], namespaceSelector: quarantine}]}
- {name: old, subjects: [{namespaces: [old]}]}
`)
	want := []string{
		`rule everywhere: subjects[1] matches no ServiceAccount of cluster "edge-1": its namespaces' labels are not known without a connection (clusters[].kubernetes)`,
		`rule everywhere: subjects[1] matches no ServiceAccount of cluster "edge-2": its namespaces' labels are not known without a connection (clusters[].kubernetes)`,
		`deny rule quarantine: subjects[0] refuses every ServiceAccount of cluster "edge-2" that its other fields match: its namespaces' labels are not known without a connection (clusters[].kubernetes)`,
	}
	same(t, WithoutLabels(p, []string{"edge-1", "edge-2"}), want)
	if got := WithoutLabels(p, nil); got != nil {
		t.Errorf("every cluster has a connection: %q", got)
	}
	// The decision agrees with the warning.
	edge := policy.Subject{Identity: &oidc.Identity{Cluster: "edge-2", Kubernetes: oidc.KubernetesIdentity{Namespace: "b", ServiceAccount: oidc.ObjectRef{Name: "x", UID: "u"}}}}
	if d := p.Decide(edge, "", nil); d.DeniedBy != "quarantine" {
		t.Errorf("denied by %q", d.DeniedBy)
	}
}

// A rule that names no cluster is for clusters where RepositoryAccess objects count.
func TestWithoutRequests(t *testing.T) {
	t.Parallel()
	p := parse(t, `
rules:
- {name: plain, subjects: [{clusters: ["*"]}], allow: [{repositories: [a], actions: [pull]}]}
- {name: asked, subjects: [{clusters: ["eu-*"]}, {namespaces: [a]}], requests: true, allow: [{repositories: [a], actions: [pull]}]}
`)
	const end = ": RepositoryAccess objects have no effect; set clusters[].kubernetes.objects.requests"
	named := `rule asked: subjects[0] gets nothing in cluster "eu-1"` + end
	same(t, WithoutRequests(p, []string{"eu-1", "us"}, false), []string{named})
	want := []string{named, `rule asked: subjects[1] gets nothing in cluster "eu-1"` + end, `rule asked: subjects[1] gets nothing in cluster "us"` + end}
	same(t, WithoutRequests(p, []string{"eu-1", "us"}, true), want) // they count in no cluster
}
