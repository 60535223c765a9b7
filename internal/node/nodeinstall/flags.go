package nodeinstall

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/node/hostfs"
	"github.com/pullpass/pullpass/internal/node/kubelet"
)

const (
	configFlag  = "--image-credential-provider-config"
	pluginsFlag = "--image-credential-provider-bin-dir"
)

// errForm means that a file cannot be changed without a guess.
var errForm = errors.New("is written in a way that is not changed here")

// The forms in which platforms store the kubelet's flags.
const (
	formEnvironment = "environment" // a variable of an EnvironmentFile of systemd
	formArguments   = "arguments"   // one flag a line
	formRancher     = "rancher"     // kubelet-arg of k3s and RKE2, which read a directory of files
	formProviders   = "providers"   // no flags: a CredentialProviderConfig
)

// rancherFlagFile has our flags, and is read after the files of others.
const rancherFlagFile = "99-pullpass.yaml"

// flagSource is a source of the kubelet's flags.
type flagSource struct {
	form        string
	variable    string       // of an environment
	files       []string     // if there are several, the unit determines which one
	mayBeAbsent bool         // it is created if it is missing
	before      []flagSource // sources of earlier flags, which these override
}

// flagValues are the effective values of the kubelet's flags. The last one wins.
type flagValues struct{ config, plugins string }

func (v *flagValues) take(flags []string) {
	for i := range flags {
		name, value, found := strings.Cut(flags[i], "=")
		if !found && i+1 < len(flags) {
			value = flags[i+1]
		}
		switch strings.ReplaceAll(name, "_", "-") { // as the kubelet (WordSepNormalizeFunc of k8s.io/component-base)
		case configFlag:
			v.config = value
		case pluginsFlag:
			v.plugins = value
		}
	}
}

// override takes the values of later flags.
func (v *flagValues) override(later flagValues) {
	v.config, v.plugins = cmp.Or(later.config, v.config), cmp.Or(later.plugins, v.plugins)
}

// flagsOfOthers returns the values that the kubelet would have without our flags. ofUnit is the
// values of flagsOfUnit.
func (s flagSource) flagsOfOthers(tree *hostfs.Tree, file string, ours []string, ofUnit flagValues) (v flagValues, err error) {
	for _, earlier := range s.before {
		if v, err = earlier.flagsOfOthers(tree, earlier.files[0], nil, flagValues{}); err != nil {
			return v, err
		}
	}
	if v.override(ofUnit); s.form == formRancher {
		v, _, err = rancherFlags(tree, file, ofUnit)
		return v, err
	}
	content, err := readIfThere(tree, file)
	if err != nil {
		return v, err
	}
	if content == nil && !s.mayBeAbsent {
		return v, fmt.Errorf("%w: %s is not there, which has the kubelet's flags; give the --profile that fits", ErrProfile, tree.Path(file))
	}
	flags, err := edit{Form: s.form, Variable: s.variable}.flags(content)
	if err != nil {
		return v, fmt.Errorf("%s: %w", tree.Path(file), err)
	}
	v.take(slices.DeleteFunc(flags, func(flag string) bool { return slices.Contains(ours, flag) }))
	return v, nil
}

// rancherFlags reads the files of k3s or RKE2, except ours, in their order. A kubelet-arg replaces
// those of earlier files, and kubelet-arg+ adds to them. They override the flags of k3s and RKE2
// themselves, which are in files and in the command. The arguments are all flags of the kubelet.
func rancherFlags(tree *hostfs.Tree, ours string, ofCommand flagValues) (v flagValues, arguments []string, err error) {
	dir := path.Dir(ours)
	names, err := tree.Names(dir)
	if err != nil {
		return v, nil, err
	}
	files := []string{strings.TrimSuffix(dir, ".d")}
	for _, base := range names {
		ending := strings.ToLower(path.Ext(base))
		if name := path.Join(dir, base); (ending == ".yaml" || ending == ".yml") && name != ours {
			files = append(files, name)
		}
	}
	for _, file := range files {
		content, err := readIfThere(tree, file)
		if err != nil {
			return v, nil, err
		}
		root, _, err := strictyaml.Parse(content, maxFileBytes)
		if errors.Is(err, strictyaml.ErrEmpty) {
			continue
		}
		if err != nil {
			return v, nil, fmt.Errorf("%s: is not YAML: %w; correct it", tree.Path(file), err)
		}
		if root.Kind != yaml.MappingNode {
			return v, nil, fmt.Errorf("%s: is not a YAML mapping; correct it", tree.Path(file))
		}
		if err := isRancherFile(root, rancherName(ours), tree.Path(file)); err != nil {
			return v, nil, err
		}
		var flags []string
		for _, flag := range []string{configFlag, pluginsFlag} {
			for _, ending := range []string{"", "+"} {
				if n := strictyaml.Field(root, flag[2:]+ending); n != nil {
					flags = append(flags, flag+"="+n.Value)
				}
			}
		}
		v.take(flags)
		for _, key := range []string{"kubelet-arg", "kubelet-arg+"} {
			n := strictyaml.Field(root, key)
			if n == nil {
				continue
			}
			if key == "kubelet-arg" {
				if file > ours {
					return v, nil, fmt.Errorf("%w: kubelet-arg in %s replaces that of %s, which is read before; write kubelet-arg+", ErrProfile, tree.Path(file), tree.Path(ours))
				}
				arguments = nil
			}
			for _, argument := range append(slices.Clone(n.Content), n) {
				value := strictyaml.Resolve(argument).Value // a list has none
				if err := isRancherRuntime(tree, rancherName(ours), value, tree.Path(file)); err != nil {
					return v, nil, err
				}
				switch name, _, _ := strings.Cut(value, "="); {
				case !hasProviderFlag(name):
				case file > ours:
					return v, nil, fmt.Errorf("%w: %s in %s has %s, which counts more than that of %s, which is read before; move it to an earlier file", ErrProfile, key, tree.Path(file), term.QuoteValue(name), tree.Path(ours))
				case strings.HasSuffix(name, "+"), strings.HasSuffix(name, "-"):
					return v, nil, fmt.Errorf("%w: %s in %s has %s=, which adds to other values or removes them; write the flag without the last character", ErrProfile, key, tree.Path(file), term.QuoteValue(name))
				case strings.Contains(name, "_"): // k3s and RKE2 sort flags, and an underscore is behind a hyphen
					return v, nil, fmt.Errorf("%w: %s in %s has %s, which counts more than the flag with hyphens; write it with hyphens", ErrProfile, key, tree.Path(file), term.QuoteValue(name))
				}
				arguments = append(arguments, rancherArgument(value))
			}
		}
	}
	v.override(ofCommand)
	v.take(arguments)
	return v, arguments, nil
}

// rancherName is k3s or rke2, by the path of our file.
func rancherName(ours string) string { return path.Base(path.Dir(path.Dir(ours))) }

// isRancherFile returns an error if a file of k3s or RKE2 has settings under names that are not seen here, or moves containerd.
func isRancherFile(root *yaml.Node, name, file string) error {
	seen := map[string]bool{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key := root.Content[i].Value
		if key == "<<" {
			return fmt.Errorf("%w: %s has a merge key (<<); write the settings themselves", ErrProfile, file)
		}
		if seen[key] {
			return fmt.Errorf("%w: %s has %s twice; remove one", ErrProfile, file, term.QuoteValue(key))
		}
		seen[key] = true
		value := strictyaml.Resolve(root.Content[i+1])
		for _, one := range append(slices.Clone(value.Content), value) { // an item of a list counts as the setting
			if err := isOwnContainerd(name, strings.TrimSuffix(key, "+"), strictyaml.Resolve(one).Value, file); err != nil {
				return err
			}
		}
	}
	return nil
}

// isOwnContainerd returns an error if a setting has k3s or RKE2 use another containerd than theirs, or look for its configuration
// elsewhere: our hosts.toml would be where nothing reads it, and containerd would send tokens to the registry itself.
func isOwnContainerd(name, setting, value, place string) error {
	dir := "/var/lib/rancher/" + name
	switch setting {
	case "data-dir", "d":
		if value != "" && path.Clean(value) != dir {
			return fmt.Errorf("%w: data-dir in %s is %s, and containerd's configuration is looked for below %s; make %s a link to it or a mount of it, and leave data-dir out",
				ErrProfile, place, term.QuoteValue(value), dir, dir)
		}
	case "container-runtime-endpoint", "image-service-endpoint", "docker":
		if value != "" && value != "false" {
			return fmt.Errorf("%w: %s in %s has the kubelet use another container runtime than that of %s; leave it out, or write the node's files yourself (docs/how-to/kubelet.md)",
				ErrProfile, setting, place, name)
		}
	}
	return nil
}

// isRancherRuntime does the same with an argument of the kubelet.
func isRancherRuntime(tree *hostfs.Tree, name, argument, place string) error {
	flag, value, _ := strings.Cut(rancherArgument(argument), "=")
	switch flag = strings.TrimRight(strings.ReplaceAll(flag, "_", "-"), "+"); {
	case slices.Contains(endpointFlags, flag):
		return isOwnContainerd(name, "container-runtime-endpoint", value, place)
	case slices.Contains(settingsFlags, flag):
		return settingsAskContainerd(tree, flag, value)
	}
	return nil
}

// rancherArgument returns the flag of a kubelet-arg, which can begin with -- itself.
func rancherArgument(s string) string { return "--" + strings.TrimPrefix(s, "--") }

// rancherFile returns our own file with flags. The + adds them to those of others.
func rancherFile(flags []string) []byte {
	var b bytes.Buffer
	b.WriteString("# Written by pullpass node-install, which also removes it.\nkubelet-arg+:\n")
	for _, flag := range flags {
		fmt.Fprintf(&b, "- %q\n", strings.TrimPrefix(flag, "--"))
	}
	return b.Bytes()
}

// edit describes our part of a file of others. Its exported fields are sufficient to remove the
// part.
type edit struct {
	Form     string   `json:"form"`
	Variable string   `json:"variable,omitempty"`
	Ours     []string `json:"ours"` // flags, or names of providers
	// Empty says that others wrote the assignment, with nothing between its quotes. Remove keeps it.
	Empty bool `json:"empty,omitempty"`

	providers *yaml.Node // formProviders: the list to add
}

// add returns the content with our part, and sets Empty. It returns the same slice if the part is
// already there.
func (e *edit) add(content []byte) ([]byte, error) {
	if e.Form == formProviders {
		return e.addProviders(content)
	}
	flags, err := e.flags(content)
	if err != nil {
		return nil, err
	}
	var without, all flagValues
	without.take(e.Ours)
	all.take(flags)
	once := !slices.ContainsFunc(e.Ours, func(flag string) bool {
		return len(slices.DeleteFunc(slices.Clone(flags), func(f string) bool { return f != flag })) != 1
	})
	if once && (without.config == "" || without.config == all.config) && (without.plugins == "" || without.plugins == all.plugins) {
		return content, nil
	}
	if content, err = e.remove(content); err != nil {
		return nil, err
	}
	if e.Form == formArguments {
		return slices.Concat(withNewline(content), []byte(strings.Join(e.Ours, "\n")+"\n")), nil
	}
	a, found, err := e.assignment(content)
	if err != nil {
		return nil, err
	}
	if !found {
		e.Empty = false
		return slices.Concat(withNewline(content), fmt.Appendf(nil, "%s=%q\n", e.Variable, strings.Join(e.Ours, " "))), nil
	}
	value, before := strings.Join(e.Ours, " "), string(content[a.Start:a.End])
	e.Empty = a.Quoted && before == ""
	if before != "" {
		value = before + " " + value
	}
	return slices.Concat(content[:a.Start], []byte(value), content[a.End:]), nil
}

// remove returns the content without our part. It returns the same slice if the part is missing.
func (e edit) remove(content []byte) ([]byte, error) {
	switch e.Form {
	case formProviders:
		return e.removeProviders(content)
	case formArguments:
		return e.removeLines(content), nil
	}
	a, found, err := e.assignment(content)
	if !found {
		return content, err
	}
	value := string(content[a.Start:a.End])
	for _, flag := range e.Ours {
		value = removeWord(value, flag)
	}
	if value == string(content[a.Start:a.End]) {
		return content, nil
	}
	if value == "" && a.Quoted && !e.Empty { // the line is as add writes it
		return slices.Concat(content[:a.Line], content[a.Next:]), nil
	}
	return slices.Concat(content[:a.Start], []byte(value), content[a.End:]), nil
}

// withoutStale removes our former parts that are no longer needed.
func (e edit) withoutStale(content []byte, was *edit) ([]byte, error) {
	stale := *was
	stale.Ours = slices.DeleteFunc(slices.Clone(was.Ours), func(own string) bool { return slices.Contains(e.Ours, own) })
	return stale.remove(content)
}

func (e edit) removeLines(content []byte) []byte {
	var kept []byte
	for line := range bytes.Lines(content) {
		if !slices.Contains(e.Ours, string(bytes.TrimSpace(line))) {
			kept = append(kept, line...)
		}
	}
	if len(kept) == len(content) {
		return content
	}
	return kept
}

// removeWord removes a word with one blank before or after it.
func removeWord(s, word string) string {
	for at := 0; ; {
		i := strings.Index(s[at:], word)
		if i < 0 {
			return s
		}
		start, end := at+i, at+i+len(word)
		switch {
		case start > 0 && !isBlank(s[start-1]) || end < len(s) && !isBlank(s[end]):
			at = end
			continue
		case start > 0:
			start--
		case end < len(s):
			end++
		}
		s, at = s[:start]+s[end:], start
	}
}

// flags returns all flags in the file.
func (e edit) flags(content []byte) (flags []string, err error) {
	if e.Form == formArguments {
		for line := range strings.Lines(string(content)) {
			if line = strings.TrimSpace(line); !strings.HasPrefix(line, "#") {
				flags = append(flags, words(line)...)
			}
		}
		return flags, nil
	}
	a, found, err := e.assignment(content)
	if !found {
		return nil, err
	}
	value := string(content[a.Start:a.End])
	if strings.Contains(value, `\`) || strings.Count(value, `"`)%2 == 1 || strings.Count(value, `'`)%2 == 1 {
		return nil, fmt.Errorf("%w: %s has a quote that is not closed, or \\; write it without", errForm, e.Variable)
	}
	return unitWords(value), nil
}

func words(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r < 0x80 && isBlank(byte(r)) })
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

// assignment finds the assignment that counts. With an error, it finds none.
func (e edit) assignment(content []byte) (a kubelet.Assignment, found bool, err error) {
	if a, found, err = kubelet.LastAssignment(content, e.Variable); err != nil {
		err = fmt.Errorf("%w: %w", errForm, err)
	}
	return a, found, err
}

func withNewline(content []byte) []byte {
	if len(content) > 0 && content[len(content)-1] != '\n' {
		return append(slices.Clone(content), '\n')
	}
	return content
}
