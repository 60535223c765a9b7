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

// BenchmarkStart runs the built plugin as the kubelet does for a registry behind the
// gateway, which is its longest way, and a program that does only the JSON. Read it as a ratio: "make bench-plugin".
func BenchmarkStart(b *testing.B) {
	input := strings.Replace(kubeletRequest("registry.example.com/team/app"), token, strings.Repeat("x", 1050), 1)
	certs := b.TempDir()
	testkit.Mkdir(b, filepath.Join(certs, "registry.example.com"))
	testkit.Put(b, filepath.Join(certs, "registry.example.com", "hosts.toml"), "server = \"https://gateway.example.com/v2/registry.example.com\"\noverride_path = true\n[host]\n")
	for _, program := range []struct {
		name, source string
		args         []string
	}{
		{"floor", "./testdata/floor", nil},
		{"plugin", ".", []string{"--registry=registry.example.com", "--gateway=https://gateway.example.com", "--certs-dir=" + certs}},
	} {
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
				plugin := exec.CommandContext(b.Context(), binary, program.args...)
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
