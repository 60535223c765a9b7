package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// BenchmarkStart runs the built helper as clients do, and a program that does
// only the reading and the JSON. Read it as a ratio.
func BenchmarkStart(b *testing.B) {
	token := write(b, newToken(b, registry, time.Now()))
	for _, program := range []struct{ name, source string }{{"floor", "./testdata/floor"}, {"helper", "."}} {
		b.Run("program="+program.name, func(b *testing.B) {
			binary := filepath.Join(b.TempDir(), program.name)
			build := exec.CommandContext(b.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", binary, program.source)
			build.Env = append(os.Environ(), "CGO_ENABLED=0")
			if output, err := build.CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, output)
			}
			info, err := os.Stat(binary)
			testkit.Must(b, err)
			var cpu time.Duration
			for b.Loop() {
				helper := exec.CommandContext(b.Context(), binary, "get")
				helper.Env = []string{"PULLPASS_REGISTRIES=" + registry, "PULLPASS_TOKEN_FILE=" + token}
				helper.Stdin = strings.NewReader(registry)
				if output, err := helper.Output(); err != nil || len(output) == 0 {
					b.Fatalf("output %q: %v", output, err)
				}
				cpu += helper.ProcessState.UserTime() + helper.ProcessState.SystemTime()
			}
			b.ReportMetric(float64(cpu.Nanoseconds())/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(info.Size()), "binary-B")
		})
	}
}
