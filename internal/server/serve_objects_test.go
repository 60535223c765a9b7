package server

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const asksForTeamA = `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- {name: CEILING, subjects: [{namespaces: [team-a]}], requests: true, allow: [{repositories: ["{namespace}/**"], actions: [pull]}]}
`

// The status of an object follows the serving state: a new policy appears there, and so does a
// pull.
func TestServeWritesStatus(t *testing.T) {
	t.Parallel()
	api := kubetest.NewAPIServer(t)
	api.Put("repositoryaccesses", kubetest.Object{
		"metadata": kubetest.Object{"namespace": "team-a", "name": "web", "uid": "uid-ra"},
		"spec":     map[string]any{"serviceAccounts": []any{"web"}, "repositories": []any{"team-a/web"}, "actions": []any{"pull"}},
	})
	p := startServiceWith(t, `  kubernetes: {kubeconfigFile: kubeconfig, objects: {requests: true, status: true, within: ["**"]}}`+"\n", map[string]string{
		"kubeconfig": api.Kubeconfig(), "policy.yaml": strings.ReplaceAll(asksForTeamA, "CEILING", "first"),
	})
	testkit.Eventually(t, "the service gets ready", func() bool { return p.Ready(t) })
	says := func() string {
		text := testkit.Value(json.Marshal(api.Object("repositoryaccesses", "team-a", "web")["status"]))(t)
		return string(text)
	}
	testkit.Eventually(t, "the status says which rule grants it", func() bool { return strings.Contains(says(), `"rules":["first"]`) })
	testkit.Eventually(t, "it leads, and has counted what it wrote", func() bool {
		_, metrics := p.Fetch(t, "http://"+p.Admin+"/metrics")
		return strings.Contains(metrics, `pullpass_object_status_leader{cluster="prod"} 1`+"\n") && strings.Contains(metrics, `pullpass_object_status_writes_total{cluster="prod"} 1`+"\n")
	})
	asked := time.Now()
	if access := p.Exchange(t, "/token", kubetest.Token(t, "https://issuer.example.com"), "repository:team-a/web:pull"); len(access) != 1 {
		t.Errorf("it is not granted: %v", access)
	}
	testkit.Must(t, os.WriteFile(filepath.Join(p.Dir, "policy.yaml"), []byte(strings.ReplaceAll(asksForTeamA, "CEILING", "second")), 0o600))
	day := time.Now().UTC().Format(time.DateOnly)
	testkit.Eventually(t, "the status says the rule of now", func() bool { return strings.Contains(says(), `"rules":["second"]`) })
	// All objects are looked at once a minute.
	testkit.Eventually(t, "the minute has an end", func() bool { return strings.Contains(says(), `"lastUsed":"`) || time.Since(asked) > 50*time.Second })
	testkit.Eventually(t, "the status says the day", func() bool {
		return strings.Contains(says(), `"lastUsed":"`+day) || strings.Contains(says(), `"lastUsed":"`+time.Now().UTC().Format(time.DateOnly))
	})
	testkit.Must(t, p.stop())
}
