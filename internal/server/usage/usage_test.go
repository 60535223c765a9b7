package usage

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/reach"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// An item of an annotation is used if a rule that reads the annotation granted it. Grants of other
// rules or other actions do not count.
func TestWhatIsUsed(t *testing.T) {
	t.Parallel()
	p := testkit.Value(policy.Parse(policy.File{Name: "p", Data: []byte(`
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- {name: asks, annotation: a/b, subjects: [{namespaces: ["*"]}], allow: [{repositories: ["**"], actions: [pull, push]}]}
- {name: other, subjects: [{namespaces: ["*"]}], allow: [{repositories: ["x/**"], actions: [pull]}]}
`)}))(t)
	account := reach.Account{Namespace: "team-a", Name: "web", Annotations: map[string]string{"a/b": "x/one:push x/two x/three"}}
	line := func(day, rule, granted string) string {
		return `{"time":"2026-03-` + day + `T09:00:00Z","id":"i","result":"granted","status":200,"cluster":"c","namespace":"team-a","serviceAccount":{"name":"web"},"granted":["` + granted + `"],"rule":"` + rule + `","latency":0.1}` + "\n"
	}
	// The lines are in no order.
	log := line("20", "asks", "repository:x/three:pull") + line("02", "asks", "repository:x/three:pull") + line("20", "asks", "repository:x/one:pull") + line("20", "other", "repository:x/two:pull") + line("03", "asks", "repository:x/two:pull")
	report := testkit.Value(Find(t.Context(), Request{
		Policy: p, Accounts: []reach.Accounts{{Cluster: "c", All: []reach.Account{account}}}, Files: []string{"-"}, Since: time.Date(2026, 3, 10, 0, 0, 0, 0, time.UTC),
	}, strings.NewReader(log), io.Discard))(t)
	var got []string
	for _, a := range report.Annotations {
		got = append(got, a.Item+lastUsed(a.LastUsed))
	}
	if want := "x/one:push x/two:pull, last on 2026-03-03"; strings.Join(got, " ") != want {
		t.Errorf("unused are %q, want %s", got, want)
	}
	if len(report.Rules) != 0 || report.Lines != 5 || report.From.Day() != 2 || report.To.Day() != 20 {
		t.Errorf("%+v", report)
	}
}

// An item of a RepositoryAccess is used if one of its subjects got it by a rule that reads such
// objects. A rule of an object is used only by its own cluster.
func TestWhatOfObjectsIsUsed(t *testing.T) {
	t.Parallel()
	p := testkit.Value(policy.Parse(policy.File{Name: "p", Data: []byte(`
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- {name: asked-for, requests: true, subjects: [{namespaces: ["*"]}], allow: [{repositories: ["**"], actions: [pull]}]}
- {name: other, subjects: [{namespaces: ["*"]}], allow: [{repositories: ["x/**"], actions: [pull]}]}
`)}))(t)
	list := func(all ...any) []any { return all }
	object := policy.ParseObject("o", map[string]any{
		"rules": list(map[string]any{"name": "r", "subjects": list(map[string]any{"namespaces": list("a")}), "allow": list(map[string]any{"repositories": list("**"), "actions": list("pull")})}),
		"deny":  list(map[string]any{"name": "d", "subjects": list(map[string]any{"namespaces": list("b")})}),
	})
	request := func(name string, accounts []any, repositories ...any) *policy.Request {
		return policy.ParseRequest("a", name, map[string]any{"serviceAccounts": accounts, "repositories": repositories, "actions": list("pull")})
	}
	said := reach.Objects{Policies: policy.NewPolicies(nil, object), HasRequests: true, Requests: []*policy.Request{
		request("bad", list("web"), "?"), request("one", list("web", "ci"), "x/one", "x/two", "x/three", "x/four"), request("two", list("ci"), "x/one"),
	}}
	line := func(day, cluster, account, rule, granted string) string {
		return `{"time":"2026-03-` + day + `T09:00:00Z","id":"i","result":"granted","status":200,"cluster":"` + cluster + `","namespace":"a","serviceAccount":{"name":"` + account + `"},"granted":["repository:` + granted + `:pull"],"rule":"` + rule + `","latency":0.1}` + "\n"
	}
	log := line("20", "c", "web", "asked-for", "x/one") + line("20", "c", "web", "other", "x/two") + line("02", "c", "ci", "asked-for", "x/three") + line("20", "d", "web", "asked-for", "x/four") +
		line("20", "c", "web", "o/r", "y") + line("20", "d", "web", "o/d", "y")
	report := testkit.Value(Find(t.Context(), Request{
		Policy: p, Accounts: []reach.Accounts{{Cluster: "c", Objects: said}, {Cluster: "d", Objects: reach.Objects{Policies: said.Policies}}}, Files: []string{"-"}, Since: time.Date(2026, 3, 10, 0, 0, 0, 0, time.UTC),
	}, strings.NewReader(log), io.Discard))(t)
	var text strings.Builder
	testkit.Must(t, WriteText(&text, report))
	_, got, _ := strings.Cut(text.String(), "\n")
	const begin = `rule         o/r (AccessPolicy o: rules[0], in cluster d) granted nothing
deny rule    o/d (AccessPolicy o: deny[0], in cluster c) refused no caller
request      a/bad of cluster c counts for nothing: RepositoryAccess a/bad: repositories[0]: `
	rest, ok := strings.CutPrefix(got, begin)
	if !ok {
		t.Fatalf("got\n%s\nwant\n%s", got, begin)
	}
	_, rest, _ = strings.Cut(rest, "\n")
	if want := `request      a/one of cluster c: x/four:pull is not used
request      a/one of cluster c: x/three:pull is not used, last on 2026-03-02
request      a/one of cluster c: x/two:pull is not used
request      a/two of cluster c: x/one:pull is not used
`; rest != want {
		t.Errorf("got\n%s\nwant\n%s", rest, want)
	}
}
