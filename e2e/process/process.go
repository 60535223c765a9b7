// Package process runs the programs of the end-to-end tests.
//
// A program lives no longer than the test that started it: it is stopped by a cleanup, also when the test fails, and the
// kernel kills it when the test binary itself dies (Ctrl-C, time limit, panic). Its output is shown only when the test fails.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/secrets"
)

const (
	stopGrace  = 30 * time.Second // from SIGTERM to SIGKILL, as the kubelet has it; kube-apiserver needs a few seconds
	pollPeriod = 50 * time.Millisecond
	shownLines = 60 // of the output of a program, when its test failed
)

// Process is a running program. Its methods may be called from several goroutines.
type Process struct {
	name   string
	cmd    *exec.Cmd
	output *buffer
	done   chan struct{} // closed when the program has ended
	err    error         // how it ended; read only after done
	killed atomic.Bool   // by Kill
}

// Start runs cmd until the test ends. Standard error, and standard output unless cmd.Stdout is set, are kept for Output.
func Start(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{name: filepath.Base(cmd.Path), cmd: cmd, output: &buffer{seen: secrets.Seen(filepath.Base(cmd.Path))}, done: make(chan struct{})}
	cmd.Stderr = p.output
	if cmd.Stdout == nil {
		cmd.Stdout = p.output
	} else if _, shown := cmd.Stdout.(*os.File); !shown {
		cmd.Stdout = io.MultiWriter(cmd.Stdout, secrets.Seen(p.name+"-stdout"))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// Pdeathsig fires when the thread that forked ends, not when the process does (golang.org/issue/27505): keep it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", p.name, err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Errorf("stop %s: %v", p.name, err)
		}
		if t.Failed() {
			t.Logf("last lines of %s:\n%s", p.name, p.output.tail(shownLines))
		}
	})
	return p
}

// Stop ends the program with SIGTERM and waits for it. It fails when the program had to be killed or ended with an error.
// A second call returns what the first did.
func (p *Process) Stop() error {
	select {
	case <-p.done:
		return p.exit()
	default:
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return p.exit()
	case <-time.After(stopGrace):
	}
	_ = p.cmd.Process.Kill() // it may have ended by now; Wait tells
	<-p.done
	return fmt.Errorf("did not end within %v after SIGTERM: killed", stopGrace)
}

// Kill ends the program at once, as a crash does. It may have ended before.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	p.killed.Store(true)
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatalf("kill %s: %v", p.name, err)
	}
	<-p.done
}

// Freeze stops the program where it is, without ending it: its connections stay open without a response. Thaw ends that.
func (p *Process) Freeze(t testing.TB) { t.Helper(); p.signal(t, syscall.SIGSTOP) }

// Thaw lets the program go on after Freeze.
func (p *Process) Thaw(t testing.TB) { t.Helper(); p.signal(t, syscall.SIGCONT) }

func (p *Process) signal(t testing.TB, signal syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		t.Fatalf("send %v to %s: %v", signal, p.name, err)
	}
}

// exit is nil for exit status 0, for a program that lets SIGTERM end it, and after Kill.
func (p *Process) exit() error {
	if exit, ok := errors.AsType[*exec.ExitError](p.err); ok {
		status, ok := exit.Sys().(syscall.WaitStatus)
		if ok && status.Signaled() && (status.Signal() == syscall.SIGTERM || status.Signal() == syscall.SIGKILL && p.killed.Load()) {
			return nil
		}
	}
	return p.err
}

// PID is that of the program.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Output is what the program wrote so far.
func (p *Process) Output() string { return p.output.String() }

// Await polls ready until it returns nil. It fails the test when the program ends first or the limit passes.
func (p *Process) Await(t testing.TB, limit time.Duration, ready func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return
		}
		select {
		case <-p.done:
			t.Fatalf("%s ended while the test waited for it: %v", p.name, p.err)
		case <-ctx.Done():
			t.Fatalf("%s is not ready after %v: %v", p.name, limit, err)
		case <-time.After(pollPeriod):
		}
	}
}

// buffer is a bytes.Buffer for one writer and many readers.
type buffer struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	seen io.Writer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, err := b.seen.Write(p); err != nil {
		return 0, err
	}
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func (b *buffer) tail(n int) string {
	lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
