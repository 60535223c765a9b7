package policy

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// TestPolicies runs the cases of testdata/policy. It compares the whole decision: grants, rules,
// reasons, remedies. Explain must return the same as Decide.
func TestPolicies(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("testdata/policy/*.txtar")
	if err != nil || len(names) < 3 {
		t.Fatalf("found only %q, %v", names, err)
	}
	for _, name := range names {
		archive := testkit.Value(txtar.ParseFile(name))(t)
		var files []File
		cases := 0
		for _, file := range archive.Files {
			title, isCase := strings.CutPrefix(file.Name, "case: ")
			if !isCase {
				files = append(files, File{Name: file.Name, Data: file.Data})
				continue
			}
			cases++
			policy := testkit.Value(ParseFor(identities, files...))(t)
			t.Run(filepath.Base(name)+"/"+title, func(t *testing.T) {
				t.Parallel()
				runCase(t, policy, string(file.Data))
			})
		}
		if cases == 0 {
			t.Errorf("%s has no case", name)
		}
	}
}

func runCase(t *testing.T, policy *Policy, text string) {
	var (
		subject   Subject
		requested []registryauth.Scope
		want      []string
		service   = "registry.example.com"
	)
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch key {
		case "":
		case "subject":
			subject.Identity = account(t, value)
		case "annotation":
			name, text, _ := strings.Cut(value, " ")
			subject.Annotations = map[string]string{name: text}
		case "labels": // of the namespace; not known without the line
			subject.NamespaceLabels = labelsOf(value)
		case "service":
			service = value
		case "scope":
			var err error
			if requested, err = registryauth.ParseScopes([]string{value}); err != nil {
				t.Fatal(err)
			}
		case "want", "denied", "reason", "remedy":
			want = append(want, line)
		default:
			t.Fatalf("unknown line %q", line)
		}
	}
	decision := policy.Decide(subject, service, requested)
	if got := report(decision); !slices.Equal(got, want) {
		t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
	explained, trace := policy.Explain(subject, service, requested)
	if got := report(explained); !slices.Equal(got, want) {
		t.Errorf("Explain decides\n\t%s", strings.Join(got, "\n\t"))
	}
	if len(trace.Deny) != len(policy.deny) || decision.DeniedBy == "" && len(trace.Rules) != len(policy.rules) {
		t.Errorf("the trace leaves rules out: %+v", trace)
	}
	for i, s := range decision.Scopes {
		if s.Requested.String() != requested[i].String() {
			t.Errorf("scope %d is %s, want %s", i, s.Requested, requested[i])
		}
	}
}

// report writes a decision in the format of the cases.
func report(d Decision) []string {
	var lines []string
	for _, granted := range d.Granted() {
		for _, s := range d.Scopes {
			if CompareResources(s.Requested, granted) == 0 {
				lines = append(lines, fmt.Sprintf("want: %s by %s", granted, strings.Join(s.Rules, ",")))
			}
		}
	}
	if d.DeniedBy != "" {
		lines = append(lines, "denied: "+d.DeniedBy)
	}
	for _, s := range d.Scopes {
		if s.Reason != "" {
			lines = append(lines, "reason: "+s.Reason)
		}
		if s.Remedy != "" {
			lines = append(lines, "remedy: "+s.Remedy)
		}
	}
	return lines
}

// identities are the identities of the cases.
var identities = map[string]identity.Profile{"github": identity.GitHub, "gitlab": identity.GitLab, "circle": identity.CircleCI, "idp": identity.Generic}

func someone() *oidc.Identity {
	return &oidc.Identity{Cluster: "prod", Kubernetes: oidc.KubernetesIdentity{Namespace: "team-a", ServiceAccount: oidc.ObjectRef{Name: "web.v1"}}}
}

// account reads CLUSTER/NAMESPACE/SERVICEACCOUNT and fields of a token, an identity
// and its claims in JSON, or anonymous.
func account(t testing.TB, text string) *oidc.Identity {
	t.Helper()
	if text == "anonymous" {
		return nil
	}
	if provider, claims, ok := strings.Cut(text, " {"); ok {
		return external(t, provider, "{"+claims)
	}
	fields := strings.Fields(text)
	parts := strings.Split(fields[0], "/")
	id := &oidc.Identity{Cluster: parts[0], Kubernetes: oidc.KubernetesIdentity{Namespace: parts[1], ServiceAccount: oidc.ObjectRef{Name: parts[2], UID: "uid-of-" + parts[2]}}}
	for _, field := range fields[1:] {
		switch key, value, _ := strings.Cut(field, "="); key {
		case "node":
			id.Kubernetes.Node = oidc.ObjectRef{Name: value, UID: "uid-of-" + value}
		case "node-without-uid":
			id.Kubernetes.Node = oidc.ObjectRef{Name: value}
		case "token":
			id.TokenID = value
		default:
			t.Fatalf("unknown field %q of a subject", field)
		}
	}
	return id
}

func external(t testing.TB, provider, text string) *oidc.Identity {
	t.Helper()
	claims := identity.Claims{}
	testkit.Must(t, json.Unmarshal([]byte(text), (*map[string]any)(&claims)))
	for name, value := range claims {
		switch value := value.(type) {
		case []any:
			var list []string
			for _, member := range value {
				list = append(list, member.(string))
			}
			claims[name] = list
		case float64:
			claims[name] = int64(value)
		}
	}
	subject, _ := claims["sub"].(string)
	tokenID, _ := claims["jti"].(string)
	return &oidc.Identity{Subject: provider + "/" + subject, TokenID: tokenID, External: &identity.External{Provider: provider, Profile: identities[provider], Claims: claims}}
}

func mustParse(t testing.TB, files ...File) *Policy {
	t.Helper()
	policy := testkit.Value(Parse(files...))(t)
	return policy
}

func parseText(t testing.TB, text string) *Policy {
	t.Helper()
	return mustParse(t, File{Name: "policy.yaml", Data: []byte(text)})
}

func scopesOf(t testing.TB, text string) []registryauth.Scope {
	t.Helper()
	scopes := testkit.Value(registryauth.ParseScopes([]string{text}))(t)
	return scopes
}

// A file with "deny: []" has no denials.
func TestEmptyDeny(t *testing.T) {
	t.Parallel()
	const rules = `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules: [{name: all, subjects: [{namespaces: ["*"]}], allow: [{repositories: ["**"], actions: [pull]}]}]
deny: []
`
	policy := mustParse(t, File{Name: "policy.yaml", Data: []byte(rules)})
	requested := []registryauth.Scope{{Type: "repository", Name: "a/b", Actions: []string{"pull"}}}
	subject := Subject{Identity: account(t, "prod/team-a/web")}
	if d := policy.Decide(subject, "registry.example.com", requested); d.DeniedBy != "" || len(d.Granted()) != 1 {
		t.Errorf("decision %+v", d)
	}
}
