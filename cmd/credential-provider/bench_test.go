package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

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
			testkit.MeasureProgram(b, program.source, func(plugin *exec.Cmd) {
				plugin.Args = append(plugin.Args, program.args...)
				plugin.Stdin = strings.NewReader(input)
			})
		})
	}
}
