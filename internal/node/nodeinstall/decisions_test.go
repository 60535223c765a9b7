package nodeinstall

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/pullpass/pullpass/internal/node/hostfs"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// bare returns the tree of an empty host with the directory /etc, and its directory.
func bare(t *testing.T) (*hostfs.Tree, string) {
	t.Helper()
	dir := t.TempDir()
	testkit.Must(t, os.MkdirAll(filepath.Join(dir, "etc"), 0o755))
	testkit.Must(t, os.MkdirAll(filepath.Join(dir, "run"), 0o755))
	tree, err := hostfs.Open(dir)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = tree.Close() })
	return tree, dir
}

// The decision of a roll-back about each file: what others changed since stays, unless the kubelet does not run with it.
func TestDecisionOfARollBack(t *testing.T) {
	t.Parallel()
	const name = "/etc/kubelet"
	ours, before, others := hostfs.NewFile(0o644, []byte("ours")), hostfs.NewFile(0o644, []byte("before")), hostfs.NewFile(0o644, []byte("others"))
	for _, test := range []struct {
		what      string
		before    *hostfs.File // nil: there was no file
		kept      *hostfs.File // nil: a pipe of others has the name
		current   *hostfs.File
		forced    bool
		next      *hostfs.File
		isChanged bool
	}{
		{what: "a new file", current: &ours, isChanged: true},
		{what: "a new file that is gone", isChanged: true},
		{what: "a new file that others changed", current: &others},
		{what: "a new file that others changed, forced", current: &others, forced: true, isChanged: true},
		{what: "a changed file", before: &before, kept: &before, current: &ours, next: &before, isChanged: true},
		{what: "a changed file, back already", before: &before, current: &before, next: &before, isChanged: true},
		{what: "a changed file that others changed", before: &before, kept: &before, current: &others, next: &others},
		{what: "a changed file that others changed, forced", before: &before, kept: &before, current: &others, forced: true, next: &before, isChanged: true},
		{what: "a changed file that is gone", before: &before, kept: &before},
		{what: "a changed file that is gone, forced", before: &before, kept: &before, forced: true, next: &before, isChanged: true},
		{what: "a kept file that others replaced", before: &before, kept: &others, current: &ours},
		{what: "a kept file that others made a pipe", before: &before, current: &ours},
	} {
		tree, dir := bare(t)
		kept := filepath.Join(dir, hostfs.Kept(name))
		if test.kept != nil {
			testkit.Must(t, tree.Replace(hostfs.Kept(name), nil, *test.kept))
		} else {
			testkit.Must(t, syscall.Mkfifo(kept, 0o600))
		}
		s := &state{tree: tree, Entries: map[string]entry{name: {Written: versionOf(ours)}}, Pending: &pending{Before: map[string]*version{name: nil}}}
		if test.before != nil {
			s.Pending.Before[name] = new(versionOf(*test.before))
		}
		next, is, err := s.undone(name, test.current, test.forced)
		if err != nil || is != test.isChanged || (next == nil) != (test.next == nil) || next != nil && !next.Equal(*test.next) {
			t.Errorf("%s: %+v, %t, error %v; want %+v, %t", test.what, next, is, err, test.next, test.isChanged)
		}
	}
}

// Paths and digests of a state are used as names of files, so they lead nowhere else.
func TestNamesInTheState(t *testing.T) {
	t.Parallel()
	tree, dir := bare(t)
	for name, want := range map[string]bool{"/etc/kubelet": true, "etc/kubelet": false, "/etc/../kubelet": false, "/etc/": false, "/": false} {
		s := &state{Version: stateVersion, Entries: map[string]entry{name: {}}, tree: tree}
		if err := s.validate(); (err == nil) != want || err != nil && !strings.Contains(err.Error(), "is not the path of a file") {
			t.Errorf("%q: error %v", name, err)
		}
	}
	testkit.Must(t, os.MkdirAll(filepath.Join(dir, backupDir), 0o755))
	none := strings.Repeat("0", 64)
	for digest, want := range map[string]string{
		"ab": "is not a digest", "": "is not a digest", "../" + none[3:]: "is not a digest", strings.Repeat("A", 64): "is not a digest", none: "no such file",
	} {
		if _, err := readBackup(tree, digest); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v", digest, err)
		}
	}
}

// A backup is kept while an entry, or the one before it, needs it. A link needs none.
func TestNeededBackups(t *testing.T) {
	t.Parallel()
	one, two, link := version{SHA256: "one"}, version{SHA256: "two"}, version{Link: "target"}
	s := &state{Entries: map[string]entry{"/a": {Original: &one}, "/b": {Original: &link}, "/c": {}}}
	if got := s.needed(); len(got) != 1 || !got["one"] {
		t.Errorf("%v", got)
	}
	s.Pending = &pending{Entries: map[string]entry{"/a": {Original: &two}}}
	if got := s.needed(); len(got) != 2 || !got["two"] {
		t.Errorf("%v", got)
	}
	if f, err := restored(nil, link); err != nil || f.Link != "target" {
		t.Errorf("%+v, %v", f, err)
	}
	if v := versionOf(hostfs.NewLink("target")); v.SHA256 != "" || v.Link != "target" {
		t.Errorf("%+v", v)
	}
}

// The kubelet's flags are removed first: they name the other files.
func TestOrderOfRemoval(t *testing.T) {
	t.Parallel()
	s := &state{Entries: map[string]entry{
		"/a": {}, "/b": {Edit: &edit{Form: formEnvironment}}, "/c": {Edit: &edit{Form: formProviders}}, "/d": {Edit: &edit{Form: formArguments}}, "/e/" + rancherFlagFile: {}, "/f": {},
	}}
	if got, want := s.paths(), []string{"/b", "/d", "/e/" + rancherFlagFile, "/a", "/c", "/f"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Only a missing file counts as missing.
func TestFilesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	tree, dir := bare(t)
	testkit.Must(t, os.Symlink("loop", filepath.Join(dir, "etc/loop")))
	testkit.Must(t, syscall.Mkfifo(filepath.Join(dir, "etc/fifo"), 0o600))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "etc/plain"), nil, 0o644))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "etc/program"), nil, 0o755))
	testkit.Must(t, os.Chmod(filepath.Join(dir, "etc/program"), 0o755))
	for name, want := range map[string]error{"/etc/loop": hostfs.ErrLoop, "/etc/fifo": hostfs.ErrNotRegular, "/etc": hostfs.ErrNotRegular, "/etc/none": nil} {
		if content, err := readIfThere(tree, name); content != nil || !errors.Is(err, want) {
			t.Errorf("%s: %q, error %v, want %v", name, content, err, want)
		}
	}
	if err := remove(tree, "/etc/loop/x"); !errors.Is(err, hostfs.ErrLoop) {
		t.Errorf("remove: error %v", err)
	}
	if err := put(tree, "/etc/fifo", hostfs.NewFile(0o644, nil), 0); !errors.Is(err, hostfs.ErrNotRegular) {
		t.Errorf("put: error %v", err)
	}
	for name, want := range map[string]error{"/etc/program": nil, "/etc/plain": fs.ErrPermission, "/etc": fs.ErrPermission, "/etc/none": fs.ErrNotExist} {
		if err := executable(tree, name); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s: error %v, want %v", name, err, want)
		}
	}
}

// A file that is the same is not written again.
func TestPutWritesOnce(t *testing.T) {
	t.Parallel()
	tree, dir := bare(t)
	f := hostfs.NewFile(0o644, []byte("x"))
	testkit.Must(t, put(tree, "/etc/file", f, 10))
	before, err := os.Stat(filepath.Join(dir, "etc/file"))
	testkit.Must(t, err)
	testkit.Must(t, put(tree, "/etc/file", f, 10))
	after, err := os.Stat(filepath.Join(dir, "etc/file"))
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("it is another file: %v", err)
	}
}

// Without the lock, a step does not begin. A lock that others can take is an error.
func TestStepsExcludeEachOther(t *testing.T) {
	t.Parallel()
	tree, dir := bare(t)
	never := func(*state) error { t.Error("a step began"); return nil }
	unlock, ok, err := tree.Lock(lockFile, true)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if err := alone(tree, never); !errors.Is(err, ErrBusy) {
		t.Errorf("while another step runs: error %v", err)
	}
	if err := (&state{tree: tree}).lock(); !errors.Is(err, ErrBusy) {
		t.Errorf("while another step runs: error %v", err)
	}
	testkit.Must(t, unlock())
	testkit.Must(t, os.WriteFile(filepath.Join(dir, lockFile), nil, 0o644))
	testkit.Must(t, os.Chmod(filepath.Join(dir, lockFile), 0o644))
	if err := alone(tree, never); err == nil || errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "others may open it") {
		t.Errorf("a lock of others: error %v", err)
	}
	if err := (&state{tree: tree}).lock(); err == nil || errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "others may open it") {
		t.Errorf("a lock of others: error %v", err)
	}
	testkit.Remove(t, filepath.Join(dir, lockFile))
	began := false
	testkit.Must(t, alone(tree, func(*state) error { began = true; return nil }))
	if !began {
		t.Error("the step did not begin")
	}
	// Another step has written the state since this one read it.
	if err := (&state{tree: tree, read: []byte("x")}).lock(); !errors.Is(err, ErrBusy) {
		t.Errorf("after another step: error %v", err)
	}
}

// What a crash left of the first state counts as pending work that needs no restart.
func TestRemainsOfTheFirstState(t *testing.T) {
	t.Parallel()
	for _, name := range []string{hostfs.Temporary("/var"), hostfs.Temporary("/var/lib/pullpass"), hostfs.Temporary(stateFile)} {
		tree, dir := bare(t)
		if s, err := readState(tree); err != nil || s.Pending != nil {
			t.Errorf("nothing is left: %+v, %v", s, err)
		}
		testkit.Must(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
		if s, err := readState(tree); err != nil || s.Pending == nil || !s.Pending.Restarted || s.owed() {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
}

// outcome is a Watcher that knows only its error.
type outcome struct{ err error }

func (outcome) Ready(context.Context) error   { return nil }
func (o outcome) Watch(context.Context) error { return o.err }

// The watching process can end without a word. Then the state says whether the configuration was rejected.
func TestOutcomeOfAWatch(t *testing.T) {
	t.Parallel()
	tree, dir := bare(t)
	testkit.Must(t, os.MkdirAll(filepath.Join(dir, stateDir), 0o755))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, stateFile), []byte(`{"version":1,"profile":"","unit":"","entries":{},"rejected":["bad"]}`), 0o600))
	lost := errors.New("lost")
	for _, test := range []struct {
		err        error
		digest     string
		isRejected bool
	}{{nil, "good", false}, {nil, "bad", true}, {lost, "good", false}, {lost, "bad", true}, {ErrRejected, "bad", true}, {ErrRejected, "good", true}} {
		err := New(Config{Tree: tree, Watcher: outcome{test.err}}).watch(t.Context(), test.digest)
		if errors.Is(err, ErrRejected) != test.isRejected || test.err != nil && !errors.Is(err, test.err) || strings.Count(textOf(err), ErrRejected.Error()) > 1 {
			t.Errorf("%v, %s: error %v", test.err, test.digest, err)
		}
	}
	testkit.Must(t, os.WriteFile(filepath.Join(dir, stateFile), []byte("x"), 0o600))
	if err := New(Config{Tree: tree, Watcher: outcome{lost}}).watch(t.Context(), "good"); !errors.Is(err, ErrState) || !errors.Is(err, lost) {
		t.Errorf("a damaged state: error %v", err)
	}
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// A restart that is not owed is not made.
func TestRestartThatIsNotOwed(t *testing.T) {
	t.Parallel()
	tree, dir := bare(t)
	testkit.Must(t, os.MkdirAll(filepath.Join(dir, stateDir), 0o755))
	for _, pending := range []string{``, `,"pending":{"digest":"","restarted":true}`} {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, stateFile), []byte(`{"version":1,"profile":"","unit":"","entries":{}`+pending+`}`), 0o600))
		var k fakeKubelet
		if err := Watch(t.Context(), tree, &k); err != nil || k.restarts != 0 {
			t.Errorf("%q: %d restarts, error %v", pending, k.restarts, err)
		}
	}
}
