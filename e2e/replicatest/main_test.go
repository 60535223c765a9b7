// Package replicatest lets Redis and replicas of Pullpass fail under load. Three replicas of each mode of state.replay serve nodes
// that pull; beside them ask those who must never be granted anything. "go test -v" shows a table of what was seen.
package replicatest

import (
	"testing"

	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/programs"
)

func TestMain(m *testing.M) {
	isolate.Main(m, func(t testing.TB) {
		programs.Build(t, programs.Distribution, programs.Pullpass, programs.Pause)
	})
}
