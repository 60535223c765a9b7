package policyobjects

import (
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const head = "apiVersion: pullpass.dev/v1beta1\nkind: "

const objects = head + `AccessPolicy
metadata: {name: team-b}
spec:
  rules:
  # all of the team
  - {name: own, subjects: [{namespaces: [team-b]}], allow: [{repositories: ["team-b/**"], actions: [pull]}]}
---
` + head + `AccessPolicy
metadata: {name: team-a, uid: x, labels: {a: b}}
spec:
  rules:
  - {name: own, subjects: [{namespaces: [team-a], clusters: [prod-*, stage]}, {clusters: [dev]}], allow: [{repositories: ["team-a/**"], actions: [pull]}]}
  - {name: elsewhere, subjects: [{clusters: [dev]}], allow: [{repositories: ["dev/**"], actions: [pull]}]}
  - {name: asked, subjects: [{namespaces: [team-a]}], requests: true, allow: [{repositories: ["shared/**"], actions: [pull]}]}
  deny: [{name: old, subjects: [{serviceAccounts: [old]}]}]
`

const request = head + `RepositoryAccess
metadata: {name: web, namespace: team-a}
spec: {serviceAccounts: [web], repositories: [shared/a], actions: [pull]}
`

func account(cluster, namespace, name string) *oidc.Identity {
	return &oidc.Identity{Cluster: cluster, Kubernetes: oidc.KubernetesIdentity{Namespace: namespace, ServiceAccount: oidc.ObjectRef{Name: name}}}
}

func gets(p *policy.Policy, subject policy.Subject, repository string) string {
	d := p.Decide(subject, "", []registryauth.Scope{{Type: "repository", Name: repository, Actions: []string{"pull"}}})
	if d.DeniedBy != "" {
		return "denied by " + d.DeniedBy
	}
	return strings.Join(d.Scopes[0].Rules, ",")
}

func TestSet(t *testing.T) {
	t.Parallel()
	var set Set
	testkit.Must(t, set.Add("a.yaml", []byte(objects)))
	testkit.Must(t, set.Add("b.yaml", []byte("apiVersion: v1\nkind: List\nitems:\n- "+strings.ReplaceAll(strings.TrimSpace(request), "\n", "\n  ")+"\n")))
	none := &policy.Policy{}
	for _, test := range []struct {
		counts                    Counts
		account, repository, want string
	}{
		{Counts{true, true, []pattern.Pattern{"**"}}, "web", "shared/a", "team-a/asked"},
		{Counts{true, true, []pattern.Pattern{"**"}}, "other", "shared/a", ""},
		{Counts{true, true, []pattern.Pattern{"team-*/**"}}, "web", "shared/a", ""},
		{Counts{true, false, []pattern.Pattern{"**"}}, "web", "shared/a", ""},
		{Counts{true, true, []pattern.Pattern{"**"}}, "web", "team-a/x", "team-a/own"},
		{Counts{false, true, []pattern.Pattern{"**"}}, "web", "team-a/x", ""},
		{Counts{true, true, []pattern.Pattern{"**"}}, "old", "team-a/x", "denied by team-a/old"},
	} {
		subject := policy.Subject{Identity: account("prod-eu", "team-a", test.account), Objects: set.Of(test.counts, "team-a", test.account)}
		if got := gets(none, subject, test.repository); got != test.want {
			t.Errorf("%+v: %s gets %s by %q, want %q", test.counts, test.account, test.repository, got, test.want)
		}
	}
}

func TestSetFaults(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                 "f.yaml: is empty",
		"{":                                "f.yaml: is not valid YAML",
		"apiVersion: v1\nkind: Secret\n":   "f.yaml: line 1: is not an object of Pullpass",
		head + "AccessPolicy\nrules: []\n": "metadata.name",
		head + "Secret\n":                  "f.yaml: line 1: is not an object of Pullpass",
		head + "AccessPolicy\nkind: Pod\n": "f.yaml: is not valid YAML",
		strings.Replace(request, "pullpass.dev/v1beta1", "v1", 1):                             "f.yaml: line 1: is not an object of Pullpass",
		head + "AccessPolicy\nmetadata: {name: a}\nrules: []\n":                               "spec: is missing",
		head + "AccessPolicy\nmetadata: {name: a}\nspec: {rules: []}\nstatus: {}\ndeny: []\n": `f.yaml: line 1: "deny": is not a field of an object`,
		head + "RepositoryAccess\nmetadata: {name: a}\nspec: {}\n":                            "metadata.namespace: is missing",
		objects + "---\n" + objects:                                                           `AccessPolicy "team-b" is in f.yaml: line 1, too`,
		strings.Replace(request, "shared/a", `"{namespace}/a"`, 1):                            "f.yaml: RepositoryAccess team-a/web: repositories[0]: placeholders",
		strings.Replace(objects, "actions: [pull]", "actions: [pul]", 1):                      "f.yaml: AccessPolicy team-b: rules[0].allow[0].actions[0]",
		"apiVersion: v1\nkind: List\nitems: [{kind: Pod}]\n":                                  "is not an object of Pullpass",
	} {
		var set Set
		if err := set.Add("f.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// A file, the object made of it, and the file made of that object decide alike.
func TestExportAndBack(t *testing.T) {
	t.Parallel()
	var set Set
	testkit.Must(t, set.Add("a.yaml", []byte(objects)))
	data := testkit.Value(set.ToFile("prod-eu"))(t)
	if text := string(data); !strings.Contains(text, "# all of the team") || strings.Contains(text, "dev/**") || !strings.Contains(text, "{name: own,") || !strings.Contains(text, "name: team-a-own") {
		t.Errorf("the file is\n%s", text)
	}
	fromObjects := testkit.Value(policy.Parse(policy.File{Name: "p", Data: data}))(t)
	object := testkit.Value(ToObject("back", policy.File{Name: "p", Data: data}))(t)
	var back Set
	testkit.Must(t, back.Add("back.yaml", object))
	every := Counts{true, true, []pattern.Pattern{"**"}}
	for _, namespace := range []string{"team-a", "team-b"} {
		for _, name := range []string{"web", "old"} {
			for _, repository := range []string{"team-a/x", "team-b/x", "dev/x", "shared/a"} {
				id := account("prod-eu", namespace, name)
				by := gets(&policy.Policy{}, policy.Subject{Identity: id, Objects: set.Of(every, namespace, name)}, repository) != ""
				file := gets(fromObjects, policy.Subject{Identity: id}, repository) != ""
				again := gets(&policy.Policy{}, policy.Subject{Identity: id, Objects: back.Of(every, namespace, name)}, repository) != ""
				if by != file || by != again {
					t.Errorf("%s/%s, %s: objects %t, the file %t, the object again %t", namespace, name, repository, by, file, again)
				}
				id = account("us", namespace, name)
				if got := gets(fromObjects, policy.Subject{Identity: id}, repository); got != "" {
					t.Errorf("the file speaks of another cluster: %q", got)
				}
			}
		}
	}
}

func TestExportFaults(t *testing.T) {
	t.Parallel()
	const file = head + "AccessPolicy\nrules: [{name: r, subjects: [{namespaces: [a]}], allow: [{repositories: [a], actions: [pull]}]}]\n"
	for text, want := range map[string]string{
		file: "",
		strings.Replace(file, "name: r,", "name: r, annotation: k,", 1):              "p.yaml: AccessPolicy x: rules[0].annotation: objects read no annotations",
		strings.Replace(file, "subjects: [{namespaces: [a]}]", "anonymous: true", 1): "is of no cluster",
		strings.Replace(file, "{namespaces: [a]}", "{identities: [github]}", 1):      "its own cluster",
		strings.Replace(file, "[pull]", "[pul]", 1):                                  "is not an action",
		head + "AccessPolicy\nmetadata: {name: a}\nspec: {rules: []}\n":              "is not a policy file",
		head + "AccessPolicyTests\ntests: []\n":                                      "is not a policy file",
		strings.Replace(file, "pullpass.dev/v1beta1", "v1", 1):                       "is not a policy file",
		"{": "p.yaml: is not valid YAML",
		file + "deny: [{name: d, subjects: [{namespaces: [b]}, {tokenIDs: [t]}]}]\n": `p.yaml: AccessPolicy x: deny[0].subjects[1].tokenIDs: a policy file refuses tokens of identities as well, an object only those of its cluster; keep the denial in a file, or add namespaces: ["*"]`,
		file + "deny: [{name: d, subjects: [{tokenIDs: [t], condition: 'true'}]}]\n": "refuses tokens of identities as well",
		file + "deny: [{name: d, subjects: [{tokenIDs: [t], namespaces: ['*']}]}]\n": "",
	} {
		if _, err := ToObject("x", policy.File{Name: "p.yaml", Data: []byte(text)}); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := ToObject("X", policy.File{Name: "p.yaml", Data: []byte(file)}); err == nil {
		t.Error("a name that is none is taken")
	}
	var set Set
	testkit.Must(t, set.Add("r.yaml", []byte(objects+"---\n"+request)))
	if _, err := set.ToFile("prod-eu"); err == nil || !strings.Contains(err.Error(), "only objects of kind AccessPolicy") {
		t.Errorf("a RepositoryAccess became a file: %v", err)
	}
}

func TestToFileHasOnlyTheFieldsOfItsObjects(t *testing.T) {
	t.Parallel()
	const rule = "subjects: [{namespaces: [a]}], allow: [{repositories: [a], actions: [pull]}]"
	object := func(name, spec string) string {
		return head + "AccessPolicy\nmetadata: {name: " + name + "}\nspec: " + spec + "\n---\n"
	}
	for objects, want := range map[string]struct{ text, not, fault string }{
		"":      {fault: "only objects of kind AccessPolicy"},
		request: {fault: "only objects of kind AccessPolicy"},
		object("a", "{rules: [{name: example, "+rule+"}]}"):                                                                  {text: "name: example", not: "deny"},
		object("a", "{rules: [{name: r, "+rule+"}]}"):                                                                        {text: "name: r", not: "deny"},
		object("a", "{deny: [{name: r, subjects: [{namespaces: [a]}]}]}"):                                                    {text: "name: r", not: "rules"},
		object("a", "{rules: [{name: r, "+rule+"}, {name: b-r, "+rule+"}]}") + object("b", "{rules: [{name: r, "+rule+"}]}"): {text: "name: b-r-2", not: "deny"},
		object("a", "{deny: [{name: q, subjects: [{namespaces: [a]}]}, {name: c-q, subjects: [{namespaces: [b]}]}]}") + object("c", "{deny: [{name: q, subjects: [{namespaces: [c]}]}]}"): {text: "name: c-q-2", not: "rules"},
		object("a", "{deny: [{name: q, subjects: [{clusters: [other], namespaces: &n [left]}]}, {name: r, subjects: [{namespaces: *n}]}]}"):                                               {text: "namespaces: [left]", not: "*n"},
		object("a", "{rules: [{name: r, "+rule+"}]}") + object("b", "{trial: true, rules: [{name: s, "+rule+"}]}"):                                                                        {fault: "AccessPolicy b: spec.trial: it decides nothing"},
		object("a", "{trial: false, rules: [{name: r, "+rule+"}]}"):                                                                                                                       {text: "name: r", not: "trial"},
	} {
		var set Set
		if objects != "" {
			testkit.Must(t, set.Add("a.yaml", []byte(strings.TrimSuffix(objects, "---\n"))))
		}
		data, err := set.ToFile("prod-eu")
		if want.fault != "" && (err == nil || !strings.Contains(err.Error(), want.fault) || data != nil) {
			t.Errorf("%s\n%s, error %v, want %q", objects, data, err, want.fault)
		}
		if want.fault == "" && (err != nil || !strings.Contains(string(data), want.text) || strings.Contains(string(data), want.not)) {
			t.Errorf("%s\n%s, error %v", objects, data, err)
		}
	}
}

func FuzzSet(f *testing.F) {
	f.Add([]byte(objects))
	f.Add([]byte(request))
	f.Fuzz(func(t *testing.T, data []byte) {
		var set Set
		if set.Add("f", data) == nil {
			set.Of(Counts{true, true, []pattern.Pattern{"**"}}, "team-a", "web")
			_, _ = set.ToFile("prod-eu")
		}
		_, _ = ToObject("x", policy.File{Name: "f", Data: data})
	})
}
