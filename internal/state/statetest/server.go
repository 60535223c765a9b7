package statetest

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// startTime is how long a server may take until it is ready.
const startTime = time.Minute

// Server is a redis-server process that ends with the test.
type Server struct {
	Port int

	other  int // a second port: of TLS, or of the bus of a cluster
	tb     testing.TB
	dir    string
	args   []string
	cmd    *exec.Cmd
	exited chan struct{}

	mu  sync.Mutex
	log []string
}

// Address is the server's host:port.
func (s *Server) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port)) }

// Redis starts a server without persistence on a free port. Arguments are as
// in redis.conf, with two hyphens before each name.
func Redis(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return start(tb, append([]string{"--port", "PORT"}, args...)...)
}

// RedisWithTLS starts a server that listens with TLS, too, and returns that
// address. The arguments are as TLS returns them.
func RedisWithTLS(tb testing.TB, args ...string) (s *Server, tlsAddress string) {
	tb.Helper()
	s = Redis(tb, append([]string{"--tls-port", "OTHER"}, args...)...)
	return s, net.JoinHostPort("127.0.0.1", strconv.Itoa(s.other))
}

func start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		tb.Fatal("redis-server is not installed: as root on Debian, .ci/install test does that")
	}
	s := &Server{tb: tb, dir: tb.TempDir(), args: args}
	tb.Cleanup(func() { s.Kill() })
	// A different process may take a port between the check and the start.
	for range 5 {
		s.Port, s.other = freePort(tb), freePort(tb)
		if s.run() {
			return s
		}
	}
	tb.Fatalf("redis-server does not start:\n%s", s.tail())
	return nil
}

func freePort(tb testing.TB) int {
	tb.Helper()
	l := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(tb)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// run starts the process and waits until it is ready; false: it ended.
func (s *Server) run() bool {
	s.tb.Helper()
	args := []string{}
	for _, arg := range s.args {
		switch arg {
		case "PORT":
			arg = strconv.Itoa(s.Port)
		case "OTHER":
			arg = strconv.Itoa(s.other)
		}
		args = append(args, arg)
	}
	args = append(args, "--bind", "127.0.0.1", "--dir", s.dir, "--save", "", "--daemonize", "no")
	s.cmd = exec.Command("redis-server", args...)
	s.cmd.Stderr = os.Stderr
	stdout, err := s.cmd.StdoutPipe()
	testkit.Must(s.tb, err)
	testkit.Must(s.tb, s.cmd.Start())
	ready, exited := make(chan struct{}), make(chan struct{})
	s.exited = exited
	go func() {
		defer close(exited)
		isReady := sync.OnceFunc(func() { close(ready) })
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			s.mu.Lock()
			s.log = append(s.log, lines.Text())
			s.mu.Unlock()
			if strings.Contains(lines.Text(), "Ready to accept connections") || strings.Contains(lines.Text(), "# +monitor master") {
				isReady()
			}
		}
		s.cmd.Wait() // it is killed, or the log says why it ended
	}()
	select {
	case <-ready:
		return true
	case <-exited:
		return false
	case <-time.After(startTime):
		s.tb.Fatalf("redis-server is not ready after %s:\n%s", startTime, s.tail())
		return false
	}
}

func (s *Server) tail() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.log[max(0, len(s.log)-20):], "\n")
}

// Kill ends the process at once.
func (s *Server) Kill() {
	if s.cmd != nil && s.cmd.Process != nil {
		s.cmd.Process.Kill()
		<-s.exited
	}
}

// Start starts the server again after Kill, on the same port. It has the data that it had written,
// which is none unless its arguments enable persistence.
func (s *Server) Start() {
	s.tb.Helper()
	if !s.run() {
		s.tb.Fatalf("redis-server does not start again:\n%s", s.tail())
	}
}

// Stop makes the process hang: it accepts connections but does not answer. Continue ends that.
func (s *Server) Stop() { s.signal(syscall.SIGSTOP) }

// Continue ends Stop.
func (s *Server) Continue() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(signal os.Signal) {
	s.tb.Helper()
	testkit.Must(s.tb, s.cmd.Process.Signal(signal))
}
