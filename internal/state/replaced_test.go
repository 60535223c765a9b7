package state_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/state"
	"github.com/pullpass/pullpass/internal/state/statetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// network is between replicas and a server whose machine can be lost. Packets are then dropped, and
// the replacement does not know the earlier connections.
type network struct {
	address string

	mu      sync.Mutex
	lost    bool
	machine int // the number of the current one
	opened  int // connections
}

func newNetwork(t *testing.T, server string) *network {
	t.Helper()
	listener := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	n := &network{address: listener.Addr().String()}
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	t.Cleanup(func() { listener.Close() })
	running.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return // closed
			}
			far, err := net.Dial("tcp", server)
			if err != nil {
				near.Close()
				continue
			}
			n.mu.Lock()
			n.opened++
			machine := n.machine
			n.mu.Unlock()
			running.Go(func() {
				io.Copy(near, far)
				near.(*net.TCPConn).CloseWrite()
			})
			running.Go(func() {
				defer near.Close()
				defer far.Close()
				n.send(near.(*net.TCPConn), far, machine)
			})
		}
	})
	return n
}

// send forwards a client's data until the client or the machine is gone.
func (n *network) send(near *net.TCPConn, far net.Conn, machine int) {
	buffer := make([]byte, 4096)
	for {
		read, err := near.Read(buffer)
		if err != nil {
			return
		}
		n.mu.Lock()
		lost, replaced := n.lost, n.machine != machine
		n.mu.Unlock()
		switch {
		case lost:
		case replaced:
			near.SetLinger(0) // closed with RST
			return
		default:
			far.Write(buffer[:read])
		}
	}
}

// lose drops all packets, until replace.
func (n *network) lose() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lost = true
	n.machine++
}

func (n *network) replace() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lost = false
}

func (n *network) connections() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.opened
}

// Connections from before the replacement of a server seem usable. Their end was not announced, or
// with TLS it is not checked. Any number of them must not delay the recovery.
func TestConnectionsOfBefore(t *testing.T) {
	atOnce(t, map[string]func(*testing.T){"machine replaced": machineReplaced, "TLS server restarted": tlsServerRestarted},
		func(t *testing.T, test func(*testing.T)) { test(t) })
}

func machineReplaced(t *testing.T) {
	server := statetest.Redis(t)
	r, network := newRigWithConnections(t, server, server.Address(), nil)
	network.lose()
	var calls sync.WaitGroup
	for i := range 3 { // as many as open the breaker
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			if err := r.own(ctx, fmt.Sprint("during ", i)); err == nil {
				t.Error("an owner was stored nowhere")
			}
		})
	}
	calls.Wait()
	network.replace()
	r.soon(t)
}

func tlsServerRestarted(t *testing.T) {
	caFile, args := statetest.TLS(t)
	server, address := statetest.RedisWithTLS(t, args...)
	r, _ := newRigWithConnections(t, server, address, &state.RedisTLS{CAFile: caFile})
	server.Kill()
	server.Start()
	r.soon(t)
}

// newRigWithConnections returns a replica with many open connections.
func newRigWithConnections(t *testing.T, server *statetest.Server, address string, tls *state.RedisTLS) (rig, *network) {
	t.Helper()
	const connections = 40
	network := newNetwork(t, address)
	r := rig{Redis: open(t, state.RedisConfig{Addresses: []string{network.address}, TLS: tls, Timeout: patient})}
	server.Stop()
	var calls sync.WaitGroup
	for i := range connections {
		calls.Go(func() {
			if err := r.own(t.Context(), fmt.Sprint("before ", i)); err != nil {
				t.Error(err)
			}
		})
	}
	statetest.Eventually(t, "every call has a connection", func(context.Context) bool { return network.connections() >= connections })
	server.Continue()
	calls.Wait()
	return r, network
}

// soon checks that owners are stored again at once, instead of after one connection a second.
func (r rig) soon(t *testing.T) {
	t.Helper()
	begin := time.Now()
	statetest.Eventually(t, "owners are stored again", func(ctx context.Context) bool { return r.own(ctx, "after") == nil })
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
}
