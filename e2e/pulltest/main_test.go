// Package pulltest measures a whole cold pull by containerd: with a static password, through the token endpoint, and through the
// gateway, in turns. It judges nothing but the requests.
package pulltest

import (
	"testing"

	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/programs"
)

func TestMain(m *testing.M) {
	isolate.Main(m, func(t testing.TB) {
		programs.Build(t,
			programs.Containerd, programs.OldContainerd, programs.Runc, programs.Distribution, programs.Pullpass, programs.CredentialProvider, programs.Pause,
		)
	})
}
