//go:build unix

package nodeconfig

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Anyone who can write to the directory can replace the plugin in it.
func TestDirectoryOfThePlugin(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "bin")
	testkit.Must(t, os.Mkdir(dir, 0o755))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, pluginName), nil, 0o755))
	provider := filepath.Join(t.TempDir(), "provider.yaml")
	testkit.Write(t, filepath.Dir(provider), "provider.yaml", providerHead+providerOf(pluginName, "[registry.example.com]", ""))
	target := testTarget(t, testConfig, Options{Registry: "registry.example.com", PluginDir: dir})
	for mode, isOpen := range map[os.FileMode]bool{0o755: false, 0o700: false, 0o775: true, 0o757: true, 0o777: true, 0o777 | os.ModeSticky: true} {
		testkit.Must(t, os.Chmod(dir, mode))
		var want []string
		if isOpen {
			want = []string{"--plugin-dir: is a directory that not only its owner can change (" + term.QuoteValue(dir) + "), who could then read every token; chmod go-w"}
		}
		var got []string
		findings, _ := target.Lint(t.Context(), []string{provider})
		for _, finding := range findings {
			got = append(got, finding.Error())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v: %q, want %q", mode, got, want)
		}
	}
}

// The directory may be on a different machine.
func TestNoDirectoryOfThePlugin(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "kubelet")
	testkit.Write(t, filepath.Dir(file), "kubelet", "--image-credential-provider-config=/p.yaml --image-credential-provider-bin-dir=/none/bin\n")
	target := testTarget(t, testConfig, Options{Registry: "registry.example.com", PluginDir: "/none/bin"})
	if findings, _ := target.Lint(t.Context(), []string{file}); len(findings) > 0 {
		t.Error(findings)
	}
}

// owned is a file of a different user.
type owned struct {
	fs.FileInfo
	uid int
}

func (o owned) Sys() any {
	if o.uid < 0 {
		return nil // not known
	}
	return &syscall.Stat_t{Uid: uint32(o.uid)}
}

// A user without root's rights lints copies of their own.
func TestOwnerOfThePlugin(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), pluginName)
	testkit.Must(t, os.WriteFile(file, nil, 0o755))
	info := testkit.Value(os.Stat(file))(t)
	const self, other = 1000, 1001
	for _, test := range []struct {
		name string
		uid  int
		who  string
	}{{"/bin", 0, ""}, {"/bin", self, ""}, {"/bin", other, "user 1001 can change"}, {"bin", other, ""}, {"/bin", -1, ""}} {
		if who, remedy := changers(test.name, owned{info, test.uid}, self); who != test.who || (remedy == "chown root") != (who != "") {
			t.Errorf("%+v: %q, %q", test, who, remedy)
		}
	}
}
