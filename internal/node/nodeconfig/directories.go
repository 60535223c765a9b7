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
		if !slices.ContainsFunc(s.dirs, func(dir string) bool { return isSame(dir, p.certsDir) }) {
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

func (h *hostsFile) isIn(dir string) bool { return isAt(h.dir(), dir) }

// isAt reports whether a file or directory is at a place of a node. Below a different root, and as a copy, it has
// a path that ends with the place, or with which the place ends.
func isAt(own, place string) bool {
	place = path.Clean(place)
	return strings.HasSuffix(own, place) || strings.HasSuffix(place, "/"+own) || isSame(own, place)
}

// isPlaced reports whether the file has its place on a node: below etc, in a directory of its registry.
// The place of others is not known, because they may be copies.
func (h *hostsFile) isPlaced() bool {
	names := append(hoststoml.Directories(h.registry), hoststoml.AnyRegistry)
	return filepath.Base(h.name) == hostsName && slices.Contains(names, filepath.Base(filepath.Dir(h.name))) &&
		isBelowEtc(h.dir())
}

func isBelowEtc(name string) bool { return slices.Contains(strings.Split(name, "/"), "etc") }

// isSame also follows the links of the machine, which may be the node.
func isSame(a, b string) bool {
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

// configFiles finds flags that do not lead to our providers: the kubelet then pulls anonymously, and no event says so.
func (l *linter) configFiles(ours []*provider) {
	var files []string
	for _, p := range ours {
		if !slices.Contains(files, p.document.file) {
			files = append(files, p.document.file)
		}
	}
	var right []flagValue
	for _, f := range l.configFlags {
		if slices.ContainsFunc(files, func(file string) bool { return !l.leadsTo(f, file) }) {
			continue
		}
		if right = append(right, f); !isSame(right[0].value, f.value) {
			l.find(f.at(configFlagName), "is %s, and %s has %s, of which the kubelet takes the last on its command line; write the same in both", term.QuoteValue(f.value), right[0].file, term.QuoteValue(right[0].value))
		}
	}
}

// leadsTo reports whether the kubelet reads a provider configuration. The place of a copy is not known.
func (l *linter) leadsTo(f flagValue, file string) bool {
	own := filepath.ToSlash(filepath.Clean(file))
	switch {
	case isAt(own, f.value):
		return true
	case isAt(path.Dir(own), f.value):
		if !l.target.Kubelet.TakesDirectory() {
			l.find(f.at(configFlagName), "is a directory (%s), and a kubelet of %s does not read it; write the file", term.QuoteValue(f.value), l.target.Kubelet)
			return false
		}
		return true
	case isBelowEtc(own), strings.Contains(own, "/var/lib/kubelet/"), strings.Contains(own, "/var/lib/rancher/"):
		l.find(f.at(configFlagName), "is not %s or its directory (%s), so the kubelet does not run this provider: it pulls anonymously, or does not start; correct the flag, or move the file", file, term.QuoteValue(f.value))
		return false
	}
	l.remarks = append(l.remarks, fmt.Sprintf("not judged: whether the kubelet reads %s, which has to be %s on the node, or in that directory (%s of %s)", file, term.QuoteValue(f.value), configFlagName, f.file))
	return true
}
