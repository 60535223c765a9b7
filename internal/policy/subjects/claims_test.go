package subjects

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// In doubt about a claim, a denial matches and a rule does not.
func TestClaimsInDoubt(t *testing.T) {
	t.Parallel()
	const typed = "oidc.circleci.com/ssh-rerun" // a boolean, as the profile states
	claims := identity.Claims{
		"text": "a", "list": []string{"b", "a"}, "none": []string{}, "object": map[string]any{"a": "a"}, "mixed": []any{"a", int64(1)},
		"flag": true, "number": int64(7), "half": 0.5, typed: true,
	}
	caller := &oidc.Identity{External: &identity.External{Provider: "ci", Profile: identity.CircleCI, Claims: claims}}
	for name, test := range map[string]struct {
		values        []string
		rule, denial  bool
		alreadyTooFar bool
	}{
		"text":    {values: []string{"x", "a"}, rule: true, denial: true},
		"list":    {values: []string{"a"}, rule: true, denial: true},
		"none":    {values: []string{"a"}},
		typed:     {values: []string{"true"}, rule: true, denial: true},
		"missing": {values: []string{"a"}, denial: true},
		"object":  {values: []string{"a"}, denial: true},
		"mixed":   {values: []string{"a"}, denial: true},
		"flag":    {values: []string{"x"}, denial: true},
		"number":  {values: []string{"x"}, denial: true},
		"half":    {values: []string{"x"}, denial: true},
		"text ":   {values: []string{"x"}, denial: true, alreadyTooFar: true},
		"text  ":  {values: []string{"x"}},
		"text   ": {values: []string{"*"}}, // only a name has wildcards
	} {
		for _, denies := range []bool{false, true} {
			a := Asker{Identity: caller}
			if test.alreadyTooFar {
				a.spent = maxSpent
			}
			c := Claim{strings.TrimSpace(name), test.values}
			want := test.rule
			if denies {
				want = test.denial
			}
			if got := c.matches(&a, denies); got != want || (a.Doubt != "") != test.alreadyTooFar {
				t.Errorf("%s, denies %t: %t, doubt %q", name, denies, got, a.Doubt)
			}
		}
	}
}

// A denial by token id alone is for every caller; with a field of ServiceAccounts it is for them.
func TestKindsOfCallers(t *testing.T) {
	t.Parallel()
	job := &oidc.Identity{External: &identity.External{Provider: "ci", Profile: identity.GitLab}, TokenID: "1"}
	account := &oidc.Identity{Cluster: "prod", TokenID: "1"}
	for text, ofJob := range map[string]bool{
		"{tokenIDs: ['1']}":                         true,
		"{tokenIDs: ['1'], condition: 'true'}":      true,
		"{tokenIDs: ['1'], clusters: ['*']}":        false,
		"{tokenIDs: ['1'], namespaces: ['*']}":      false,
		"{tokenIDs: ['1'], serviceAccounts: ['*']}": false,
		"{tokenIDs: ['1'], nodes: ['*']}":           false,
		"{tokenIDs: ['1'], namespaceSelector: {matchExpressions: [{key: a, operator: Exists}]}}": false,
		"{clusters: ['*']}": false,
	} {
		list, err := parseDenials("[" + text + "]")
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := list[0].matchKind(job); got != ofJob {
			t.Errorf("%s matches a job: %t", text, got)
		}
		if !list[0].matchKind(account) {
			t.Errorf("%s does not match a ServiceAccount", text)
		}
	}
}

func parseDenials(text string) ([]Match, error) {
	var faults strictyaml.Faults
	document, _ := strictyaml.ParseDocument("p", []byte("subjects: "+text), 1<<20, &faults, "")
	list := Parse(document.Fields("subjects")["subjects"], Options{Denies: true, Identities: map[string]identity.Profile{
		"gitlab": identity.GitLab, "circleci": identity.CircleCI,
	}})
	return list, faults.Err()
}

// Each text has at most one fault.
func TestFaultsOfSubjects(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", maxClaimValueBytes)
	claims := func(n int) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf("a%d: [a]", i))
		}
		return "{" + strings.Join(list, ", ") + "}"
	}
	values := func(n int) string { return "{a: [" + strings.Repeat("a, ", n-1) + "a]}" }
	for text, want := range map[string]string{
		"{clusters: [azAZ09._-*]}":          "",
		"{clusters: ['a{']}":                `"{" is in no such name`,
		"{clusters: ['a[']}":                `"[" is in no such name`,
		"{namespaces: [az09-*]}":            "",
		"{namespaces: [A]}":                 `"A" is in no such name`,
		"{clusters: [[a]]}":                 "is a list, not text",
		"{tokenIDs: [[a]]}":                 "is a list, not text",
		"{tokenIDs: ['a b']}":               "is not a token id",
		"{identities: [[a]]}":               "is a list, not text",
		"{condition: [a]}":                  "is a list, not text",
		"{namespaceSelector: [a]}":          "is a list",
		"{namespaceSelector: 'a=~'}":        "is not a selector for kubectl -l",
		"{namespaceSelector: \"a=b\\x7f\"}": "a character that no selector has",

		"{identities: [x], claims: {" + long[:maxClaimNameBytes] + ": [a]}}":   "",
		"{identities: [x], claims: {" + long[:maxClaimNameBytes+1] + ": [a]}}": "is not the name of a claim: write 1 to 128",
		"{identities: [x], claims: {a b: [a]}}":                                `"a b" is not the name of a claim`,
		"{identities: [x], claims: {a: [" + long + "]}}":                       "",
		"{identities: [x], claims: {a: [" + long + "a]}}":                      "has 513 bytes; at most 512 are compared",
		"{identities: [x], claims: {a: [[a]]}}":                                "is a list, not text",
		"{identities: [x], claims: " + claims(maxClaims) + "}":                 "",
		"{identities: [x], claims: " + claims(maxClaims+1) + "}":               "has 33 claims and 33 values; at most 32 and 256 are read",
		"{identities: [x], claims: " + values(maxClaimValues) + "}":            "",
		"{identities: [x], claims: " + values(maxClaimValues+1) + "}":          "has 1 claims and 257 values; at most 32 and 256 are read",

		"{identities: [gitlab], claims: {runner_id: ['7']}}":                        "",
		"{identities: [gitlab], claims: {runner_id: [seven]}}":                      "this claim is a number",
		"{identities: [gitlab], claims: {project_path: [seven]}}":                   "",
		"{identities: [circleci], claims: {oidc.circleci.com/ssh-rerun: ['true']}}": "",
		"{identities: [circleci], claims: {oidc.circleci.com/ssh-rerun: ['no']}}":   "this claim is a boolean",
		"{identities: [gitlab], condition: 'claims.runner_id == 7.0'}":              "",
		"{identities: [gitlab], condition: 'claims.runner_id == \"7\"'}":            "is compared with a string, which it never equals",
		"{identities: [gitlab], condition: 'claims.unknown == \"7\"'}":              "",
		"{identities: [gitlab], condition: 'has(claims.runner_id)'}":                "",
	} {
		_, err := parseDenials("[" + text + "]")
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%.100s: %v, want %q", text, err, want)
		}
	}
}

// The claims of a condition are looked at like others.
func TestCautionsOfConditions(t *testing.T) {
	t.Parallel()
	list, err := parseDenials(`[{identities: [gitlab], condition: 'claims.unknown == "x"'}]`)
	testkit.Must(t, err)
	if got := list[0].Cautions(KnownIdentity{Profile: identity.GitLab}, false); len(got) != 1 || !strings.HasPrefix(got[0], "claims.unknown is not a known claim of profile gitlab") {
		t.Errorf("%q", got)
	}
}

// Without a token, a condition on its values has a result only if that does not depend on them.
// Otherwise it matches neither in a rule nor in a denial.
func TestConditionsWithoutAToken(t *testing.T) {
	t.Parallel()
	for condition, want := range map[string]struct{ matches, needsToken bool }{
		`kubernetes.node == "n"`:                                          {false, true},
		`kubernetes.node != "n"`:                                          {false, true},
		`claims.jti == "x"`:                                               {false, true},
		`has(claims.jti) && claims.jti == "x"`:                            {false, true},
		`"jti" in claims && !(claims.jti == "x")`:                         {false, true},
		`kubernetes.node == "n" || kubernetes.namespace == "team-a"`:      {true, false},
		`kubernetes.node == "n" && kubernetes.namespace == "other"`:       {false, false},
		`claims.jti == "x" || kubernetes.serviceAccount == "not the web"`: {false, true},
		`kubernetes.labels.env == "prod" && kubernetes.node == "n"`:       {false, true},
		`kubernetes.namespace == "other"`:                                 {false, false},
	} {
		for _, denies := range []bool{false, true} {
			list := parse(t, `[{namespaces: [team-a], condition: '`+condition+`'}, {namespaces: [other]}]`)
			list[0].Denies = denies
			a := Asker{NoToken: true, Identity: &oidc.Identity{Kubernetes: oidc.KubernetesIdentity{Namespace: "team-a", ServiceAccount: oidc.ObjectRef{Name: "web"}}}}
			var why []string
			if got := a.MatchAny(list, &why); got != want.matches || a.NeedsToken != want.needsToken || a.Doubt != "" {
				t.Errorf("%s, denies %t: %t, needs a token %t, doubt %q", condition, denies, got, a.NeedsToken, a.Doubt)
			}
			if says := len(why) > 0 && why[0] == "condition, which cannot be judged without a token"; says != want.needsToken {
				t.Errorf("%s: %q", condition, why)
			}
		}
	}
	a := Asker{NoToken: true, Identity: &oidc.Identity{Kubernetes: oidc.KubernetesIdentity{Namespace: "team-a"}}}
	list := parse(t, `[{namespaces: [team-a], condition: 'kubernetes.labels.env == "prod"'}]`)
	list[0].Denies = true
	if !a.MatchAny(list, nil) || a.Doubt == "" {
		t.Error("labels that are not known do not deny")
	}
}

// An unknown issuer or subject is missing. A comparison with it has no result.
func TestIdentityWithoutAnIssuer(t *testing.T) {
	t.Parallel()
	for _, condition := range []string{`claims.iss != "https://other.example.com"`, `claims.sub != "other"`} {
		list := parse(t, `[{namespaces: [team-a], condition: '`+condition+`'}]`)
		a := Asker{Identity: &oidc.Identity{Kubernetes: oidc.KubernetesIdentity{Namespace: "team-a"}}}
		if a.MatchAny(list, nil) || !strings.HasPrefix(a.Doubt, "no such key: ") {
			t.Errorf("%s: doubt %q", condition, a.Doubt)
		}
	}
}

// An id that is not known is a claim that is missing, and not an empty one.
func TestTokenWithoutAnID(t *testing.T) {
	t.Parallel()
	for id, want := range map[string][2]bool{"": {false, false}, "x": {false, true}} {
		for i, condition := range []string{`claims.jti == ""`, `claims.jti == "x"`} {
			list := parse(t, `[{namespaces: [team-a], condition: '`+condition+`'}]`)
			a := Asker{Identity: &oidc.Identity{TokenID: id, Kubernetes: oidc.KubernetesIdentity{Namespace: "team-a"}}}
			if got := a.MatchAny(list, nil); got != want[i] {
				t.Errorf("id %q, %s: %t", id, condition, got)
			}
		}
	}
}
