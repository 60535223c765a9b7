// Package monitoring_test compares the dashboard and the alerts with the metrics and the documents.
package monitoring_test

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// alerts returns the names of the alerts and their expressions.
func alerts(t *testing.T) map[string]string {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	testkit.Must(t, yaml.Unmarshal([]byte(testkit.Read(t, "alerts.yaml")), &file))
	found := map[string]string{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			found[r.Alert] = r.Expr
			if want := "/docs/how-to/operations.md#" + strings.ToLower(r.Alert); !strings.HasSuffix(r.Annotations["runbook_url"], want) {
				t.Errorf("%s: runbook_url %q does not end in %q", r.Alert, r.Annotations["runbook_url"], want)
			}
		}
	}
	return found
}

// queries returns the expressions of the dashboard.
func queries(t *testing.T) []string {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			Targets []struct{ Expr string }
		}
	}
	testkit.Must(t, json.Unmarshal([]byte(testkit.Read(t, "dashboard.json")), &dashboard))
	var all []string
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			all = append(all, target.Expr)
		}
	}
	return all
}

// TestMetricsExist takes the names from the document that is made from the code.
func TestMetricsExist(t *testing.T) {
	t.Parallel()
	document := testkit.Read(t, "../../docs/reference/metrics.md")
	expressions := queries(t)
	for _, expr := range alerts(t) {
		expressions = append(expressions, expr)
	}
	if len(expressions) < 40 {
		t.Fatalf("only %d expressions were found", len(expressions))
	}
	used := map[string]bool{}
	for _, expr := range expressions {
		for _, name := range regexp.MustCompile(`pullpass_\w+`).FindAllString(expr, -1) {
			name = strings.TrimSuffix(name, "_bucket")
			used[name] = true
			if !strings.Contains(document, "| `"+name+"` (") {
				t.Errorf("there is no metric %s: %s", name, expr)
			}
		}
	}
	// Each new metric needs a panel or an alert, which shows its use.
	for _, m := range regexp.MustCompile("\\| `(pullpass_\\w+)` \\(").FindAllStringSubmatch(document, -1) {
		if name := m[1]; !used[name] && !slices.Contains(seldomNeeded, name) {
			t.Errorf("%s is in no alert and on no panel", name)
		}
	}
}

// seldomNeeded are metrics that one looks at by name.
var seldomNeeded = []string{
	"pullpass_issuer_key_fetches_total", "pullpass_kubernetes_synced", "pullpass_kubernetes_objects", "pullpass_pod_events_total",
	"pullpass_signing_key_since_timestamp_seconds", "pullpass_assertion_key_next_timestamp_seconds", "pullpass_reload_last_success_timestamp_seconds", "pullpass_telemetry_failures_total",
	"pullpass_node_install_since_timestamp_seconds",
}

func TestEachAlertHasASectionAndATest(t *testing.T) {
	t.Parallel()
	runbook, tests := testkit.Read(t, "../../docs/how-to/operations.md"), testkit.Read(t, "alerts_test.yaml")
	found := alerts(t)
	for name := range found {
		if !strings.Contains(runbook, "\n## "+name+"\n") {
			t.Errorf("docs/how-to/operations.md has no section %s", name)
		}
		if !strings.Contains(tests, `{alertname="`+name+`"}`) {
			t.Errorf("alerts_test.yaml does not make %s fire", name)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^## (Pullpass\w+)$`).FindAllStringSubmatch(runbook, -1) {
		if _, ok := found[m[1]]; !ok {
			t.Errorf("docs/how-to/operations.md has a section for %s, which is not an alert", m[1])
		}
	}
}
