package reach

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestShadowed(t *testing.T) {
	t.Parallel()
	const pull = `allow: [{repositories: [team-a/**], actions: [pull]}]`
	for name, test := range map[string]struct{ policy, want string }{
		"twice the same":                       {`rules: [{name: one, subjects: [{namespaces: [team-a]}], ` + pull + `}, {name: two, subjects: [{namespaces: [team-a]}], ` + pull + `}]`, "rule two: by one"},
		"narrower in each field":               {`rules: [{name: one, subjects: [{namespaces: [team-a], nodes: [n1], clusters: [prod]}], services: [s], allow: [{repositories: [team-a/x], actions: [pull]}]}, {name: two, subjects: [{namespaces: [team-*]}], allow: [{repositories: [team-a/**], actions: [pull, push]}]}]`, "rule one: by two"},
		"wider in one subject":                 {`rules: [{name: one, subjects: [{namespaces: [team-a]}, {namespaces: [b]}], ` + pull + `}, {name: two, subjects: [{namespaces: [team-*]}], ` + pull + `}]`, ""},
		"an action more":                       {`rules: [{name: one, subjects: [{namespaces: [a]}], allow: [{repositories: [a], actions: [pull, push]}]}, {name: two, subjects: [{namespaces: [a]}], allow: [{repositories: [a], actions: [pull]}]}]`, "rule two: by one"},
		"actions of two entries":               {`rules: [{name: one, subjects: [{namespaces: [a]}], allow: [{repositories: [a], actions: [pull, push]}]}, {name: two, subjects: [{namespaces: [a]}], allow: [{repositories: ["*"], actions: [pull]}, {repositories: ["**"], actions: [push]}]}]`, "rule one: by two"},
		"all actions are more than all named":  {`rules: [{name: one, subjects: [{namespaces: [a]}], allow: [{repositories: [a], actions: ["*"]}]}, {name: two, subjects: [{namespaces: [a]}], allow: [{repositories: [a], actions: [pull, push, delete]}]}]`, "rule two: by one"},
		"its own namespace, written out":       {`rules: [{name: one, subjects: [{namespaces: [team-a, b]}], allow: [{repositories: ["{namespace}/web"], actions: [pull]}]}, {name: two, subjects: [{namespaces: [team-a]}], ` + pull + `}, {name: own, subjects: [{namespaces: ["*"]}], allow: [{repositories: ["{namespace}/**"], actions: [pull]}]}]`, "rule one: by own; rule two: by own"},
		"an annotation asks for less":          {`rules: [{name: one, annotation: a/b, subjects: [{namespaces: [a]}], ` + pull + `}, {name: two, subjects: [{namespaces: [a]}], ` + pull + `}]`, "rule one: by two"},
		"another annotation":                   {`rules: [{name: one, annotation: a/b, subjects: [{namespaces: [a]}], ` + pull + `}, {name: two, annotation: a/c, subjects: [{namespaces: [a]}], ` + pull + `}]`, ""},
		"everybody":                            {`rules: [{name: one, anonymous: true, ` + pull + `}, {name: two, subjects: [{namespaces: [a]}], ` + pull + `}]`, "rule two: by one"},
		"anonymous covers all pods":            {`rules: [{name: one, anonymous: true, ` + pull + `}, {name: two, subjects: [{clusters: ["*"]}], ` + pull + `}]`, "rule two: by one"},
		"the same service":                     {`rules: [{name: one, services: [a, b], subjects: [{namespaces: [a]}], ` + pull + `}, {name: two, services: [b], subjects: [{namespaces: [a]}], ` + pull + `}]`, "rule two: by one"},
		"the same annotation":                  {`rules: [{name: one, annotation: a/b, subjects: [{namespaces: [a]}], ` + pull + `}, {name: two, annotation: a/b, subjects: [{namespaces: [a]}], ` + pull + `}]`, "rule two: by one"},
		"the same condition, and later":        {`rules: [{name: one, subjects: [{namespaces: [a], condition: 'service == "s"'}], allow: [{repositories: ["**"], actions: [pull]}]}, {name: two, subjects: [{namespaces: [a], condition: 'service == "s"'}], ` + pull + `}]`, "rule two: by one"},
		"a selector more":                      {`rules: [{name: one, subjects: [{namespaceSelector: tier}], ` + pull + `}, {name: two, subjects: [{namespaces: ["*"]}], ` + pull + `}]`, "rule one: by two"},
		"the same selector":                    {`rules: [{name: one, subjects: [{namespaceSelector: tier}], ` + pull + `}, {name: two, subjects: [{namespaceSelector: tier}], ` + pull + `}]`, "rule two: by one"},
		"the same node":                        {`rules: [{name: one, subjects: [{nodes: ["n*"]}], ` + pull + `}, {name: two, subjects: [{nodes: [n1]}], ` + pull + `}]`, "rule two: by one"},
		"another node":                         {`rules: [{name: one, subjects: [{nodes: [n2]}], ` + pull + `}, {name: two, subjects: [{nodes: [n1]}], ` + pull + `}]`, ""},
		"the catalog twice":                    {`rules: [{name: one, subjects: [{namespaces: [a]}], allow: [{registry: [catalog], actions: ["*"]}]}, {name: two, subjects: [{namespaces: [a]}], allow: [{registry: [catalog], actions: ["*"]}]}]`, "rule two: by one"},
		"names that are not written out":       {`rules: [{name: one, subjects: [{namespaces: ["team-*"]}], allow: [{repositories: [team-b/x], actions: [pull]}]}, {name: two, subjects: [{namespaces: ["team-*"]}], allow: [{repositories: ["{namespace}/**"], actions: [pull]}]}]`, ""},
		"as many names as are written out":     {`rules: [{name: one, subjects: [{namespaces: [` + namespacesOf(maxLiteralNames) + `]}], allow: [{repositories: ["{namespace}/web"], actions: [pull]}]}, {name: two, subjects: [{namespaces: ["*"]}], allow: [{repositories: ["a*/web"], actions: [pull]}]}]`, "rule one: by two"},
		"more names than that":                 {`rules: [{name: one, subjects: [{namespaces: [` + namespacesOf(maxLiteralNames+1) + `]}], allow: [{repositories: ["{namespace}/web"], actions: [pull]}]}, {name: two, subjects: [{namespaces: ["*"]}], allow: [{repositories: ["a*/web"], actions: [pull]}]}]`, ""},
		"a token denied twice":                 {`rules: [{name: one, anonymous: true, ` + pull + `}], deny: [{name: bad, subjects: [{tokenIDs: [x]}]}, {name: worse, subjects: [{tokenIDs: [x, z]}]}]`, "deny rule bad: by worse"},
		"a token of a cluster":                 {`rules: [{name: one, anonymous: true, ` + pull + `}], deny: [{name: bad, subjects: [{tokenIDs: [x], clusters: [a]}]}, {name: worse, subjects: [{clusters: ["*"]}]}]`, "deny rule bad: by worse"},
		"a token of a namespace":               {`rules: [{name: one, anonymous: true, ` + pull + `}], deny: [{name: bad, subjects: [{tokenIDs: [x], namespaces: [a]}]}, {name: worse, subjects: [{namespaces: ["*"]}]}]`, "deny rule bad: by worse"},
		"a token of a ServiceAccount":          {`rules: [{name: one, anonymous: true, ` + pull + `}], deny: [{name: bad, subjects: [{tokenIDs: [x], serviceAccounts: [a]}]}, {name: worse, subjects: [{serviceAccounts: ["*"]}]}]`, "deny rule bad: by worse"},
		"a token on a node":                    {`rules: [{name: one, anonymous: true, ` + pull + `}], deny: [{name: bad, subjects: [{tokenIDs: [x], nodes: [a]}]}, {name: worse, subjects: [{nodes: ["*"]}]}]`, "deny rule bad: by worse"},
		"a token of an identity":               {`rules: [{name: one, anonymous: true, ` + pull + `}], deny: [{name: bad, subjects: [{tokenIDs: [x], identities: [g]}]}, {name: worse, subjects: [{identities: [g]}]}]`, "deny rule bad: by worse"},
		"another service":                      {`rules: [{name: one, services: [a], subjects: [{namespaces: [a]}], ` + pull + `}, {name: two, services: [b], subjects: [{namespaces: [a]}], ` + pull + `}]`, ""},
		"a condition more":                     {`rules: [{name: one, subjects: [{namespaces: [a], condition: 'service == "s"'}], ` + pull + `}, {name: two, subjects: [{namespaces: [a]}], ` + pull + `}]`, "rule one: by two"},
		"the same condition, and earlier":      {`rules: [{name: one, subjects: [{namespaces: [a], condition: 'service == "s"'}], ` + pull + `}, {name: two, subjects: [{namespaces: [a], condition: 'service == "s"'}], allow: [{repositories: ["**"], actions: [pull]}]}]`, ""},
		"any node is less than no node":        {`rules: [{name: one, subjects: [{namespaces: [a]}], ` + pull + `}, {name: two, subjects: [{namespaces: [a], nodes: ["*"]}], ` + pull + `}]`, "rule two: by one"},
		"a pattern for any name covers all":    {`rules: [{name: one, subjects: [{namespaces: [a]}], ` + pull + `}, {name: two, subjects: [{clusters: ["*"], namespaces: ["*"]}], ` + pull + `}]`, "rule one: by two"},
		"identities are others":                {`rules: [{name: one, subjects: [{identities: [g]}], ` + pull + `}, {name: two, subjects: [{clusters: ["*"]}], ` + pull + `}]`, ""},
		"a claim more":                         {`rules: [{name: one, subjects: [{identities: [g]}], ` + pull + `}, {name: two, subjects: [{identities: [g], claims: {ref: [main]}}], ` + pull + `}]`, "rule two: by one"},
		"another value of a claim":             {`rules: [{name: one, subjects: [{identities: [g], claims: {ref: [main]}}], ` + pull + `}, {name: two, subjects: [{identities: [g], claims: {ref: [dev, main]}}], ` + pull + `}]`, ""},
		"fewer values of a claim":              {`rules: [{name: one, subjects: [{identities: [g], claims: {ref: [dev, main]}}], ` + pull + `}, {name: two, subjects: [{identities: [g], claims: {ref: [main], event_name: [push]}}], ` + pull + `}]`, "rule two: by one"},
		"the catalog":                          {`rules: [{name: one, subjects: [{namespaces: [a]}], allow: [{registry: [catalog], actions: ["*"]}]}, {name: two, subjects: [{namespaces: [a]}], allow: [{repositories: ["**"], actions: ["*"]}]}]`, ""},
		"all subjects are denied":              {`rules: [{name: one, subjects: [{namespaces: [a-b], nodes: [n1]}], ` + pull + `}], deny: [{name: bad, subjects: [{namespaces: ["a-*"]}]}]`, "rule one: by bad"},
		"some subjects are denied":             {`rules: [{name: one, subjects: [{namespaces: ["a*"]}], ` + pull + `}], deny: [{name: bad, subjects: [{namespaces: ["a-*"]}]}]`, ""},
		"anonymous callers are not denied":     {`rules: [{name: one, anonymous: true, ` + pull + `}], deny: [{name: bad, subjects: [{namespaces: ["*"]}]}]`, ""},
		"denied twice":                         {`rules: [{name: one, anonymous: true, ` + pull + `}], deny: [{name: bad, subjects: [{namespaces: [a]}]}, {name: worse, subjects: [{namespaces: ["*"]}]}]`, "deny rule bad: by worse"},
		"denied tokens are anybody's":          {`rules: [{name: one, anonymous: true, ` + pull + `}], deny: [{name: bad, subjects: [{tokenIDs: [x]}]}, {name: worse, subjects: [{namespaces: ["*"]}]}]`, ""},
		"one that is shadowed shadows nothing": {`rules: [{name: one, subjects: [{namespaces: [a]}], ` + pull + `}, {name: two, subjects: [{namespaces: [a, b]}], ` + pull + `}, {name: three, subjects: [{namespaces: [a, b, c]}], ` + pull + `}]`, "rule one: by three; rule two: by three"},
	} {
		p, err := policy.Parse(policy.File{Name: "p", Data: []byte("apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicy\n" + strings.Replace(test.policy, "], deny: [", "]\ndeny: [", 1))})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var got []string
		for _, text := range Shadowed(p) {
			fields := strings.Fields(strings.ReplaceAll(text, ":", " "))
			by := text[strings.LastIndex(text[:strings.LastIndex(text, " (p")], " ")+1 : strings.LastIndex(text, " (p")]
			who := strings.Join(fields[:2], " ")
			if fields[0] == "deny" {
				who = strings.Join(fields[:3], " ")
			}
			got = append(got, who+": by "+by)
		}
		if strings.Join(got, "; ") != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// namespacesOf returns names of namespaces, all of which begin with a.
func namespacesOf(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("a%d", i))
	}
	return strings.Join(all, ", ")
}

// Removing everything that Shadowed names changes no grants.
func TestShadowedRulesGrantNothing(t *testing.T) {
	t.Parallel()
	w := world{rand.New(rand.NewPCG(11, 12))}
	named := 0
	for range 2 * *randomPolicies {
		document, clusters := w.document(), w.clusters(t)
		p := parse(t, document)
		found := Shadowed(p)
		if found == nil {
			continue
		}
		named += len(found)
		without := func(list any, prefix string) []any {
			return slices.DeleteFunc(slices.Clone(list.([]any)), func(r any) bool {
				return slices.ContainsFunc(found, func(text string) bool {
					return strings.HasPrefix(text, fmt.Sprintf("%s%v: ", prefix, r.(map[string]any)["name"]))
				})
			})
		}
		rules := without(document["rules"], "rule ")
		if len(rules) == 0 {
			rules = []any{map[string]any{"name": "other", "services": []string{"none"}, "anonymous": true, "allow": []any{map[string]any{"repositories": []string{"x"}, "actions": []string{"pull"}}}}}
		}
		less := parse(t, map[string]any{"apiVersion": policy.APIVersion, "kind": policy.Kind, "rules": rules, "deny": without(document["deny"], "deny rule ")})
		for range 60 {
			subject, service, asked := w.asker(clusters), w.one("s1", "s2"), []registryauth.Scope{scope(w.repository(), w.one(append([]string{"*", "other"}, Actions...)...)), {Type: "registry", Name: "catalog", Actions: []string{"*"}}}
			before, after := p.Decide(subject, service, asked), less.Decide(subject, service, asked)
			if !reflect.DeepEqual(before.Granted(), after.Granted()) || (before.DeniedBy == "") != (after.DeniedBy == "") {
				text, _ := yaml.Marshal(document)
				t.Fatalf("%q: but %+v %+v gets %v %s, and without %v %s\n%s", found, subject.Identity, subject, before.Granted(), before.DeniedBy, after.Granted(), after.DeniedBy, text)
			}
		}
	}
	if named < *randomPolicies/10 {
		t.Errorf("only %d rules were named", named)
	}
}

// A rule that RepositoryAccess objects select from does not cover a plain rule.
func TestRequestsShadowNoPlainRule(t *testing.T) {
	t.Parallel()
	const text = `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- {name: ceiling, subjects: [{namespaces: ["*"]}], requests: true, allow: [{repositories: ["**"], actions: ["*"]}]}
- {name: plain, subjects: [{namespaces: [a]}], allow: [{repositories: [a], actions: [pull]}]}
`
	p := testkit.Value(policy.Parse(policy.File{Name: "p", Data: []byte(text)}))(t)
	if found := Shadowed(p); len(found) != 0 {
		t.Errorf("found %q", found)
	}
}
