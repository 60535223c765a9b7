package nodeinstall

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/node/containerd"
	"github.com/pullpass/pullpass/internal/node/hostfs"
	"github.com/pullpass/pullpass/internal/node/hoststoml"
	"github.com/pullpass/pullpass/internal/node/kubelet"
)

// Remarks returns the faults on the node that its owner must correct. Apply does not write into the
// other configuration of the kubelet, or into that of containerd.
func (i *Installer) Remarks(d Desired) (remarks []string, err error) {
	p, err := findProfile(i.tree, i.profile)
	if err != nil {
		return nil, err
	}
	version, err := kubelet.ParseVersion(d.KubeletVersion)
	if err != nil {
		return nil, err
	}
	unit, err := p.unit(i.tree)
	if err != nil {
		return nil, err
	}
	settings, err := p.imageSettings(i.tree, unit)
	if err != nil {
		return nil, err
	}
	remarks = append(remarks, settings.unread...)
	for _, registry := range append(slices.Sorted(maps.Keys(d.Hosts)), d.Registry) {
		if pattern := settings.List(registry); pattern != "" {
			remarks = append(remarks, fmt.Sprintf("kubelet %s (%s): any pod of a node may use an image of %s that another pod's ServiceAccount pulled, because preloadedImagesVerificationAllowlist has %s; list only images that no pod pulls with its token",
				version, strings.Join(settings.places, " and "), registry, term.QuoteValue(pattern)))
			break
		}
	}
	if shared := max(version.Shared(settings.Images), version.Shared(settings.byFlags)); shared >= kubelet.AllShared {
		place := cmp.Or(strings.Join(settings.places, " and "), "its KubeletConfiguration")
		if shared == kubelet.AllShared && settings.isOffByFlag {
			place = fmt.Sprintf("--feature-gates with %s=false, in %s or a file that it reads, counts more than %s; remove it there", kubelet.VerifyGate, unit, place)
		}
		remarks = append(remarks, fmt.Sprintf("kubelet %s (%s): %s", version, place, version.Consequence(shared)))
	}
	if !version.HasCacheType() {
		remarks = append(remarks, fmt.Sprintf("kubelet %s: it cannot read cacheType, and kubelets of 1.34 and later do not start without it; run pullpass node-install uninstall before this kubelet is upgraded, and apply after that", version))
	}
	if len(d.Hosts) > 0 {
		c, err := p.containerdSettings(i.tree)
		if err != nil {
			return nil, err
		}
		if c.IsUnread() {
			remarks = append(remarks, listProblem(c))
		}
		problem, err := p.restartProblem(i.tree)
		if err != nil {
			return nil, err
		}
		if problem != "" {
			remarks = append(remarks, problem)
		}
	}
	if d.LintHosts != nil {
		remarks = append(remarks, p.hostsOfOthers(i.tree, d)...)
	}
	return remarks, nil
}

// hostsOfOthers returns what is wrong with the hosts.toml of others that containerd reads for the registry.
// A registry that containerd asks itself needs no such file, so nothing else would show where a mirror in it
// sends the pods' tokens.
func (p profile) hostsOfOthers(tree *hostfs.Tree, d Desired) (remarks []string) {
	name, content, err := p.hostsFile(tree, d)
	switch {
	case err == nil && content == nil:
		return nil
	case err != nil:
		return []string{fmt.Sprintf("%v; so it is not known to whom containerd offers the pods' tokens for %s, correct this", err, d.Registry)}
	}
	for _, finding := range d.LintHosts(tree.Path(name), content) {
		remark := fmt.Sprintf("for %s, containerd reads %v", d.Registry, finding)
		if path.Base(path.Dir(name)) == hoststoml.AnyRegistry {
			remark += fmt.Sprintf("; if other registries need the file as it is, write %s for this one (pullpass kubelet-config --part hosts)", tree.Path(path.Join(path.Dir(path.Dir(name)), d.Registry, hostsName)))
		}
		remarks = append(remarks, remark)
	}
	return remarks
}

// hostsFile returns the file that containerd reads for the registry after apply, unless it is ours or there
// is none. containerd takes the first directory that exists, also without the file.
func (p profile) hostsFile(tree *hostfs.Tree, d Desired) (name string, content []byte, err error) {
	c, err := p.containerdSettings(tree)
	if err != nil {
		return "", nil, err
	}
	for i, root := range c.Dirs() {
		root = snapPaths.Replace(root)
		for _, base := range append(hoststoml.Directories(d.Registry), hoststoml.AnyRegistry) {
			if i == 0 && base == d.Registry && d.Hosts[d.Registry] != nil {
				return "", nil, nil
			}
			dir := path.Join(root, base)
			if _, err := tree.Mode(dir); errors.Is(err, fs.ErrNotExist) {
				continue
			}
			name = path.Join(dir, hostsName)
			content, err = readIfThere(tree, name)
			return name, content, err
		}
	}
	return "", nil, nil
}

const hostsName = "hosts.toml"

// imageSettings are the kubelet's settings for images that are already on the node.
type imageSettings struct {
	kubelet.Images
	places      []string // of its KubeletConfiguration
	isOffByFlag bool     // a flag has Gate
	unread      []string // what is wrong with files that the kubelet perhaps reads
	// byFlags are those of flags alone, which count if no flag names a file: the kubelet has no default
	// for it. As Images, if one does, or if the program has its own default.
	byFlags kubelet.Images
}

// imageSettings returns the settings in the order in which the kubelet reads them: its file, the files
// that are merged into it, and its flags. Without flags for the files, the profile's count.
func (p profile) imageSettings(tree *hostfs.Tree, unit string) (s imageSettings, err error) {
	flags, err := p.kubeletFlags(tree, unit)
	if err != nil {
		return s, err
	}
	var gate *bool
	var files, dirs []string
	isNamed := p.flags.form == formRancher
	for _, name := range p.settings {
		if path.Ext(name) == ".d" {
			dirs = append(dirs, name)
		} else {
			files = append(files, name)
		}
	}
	for name, value := range named(flags) {
		var place []string
		switch {
		case path.IsAbs(value):
			place = []string{value}
		case value != "" && slices.Contains(settingsFlags, name):
			s.unread = append(s.unread, fmt.Sprintf("%s of the kubelet is not an absolute path (%s), so it is not known whether it verifies images; write one", name, term.QuoteValue(value)))
		}
		switch name {
		case settingsFlags[0]:
			files, isNamed = place, true
		case settingsFlags[1]:
			dirs = place
		case gatesFlag:
			if on := kubelet.GateOf(value, kubelet.VerifyGate); on != nil {
				gate = on
			}
		}
	}
	s.places = slices.Concat(files, dirs)
	for _, dir := range dirs {
		in, err := dropIns(tree, dir)
		if err != nil {
			return s, err
		}
		files = append(files, in...)
	}
	for _, file := range files {
		content, err := readIfThere(tree, file)
		if err != nil {
			return s, err
		}
		if err := s.take(content); err != nil {
			s.unread = append(s.unread, fmt.Sprintf("%s: %v, so it is not known whether the kubelet verifies images; correct it", tree.Path(file), err))
		}
	}
	if gate != nil {
		s.Gate, s.isOffByFlag = gate, !*gate
	}
	if s.byFlags = s.Images; !isNamed {
		s.byFlags = kubelet.Images{Gate: gate}
	}
	return s, nil
}

// take takes the settings of a KubeletConfiguration, as the kubelet merges them: null removes one (RFC 7396).
// The kubelet reads some files that are not read here, the first of several documents for example.
func (s *imageSettings) take(content []byte) error {
	root, _, err := strictyaml.Parse(content, maxFileBytes)
	switch {
	case errors.Is(err, strictyaml.ErrEmpty):
		return nil
	case err != nil:
		return err
	}
	value, _ := strictyaml.Value(root)
	settings, _ := value.(map[string]any)
	if value, ok := settings["featureGates"]; ok {
		gates, _ := value.(map[string]any)
		if on, ok := gates[kubelet.VerifyGate]; ok || gates == nil {
			s.Gate = nil
			if is, ok := on.(bool); ok {
				s.Gate = &is
			}
		}
	}
	if value, ok := settings["imagePullCredentialsVerificationPolicy"]; ok {
		s.Policy, _ = value.(string)
	}
	if value, ok := settings["preloadedImagesVerificationAllowlist"]; ok {
		s.Listed = nil
		patterns, _ := value.([]any)
		for _, pattern := range patterns {
			s.Listed = append(s.Listed, fmt.Sprint(pattern))
		}
	}
	return nil
}

// The kubelet's flags for the programs that pull images, the same in its KubeletConfiguration, and the
// flags for the places of that.
var (
	endpointFlags    = []string{"--container-runtime-endpoint", "--image-service-endpoint"}
	endpointSettings = []string{"containerRuntimeEndpoint", "imageServiceEndpoint"}
	settingsFlags    = []string{"--config", "--config-dir"}
)

const gatesFlag = "--feature-gates"

// asksContainerd returns an error if the kubelet gives credentials for images to another program than
// containerd, SOCI's for example. It reads no hosts.toml, and would send tokens to the registry itself.
func (p profile) asksContainerd(tree *hostfs.Tree, unit, flagFile string) error {
	for _, name := range p.settings {
		if err := settingsAskContainerd(tree, settingsFlags[0], name); err != nil {
			return err
		}
	}
	flags, err := p.kubeletWords(tree, unit, flagFile)
	if err != nil {
		return err
	}
	for name, value := range named(flags) {
		switch {
		case slices.Contains(endpointFlags, name):
			if problem := containerd.EndpointProblem(value); problem != "" {
				return fmt.Errorf("%w: %s of the kubelet %s", ErrProfile, name, problem)
			}
		case slices.Contains(settingsFlags, name):
			if err := settingsAskContainerd(tree, name, value); err != nil {
				return err
			}
		}
	}
	return nil
}

// named returns flags, with hyphens, and their values. k3s and RKE2 add a value with a + behind the name.
func named(flags []string) iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		for i, flag := range flags {
			name, value, found := strings.Cut(flag, "=")
			if !found && i+1 < len(flags) {
				value = flags[i+1]
			}
			if !yield(strings.TrimRight(strings.ReplaceAll(name, "_", "-"), "+"), value) {
				return
			}
		}
	}
}

// kubeletFlags returns the words that can be flags of the kubelet, in its order.
func (p profile) kubeletFlags(tree *hostfs.Tree, unit string) ([]string, error) {
	flagFile, err := p.flagFile(tree)
	if err != nil {
		return nil, err
	}
	if p.flags.form != formRancher {
		return p.kubeletWords(tree, unit, flagFile)
	}
	c, err := commandOf(tree, unit)
	if err != nil {
		return nil, err
	}
	v, ofCommand, err := c.flagsOfRancher(flagFile)
	if err != nil {
		return nil, err
	}
	_, ofFiles, err := rancherFlags(tree, flagFile, v)
	return append(ofFiles, ofCommand...), err
}

// kubeletWords returns the words that can be flags of the kubelet, in its file, in the unit, and in what
// a shell runs. Those of k3s and RKE2 were looked at before (isRancherRuntime).
func (p profile) kubeletWords(tree *hostfs.Tree, unit, flagFile string) (all []string, err error) {
	switch p.flags.form {
	case formRancher:
		return nil, nil
	case formArguments:
		content, err := readIfThere(tree, flagFile)
		if err != nil {
			return nil, err
		}
		return edit{Form: formArguments}.flags([]byte(snapPaths.Replace(string(content))))
	}
	c, err := commandOf(tree, unit)
	if err != nil {
		return nil, err
	}
	if all, _, err = c.words(""); err != nil {
		return nil, err
	}
	texts, err := c.texts("")
	if err != nil {
		return nil, err
	}
	for _, word := range c.start {
		all = append(all, wordsOfScript(texts[word])...)
	}
	if c.program() == "kubelet" {
		return all, nil
	}
	for _, source := range append(slices.Clone(p.flags.before), p.flags) { // a script may read the files itself
		file := source.files[0]
		if source.variable == p.flags.variable {
			file = flagFile
		}
		content, err := readIfThere(tree, file)
		if err != nil {
			return nil, err
		}
		flags, err := edit{Form: source.form, Variable: source.variable}.flags(content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", tree.Path(file), err)
		}
		all = append(all, flags...)
	}
	return all, nil
}

// wordsOfScript returns the endpoints and feature gates in a text, wherever they are in it, as flags, and
// the files of settings that it names.
func wordsOfScript(text string) (flags []string) {
	names := strings.ReplaceAll(text, "_", "-")
	isEnd := func(r rune) bool { return strings.ContainsRune(" \t\n\r\\\"';()}|&", r) }
	for _, flag := range slices.Concat(endpointFlags, settingsFlags, []string{gatesFlag}) {
		isPath := slices.Contains(settingsFlags, flag)
		for at := 0; ; {
			i := strings.Index(names[at:], flag)
			if i < 0 {
				break
			}
			at += i + len(flag)
			after := text[at:]
			value := strings.TrimLeftFunc(after, func(r rune) bool { return isEnd(r) || r == '=' })
			if value == after { // a longer name
				continue
			}
			if end := strings.IndexFunc(value, isEnd); end >= 0 {
				value = value[:end]
			}
			if !isPath || path.IsAbs(value) {
				flags = append(flags, flag+"="+value)
			}
		}
	}
	return flags
}

// snapPaths replaces the variables that MicroK8s has in its files.
var snapPaths = strings.NewReplacer("${SNAP_DATA}", "/var/snap/microk8s/current", "${SNAP_COMMON}", "/var/snap/microk8s/common")

// settingsAskContainerd does the same with a KubeletConfiguration, at the place that a flag names.
func settingsAskContainerd(tree *hostfs.Tree, flag, name string) error {
	if !path.IsAbs(name) {
		return fmt.Errorf("%w: %s of the kubelet is not an absolute path (%s), so its imageServiceEndpoint is not seen here; write one", ErrProfile, flag, term.QuoteValue(name))
	}
	mode, err := tree.Mode(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if mode.IsDir() {
		in, err := dropIns(tree, name)
		for _, inner := range in {
			if err == nil {
				err = settingsAskContainerd(tree, flag, inner)
			}
		}
		return err
	}
	content, err := readIfThere(tree, name)
	if err != nil {
		return err
	}
	root, _, err := strictyaml.Parse(content, maxFileBytes)
	if errors.Is(err, strictyaml.ErrEmpty) {
		return nil
	}
	if err != nil { // the kubelet reads some of these, the first of several documents for example
		return fmt.Errorf("%w: %s: %w, so its imageServiceEndpoint is not seen here", ErrProfile, tree.Path(name), err)
	}
	value, _ := strictyaml.Value(root)
	settings, _ := value.(map[string]any)
	for _, setting := range endpointSettings {
		value, _ := settings[setting].(string)
		if problem := containerd.EndpointProblem(value); problem != "" {
			return fmt.Errorf("%w: %s in %s %s", ErrProfile, setting, tree.Path(name), problem)
		}
	}
	return nil
}

// dropIns returns the files of a directory that the kubelet merges into its settings, in its order: *.conf,
// at any depth. It does not follow links to directories (path/filepath.WalkDir).
func dropIns(tree *hostfs.Tree, dir string) (files []string, err error) {
	isLink, err := isLink(tree, dir)
	if err != nil || isLink {
		return nil, err
	}
	names, err := tree.Names(dir)
	if err != nil {
		return nil, err
	}
	for _, base := range names {
		name := path.Join(dir, base)
		mode, err := tree.Mode(name)
		switch {
		case err != nil:
			return nil, err
		case mode.IsDir():
			inner, err := dropIns(tree, name)
			if err != nil {
				return nil, err
			}
			files = append(files, inner...)
		case path.Ext(base) == ".conf":
			files = append(files, name)
		}
	}
	return files, nil
}

// isLink reports whether a name is a link; of what does not exist, it is not.
func isLink(tree *hostfs.Tree, name string) (bool, error) {
	parent, err := tree.Follow(path.Dir(name))
	if err != nil {
		return false, missing(err)
	}
	real, err := tree.Follow(name)
	if err != nil {
		return false, missing(err)
	}
	return real != path.Join(parent, path.Base(name)), nil
}

// missing returns nil for the error of a file that does not exist.
func missing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// containerdSettings returns the settings of the node's containerd.
func (p profile) containerdSettings(tree *hostfs.Tree) (containerd.Settings, error) {
	main, err := p.containerdFile(tree)
	if err != nil {
		return containerd.Settings{}, err
	}
	s, err := containerd.Read(containerdFiles{tree}, main)
	if err != nil {
		return s, fmt.Errorf("%w: the configuration of containerd: %w", ErrProfile, err)
	}
	return s, nil
}

// containerdFile returns the file that containerd's unit names, or the platform's.
func (p profile) containerdFile(tree *hostfs.Tree) (string, error) {
	var words []string
	place, file := p.containerdUnit, p.containerd
	switch {
	case p.containerdArgs != "":
		content, err := readIfThere(tree, p.containerdArgs)
		if err != nil {
			return "", err
		}
		if words, err = (edit{Form: formArguments}).flags([]byte(snapPaths.Replace(string(content)))); err != nil {
			return "", err
		}
		place = tree.Path(p.containerdArgs)
	case p.containerdUnit != "":
		c, err := commandOf(tree, p.containerdUnit)
		if err != nil {
			return "", err
		}
		if err := c.isItself("containerd"); err != nil {
			return "", err
		}
		if words, _, err = c.words(""); err != nil {
			return "", err
		}
	}
	for i, word := range words { // the last one counts, and one hyphen is as good as two
		name, value, found := strings.Cut(word, "=")
		if !found && i+1 < len(words) {
			value = words[i+1]
		}
		if isFlag := strings.HasPrefix(name, "-"); !isFlag || !slices.Contains([]string{"config", "c"}, strings.TrimLeft(name, "-")) {
			continue
		}
		if !path.IsAbs(value) {
			return "", fmt.Errorf("%w: --config of %s is not an absolute path (%s); write one", ErrProfile, place, term.QuoteValue(value))
		}
		if file = value; p.containerdArgs != "" && value == strings.Replace(p.containerd, "-template.toml", ".toml", 1) {
			file = p.containerd // MicroK8s makes the one of the other at each start
		}
	}
	return file, nil
}

// containerdFiles implements containerd.Reader.
type containerdFiles struct{ tree *hostfs.Tree }

func (f containerdFiles) Read(name string) ([]byte, error) { return readIfThere(f.tree, name) }

func (f containerdFiles) Glob(pattern string) ([]string, error) {
	return glob(f.tree, pattern, func(part, base string) bool {
		is, _ := path.Match(part, base)
		return is
	})
}

// listProblem describes the effect of a list of directories, and where to change it.
func listProblem(c containerd.Settings) string {
	return fmt.Sprintf("config_path of containerd %s (in one of %s)", c.ListProblem(), strings.Join(c.Files, ", "))
}

// restartProblem describes a file of containerd's configuration that was changed after containerd had read
// it: containerd may have a different config_path than the file. Each start makes containerd's socket anew,
// after it has read the files, so that its time is of the same clock as theirs. Without a socket, containerd
// does not run, or its start cannot be known.
func (p profile) restartProblem(tree *hostfs.Tree) (string, error) {
	socket, err := tree.Follow(p.socket)
	if err != nil {
		return "", missing(err)
	}
	start, _, err := tree.Times(socket)
	if err != nil {
		return "", missing(err)
	}
	program := "containerd"
	if p.flags.form == formRancher {
		program = p.name // which starts containerd
	}
	var now syscall.Timeval // of the clock of the files; that of a test stands still
	if err := syscall.Gettimeofday(&now); err != nil {
		return "", err
	}
	if start.After(time.Unix(now.Unix())) {
		return fmt.Sprintf("%s is of %s, in the future: the clock was set back after containerd started, so it is not known whether containerd has read its configuration since its last change, or sends pods' tokens to the registries behind the gateway; restart %s",
			tree.Path(socket), start.UTC().Format(time.RFC3339), program), nil
	}
	c, err := p.containerdSettings(tree)
	if err != nil {
		return "", err
	}
	for _, name := range c.Files {
		last, err := lastChange(tree, name)
		if err != nil {
			return "", err
		}
		if last.After(start) {
			return fmt.Sprintf("%s was changed at %s, and containerd runs since %s: it may have the settings from before, read no hosts.toml, and send pods' tokens to the registries behind the gateway; restart %s",
				tree.Path(name), last.UTC().Format(time.RFC3339), start.UTC().Format(time.RFC3339), program), nil
		}
	}
	return "", nil
}

// lastChange returns when a file or a link to it was last changed; zero, if it does not exist. The time of a
// file's modification does not count: a file that was moved here may have an old one, and others a future one.
func lastChange(tree *hostfs.Tree, name string) (last time.Time, err error) {
	real, err := tree.Follow(name)
	if err != nil {
		return last, missing(err)
	}
	for _, file := range []string{name, real} {
		_, changed, err := tree.Times(file)
		if err != nil {
			return last, missing(err)
		}
		if changed.After(last) {
			last = changed
		}
	}
	return last, nil
}
