package testkit

import (
	"crypto/fips140"
	"os"
	"os/exec"
	"testing"
)

// OnlyFIPS reports whether the process may use nothing but FIPS 140-3 cryptography. Otherwise, the calling test runs once more in a
// process that may not, and is over here.
func OnlyFIPS(t *testing.T) bool {
	t.Helper()
	if fips140.Enforced() {
		return true
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), "GODEBUG=fips140=only")
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("with GODEBUG=fips140=only: %v\n%s", err, output)
	}
	return false
}
