package condition

import (
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/oidc/identity"
)

func compile(t testing.TB, text string) *Condition {
	t.Helper()
	c, err := Compile(text)
	if err != nil {
		t.Fatalf("Compile(%s): %v", text, err)
	}
	return c
}

// someone has a claim of every type.
func someone() Variables {
	return Variables{
		Claims: map[string]any{
			"event_name": "push", "ref": "refs/tags/v1", "ref_protected": "true", "groups": []string{"team-a", "team-b"},
			"int": int64(3), "float": 3.0, "half": 0.5, "flag": true, "off": false, "empty": "",
			"oidc.circleci.com/project-id": "7f",
			"object":                       map[string]any{"project": map[string]any{"id": "9"}, "list": []any{"x", int64(1)}},
		},
		Cluster: "prod", Namespace: "team-a", ServiceAccount: "builder", Node: "worker-1", Service: "registry.example.com",
		Labels: map[string]string{"team": "a", "example.com/env": "prod"},
	}
}

// The node and the id of a ServiceAccount's token are in the token alone.
func TestReadsToken(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		`kubernetes.node == "a"`:                                     true,
		`claims.groups.exists(g, g == kubernetes.node)`:              true,
		`claims["jti"] == "a"`:                                       true,
		`has(claims.jti)`:                                            true,
		`"jti" in claims`:                                            true,
		`claims.sub == "jti" && kubernetes.namespace == "a"`:         false,
		`kubernetes.labels.node == "a" && claims.node == "a"`:        false,
		`kubernetes.labels["kubernetes.node"] == kubernetes.cluster`: false,
	} {
		if got := compile(t, text).ReadsToken(); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
}

func TestHolds(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		`claims.event_name == "push" && claims.ref.startsWith("refs/tags/")`: true,
		`claims.event_name in ["push", "workflow_dispatch"]`:                 true,
		`claims.event_name in ["pull_request"]`:                              false,
		`claims.ref.endsWith("/v1") && claims.ref.contains("/tags/")`:        true,
		`claims["oidc.circleci.com/project-id"] == "7f"`:                     true,
		`"oidc.circleci.com/project-id" in claims`:                           true,
		`"oidc.circleci.com/org-id" in claims`:                               false,
		`has(claims.ref) && !has(claims.environment)`:                        true,
		`"repo:" + claims.ref == "repo:refs/tags/v1"`:                        true,
		`claims.object.project.id == "9"`:                                    true,
		`has(claims.object.project.id) && !has(claims.object.project.name)`:  true,
		`claims.object.list[0] == "x" && 1 in claims.object.list`:            true,
		`claims.object == claims.object`:                                     true,
		`claims.flag == true && !claims.off`:                                 true,
		`claims.flag ? claims.ref == "x" : true`:                             false,

		`"team-a" in claims.groups`:                                          true,
		`claims.groups == ["team-a", "team-b"]`:                              true,
		`claims.groups.exists(g, g == kubernetes.namespace)`:                 true,
		`claims.groups.all(g, g.startsWith("team-"))`:                        true,
		`claims.groups.exists_one(g, g.endsWith("a"))`:                       true,
		`claims.groups.exists_one(g, g.startsWith("team"))`:                  false,
		`claims.groups.filter(g, g != "team-a") == ["team-b"]`:               true,
		`size(claims.groups) == 2 && claims.ref.size() == 12`:                true,
		`claims.groups.exists(g, claims.groups.exists(h, g + "" + h == ""))`: false,

		`kubernetes.cluster == "prod" && kubernetes.serviceAccount == "builder"`: true,
		`kubernetes.node.startsWith("worker-")`:                                  true,
		`kubernetes.labels.team == "a"`:                                          true,
		`kubernetes.labels["example.com/env"] == "prod"`:                         true,
		`kubernetes.labels["example.com/env"].contains("ro")`:                    true,
		`kubernetes.labels["example.com/env"] + "/" == "prod/"`:                  true,
		`has(kubernetes.labels.team) && !("owner" in kubernetes.labels)`:         true,
		`service == "registry.example.com"`:                                      true,

		// Numbers compare as numbers, independent of their Go type.
		`claims.int == 3 && claims.int == 3.0 && claims.int < 3.5`:  true,
		`claims.float == 3 && claims.float >= 3 && claims.half < 1`: true,
		`claims.int == claims.float && claims.int in [1, 2, 3]`:     true,
		`claims.int == -3`: false,
		`claims.ref > "refs/heads/" && claims.event_name >= "push"`: true,

		// Values of different types are unequal, without an error at run time.
		`claims.int == "3"`:             false,
		`claims.ref_protected == true`:  false,
		`claims.ref_protected != false`: true,
		`claims.flag == "true"`:         false,
		`claims.empty == false`:         false,
		`claims.ref == null`:            false,
		`claims.int in ["3", "4"]`:      false,
	} {
		got, err := compile(t, text).Holds(someone(), new(uint64))
		if got != want || err != nil {
			t.Errorf("%s: %v, %v; want %v", text, got, err, want)
		}
	}
}

func TestNotKnown(t *testing.T) {
	t.Parallel()
	nobody := Variables{}
	for text, want := range map[string]string{
		`claims.missing == "x"`:                   "no such key: missing",
		`claims.missing != "x"`:                   "no such key: missing",
		`!(claims.missing == "x")`:                "no such key: missing",
		`claims["mis/sing"] == "x"`:               "no such key: mis/sing",
		`has(claims.missing.inner)`:               "no such key: missing",
		`claims.ref.inner == "x"`:                 "no such key: inner",
		`claims.groups[2] == "x"`:                 "index out of bounds: 2",
		`claims.ref && true`:                      "no such overload",
		`claims.ref < 3`:                          "no such overload",
		`claims.int.startsWith("3")`:              "no such overload",
		`claims.object.exists(name, name == "x")`: "no such overload: @list(map)",
		`claims.ref.all(c, c == "x")`:             "no such overload: @list(string)",
		`claims.groups.exists(g, claims.x == g)`:  "no such key: x",
		`kubernetes.labels.owner == "x"`:          "no such key: owner",
	} {
		got, err := compile(t, text).Holds(someone(), new(uint64))
		if got || err == nil || err.Error() != want {
			t.Errorf("%s: %v, %v; want %s", text, got, err, want)
		}
	}
	for _, name := range []string{"kubernetes.cluster", "kubernetes.namespace", "kubernetes.serviceAccount", "kubernetes.node", "service"} {
		for _, text := range []string{name + ` == "x"`, name + ` != "x"`, name + ` == ""`} {
			got, err := compile(t, text).Holds(nobody, new(uint64))
			if want := name + " is not known of this caller"; got || err == nil || err.Error() != want {
				t.Errorf("%s: %v, %v; want %s", text, got, err, want)
			}
		}
	}
	for _, text := range []string{`has(kubernetes.labels.team)`, `!("team" in kubernetes.labels)`, `kubernetes.labels.team != "a"`} {
		got, err := compile(t, text).Holds(nobody, new(uint64))
		if want := "kubernetes.labels is not known of this caller"; got || err == nil || err.Error() != want {
			t.Errorf("%s: %v, %v; want %s", text, got, err, want)
		}
	}
	if got, err := compile(t, `has(claims.ref)`).Holds(nobody, new(uint64)); got || err != nil {
		t.Errorf("no claims: %v, %v", got, err)
	}
	noLabels := Variables{Labels: map[string]string{}}
	if got, err := compile(t, `has(kubernetes.labels.team)`).Holds(noLabels, new(uint64)); got || err != nil {
		t.Errorf("no labels: %v, %v", got, err)
	}
}

// CEL's logic is kept: a part without a result may be irrelevant to the whole. Only the result of
// the whole counts.
func TestErrorsInLogic(t *testing.T) {
	t.Parallel()
	const unknown = `claims.missing == "x"`
	for text, want := range map[string]struct{ holds, fails bool }{
		unknown + ` || true`:                          {holds: true},
		`true || ` + unknown:                          {holds: true},
		unknown + ` && false`:                         {},
		`false && ` + unknown:                         {},
		unknown + ` || false`:                         {fails: true},
		unknown + ` && true`:                          {fails: true},
		`!(` + unknown + `)`:                          {fails: true},
		unknown + ` ? true : true`:                    {fails: true},
		`true ? true : ` + unknown:                    {holds: true},
		`[1, 2].exists(x, x == 2 || ` + unknown + `)`: {holds: true},
		`[1, 2].exists(x, x == 3 || ` + unknown + `)`: {fails: true},
		`[1, 2].all(x, x == 1 && ` + unknown + `)`:    {},
		`[1, 2].all(x, x < 3 && ` + unknown + `)`:     {fails: true},
	} {
		if got, err := compile(t, text).Holds(someone(), new(uint64)); got != want.holds || (err != nil) != want.fails {
			t.Errorf("%s: %v, %v; want %+v", text, got, err, want)
		}
	}
}

func TestUses(t *testing.T) {
	t.Parallel()
	const text, number, boolean, list = identity.String, identity.Number, identity.Boolean, identity.List
	for condition, want := range map[string][]Use{
		`claims.a == "x"`:      {{"a", text, false}},
		`"x" != claims["a/b"]`: {{"a/b", text, false}},
		`claims.a < 3 || claims.b >= 1.5 || 2u == claims.c`:                                 {{"a", number, false}, {"b", number, false}, {"c", number, false}},
		`claims.a == true && claims.b`:                                                      {{"a", boolean, false}, {"b", boolean, false}},
		`!claims.a || (claims.b ? true : false)`:                                            {{"a", boolean, false}, {"b", boolean, false}},
		`claims.a in ["x", "y"] && claims.b in [1]`:                                         {{"a", text, false}, {"b", number, false}},
		`claims.a in ["x", 1] || claims.b in []`:                                            {{"a", "", false}, {"b", "", false}},
		`"x" in claims.a || claims.b == ["x"]`:                                              {{"a", list, false}, {"b", list, false}},
		`claims.a.exists(x, x == claims.b + "")`:                                            {{"a", list, false}, {"b", text, false}},
		`claims.a.all(x, claims.b) || claims.c.filter(x, claims.d == x) == []`:              {{"a", list, false}, {"b", boolean, false}, {"c", list, false}, {"d", "", false}},
		`claims.a.startsWith("x") || "x".endsWith(claims.b) || claims.c.contains(claims.d)`: {{"a", text, false}, {"b", text, false}, {"c", text, false}, {"d", text, false}},
		`claims.a == kubernetes.namespace || claims.b == service`:                           {{"a", text, false}, {"b", text, false}},
		`kubernetes.labels.team == claims.a || kubernetes.labels[claims.b] == "x"`:          {{"a", text, false}, {"b", "", false}},
		`claims.a == "x" + claims.b`:                                                        {{"a", text, false}, {"b", text, false}},
		`claims.a == claims.b`:                                                              {{"a", "", false}, {"b", "", false}},
		`(claims.a == 1 ? claims.b : claims.c) == "x"`:                                      {{"a", number, false}, {"b", text, false}, {"c", text, false}},
		`claims.a.b == "x" || claims.c[0] == "x" || claims.d["x"].y == 1`:                   {{"a", "", false}, {"c", list, false}, {"d", "", false}},
		`has(claims.a) && "b" in claims && has(claims.c.d)`:                                 {{"a", "", true}, {"b", "", true}, {"c", "", true}},
		`size(claims.a) == 1 || claims.b.size() == 1`:                                       {{"a", "", false}, {"b", "", false}},
		`claims.a == "x" || claims.a == "y" || claims.a == 1`:                               {{"a", text, false}, {"a", number, false}},
		`["x", claims.a + ""].exists(x, x == "x")`:                                          {{"a", text, false}},
		`claims.a <= 3 && claims.b > 3 && (claims.c || claims.d)`:                           {{"a", number, false}, {"b", number, false}, {"c", boolean, false}, {"d", boolean, false}},
		`claims.a in kubernetes.labels`:                                                     {{"a", text, false}},
		`"a" in kubernetes.labels && "b" in claims.b`:                                       {{"b", list, false}},
		`kubernetes.labels["x" + claims.a] == "x"`:                                          {{"a", text, false}},
		`service == "x"`:              nil,
		`has(kubernetes.labels.team)`: nil,
	} {
		if got := compile(t, condition).Uses(); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", condition, got, want)
		}
	}
}

func TestString(t *testing.T) {
	t.Parallel()
	const text = "claims.a == 'x'\n  && true // why\n"
	if got := compile(t, text).String(); got != text {
		t.Errorf("%q, want %q", got, text)
	}
}

// Errors repeat untrusted text only in short form, and without characters that control a terminal.
func TestErrorsAreShortLines(t *testing.T) {
	t.Parallel()
	v := Variables{Labels: map[string]string{}, Claims: map[string]any{"a": "\x1b[2J\n" + strings.Repeat("a", 12000)}}
	_, err := compile(t, `kubernetes.labels[claims.a] == "x"`).Holds(v, new(uint64))
	if err == nil || len(err.Error()) > maxMessage+20 || !strings.HasPrefix(err.Error(), `"no such key: \x1b[2J\naaa`) {
		t.Errorf("Holds: %v", err)
	}
	if _, err := Compile("claims.a == `" + strings.Repeat("\u202e", 300)); err == nil || len(err.Error()) > 500 || strings.Contains(err.Error(), "\u202e") {
		t.Errorf("Compile: %v", err)
	}
}
