package config

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/pullpass/pullpass/internal/base/term"
)

// maxLinks is how many symbolic links a name may pass, as for Linux.
const maxLinks = 40

// place returns the resolved location of a name. Two names of the same file or directory have the
// same location, also for relative and absolute names, links and mounts. For a missing file, it is
// the location where the file would be created. It opens nothing.
func (v *validator) place(name string) string {
	if name == "" {
		return ""
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(v.dir, name)
	}
	whole, err := filepath.Abs(name)
	if err != nil { // the working directory is gone
		return filepath.Clean(name)
	}
	rest := ""
	for at, links := whole, 0; ; {
		if info, err := os.Stat(at); err == nil {
			if id, ok := fileID(info); ok {
				return id + "/" + rest
			}
		}
		if to, err := os.Readlink(at); err == nil && links < maxLinks { // a link to a missing file
			if links++; !filepath.IsAbs(to) {
				to = filepath.Join(filepath.Dir(at), to)
			}
			at = filepath.Clean(to)
			continue
		}
		above := filepath.Dir(at)
		if above == at {
			return whole
		}
		at, rest = above, filepath.Join(filepath.Base(at), rest)
	}
}

// samePlace reports whether two names have the same location. An empty name has none.
func (v *validator) samePlace(one, other string) bool {
	return one != "" && other != "" && v.place(one) == v.place(other)
}

// uniquePlaces reports each name with the same location as an earlier one.
func (v *validator) uniquePlaces(n int, path string, name func(int) string) {
	first := map[string]int{}
	for i := range n {
		place := v.place(name(i))
		if place == "" {
			continue
		}
		if j, twice := first[place]; twice {
			v.Fault(fmt.Sprintf(path, i), "is the same as %s (%s); each must differ", fmt.Sprintf(path, j), term.QuoteValue(filepath.Clean(name(i))))
			continue
		}
		first[place] = i
	}
}
