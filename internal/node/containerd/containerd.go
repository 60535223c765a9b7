package containerd

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/pullpass/pullpass/internal/base/term"
)

// maxFiles limits the imports. Each file can be as large as a Reader allows.
const maxFiles = 64

var (
	errImports = fmt.Errorf("imports more than %d files; import fewer", maxFiles)
	errVersion = errors.New("has a version that is not known here; write 1 to 4")
	errOther   = errors.New("has a registry in a section of the CRI plugin that is of another version, which some versions of containerd convert over config_path; move its settings to the section of the file's version")
	errImport  = errors.New("is imported and does not exist, so containerd would not start; create it, or remove the import")
	errPattern = errors.New("imports a relative pattern, which containerd 1.6 does not resolve in the directory of the file; write an absolute one")
	errMixed   = errors.New("has another version than the main file, and containerd 1 reads all files in the version of the last one; write the same version into both")
	errReplace = errors.New("has a section of the CRI plugin without config_path, and containerd 1 then drops the config_path of the files before; write config_path into this section, too")
)

// Settings are the settings of containerd that determine its hosts.toml.
type Settings struct {
	Files      []string // that were read, in containerd's order
	ConfigPath string
	Discard    *bool // discard_unpacked_layers; nil: missing
	Local      *bool // use_local_image_pull
}

// Reader reads the files of a host.
type Reader interface {
	// Read returns nil for a missing file.
	Read(name string) ([]byte, error)
	// Glob returns the files that match a pattern of package filepath, sorted.
	Glob(pattern string) ([]string, error)
}

// file is the necessary part of a file of containerd.
type file struct {
	Version int
	Imports []string
	Plugins map[string]any
}

// Read returns the settings of a file and of those that it imports, in the order in which containerd
// reads them. Later files take precedence. It is an error if the settings cannot be known.
func Read(r Reader, main string) (s Settings, err error) {
	version := 0
	pending := []string{main}
	for ; len(pending) > 0; pending = pending[1:] {
		name := pending[0]
		if slices.Contains(s.Files, name) {
			continue
		}
		if len(s.Files) == maxFiles {
			return s, fmt.Errorf("%s: %w", main, errImports)
		}
		content, err := r.Read(name)
		if err == nil && content == nil && name != main {
			err = fmt.Errorf("%s: %w", name, errImport)
		}
		if err != nil {
			return s, err
		}
		s.Files = append(s.Files, name)
		f, err := parse(content)
		if err == nil {
			if name == main {
				version = f.Version
			}
			err = s.take(f, version)
		}
		if err != nil {
			return s, fmt.Errorf("%s: %w", name, err)
		}
		for _, pattern := range f.Imports {
			isPattern := strings.Contains(pattern, "*")
			if !path.IsAbs(pattern) {
				if isPattern && version < 3 {
					return s, fmt.Errorf("%s: %w", name, errPattern)
				}
				pattern = path.Join(path.Dir(name), pattern)
			}
			imported := []string{path.Clean(pattern)}
			if isPattern {
				if imported, err = r.Glob(imported[0]); err != nil {
					return s, err
				}
			}
			pending = append(pending, imported...)
		}
	}
	return s, nil
}

// Parse returns the settings of one file.
func Parse(content []byte) (s Settings, err error) {
	f, err := parse(content)
	if err == nil {
		err = s.take(f, f.Version)
	}
	return s, err
}

func parse(content []byte) (f file, err error) {
	// Not strict, as containerd.
	if err := toml.Unmarshal(content, &f); err != nil {
		return f, fmt.Errorf("containerd would not start with it: %w", err)
	}
	return f, nil
}

// take takes the settings of a file. The version of the first file holds for files without one. Of a
// section that the file's version does not have, it takes nothing: some versions of containerd convert
// it, but others ignore it.
func (s *Settings) take(f file, version int) error {
	const oldest, old, images = "cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images"
	var sections []string // of the CRI plugin, in one of which the images are
	switch {
	case version < 3 && f.Version != 0 && f.Version < 3 && (f.Version == 2) != (version == 2):
		return errMixed
	case f.Version == 0 && version >= 3:
		sections = []string{old, images} // containerd 2 converts the file as one of version 1
	case f.Version == 0 && version == 2, f.Version == 2:
		sections = []string{old}
	case f.Version == 3, f.Version == 4:
		sections = []string{images}
	case f.Version == 0, f.Version == 1:
		sections = []string{oldest}
	default:
		return errVersion
	}
	for _, name := range sections {
		section, is := f.Plugins[name].(map[string]any)
		if !is {
			continue
		}
		registry, _ := section["registry"].(map[string]any)
		value, isSet := registry["config_path"].(string)
		if isSet {
			s.ConfigPath = value
		} else if version < 3 && s.ConfigPath != "" {
			return errReplace
		}
		pulls, _ := section["containerd"].(map[string]any) // before version 3
		for _, in := range []map[string]any{section, pulls} {
			if value, is := in["discard_unpacked_layers"].(bool); is {
				s.Discard = &value
			}
			if value, is := in["use_local_image_pull"].(bool); is {
				s.Local = &value
			}
		}
	}
	if f.Version == 4 {
		return nil // nothing is converted
	}
	others := []string{old, images}
	if f.Version < 2 {
		others = append(others, oldest)
	}
	for _, name := range others {
		section, _ := f.Plugins[name].(map[string]any)
		value, has := section["registry"]
		registry, _ := value.(map[string]any)
		set, isSet := registry["config_path"].(string)
		// A conversion replaces the whole registry, so a missing config_path counts, too.
		if has && (isSet || !slices.Contains(sections, name)) && s.ConfigPath != "" && set != s.ConfigPath {
			return errOther
		}
	}
	return nil
}

// defaultPath is the config_path of containerd 2 without one.
const defaultPath = "/etc/containerd/certs.d:/etc/docker/certs.d"

// Dirs returns the directories in which containerd looks for a registry, in its order.
func (s Settings) Dirs() []string { return strings.Split(cmp.Or(s.ConfigPath, defaultPath), ":") }

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
	isOn := func(setting *bool) bool { return setting != nil && *setting }
	return strings.Contains(s.ConfigPath, ":") && !isOn(s.Discard) && !isOn(s.Local)
}

// ListProblem describes the consequence of IsUnread.
func (s Settings) ListProblem() string {
	return fmt.Sprintf("is a list (%s), with which containerd 2.1 and later reads no hosts.toml when it pulls with its transfer service: pods' tokens go to the registries behind the gateway; "+
		"write config_path = %q, or use_local_image_pull = true, and restart containerd", s.ConfigPath, s.Dir())
}

// EndpointProblem describes the consequence of a kubelet that asks an endpoint for images. It is empty
// if the endpoint is that of a platform's containerd.
func EndpointProblem(endpoint string) string {
	switch strings.TrimPrefix(endpoint, "unix://") {
	case "", "/run/containerd/containerd.sock", "/var/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock", "/var/snap/microk8s/common/run/containerd.sock":
		return ""
	}
	return fmt.Sprintf("is %s, which is not the platform's containerd: it reads no hosts.toml, and would send tokens to the registry itself; leave it out, or name images by the gateway's own name (docs/how-to/kubelet.md)",
		term.QuoteValue(endpoint))
}
