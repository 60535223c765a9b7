package metrics

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/node/progress"
)

func TestNodeInstall(t *testing.T) {
	t.Parallel()
	var now progress.Status
	handler := NodeInstall("node-1", func() progress.Status { return now })
	scrape := func() string {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
		return w.Body.String()
	}
	if got := scrape(); strings.Contains(got, "_state") || !strings.Contains(got, `pullpass_node_install_restarts_total{node="node-1"} 0`) {
		t.Errorf("before the first look:\n%s", got)
	}
	now = progress.Status{Record: progress.Record{State: progress.Failed, Since: time.Unix(1700000000, 0)}, Restarts: 2, Repairs: 3}
	got := scrape()
	for _, want := range []string{
		`pullpass_node_install_restarts_total{node="node-1"} 2`, `pullpass_node_install_repairs_total{node="node-1"} 3`, `pullpass_node_install_since_timestamp_seconds{node="node-1"} 1.7e+09`,
		`pullpass_node_install_state{node="node-1",state="failed"} 1`, `pullpass_node_install_state{node="node-1",state="ready"} 0`,
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("%s is missing:\n%s", want, got)
		}
	}
	// The alert PullpassGone is about what this program is not.
	if strings.Contains(got, "pullpass_build_info") {
		t.Errorf("it looks like a proxy:\n%s", got)
	}
}
