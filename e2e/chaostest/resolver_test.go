package chaostest

import (
	"encoding/binary"
	"net"
	"os"
	"sync/atomic"
	"testing"

	"github.com/pullpass/pullpass/e2e/testenv"
)

// Lies of a resolver.
const (
	truth   = iota
	unknown // no such name
	astray  // an address where nothing listens
	silent
)

// resolver is the name server of the tests' namespace: every name is this machine.
type resolver struct{ lie atomic.Int32 }

func startResolver(t *testing.T) *resolver {
	t.Helper()
	conn := testenv.Value(net.ListenPacket("udp", "127.0.0.1:53"))(t)
	t.Cleanup(func() { _ = conn.Close() })
	_ = os.Remove("/etc/resolv.conf") // may be a link to a file that is not here
	testenv.WriteFile(t, "/etc/resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
	r := &resolver{}
	go func() {
		for buffer := make([]byte, 1500); ; {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return // closed
			}
			if answer := r.answer(buffer[:n]); answer != nil {
				_, _ = conn.WriteTo(answer, from) // the client asks again
			}
		}
	}()
	return r
}

// answer answers a query with one question (RFC 1035, section 4.1).
func (r *resolver) answer(query []byte) []byte {
	end := 12
	for end < len(query) && query[end] != 0 {
		end += int(query[end]) + 1
	}
	end += 5 // the root, type and class
	lie := r.lie.Load()
	if end > len(query) || lie == silent {
		return nil
	}
	answer := append([]byte{}, query[:end]...)
	answer[2], answer[3] = 0x84, 0x80 // a response, authoritative, recursion available
	copy(answer[6:12], make([]byte, 6))
	if lie == unknown {
		answer[3] |= 3
		return answer
	}
	if binary.BigEndian.Uint16(query[end-4:]) != 1 { // not type A: no data
		return answer
	}
	answer[7] = 1
	address := []byte{127, 0, 0, 1}
	if lie == astray {
		address = []byte{127, 0, 0, 99}
	}
	return append(append(answer, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4), address...)
}
