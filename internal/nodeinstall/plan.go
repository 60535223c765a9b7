package nodeinstall

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/pullpass/pullpass/internal/hostfs"
	"github.com/pullpass/pullpass/internal/term"
)

// ErrForeign is the error of a file that stands where ours belongs, and that we
// did not write.
var ErrForeign = errors.New("is there already, and node-install did not write it")

// Desired is what a node is to have.
type Desired struct {
	KubeletVersion string            // as in status.nodeInfo of the Node: v1.34.2+k3s1
	Plugin         []byte            // the program
	Provider       []byte            // a CredentialProviderConfig with our providers
	Hosts          map[string][]byte // hosts.toml by registry
	Client         string            // what they name as the kubelet's certificate, wherever the platform has it; empty: none do
	CA             []byte            // certificates that they name as ca.crt; empty: none
}

// Plan is what has to be done on a node.
type Plan struct {
	Profile  string   `json:"profile"`
	Unit     string   `json:"unit"`
	Digest   string   `json:"digest"`   // of all that the kubelet reads when it starts
	Rejected bool     `json:"rejected"` // the kubelet did not come back with it: it is not tried again
	Restart  bool     `json:"restart"`  // the kubelet has to be restarted
	Changes  []Change `json:"changes"`
}

// Change is one file that is not as it is to be.
type Change struct {
	Path    string `json:"path"`
	Action  string `json:"action"` // create, replace, edit, restore, remove
	Reason  string `json:"reason"`
	Restart bool   `json:"restart"` // the kubelet reads it when it starts

	old, next *hostfs.File // nil: nothing
	original  *hostfs.File // what an uninstall puts back
	entry     *entry       // what the state says of it then; nil: nothing
}

// target is a file that is to be on the node.
type target struct {
	path    string
	what    string
	file    hostfs.File // the whole file
	edit    *edit       // or what is to be in it
	restart bool
}

// newPlan compares the node with what is desired. It writes nothing, and judges
// all before anything is written.
func newPlan(tree *hostfs.Tree, s *state, profileName string, d Desired) (*Plan, error) {
	p, err := findProfile(tree, profileName)
	if err != nil {
		return nil, err
	}
	if s.Profile != "" && s.Profile != p.name {
		return nil, fmt.Errorf("%w: it was installed as %s, and is %s now; run pullpass node-install uninstall first", ErrProfile, s.Profile, p.name)
	}
	unit, err := p.unit(tree)
	if err != nil {
		return nil, err
	}
	targets, err := p.targets(tree, s, d)
	if err != nil {
		return nil, err
	}
	plan := &Plan{Profile: p.name, Unit: unit, Changes: []Change{}}
	sum := sha256.New()
	for _, t := range targets {
		c, final, err := t.change(tree, s)
		if err != nil {
			return nil, err
		}
		if c != nil {
			plan.Changes = append(plan.Changes, *c)
		}
		if t.restart {
			fmt.Fprintf(sum, "%q %o %q %q\n", t.path, final.Mode, final.Link, final.Content)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Entries)) {
		if slices.ContainsFunc(targets, func(t target) bool { return t.path == name }) {
			continue
		}
		c, err := undo(tree, name, s.Entries[name])
		if err != nil {
			return nil, err
		}
		c.Reason = "is not wanted any more"
		plan.Changes = append(plan.Changes, c)
	}
	plan.Digest = hex.EncodeToString(sum.Sum(nil))
	plan.Restart = s.Pending != nil || slices.ContainsFunc(plan.Changes, func(c Change) bool { return c.Restart })
	plan.Rejected = plan.Restart && slices.Contains(s.Rejected, plan.Digest)
	return plan, nil
}

// usesDirectory tells kubelets that take a directory of provider configurations
// (kubernetes/kubernetes#131658, 1.34) from those that take one file.
func usesDirectory(version string) (bool, error) {
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(minor)
	switch {
	case err != nil || major != "1":
		return false, fmt.Errorf("--kubelet-version %s is not one; write it as kubectl get nodes prints it: v1.34.2", term.QuoteValue(version))
	case n < 33:
		return false, fmt.Errorf("--kubelet-version %s knows no tokenAttributes (KEP-4412); 1.34 has them, and 1.33 with the feature gate KubeletServiceAccountTokenForCredentialProviders", version)
	}
	return n >= 34, nil
}

// targets returns what is to be there, what containerd reads first: without its
// hosts.toml it would send the plugin's tokens to the registry behind the gateway.
func (p profile) targets(tree *hostfs.Tree, s *state, d Desired) ([]target, error) {
	directory, err := usesDirectory(d.KubeletVersion)
	if err != nil {
		return nil, err
	}
	if !directory {
		if d.Provider, err = beforeCacheType(d.Provider); err != nil {
			return nil, fmt.Errorf("our own provider configuration: %w", err)
		}
	}
	ours, err := parseProviders(d.Provider)
	if err != nil {
		return nil, fmt.Errorf("our own provider configuration: %w", err)
	}
	flagFile, err := p.flagFile(tree)
	if err != nil {
		return nil, err
	}
	ownFlags := []string{configFlag + "=" + ownConfigDir, pluginsFlag + "=" + ownPluginDir}
	if e := s.Entries[flagFile]; e.Edit != nil {
		ownFlags = append(ownFlags, e.Edit.Ours...)
	}
	others, err := p.flags.flagsOfOthers(tree, flagFile, ownFlags)
	if err != nil {
		return nil, err
	}
	var all []target
	if len(d.Hosts) > 0 {
		certs, err := p.certsDir(tree)
		if err != nil {
			return nil, err
		}
		for _, registry := range slices.Sorted(maps.Keys(d.Hosts)) {
			content, err := p.withClient(tree, d.Hosts[registry], d.Client)
			if err != nil {
				return nil, err
			}
			if len(d.CA) > 0 {
				all = append(all, target{path: path.Join(certs, registry, "ca.crt"), what: "the CA of " + registry, file: hostfs.NewFile(0o644, d.CA)})
			}
			all = append(all, target{path: path.Join(certs, registry, "hosts.toml"), what: "hosts.toml of " + registry, file: hostfs.NewFile(0o644, content)})
		}
	}
	plugins := cmp.Or(others.plugins, p.plugins)
	for _, name := range ours.names {
		all = append(all, target{path: path.Join(plugins, name), what: "the plugin", file: hostfs.NewFile(0o755, d.Plugin)})
	}
	config, flags, err := p.configTargets(tree, s, d, ours, others, directory)
	if err != nil {
		return nil, err
	}
	all = append(all, config...)
	if len(flags) > 0 {
		t := target{path: flagFile, what: "the kubelet's flags", restart: true, edit: &edit{Form: p.flags.form, Variable: p.flags.variable, Ours: flags}}
		if p.flags.form == formRancher {
			t.file, t.edit = hostfs.NewFile(0o644, rancherFile(flags)), nil
		}
		all = append(all, t)
	}
	return all, nil
}

// configTargets returns the provider configuration, and the flags that the
// kubelet needs for it.
func (p profile) configTargets(tree *hostfs.Tree, s *state, d Desired, ours providerFile, others flagValues, directory bool) (all []target, flags []string, err error) {
	if others.plugins == "" && (directory || !p.implied) {
		flags = append(flags, pluginsFlag+"="+p.plugins)
	}
	foreign := others.config
	if foreign == "" && p.implied {
		is, err := tree.Exists(p.config)
		if err != nil {
			return nil, nil, err
		}
		if e, isOurs := s.Entries[p.config]; is && (!isOurs || e.Edit != nil) {
			foreign = p.config
		}
	}
	own := target{what: "the provider configuration", restart: true, file: hostfs.NewFile(0o644, d.Provider)}
	var current *hostfs.File
	if foreign != "" {
		if current, err = foreignConfig(tree, foreign, cmp.Or(others.plugins, p.plugins), s, ours); err != nil {
			return nil, nil, err
		}
	}
	switch {
	case !directory && current != nil && current.Mode.IsDir():
		return nil, nil, fmt.Errorf("%w: %s is a directory, which a kubelet before 1.34 does not take", ErrProvider, tree.Path(foreign))
	case !directory && current != nil:
		own.path, own.edit = foreign, &edit{Form: formProviders, Ours: ours.names, providers: ours.list}
		return []target{own}, flags, nil
	case !directory:
		if !p.implied {
			flags = append(flags, configFlag+"="+p.config)
		}
		own.path = p.config
		return []target{own}, flags, nil
	case current != nil && current.Mode.IsDir():
		own.path = path.Join(foreign, "pullpass.yaml")
		return []target{own}, flags, nil
	}
	own.path = path.Join(ownConfigDir, "pullpass.yaml")
	flags = append(flags, configFlag+"="+ownConfigDir)
	if current != nil {
		// Never the directory that the file is in: the kubelet reads all YAML and JSON of it.
		all = append(all, target{path: path.Join(ownConfigDir, "platform"+path.Ext(foreign)), what: "the platform's provider configuration", restart: true, file: hostfs.NewLink(foreign)})
	}
	return append(all, own), flags, nil
}

// foreignConfig judges the provider configuration of others, a file or a
// directory: one that is wrong, names a plugin that is not there, or has a provider
// of our name, ends the kubelet.
func foreignConfig(tree *hostfs.Tree, name, plugins string, s *state, ours providerFile) (*hostfs.File, error) {
	if !path.IsAbs(name) {
		return nil, fmt.Errorf("%w: %s of the kubelet is no absolute path (%s); write one", ErrProfile, configFlag, term.QuoteValue(name))
	}
	real, err := tree.Follow(name)
	if err != nil {
		return nil, fmt.Errorf("%s of the kubelet: %w", configFlag, err)
	}
	current, err := tree.Lookup(real, maxFileBytes)
	if err != nil {
		return nil, fmt.Errorf("%s of the kubelet: %w", configFlag, err)
	}
	files := []string{name}
	if current.Mode.IsDir() {
		files = nil
		names, err := tree.Names(name)
		if err != nil {
			return nil, err
		}
		for _, base := range names {
			if slices.Contains([]string{".json", ".yaml", ".yml"}, path.Ext(base)) {
				files = append(files, path.Join(name, base))
			}
		}
	} else if !slices.Contains([]string{".json", ".yaml", ".yml"}, path.Ext(name)) {
		return nil, fmt.Errorf("%w: %s has none of the endings that the kubelet takes in a directory; rename it to .yaml, or .json", ErrProvider, tree.Path(name))
	}
	for _, file := range files {
		e, isOurs := s.Entries[file]
		if isOurs && e.Edit == nil {
			continue
		}
		content, err := readIfThere(tree, file)
		if err != nil {
			return nil, err
		}
		theirs, err := parseProviders(content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", tree.Path(file), err)
		}
		for _, name := range theirs.names {
			if isOurs && slices.Contains(e.Edit.Ours, name) {
				continue
			}
			if slices.Contains(ours.names, name) {
				return nil, fmt.Errorf("%w: %s has a provider %s already; remove it there, for the kubelet takes no name twice", ErrProvider, tree.Path(file), name)
			}
			if err := executable(tree, path.Join(plugins, path.Base(name))); err != nil {
				return nil, fmt.Errorf("%w: %s names the plugin %s, which cannot be run in %s (%w); install it there", ErrProvider, tree.Path(file), term.QuoteValue(name), tree.Path(plugins), err)
			}
		}
	}
	return &current, nil
}

// executable is nil for a program, which may be reached by links.
func executable(tree *hostfs.Tree, name string) error {
	mode, err := tree.Mode(name)
	if err == nil && (!mode.IsRegular() || mode.Perm()&0o111 == 0) {
		err = fs.ErrPermission
	}
	return err
}

// change returns what has to be done for the target, if anything, and what is
// there in the end.
func (t target) change(tree *hostfs.Tree, s *state) (*Change, hostfs.File, error) {
	current, err := lookup(tree, t.path)
	if err != nil {
		return nil, hostfs.File{}, err
	}
	e, isOurs := s.Entries[t.path]
	c := &Change{Path: t.path, Restart: t.restart, old: current}
	if t.edit != nil {
		return t.editing(tree, c, e, isOurs)
	}
	switch {
	case current == nil && isOurs:
		c.Action, c.Reason = "create", t.what+" was removed by somebody else"
	case current == nil:
		c.Action, c.Reason = "create", t.what+" is missing"
	case current.Equal(t.file):
		return nil, t.file, nil
	case !isOurs || current.Mode.IsDir():
		return nil, hostfs.File{}, fmt.Errorf("%s %w; move it away, if %s may replace it", tree.Path(t.path), ErrForeign, t.what)
	case versionOf(*current) == e.Written:
		c.Action, c.Reason = "replace", t.what+" has a new version"
	default:
		c.Action, c.Reason = "replace", t.what+" was changed by somebody else"
	}
	c.next = &t.file
	c.entry = &entry{Written: versionOf(t.file), Original: e.Original, Restart: t.restart}
	return c, t.file, nil
}

func (t target) editing(tree *hostfs.Tree, c *Change, e entry, isOurs bool) (*Change, hostfs.File, error) {
	current := hostfs.NewFile(0o644, nil)
	if c.old != nil {
		current = *c.old
	}
	if !current.Mode.IsRegular() {
		return nil, current, fmt.Errorf("%w: %s is no regular file, and only such are changed; make it one", ErrProfile, tree.Path(t.path))
	}
	content, err := t.edit.withoutStale(current.Content, e.Edit)
	if err == nil {
		content, err = t.edit.add(content)
	}
	if err != nil {
		return nil, current, fmt.Errorf("%s: %w", tree.Path(t.path), err)
	}
	next := current
	next.Content = content
	if c.old != nil && next.Equal(current) {
		return nil, current, nil
	}
	c.Action, c.Reason = "edit", t.what+" are to name Pullpass"
	if t.edit.Form == formProviders {
		c.Reason = t.what + " is to name Pullpass"
	}
	original := e.Original
	if !isOurs || c.old == nil || versionOf(*c.old) != e.Written {
		if c.original, err = withoutOurs(c.old, e, *t.edit); err != nil {
			return nil, current, fmt.Errorf("%s: %w", tree.Path(t.path), err)
		}
		original = nil
		if c.original != nil {
			v := versionOf(*c.original)
			original = &v
		}
	}
	if c.old == nil {
		c.Action = "create"
	}
	c.next = &next
	c.entry = &entry{Written: versionOf(next), Original: original, Edit: t.edit, Restart: t.restart}
	return c, next, nil
}

// withoutOurs returns what an uninstall puts back of a file that we never
// changed, or that others have changed since.
func withoutOurs(old *hostfs.File, was entry, next edit) (*hostfs.File, error) {
	if old == nil {
		return nil, nil
	}
	original := *old
	for _, e := range []*edit{was.Edit, &next} {
		if e == nil {
			continue
		}
		var err error
		if original.Content, err = e.remove(original.Content); err != nil {
			return nil, err
		}
	}
	return &original, nil
}

// undo returns the change that takes away what is ours of a file.
func undo(tree *hostfs.Tree, name string, e entry) (Change, error) {
	current, err := lookup(tree, name)
	if err != nil {
		return Change{}, err
	}
	c := Change{Path: name, Action: "remove", Restart: e.Restart, old: current}
	switch {
	case current == nil:
		return c, nil // somebody else was faster
	case e.Edit != nil && versionOf(*current) != e.Written:
		next := *current
		if next.Content, err = e.Edit.remove(current.Content); err != nil {
			return c, fmt.Errorf("%s: %w", tree.Path(name), err)
		}
		if len(next.Content) > 0 || e.Original != nil {
			c.Action, c.next = "edit", &next
		}
	case e.Original != nil:
		next, err := restored(tree, *e.Original)
		if err != nil {
			return c, err
		}
		c.Action, c.next = "restore", &next
	}
	return c, nil
}
