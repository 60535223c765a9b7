// Package charttest tests the Helm chart: what Helm makes of many sets of values, whether Pullpass and a real API server accept it,
// and what happens to pulls while Pullpass is installed, upgraded, scaled and rolled back on real nodes.
package charttest

import (
	"testing"

	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/programs"
)

func TestMain(m *testing.M) {
	isolate.Main(m, func(t testing.TB) {
		for _, build := range []func(testing.TB) string{programs.Helm, programs.Pullpass} {
			build(t)
		}
	})
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
