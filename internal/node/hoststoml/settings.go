package hoststoml

import (
	"fmt"
	"strings"
)

// Settings are the settings of containerd that determine its hosts.toml.
type Settings struct {
	ConfigPath string
	Discard    string // discard_unpacked_layers, as written; empty: missing
	Local      string // use_local_image_pull
}

// ParseSettings reads only the necessary parts of containerd's configuration. The last of several
// files takes precedence.
func ParseSettings(contents ...[]byte) (s Settings) {
	for _, content := range contents {
		table := ""
		for line := range strings.Lines(string(content)) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "[") {
				table, _ = cutValue(line)
				continue
			}
			key, value, _ := strings.Cut(line, "=")
			text, _ := cutValue(strings.TrimSpace(value))
			switch strings.TrimSpace(key) {
			case "config_path":
				// The transfer service has its own config_path, which does not apply to pulls of
				// pods.
				if isRegistry(table) {
					s.ConfigPath = strings.Trim(text, `"'`)
				}
			case "discard_unpacked_layers":
				s.Discard = text
			case "use_local_image_pull":
				s.Local = text
			}
		}
	}
	return s
}

// isRegistry reports whether a table has the registry settings of the plugin for pods, in one of
// the versions of containerd's configuration.
func isRegistry(table string) bool {
	switch strings.NewReplacer(`"`, "", "'", "", " ", "", "\t", "").Replace(table) {
	case "[plugins.cri.registry]", "[plugins.io.containerd.grpc.v1.cri.registry]", "[plugins.io.containerd.cri.v1.images.registry]":
		return true
	}
	return false
}

// Dir returns the first directory, which takes precedence if it has the registry.
func (s Settings) Dir() string {
	dir, _, _ := strings.Cut(s.ConfigPath, ":")
	return dir
}

// IsUnread reports whether containerd may read no hosts.toml. This happens if config_path names
// several directories and nothing prevents containerd from pulling with its transfer service. The
// transfer service treats the list as one directory. It affects 2.1 to 2.4
// (containerd/containerd#12415; #14168 is open).
func (s Settings) IsUnread() bool {
	return strings.Contains(s.ConfigPath, ":") && s.Discard != "true" && s.Local != "true"
}

// ListProblem describes the consequence of IsUnread.
func (s Settings) ListProblem() string {
	return fmt.Sprintf("is a list (%s), with which containerd 2.1 and later reads no hosts.toml when it pulls with its transfer service: pods' tokens go to the registries behind the gateway; "+
		"write config_path = %q, or use_local_image_pull = true, and restart containerd", s.ConfigPath, s.Dir())
}
