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

// flagsOfUnit returns the provider flags that the unit gives the kubelet before our variable. The
// file that has the variable replaces the Environment= and the earlier files of the unit
// (systemd.exec(5)). So it is an error if these assign the variable, and others do not in the file:
// the kubelet would lose these flags. It is also an error if something counts more than the file.
func (s flagSource) flagsOfUnit(tree *hostfs.Tree, unit, file string, isAssigned bool) (v flagValues, err error) {
	if s.form != formEnvironment {
		return v, nil
	}
	lines, err := unitLines(tree, unit)
	if err != nil {
		return v, err
	}
	environment, places := map[string]string{}, map[string]string{}
	var files, start []string
	for _, line := range lines {
		switch line.key {
		case "Environment":
			if line.value == "" {
				clear(environment)
			}
			for _, word := range unitWords(line.value) {
				name, value, _ := strings.Cut(word, "=")
				environment[name], places[name] = value, line.file
			}
		case "EnvironmentFile":
			if line.value == "" {
				files = nil
			} else {
				files = append(files, strings.TrimPrefix(line.value, "-"))
			}
		case "ExecStart":
			start = unitWords(line.value)
		}
	}
	place := ""
	if environment[s.variable] != "" && !isAssigned {
		place = places[s.variable]
	}
	isBehind := false
	for _, other := range files {
		if isBehind = isBehind || other == file; other == file || !path.IsAbs(other) || strings.ContainsAny(other, "*?[%") {
			continue
		}
		content, err := readIfThere(tree, other)
		if err != nil {
			return v, err
		}
		if a, found, err := (edit{Variable: s.variable}).assignment(content); err == nil && found && (isBehind || a.end > a.start && !isAssigned) {
			place = other
		}
	}
	if place != "" {
		return v, fmt.Errorf("%w: %s assigns %s, and one of it and %s would replace the other; move its flags to %s", ErrProfile, tree.Path(place), s.variable, tree.Path(file), tree.Path(file))
	}
	return s.flagsOfCommand(tree, unit, start, environment)
}

// flagsOfCommand returns the provider flags in a command, with its variables, before our variable.
func (s flagSource) flagsOfCommand(tree *hostfs.Tree, unit string, start []string, environment map[string]string) (v flagValues, err error) {
	var before, behind []string
	isBehind := false
	for _, word := range start {
		words := []string{word}
		if name, isVariable := strings.CutPrefix(word, "$"); isVariable {
			if name = strings.Trim(name, "{}"); name == s.variable {
				isBehind = true
				continue
			}
			words = unitWords(environment[name])
		}
		if isBehind {
			behind = append(behind, words...)
		} else {
			before = append(before, words...)
		}
	}
	v.take(before)
	var later flagValues
	if later.take(behind); later != (flagValues{}) {
		return v, fmt.Errorf("%w: ExecStart of %s has %s or %s behind $%s, where it counts more; move it before", ErrProfile, unit, configFlag, pluginsFlag, s.variable)
	}
	return v, nil
}
