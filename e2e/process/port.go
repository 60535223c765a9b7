package process

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// Ports below the kernel's ephemeral range (32768 and up): no outgoing connection can take one between the moment it is
// chosen and the moment the program listens on it.
const (
	firstPort = 20000
	portCount = 10000
)

var ports = struct {
	sync.Mutex
	taken map[int]bool
}{taken: map[int]bool{}}

// FreeAddress returns a loopback address, 127.0.0.1:port, on which nothing listens and which no other caller was given.
func FreeAddress(t testing.TB) string {
	t.Helper()
	ports.Lock()
	defer ports.Unlock()
	for range portCount {
		port := firstPort + rand.IntN(portCount)
		if ports.taken[port] {
			continue
		}
		address := fmt.Sprintf("127.0.0.1:%d", port)
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		_ = l.Close()
		ports.taken[port] = true
		return address
	}
	t.Fatal("no free port on 127.0.0.1")
	return ""
}
