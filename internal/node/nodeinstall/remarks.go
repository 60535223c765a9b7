package nodeinstall

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/node/containerd"
	"github.com/pullpass/pullpass/internal/node/hostfs"
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
	images, err := p.images(i.tree)
	if err != nil {
		return nil, err
	}
	if shared := version.Shared(images); shared >= kubelet.AllShared {
		place := "its KubeletConfiguration"
		if len(p.settings) > 0 {
			place = strings.Join(p.settings, " and ")
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
	}
	return remarks, nil
}

// images returns the settings for images in the node's KubeletConfiguration. It ignores flags,
// which could override them.
func (p profile) images(tree *hostfs.Tree) (images kubelet.Images, err error) {
	contents, err := contentsOf(tree, p.settings)
	for _, content := range contents {
		root, _, parseErr := strictyaml.Parse(content, maxFileBytes)
		if parseErr != nil {
			continue // the kubelet would not run with it
		}
		value, _ := strictyaml.Value(root)
		settings, _ := value.(map[string]any)
		gates, _ := settings["featureGates"].(map[string]any)
		if on, ok := gates[kubelet.VerifyGate].(bool); ok {
			images.Gate = &on
		}
		if policy, ok := settings["imagePullCredentialsVerificationPolicy"].(string); ok {
			images.Policy = policy
		}
	}
	return images, err
}

// The kubelet's flags for the programs that pull images, the same in its KubeletConfiguration, and the
// flags for the places of that.
var (
	endpointFlags    = []string{"--container-runtime-endpoint", "--image-service-endpoint"}
	endpointSettings = []string{"containerRuntimeEndpoint", "imageServiceEndpoint"}
	settingsFlags    = []string{"--config", "--config-dir"}
)

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
	for i, flag := range flags {
		name, value, found := strings.Cut(flag, "=")
		if !found && i+1 < len(flags) {
			value = flags[i+1]
		}
		switch name = strings.ReplaceAll(name, "_", "-"); {
		case slices.Contains(endpointFlags, name) && !isContainerd(value):
			return notContainerd(name+" of the kubelet", value)
		case slices.Contains(settingsFlags, name):
			if err := settingsAskContainerd(tree, name, value); err != nil {
				return err
			}
		}
	}
	return nil
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
	for _, text := range texts {
		all = append(all, wordsOfScript(text)...)
	}
	return all, err
}

// wordsOfScript returns the endpoints in a text, wherever they are in it, as flags, and the files of
// settings that it names.
func wordsOfScript(text string) (flags []string) {
	names := strings.ReplaceAll(text, "_", "-")
	isEnd := func(r rune) bool { return strings.ContainsRune(" \t\n\r\\\"';()}|&", r) }
	for _, flag := range slices.Concat(endpointFlags, settingsFlags) {
		isEndpoint := slices.Contains(endpointFlags, flag)
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
			if isEndpoint || path.IsAbs(value) {
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
	if mode.IsDir() { // the kubelet reads *.conf, at any depth
		in, err := tree.Names(name)
		for _, base := range in {
			inner := path.Join(name, base)
			mode, modeErr := tree.Mode(inner)
			switch {
			case err != nil:
			case modeErr != nil:
				err = modeErr
			case mode.IsDir() || path.Ext(base) == ".conf":
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
		if value, ok := settings[setting].(string); ok && !isContainerd(value) {
			return notContainerd(setting+" in "+tree.Path(name), value)
		}
	}
	return nil
}

// isContainerd reports whether an endpoint is that of a platform's containerd.
func isContainerd(endpoint string) bool {
	return slices.Contains([]string{
		"", "/run/containerd/containerd.sock", "/var/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock", "/var/snap/microk8s/common/run/containerd.sock",
	}, strings.TrimPrefix(endpoint, "unix://"))
}

func notContainerd(setting, endpoint string) error {
	return fmt.Errorf("%w: %s is %s, which is not the platform's containerd: it reads no hosts.toml, and would send tokens to the registry itself; leave it out, or name images by the gateway's own name (docs/how-to/kubelet.md)",
		ErrProfile, setting, term.QuoteValue(endpoint))
}

// contentsOf returns the contents of files, and of the files in directories, whose names end with
// .d. A missing file is empty.
func contentsOf(tree *hostfs.Tree, names []string) (contents [][]byte, err error) {
	for _, name := range names {
		files := []string{name}
		if path.Ext(name) == ".d" {
			in, err := tree.Names(name)
			if err != nil {
				return nil, err
			}
			files = nil
			for _, base := range in {
				files = append(files, path.Join(name, base))
			}
		}
		for _, file := range files {
			content, err := readIfThere(tree, file)
			if err != nil {
				return nil, err
			}
			contents = append(contents, content)
		}
	}
	return contents, nil
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
