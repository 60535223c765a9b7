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

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/node/hostfs"
	"github.com/pullpass/pullpass/internal/node/hoststoml"
	"github.com/pullpass/pullpass/internal/node/kubelet"
)

// ErrForeign means that a file that we did not write has the path of one of ours.
var ErrForeign = errors.New("is there already, and node-install did not write it")

// Desired is the desired state of a node.
type Desired struct {
	KubeletVersion string            // as in status.nodeInfo of the Node: v1.34.2+k3s1
	Plugin         []byte            // the program
	Provider       []byte            // a CredentialProviderConfig with our providers
	Hosts          map[string][]byte // hosts.toml by registry
	Client         string            // the certificate that they name as the kubelet's, whatever the platform's path; empty: none
	CA             []byte            // certificates that they name as ca.crt; empty: none

	Registry  string                                    // that containerd asks itself; empty: the gateway stands in for all
	LintHosts func(name string, content []byte) []error // judges a hosts.toml of others for Registry; nil: none is judged
}

// Plan is the work to be done on a node.
type Plan struct {
	Profile  string   `json:"profile"`
	Unit     string   `json:"unit"`
	Digest   string   `json:"digest"`   // of all files that the kubelet reads when it starts
	Rejected bool     `json:"rejected"` // the kubelet did not become healthy with it, and it is not retried
	Restart  bool     `json:"restart"`  // the kubelet has to be restarted
	Pending  bool     `json:"pending"`  // an earlier command was interrupted; this one does the remaining work
	Changes  []Change `json:"changes"`
	// Renews: files that the kubelet does not read get other content than the last that Apply wrote.
	// They take effect at the next pull, without a restart.
	Renews bool `json:"-"`
}

// isDone reports whether there is nothing to do.
func (p *Plan) isDone() bool { return !p.Restart && !p.Pending && len(p.Changes) == 0 }

// Change is one file that differs from the desired state.
type Change struct {
	Path    string `json:"path"`
	Action  string `json:"action"` // create, replace, edit, restore, remove
	Reason  string `json:"reason"`
	Restart bool   `json:"restart"` // the kubelet reads it when it starts

	old, next *hostfs.File // nil: no file
	isNew     bool         // nothing of the file was ours
	original  *hostfs.File // restored by an uninstall
	entry     *entry       // entry in the state after the change; nil: none
}

// target is a desired file.
type target struct {
	path    string
	what    string
	file    hostfs.File // the whole file
	edit    *edit       // or the desired part of it
	restart bool
}

// newPlan compares the node with the desired state. It writes nothing, and judges everything before
// any change.
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
	targets, err := p.targets(tree, s, unit, d)
	if err != nil {
		return nil, err
	}
	plan, first := &Plan{Profile: p.name, Unit: unit, Changes: []Change{}}, []Change{}
	sum := sha256.New()
	for _, t := range targets {
		c, final, err := t.change(s)
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
	for _, name := range s.paths() {
		if slices.ContainsFunc(targets, func(t target) bool { return t.path == name }) {
			continue
		}
		if _, e, err := s.start(name); err != nil {
			return nil, err
		} else if e == nil {
			continue
		}
		c, err := s.undo(name)
		if err != nil {
			return nil, err
		}
		c.Reason = "is not wanted any more"
		if s.isFlags(name) || c.next != nil {
			first = append(first, c)
		} else {
			plan.Changes = append(plan.Changes, c)
		}
	}
	// An installation stays as it is, and is repaired: without hosts.toml, tokens would go elsewhere.
	for _, c := range plan.Changes {
		if c.isNew {
			if err := errors.Join(tree.Owned(c.Path), tree.Owned(stateFile)); err != nil {
				return nil, err
			}
		}
	}
	// An installation stays as it is, and is repaired: the containerd that runs read its hosts.toml before.
	if len(d.Hosts) > 0 && slices.ContainsFunc(plan.Changes, func(c Change) bool { return c.isNew }) {
		problem, err := p.restartProblem(tree)
		if err == nil && problem != "" {
			err = fmt.Errorf("%w: %s", ErrProfile, problem)
		}
		if err != nil {
			return nil, err
		}
	}
	// The kubelet may be restarted meanwhile. It must not find one provider in two files, nor flags
	// that name a removed file.
	plan.Changes = append(first, plan.Changes...)
	plan.Digest = hex.EncodeToString(sum.Sum(nil))
	plan.Pending = s.Pending != nil
	plan.Restart = s.owed() || slices.ContainsFunc(plan.Changes, func(c Change) bool { return c.Restart })
	plan.Renews = slices.ContainsFunc(plan.Changes, func(c Change) bool { return !c.Restart && c.next != nil && !s.isRepair(c) })
	plan.Rejected = plan.Restart && slices.Contains(s.Rejected, plan.Digest)
	return plan, nil
}

// targets returns the desired files. Those of containerd come first: without its hosts.toml,
// containerd would send the plugin's tokens to the registry behind the gateway.
func (p profile) targets(tree *hostfs.Tree, s *state, unit string, d Desired) ([]target, error) {
	version, err := kubelet.ParseVersion(d.KubeletVersion)
	if err != nil {
		return nil, err
	}
	directory := version.TakesDirectory()
	flagFile, err := p.flagFile(tree)
	if err != nil {
		return nil, err
	}
	certs := ""
	if len(d.Hosts) > 0 {
		if certs, err = p.certsDir(tree); err != nil {
			return nil, err
		}
		if err := p.asksContainerd(tree, unit, flagFile); err != nil {
			return nil, err
		}
	}
	if d.Provider, err = withCertsDir(d.Provider, certs); err != nil {
		return nil, fmt.Errorf("our own provider configuration: %w", err)
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
	ownFlags := []string{configFlag + "=" + ownConfigDir, pluginsFlag + "=" + ownPluginDir}
	ownFlags = append(ownFlags, s.ours(flagFile)...)
	ofUnit, err := p.flags.flagsOfUnit(tree, unit, flagFile, ownFlags, s.Entries[flagFile])
	if err != nil {
		return nil, err
	}
	others, err := p.flags.flagsOfOthers(tree, flagFile, ownFlags, ofUnit)
	if err != nil {
		return nil, err
	}
	var all []target
	for _, registry := range slices.Sorted(maps.Keys(d.Hosts)) {
		content, err := p.withClient(tree, d.Hosts[registry], d.Client)
		if err != nil {
			return nil, err
		}
		if read := hoststoml.Directories(registry)[0]; read != registry {
			if exists, err := tree.Exists(path.Join(certs, read)); exists || err != nil {
				return nil, cmp.Or(err, fmt.Errorf("%s %w; move it away: containerd reads it in place of %s", tree.Path(path.Join(certs, read)), ErrForeign, registry))
			}
		}
		if len(d.CA) > 0 {
			all = append(all, target{path: path.Join(certs, registry, "ca.crt"), what: "the CA of " + registry, file: hostfs.NewFile(0o644, d.CA)})
		}
		all = append(all, target{path: path.Join(certs, registry, "hosts.toml"), what: "hosts.toml of " + registry, file: hostfs.NewFile(0o644, content)})
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

// configTargets returns the provider configuration, and the flags that the kubelet needs for it.
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
		if is && !s.isWhole(p.config) {
			foreign = p.config
		}
	}
	own := target{what: "the provider configuration", restart: true, file: hostfs.NewFile(0o644, d.Provider)}
	var current *hostfs.File
	var files []string
	if foreign != "" {
		if current, files, err = foreignConfig(tree, foreign); err != nil {
			return nil, nil, err
		}
	}
	own.path = path.Join(ownConfigDir, "pullpass.yaml")
	platform := path.Join(ownConfigDir, "platform"+path.Ext(foreign))
	if directory && (current == nil || !current.Mode.IsDir()) {
		beside, err := configFiles(tree, ownConfigDir)
		if err != nil {
			return nil, nil, err
		}
		files = append(files, slices.DeleteFunc(beside, func(name string) bool { return name == own.path || name == platform })...)
	}
	if err := verifyProviders(tree, files, cmp.Or(others.plugins, p.plugins), s, ours); err != nil {
		return nil, nil, err
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
	flags = append(flags, configFlag+"="+ownConfigDir)
	if current != nil {
		// Never use the directory of the file: the kubelet reads all YAML and JSON files in it.
		all = append(all, target{path: platform, what: "the platform's provider configuration", restart: true, file: hostfs.NewLink(foreign)})
	}
	return append(all, own), flags, nil
}

// foreignConfig returns the configuration of others, which is a file or a directory. It also
// returns the files in it that the kubelet reads.
func foreignConfig(tree *hostfs.Tree, name string) (*hostfs.File, []string, error) {
	if !path.IsAbs(name) {
		return nil, nil, fmt.Errorf("%w: %s of the kubelet is not an absolute path (%s); write one", ErrProfile, configFlag, term.QuoteValue(name))
	}
	real, err := tree.Follow(name)
	if err != nil {
		return nil, nil, fmt.Errorf("%s of the kubelet: %w", configFlag, err)
	}
	current, err := tree.Lookup(real, maxFileBytes)
	if err != nil {
		return nil, nil, fmt.Errorf("%s of the kubelet: %w", configFlag, err)
	}
	if current.Mode.IsDir() {
		files, err := configFiles(tree, name)
		return &current, files, err
	}
	if !isConfigFile(name) {
		return nil, nil, fmt.Errorf("%w: %s has none of the endings that the kubelet takes in a directory; rename it to .yaml, or .json", ErrProvider, tree.Path(name))
	}
	return &current, []string{name}, nil
}

// configFiles returns the files of a directory that the kubelet reads.
func configFiles(tree *hostfs.Tree, dir string) (files []string, err error) {
	names, err := tree.Names(dir)
	for _, base := range names {
		if isConfigFile(base) {
			files = append(files, path.Join(dir, base))
		}
	}
	return files, err
}

func isConfigFile(name string) bool {
	return slices.Contains([]string{".json", ".yaml", ".yml"}, path.Ext(name))
}

// verifyProviders rejects a provider configuration of others with which the kubelet would exit. Such
// a configuration is invalid, names a missing plugin, or repeats the name of a provider.
func verifyProviders(tree *hostfs.Tree, files []string, plugins string, s *state, ours providerFile) error {
	places := map[string]string{} // files by provider name
	for _, file := range files {
		if s.isWhole(file) {
			continue
		}
		content, err := readIfThere(tree, file)
		if err != nil {
			return err
		}
		theirs, err := parseProviders(content)
		if err != nil {
			return fmt.Errorf("%s: %w", tree.Path(file), err)
		}
		for _, name := range theirs.names {
			if slices.Contains(s.ours(file), name) {
				continue
			}
			if slices.Contains(ours.names, name) {
				return fmt.Errorf("%w: %s has a provider %s already; remove it there, for the kubelet takes no name twice", ErrProvider, tree.Path(file), name)
			}
			if other, is := places[name]; is {
				return fmt.Errorf("%w: %s has a provider %s, and %s has it too; remove one, for the kubelet takes no name twice", ErrProvider, tree.Path(file), term.QuoteValue(name), tree.Path(other))
			}
			places[name] = file
			if err := executable(tree, path.Join(plugins, path.Base(name))); err != nil {
				return fmt.Errorf("%w: %s names the plugin %s, which cannot be run in %s (%w); install it there", ErrProvider, tree.Path(file), term.QuoteValue(name), tree.Path(plugins), err)
			}
		}
	}
	return nil
}

// executable returns nil for a program, even behind links.
func executable(tree *hostfs.Tree, name string) error {
	mode, err := tree.Mode(name)
	if err == nil && (!mode.IsRegular() || mode.Perm()&0o111 == 0) {
		err = fs.ErrPermission
	}
	return err
}

// change returns the necessary change for the target, if any, and the resulting file.
func (t target) change(s *state) (*Change, hostfs.File, error) {
	current, e, err := s.start(t.path)
	if err != nil {
		return nil, hostfs.File{}, err
	}
	c := &Change{Path: t.path, Restart: t.restart, old: current, isNew: e == nil}
	if t.edit != nil {
		return t.editing(s.tree, c, e)
	}
	isOurs := e != nil
	switch {
	case current == nil && isOurs:
		c.Action, c.Reason = "create", t.what+" was removed by another program"
	case current == nil:
		c.Action, c.Reason = "create", t.what+" is missing"
	case current.Equal(t.file):
		return nil, t.file, nil
	case !isOurs || current.Mode.IsDir():
		return nil, hostfs.File{}, fmt.Errorf("%s %w; move it away, if %s may replace it", s.tree.Path(t.path), ErrForeign, t.what)
	case versionOf(*current) == e.Written:
		c.Action, c.Reason = "replace", t.what+" has a new version"
	default:
		c.Action, c.Reason = "replace", t.what+" was changed by another program"
	}
	c.next = &t.file
	c.entry = &entry{Written: versionOf(t.file), Restart: t.restart}
	return c, t.file, nil
}

func (t target) editing(tree *hostfs.Tree, c *Change, e *entry) (*Change, hostfs.File, error) {
	current := hostfs.NewFile(0o644, nil)
	if c.old != nil {
		current = *c.old
	}
	if !current.Mode.IsRegular() {
		return nil, current, fmt.Errorf("%w: %s is not a regular file, and only regular files are changed; make it one", ErrProfile, tree.Path(t.path))
	}
	content, err := current.Content, error(nil)
	if e != nil && e.Edit != nil {
		t.edit.Empty = e.Edit.Empty
		content, err = t.edit.withoutStale(content, e.Edit)
	}
	if err == nil {
		content, err = t.edit.add(content)
	}
	if err != nil {
		return nil, current, fmt.Errorf("%s: %w", tree.Path(t.path), err)
	}
	next := current
	next.Content = content
	if next.Equal(current) {
		return nil, current, nil
	}
	c.Action, c.Reason = "edit", t.what+" are to name Pullpass"
	if t.edit.Form == formProviders {
		c.Reason = t.what + " is to name Pullpass"
	}
	var original *version
	if e != nil && c.old != nil && versionOf(*c.old) == e.Written {
		original = e.Original
	} else {
		if c.original, err = withoutOurs(c.old, e, *t.edit); err != nil {
			return nil, current, fmt.Errorf("%s: %w", tree.Path(t.path), err)
		}
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

// withoutOurs returns the file that an uninstall restores, for a file that we never changed or that
// others have changed since.
func withoutOurs(old *hostfs.File, e *entry, next edit) (*hostfs.File, error) {
	if old == nil {
		return nil, nil
	}
	edits, original, err := []edit{next}, *old, error(nil)
	if e != nil && e.Edit != nil {
		edits = append(edits, *e.Edit)
	}
	for _, edit := range edits {
		if original.Content, err = edit.remove(original.Content); err != nil {
			return nil, err
		}
	}
	return &original, nil
}

// start returns the result of settled for an apply. If an uninstall was interrupted, it removes all
// files that the kubelet reads.
func (s *state) start(name string) (*hostfs.File, *entry, error) {
	if s.Pending != nil && s.Pending.Uninstall && s.Entries[name].Restart {
		c, err := s.undo(name)
		return c.next, nil, err
	}
	return s.settled(name)
}

// undo returns the change that removes our part of a file.
func (s *state) undo(name string) (Change, error) {
	current, e, err := s.settled(name)
	c := Change{Path: name, Action: "remove", Restart: s.Entries[name].Restart, old: current}
	switch {
	case err != nil:
		return Change{}, err
	case e == nil: // it was never ours
		c.next = current
	case current == nil: // it was never written, or others have removed it
	case e.Edit != nil && versionOf(*current) != e.Written:
		next, err := withoutOurs(current, nil, *e.Edit)
		if err != nil {
			return Change{}, fmt.Errorf("%s: %w", s.tree.Path(name), err)
		}
		if len(next.Content) > 0 || e.Original != nil {
			c.Action, c.next = "edit", next
		}
	case e.Original != nil:
		next, err := restored(s.tree, *e.Original)
		if err != nil {
			return Change{}, err
		}
		c.Action, c.next = "restore", &next
	}
	return c, nil
}

// isWhole reports whether the whole file is ours, and not a file of others with our part in it.
func (s *state) isWhole(name string) bool {
	e, isOurs := s.Entries[name]
	return isOurs && e.Edit == nil
}

// isNone reports whether the file already has the desired state.
func (c Change) isNone() bool {
	return c.next == nil && c.old == nil || c.next != nil && c.old != nil && c.next.Equal(*c.old)
}
