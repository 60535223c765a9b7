package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

const (
	startLimit = 20 * time.Second
	stopGrace  = 25 * time.Second // from SIGTERM to SIGKILL; Pullpass lets open requests finish for 20 seconds
)

// process is a running program.
type process struct {
	name string
	log  string // file of its standard error
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how; read only after done
}

// start runs a program until ctx ends or stop is called, with additions to the environment. Its output goes to files
// in dir.
func start(ctx context.Context, dir string, env []string, program string, args ...string) (*process, error) {
	name := filepath.Base(program)
	p := &process{name: name, log: filepath.Join(dir, name+".log"), cmd: exec.CommandContext(ctx, program, args...), done: make(chan struct{})}
	stdout, err := os.Create(filepath.Join(dir, name+".out"))
	if err != nil {
		return nil, err
	}
	defer stdout.Close()
	stderr, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = stdout, stderr
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = stopGrace
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// await polls ready until it returns nil.
func (p *process) await(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended: %w%s", p.name, p.err, p.tail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready after %s: %w%s", p.name, startLimit, err, p.tail())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// stop ends the program with SIGTERM and waits for it.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
	case <-time.After(stopGrace):
		_ = p.cmd.Process.Kill() // it may have ended just now
		<-p.done
		return fmt.Errorf("%s did not end within %s after SIGTERM: killed", p.name, stopGrace)
	}
	if exit, ok := errors.AsType[*exec.ExitError](p.err); ok {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGTERM {
			return nil // a program that lets SIGTERM end it
		}
	}
	if p.err != nil && !errors.Is(p.err, context.Canceled) {
		return fmt.Errorf("%s: %w%s", p.name, p.err, p.tail())
	}
	return nil
}

// tail is the end of what the program wrote to standard error.
func (p *process) tail() string {
	const most = 2000
	text, err := os.ReadFile(p.log)
	if err != nil || len(text) == 0 {
		return ""
	}
	return "\n" + string(text[max(0, len(text)-most):])
}

// freeAddresses returns addresses on localhost without a listener. The ports are below those that the kernel gives to
// outgoing connections, of which a load test makes so many that it would soon take one of ours.
func freeAddresses(n int) ([]string, error) {
	var addresses []string
	for port := 21000; port < 30000 && len(addresses) < n; port++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		addresses = append(addresses, fmt.Sprintf("localhost:%d", port))
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	if len(addresses) < n {
		return nil, errors.New("no free ports on 127.0.0.1")
	}
	return addresses, nil
}
