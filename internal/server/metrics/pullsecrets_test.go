package metrics

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/pullsecrets/tokensecrets"
)

// A controller shows what is its own, and nothing by which a proxy is known.
func TestPullSecrets(t *testing.T) {
	t.Parallel()
	status := tokensecrets.Status{
		Counts: tokensecrets.Counts{Created: 3, Renewed: 5, Foreign: 9, Failed: 7},
		Leads:  true, Kept: 11, Waiting: 13, Foreign: 17, Overdue: 19 * time.Second,
	}
	handler := PullSecrets(func() tokensecrets.Status { return status })
	ask := func() string {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		return w.Body.String()
	}
	leading := []string{
		`pullpass_pull_secrets{state="kept"} 11`, `pullpass_pull_secrets{state="waiting"} 13`, `pullpass_pull_secrets{state="foreign"} 17`,
		`pullpass_pull_secret_overdue_seconds 19`,
	}
	always := []string{
		`pullpass_pull_secret_writes_total{kind="secret"} 3`, `pullpass_pull_secret_writes_total{kind="token"} 5`, `pullpass_pull_secret_failures_total 7`, "process_open_fds",
	}
	text := ask()
	for _, want := range append(append([]string{"pullpass_pull_secrets_leader 1"}, leading...), always...) {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("no %s in:\n%s", want, text)
		}
	}
	for _, not := range []string{"pullpass_build_info", "pullpass_exchanges"} {
		if strings.Contains(text, not) {
			t.Errorf("%s is that of a proxy", not)
		}
	}
	status.Leads = false
	text = ask()
	for _, want := range append([]string{"pullpass_pull_secrets_leader 0"}, always...) {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("no %s in:\n%s", want, text)
		}
	}
	for _, not := range leading {
		if name, _, _ := strings.Cut(not, " "); strings.Contains(text, "\n"+name) {
			t.Errorf("a replica that does not lead has %s", name)
		}
	}
}
