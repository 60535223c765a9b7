package suggest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/policytest"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const service = "registry.example.com"

// line is a request of which nothing was granted.
func line(id, namespace, account string, scopes ...string) *exchange.Event {
	return &exchange.Event{
		ID: id, Status: 200, Result: exchange.ResultNone, Reason: "scope_not_granted", Service: service, Cluster: "prod",
		Namespace: namespace, ServiceAccount: &exchange.Object{Name: account}, Requested: scopes,
	}
}

func job(id, project, ref string, scopes ...string) *exchange.Event {
	return &exchange.Event{
		ID: id, Status: 200, Result: exchange.ResultNone, Reason: "scope_not_granted", Service: service, Requested: scopes,
		Identity: &exchange.Identity{Name: "github", Project: project, Claims: map[string]string{"repository_id": project, "repository_owner_id": "7", "ref": ref}},
	}
}

func suggestion(c Config, events ...*exchange.Event) *Suggestion {
	c.Profiles = Profiles{
		"github": identity.GitHub, "gitlab": identity.GitLab, "buildkite": identity.Buildkite, "circleci": identity.CircleCI,
		"bitbucket": identity.Bitbucket, "terraform": identity.Terraform, "jenkins": identity.Generic,
	}
	s := New(c)
	for _, e := range events {
		_ = s.Add(e)
	}
	return s
}

func TestPolicy(t *testing.T) {
	t.Parallel()
	refused := line("a1", "team-a", "web", "repository:team-a/web:pull")
	refused.Status, refused.Reason = 403, "subject_denied"
	unverified := line("a2", "team-a", "web", "repository:team-a/web:pull")
	unverified.Status, unverified.Reason = 401, "token_expired"
	partial := line("a3", "team-a", "web", "repository:team-a/web:pull,push", "repository:shared/base:pull")
	partial.Granted = []string{"repository:team-a/web:pull"}
	granted := line("a4", "team-a", "web", "repository:team-a/web:pull")
	granted.Granted, granted.Reason = granted.Requested, ""
	for name, test := range map[string]struct {
		config Config
		events []*exchange.Event
		want   string
	}{
		"nothing": {Config{AtLeast: 3}, []*exchange.Event{refused, unverified, granted, line("x", "team-a", "web"), line("y", "team-a", "web", "nonsense")}, ""},
		"what was missing": {Config{AtLeast: 3}, []*exchange.Event{partial, granted}, `
# Requested 2 times, as in a3
- name: suggested-1
  subjects:
  - {clusters: ["prod"], namespaces: ["team-a"], serviceAccounts: ["web"]}
  services: ["registry.example.com"]
  allow:
  - {repositories: ["shared/base"], actions: ["pull"]}
  - {repositories: ["team-a/web"], actions: ["push"]}
`},
		"from nothing": {Config{AtLeast: 3, FromNothing: true}, []*exchange.Event{granted}, `
# Requested 1 times, as in a4
- name: suggested-1
  subjects:
  - {clusters: ["prod"], namespaces: ["team-a"], serviceAccounts: ["web"]}
  services: ["registry.example.com"]
  allow:
  - {repositories: ["team-a/web"], actions: ["pull"]}
`},
		"what the policy grants now": {Config{AtLeast: 3, Grants: func(*exchange.Event, registryauth.Scope) []string { return []string{"push"} }}, []*exchange.Event{partial}, `
# Requested 1 times, as in a3
- name: suggested-1
  subjects:
  - {clusters: ["prod"], namespaces: ["team-a"], serviceAccounts: ["web"]}
  services: ["registry.example.com"]
  allow:
  - {repositories: ["shared/base"], actions: ["pull"]}
`},
		"too few for a pattern": {Config{AtLeast: 3}, []*exchange.Event{line("1", "a", "web", "repository:a/x:pull"), line("2", "a", "web", "repository:a/y:pull")}, `
# Requested 2 times, as in 1, 2
- name: suggested-1
  subjects:
  - {clusters: ["prod"], namespaces: ["a"], serviceAccounts: ["web"]}
  services: ["registry.example.com"]
  allow:
  - {repositories: ["a/x", "a/y"], actions: ["pull"]}
`},
		"below": {Config{AtLeast: 2}, []*exchange.Event{line("1", "a", "web", "repository:shared/x:pull"), line("2", "a", "web", "repository:shared/y:pull"), line("3", "a", "web", "repository:shared/z:push")}, `
# Requested 3 times, as in 1, 2, 3
# Wider than the lines, by **: shared/**
- name: suggested-1
  subjects:
  - {clusters: ["prod"], namespaces: ["a"], serviceAccounts: ["web"]}
  services: ["registry.example.com"]
  allow:
  - {repositories: ["shared/**"], actions: ["pull"]}
  - {repositories: ["shared/z"], actions: ["push"]}
`},
		"the namespace": {Config{AtLeast: 2}, []*exchange.Event{line("1", "a", "web", "repository:a/web:pull"), line("2", "b", "web", "repository:b/web:pull"), line("3", "b", "web", "repository:a/web:pull")}, `
# Requested 1 times, as in 1
- name: suggested-1
  subjects:
  - {clusters: ["prod"], namespaces: ["a"], serviceAccounts: ["web"]}
  services: ["registry.example.com"]
  allow:
  - {repositories: ["{namespace}/web"], actions: ["pull"]}
# Requested 2 times, as in 2, 3
- name: suggested-2
  subjects:
  - {clusters: ["prod"], namespaces: ["b"], serviceAccounts: ["web"]}
  services: ["registry.example.com"]
  allow:
  - {repositories: ["a/web", "{namespace}/web"], actions: ["pull"]}
`},
		"below the namespace": {Config{AtLeast: 3}, []*exchange.Event{
			line("1", "a", "web", "repository:a/web:pull"), line("2", "b", "web", "repository:b/web:pull"), line("3", "b", "web", "repository:b/x:pull"), line("4", "c", "ci", "repository:c/x:pull"),
		}, `
# Requested 4 times, as in 1, 2, 3
# Wider than the lines, by **: {namespace}/**
- name: suggested-1
  subjects:
  - {clusters: ["prod"], namespaces: ["a", "b"], serviceAccounts: ["web"]}
  - {clusters: ["prod"], namespaces: ["c"], serviceAccounts: ["ci"]}
  services: ["registry.example.com"]
  allow:
  - {repositories: ["{namespace}/**"], actions: ["pull"]}
`},
		"a line that is not one of Pullpass": {Config{AtLeast: 3}, []*exchange.Event{line("1\n- name: all", "a", "web", "repository:a/web:pull")}, `
# Requested 1 times, as in a text of several lines
- name: suggested-1
  subjects:
  - {clusters: ["prod"], namespaces: ["a"], serviceAccounts: ["web"]}
  services: ["registry.example.com"]
  allow:
  - {repositories: ["a/web"], actions: ["pull"]}
`},
		"jobs": {Config{AtLeast: 3}, []*exchange.Event{
			job("1", "42", "refs/heads/main", "repository:team-a/web:push"), job("2", "43", "refs/heads/main", "repository:team-a/web:push"), job("3", "43", "", "repository:team-a/web:push"),
		}, `
# Requested 2 times, as in 1, 2
- name: suggested-1
  subjects:
  - {identities: ["github"], claims: {repository_id: ["42", "43"], ref: ["refs/heads/main"]}}
  services: ["registry.example.com"]
  allow:
  - {repositories: ["team-a/web"], actions: ["push"]}
`},
	} {
		s := suggestion(test.config, test.events...)
		want := test.want
		if want != "" {
			want = "apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicy\nrules:" + want
		}
		if got := s.Policy(); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
		}
		if (s.Tests() == "") != (want == "") {
			t.Errorf("%s: tests\n%s", name, s.Tests())
		}
	}
}

// Conditions see the issuer of the cluster and the subject of the line.
func TestGrantsOf(t *testing.T) {
	t.Parallel()
	p := testkit.Value(policy.Parse(policy.File{Name: "p", Data: []byte(`
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- {name: all, subjects: [{condition: 'claims.iss == "https://prod.example.com" && claims.sub.endsWith(":web")'}], allow: [{repositories: ["**"], actions: [pull]}]}
`)}))(t)
	grants := GrantsOf(p, map[string]string{"prod": "https://prod.example.com"})
	scope := testkit.Value(registryauth.ParseScope("repository:a:pull"))(t)
	for account, want := range map[string]string{"web": "[pull]", "other": "[]"} {
		if got := fmt.Sprint(grants(line("1", "team-a", account), scope)); got != want {
			t.Errorf("%s: %s, want %s", account, got, want)
		}
	}
}

// No rule is suggested where it would not help, or would mean others. The lines are counted.
func TestSkipped(t *testing.T) {
	t.Parallel()
	denied := line("1", "a", "web", "repository:a:pull")
	denied.Status, denied.Reason = 403, "subject_denied"
	anonymous := line("2", "", "", "repository:a:pull")
	anonymous.ServiceAccount = nil
	unknown := job("3", "42", "", "repository:a:pull")
	unknown.Identity.Name = "unknown"
	ofGateway := line("8", "a", "web", "repository:a:pull")
	ofGateway.Gateway = &exchange.GatewayRequest{}
	elsewhere := line("10", "a", "web", "repository:a:pull")
	elsewhere.Service = ""
	again := line("9", "a", "web", "repository:a:pull")
	again.Retry = true
	s := suggestion(Config{AtLeast: 1}, denied, anonymous, unknown, line("4", "a*", "web", "repository:a:pull"), job("5", "4*", "", "repository:a:pull"), job("5", "4", "*", "repository:a:pull"), job("5", "", "", "repository:a:pull"),
		line("6", "a", "web", "registry:catalog:*"), line("7", "a", "web", "repository:a:fly"), ofGateway, again, elsewhere)
	got := fmt.Sprint(s.Skipped)
	want := "map[a denial refuses the caller:1 no ServiceAccount can have the caller's name:1 the caller is anonymous:1" +
		" the configuration has no identity of their caller, or its tokens name no project:3 the line does not say which branch or tag the job runs:1 their registry is not known:1 they ask for something other than pull, push or delete on a repository:2]"
	if got != want || s.Policy() != "" {
		t.Errorf("%s\nwant\n%s\n%s", got, want, s.Policy())
	}
}

// A rule for a job is for its branch or tag alone, whatever the provider calls it. A line that does
// not name it, as of a branch with a very long name, gets no rule: it would be for every branch.
func TestRefs(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		provider string
		claims   map[string]string
		want     string // empty: left out
	}{
		{"github", map[string]string{"ref": "refs/heads/main"}, `{repository_id: ["42"], ref: ["refs/heads/main"]}`},
		{"gitlab", map[string]string{"ref": "v1", "ref_type": "tag"}, `{project_id: ["42"], ref: ["v1"], ref_type: ["tag"]}`},
		{"gitlab", map[string]string{"ref_type": "branch"}, ""},
		{"gitlab", map[string]string{"ref": "v1", "ref_type": "*"}, ""},
		{"buildkite", map[string]string{"build_branch": "main"}, `{pipeline_id: ["42"], build_branch: ["main"]}`},
		{"buildkite", map[string]string{"build_branch": "main", "build_tag": "v1"}, `{pipeline_id: ["42"], build_branch: ["main"], build_tag: ["v1"]}`},
		{"buildkite", map[string]string{"build_branch": "*"}, ""},
		{"circleci", map[string]string{"oidc.circleci.com/vcs-ref": "refs/heads/main"}, `{oidc.circleci.com/project-id: ["42"], oidc.circleci.com/vcs-ref: ["refs/heads/main"]}`},
		{"bitbucket", map[string]string{"branchName": "main"}, `{repositoryUuid: ["42"], branchName: ["main"]}`},
		{"bitbucket", nil, ""},
		{"terraform", map[string]string{"terraform_run_phase": "apply"}, `{terraform_workspace_id: ["42"], terraform_run_phase: ["apply"]}`},
		{"jenkins", nil, `{sub: ["42"]}`},
	} {
		e := job("1", "42", "", "repository:team-a/web:push")
		e.Identity.Name, e.Identity.Claims = test.provider, test.claims
		s := suggestion(Config{AtLeast: 1}, e)
		_, rest, _ := strings.Cut(s.Policy(), ", claims: ")
		got, _, _ := strings.Cut(rest, "}\n")
		if got != test.want || (got == "") != (s.Skipped["the line does not say which branch or tag the job runs"] == 1) {
			t.Errorf("%s %v: %s, want %s; left out: %v", test.provider, test.claims, got, test.want, s.Skipped)
		}
	}
}

// A project that is the sub has no claim in the log. Without it, the test of the suggestion could not run.
func TestTestsNameTheProject(t *testing.T) {
	t.Parallel()
	e := job("1", "42", "", "repository:team-a/web:push")
	e.Identity.Name, e.Identity.Claims = "jenkins", nil
	if got, want := suggestion(Config{AtLeast: 1}, e).Tests(), `identity: {provider: "jenkins", claims: {"sub": "42"}}`; !strings.Contains(got, want) {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// A suggestion grants the requests, and more only by **. The order of the lines changes nothing.
func TestSuggestionsAreExact(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	namespaces, accounts, repositories := []string{"a", "b", "c"}, []string{"web", "ci"}, []string{"x", "a/x", "a/y", "b/x", "b/y", "c/x", "a/deep/x", "b/deep/x", "shared/x", "shared/y"}
	actions := []string{"pull", "push", "delete"}
	pick := func(list []string) string { return list[random.IntN(len(list))] }
	widened := 0
	for round := range 300 {
		var events []*exchange.Event
		for i := range 1 + random.IntN(20) {
			e := line(fmt.Sprint(i), pick(namespaces), pick(accounts), "repository:"+pick(repositories)+":"+pick(actions))
			if random.IntN(5) == 0 {
				e = job(fmt.Sprint(i), fmt.Sprint(42+random.IntN(3)), pick([]string{"refs/heads/main", "refs/heads/next"}), e.Requested...)
			}
			events = append(events, e)
		}
		c := Config{AtLeast: 1 + random.IntN(4)}
		s := suggestion(c, events...)
		text := s.Policy()
		random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		if again := suggestion(c, events...); again.Policy() != text || again.Tests() != s.Tests() {
			t.Fatalf("round %d: another order of the lines says\n%s\nand not\n%s", round, again.Policy(), text)
		}
		profiles := map[string]identity.Profile{"github": identity.GitHub}
		p := testkit.Value(policy.ParseFor(profiles, policy.File{Name: "p", Data: []byte(text)}))(t)
		for _, namespace := range namespaces {
			for _, account := range accounts {
				id := &oidc.Identity{Cluster: "prod", Kubernetes: oidc.KubernetesIdentity{Namespace: namespace, ServiceAccount: oidc.ObjectRef{Name: account}}}
				for _, repository := range repositories {
					for _, action := range actions {
						scope := registryauth.Scope{Type: "repository", Name: repository, Actions: []string{action}}
						asked := slices.ContainsFunc(events, func(e *exchange.Event) bool {
							return e.Identity == nil && e.Namespace == namespace && e.ServiceAccount.Name == account && e.Requested[0] == scope.String()
						})
						granted := len(p.Decide(policy.Subject{Identity: id}, service, []registryauth.Scope{scope}).Granted()) > 0
						switch {
						case asked && !granted:
							t.Fatalf("round %d: %s/%s does not get %s\n%s", round, namespace, account, scope, text)
						case granted && !asked && !strings.Contains(text, "**"):
							t.Fatalf("round %d: %s/%s gets %s\n%s", round, namespace, account, scope, text)
						case granted && !asked:
							widened++
						}
						if other := p.Decide(policy.Subject{Identity: id}, "another.example.com", []registryauth.Scope{scope}); len(other.Granted()) > 0 {
							t.Fatalf("round %d: another service grants %s\n%s", round, scope, text)
						}
					}
				}
			}
		}
		suite := testkit.Value(policytest.Parse(map[string]*oidc.Issuer{"github": {Provider: &oidc.Provider{Name: "github", Profile: identity.GitHub}}}, policy.File{Name: "t", Data: []byte(s.Tests())}))(t)
		for _, test := range suite.Cases {
			if differences, _, _ := policytest.Run(p, test); len(differences) > 0 {
				t.Fatalf("round %d: %s: %s\n%s\n%s", round, test.Name, differences, text, s.Tests())
			}
		}
	}
	if widened == 0 {
		t.Error("no pattern was tried")
	}
}
