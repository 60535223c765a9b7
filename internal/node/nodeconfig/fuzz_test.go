package nodeconfig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"golang.org/x/tools/txtar"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Whatever is in a node's file, each finding and remark is one printable line.
func FuzzLint(f *testing.F) {
	archives := testkit.Value(filepath.Glob("testdata/kubelet/*.txtar"))(f)
	for _, name := range archives {
		archive := testkit.Value(txtar.ParseFile(name))(f)
		for _, file := range archive.Files {
			if base := filepath.Base(file.Name); strings.Contains(base, ".") && len(file.Data) < 2<<10 {
				f.Add(base, file.Data)
			}
		}
	}
	dir := f.TempDir()
	target := testTarget(f, gatewayConfig, Options{Registry: "registry.example.com", Mirrors: []string{"ghcr.io"}})
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		switch filepath.Ext(name) {
		case ".yaml", ".toml", ".json", ".env":
		default:
			name = "flags"
		}
		name = filepath.Join(dir, "file"+filepath.Ext(name))
		testkit.Must(t, os.WriteFile(name, data, 0o600))
		findings, remarks := target.Lint(t.Context(), []string{name})
		for _, finding := range findings {
			remarks = append(remarks, finding.Error())
		}
		for _, text := range remarks {
			if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%q: %q", data, text)
			}
		}
	})
}
