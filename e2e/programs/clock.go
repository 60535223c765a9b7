package programs

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/testenv"
)

// ClockVariable is the environment variable of PullpassWithClock: by how many seconds its clock is ahead.
const ClockVariable = "PULLPASS_E2E_CLOCK"

// offset goes into package time.
const offset = `package time

import "syscall"

func clockOffset() int64 {
	text, _ := syscall.Getenv("` + ClockVariable + `")
	seconds, _ := atoi(text)
	return int64(seconds)
}
`

// PullpassWithClock is Pullpass with a clock that may be wrong. Time namespaces leave the wall clock alone, and a static
// program takes it from nothing that could be replaced, so it is built with another package time: the sources of Pullpass and
// of all it uses are the same.
func PullpassWithClock(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(cacheDir(t), "clock")
	testenv.Must(t, os.MkdirAll(dir, 0o755))
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	testenv.Must(t, err)
	original := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	source := testenv.ReadFile(t, original)
	const now = "sec, nsec, mono := runtimeNow()\n"
	changed := strings.Replace(source, now, now+"\tsec += clockOffset()\n", 1)
	if changed == source {
		t.Fatalf("time.Now in %s is not as it was", original)
	}
	files := map[string]string{}
	for path, content := range map[string]string{original: changed, filepath.Join(filepath.Dir(original), "clock_offset.go"): offset} {
		files[path] = filepath.Join(dir, filepath.Base(path))
		testenv.WriteFile(t, files[path], content)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": files})
	testenv.Must(t, err)
	list := filepath.Join(dir, "overlay.json")
	testenv.WriteFile(t, list, overlay)
	return project(t, Checkout(t), "pullpass-with-clock", "./cmd/proxy", "-overlay="+list)
}
