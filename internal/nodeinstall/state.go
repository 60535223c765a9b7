package nodeinstall

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/hostfs"
)

// ErrState is the error of a state that cannot be trusted. Nothing is changed then.
var ErrState = errors.New("the state of node-install is damaged")

const (
	stateDir     = "/var/lib/pullpass/node-install"
	stateFile    = stateDir + "/state.json"
	backupDir    = stateDir + "/backups"
	stateVersion = 1

	maxFileBytes   = 1 << 20   // of configuration
	maxPluginBytes = 256 << 20 // far more than the plugin has
)

// state says what of the node is ours. It is written before what it speaks of: a
// crash leaves at most files that are said to be ours and are not there yet.
type state struct {
	Version     int              `json:"version"`
	Profile     string           `json:"profile"`
	Unit        string           `json:"unit"`                  // of systemd, that runs the kubelet
	Entries     map[string]entry `json:"entries"`               // by path
	Directories []string         `json:"directories,omitempty"` // that were made, the outer ones first
	Pending     *pending         `json:"pending,omitempty"`
	Rejected    []string         `json:"rejected,omitempty"` // digests of configurations with which the kubelet did not come back
}

// entry is a file that we wrote, or wrote into.
type entry struct {
	Written  version  `json:"written"`
	Original *version `json:"original,omitempty"` // what was there; nil: nothing
	Edit     *edit    `json:"edit,omitempty"`     // what of it is ours; nil: all
	Restart  bool     `json:"restart,omitempty"`  // the kubelet reads it when it starts
}

// version is a file without its content, which a backup has if it is needed again.
type version struct {
	Mode   fs.FileMode `json:"mode"`
	UID    int         `json:"uid"`
	GID    int         `json:"gid"`
	SHA256 string      `json:"sha256,omitempty"`
	Link   string      `json:"link,omitempty"`
}

// pending is a configuration for which the kubelet has yet to be restarted.
type pending struct {
	Digest  string              `json:"digest"`            // empty: an uninstall
	Before  map[string]*version `json:"before,omitempty"`  // what a roll-back puts back; nil: nothing was there
	Entries map[string]entry    `json:"entries,omitempty"` // of those paths, before
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

// readState returns the state, an empty one if there is none.
func readState(tree *hostfs.Tree) (*state, error) {
	content, err := readIfThere(tree, stateFile)
	if err != nil {
		return nil, err
	}
	s := &state{Version: stateVersion, Entries: map[string]entry{}}
	if content == nil {
		return s, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	err = decoder.Decode(s)
	if err == nil {
		err = s.check(tree)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w; put it back from a copy, or undo by hand what it lists (%s has the files as they were) and remove %s",
			ErrState, tree.Path(stateFile), err, tree.Path(backupDir), tree.Path(stateDir))
	}
	return s, nil
}

func (s *state) check(tree *hostfs.Tree) error {
	if s.Version != stateVersion || s.Entries == nil {
		return fmt.Errorf("version %d is not known", s.Version)
	}
	for _, name := range append(slices.Sorted(maps.Keys(s.Entries)), s.Directories...) {
		if !path.IsAbs(name) || path.Clean(name) != name || name == "/" {
			return fmt.Errorf("%q is not the path of a file", name)
		}
	}
	for digest := range s.needed() {
		if _, err := readBackup(tree, digest); err != nil {
			return err
		}
	}
	return nil
}

// needed returns the digests of all backups that may be put back.
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
		for _, v := range s.Pending.Before {
			add(v)
		}
	}
	for _, e := range entries {
		add(e.Original)
	}
	return digests
}

func readBackup(tree *hostfs.Tree, digest string) ([]byte, error) {
	if len(digest) != 2*sha256.Size || strings.Trim(digest, "0123456789abcdef") != "" {
		return nil, fmt.Errorf("%q is no digest", digest)
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

// restored returns the file that a version stands for.
func restored(tree *hostfs.Tree, v version) (hostfs.File, error) {
	f := hostfs.File{Mode: v.Mode, UID: v.UID, GID: v.GID, Link: v.Link}
	if v.Link != "" {
		return f, nil
	}
	var err error
	f.Content, err = readBackup(tree, v.SHA256)
	return f, err
}

// save writes the state, unless it is the same as what is there.
func (s *state) save(tree *hostfs.Tree) error {
	if err := s.standBy(tree); err != nil {
		return err
	}
	content, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return put(tree, stateFile, hostfs.NewFile(0o600, append(content, '\n')), maxFileBytes)
}

// keep writes a backup.
func keep(tree *hostfs.Tree, f hostfs.File) error {
	if !f.Mode.IsRegular() {
		return nil
	}
	return put(tree, path.Join(backupDir, digestOf(f.Content)), hostfs.NewFile(0o600, f.Content), maxPluginBytes)
}

// dropBackups removes those that nothing needs any more.
func (s *state) dropBackups(tree *hostfs.Tree) error {
	names, err := tree.Names(backupDir)
	if err != nil {
		return err
	}
	needed := s.needed()
	for _, name := range names {
		if !needed[name] {
			err = errors.Join(err, remove(tree, path.Join(backupDir, name)))
		}
	}
	return err
}

// readIfThere returns the content of a regular file that may be reached by links,
// and nil if there is none.
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

// lookup returns nil for what is not there.
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

// put writes a file whatever is there, unless it is the same.
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
	if err != nil || now == nil {
		return err
	}
	return tree.Remove(name, now)
}
