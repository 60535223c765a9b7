// Package cachetest puts a caching registry between the gateway and an upstream that fails.
package cachetest

import (
	"testing"

	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/programs"
)

func TestMain(m *testing.M) {
	isolate.Main(m, func(t testing.TB) { programs.Build(t, programs.Distribution, programs.Pullpass) })
}
