package pullpass

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/testenv"
)

// Ready asks whether Pullpass is ready, and returns what it says of each dependency.
func (p *Proxy) Ready(t testing.TB) (bool, string) {
	t.Helper()
	status, content, err := p.askAdmin(t.Context(), "/readyz")
	testenv.Must(t, err)
	return status == http.StatusOK, string(content)
}

// IsReady is Ready for load balancers: one that does not answer is not.
func (p *Proxy) IsReady(ctx context.Context) bool {
	status, _, err := p.askAdmin(ctx, "/readyz")
	return err == nil && status == http.StatusOK
}

// AdminAddress is host:port of the admin listener.
func (p *Proxy) AdminAddress() string { return strings.TrimPrefix(p.admin, "http://") }

// Log is what Pullpass wrote to standard error.
func (p *Proxy) Log() string { return p.process.Output() }

// MostMemory is the most that was resident of the process so far, in bytes.
func (p *Proxy) MostMemory(t testing.TB) int {
	t.Helper()
	status := testenv.ReadFile(t, fmt.Sprintf("/proc/%d/status", p.process.PID()))
	_, after, _ := strings.Cut(status, "VmHWM:")
	var kilobytes int
	if _, err := fmt.Sscan(after, &kilobytes); err != nil {
		t.Fatalf("/proc/PID/status has no VmHWM: %v", err)
	}
	return kilobytes << 10
}

// Metric adds up the samples of a metric whose labels hold all of the given ones, each written as name="value".
func (p *Proxy) Metric(t testing.TB, name string, labels ...string) float64 {
	t.Helper()
	_, content, err := p.askAdmin(t.Context(), "/metrics")
	testenv.Must(t, err)
	sum := 0.0
	for lines := bufio.NewScanner(bytes.NewReader(content)); lines.Scan(); {
		sample, value, _ := strings.Cut(lines.Text(), " ")
		metric, set, _ := strings.Cut(sample, "{")
		if metric != name || !testenv.ContainsAll(set, labels) {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatalf("metric %s: %v", sample, err)
		}
		sum += n
	}
	return sum
}

func (p *Proxy) askAdmin(ctx context.Context, path string) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.admin+path, nil)
	if err != nil {
		return 0, nil, err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	return resp.StatusCode, content, err
}
