package node

import "testing"

// RestartKubelet ends the kubelet and runs it again; pods run on. The tokens of pods are renewed by that, which would need 80 %
// of their life otherwise, and eight minutes at least: the kubelet keeps them in its memory alone.
func (n *Node) RestartKubelet(t testing.TB) {
	t.Helper()
	if err := n.kubelet.Stop(); err != nil {
		t.Fatalf("stop the kubelet: %v", err)
	}
	n.startKubelet(t)
}
