package machine

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/pullpass/pullpass/e2e/testenv"
)

// Tree returns all files of the machine but those that skip says, with type, mode, owner, content and, but for directories, the time
// of the last change. Of /usr it has what is not from Debian's packages.
func (m *Machine) Tree(t testing.TB, skip func(path string) bool) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, part := range []struct{ dir, at string }{{m.Path("/"), ""}, {filepath.Join(m.dir, "usr"), "/usr"}} {
		testenv.Must(t, filepath.WalkDir(part.dir, func(name string, d fs.DirEntry, err error) error {
			path := part.at + strings.TrimPrefix(name, filepath.Clean(part.dir))
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil // what runs there removed it meanwhile
			case err != nil:
				return err
			case path == "/usr" || m.isMounted(path) || skip(path):
				if d.IsDir() && name != part.dir {
					return fs.SkipDir
				}
				return nil
			}
			text, err := describe(name)
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			// An overlay has a copy of each directory in which something was once changed.
			if packaged, err := describe(path); part.at != "" && d.IsDir() && err == nil && packaged == text {
				return nil
			}
			files[path] = text
			return err
		}))
	}
	return files
}

// isMounted reports whether a path is not a file of the machine itself.
func (m *Machine) isMounted(path string) bool {
	return slices.Contains(append([]string{"/proc", "/sys", "/dev", "/run", "/tmp"}, m.config.Programs...), path)
}

func describe(name string) (string, error) {
	info, err := os.Lstat(name)
	if err != nil {
		return "", err
	}
	stat := info.Sys().(*syscall.Stat_t)
	text := fmt.Sprintf("%s %d:%d", info.Mode(), stat.Uid, stat.Gid)
	switch info.Mode().Type() {
	case fs.ModeDir:
		return text, nil
	case fs.ModeSymlink:
		target, err := os.Readlink(name)
		return fmt.Sprintf("%s -> %s", text, target), err
	case 0:
		content, err := os.ReadFile(name)
		return fmt.Sprintf("%s %s %x", text, info.ModTime(), sha256.Sum256(content)), err
	}
	return text, nil
}
