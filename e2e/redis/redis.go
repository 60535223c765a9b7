// Package redis runs Redis servers as processes, and administers them as people do, with redis-cli.
package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/secrets"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	startLimit = 2 * time.Minute
	cliLimit   = 10 * time.Second

	// User is that of docs/how-to/redis.md.
	User = "pullpass"
)

// Command makes commands for programs, as exec.CommandContext does.
type Command func(ctx context.Context, name string, args ...string) *exec.Cmd

// Server is a running server. Persistence is off unless its arguments say otherwise.
type Server struct {
	*process.Process
	// Address is host:port.
	Address string

	command Command
	args    []string
	cli     string // redis-cli
}

// Start runs a server on this machine until the test ends. Arguments are as in redis.conf, with two hyphens before each name.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return StartBy(t, exec.CommandContext, process.FreeAddress(t), args...)
}

// StartBy runs a server where command runs programs, redis-cli as well.
func StartBy(t testing.TB, command Command, address string, args ...string) *Server {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	testenv.Must(t, err)
	s := &Server{Address: address, command: command, cli: programs.RedisCLI(t)}
	// Only the tests are in their network.
	s.args = append(append([]string{}, args...), "--bind", host, "--port", port, "--dir", t.TempDir(), "--save", "", "--protected-mode", "no")
	s.Restart(t)
	return s
}

// Restart runs the server again after Kill, at the same address and with what it had written.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Process = process.Start(t, s.command(context.Background(), programs.RedisServer(t), s.args...))
	s.Await(t, startLimit, func(ctx context.Context) error {
		answer, err := s.Try(ctx, "ping")
		if err == nil && answer != "PONG" {
			err = errors.New(answer)
		}
		return err
	})
}

// Do runs a command as administrator and returns the answer.
func (s *Server) Do(t testing.TB, args ...string) string {
	t.Helper()
	answer := testenv.Value(s.Try(t.Context(), args...))(t)
	return answer
}

// Try is Do where it may fail, and for goroutines, which must not end a test.
func (s *Server) Try(ctx context.Context, args ...string) (string, error) {
	host, port, _ := net.SplitHostPort(s.Address)
	return s.run(ctx, append([]string{"-h", host, "-p", port}, args...)...)
}

// run runs redis-cli. The error is also that of the server.
func (s *Server) run(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, cliLimit)
	defer cancel()
	output, err := s.command(ctx, s.cli, append([]string{"-e"}, args...)...).CombinedOutput()
	answer := strings.TrimSpace(string(output))
	if err != nil {
		return "", fmt.Errorf("redis-cli %q: %w: %s", args, err, answer)
	}
	return answer, nil
}

// AddUser gives Pullpass its user with the command of docs/how-to/redis.md.
func (s *Server) AddUser(t testing.TB, password string) {
	t.Helper()
	secrets.Note("password of Redis", password)
	for line := range strings.Lines(testenv.ReadFile(t, filepath.Join(programs.Checkout(t), "docs/how-to/redis.md"))) {
		if strings.HasPrefix(line, "ACL SETUSER "+User+" on >PASSWORD ") {
			s.Do(t, strings.Fields(strings.Replace(line, ">PASSWORD", ">"+password, 1))...)
			return
		}
	}
	t.Fatal("docs/how-to/redis.md has no command that makes the user")
}
