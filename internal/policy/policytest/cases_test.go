package policytest

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// issuers are the identities of the tests.
var issuers = map[string]*oidc.Issuer{
	"github": {Provider: &oidc.Provider{Name: "github", Profile: "github", Require: map[string][]string{"repository_owner_id": {"7"}}}, URL: "https://token.example.com", Audiences: []string{"registry.example.com"}},
	"circle": {Provider: &oidc.Provider{Name: "circle", Profile: "circleci"}, URL: "https://oidc.circleci.com/org/o-1", Audiences: []string{"registry.example.com"}},
}

// A test that would test nothing, or something else, is a fault, because a passing test must mean
// something. All faults are reported at once.
func TestCaseFaults(t *testing.T) {
	t.Parallel()
	archive := testkit.Value(txtar.ParseFile("testdata/casefaults.txtar"))(t)
	for pair := range slices.Chunk(archive.Files, 2) {
		t.Run(pair[0].Name, func(t *testing.T) {
			t.Parallel()
			cases, err := Parse(issuers, policy.File{Name: pair[0].Name, Data: pair[0].Data})
			if err == nil || cases != nil {
				t.Fatalf("parsed, error %v", err)
			}
			if want := strings.TrimSpace(string(pair[1].Data)); err.Error() != want {
				t.Errorf("got\n%v\nwant\n%s", err, want)
			}
		})
	}
}

const minimalCases = `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicyTests
tests: [{name: a, anonymous: true, expect: {granted: []}}]
`

func TestCaseFiles(t *testing.T) {
	t.Parallel()
	if _, err := Parse(issuers); err == nil || err.Error() != "no file with tests is given: name one" {
		t.Errorf("no file: %v", err)
	}
	_, err := Parse(issuers, policy.File{Name: "a", Data: []byte(minimalCases)}, policy.File{Name: "b", Data: []byte(minimalCases)})
	if want := `b: tests[0].name: "a" is taken by a: tests[0].name: names are unique over all files`; err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	_, err = Parse(issuers, policy.File{Name: "p", Data: bytes.Repeat([]byte{0xff}, policy.MaxBytes+1)})
	if err == nil || !strings.Contains(err.Error(), "at most 1048576 are read") {
		t.Errorf("a large file: %v", err)
	}
	long := strings.Replace(minimalCases, "name: a", "name: "+strings.Repeat("a", maxCaseName+1), 1)
	if _, err = Parse(issuers, policy.File{Name: "p", Data: []byte(long)}); err == nil || !strings.Contains(err.Error(), "is not a name: write one line of at most 200") {
		t.Errorf("a long name: %v", err)
	}
}

// Every valid name of a token can be tested. Kubernetes limits the length of a ServiceAccount's
// name, but not of its DNS labels.
// A value that cannot be read is one fault. Its consequences are not reported.
func TestCaseFaultsHaveNoConsequences(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicyTests\ntests:\n"
	var many []string
	for i := range registryauth.MaxScopes + 1 {
		many = append(many, fmt.Sprintf("'repository:a%d:pull'", i))
	}
	for text, want := range map[string]int{
		"- {name: 1, anonymous: true, expect: {granted: []}}\n- {name: 2, anonymous: true, expect: {granted: []}}\n":                                            2,
		"- {name: a, anonymous: true, scopes: [" + strings.Join(many, ", ") + "], expect: {granted: ['repository:b:pull']}}\n":                                  1,
		"- {name: a, anonymous: true, expect: {denied: 5}}\n":                                                                                                   1,
		"- {name: a, identity: {provider: 5, claims: {a: b}}, expect: {granted: []}}\n":                                                                         1,
		"- {name: \"~\", anonymous: true, expect: {granted: []}}\n- {name: " + strings.Repeat("n", maxCaseName) + ", anonymous: true, expect: {granted: []}}\n": 0,
		"- {name: caf\u00e9, anonymous: true, expect: {granted: []}}\n":                                                                                         1,
	} {
		_, err := Parse(issuers, policy.File{Name: "p", Data: []byte(head + text)})
		if got := strictyaml.Flatten(err); err == nil && want != 0 || err != nil && len(got) != want {
			t.Errorf("%s: %d faults, want %d: %v", text, len(got), want, err)
		}
	}
}

func TestCaseWithALongName(t *testing.T) {
	t.Parallel()
	identity := "identity: {cluster: c, namespace: team-a, serviceAccount: " + strings.Repeat("a", 253) + "}"
	text := strings.Replace(minimalCases, "anonymous: true", identity, 1)
	if _, err := Parse(issuers, policy.File{Name: "p", Data: []byte(text)}); err != nil {
		t.Error(err)
	}
}

// Every field of a test's subject reaches the policy.
func TestCaseSubject(t *testing.T) {
	t.Parallel()
	cases := testkit.Value(Parse(issuers, policy.File{Name: "p", Data: []byte(`
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicyTests
tests:
- name: all
  identity: {cluster: c, namespace: ns, serviceAccount: s.t, node: n1.example.com, tokenID: t1, annotations: {a.b/c: "", d: x}, namespaceLabels: {e.f/g: "", h: i}}
  service: Docker registry
  scopes: ["repository:b:*", "repository:a:push,pull", "repository:a:delete"]
  expect: {granted: ["repository:b:pull", "repository:a:pull", "repository:a:delete"], rules: [r], reason: because}
- name: least
  identity: {cluster: c, namespace: ns, serviceAccount: s, annotations: {}, namespaceLabels: {}}
  expect: {denied: d}
`)}))(t)
	id := &oidc.Identity{
		Cluster: "c", Kubernetes: oidc.KubernetesIdentity{Namespace: "ns", ServiceAccount: oidc.ObjectRef{Name: "s.t"}, Node: oidc.ObjectRef{Name: "n1.example.com", UID: "known"}},
		Subject: "system:serviceaccount:ns:s.t", TokenID: "t1",
	}
	least := &oidc.Identity{Cluster: "c", Kubernetes: oidc.KubernetesIdentity{Namespace: "ns", ServiceAccount: oidc.ObjectRef{Name: "s"}}, Subject: "system:serviceaccount:ns:s"}
	repository := func(name string, actions ...string) registryauth.Scope {
		return registryauth.Scope{Type: "repository", Name: name, Actions: actions}
	}
	want := []Case{
		{
			Name: "all", Origin: "p: tests[0]", Service: "Docker registry",
			Subject:   policy.Subject{Identity: id, Annotations: map[string]string{"a.b/c": "", "d": "x"}, NamespaceLabels: map[string]string{"e.f/g": "", "h": "i"}},
			Requested: []registryauth.Scope{repository("b", "*"), repository("a", "delete", "pull", "push")},
			Expected:  Expected{Granted: []registryauth.Scope{repository("a", "delete", "pull"), repository("b", "pull")}, Rules: []string{"r"}, Reason: "because"},
		},
		{Name: "least", Origin: "p: tests[1]", Subject: policy.Subject{Identity: least, Annotations: map[string]string{}, NamespaceLabels: map[string]string{}}, Expected: Expected{Denied: "d"}},
	}
	if !reflect.DeepEqual(cases.Cases, want) {
		t.Errorf("got  %+v\nwant %+v", cases.Cases, want)
	}
}

// A test passes exactly if all of its expectations hold.
func TestCheckCases(t *testing.T) {
	t.Parallel()
	p := parsePolicy(t, `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- {name: own, subjects: [{namespaces: ["team-*"]}], allow: [{repositories: ["{namespace}/**"], actions: [pull]}]}
- {name: builds, subjects: [{nodes: ["build-*"]}], services: [r1], allow: [{repositories: ["**"], actions: [push]}]}
- {name: labelled, subjects: [{namespaceSelector: tier=gold}], allow: [{repositories: ["gold/**"], actions: ["*"]}]}
- {name: public, anonymous: true, allow: [{repositories: ["public/**"], actions: [pull]}]}
- name: job
  subjects: [{identities: [github], claims: {ref: [refs/heads/main]}}]
  allow: [{repositories: ["ci/{claims.repository_id}"], actions: [push]}]
- {name: shell, subjects: [{identities: [circle], claims: {oidc.circleci.com/ssh-rerun: ["false"]}}], allow: [{repositories: [c], actions: [push]}]}
deny:
- {name: stolen, subjects: [{tokenIDs: [t1]}]}
- {name: blocked, subjects: [{namespaceSelector: blocked, namespaces: [team-b]}]}
`)
	for _, test := range []struct {
		asker, expect string
		want          string // the differences
	}{
		{"identity: {ID}, scopes: ['repository:team-a/x:pull,push']", "granted: ['repository:team-a/x:pull'], rules: [own], reason: rule own allows only pull there", ""},
		{"identity: {ID}, scopes: ['repository:team-a/x:pull,push']", "granted: ['repository:team-a/x:pull,push']", "granted: expected repository:team-a/x:pull,push, got repository:team-a/x:pull"},
		{"identity: {ID}, scopes: ['repository:team-a/x:pull,push']", "granted: []", "granted: expected nothing, got repository:team-a/x:pull"},
		{"identity: {ID}, scopes: ['repository:team-b/x:pull']", "granted: ['repository:team-b/x:pull']", "granted: expected repository:team-b/x:pull, got nothing"},
		{"identity: {ID}, scopes: ['repository:team-a/x:pull']", "granted: ['repository:team-a/x:pull'], rules: [builds, oun]", "rules: expected builds oun (there is no such rule), got own"},
		{"identity: {ID}, scopes: ['repository:team-a/x:pull']", "granted: ['repository:team-a/x:pull'], reason: because", `reason: expected "because", got nothing`},
		{"identity: {ID}, scopes: ['repository:b:pull']", "granted: [], reason: because",
			`reason: expected "because", got no rule for c/team-a/s allows pull on b; rule own allows pull on team-a/**; rule public allows pull on public/**`},
		{"identity: {ID, node: build-1}, service: r1, scopes: ['repository:team-a/x:pull,push']", "granted: ['repository:team-a/x:pull,push'], rules: [builds, own, own]", ""},
		{"identity: {ID, node: build-1}, service: r2, scopes: ['repository:b:push']", "granted: []", ""},
		{"identity: {ID, namespaceLabels: {tier: gold}}, scopes: ['repository:gold/x:*']", "granted: ['repository:gold/x:*']", ""},
		{"identity: {ID, namespaceLabels: {}}, scopes: ['repository:gold/x:pull']", "granted: []", ""},
		{"identity: {ID, tokenID: t1}", "denied: stolen", ""},
		{"identity: {ID, tokenID: t2}", "granted: []", ""},
		{"identity: {ID, tokenID: t2}", "denied: stolen", "denied: expected stolen, got not denied"},
		{"identity: {ID, tokenID: t1}", "denied: blocked", "denied: expected blocked, got stolen"},
		{"identity: {ID, tokenID: t1}", "denied: stollen", "denied: expected stollen (there is no such rule), got stolen"},
		{"identity: {ID, tokenID: t1}", "granted: []", "denied: expected not denied, got stolen"},
		{"identity: {cluster: c, namespace: team-b, serviceAccount: s}", "denied: blocked", ""}, // labels are not known
		{"identity: {cluster: c, namespace: team-b, serviceAccount: s, namespaceLabels: {}}", "granted: []", ""},
		{"identity: {JOB, ref: refs/heads/main}}, scopes: ['repository:ci/42:pull,push', 'repository:ci/43:push']", "granted: ['repository:ci/42:push'], rules: [job]", ""},
		{"identity: {JOB, ref: refs/heads/x}}, scopes: ['repository:ci/42:push']", "granted: ['repository:ci/42:push']", "granted: expected repository:ci/42:push, got nothing"},
		{"identity: {JOB, jti: t1}}", "denied: stolen", ""},
		{"identity: {CIRCLE, oidc.circleci.com/ssh-rerun: false}}, scopes: ['repository:c:push']", "granted: ['repository:c:push']", ""},
		{"identity: {CIRCLE, oidc.circleci.com/ssh-rerun: true}}, scopes: ['repository:c:push']", "granted: []", ""},
		{"anonymous: true, scopes: ['repository:public/x:pull', 'repository:a:pull']", "granted: ['repository:public/x:pull'], rules: [public]", ""},
	} {
		asker := strings.NewReplacer("{ID", "{cluster: c, namespace: team-a, serviceAccount: s",
			"{JOB", `{provider: github, claims: {repository_id: "42", repository_owner_id: "7"`,
			"{CIRCLE", `{provider: circle, claims: {oidc.circleci.com/project-id: p-1, oidc.circleci.com/org-id: o-1`).Replace(test.asker)
		cases, err := Parse(issuers, policy.File{Name: "p", Data: fmt.Appendf(nil, "apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicyTests\ntests: [{name: a, %s, expect: {%s}}]\n", asker, test.expect)})
		if err != nil {
			t.Errorf("%s: %v", test.asker, err)
			continue
		}
		differences, decision, trace := Run(p, cases.Cases[0])
		if got := strings.Join(differences, "\n"); got != test.want {
			t.Errorf("%s, %s: got\n%s\nwant\n%s", test.asker, test.expect, got, test.want)
		}
		want, wantTrace := p.Explain(cases.Cases[0].Subject, cases.Cases[0].Service, cases.Cases[0].Requested)
		if !reflect.DeepEqual(decision, want) || !reflect.DeepEqual(trace, wantTrace) {
			t.Errorf("%s: Check decides otherwise than Explain", test.asker)
		}
	}
}

// casesText writes cases in the format of a file.
func casesText(t *testing.T, cases []Case) []byte {
	t.Helper()
	var tests []any
	for _, c := range cases {
		expect := map[string]any{"granted": append([]string{}, policy.ScopeStrings(c.Expected.Granted)...)}
		if c.Expected.Denied != "" {
			expect = map[string]any{"denied": c.Expected.Denied}
		}
		if c.Expected.Rules != nil {
			expect["rules"] = c.Expected.Rules
		}
		if c.Expected.Reason != "" {
			expect["reason"] = c.Expected.Reason
		}
		test := map[string]any{"name": c.Name, "expect": expect}
		if c.Service != "" {
			test["service"] = c.Service
		}
		if c.Requested != nil {
			test["scopes"] = policy.ScopeStrings(c.Requested)
		}
		if id := c.Subject.Identity; id == nil {
			test["anonymous"] = true
		} else if id.External != nil {
			test["identity"] = map[string]any{"provider": id.External.Provider, "claims": id.External.Claims}
		} else {
			who := map[string]any{"cluster": id.Cluster, "namespace": id.Kubernetes.Namespace, "serviceAccount": id.Kubernetes.ServiceAccount.Name}
			if id.Kubernetes.Node.Name != "" {
				who["node"] = id.Kubernetes.Node.Name
			}
			if id.InSecret() {
				who["pullSecret"] = id.Kubernetes.Secret.Name
			}
			if id.TokenID != "" {
				who["tokenID"] = id.TokenID
			}
			if c.Subject.Annotations != nil {
				who["annotations"] = c.Subject.Annotations
			}
			if c.Subject.NamespaceLabels != nil {
				who["namespaceLabels"] = c.Subject.NamespaceLabels
			}
			test["identity"] = who
		}
		tests = append(tests, test)
	}
	text := testkit.Value(yaml.Marshal(map[string]any{"apiVersion": policy.APIVersion, "kind": Kind, "tests": tests}))(t)
	return text
}

// Parsed cases can be written, and have the same meaning when parsed again.
func FuzzCases(f *testing.F) {
	f.Add([]byte(minimalCases))
	f.Add([]byte(`{"apiVersion":"pullpass.dev/v1beta1","kind":"AccessPolicyTests","tests":[
{"name":"a","identity":{"cluster":"c","namespace":"ns","serviceAccount":"s.t","node":"m","tokenID":"t","annotations":{"a.b/c":"x\n"},"namespaceLabels":{"d":""}},"service":"r",
 "scopes":["repository:h:1/a:pull,push","registry:catalog:*"],"expect":{"granted":["repository:h:1/a:push"],"rules":["r"],"reason":"\u00a0"}},
{"name":"b","identity":{"cluster":"c","namespace":"ns","serviceAccount":"s","annotations":{},"namespaceLabels":{}},"expect":{"denied":"d"}}]}`))
	f.Add([]byte(`{"apiVersion":"pullpass.dev/v1beta1","kind":"AccessPolicyTests","tests":[{"name":"a",
"identity":{"provider":"github","claims":{"repository_id":"42","repository_owner_id":"7","n":1.5,"more":{"a":[1,true,["b"]]},"list":["a","b"]}},"expect":{"granted":[]}}]}`))
	p := parsePolicy(f, `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- {name: r, subjects: [{namespaces: ["*"]}], annotation: k, allow: [{repositories: ["**"], actions: ["*"]}]}
`)
	f.Fuzz(func(t *testing.T, data []byte) {
		cases, err := Parse(issuers, policy.File{Name: "p", Data: data})
		if err != nil {
			if cases != nil {
				t.Errorf("cases beside the error %v", err)
			}
			if len(err.Error()) > 1<<20 || strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' && r != '\n' }) && !strings.Contains(err.Error(), "not valid YAML") {
				t.Errorf("error %q", err)
			}
			return
		}
		if len(cases.Cases) == 0 {
			t.Error("no tests and no error")
		}
		again, err := Parse(issuers, policy.File{Name: "p", Data: casesText(t, cases.Cases)})
		if err != nil || !reflect.DeepEqual(again.Cases, cases.Cases) {
			t.Errorf("%v\ngot  %+v\nwant %+v", err, again, cases)
		}
		for _, c := range cases.Cases {
			differences, _, _ := Run(p, c)
			for _, d := range differences {
				if strings.ContainsFunc(d, func(r rune) bool { return r < ' ' || '~' < r }) {
					t.Errorf("not plain: %q", d)
				}
			}
		}
	})
}

func parsePolicy(t testing.TB, text string) *policy.Policy {
	t.Helper()
	parsed := testkit.Value(policy.Parse(policy.File{Name: "policy.yaml", Data: []byte(text)}))(t)
	return parsed
}

func TestAliasesAreNotWrittenOut(t *testing.T) {
	t.Parallel()
	text := "x: &a " + strings.Repeat("x", 5_000) + "\ntests: [" + strings.Repeat("*a,", 200_000) + "]\n"
	_, err := Parse(issuers, policy.File{Name: "p", Data: []byte(text)})
	if want := "p: is not valid YAML: line 2: with its aliases written out, the document has more than 1048576 bytes; use fewer"; err == nil || err.Error() != want {
		t.Errorf("error %v", err)
	}
}

func TestPullSecretNamesNoNode(t *testing.T) {
	t.Parallel()
	const test = "apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicyTests\ntests:\n- name: a\n  identity: {cluster: c, namespace: ns, serviceAccount: s, node: n, pullSecret: p}\n  expect: {granted: []}\n"
	_, err := Parse(issuers, policy.File{Name: "p", Data: []byte(test)})
	if err == nil || !strings.Contains(err.Error(), "tests[0].identity.pullSecret: the token of a pull secret names no node: remove one of them") {
		t.Errorf("error %v", err)
	}
}
