package nodeconfig

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/node/hoststoml"
)

// searched is where a linted configuration of containerd has it look for hosts.toml.
type searched struct {
	file       string
	configPath string
	dirs       []string
}

// directories finds files that are not where they are looked for: by containerd, which goes by its
// config_path, and by the plugin, which goes by --certs-dir.
func (l *linter) directories() {
	if l.target.CRIO {
		return
	}
	for _, h := range l.hostsFiles {
		for _, s := range l.searched {
			switch {
			case slices.ContainsFunc(s.dirs, h.isIn):
			case h.isPlaced():
				consequence := ""
				if l.target.Gateway != "" {
					consequence = ": " + leak(h.registry)
				}
				l.find(h.at(0, ""), "is not where containerd looks (config_path of %s is %s)%s; save it as %s, or correct config_path",
					s.file, term.QuoteValue(s.configPath), consequence, path.Join(s.dirs[0], h.registry, hostsName))
			default:
				l.remarks = append(l.remarks, fmt.Sprintf("not judged: whether containerd reads %s, which has to be %s on the node (config_path of %s)", h.name, path.Join(s.dirs[0], h.registry, hostsName), s.file))
			}
		}
	}
	for _, p := range l.providers {
		if p.certsDir != "" {
			l.compares(p)
		}
	}
}

// compares finds a provider whose plugin reads other files than containerd.
func (l *linter) compares(p *provider) {
	for _, s := range l.searched {
		if !slices.ContainsFunc(s.dirs, func(dir string) bool { return isSameDir(dir, p.certsDir) }) {
			l.find(p.at("args"), "have the plugin look for hosts.toml in %s, and not where containerd looks (config_path of %s is %s), so it gives no token, or trusts a file that containerd does not read; write --certs-dir=%s",
				term.QuoteValue(p.certsDir), s.file, term.QuoteValue(s.configPath), s.dirs[0])
			return
		}
	}
	for _, registry := range l.target.Registries {
		placed := slices.DeleteFunc(slices.Clone(l.hostsFiles), func(h *hostsFile) bool { return h.registry != registry || !h.isPlaced() })
		isThere := slices.ContainsFunc(placed, func(h *hostsFile) bool { return h.isIn(p.certsDir) })
		if len(placed) > 0 && !isThere && p.matches(registry) {
			l.find(p.at("args"), "have the plugin look for hosts.toml in %s, and that of %s is elsewhere (%s), so the plugin gives no token; save it there, or correct --certs-dir",
				term.QuoteValue(p.certsDir), registry, placed[0].name)
		}
	}
}

// dir returns the directory with the directories of registries, in which the file is.
func (h *hostsFile) dir() string { return filepath.ToSlash(filepath.Dir(filepath.Dir(h.name))) }

// isIn reports whether the file is in a directory of a node. Below a different root, and as a copy, it is in
// one that ends with the directory, or with which the directory ends.
func (h *hostsFile) isIn(dir string) bool {
	own := h.dir()
	return strings.HasSuffix(own, path.Clean(dir)) || !path.IsAbs(own) && strings.HasSuffix(path.Clean(dir), "/"+own) || isSameDir(own, dir)
}

// isPlaced reports whether the file has its place on a node: below etc, in a directory of its registry.
// The place of others is not known, because they may be copies.
func (h *hostsFile) isPlaced() bool {
	names := append(hoststoml.Directories(h.registry), hoststoml.AnyRegistry)
	return filepath.Base(h.name) == hostsName && slices.Contains(names, filepath.Base(filepath.Dir(h.name))) &&
		slices.Contains(strings.Split(h.dir(), "/"), "etc")
}

// isSameDir also follows the links of the machine, which may be the node.
func isSameDir(a, b string) bool {
	if path.Clean(a) == path.Clean(b) {
		return true
	}
	infoOfA, err := os.Stat(a)
	if err != nil {
		return false
	}
	infoOfB, err := os.Stat(b)
	return err == nil && os.SameFile(infoOfA, infoOfB)
}
