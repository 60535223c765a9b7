package hoststoml

import (
	"strings"
	"testing"
)

// Settings are texts of the file, and no setting comes from outside it.
func FuzzSettings(f *testing.F) {
	for _, content := range []string{
		"[plugins.'io.containerd.cri.v1.images'.registry]\nconfig_path = '/a:/b'\ndiscard_unpacked_layers = true\n", "config_path = \"x\n[\n", "[ plugins.cri.registry ]\r\nconfig_path=[\"/a\"]\n", "use_local_image_pull = # x\n\x00",
	} {
		f.Add([]byte(content), []byte("version = 3\n"))
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		s := ParseSettings(first, second)
		for _, text := range []string{s.ConfigPath, s.Discard, s.Local, s.Dir()} {
			if !strings.Contains(string(first), text) && !strings.Contains(string(second), text) || strings.Contains(text, "\n") {
				t.Errorf("%q and %q: %q", first, second, text)
			}
		}
		s.IsUnread()
	})
}
