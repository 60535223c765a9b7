package usage

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/reach"
)

// What an annotation asks for is used by what a rule granted that reads it, and not by
// what came of another rule, or by another action.
func TestWhatIsUsed(t *testing.T) {
	t.Parallel()
	p, err := policy.Parse(policy.File{Name: "p", Data: []byte(`
apiVersion: pullpass.dev/v1alpha1
kind: AccessPolicy
rules:
- {name: asks, annotation: a/b, subjects: [{namespaces: ["*"]}], allow: [{repositories: ["**"], actions: [pull, push]}]}
- {name: other, subjects: [{namespaces: ["*"]}], allow: [{repositories: ["x/**"], actions: [pull]}]}
`)})
	if err != nil {
		t.Fatal(err)
	}
	account := reach.Account{Namespace: "team-a", Name: "web", Annotations: map[string]string{"a/b": "x/one:push x/two x/three"}}
	line := func(day, rule, granted string) string {
		return `{"time":"2026-03-` + day + `T09:00:00Z","id":"i","result":"granted","status":200,"cluster":"c","namespace":"team-a","serviceAccount":{"name":"web"},"granted":["` + granted + `"],"rule":"` + rule + `","latency":0.1}` + "\n"
	}
	// The lines are in no order.
	log := line("20", "asks", "repository:x/three:pull") + line("02", "asks", "repository:x/three:pull") + line("20", "asks", "repository:x/one:pull") + line("20", "other", "repository:x/two:pull") + line("03", "asks", "repository:x/two:pull")
	report, err := Find(t.Context(), Request{
		Policy: p, Accounts: []reach.Accounts{{Cluster: "c", All: []reach.Account{account}}}, Files: []string{"-"}, Since: time.Date(2026, 3, 10, 0, 0, 0, 0, time.UTC),
	}, strings.NewReader(log), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
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
