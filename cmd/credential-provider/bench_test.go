package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// BenchmarkStart runs the built plugin as the kubelet does, and a program that
// does only the JSON. Read it as a ratio: "make bench-plugin".
func BenchmarkStart(b *testing.B) {
	input := strings.Replace(kubeletRequest("registry.example.com/team/app"), token, strings.Repeat("x", 1050), 1)
	for _, program := range []struct{ name, source string }{{"floor", "./testdata/floor"}, {"plugin", "."}} {
		b.Run("program="+program.name, func(b *testing.B) {
			binary := filepath.Join(b.TempDir(), program.name)
			build := exec.CommandContext(b.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", binary, program.source)
			build.Env = append(os.Environ(), "CGO_ENABLED=0")
			if output, err := build.CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, output)
			}
			info, err := os.Stat(binary)
			if err != nil {
				b.Fatal(err)
			}
			var cpu time.Duration
			for b.Loop() {
				plugin := exec.CommandContext(b.Context(), binary)
				plugin.Stdin = strings.NewReader(input)
				if output, err := plugin.Output(); err != nil || len(output) == 0 {
					b.Fatalf("output %q: %v", output, err)
				}
				cpu += plugin.ProcessState.UserTime() + plugin.ProcessState.SystemTime()
			}
			b.ReportMetric(float64(cpu.Nanoseconds())/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(info.Size()), "binary-B")
		})
	}
}
