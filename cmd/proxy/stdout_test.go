package main

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The reader of standard output may die. Pulls go on, and a metric counts the lost lines.
func TestServeOutlivesTheReaderOfStandardOutput(t *testing.T) {
	t.Parallel()
	p := proxytest.New(t, "", nil)
	program, err := os.Executable()
	testkit.Must(t, err)
	reader, writer, err := os.Pipe()
	testkit.Must(t, err)
	serve := exec.CommandContext(t.Context(), program)
	serve.Args = []string{"pullpass", "serve", "--config", filepath.Join(p.Dir, "pullpass.yaml")} // see TestMain
	serve.Stdout, serve.Stderr = writer, p.Log
	testkit.Must(t, serve.Start())
	testkit.Must(t, writer.Close())
	testkit.Must(t, reader.Close())
	testkit.Eventually(t, "the service listens", func() bool {
		status, _ := p.Fetch(t, "http://"+p.Admin+"/livez")
		return status == http.StatusOK
	})
	for range 2 {
		if status := p.Status(t, kubetest.Token(t, "https://issuer.example.com")); status != http.StatusOK {
			t.Errorf("status %d", status)
		}
	}
	if _, metrics := p.Fetch(t, "http://"+p.Admin+"/metrics"); !strings.Contains(metrics, "pullpass_audit_failures_total 2\n") {
		t.Error("the metric does not count the audit events that were lost")
	}
	testkit.Must(t, serve.Process.Signal(syscall.SIGTERM))
	if err := serve.Wait(); err != nil {
		t.Errorf("ended with %v\n%s", err, p.Log)
	}
	if !strings.Contains(p.Log.String(), "broken pipe") {
		t.Errorf("the log does not say why audit events were lost:\n%s", p.Log)
	}
}
