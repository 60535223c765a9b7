package nodetest

import (
	"crypto/tls"
	"errors"
	"maps"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/testenv"
)

// trap is the address of names that no client may ask. It counts connections and answers none.
type trap struct {
	mu   sync.Mutex
	came map[string]int // connections, by the name that the client wants to speak with; "": it wants no TLS
}

// startTrap listens at the ports of registries, of an address of 127.0.0.0/8.
func startTrap(t testing.TB, address string) *trap {
	t.Helper()
	s := &trap{came: map[string]int{}}
	for _, port := range []string{"80", "443", "5000"} {
		listener := testenv.Value(net.Listen("tcp", address+":"+port))(t)
		var running sync.WaitGroup
		running.Go(func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return // closed
				}
				running.Go(func() { s.count(conn) })
			}
		})
		t.Cleanup(func() {
			testenv.Must(t, listener.Close())
			running.Wait()
		})
	}
	return s
}

func (s *trap) count(conn net.Conn) {
	defer conn.Close()
	var name string
	greeting := tls.Server(conn, &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		name = hello.ServerName
		return nil, errors.New("the trap answers no client")
	}})
	_ = conn.SetDeadline(time.Now().Add(time.Second)) // who sends nothing is counted, too
	_ = greeting.Handshake()                          // always fails
	s.mu.Lock()
	defer s.mu.Unlock()
	s.came[name]++
}

// caught are the connections so far, by name.
func (s *trap) caught() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.came)
}
