package isolate

import (
	"context"
	"os/exec"
	"testing"
)

// Link is a network of its own for other programs, reached over a cable that can be cut. A package that runs inside has one at
// most.
type Link struct{}

// The ends of the cable, and the addresses that a packet is sent to on it: no card has nowhere.
const (
	linkNetwork = "far"
	nearDevice  = "near0"
	farDevice   = "far0"
	nearAddress = "10.98.0.1"
	farAddress  = "10.98.0.2"
	nowhere     = "02:00:00:00:00:01"
)

// NewLink makes the network. It ends with the namespaces of the tests.
func NewLink(t testing.TB) *Link {
	t.Helper()
	for _, args := range [][]string{
		{"netns", "add", linkNetwork},
		{"link", "add", nearDevice, "type", "veth", "peer", "name", farDevice, "netns", linkNetwork},
		{"address", "add", nearAddress + "/30", "dev", nearDevice},
		{"link", "set", nearDevice, "up"},
		{"-netns", linkNetwork, "address", "add", farAddress + "/30", "dev", farDevice},
		{"-netns", linkNetwork, "link", "set", farDevice, "up"},
		{"-netns", linkNetwork, "link", "set", "lo", "up"},
	} {
		ip(t, args...)
	}
	return &Link{}
}

// Address is that of the programs over there, as they are reached from here.
func (l *Link) Address() string { return farAddress }

// Command is a program that runs over there.
func (l *Link) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", linkNetwork, name}, args...)...)
}

// Cut drops all packets in both directions without an error, as a partitioned network does: connections stay
// open on both sides. Restore ends that.
func (l *Link) Cut(t testing.TB) {
	t.Helper()
	ip(t, "neighbour", "replace", farAddress, "lladdr", nowhere, "dev", nearDevice, "nud", "permanent")
	ip(t, "-netns", linkNetwork, "neighbour", "replace", nearAddress, "lladdr", nowhere, "dev", farDevice, "nud", "permanent")
}

// Restore ends what Cut began.
func (l *Link) Restore(t testing.TB) {
	t.Helper()
	ip(t, "neighbour", "del", farAddress, "dev", nearDevice)
	ip(t, "-netns", linkNetwork, "neighbour", "del", nearAddress, "dev", farDevice)
}

func ip(t testing.TB, args ...string) {
	t.Helper()
	if output, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %v: %v: %s", args, err, output)
	}
}
