package nodeinstall

import "testing"

func TestBottlerocket(t *testing.T) {
	t.Parallel()
	checkGuide(t, "bottlerocket", "not possible", nil)
}
