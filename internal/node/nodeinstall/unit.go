package nodeinstall

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/node/hostfs"
)

// unitDirs are the directories of systemd's units. A file in an earlier one replaces the files of
// the same name in later ones (systemd.unit(5)).
var unitDirs = []string{
	"/etc/systemd/system.control", "/run/systemd/system.control", "/run/systemd/transient", "/run/systemd/generator.early",
	"/etc/systemd/system", "/etc/systemd/system.attached", "/run/systemd/system", "/run/systemd/system.attached", "/run/systemd/generator",
	"/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system", "/run/systemd/generator.late",
}

// unitLine is a setting of a unit or of its drop-ins.
type unitLine struct{ file, key, value string }

// unitLines returns the settings in the order in which systemd reads them.
func unitLines(tree *hostfs.Tree, unit string) (lines []unitLine, err error) {
	all, err := unitFiles(tree, unit)
	if err != nil {
		return nil, err
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
		for _, line := range joined(string(content)) {
			if key, value, found := strings.Cut(line, "="); found {
				lines = append(lines, unitLine{name, strings.TrimSpace(key), strings.TrimSpace(value)})
			}
		}
	}
	return lines, nil
}

// unitFiles returns the file of a unit, and its drop-ins in their order.
func unitFiles(tree *hostfs.Tree, unit string) (all []string, err error) {
	names := []string{unit}
	for _, dir := range unitDirs {
		main := path.Join(dir, unit)
		is, err := tree.Exists(main)
		if err != nil {
			return nil, err
		}
		if !is {
			continue
		}
		// A link to another unit is an alias, and the drop-ins of both count.
		if target, _ := tree.Follow(main); path.Ext(target) == path.Ext(unit) {
			names = []string{path.Base(target), unit}
		}
		all = append(all, main)
		break
	}
	files := map[string]string{} // by base name; the first one counts
	for _, dir := range dropInDirs(names) {
		found, err := tree.Names(dir)
		if err != nil {
			return nil, err
		}
		for _, base := range found {
			if path.Ext(base) == ".conf" && files[base] == "" {
				files[base] = path.Join(dir, base)
			}
		}
	}
	for _, base := range slices.Sorted(maps.Keys(files)) {
		all = append(all, files[base])
	}
	return all, nil
}

// dropInDirs returns the directories of a unit's drop-ins, in the order in which systemd looks for a
// file. Below each directory of units, those of all units whose names begin likewise follow, and at
// the end those of all services.
func dropInDirs(names []string) (all []string) {
	for _, name := range names {
		likewise := []string{name}
		for i := len(name) - 1; i > 0; i-- {
			if name[i] == '-' {
				likewise = append(likewise, name[:i+1]+path.Ext(name))
			}
		}
		for _, dir := range unitDirs {
			for _, n := range likewise {
				all = append(all, path.Join(dir, n+".d"))
			}
		}
	}
	for _, dir := range unitDirs {
		all = append(all, path.Join(dir, strings.TrimPrefix(path.Ext(names[0]), ".")+".d"))
	}
	return all
}

// joined returns the lines without comments, and each continued line as one. A comment does not
// continue, and does not end a continued line (systemd.syntax(7)).
func joined(s string) (lines []string) {
	before := ""
	for line := range strings.SplitSeq(strings.ReplaceAll(s, "\r\n", "\n"), "\n") {
		line = strings.TrimLeft(line, " \t\r")
		if line != "" && strings.ContainsAny(line[:1], "#;") {
			continue
		}
		before += line
		if rest := strings.TrimRight(before, `\`); (len(before)-len(rest))%2 == 1 {
			before = before[:len(before)-1] + " "
			continue
		}
		lines = append(lines, before)
		before = ""
	}
	return append(lines, before)
}

// unitWords splits a value at blanks, and removes quotes and backslashes, as systemd does
// (systemd.syntax(7)). It does not decode numbers of characters: no path needs them.
func unitWords(s string) (all []string) {
	var word strings.Builder
	quote, inside := byte(0), false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && i+1 < len(s) && strings.IndexByte(`\"'`, s[i+1]) >= 0:
			i++
			word.WriteByte(s[i])
			inside = true
		case c == quote:
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
	content, err := readIfThere(tree, file)
	if err != nil {
		return false, err
	}
	own := edit{Form: s.form, Variable: s.variable}
	_, found, err := own.assignment(content)
	if !found {
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
	if err != nil {
		return c, err
	}
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
				files, err := environmentFiles(tree, unit, strings.TrimPrefix(line.value, "-"))
				if err != nil {
					return c, fmt.Errorf("%s: EnvironmentFile: %w", tree.Path(line.file), err)
				}
				c.files = append(c.files, files...)
			}
		case "ExecStart":
			c.start = unitWords(line.value)
		}
	}
	return c, nil
}

// environmentFiles returns the files that an EnvironmentFile= names, in the order in which systemd
// reads them. It can be a pattern, and have specifiers (systemd.unit(5)).
func environmentFiles(tree *hostfs.Tree, unit, name string) ([]string, error) {
	stem := strings.TrimSuffix(unit, path.Ext(unit))
	name = strings.NewReplacer("%%", "%", "%n", unit, "%N", stem, "%p", stem, "%E", "/etc", "%t", "/run", "%S", "/var/lib", "%", errSpecifier).Replace(name)
	if strings.Contains(name, errSpecifier) {
		return nil, fmt.Errorf("%w: it has a specifier that is not known here; write the name of the file", ErrProfile)
	}
	if !path.IsAbs(name) {
		return nil, nil // as systemd
	}
	return glob(tree, path.Clean(name), func(part, base string) bool {
		is, _ := path.Match(part, base) // an invalid pattern matches nothing
		return is && (base[0] != '.' || part[0] == '.')
	})
}

// glob returns the paths that a pattern describes. Only components with a special character are
// matched, so the others need not exist.
func glob(tree *hostfs.Tree, pattern string, matches func(part, base string) bool) ([]string, error) {
	found := []string{"/"}
	for part := range strings.SplitSeq(strings.Trim(pattern, "/"), "/") {
		var next []string
		for _, dir := range found {
			names := []string{part}
			if strings.ContainsAny(part, `*?[\`) {
				all, err := tree.Names(dir)
				if err != nil && !errors.Is(err, syscall.ENOTDIR) {
					return nil, err
				}
				names = slices.DeleteFunc(all, func(base string) bool { return !matches(part, base) })
			}
			for _, base := range names {
				next = append(next, path.Join(dir, base))
			}
		}
		found = next
	}
	return found, nil
}

// errSpecifier stands for a specifier that is not known here.
const errSpecifier = "\x00"

// value returns the value of a variable. Files replace Environment=, and later files replace earlier
// ones (systemd.exec(5)). A file that cannot be read must not hide it.
func (c command) value(name string) (string, error) {
	for _, file := range slices.Backward(c.files) {
		content, err := readIfThere(c.tree, file)
		if err != nil {
			return "", err
		}
		a, found, err := edit{Variable: name}.assignment(content)
		if found {
			return string(content[a.Start:a.End]), nil
		}
		if err != nil && strings.Contains(string(content), name) {
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

// flagsOfUnit returns the provider flags that the unit gives the kubelet before ours, which are in the
// file. It is an error if the unit has flags that count more than ours.
func (s flagSource) flagsOfUnit(tree *hostfs.Tree, unit, file string, ours []string, e entry) (v flagValues, err error) {
	if s.form == formArguments {
		return v, nil // the kubelet has no others
	}
	c, err := commandOf(tree, unit)
	if err != nil {
		return v, err
	}
	if s.form == formRancher {
		v, _, err = c.flagsOfRancher(file)
		return v, err
	}
	if name := c.program(); name != "" && (!path.IsAbs(strings.TrimLeft(c.start[0], commandPrefixes)) || name == "env") {
		return v, fmt.Errorf("%w: ExecStart of %s does not name the path of its program (%s), whose flags are not seen here; write the path", ErrProfile, unit, term.QuoteValue(c.start[0]))
	}
	if err := c.isPlain(s.variable); err != nil {
		return v, err
	}
	if !c.has(s.variable) {
		return v, fmt.Errorf("%w: ExecStart of %s does not have $%s as a word, so the kubelet would get no flag of %s; add it at the end", ErrProfile, unit, s.variable, tree.Path(file))
	}
	reads, err := c.reads(file)
	if err != nil {
		return v, err
	}
	if c.program() == "kubelet" && !reads {
		return v, fmt.Errorf("%w: %s is not an EnvironmentFile of %s, so the kubelet would get no flag of it; name it in a drop-in", ErrProfile, tree.Path(file), unit)
	}
	isAssigned, err := s.isAssigned(tree, file, ours, e)
	if err != nil {
		return v, err
	}
	if err := s.isAlone(c, file, isAssigned); err != nil {
		return v, err
	}
	return s.flagsOfCommand(c)
}

// program returns the name of the program. It is empty if there is no command.
func (c command) program() string {
	if len(c.start) == 0 {
		return ""
	}
	return path.Base(strings.TrimLeft(c.start[0], commandPrefixes))
}

// commandPrefixes can precede a program (systemd.service(5)).
const commandPrefixes = "-@:+!|"

// reads reports whether a file is an EnvironmentFile of the unit, also by a link.
func (c command) reads(file string) (bool, error) {
	for _, other := range c.files {
		if same, err := isSame(c.tree, other, file); same || err != nil {
			return same, err
		}
	}
	return false, nil
}

// isSame reports whether both names lead to one file that exists, or are the same.
func isSame(tree *hostfs.Tree, a, b string) (bool, error) {
	var targets [2]string
	for i, name := range []string{a, b} {
		target, err := tree.Follow(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		if targets[i] = target; err != nil {
			targets[i] = name
		}
	}
	return targets[0] == targets[1], nil
}

// isItself returns an error if the unit starts a program by a second one or by a script, whose
// settings are not seen here.
func (c command) isItself(name string) error {
	if len(c.start) == 0 {
		return nil
	}
	file := strings.TrimLeft(c.start[0], commandPrefixes)
	content, err := []byte(nil), error(nil)
	if path.IsAbs(file) {
		content, err = readIfThere(c.tree, file)
	}
	if err != nil && !errors.Is(err, hostfs.ErrTooLarge) {
		return err
	}
	if !path.IsAbs(file) || path.Base(file) != name || strings.HasPrefix(string(content), "#!") {
		return fmt.Errorf("%w: ExecStart of %s starts %s by %s, whose settings are not seen here; write the path of %s itself and its flags into ExecStart", ErrProfile, c.unit, name, term.QuoteValue(file), name)
	}
	return nil
}

// has reports whether the command gives the kubelet the words of the variable: ${X} would be one word.
// A program that starts the kubelet, such as a script, may read the variable itself.
func (c command) has(variable string) bool {
	if c.program() != "kubelet" {
		return true
	}
	prefixes, _, _ := strings.Cut(c.start[0], "/")
	isText := strings.Contains(prefixes, ":") // systemd.service(5): nothing is replaced
	return !isText && slices.Contains(c.start, "$"+variable)
}

// isPlain returns an error if a shell gives the kubelet provider flags. Only the shell knows which of
// them the kubelet gets.
func (c command) isPlain(variable string) error {
	texts, err := c.texts(variable)
	for word, text := range texts {
		if hasProviderFlag(text) {
			return fmt.Errorf("%w: ExecStart of %s starts the kubelet by a shell, which has %s or %s (%s); write these flags into ExecStart itself", ErrProfile, c.unit, configFlag, pluginsFlag, term.QuoteValue(word))
		}
	}
	return err
}

// texts returns the texts that a shell may run, by the words of the command that have or name them. One
// variable has no value there.
func (c command) texts(without string) (map[string]string, error) {
	texts := map[string]string{}
	for _, word := range c.start {
		switch script := strings.TrimLeft(word, commandPrefixes); {
		case strings.Contains(word, " "):
			var err error
			texts[word] = os.Expand(strings.ReplaceAll(word, "$$", "$"), func(name string) (value string) {
				if err == nil && name != without {
					value, err = c.value(name)
				}
				return value
			})
			if err != nil {
				return nil, err
			}
		case path.IsAbs(script):
			content, err := readIfThere(c.tree, script)
			if err != nil && !errors.Is(err, hostfs.ErrTooLarge) && !errors.Is(err, hostfs.ErrNotRegular) {
				return nil, err
			}
			// A shell runs scripts without #!, too. Most programs are larger than what is read here.
			if len(content) > 0 && bytes.IndexByte(content, 0) < 0 {
				texts[word] = string(content)
			}
		}
	}
	return texts, nil
}

func hasProviderFlag(text string) bool {
	text = strings.ReplaceAll(text, "_", "-")
	return strings.Contains(text, configFlag[2:]) || strings.Contains(text, pluginsFlag[2:])
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
		same, err := isSame(c.tree, other, file)
		if err != nil {
			return err
		}
		if same {
			isBehind = true
			continue
		}
		content, err := readIfThere(c.tree, other)
		if err != nil {
			return err
		}
		a, found, err := edit{Variable: s.variable}.assignment(content)
		if err != nil && strings.Contains(string(content), s.variable) {
			return fmt.Errorf("%s: %w", c.tree.Path(other), err)
		}
		if found && (isBehind || a.End > a.Start && !isAssigned) {
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
// installation scripts write it, and the flags of the kubelet there. They come behind those of all files.
func (c command) flagsOfRancher(file string) (v flagValues, arguments []string, err error) {
	config, rancher := strings.TrimSuffix(path.Dir(file), ".d"), rancherName(file)
	if err := c.isItself(rancher); err != nil {
		return v, nil, err
	}
	words, _, err := c.words("")
	if err != nil {
		return v, nil, err
	}
	other, err := c.value(strings.ToUpper(rancher) + "_CONFIG_FILE")
	if err != nil {
		return v, nil, err
	}
	dataDir, err := c.value(strings.ToUpper(rancher) + "_DATA_DIR")
	if err == nil {
		err = isOwnContainerd(rancher, "data-dir", dataDir, "the environment of "+c.unit)
	}
	if err != nil {
		return v, nil, err
	}
	for i, word := range words {
		if strings.HasPrefix(word, "-") {
			words[i] = "--" + strings.TrimLeft(word, "-") // one hyphen is as good as two
		}
	}
	v.take(words)
	for i, word := range words {
		name, value, found := strings.Cut(word, "=")
		switch {
		case name == "--docker" && !found:
			value = "true"
		case !found && i+1 < len(words):
			value = words[i+1]
		}
		switch name {
		case "--kubelet-arg":
			arguments = append(arguments, rancherArgument(value))
			if err := isRancherRuntime(c.tree, rancher, value, "ExecStart of "+c.unit); err != nil {
				return v, nil, err
			}
		case "--config", "--c":
			other = value
		}
		if setting, isFlag := strings.CutPrefix(name, "--"); isFlag {
			if err := isOwnContainerd(rancher, setting, value, "ExecStart of "+c.unit); err != nil {
				return v, nil, err
			}
		}
	}
	if other != "" && other != config {
		return v, nil, fmt.Errorf("%w: %s reads %s in place of %s, and so not %s; move its settings to %s", ErrProfile, c.unit, c.tree.Path(other), c.tree.Path(config), c.tree.Path(file), c.tree.Path(config))
	}
	var later flagValues
	if later.take(arguments); later != (flagValues{}) {
		return v, nil, fmt.Errorf("%w: ExecStart of %s has %s or %s as a --kubelet-arg, where it counts more than in files; move it to kubelet-arg in %s", ErrProfile, c.unit, configFlag, pluginsFlag, c.tree.Path(config))
	}
	return v, arguments, nil
}
