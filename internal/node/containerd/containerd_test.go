package containerd

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

const (
	main = "/etc/containerd/config.toml"

	v3 = "[plugins.'io.containerd.cri.v1.images'.registry]\n"
	v2 = "[plugins.'io.containerd.grpc.v1.cri'.registry]\n"
	v1 = "[plugins.cri.registry]\n"

	runtimes = "[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.nvidia]\nruntime_type = 'io.containerd.runc.v2'\n"
)

// files implements Reader.
type files map[string]string

func (f files) Read(name string) ([]byte, error) {
	if name == "/broken" {
		return nil, errors.New("broken")
	}
	if content, is := f[name]; is {
		return []byte(content), nil
	}
	return nil, nil
}

func (f files) Glob(pattern string) (found []string, err error) {
	if pattern == "/broken/*" {
		return nil, errors.New("broken")
	}
	for _, name := range slices.Sorted(maps.Keys(f)) {
		if is, _ := path.Match(pattern, name); is {
			found = append(found, name)
		}
	}
	return found, nil
}

// The values are those of "containerd config dump" of 2.4, except for a section of another version, which
// not every containerd converts.
func TestRead(t *testing.T) {
	t.Parallel()
	set := func(dir string) string { return fmt.Sprintf("config_path = %q\n", dir) }
	for name, test := range map[string]struct {
		files files
		want  string
	}{
		"no file":                            {nil, ""},
		"no setting":                         {files{main: "version = 3\n"}, ""},
		"version 3":                          {files{main: "version = 3\n" + v3 + set("/a")}, "/a"},
		"version 4":                          {files{main: "version = 4\n" + v3 + set("/a")}, "/a"},
		"version 2":                          {files{main: "version = 2\n" + v2 + set("/a")}, "/a"},
		"version 1":                          {files{main: "version = 1\n" + v1 + set("/a")}, "/a"},
		"no version":                         {files{main: v1 + set("/a")}, "/a"},
		"version 3, the section of 2":        {files{main: "version = 3\n" + v2 + set("/a")}, ""},
		"version 2, the section of 3":        {files{main: "version = 2\n" + v3 + set("/a")}, ""},
		"no version, the section of 2":       {files{main: v2 + set("/a")}, ""},
		"version 3, both sections":           {files{main: "version = 3\n" + v3 + set("/a") + v2 + set("/a")}, "/a"},
		"version 3, runtimes of 2":           {files{main: "version = 3\n" + v3 + set("/a") + runtimes}, "/a"},
		"version 4, both sections":           {files{main: "version = 4\n" + v3 + set("/a") + v2 + set("/b")}, "/a"},
		"version 3, a later file of 2":       {files{main: "version = 3\nimports = ['/x.toml']\n" + v3 + set("/a"), "/x.toml": "version = 2\n" + v2 + "headers = {}\n"}, "/a"},
		"in dots":                            {files{main: "version = 3\n[plugins.'io.containerd.cri.v1.images']\nregistry.config_path = '/a'\n"}, "/a"},
		"inline":                             {files{main: "version = 3\nplugins = {'io.containerd.cri.v1.images' = {registry = {config_path = '/a'}}}\n"}, "/a"},
		"in a text of several lines":         {files{main: "version = 3\nroot = '''\n" + v3 + set("/a") + "'''\n"}, ""},
		"in a comment":                       {files{main: "version = 3\n" + v3 + "# " + set("/a")}, ""},
		"of the transfer service":            {files{main: "version = 3\n[plugins.'io.containerd.transfer.v1.local']\n" + set("/a")}, ""},
		"not a text":                         {files{main: "version = 3\n" + v3 + "config_path = 5\n"}, ""},
		"an import":                          {files{main: "version = 3\nimports = ['/x.toml']\n" + v3 + set("/a"), "/x.toml": "version = 3\n" + v3 + set("/b")}, "/b"},
		"an import without the setting":      {files{main: "version = 3\nimports = ['/x.toml']\n" + v3 + set("/a"), "/x.toml": "version = 3\n" + v3}, "/a"},
		"an empty import":                    {files{main: "version = 3\nimports = ['/x.toml']\n" + v3 + set("/a"), "/x.toml": ""}, "/a"},
		"a relative import":                  {files{main: "version = 3\nimports = ['../x/y.toml']\n", "/etc/x/y.toml": "version = 3\n" + v3 + set("/b")}, "/b"},
		"a relative import, of 2":            {files{main: "version = 2\nimports = ['../x/y.toml']\n", "/etc/x/y.toml": "version = 2\n" + v2 + set("/b")}, "/b"},
		"version 2, a later file of 3":       {files{main: "version = 2\nimports = ['/x.toml']\n" + v2 + set("/a"), "/x.toml": "version = 3\n" + v3 + set("/b")}, "/b"},
		"version 2, runtimes alone":          {files{main: "version = 2\n" + runtimes}, ""},
		"version 2, the section of 1":        {files{main: "version = 2\n" + v2 + set("/a") + v1 + set("/b")}, "/a"},
		"a pattern":                          {files{main: "version = 3\nimports = ['conf.d/*.toml']\n", "/etc/containerd/conf.d/1.toml": "version = 3\n" + v3 + set("/a"), "/etc/containerd/conf.d/2.toml": "version = 3\n" + v3 + set("/b"), "/etc/containerd/conf.d/3.toml.bak": "version = 3\n" + v3 + set("/c")}, "/b"},
		"a directory that is not imported":   {files{main: "version = 3\n", "/etc/containerd/conf.d/1.toml": "version = 3\n" + v3 + set("/a")}, ""},
		"an import of an import, last":       {files{main: "version = 3\nimports = ['/x.toml', '/y.toml']\n", "/x.toml": "version = 3\nimports = ['/z.toml']\n", "/y.toml": "version = 3\n" + v3 + set("/y"), "/z.toml": "version = 3\n" + v3 + set("/z")}, "/z"},
		"likewise, without the setting":      {files{main: "version = 3\nimports = ['/x.toml']\n" + v3 + set("/a"), "/x.toml": v2}, "/a"},
		"a loop":                             {files{main: "version = 3\nimports = ['/x.toml']\n" + v3 + set("/a"), "/x.toml": "imports = ['" + main + "', '/x.toml']\n"}, "/a"},
		"an import without version, of 3":    {files{main: "version = 3\nimports = ['/x.toml']\n" + v3 + set("/a"), "/x.toml": v3 + set("/b")}, "/b"},
		"likewise, with the section of 2":    {files{main: "version = 3\nimports = ['/x.toml']\n" + v3 + set("/a"), "/x.toml": v2 + set("/b")}, "/b"},
		"an import without version, of 2":    {files{main: "version = 2\nimports = ['/x.toml']\n" + v2 + set("/a"), "/x.toml": v2 + set("/b")}, "/b"},
		"an import without version, of 1":    {files{main: "version = 1\nimports = ['/x.toml']\n", "/x.toml": v1 + set("/b")}, "/b"},
		"an import of another section, of 2": {files{main: "version = 2\nimports = ['/x.toml']\n" + v2 + set("/a"), "/x.toml": "version = 2\n[plugins.'io.containerd.internal.v1.opt']\npath = '/opt'\n"}, "/a"},
	} {
		got, err := Read(test.files, main)
		if err != nil || got.ConfigPath != test.want {
			t.Errorf("%s: %q, %v, want %q", name, got.ConfigPath, err, test.want)
		}
	}
	got := testkit.Value(Read(files{main: "imports = ['/x.toml', '/y.toml']\n", "/x.toml": "imports = ['/z.toml']\n", "/y.toml": "", "/z.toml": ""}, main))(t)
	if want := []string{main, "/x.toml", "/y.toml", "/z.toml"}; !slices.Equal(got.Files, want) {
		t.Errorf("read %q, want %q", got.Files, want)
	}
}

func TestReadRefuses(t *testing.T) {
	t.Parallel()
	many := files{main: "version = 3\nimports = ['/x/*']\n"}
	for i := range maxFiles {
		many[fmt.Sprintf("/x/%d", i)] = ""
	}
	imported := func(version, text string) files {
		return files{main: "version = 3\nimports = ['/x.toml']\n" + v3 + "config_path = '/a'\n", "/x.toml": version + text}
	}
	for name, test := range map[string]struct {
		files files
		want  string
	}{
		"not TOML":                   {files{main: "version ="}, main + ": containerd would not start with it: "},
		"another type":               {files{main: "version = 'three'\n"}, main + ": containerd would not start with it: "},
		"an import that is not TOML": {files{main: "imports = ['/x.toml']", "/x.toml": "["}, "/x.toml: containerd would not start with it: "},
		"a later version":            {files{main: "version = 5\n"}, main + ": has a version that is not known here"},
		"a file that cannot be read": {files{main: "imports = ['/broken']"}, "broken"},
		"files that cannot be found": {files{main: "imports = ['/broken/*']"}, "broken"},
		"very many":                  {many, main + ": imports more than 64 files"},
		// containerd would not start with it, and containerd 1.6 looks for it in its working directory.
		"a missing import":   {files{main: "imports = ['/x.toml']\n"}, "/x.toml: is imported and does not exist"},
		"versions 2 and 1":   {files{main: "version = 2\nimports = ['/x.toml']\n" + v2 + "config_path = '/a'\n", "/x.toml": "version = 1\n"}, "/x.toml: has another version"},
		"versions 1 and 2":   {files{main: "imports = ['/x.toml']\n" + v1 + "config_path = '/a'\n", "/x.toml": "version = 2\n"}, "/x.toml: has another version"},
		"a relative pattern": {files{main: "version = 2\nimports = ['conf.d/*.toml']\n"}, main + ": imports a relative pattern"},
		// containerd 2.3 and 2.4 convert these, and then have no config_path, or that one.
		"version 3, another path in the section of 2":   {files{main: "version = 3\n" + v3 + "config_path = '/a'\n" + v2 + "config_path = '/b'\n"}, main + ": has a registry in a section"},
		"version 3, an empty registry of 2":             {files{main: "version = 3\n" + v3 + "config_path = '/a'\n" + v2}, main + ": has a registry in a section"},
		"a later file of 2 with the section of 3":       {imported("version = 2\n", v3+"config_path = '/b'\n"), "/x.toml: has a registry in a section"},
		"a later file of 1 with the section of 2":       {imported("version = 1\n", v2+"config_path = '/b'\n"), "/x.toml: has a registry in a section"},
		"a later file without version, of 1":            {imported("", v1+"config_path = '/b'\n"), "/x.toml: has a registry in a section"},
		"a later file without version, of two versions": {imported("", v2+"config_path = '/c'\n"+v3+"config_path = '/b'\n"), "/x.toml: has a registry in a section"},
		// containerd 1 replaces a section as a whole, and containerd 2 merges both.
		"a section again, of 2": {files{main: "version = 2\nimports = ['/x.toml']\n" + v2 + "config_path = '/a'\n", "/x.toml": "version = 2\n" + runtimes}, "/x.toml: has a section of the CRI plugin without config_path"},
	} {
		if _, err := Read(test.files, main); err == nil || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	delete(many, "/x/0")
	if _, err := Read(many, main); err != nil {
		t.Errorf("as many as are read: %v", err)
	}
	if _, err := Parse([]byte("[")); err == nil {
		t.Error("no error for a file that is not TOML")
	}
}

func TestLists(t *testing.T) {
	t.Parallel()
	const (
		images = "version = 3\n[plugins.'io.containerd.cri.v1.images']\n"
		list   = "registry.config_path = '/a:/b'\n"
	)
	for name, test := range map[string]struct {
		content string
		unread  bool
	}{
		"one directory":                    {images + "registry.config_path = '/a'\n", false},
		"a list":                           {images + list, true},
		"as containerd config default":     {images + list + "discard_unpacked_layers = false\nuse_local_image_pull = false\n", true},
		"as EKS":                           {images + list + "discard_unpacked_layers = true\n", false},
		"pulled by the plugin itself":      {images + list + "use_local_image_pull = true\n", false},
		"before version 3":                 {"version = 2\n" + v2 + "config_path = '/a:/b'\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\ndiscard_unpacked_layers = true\n", false},
		"a setting in a different section": {images + list + "[plugins.x]\ndiscard_unpacked_layers = true\n", true},
	} {
		s := testkit.Value(Parse([]byte(test.content)))(t)
		if s.IsUnread() != test.unread || s.Dir() != "/a" {
			t.Errorf("%s: %v, %s", name, s.IsUnread(), s.Dir())
		}
	}
	s := testkit.Value(Parse([]byte(images + list)))(t)
	if got := s.ListProblem(); !strings.HasPrefix(got, "is a list (/a:/b)") || !strings.Contains(got, `write config_path = "/a"`) {
		t.Error(got)
	}
}

// Settings are texts of the files, and no file makes Read panic or run on.
func FuzzRead(f *testing.F) {
	f.Add("version = 3\n"+v3+"config_path = '/a:/b'\n", "/x")
	f.Add(v1+"config_path = \"x\"\nimports = ['*', '/x']\n", "version = 2")
	f.Fuzz(func(t *testing.T, first, second string) {
		s, err := Read(files{main: first, "/x": second}, main)
		if err == nil && len(s.Files) == 0 {
			t.Error("nothing was read")
		}
		s.IsUnread()
	})
}
