package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A file that the command line names may be a pipe.
func TestCommandsReadPipes(t *testing.T) {
	t.Parallel()
	config := testkit.Value(os.ReadFile("../../examples/pullpass.yaml"))(t)
	tests := testkit.Value(os.ReadFile("../../examples/policy-tests.yaml"))(t)
	policy := testkit.Value(filepath.Abs("../../examples/policy.yaml"))(t)
	text := strings.Replace(string(config), "policy.yaml", policy, 1)
	var stdout, stderr bytes.Buffer
	args := []string{"check", "--config-only", "--config", testkit.FIFO(t, text), "--tests", testkit.FIFO(t, string(tests))}
	if code := run(t.Context(), args, nil, &stdout, &stderr); code != 0 || !strings.Contains(stdout.String(), ": no faults; ") {
		t.Errorf("exit code %d\n%s%s", code, &stdout, &stderr)
	}
}
