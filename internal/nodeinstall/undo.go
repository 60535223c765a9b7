package nodeinstall

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"

	"github.com/pullpass/pullpass/internal/hostfs"
	"github.com/pullpass/pullpass/internal/term"
)

// A host that loses power while the kubelet is watched, or before, would start it
// with a configuration that nobody has seen it come up with. So a unit of systemd
// stands by, that puts back what was there before the kubelet starts. It needs no
// program of ours, which may be gone with its pod, and there may be no kubelet to
// bring that back.
const (
	undoUnit   = "pullpass-node-install-undo.service"
	undoFile   = "/etc/systemd/system/" + undoUnit
	undoLink   = "/etc/systemd/system/multi-user.target.wants/" + undoUnit
	undoScript = stateDir + "/undo"
	undoState  = stateDir + "/state.before.json"
)

// standBy writes the unit while there is something that it would put back, and
// removes it when there is not. The link, without which it does nothing, is the last
// to be written, and the first to be removed.
func (s *state) standBy(tree *hostfs.Tree) error {
	if s.Pending == nil || s.Pending.Before == nil {
		for _, name := range []string{undoLink, undoFile, undoScript, undoState} {
			if err := remove(tree, name); err != nil {
				return err
			}
		}
		return nil
	}
	if err := mkdir(tree, s, path.Dir(undoLink)); err != nil {
		return err
	}
	content, err := json.MarshalIndent(s.rolledBack(), "", "  ")
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		file hostfs.File
	}{
		{undoState, hostfs.NewFile(0o600, append(content, '\n'))},
		{undoScript, hostfs.NewFile(0o600, s.Pending.script())},
		{undoFile, hostfs.NewFile(0o644, fmt.Appendf(nil, `# Written by pullpass node-install, which removes it when the kubelet is healthy.
[Unit]
Description=Pullpass: what the kubelet had before a restart that nobody watched to its end
ConditionPathExists=%s
RequiresMountsFor=%s
Before=%s
[Service]
Type=oneshot
ExecStart=/bin/sh %s
`, undoScript, stateDir, s.Unit, undoScript))},
		{undoLink, hostfs.NewLink(undoFile)},
	} {
		if err := put(tree, f.name, f.file, maxFileBytes); err != nil {
			return err
		}
	}
	return nil
}

// rolledBack returns the state after a roll-back.
func (s *state) rolledBack() *state {
	after := *s
	after.Entries = maps.Clone(s.Entries)
	for name := range s.Pending.Before {
		delete(after.Entries, name)
		if e, had := s.Pending.Entries[name]; had {
			after.Entries[name] = e
		}
	}
	after.Pending = nil
	return &after
}

// script does what rollBack does, in a shell. The state comes last but for the unit
// itself: until then, it may be run again.
func (p *pending) script() []byte {
	var b bytes.Buffer
	b.WriteString("set -eu\n")
	for _, name := range slices.Sorted(maps.Keys(p.Before)) {
		v, to := p.Before[name], term.ShellWord(name)
		temporary := term.ShellWord(path.Join(path.Dir(name), "."+path.Base(name)+".pullpass-undo"))
		switch {
		case v == nil:
			fmt.Fprintf(&b, "rm -f %s\n", to)
			continue
		case v.Mode.Type() == fs.ModeSymlink:
			fmt.Fprintf(&b, "ln -sfn -- %s %s\n", term.ShellWord(v.Link), temporary)
		default:
			fmt.Fprintf(&b, "cp %s %s\n", term.ShellWord(path.Join(backupDir, v.SHA256)), temporary)
		}
		fmt.Fprintf(&b, "chown -h %d:%d %s\n", v.UID, v.GID, temporary)
		if v.Mode.IsRegular() {
			fmt.Fprintf(&b, "chmod %o %s\n", unixMode(v.Mode), temporary)
		}
		fmt.Fprintf(&b, "mv -fT %s %s\n", temporary, to)
	}
	fmt.Fprintf(&b, "sync\nmv -f %s %s\nrm -f %s %s %s\n", undoState, stateFile, undoLink, undoFile, undoScript)
	return b.Bytes()
}

// unixMode is what chmod takes.
func unixMode(mode fs.FileMode) uint32 {
	bits := uint32(mode.Perm())
	for flag, bit := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if mode&flag != 0 {
			bits |= bit
		}
	}
	return bits
}
