package main

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// BenchmarkStart runs the built helper as clients do, and a program that does
// only the reading and the JSON. Read it as a ratio.
func BenchmarkStart(b *testing.B) {
	token := testkit.TempFile(b, "token", newToken(b, registry, time.Now()))
	for _, program := range []struct{ name, source string }{{"floor", "./testdata/floor"}, {"helper", "."}} {
		b.Run("program="+program.name, func(b *testing.B) {
			testkit.MeasureProgram(b, program.source, func(helper *exec.Cmd) {
				helper.Args = append(helper.Args, "get")
				helper.Env = []string{"PULLPASS_REGISTRIES=" + registry, "PULLPASS_TOKEN_FILE=" + token}
				helper.Stdin = strings.NewReader(registry)
			})
		})
	}
}
