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

	"golang.org/x/sys/unix"

	"github.com/pullpass/pullpass/internal/node/hostfs"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// bare returns the tree of an empty host with the directory /etc, and its directory.
func bare(t *testing.T) (*hostfs.Tree, string) {
	t.Helper()
	dir := t.TempDir()
	testkit.Must(t, os.MkdirAll(filepath.Join(dir, "etc"), 0o755))
	testkit.Must(t, os.MkdirAll(filepath.Join(dir, "run"), 0o755))
	tree := testkit.Value(hostfs.Open(dir))(t)
	t.Cleanup(func() { _ = tree.Close() })
	return tree, dir
}

// A roll-back leaves files that others changed since, unless the kubelet does not run with them.
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
		s.Entries, s.Pending = map[string]entry{}, &pending{Late: map[string]*version{name: nil}}
		if err := s.validate(); (err == nil) != want {
			t.Errorf("%q, restored late: error %v", name, err)
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
	// A step that was killed leaves its lock, which is not held.
	testkit.Must(t, os.Chmod(filepath.Join(dir, lockFile), 0o600))
	left := false
	if err := alone(tree, func(*state) error { left = true; return nil }); err != nil || !left {
		t.Errorf("after a step that was killed: %t, error %v", left, err)
	}
	began := false
	testkit.Must(t, alone(tree, func(*state) error { began = true; return nil }))
	if !began {
		t.Error("the step did not begin")
	}
	// The state cannot be read.
	testkit.Must(t, os.MkdirAll(filepath.Join(dir, stateFile), 0o755))
	unreadable := &state{tree: tree, read: []byte("x")}
	if err := unreadable.lock(); !errors.Is(err, hostfs.ErrNotRegular) {
		t.Errorf("a state that cannot be read: error %v", err)
	}
	testkit.Must(t, unreadable.unlock())
	testkit.Remove(t, filepath.Join(dir, "var"))
	// Another step has written the state since this one read it.
	if err := (&state{tree: tree, read: []byte("x")}).lock(); !errors.Is(err, ErrBusy) {
		t.Errorf("after another step: error %v", err)
	}
}

// Remains of the first state after a crash count as pending work that needs no restart.
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
		// Known work stays.
		testkit.Must(t, os.MkdirAll(filepath.Join(dir, stateDir), 0o755))
		testkit.Must(t, os.WriteFile(filepath.Join(dir, stateFile), []byte(`{"version":1,"profile":"","unit":"","entries":{},"pending":{"digest":"d"}}`), 0o600))
		if s, err := readState(tree); err != nil || !s.owed() {
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
		err := New(Config{Tree: tree, Watcher: outcome{test.err}}).watch(t.Context(), test.digest, nil)
		if errors.Is(err, ErrRejected) != test.isRejected || test.err != nil && !errors.Is(err, test.err) || strings.Count(textOf(err), ErrRejected.Error()) > 1 {
			t.Errorf("%v, %s: error %v", test.err, test.digest, err)
		}
	}
	testkit.Must(t, os.WriteFile(filepath.Join(dir, stateFile), []byte("x"), 0o600))
	if err := New(Config{Tree: tree, Watcher: outcome{lost}}).watch(t.Context(), "good", nil); !errors.Is(err, ErrState) || !errors.Is(err, lost) {
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

// A file for a roll-back stays while the roll-back is possible, and no longer.
func TestKeptFilesOfARollBack(t *testing.T) {
	t.Parallel()
	for _, owed := range []bool{true, false} {
		tree, dir := bare(t)
		for _, name := range []string{"/etc/changed", "/etc/other"} {
			testkit.Must(t, os.WriteFile(filepath.Join(dir, hostfs.Kept(name)), nil, 0o600))
		}
		s := &state{
			tree: tree, Entries: map[string]entry{"/etc/changed": {}, "/etc/other": {}},
			Pending: &pending{Restarted: !owed, Before: map[string]*version{"/etc/changed": nil}},
		}
		testkit.Must(t, s.clean())
		testkit.Must(t, s.unlock())
		for name, want := range map[string]bool{"/etc/changed": owed, "/etc/other": false} {
			if is, err := tree.Exists(hostfs.Kept(name)); is != want || err != nil {
				t.Errorf("restart owed %t: %s is kept: %t, %v", owed, name, is, err)
			}
		}
	}
}

// Backups that cannot be listed stay.
func TestBackupsThatCannotBeListed(t *testing.T) {
	t.Parallel()
	tree, dir := bare(t)
	testkit.Must(t, os.MkdirAll(filepath.Join(dir, stateDir), 0o755))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, backupDir), nil, 0o600))
	if err := (&state{tree: tree}).dropBackups(); err == nil {
		t.Error("no error")
	}
	if is, err := tree.Exists(backupDir); !is || err != nil {
		t.Errorf("it is there: %t, %v", is, err)
	}
}

// The state goes when it is empty, and leaves files of others alone. A rejected configuration is remembered.
func TestEndOfTheState(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		what     string
		rejected []string
		other    string // a file of others
		stays    bool
	}{
		{"empty", nil, "", false},
		{"a rejected configuration", []string{"digest"}, "", true},
		{"a file of others", nil, "var/lib/pullpass/other", false},
	} {
		tree, dir := bare(t)
		s := &state{Version: stateVersion, tree: tree, Entries: map[string]entry{}, Rejected: test.rejected}
		testkit.Must(t, s.save())
		if test.other != "" {
			testkit.Must(t, os.WriteFile(filepath.Join(dir, test.other), []byte("x"), 0o600))
		}
		testkit.Must(t, s.settle())
		testkit.Must(t, s.unlock())
		if is, err := tree.Exists(stateFile); is != test.stays || err != nil {
			t.Errorf("%s: the state is there: %t, %v", test.what, is, err)
		}
		if is, err := tree.Exists("/var"); is != (test.stays || test.other != "") || err != nil {
			t.Errorf("%s: /var is there: %t, %v", test.what, is, err)
		}
		if test.other != "" {
			if data, err := os.ReadFile(filepath.Join(dir, test.other)); string(data) != "x" || err != nil {
				t.Errorf("%s: %q, %v", test.what, data, err)
			}
		}
	}
}

// unready is a Watcher that cannot work.
type unready struct{}

var errUnready = errors.New("unready")

func (unready) Ready(context.Context) error { return errUnready }
func (unready) Watch(context.Context) error { return errUnready }

// Files that no restart concerns are changed without a Watcher. With one that cannot work, nothing that needs a restart is.
func TestWatcherIsNeededForARestartOnly(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		h.Installer = *New(Config{Tree: h.tree, Watcher: unready{}})
		next := desired("v1.36.2")
		next.Hosts = map[string][]byte{"ghcr.io": []byte("ANOTHER\n")}
		h.apply(next)
		if got := h.read(hostsTOML); got != "ANOTHER\n" {
			t.Errorf("%q", got)
		}
		next.Provider = []byte(strings.Replace(testProvider, `"0s"`, `"1s"`, 1))
		h.untouched(errUnready, "unready", func() error { _, err := h.Apply(t.Context(), next); return err })
		h.untouched(errUnready, "unready", func() error { _, err := h.Uninstall(t.Context()); return err })

		// The unit that puts the kubelet's files back stands by for a restart alone.
		h.tree.Failing = func(string) error {
			if _, err := os.Lstat(filepath.Join(h.dir, undoScript)); err == nil {
				t.Error("the unit stands by without a restart")
			}
			return nil
		}
		h.apply(desired("v1.36.2"))
		h.tree.Failing = nil
	})
}

func TestWhatIsDone(t *testing.T) {
	t.Parallel()
	if !(&Plan{}).isDone() || (&Plan{Restart: true}).isDone() || (&Plan{Pending: true}).isDone() || (&Plan{Changes: []Change{{}}}).isDone() {
		t.Error("a plan with work is done, or one without is not")
	}
	one, same, other := hostfs.NewFile(0o644, []byte("x")), hostfs.NewFile(0o644, []byte("x")), hostfs.NewFile(0o644, []byte("y"))
	for _, test := range []struct {
		old, next *hostfs.File
		want      bool
	}{{nil, nil, true}, {&one, &same, true}, {&one, &other, false}, {nil, &one, false}, {&one, nil, false}} {
		if got := (Change{old: test.old, next: test.next}).isNone(); got != test.want {
			t.Errorf("%+v to %+v: %t", test.old, test.next, got)
		}
	}
}

func TestFlagsInFiles(t *testing.T) {
	t.Parallel()
	if got := words("--a\t--b \u0120c"); !slices.Equal(got, []string{"--a", "--b", "\u0120c"}) {
		t.Errorf("%q", got)
	}
	if got := removeWord("x--a --a --ab --a", "--a"); got != "x--a --ab" {
		t.Errorf("%q", got)
	}
	arguments := edit{Form: formArguments}
	if got, err := arguments.flags([]byte("# --comment\n --a --b\n")); err != nil || !slices.Equal(got, []string{"--a", "--b"}) {
		t.Errorf("%q, %v", got, err)
	}
	for content, want := range map[string]string{
		"X=--a": "--a", "#X=--a\n": "", ";X=--a\n": "", " # X\n\n \n": "", "; a \\\n# b\nX=--a": "--a", "X=--a\n# a \\\n": "--a", "X\n": "", "Y=--a\n": "", "X=--a\nX=\"--b\"\n": "--b",
	} {
		if got, err := (edit{Form: formEnvironment, Variable: "X"}).flags([]byte(content)); err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: %q, %v", content, got, err)
		}
	}
	for content, want := range map[string]bool{`X=""`: true, "X=": false, `X="--b"`: false, "": false} {
		e := edit{Form: formEnvironment, Variable: "X", Ours: []string{"--a"}}
		if _, err := e.add([]byte(content)); err != nil || e.Empty != want {
			t.Errorf("%q: empty %t, %v", content, e.Empty, err)
		}
	}
}

// The arguments of the plugin are changed only where it has --gateway; a file without changes stays byte for byte.
func TestArgumentsOfTheGateway(t *testing.T) {
	t.Parallel()
	with := func(args string) []byte {
		return []byte("apiVersion:   kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders: [{name: a}, {name: b, args: " + args + "}]\n")
	}
	plain, guarded := with(`["--registry=ghcr.io"]`), with(`["--registry=ghcr.io", "--gateway=https://gateway.example.com"]`)
	for _, test := range []struct {
		content []byte
		dir     string
		changed bool
	}{{plain, "/x", false}, {guarded, "/x", true}, {guarded, "", false}, {guarded, "/etc/containerd/certs.d", false}} {
		got, err := withCertsDir(test.content, test.dir)
		if err != nil || (string(got) != string(test.content)) != test.changed || strings.Contains(string(got), `"--certs-dir=/x"`) != test.changed {
			t.Errorf("%s, %v", got, err)
		}
	}
	both := with(`["--gateway=https://gateway.example.com"]}, {name: c, args: ["--registry=ghcr.io"]`)
	if got, err := withCertsDir(both, "/x"); err != nil || strings.Count(string(got), "--certs-dir") != 1 {
		t.Errorf("%s, %v", got, err)
	}
	for _, test := range []struct {
		content []byte
		changed bool
	}{{plain, false}, {guarded, true}} {
		got, err := withoutGateway(test.content)
		if err != nil || (string(got) != string(test.content)) != test.changed || strings.Contains(string(got), "--gateway") {
			t.Errorf("%s, %v", got, err)
		}
	}
}

// proc_pid_stat(5): the name, in parentheses, can have blanks and parentheses.
func TestStartOfAProcess(t *testing.T) {
	t.Parallel()
	stat := "1 (a b) c) " + strings.Repeat("x ", 19) + "start"
	if got := process([]byte(stat)); got != "start" {
		t.Errorf("%q", got)
	}
	if got := process([]byte(strings.TrimSuffix(stat, " start"))); got != "" {
		t.Errorf("%q of a line that is too short", got)
	}
}

// Repair leaves an interrupted command to Apply, ends its own work, and writes nothing without work.
func TestRepairBesideOtherWork(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		before := h.writes()
		if changes, err := h.Repair(desired("v1.36.2")); err != nil || len(changes) > 0 {
			t.Errorf("without work: %v, %v", changes, err)
		}
		h.expect("without work", h.writes(), before)
		for _, interrupted := range []bool{false, true} {
			testkit.Must(t, alone(h.tree, func(s *state) error {
				if s.Pending = nil; interrupted {
					s.Pending = &pending{Restarted: true, Digest: "interrupted"}
				}
				return s.save()
			}))
			h.put(hostsTOML, "server = 'https://ghcr.io'\n")
			changes, err := h.Repair(desired("v1.36.2"))
			if err != nil || len(changes) != 1 || h.read(hostsTOML) != testHosts {
				t.Errorf("interrupted %t: %v, %v", interrupted, changes, err)
			}
			s, err := readState(h.tree)
			testkit.Must(t, err)
			if (s.Pending != nil) != interrupted || interrupted && s.Pending.Digest != "interrupted" {
				t.Errorf("interrupted %t: pending %+v", interrupted, s.Pending)
			}
		}
	})
}

// Apply knows of a repair that was interrupted.
func TestRepairThatFails(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.apply(desired("v1.36.2"))
		testkit.Remove(t, filepath.Join(h.dir, hostsTOML))
		h.tree.Failing = func(name string) error {
			if name == "/"+hostsTOML && strings.Contains(h.read(stateFile), `"pending"`) {
				return unix.EIO // when it is written
			}
			return nil
		}
		if changes, err := h.Repair(desired("v1.36.2")); !errors.Is(err, unix.EIO) || len(changes) > 0 {
			t.Errorf("%v, error %v", changes, err)
		}
		h.tree.Failing = nil
		if plan := testkit.Value(h.Status(desired("v1.36.2")))(t); !plan.Pending || plan.Restart {
			t.Errorf("%+v", plan)
		}
		h.apply(desired("v1.36.2"))
		h.expectUninstalled()
	})
}

// Without its stat, this process cannot be distinguished from other processes of the host.
func TestProcessThatIsNotKnown(t *testing.T) {
	t.Parallel()
	h := newHost(t, "eks")
	s, _ := commands(h, "/host", nil)
	testkit.Remove(t, filepath.Join(h.dir, "proc/17/stat"))
	s.Stat = nil
	if err := s.Ready(t.Context()); !errors.Is(err, ErrProfile) || !strings.Contains(err.Error(), "is not this process: give the pod hostPID") {
		t.Errorf("error %v", err)
	}
}
