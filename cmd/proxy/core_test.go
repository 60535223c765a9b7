package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
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

// With GOTRACEBACK=crash, Go prints the stacks of all goroutines, and ends by a signal that has the kernel store the memory.
func TestCrash(t *testing.T) {
	t.Parallel()
	p := proxytest.New(t, "", nil)
	self, err := os.Executable()
	testkit.Must(t, err)
	program := filepath.Join(t.TempDir(), "pullpass") // see TestMain
	testkit.Must(t, os.Symlink(self, program))
	serve := exec.Command("sh", "-c", `ulimit -S -c "$(ulimit -H -c)" && exec "$@"`, "sh", program, "serve", "--config", filepath.Join(p.Dir, "pullpass.yaml"))
	serve.Env = append(os.Environ(), "GOTRACEBACK=crash")
	serve.Dir, serve.Stdout, serve.Stderr = t.TempDir(), p.Stdout, p.Log
	testkit.Must(t, serve.Start())
	ended := make(chan error, 1)
	go func() { ended <- serve.Wait() }()
	t.Cleanup(func() { _ = serve.Process.Kill() })
	testkit.Eventually(t, "the service gets ready", func() bool { return p.Ready(t) })
	if limits := testkit.Read(t, fmt.Sprintf("/proc/%d/limits", serve.Process.Pid)); !strings.Contains(limits, "Max core file size        1 ") && !strings.Contains(limits, "Max core file size        0                    0 ") {
		t.Errorf("the kernel may store the memory:\n%s", limits)
	}

	answered, waiting := kubetest.Token(t, "https://issuer.example.com"), kubetest.PodToken(t, "waits")
	if status := p.Status(t, answered); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	connection := p.Dial(t)
	_, err = fmt.Fprint(connection, "POST /token HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 5000\r\nExpect: 100-continue\r\n\r\n")
	testkit.Must(t, err)
	if line, err := bufio.NewReader(connection).ReadString('\n'); !strings.Contains(line, "100 Continue") {
		t.Fatalf("%q, %v: the request is not being read", line, err)
	}
	_, err = fmt.Fprint(connection, "password="+waiting)
	testkit.Must(t, err)
	testkit.Must(t, serve.Process.Signal(syscall.SIGABRT))

	exit, crashed := errors.AsType[*exec.ExitError](<-ended)
	if !crashed {
		t.Fatalf("it did not crash:\n%s", p.Log)
	}
	if status := exit.Sys().(syscall.WaitStatus); !status.Signaled() || status.CoreDump() {
		t.Errorf("%v", exit)
	}
	trace := p.Log.String()
	if !strings.Contains(trace, "SIGABRT") || !strings.Contains(trace, "registryauth.") {
		t.Errorf("no stack of the request:\n%s", trace)
	}
	testkit.ExpectNoPiece(t, "the stacks", trace, answered, waiting)
	for i := range len(waiting) - 8 { // an argument that is not a pointer is printed as such
		if word := fmt.Sprintf("%#x", binary.LittleEndian.Uint64([]byte(waiting[i:]))); strings.Contains(trace, word) {
			t.Errorf("the stacks have bytes %d to %d of a token", i, i+7)
		}
	}
}
