package nodeinstall

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/node/hostfs"
)

// unitDirs are the directories of systemd's units. A file in an earlier one replaces the files of
// the same name in later ones (systemd.unit(5)).
var unitDirs = []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}

// unitLine is a setting of a unit or of its drop-ins.
type unitLine struct{ file, key, value string }

// unitLines returns the settings in the order in which systemd reads them.
func unitLines(tree *hostfs.Tree, unit string) (lines []unitLine, err error) {
	files := map[string]string{} // by base name
	var bases []string
	main := ""
	for _, dir := range unitDirs {
		if is, err := tree.Exists(path.Join(dir, unit)); err != nil {
			return nil, err
		} else if is && main == "" {
			main = path.Join(dir, unit)
		}
		names, err := tree.Names(path.Join(dir, unit+".d"))
		if err != nil {
			return nil, err
		}
		for _, base := range names {
			if path.Ext(base) == ".conf" && files[base] == "" {
				files[base] = path.Join(dir, unit+".d", base)
				bases = append(bases, base)
			}
		}
	}
	slices.Sort(bases)
	all := []string{}
	if main != "" {
		all = append(all, main)
	}
	for _, base := range bases {
		all = append(all, files[base])
	}
	for _, name := range all {
		target, err := tree.Follow(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if target == "/dev/null" {
			continue // masked
		}
		content, err := readIfThere(tree, name)
		if err != nil {
			return nil, err
		}
		for line := range strings.SplitSeq(joined(string(content)), "\n") {
			key, value, found := strings.Cut(strings.TrimSpace(line), "=")
			if found && !strings.ContainsAny(key[:min(1, len(key))], "#;") {
				lines = append(lines, unitLine{name, strings.TrimSpace(key), strings.TrimSpace(value)})
			}
		}
	}
	return lines, nil
}

// joined returns the text with each continued line as one.
func joined(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\\\n", " ")
}

// unitWords splits a value at blanks, and removes quotes, as systemd does (systemd.syntax(7)).
func unitWords(s string) (all []string) {
	var word strings.Builder
	quote, inside := byte(0), false
	for i := range len(s) {
		switch c := s[i]; {
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote, inside = c, true
		case quote == 0 && isBlank(c):
			if inside {
				all = append(all, word.String())
			}
			word.Reset()
			inside = false
		default:
			word.WriteByte(c)
			inside = true
		}
	}
	if inside {
		all = append(all, word.String())
	}
	return all
}

// isAssigned reports whether others assign our variable in the file that we may change.
func (s flagSource) isAssigned(tree *hostfs.Tree, file string, ours []string, e entry) (bool, error) {
	if s.form != formEnvironment {
		return false, nil
	}
	content, err := readIfThere(tree, file)
	if err != nil {
		return false, err
	}
	own := edit{Form: s.form, Variable: s.variable}
	_, found, err := own.assignment(content)
	if err != nil || !found {
		return false, err
	}
	flags, err := own.flags(content)
	flags = slices.DeleteFunc(flags, func(flag string) bool { return slices.Contains(ours, flag) })
	return len(flags) > 0 || e.Edit == nil || e.Edit.Empty, err
}

// command is how a unit starts its program.
type command struct {
	tree                *hostfs.Tree
	unit                string
	environment, places map[string]string // of Environment=, and the file of each variable
	files               []string          // of EnvironmentFile=
	start               []string          // the words of ExecStart=
}

func commandOf(tree *hostfs.Tree, unit string) (command, error) {
	c := command{tree: tree, unit: unit, environment: map[string]string{}, places: map[string]string{}}
	lines, err := unitLines(tree, unit)
	for _, line := range lines {
		switch line.key {
		case "Environment":
			if line.value == "" {
				clear(c.environment)
			}
			for _, word := range unitWords(line.value) {
				name, value, _ := strings.Cut(word, "=")
				c.environment[name], c.places[name] = value, line.file
			}
		case "EnvironmentFile":
			if line.value == "" {
				c.files = nil
			} else {
				c.files = append(c.files, strings.TrimPrefix(line.value, "-"))
			}
		case "ExecStart":
			c.start = unitWords(line.value)
		}
	}
	return c, err
}

// isPattern reports whether an EnvironmentFile= does not name one file.
func isPattern(name string) bool { return !path.IsAbs(name) || strings.ContainsAny(name, "*?[%") }

// value returns the value of a variable. Files replace Environment=, and later files replace earlier
// ones (systemd.exec(5)).
func (c command) value(name string) (string, error) {
	for _, file := range slices.Backward(c.files) {
		if isPattern(file) {
			continue
		}
		content, err := readIfThere(c.tree, file)
		if err != nil {
			return "", err
		}
		a, found, err := edit{Variable: name}.assignment(content)
		if found {
			return string(content[a.start:a.end]), nil
		}
		// Most files that cannot be read have nothing to do with providers.
		if text := strings.ReplaceAll(string(content), "_", "-"); err != nil && (strings.Contains(text, configFlag) || strings.Contains(text, pluginsFlag)) {
			return "", fmt.Errorf("%s: %w", c.tree.Path(file), err)
		}
	}
	return c.environment[name], nil
}

// words returns the words of the command, with the values of variables. It returns those behind a
// variable, which it leaves out, apart.
func (c command) words(variable string) (before, behind []string, err error) {
	isBehind := false
	for _, word := range c.start {
		words := []string{word}
		if name, isVariable := strings.CutPrefix(word, "$"); isVariable {
			if name = strings.Trim(name, "{}"); name == variable {
				isBehind = true
				continue
			}
			value, err := c.value(name)
			if err != nil {
				return nil, nil, err
			}
			words = unitWords(value)
		}
		if isBehind {
			behind = append(behind, words...)
		} else {
			before = append(before, words...)
		}
	}
	return before, behind, nil
}

// flagsOfUnit returns the provider flags that the unit gives the kubelet before ours. It is an error
// if the unit has flags that count more than ours.
func (s flagSource) flagsOfUnit(tree *hostfs.Tree, unit, file string, isAssigned bool) (v flagValues, err error) {
	c, err := commandOf(tree, unit)
	switch {
	case err != nil:
		return v, err
	case s.form == formEnvironment:
		if err := s.isAlone(c, file, isAssigned); err != nil {
			return v, err
		}
		return s.flagsOfCommand(c)
	case s.form == formRancher:
		return c.flagsOfRancher(file)
	}
	return v, nil
}

// isAlone returns an error if the unit assigns our variable in another place. The file that has the
// variable replaces the Environment= and the earlier files of the unit (systemd.exec(5)). So the
// kubelet would lose the flags there, unless others assign the variable in the file already. A later
// file would replace ours.
func (s flagSource) isAlone(c command, file string, isAssigned bool) error {
	place := ""
	if c.environment[s.variable] != "" && !isAssigned {
		place = c.places[s.variable]
	}
	isBehind := false
	for _, other := range c.files {
		if isBehind = isBehind || other == file; other == file || isPattern(other) {
			continue
		}
		content, err := readIfThere(c.tree, other)
		if err != nil {
			return err
		}
		if a, found, err := (edit{Variable: s.variable}).assignment(content); err == nil && found && (isBehind || a.end > a.start && !isAssigned) {
			place = other
		}
	}
	if place != "" {
		return fmt.Errorf("%w: %s assigns %s, and one of it and %s would replace the other; move its flags to %s", ErrProfile, c.tree.Path(place), s.variable, c.tree.Path(file), c.tree.Path(file))
	}
	return nil
}

// flagsOfCommand returns the provider flags in a command before our variable.
func (s flagSource) flagsOfCommand(c command) (v flagValues, err error) {
	before, behind, err := c.words(s.variable)
	if err != nil {
		return v, err
	}
	v.take(before)
	var later flagValues
	if later.take(behind); later != (flagValues{}) {
		return v, fmt.Errorf("%w: ExecStart of %s has %s or %s behind $%s, where it counts more; move it before", ErrProfile, c.unit, configFlag, pluginsFlag, s.variable)
	}
	return v, nil
}

// flagsOfRancher returns the provider flags of k3s and RKE2 themselves in their command, as their
// installation scripts write it. A kubelet-arg there comes behind those of all files.
func (c command) flagsOfRancher(file string) (v flagValues, err error) {
	words, _, err := c.words("")
	if err != nil {
		return v, err
	}
	config := strings.TrimSuffix(path.Dir(file), ".d")
	other, err := c.value(strings.ToUpper(path.Base(path.Dir(config))) + "_CONFIG_FILE")
	if err != nil {
		return v, err
	}
	v.take(words)
	var arguments []string
	for i, word := range words {
		name, value, found := strings.Cut(word, "=")
		if !found && i+1 < len(words) {
			value = words[i+1]
		}
		switch name {
		case "--kubelet-arg":
			arguments = append(arguments, "--"+value)
		case "--config", "-c":
			other = value
		}
	}
	if other != "" && other != config {
		return v, fmt.Errorf("%w: %s reads %s in place of %s, and so not %s; move its settings to %s", ErrProfile, c.unit, c.tree.Path(other), c.tree.Path(config), c.tree.Path(file), c.tree.Path(config))
	}
	var later flagValues
	if later.take(arguments); later != (flagValues{}) {
		return v, fmt.Errorf("%w: ExecStart of %s has %s or %s as a --kubelet-arg, where it counts more than in files; move it to kubelet-arg in %s", ErrProfile, c.unit, configFlag, pluginsFlag, c.tree.Path(config))
	}
	return v, nil
}
