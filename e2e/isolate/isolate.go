// Package isolate runs the tests of a package in namespaces of their own, so that the kernel cleans up behind them: processes,
// mounts, addresses and files end with the tests, also when they fail, time out or are interrupted.
//
// The test binary runs three times, each the parent of the next:
//
//   - outside: builds programs, because there is no network inside, makes the namespaces, and removes cgroups in the end,
//     since these are in no namespace;
//   - init: process 1 of the PID namespace; mounts, and reaps orphans, which the shims of containerd are;
//   - inside: the tests.
package isolate

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

const (
	roleVariable = "PULLPASS_E2E_ROLE" // init or inside; outside, nothing
	workVariable = "PULLPASS_E2E_WORK" // the directory of the tests' files

	workPrefix    = "pullpass-e2e-node-"  // of the work directory and the cgroup; the process outside follows
	groupVariable = "PULLPASS_E2E_CGROUP" // name of the cgroup in each hierarchy
)

// Main is called by TestMain, and runs the tests inside. build is called outside, before there are tests.
func Main(m *testing.M, build func(testing.TB)) {
	log.SetFlags(0)
	switch {
	case Inside():
		os.Exit(m.Run())
	case os.Getenv(roleVariable) == "init":
		code, err := initialize()
		if err != nil {
			log.Fatalf("init of the namespaces: %v", err)
		}
		os.Exit(code)
	default:
		build(outside{})
		code, err := enclose()
		if err != nil {
			log.Fatalf("namespaces for the tests: %v; they need root", err)
		}
		os.Exit(code)
	}
}

// Inside reports whether this process is in the namespaces.
func Inside() bool { return os.Getenv(roleVariable) == "inside" }

// Cgroup is the name of a cgroup that the tests may have in each hierarchy; it is removed in the end.
func Cgroup() string { return os.Getenv(groupVariable) }

// outside stands in for a test where there is none. Only what programs need of it is there.
type outside struct{ testing.TB }

func (outside) Helper()                           {}
func (outside) Context() context.Context          { return context.Background() }
func (outside) Logf(format string, args ...any)   { log.Printf(format, args...) }
func (outside) Fatalf(format string, args ...any) { log.Fatalf(format, args...) }
func (outside) Fatal(args ...any)                 { log.Fatal(args...) }

// enclose runs this program again as init, and returns its exit code.
func enclose() (code int, err error) {
	removeStale()
	work, err := os.MkdirTemp("", fmt.Sprintf("%s%d-", workPrefix, os.Getpid()))
	if err != nil {
		return 0, err
	}
	// It is empty: what the tests wrote is in a file system that only they saw.
	defer func() { err = errors.Join(err, os.Remove(work)) }()
	group := fmt.Sprintf("%s%d", workPrefix, os.Getpid())
	defer func() { err = errors.Join(err, removeCgroups(group)) }()

	cmd := again("init", workVariable+"="+work, groupVariable+"="+group)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		// If this process is killed, so is init, and with it all in its PID namespace.
		Pdeathsig: syscall.SIGKILL,
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	// Pdeathsig fires when the thread ends (golang.org/issue/27505).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	go func() {
		<-signals
		_ = cmd.Process.Kill() // an error means that it ended by itself
	}()
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

// again is this program with the same arguments in another role.
func again(role string, environment ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, roleVariable+"=") }),
		append(environment, roleVariable+"="+role)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd
}
