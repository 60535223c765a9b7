// Package consoletest uses the page of the admin listener in a real browser.
package consoletest

import (
	"testing"

	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/programs"
)

func TestMain(m *testing.M) {
	isolate.Main(m, func(t testing.TB) { programs.Pullpass(t) })
}
