// Package tracetest follows a pull through traces, from containerd to Pullpass.
package tracetest

import (
	"testing"

	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/programs"
)

func TestMain(m *testing.M) {
	isolate.Main(m, func(t testing.TB) {
		programs.Build(t,
			programs.Containerd, programs.Runc, programs.Distribution, programs.Pullpass, programs.CredentialProvider, programs.Pause,
		)
	})
}
