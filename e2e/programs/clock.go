package programs

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	// ClockVariable is the environment variable of PullpassWithClock: by how many seconds its clock is ahead.
	ClockVariable = "PULLPASS_E2E_CLOCK"
	// ClockFileVariable is likewise, for a clock that jumps: a file of WriteClock.
	ClockFileVariable = "PULLPASS_E2E_CLOCK_FILE"
)

// WriteClock says by how many seconds the clock is ahead from now on, also to the programs that run with the file already.
func WriteClock(t testing.TB, file string, seconds int64) {
	t.Helper()
	content := make([]byte, 8)
	binary.NativeEndian.PutUint64(content, uint64(seconds))
	opened, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o600) // not truncated: programs have the page
	testenv.Must(t, err)
	defer opened.Close()
	_, err = opened.WriteAt(content, 0)
	testenv.Must(t, err)
}

// offset goes into package time.
const offset = `package time

import (
	"syscall"
	"unsafe"
)

var clockJump = mapClock()

func mapClock() *int64 {
	path, found := syscall.Getenv("` + ClockFileVariable + `")
	if !found {
		return new(int64)
	}
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		panic("the file of the clock: " + err.Error())
	}
	defer syscall.Close(fd)
	page, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic("the file of the clock: " + err.Error())
	}
	return (*int64)(unsafe.Pointer(&page[0]))
}

func clockOffset() int64 {
	text, _ := syscall.Getenv("` + ClockVariable + `")
	seconds, _ := atoi(text)
	if clockJump == nil { // package time begins
		return int64(seconds)
	}
	return int64(seconds) + *clockJump
}
`

// PullpassWithClock is Pullpass with a clock that may be wrong. Time namespaces leave the wall clock alone, and a static
// program takes it from nothing that could be replaced, so it is built with another package time: the sources of Pullpass and
// of all it uses are the same.
func PullpassWithClock(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(cacheDir(t), "clock")
	testenv.Must(t, os.MkdirAll(dir, 0o755))
	root := testenv.Value(exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output())(t)
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
	overlay := testenv.Value(json.Marshal(map[string]any{"Replace": files}))(t)
	list := filepath.Join(dir, "overlay.json")
	testenv.WriteFile(t, list, overlay)
	return project(t, Checkout(t), "pullpass-with-clock", "./cmd/proxy", "-overlay="+list)
}
