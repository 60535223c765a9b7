package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// spec returns YAML in the form of decoded objects of a cluster.
func spec(t *testing.T, text string) any {
	t.Helper()
	var value any
	testkit.Must(t, yaml.Unmarshal([]byte(text), &value))
	return value
}

// cluster returns Objects of AccessPolicies by name, and of RepositoryAccess objects of the
// namespace team-a for the ServiceAccount web.
func cluster(t *testing.T, within string, policies, requests map[string]string) Objects {
	t.Helper()
	var parsed []*ObjectPolicy
	for _, name := range sortedKeys(policies) {
		parsed = append(parsed, ParseObject(name, spec(t, policies[name])))
	}
	var asked []*Request
	for _, name := range sortedKeys(requests) {
		asked = append(asked, ParseRequest("team-a", name, spec(t, requests[name])))
	}
	return Objects{Policies: NewPolicies([]pattern.Pattern{pattern.Pattern(within)}, parsed...), Requests: NewRequests("web", asked)}
}

func sortedKeys(m map[string]string) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

const fileWithCeiling = `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- {name: own, subjects: [{namespaces: [team-a]}], allow: [{repositories: ['{namespace}/own'], actions: [pull]}]}
- {name: ceiling, subjects: [{namespaces: [team-a]}], requests: true, allow: [{repositories: ['shared/**', 'other/x'], actions: [pull, push]}]}
deny: [{name: quarantine, subjects: [{namespaces: [team-a], serviceAccounts: [bad]}]}]
`

func TestObjects(t *testing.T) {
	t.Parallel()
	const ask = `{serviceAccounts: [web], repositories: [shared/a, "other/**", team-a/asked], actions: [pull]}`
	const ceiling = `rules: [{name: c, subjects: [{namespaces: [team-a]}], requests: true, allow: [{repositories: ['{namespace}/**'], actions: [pull]}]}]`
	for _, test := range []struct {
		name, within       string
		policies, requests map[string]string
		scope              string
		granted            string // scopes
		rules, reason      string // a part of it
	}{
		{"the file alone", "**", nil, nil, "repository:team-a/own:pull", "repository:team-a/own:pull", "own", ""},
		{"without a request", "**", nil, nil, "repository:shared/a:pull", "", "", "rule ceiling would allow it if a RepositoryAccess asked for it"},
		{"asked for", "**", nil, map[string]string{"r": ask, "s": strings.Replace(ask, "shared/a", "shared/b", 1), "t": strings.Replace(ask, "shared/a", "'shared/*', shared/a", 1)}, "repository:shared/a:pull,push", "repository:shared/a:pull", "ceiling", "rule ceiling would allow it if a RepositoryAccess asked for it"},
		{"beyond the ceiling", "**", nil, map[string]string{"r": ask}, "repository:other/y:pull", "", "", "a RepositoryAccess asks for it, beyond the ceiling of rule ceiling: pull, push on shared/**, other/x, within **"},
		{"elsewhere", "**", nil, nil, "repository:x:pull", "", "", "rule ceiling lets a RepositoryAccess ask for pull, push on shared/**, other/x, within **"},
		{"beyond within", "team-*/**", nil, map[string]string{"r": ask}, "repository:shared/a:pull", "", "", "within team-*/**"},
		{"for another ServiceAccount", "**", nil, map[string]string{"r": strings.Replace(ask, "web", "worker", 1)}, "repository:shared/a:pull", "", "", "asked for it"},
		{"a ceiling in an object", "team-*/**", map[string]string{"p": ceiling}, map[string]string{"r": ask}, "repository:team-a/asked:pull", "repository:team-a/asked:pull", "p/c", ""},
		{"a ceiling in an object, without a request", "team-*/**", map[string]string{"p": ceiling}, nil, "repository:team-a/asked:pull", "", "", "rule p/c would allow it if a RepositoryAccess asked for it"},
		{"a plain rule", "team-*/**", map[string]string{"p": `rules: [{name: r, subjects: [{namespaces: [team-a]}], allow: [{repositories: ['**'], actions: ["*"]}]}]`}, nil,
			"repository:team-b/x:push", "repository:team-b/x:push", "p/r", ""},
		{"a plain rule beyond within", "team-*/**", map[string]string{"p": `rules: [{name: r, subjects: [{namespaces: [team-a]}], allow: [{repositories: ['**'], actions: ["*"]}]}]`}, nil,
			"repository:prod/x:push", "", "", "rule p/r allows * on **, within team-*/**"},
		{"never the catalog", "**", map[string]string{"p": `rules: [{name: r, subjects: [{namespaces: [team-a]}], allow: [{repositories: ['**'], actions: ["*"]}]}]`}, nil,
			"registry:catalog:*", "", "", ""},
		{"a denial", "team-*/**", map[string]string{"p": `deny: [{name: d, subjects: [{namespaces: [team-a]}]}]`}, nil, "repository:team-a/own:pull", "", "", "the deny rule p/d refuses"},
		{"a denial of others", "team-*/**", map[string]string{"p": `deny: [{name: d, subjects: [{namespaces: [team-b]}]}]`}, nil, "repository:team-a/own:pull", "repository:team-a/own:pull", "own", ""},
	} {
		subject := Subject{Identity: account(t, "prod/team-a/web"), Objects: cluster(t, test.within, test.policies, test.requests)}
		policy, scopes := parseText(t, fileWithCeiling), scopesOf(t, test.scope)
		d, trace := policy.Explain(subject, "", scopes)
		s := d.Scopes[0]
		if got := strings.Join(ScopeStrings(d.Granted()), " "); got != test.granted || strings.Join(s.Rules, ",") != test.rules || !strings.Contains(s.Reason, test.reason) {
			t.Errorf("%s: granted %q by %q, because %q", test.name, got, s.Rules, s.Reason)
		}
		if again := policy.Decide(subject, "", scopes); !reflect.DeepEqual(again, d) {
			t.Errorf("%s: decided %+v, explained %+v", test.name, again, d)
		}
		if text, _ := json.Marshal(trace); test.name == "asked for" && !strings.Contains(string(text), `"items":["shared/a:pull","shared/*:pull","shared/a:pull"],"objects":["team-a/r","team-a/t"],"asks":["pull"]`) {
			t.Errorf("the trace does not name the object: %s", text)
		}
		if isBeyond := slices.ContainsFunc(trace.Rules, func(r RuleTrace) bool { return r.Scopes[0].Beyond }); len(trace.Rules) > 0 && isBeyond != strings.Contains(test.name, "beyond within") {
			t.Errorf("%s: beyond the limit: %t", test.name, isBeyond)
		}
	}
}

// An annotation selects only from rules that read it, and a RepositoryAccess only from rules that
// read requests.
func TestRequestsAndAnnotationsAreApart(t *testing.T) {
	t.Parallel()
	policy := parseText(t, strings.Replace(fileWithCeiling, "requests: true", "annotation: k", 1))
	subject := Subject{Identity: account(t, "prod/team-a/web"), Objects: cluster(t, "**", nil, map[string]string{"r": `{serviceAccounts: [web], repositories: ["**"], actions: ["*"]}`})}
	if d := policy.Decide(subject, "", scopesOf(t, "repository:shared/a:pull")); d.Granted() != nil {
		t.Errorf("a RepositoryAccess selected from a rule with an annotation: %+v", d)
	}
	subject = Subject{Identity: account(t, "prod/team-a/web"), Annotations: map[string]string{"k": "**:*", "": "**:*"}, Objects: cluster(t, "**", nil, nil)}
	if d := parseText(t, fileWithCeiling).Decide(subject, "", scopesOf(t, "repository:shared/a:pull")); d.Granted() != nil {
		t.Errorf("an annotation selected from a rule with requests: %+v", d)
	}
}

// A fault in an object narrows: none of its rules counts, and a denial refuses every subject that
// it could mean.
func TestInvalidObjectsNarrow(t *testing.T) {
	t.Parallel()
	const rule = `{name: r, subjects: [{namespaces: [team-a]}], allow: [{repositories: ['**'], actions: [pull]}]}`
	const open = `rules: [` + rule + `]`
	web, elsewhere := account(t, "prod/team-a/web"), account(t, "prod/team-b/web")
	policy := parseText(t, strings.Replace(fileWithCeiling, "{namespaces: [team-a]}", "{namespaces: ['*']}", 1))
	for _, test := range []struct {
		spec, fault      string
		grants           bool // of its rule
		refusesA, others bool
	}{
		{open, "", true, false, false},
		{strings.Replace(open, "[pull]", "[pul]", 1), "rules[0].allow[0].actions[0]", false, false, false},
		{strings.Replace(open, "[{namespaces", "[{namespace", 1), "unknown field", false, false, false},
		{strings.Replace(open, "name: r,", "name: r, service: [a],", 1), "unknown field", false, false, false},
		{strings.Replace(open, "name: r,", "name: r, annotation: k,", 1), "objects read no annotations", false, false, false},
		{strings.Replace(open, "subjects: [{namespaces: [team-a]}]", "anonymous: true", 1), "who is anonymous is of no cluster", false, false, false},
		{strings.Replace(open, "{namespaces: [team-a]}", "{identities: [github]}", 1), "ServiceAccounts of its own cluster", false, false, false},
		{strings.Replace(open, "repositories: ['**']", "registry: [catalog]", 1), "objects allow repositories alone", false, false, false},
		{strings.Replace(open, "{namespaces: [team-a]}", "{condition: 'tru'}", 1), "condition", false, false, false},
		{strings.Replace(open, "namespaces: [team-a]", "namespaces: [team-a], serviceAccounts: ", 1), "serviceAccounts: has no value", false, false, false},
		{strings.Replace(open, "namespaces: [team-a]", "namespaces: [team-a], nodes: ", 1), "nodes: has no value", false, false, false},
		{strings.Replace(open, "namespaces: [team-a]", "namespaces: [team-a], clusters: ", 1), "clusters: has no value", false, false, false},
		{strings.Replace(open, "namespaces: [team-a]", "namespaces: [team-a], condition: ", 1), "condition: has no value", false, false, false},
		{strings.Replace(open, "namespaces: [team-a]", "namespaces: ['*'], namespaceSelector: ", 1), "namespaceSelector: has no value", false, false, false},
		{strings.Replace(open, "name: r,", "name: r, services: ,", 1), "services: has no value", false, false, false},
		{strings.Replace(open, "name: r,", "name: r, requests: ,", 1), "requests: has no value", false, false, false},
		{open + "\ntrial:", "trial: has no value", false, false, false},
		{"rules: [" + rule + ", " + rule + "]", "is taken by", false, false, false},
		{"rules: []", "the list is empty", false, false, false},
		{"{}", "is empty", false, false, false},
		{open + "\ndeny: []", "", true, false, false},
		{open + "\ndeny: [{name: d, subjects: [{namespaces: [team-b]}]}]", "", true, false, true},
		{open + "\ndeny: [{name: d, subjects: [{namespaces: [team-b], serviceAccounts: [x]}]}]", "", true, false, false},
		// A field that cannot be read could match any subject; the other fields still restrict.
		{open + "\ndeny: [{name: d, subjects: [{namespaces: [team-b], serviceAccounts: ['?']}]}]", "serviceAccounts[0]", false, false, true},
		{open + "\ndeny: [{name: d, subjects: [{namespaces: [team-b, '?']}]}]", "namespaces[1]", false, true, true},
		{open + "\ndeny: [{name: d, subjects: [{namespaces: [team-b], condition: '}'}]}]", "condition", false, false, true},
		{open + "\ndeny: [{name: d, subjects: [{namespaces: [team-b], identities: [github]}]}]", "own cluster", false, false, true},
		{open + "\ndeny: [{name: d, subjects: [{namespaces: [team-b], claims: {a: [b]}}]}]", "own cluster", false, false, true},
		{open + "\ndeny: [{name: d, subjects: [{namespaces: [team-b], serviceAccount: [x]}]}]", "unknown field", false, false, true},
		{open + "\ndeny: [{name: d, subjects: [{nodes: 1}]}]", "nodes", false, true, true},
		{open + "\ndeny: [{name: d, subjects: [{}]}]", "is empty", false, true, true},
		{open + "\ndeny: [{name: d, subjects: []}]", "the list is empty", false, true, true},
		{open + "\ndeny: [{name: d}]", "subjects: is missing", false, true, true},
		{open + "\ndeny: [{name: d, subjects: [{tokenIDs: ['JTI=x']}]}]", "tokenIDs", false, true, true},
		{open + "\ndeny: [{subjects: [{namespaces: [team-b]}]}]", "name: is missing", false, false, true},
		{open + "\ndeny: [{name: r, subjects: [{namespaces: [team-b]}]}]", "is taken by", false, false, true},
		{open + "\ndeny: [d]", "is text", false, true, true},
		// An unknown field beside them: no rule counts, but the known denials do.
		{open + "\ndney: [{name: d, subjects: [{namespaces: [team-b]}]}]", "unknown field", false, false, false},
		{open + "\ndney: []\ndeny: [{name: d, subjects: [{namespaces: [team-b]}]}]", "unknown field", false, false, true},
		{open + "\ndeny: [{name: d, subjects: [{namespaces: [team-b]}], services: [x]}]", "unknown field", false, false, true},
		{open + "\ndeny: [{name: d, subject: [{namespaces: [team-b]}]}]", "unknown field", false, true, true},
		{open + "\ndeny: {}", "not a list", false, true, true},
		{open + "\ndeny:", "has no value", false, true, true},
		{open + "\ndeny: [" + strings.TrimSuffix(strings.Repeat("{name: d, subjects: [{namespaces: [x]}]},", maxRules), ",") + "]", "more than 10000 rules", false, true, true},
	} {
		o := ParseObject("p", spec(t, test.spec))
		short := test.spec[:min(len(test.spec), 300)]
		if err := o.Err(); (err == nil) != (test.fault == "") || err != nil && !strings.Contains(err.Error(), test.fault) {
			t.Errorf("%s: %v, want %q", short, err, test.fault)
		}
		own := Objects{Policies: NewPolicies([]pattern.Pattern{"**"}, o)}
		d := policy.Decide(Subject{Identity: web, Objects: own}, "", scopesOf(t, "repository:z:pull repository:team-a/own:pull"))
		if (d.DeniedBy != "") != test.refusesA || !test.refusesA && (len(d.Scopes[0].Granted) == 1) != test.grants || !test.refusesA && len(d.Scopes[1].Granted) == 0 {
			t.Errorf("%s: team-a: %+v", short, d)
		}
		if d := policy.Decide(Subject{Identity: elsewhere, Objects: own}, "", scopesOf(t, "repository:team-b/own:pull")); (d.DeniedBy != "") != test.others || (d.Granted() != nil) == test.others {
			t.Errorf("%s: team-b: %+v", short, d)
		}
	}
}

// An object beyond the limit on rules narrows, too: if its denials do not fit, it refuses every
// subject.
func TestObjectsAreLimited(t *testing.T) {
	t.Parallel()
	const rule = "{name: %s, subjects: [{namespaces: [x]}], allow: [{repositories: [a], actions: [pull]}]}"
	tried := ParseObject("a", spec(t, "trial: true\nrules: ["+fmt.Sprintf(rule, "r")+"]"))
	if tried.Err() != nil || !tried.IsTrial() || len(NewPolicies(nil, tried).rules) != 0 || len(NewTrial(nil, tried).rules) != 1 || NewTrial(nil) != nil {
		t.Errorf("tried: %+v", tried)
	}
	if undecided := ParseObject("a", spec(t, "trial: maybe\ndeny: [{name: d, subjects: [{namespaces: [x]}]}]")); undecided.Err() == nil || undecided.IsTrial() || len(NewPolicies(nil, undecided).deny) != 1 {
		t.Errorf("neither tried nor not: %+v", undecided)
	}
	if twice := ParseObject("a", spec(t, "rules: ["+fmt.Sprintf(rule+", "+rule, "r", "r")+"]")); twice.Err() == nil {
		t.Error("names that are not unique were accepted")
	}
	like := spec(t, fmt.Sprintf(rule, "r")).(map[string]any)
	var rules []any
	for i := range maxRules {
		one := maps.Clone(like)
		one["name"] = fmt.Sprint("r", i)
		rules = append(rules, one)
	}
	full := ParseObject("a", map[string]any{"rules": rules})
	testkit.Must(t, full.Err())
	if more := ParseObject("a", map[string]any{"rules": append(rules, spec(t, fmt.Sprintf(rule, "more")))}); more.Err() == nil {
		t.Error("a rule beyond the limit was accepted")
	}
	last := ParseObject("b", spec(t, `rules: [{name: r, subjects: [{namespaces: [team-a]}], allow: [{repositories: [a], actions: [pull]}]}]`))
	denial := ParseObject("c", spec(t, `deny: [{name: d, subjects: [{namespaces: [absent]}]}]`))
	for n, want := range []bool{false, true} {
		p := NewPolicies([]pattern.Pattern{"**"}, []*ObjectPolicy{full, last, denial}[:2+n]...)
		d := (&Policy{}).Decide(Subject{Identity: account(t, "prod/team-a/web"), Objects: Objects{Policies: p}}, "", scopesOf(t, "repository:a:pull"))
		if d.Granted() != nil || (d.DeniedBy == "c/too-many") != want {
			t.Errorf("%d objects: %+v", 2+n, d)
		}
	}
	var requests []*Request
	for i := range 6 { // the first four whole, a part of the next, and nothing of the last
		var items []string
		for j := range 120 {
			items = append(items, fmt.Sprintf("a%d/b%d", i, j))
		}
		requests = append(requests, ParseRequest("team-a", fmt.Sprint("r", i), spec(t, "{serviceAccounts: [web], actions: [pull], repositories: ["+strings.Join(items, ", ")+"]}")))
		testkit.Must(t, requests[i].Err())
	}
	if got := NewRequests("web", requests).Written(); len(got) != maxRequestItems || got[maxRequestItems-1].Object != "team-a/r4" {
		t.Errorf("%d items are read", len(got))
	}
}

func TestInvalidRequestsAskForNothing(t *testing.T) {
	t.Parallel()
	for text, fault := range map[string]string{
		`{serviceAccounts: [web], repositories: [a], actions: [pull]}`:                                  "",
		`{serviceAccounts: [web], repositories: [a, "?"], actions: [pull]}`:                             "repositories[1]",
		`{serviceAccounts: [web], repositories: ["{namespace}/a"], actions: [pull]}`:                    "placeholders work in the policy only",
		`{serviceAccounts: [web], repositories: ["{claims."], actions: [pull]}`:                         "a { is not closed",
		`{serviceAccounts: [web], repositories: ["**/a/**"], actions: [pull]}`:                          "more than one **",
		`{serviceAccounts: [web], repositories: [a], actions: [pul]}`:                                   "is not an action",
		`{serviceAccounts: [web], repositories: [a]}`:                                                   "actions: is missing",
		`{serviceAccounts: [web], repositories: [], actions: [pull]}`:                                   "the list is empty",
		`{serviceAccounts: ["*"], repositories: [a], actions: [pull]}`:                                  "compared exactly",
		`{serviceAccounts: [web], repositories: [a], actions: [pull], namespace: kube}`:                 "unknown field",
		`{serviceAccounts: [web], repositories: [` + strings.Repeat("a,", 200) + `a], actions: [pull]}`: "at most 64 and 128 are read",
		`[]`: "is a list",
		`{serviceAccounts: [` + strings.Repeat("a,", 63) + `web], repositories: [` + strings.Repeat("a,", 127) + `a], actions: [pull]}`: "",
		`{serviceAccounts: [` + strings.Repeat("a,", 64) + `web], repositories: [a], actions: [pull]}`:                                  "at most 64 and 128 are read",
		`{serviceAccounts: [web], repositories: [` + strings.Repeat("a,", 128) + `a], actions: [pull]}`:                                 "at most 64 and 128 are read",
		`{serviceAccounts: [web], repositories: [[a]], actions: [pull]}`:                                                                "repositories[0]: is a list, not text",
		`{serviceAccounts: [[web]], repositories: [a], actions: [pull]}`:                                                                "serviceAccounts[0]: is a list, not text",
	} {
		r := ParseRequest("team-a", "r", spec(t, text))
		if err := r.Err(); (err == nil) != (fault == "") || err != nil && (!strings.Contains(err.Error(), fault) || !strings.HasPrefix(err.Error(), "RepositoryAccess team-a/r: ") || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: %v", text, err)
		}
		if asks := NewRequests("web", []*Request{r}); (asks == nil) != (fault != "") {
			t.Errorf("%s: asks for %+v", text, asks)
		}
	}
}

// Outdated objects grant nothing any more, but still refuse.
func TestDenialsAlone(t *testing.T) {
	t.Parallel()
	own := cluster(t, "**", map[string]string{"p": `
rules: [{name: r, subjects: [{namespaces: ['*']}], allow: [{repositories: ['**'], actions: [pull]}]}]
deny: [{name: d, subjects: [{namespaces: [team-b]}]}]`}, map[string]string{"r": `{serviceAccounts: [web], repositories: ["**"], actions: [pull]}`})
	own.Policies = own.Policies.Denials()
	policy := parseText(t, fileWithCeiling)
	if d := policy.Decide(Subject{Identity: account(t, "prod/team-a/web"), Objects: own}, "", scopesOf(t, "repository:shared/a:pull repository:team-a/own:pull")); len(d.Granted()) != 1 {
		t.Errorf("granted %v", d.Granted())
	}
	if d := policy.Decide(Subject{Identity: account(t, "prod/team-b/web"), Objects: own}, "", scopesOf(t, "repository:team-b/own:pull")); d.DeniedBy != "p/d" {
		t.Errorf("%+v", d)
	}
}

// A denial without a name is named by its place.
func TestDenialWithoutAName(t *testing.T) {
	t.Parallel()
	own := cluster(t, "**", map[string]string{"p": `deny: [{name: d, subjects: [{namespaces: [absent]}]}, {subjects: [{namespaces: [team-a]}]}]`}, nil)
	if d := (&Policy{}).Decide(Subject{Identity: account(t, "prod/team-a/web"), Objects: own}, "", nil); d.DeniedBy != "p/deny[1]" {
		t.Errorf("%+v", d)
	}
}

// Without objects.within, no object grants anything, and no rule with requests.
func TestRequestsWithoutALimitGrantNothing(t *testing.T) {
	t.Parallel()
	own := cluster(t, "**", nil, map[string]string{"r": `{serviceAccounts: [web], repositories: ["**"], actions: [pull]}`})
	policy, subject := parseText(t, fileWithCeiling), Subject{Identity: account(t, "prod/team-a/web"), Objects: own}
	scopes := scopesOf(t, "repository:shared/a:pull")
	if d := policy.Decide(subject, "", scopes); len(d.Granted()) != 1 {
		t.Errorf("within: %+v", d)
	}
	subject.Objects.Policies = nil
	if d := policy.Decide(subject, "", scopes); len(d.Granted()) != 0 {
		t.Errorf("without within: %+v", d)
	}
}

// The fields that objects must not have are allowed where they say no.
func TestObjectsMaySayNo(t *testing.T) {
	t.Parallel()
	if o := ParseObject("a", spec(t, `rules: [{name: r, anonymous: false, subjects: [{namespaces: [team-a]}], allow: [{repositories: [a], actions: [pull]}]}]`)); o.Err() != nil {
		t.Error(o.Err())
	}
	for _, whom := range []string{"anonymous: true", "subjects: [{namespaces: [a]}], annotation: k"} {
		parseText(t, "apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicy\nrules: [{name: r, "+whom+", requests: false, allow: [{repositories: [a], actions: [pull]}]}]")
	}
}

// An object is proposed for the actions that it can get, not for those of a rule that reads an
// annotation.
func TestProposedRequestIsWithinItsCeiling(t *testing.T) {
	t.Parallel()
	policy := parseText(t, strings.Replace(fileWithCeiling, "actions: [pull, push]}]}", "actions: [pull]}]}\n- {name: noted, subjects: [{namespaces: [team-a]}], annotation: k, allow: [{repositories: ['shared/**'], actions: [push]}]}", 1))
	d := policy.Decide(Subject{Identity: account(t, "prod/team-a/web"), Objects: cluster(t, "**", nil, nil)}, "", scopesOf(t, "repository:shared/a:pull,push"))
	if remedy := d.Scopes[0].Remedy; !strings.HasSuffix(remedy, `repositories: [shared/a], actions: ["pull"]`) {
		t.Errorf("remedy %q", remedy)
	}
}

// The RepositoryAccess that an explanation proposes is granted.
func TestProposedRequestGrants(t *testing.T) {
	t.Parallel()
	policy, subject := parseText(t, fileWithCeiling), Subject{Identity: account(t, "prod/team-a/web"), Objects: cluster(t, "**", nil, nil)}
	d, trace := policy.Explain(subject, "", scopesOf(t, "repository:shared/a:pull,push"))
	if want := "let a RepositoryAccess in the namespace team-a of cluster prod ask for it: serviceAccounts: [web], repositories: [shared/a], actions: [\"pull\", \"push\"]"; d.Scopes[0].Remedy != want {
		t.Errorf("remedy %q", d.Scopes[0].Remedy)
	}
	if d.Scopes[0].Reason != "no rule for prod/team-a/web allows pull, push on shared/a; rule ceiling would allow it if a RepositoryAccess asked for it; rule own allows pull on team-a/own" {
		t.Errorf("reason %q", d.Scopes[0].Reason)
	}
	if trace.Edit == nil || trace.Edit.Rule != "" || trace.Edit.Commands != nil {
		t.Fatalf("edit %+v", trace.Edit)
	}
	var object struct {
		Kind     string
		Metadata struct{ Name, Namespace string }
		Spec     any
	}
	testkit.Must(t, yaml.Unmarshal([]byte(trace.Edit.Requests), &object))
	r := ParseRequest(object.Metadata.Namespace, object.Metadata.Name, object.Spec)
	testkit.Must(t, r.Err())
	subject.Objects.Requests = NewRequests("web", []*Request{r})
	if d := policy.Decide(subject, "", scopesOf(t, "repository:shared/a:pull,push")); object.Kind != KindRequest || len(d.Scopes[0].Granted) != 2 || d.Scopes[0].Reason != "" {
		t.Errorf("with %s: %+v", trace.Edit.Requests, d)
	}
}
