package nodeinstall

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/node/hostfs"
)

// ErrState means that the state cannot be trusted. Nothing is changed then.
var ErrState = errors.New("the state of node-install is damaged")

const (
	stateDir     = "/var/lib/pullpass/node-install"
	stateFile    = stateDir + "/state.json"
	backupDir    = stateDir + "/backups"
	stateVersion = 1

	// lockFile is not below stateDir, because the decision to create stateDir needs the lock.
	lockFile = "/run/pullpass-node-install.lock"

	maxFileBytes   = 1 << 20   // of configuration files
	maxPluginBytes = 256 << 20 // far more than the plugin's size
)

// state records which files on the node are ours. It records a file before the file is created, and
// until it is removed. So every command finds the remains of a crash.
type state struct {
	Version     int              `json:"version"`
	Profile     string           `json:"profile"`
	Unit        string           `json:"unit"`                  // of systemd, that runs the kubelet
	Entries     map[string]entry `json:"entries"`               // by path
	Directories []string         `json:"directories,omitempty"` // that were made, the outer ones first
	Pending     *pending         `json:"pending,omitempty"`
	Rejected    []string         `json:"rejected,omitempty"` // digests of configurations with which the kubelet did not come back

	tree   *hostfs.Tree
	read   []byte       // the content as read; nil: no file
	unlock func() error // nil: the lock is not taken
}

// entry is a file that we wrote or changed.
type entry struct {
	Written  version  `json:"written"`
	Original *version `json:"original,omitempty"` // the previous file; nil: none
	Edit     *edit    `json:"edit,omitempty"`     // our part of it; nil: the whole file
	Restart  bool     `json:"restart,omitempty"`  // the kubelet reads it when it starts
}

// version is a file without its content. A backup has the content while it is needed.
type version struct {
	Mode   fs.FileMode `json:"mode"`
	UID    int         `json:"uid"`
	GID    int         `json:"gid"`
	SHA256 string      `json:"sha256,omitempty"`
	Link   string      `json:"link,omitempty"`
}

// pending is unfinished work.
type pending struct {
	Uninstall bool                `json:"uninstall,omitempty"`
	Digest    string              `json:"digest"`              // of the desired state of an apply
	Restarted bool                `json:"restarted,omitempty"` // the kubelet was restarted since, or does not need it
	Before    map[string]*version `json:"before,omitempty"`    // files that a roll-back restores; nil: there was no file
	Entries   map[string]entry    `json:"entries,omitempty"`   // of those paths, before the change
	Late      map[string]*version `json:"late,omitempty"`      // other files that it restores, after the kubelet's restart; nil: there was no file
}

// before returns the file that a roll-back restores; nil: none.
func (p *pending) before(name string) *version {
	if v, is := p.Before[name]; is {
		return v
	}
	return p.Late[name]
}

func versionOf(f hostfs.File) version {
	v := version{Mode: f.Mode, UID: f.UID, GID: f.GID, Link: f.Link}
	if f.Mode.IsRegular() {
		v.SHA256 = digestOf(f.Content)
	}
	return v
}

func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// readState returns the state. It is empty if there is none.
func readState(tree *hostfs.Tree) (*state, error) {
	content, err := readIfThere(tree, stateFile)
	if err != nil {
		return nil, err
	}
	s := &state{Version: stateVersion, Entries: map[string]entry{}, tree: tree, read: content}
	if content != nil {
		// Default values must not replace missing fields: an empty state would forget all our
		// files.
		s.Version, s.Entries = 0, nil
		decoder := json.NewDecoder(bytes.NewReader(content))
		decoder.DisallowUnknownFields()
		err = decoder.Decode(s)
		if _, end := decoder.Token(); err == nil && !errors.Is(end, io.EOF) {
			err = errors.New("something is behind its end")
		}
		if err == nil {
			err = s.validate()
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w; put it back from a copy, or undo by hand what it lists (%s has the files as they were) and remove %s",
				ErrState, tree.Path(stateFile), err, tree.Path(backupDir), tree.Path(stateDir))
		}
	}
	if s.Pending == nil {
		// The state was being written during the crash.
		is, err := hasUnnamed(tree)
		if err != nil {
			return nil, err
		}
		if is {
			s.Pending = &pending{Restarted: true}
		}
	}
	return s, nil
}

func (s *state) validate() error {
	if s.Version != stateVersion || s.Entries == nil {
		return fmt.Errorf("version %d is not known", s.Version)
	}
	names := append(slices.Sorted(maps.Keys(s.Entries)), s.Directories...)
	if s.Pending != nil {
		names = slices.AppendSeq(names, maps.Keys(s.Pending.Before))
		names = slices.AppendSeq(names, maps.Keys(s.Pending.Late))
	}
	for _, name := range names {
		if !path.IsAbs(name) || path.Clean(name) != name || name == "/" {
			return fmt.Errorf("%q is not the path of a file", name)
		}
	}
	for digest := range s.needed() {
		if _, err := readBackup(s.tree, digest); err != nil {
			return err
		}
	}
	return nil
}

// owed reports whether the kubelet still has to be restarted.
func (s *state) owed() bool { return s.Pending != nil && !s.Pending.Restarted }

// isTrial reports whether the kubelet's files are those of an apply, and no watcher has judged them.
func (s *state) isTrial() bool { return s.Pending != nil && len(s.Pending.Before) > 0 }

// paths returns the paths of all entries in the order of their removal. The kubelet's flags come
// first: they name files without which the kubelet would exit.
func (s *state) paths() (flags []string) {
	var others []string
	for _, name := range slices.Sorted(maps.Keys(s.Entries)) {
		if s.isFlags(name) {
			flags = append(flags, name)
		} else {
			others = append(others, name)
		}
	}
	return append(flags, others...)
}

func (s *state) isFlags(name string) bool {
	e := s.Entries[name]
	return e.Edit != nil && e.Edit.Form != formProviders || path.Base(name) == rancherFlagFile
}

// settled returns the file and its entry as they will be after the interrupted work has ended. They
// are nil if the file does not exist, or is not ours.
func (s *state) settled(name string) (*hostfs.File, *entry, error) {
	current, err := lookup(s.tree, name)
	if err != nil {
		return nil, nil, err
	}
	if s.Pending != nil {
		if _, is := s.Pending.Before[name]; is {
			next, is, err := s.undone(name, current, false)
			if !is {
				return current, new(s.merged(name)), err
			}
			if was, had := s.Pending.Entries[name]; had {
				return next, &was, nil
			}
			return next, nil, nil
		}
	}
	if e, is := s.Entries[name]; is {
		return current, &e, nil
	}
	return current, nil, nil
}

// merged returns the entry of a file that others have changed since an apply was interrupted. The
// file may also contain our previous part.
func (s *state) merged(name string) entry {
	e := s.Entries[name]
	if e.Edit != nil {
		e.Edit = new(*e.Edit)
		e.Edit.Ours = s.ours(name)
	}
	return e
}

// ours returns the possible content of our part in a file of others.
func (s *state) ours(name string) (all []string) {
	entries := []entry{s.Entries[name]}
	if s.Pending != nil {
		entries = append(entries, s.Pending.Entries[name])
	}
	for _, e := range entries {
		if e.Edit != nil {
			all = append(all, e.Edit.Ours...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// needed returns the digests of all backups that may be restored.
func (s *state) needed() map[string]bool {
	digests := map[string]bool{}
	add := func(v *version) {
		if v != nil && v.Link == "" {
			digests[v.SHA256] = true
		}
	}
	entries := slices.Collect(maps.Values(s.Entries))
	if s.Pending != nil {
		entries = slices.AppendSeq(entries, maps.Values(s.Pending.Entries))
	}
	for _, e := range entries {
		add(e.Original)
	}
	return digests
}

func readBackup(tree *hostfs.Tree, digest string) ([]byte, error) {
	if len(digest) != 2*sha256.Size || strings.Trim(digest, "0123456789abcdef") != "" {
		return nil, fmt.Errorf("%q is not a digest", digest)
	}
	f, err := tree.Lookup(path.Join(backupDir, digest), maxPluginBytes)
	if err != nil {
		return nil, err
	}
	if digestOf(f.Content) != digest {
		return nil, fmt.Errorf("%s does not have the content that it is named after", tree.Path(path.Join(backupDir, digest)))
	}
	return f.Content, nil
}

// restored returns the file of a version.
func restored(tree *hostfs.Tree, v version) (hostfs.File, error) {
	f := hostfs.File{Mode: v.Mode, UID: v.UID, GID: v.GID, Link: v.Link}
	if v.Link != "" {
		return f, nil
	}
	var err error
	f.Content, err = readBackup(tree, v.SHA256)
	return f, err
}

// keep writes a backup.
func (s *state) keep(f hostfs.File) error {
	is, err := s.tree.Exists(backupDir)
	if err == nil && !is {
		err = s.tree.Mkdir(backupDir, 0o755)
	}
	if err != nil {
		return err
	}
	return put(s.tree, path.Join(backupDir, digestOf(f.Content)), hostfs.NewFile(0o600, f.Content), maxPluginBytes)
}

// dropBackups removes backups that are no longer needed, and the remains of a crash. The saved
// state may still need some.
func (s *state) dropBackups() error {
	names, err := s.tree.Names(backupDir)
	needed := s.needed()
	names = slices.DeleteFunc(names, func(name string) bool { return needed[name] })
	if len(names) > 0 {
		err = s.save()
	}
	for _, name := range names {
		if err == nil {
			err = remove(s.tree, path.Join(backupDir, name))
		}
	}
	if err == nil && len(needed) == 0 {
		err = remove(s.tree, backupDir)
	}
	return err
}

// readIfThere returns the content of a regular file, even behind links. It returns nil if the file
// does not exist.
func readIfThere(tree *hostfs.Tree, name string) ([]byte, error) {
	name, err := tree.Follow(name)
	if err == nil {
		var f hostfs.File
		if f, err = tree.Lookup(name, maxFileBytes); err == nil {
			if !f.Mode.IsRegular() {
				return nil, fmt.Errorf("%s: %w", tree.Path(name), hostfs.ErrNotRegular)
			}
			return append([]byte{}, f.Content...), nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return nil, err
}

// lookup returns nil for a missing file.
func lookup(tree *hostfs.Tree, name string) (*hostfs.File, error) {
	f, err := tree.Lookup(name, maxPluginBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &f, nil
}

// put writes a file unconditionally, unless it is the same.
func put(tree *hostfs.Tree, name string, f hostfs.File, limit int64) error {
	now, err := tree.Lookup(name, limit)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return tree.Replace(name, nil, f)
	case err != nil:
		return err
	case now.Equal(f):
		return nil
	}
	return tree.Replace(name, &now, f)
}

func remove(tree *hostfs.Tree, name string) error {
	now, err := lookup(tree, name)
	if now == nil {
		return err
	}
	return tree.Remove(name, now)
}
