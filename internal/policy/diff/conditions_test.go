package diff

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// conditionSide has rules of one cluster and of identities of each profile.
func conditionSide(t *testing.T, rules string, change ...func(*Side)) *Side {
	t.Helper()
	p := testkit.Value(policy.Parse(policy.File{Name: "policy.yaml", Data: []byte(`{"apiVersion": "` + policy.APIVersion + `", "kind": "AccessPolicy", ` + rules + `}`)}))(t)
	s := &Side{
		Policy: p, Clusters: []Cluster{{Name: "prod", KnowsLabels: true}}, Services: []Service{{Name: "r"}},
		Identities: []Identity{{Name: "ci", Profile: identity.Generic}, {Name: "google", Profile: identity.Google}},
	}
	for _, f := range change {
		f(s)
	}
	return s
}

func rule(name, subject string) string {
	return `{"name": "` + name + `", "subjects": [` + subject + `], "allow": [{"repositories": ["x/**"], "actions": ["pull"]}]}`
}

// A condition is never taken for one that makes no difference because no value was found for which it does.
func TestConditionsMayMakeADifference(t *testing.T) {
	t.Parallel()
	const plain = `{"namespaces": ["ns*"]}`
	pods := func(condition string) string {
		return `{"namespaces": ["ns*"], "condition": ` + string(asText(t, condition)) + `}`
	}
	job := func(name, condition string) string {
		return `{"identities": ["` + name + `"], "claims": {"sub": ["1"]}, "condition": ` + string(asText(t, condition)) + `}`
	}
	for condition, subject := range map[string]func(string) string{
		`claims.sub == "system:serviceaccount:ns1:web"`:                 pods,
		`claims.sub.endsWith(":web")`:                                   pods,
		`kubernetes .labels.team == "a"`:                                pods,
		"kubernetes.labels\n[\"team\"] == \"a\"":                        pods,
		`kubernetes.labels["te" + "am"] == "a"`:                         pods,
		`size(kubernetes.namespace) == 37`:                              pods,
		`claims.mfa == true`:                                            func(c string) string { return job("ci", c) },
		`claims.n == 6.5`:                                               func(c string) string { return job("ci", c) },
		`claims.flag != false`:                                          func(c string) string { return job("ci", c) },
		`"push" in claims.realm_access.roles`:                           func(c string) string { return job("ci", c) },
		`claims.dn == r'AD\ci'`:                                         func(c string) string { return job("ci", c) },
		`claims.email_verified == true`:                                 func(c string) string { return job("google", c) },
		`claims.google.compute_engine.project_id == "acme"`:             func(c string) string { return job("google", c) },
		`kubernetes.namespace + "/" + kubernetes.serviceAccount == "a"`: pods,
	} {
		without, with := `"rules": [`+rule("other", `{"namespaces": ["q"]}`)+`]`, `"rules": [`+rule("other", `{"namespaces": ["q"]}`)+`, `+rule("new", subject(condition))+`]`
		d := testkit.Value(Find(t.Context(), conditionSide(t, without), conditionSide(t, with)))(t)
		if len(d.Gained) != 1 || len(d.Lost) > 0 || d.Gained[0].Rule != "new" {
			t.Errorf("a rule with %s: %+v", condition, d)
		}
		all := `{"namespaces": ["ns*"]}, {"identities": ["ci", "google"], "claims": {"sub": ["1"]}}`
		denied := `"rules": [` + rule("all", all) + `], "deny": [{"name": "no", "subjects": [` + subject(condition) + `]}]`
		d = testkit.Value(Find(t.Context(), conditionSide(t, denied), conditionSide(t, `"rules": [`+rule("all", all)+`]`)))(t)
		if len(d.Gained) != 1 || len(d.Lost) > 0 || d.Gained[0].Denial != "no" {
			t.Errorf("a denial with %s: %+v", condition, d)
		}
	}

	// Nor is it called a difference if none of its values would be.
	const open = `size(kubernetes.namespace) == 37`
	for name, rules := range map[string][2]string{
		"renamed":                 {rule("a", pods(open)), rule("b", pods(open))},
		"beside one without":      {rule("a", plain), rule("a", plain) + "," + rule("b", pods(open))},
		"narrower with the same":  {rule("a", pods(open)), rule("a", pods(open)) + "," + rule("b", `{"namespaces": ["ns1"], "condition": "`+open+`"}`)},
		"in a cluster not there":  {rule("a", plain), rule("a", plain) + "," + rule("b", `{"clusters": ["other"], "condition": "`+open+`"}`)},
		"labels that are unknown": {rule("a", `{"namespaces": ["q"]}`), rule("a", `{"namespaces": ["q"]}`) + "," + rule("b", `{"namespaces": ["ns*"], "namespaceSelector": "a=b"}`)},
	} {
		blind := func(s *Side) { s.Clusters[0].KnowsLabels = name != "labels that are unknown" }
		d := testkit.Value(Find(t.Context(), conditionSide(t, `"rules": [`+rules[0]+`]`, blind), conditionSide(t, `"rules": [`+rules[1]+`]`, blind)))(t)
		if len(d.Gained)+len(d.Lost) > 0 {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// Configurations with the same policy can decide differently.
func TestConfigurationsMakeADifference(t *testing.T) {
	t.Parallel()
	const jobs = `"rules": [{"name": "j", "subjects": [{"identities": ["ci"]}], "allow": [{"repositories": ["x/**"], "actions": ["pull"]}]}]`
	requires := func(require map[string][]string, profile identity.Profile) func(*Side) {
		return func(s *Side) {
			own := Identity{Name: "ci", Profile: profile, Require: require}
			bare := own
			own.Identify = func(payload []byte) (oidc.Identity, error) {
				var claims identity.Claims
				if err := json.Unmarshal(payload, &claims); err != nil {
					return oidc.Identity{}, err
				}
				for name, values := range require {
					if text, _ := claims[name].(string); !slices.Contains(values, text) {
						return oidc.Identity{}, errors.New("a claim is required")
					}
				}
				return bare.identify(claims)
			}
			s.Identities[0] = own
		}
	}
	owners := func(values ...string) map[string][]string { return map[string][]string{"owner": values} }
	labels := func(known bool) func(*Side) { return func(s *Side) { s.Clusters[0].KnowsLabels = known } }
	const selector = `"rules": [{"name": "r", "subjects": [{"namespaces": ["ns*"]}], "allow": [{"repositories": ["x/**"], "actions": ["pull"]}]}], "deny": [{"name": "no", "subjects": [{"namespaceSelector": "bad"}]}]`
	const byCondition = `"rules": [{"name": "r", "subjects": [{"namespaces": ["ns*"]}], "allow": [{"repositories": ["x/**"], "actions": ["pull"]}]}], "deny": [{"name": "no", "subjects": [{"condition": "kubernetes.labels['team'] == 'z'"}]}]`
	for name, test := range map[string]struct {
		rules         string
		before, after func(*Side)
		gained, lost  int
	}{
		"another value is enough":      {jobs, requires(owners("1"), identity.Generic), requires(owners("1", "9"), identity.Generic), 1, 0},
		"another value is needed":      {jobs, requires(owners("1"), identity.Generic), requires(owners("9"), identity.Generic), 1, 1},
		"a claim is needed no more":    {jobs, requires(owners("1"), identity.Generic), requires(nil, identity.Generic), 1, 0},
		"a claim is needed, too":       {jobs, requires(nil, identity.Generic), requires(owners("1"), identity.Generic), 0, 1},
		"the order of values":          {jobs, requires(owners("1", "9"), identity.Generic), requires(owners("9", "1"), identity.Generic), 0, 0},
		"labels are known, selector":   {selector, labels(false), labels(true), 1, 0},
		"labels are unknown, selector": {selector, labels(true), labels(false), 0, 1},
		"labels are known, condition":  {byCondition, labels(false), labels(true), 1, 0},
		"on two lines":                 {strings.Replace(byCondition, "kubernetes.labels", `kubernetes\n.labels`, 1), labels(false), labels(true), 1, 0},
	} {
		d := testkit.Value(Find(t.Context(), conditionSide(t, test.rules, test.before), conditionSide(t, test.rules, test.after)))(t)
		if len(d.Gained) != test.gained || len(d.Lost) != test.lost {
			t.Errorf("%s: %+v", name, d)
		}
		for _, e := range append(d.Gained, d.Lost...) {
			if e.Example.As == "" {
				t.Errorf("%s: without an example: %+v", name, e)
			}
		}
	}
}

// Where labels become known, a condition can hold that no value tried here shows.
func TestLabelsThatBecomeKnown(t *testing.T) {
	t.Parallel()
	for _, condition := range []string{
		`kubernetes.labels["owner"] == kubernetes.namespace + "-x"`, `kubernetes.labels["team"].size() > 40`, `kubernetes.labels[service] == "x"`,
	} {
		rules := `"rules": [` + rule("r", `{"namespaces": ["ns*"], "condition": `+string(asText(t, condition))+`}`) + `]`
		known := conditionSide(t, rules)
		unknown := conditionSide(t, rules, func(s *Side) { s.Clusters[0].KnowsLabels = false })
		if d := testkit.Value(Find(t.Context(), unknown, known))(t); len(d.Gained) != 1 || len(d.Lost) > 0 {
			t.Errorf("%s: %+v", condition, d)
		}
		if d := testkit.Value(Find(t.Context(), known, unknown))(t); len(d.Gained) > 0 || len(d.Lost) != 1 {
			t.Errorf("%s, reversed: %+v", condition, d)
		}
		if d := testkit.Value(Find(t.Context(), known, known))(t); len(d.Gained)+len(d.Lost) > 0 {
			t.Errorf("%s, the same: %+v", condition, d)
		}
	}
	// It can hold without any label.
	const either = `{"namespaces": ["*"], "condition": "kubernetes.namespace == kubernetes.serviceAccount + '-dev' || kubernetes.labels['env'] == 'dev'"}`
	unknown := func(s *Side) { s.Clusters[0].KnowsLabels = false }
	before := conditionSide(t, `"rules": [`+rule("q", `{"namespaces": ["q"]}`)+`]`, unknown)
	if d := testkit.Value(Find(t.Context(), before, conditionSide(t, `"rules": [`+rule("q", `{"namespaces": ["q"]}`)+`,`+rule("r", either)+`]`, unknown)))(t); len(d.Gained) != 1 {
		t.Errorf("%+v", d)
	}
}

// The search of a rule with a condition ends soon, and says so if it ends before all callers are tried.
func TestSearchesEnd(t *testing.T) {
	t.Parallel()
	side := func(pattern, condition string) *Side {
		return conditionSide(t, `"rules": [`+strings.Replace(rule("r", `{"namespaces": ["ns*"], "condition": `+string(asText(t, condition))+`}`), "x/**", pattern, 1)+`]`)
	}
	const env = `kubernetes.labels["env"] == "prod" && kubernetes.serviceAccount == "web"`
	for condition, unjudged := range map[string]string{
		env: "",
		env + ` && kubernetes.namespace.startsWith("ns-") && kubernetes.node.startsWith("gpu-")`:                                                                                                                                   "",
		`(kubernetes.labels["env"] == "prod" || kubernetes.labels["tier"] in ["gold", "silver"]) && kubernetes.namespace.contains("web") && kubernetes.serviceAccount.startsWith("ci") && kubernetes.serviceAccount.endsWith("z")`: "too many requests to try all of them; read the rule",
	} {
		d := testkit.Value(Find(t.Context(), side("x/**", condition), side("x/base/**", condition)))(t)
		if len(d.Gained) > 0 || len(d.Lost) != 1 || d.Lost[0].Unjudged != unjudged || (d.Lost[0].Example.As == "") != (unjudged != "") {
			t.Errorf("%s: %+v", condition, d)
		}
	}
	// Names of nodes and values of claims are not left out silently.
	var many []string
	for i, c := range "abcdefghijklmnop" {
		many = append(many, fmt.Sprintf("*-%c%d-*", c, i))
	}
	quoted := string(testkit.Value(json.Marshal(many))(t))
	nodes := `"rules": [` + rule("r", `{"nodes": ["*-pool-*"]}`) + `], "deny": [{"name": "pools", "subjects": [{"nodes": ` + quoted + `}]}`
	environments := func(list string) string {
		return `"rules": [` + rule("r", `{"identities": ["github"], "claims": {"repository_id": ["42"], "environment": `+list+`}}`) + `]`
	}
	github := func(s *Side) { s.Identities = []Identity{{Name: "github", Profile: identity.GitHub}} }
	for before, after := range map[string]string{
		nodes + `, {"name": "quarantine", "subjects": [{"nodes": ["ip-*"]}]}]`: nodes + `]`,
		environments(strings.Replace(quoted, "[", `["*e*", `, 1)):              environments(`["*"]`),
	} {
		if d := testkit.Value(Find(t.Context(), conditionSide(t, before, github), conditionSide(t, after, github)))(t); len(d.Gained) != 1 || d.Gained[0].Unjudged == "" {
			t.Errorf("%s: %+v", before, d)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if d, err := Find(ctx, side("x/**", env), side("y/**", env)); !errors.Is(err, context.Canceled) {
		t.Errorf("the caller gave up: %v, %v", d, err)
	}
}
