package filewatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/base/file"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// watchRig runs a watch on one file and tells what each reload has read.
type watchRig struct {
	t       *testing.T
	file    string
	reloads chan string
}

// longPoll is a poll that no test waits for: what is seen is seen by events.
const longPoll = time.Hour

func newWatchRig(t *testing.T, name string, when timing) *watchRig {
	t.Helper()
	rig := &watchRig{t: t, file: name, reloads: make(chan string, 1000)}
	read := func() error {
		data, err := file.Read(name, 100)
		switch {
		case errors.Is(err, file.ErrNotRegular):
			rig.reloads <- "no file"
			return err
		case err != nil:
			rig.reloads <- "missing"
			return err
		}
		rig.reloads <- string(data)
		if string(data) == "bad" {
			return errors.New("bad content")
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		watch(ctx, slog.New(slog.DiscardHandler), always(Group{Name: "policy", Paths: []string{name}, Reload: read}), nil, func(string, error) {}, when)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return rig
}

// await waits for a reload that reads want. It ignores other contents, because a file may be read
// while it is half-written. It returns the number of reloads.
func (rig *watchRig) await(want string) int {
	rig.t.Helper()
	deadline := time.After(30 * time.Second)
	for n := 1; ; n++ {
		select {
		case got := <-rig.reloads:
			if got == want {
				return n
			}
		case <-deadline:
			rig.t.Fatalf("no reload has read %q", want)
		}
	}
}

func always(groups ...Group) func() []Group { return func() []Group { return groups } }

func newWatcher(logger *slog.Logger, onReload func(string, error), groups func() []Group) *watcher {
	return &watcher{logger: logger, onReload: onReload, groups: groups, ended: make(chan *watchedGroup)}
}

// look is check, and waits until nothing is left to do.
func (w *watcher) look(which selection) {
	for w.check(which); w.running > 0; w.check(changed) {
		w.reloaded(<-w.ended)
	}
}

var quickEvents = timing{quiet: 5 * time.Millisecond, most: 20 * time.Millisecond, poll: longPoll}

func TestWatchSeesAnOverwrite(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	testkit.Put(t, file, "one")
	rig := newWatchRig(t, file, quickEvents)
	rig.await("one") // a change between the first reading and the watch must not be missed
	testkit.Put(t, file, "two")
	rig.await("two")
}

// Editors and configuration tools write beside the file and rename.
func TestWatchSeesARename(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	testkit.Put(t, file, "one")
	rig := newWatchRig(t, file, quickEvents)
	rig.await("one")
	for _, content := range []string{"two", "three"} {
		testkit.Put(t, file+".tmp", content)
		rename(t, file+".tmp", file)
		rig.await(content)
	}
}

// The kubelet's atomic writer never writes to the watched file. It makes a new directory, links
// ..data_tmp to it, renames that to ..data, and removes the old directory. A watch on the file sees
// no event, or ends with the first swap.
func TestWatchSeesTheKubeletSwapAVolume(t *testing.T) {
	t.Parallel()
	volume := filepath.Join(t.TempDir(), "volume")
	testkit.Mkdir(t, volume)
	swap := func(name, content string) {
		t.Helper()
		old, _ := os.Readlink(filepath.Join(volume, "..data"))
		testkit.Mkdir(t, filepath.Join(volume, name))
		testkit.Put(t, filepath.Join(volume, name, "policy.yaml"), content)
		link(t, name, filepath.Join(volume, "..data_tmp"))
		rename(t, filepath.Join(volume, "..data_tmp"), filepath.Join(volume, "..data"))
		if old != "" {
			testkit.Remove(t, filepath.Join(volume, old))
		}
	}
	swap("..2026_01_01_10_00_00.1", "one")
	link(t, "..data/policy.yaml", filepath.Join(volume, "policy.yaml"))
	rig := newWatchRig(t, filepath.Join(volume, "policy.yaml"), quickEvents)
	rig.await("one")
	swap("..2026_01_01_10_01_00.2", "two")
	rig.await("two")
	swap("..2026_01_01_10_02_00.3", "six") // of the same size
	rig.await("six")
}

func TestWatchFollowsALinkToAnotherDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	testkit.Mkdir(t, filepath.Join(dir, "etc"))
	testkit.Mkdir(t, filepath.Join(dir, "srv/policies"))
	target := filepath.Join(dir, "srv/policies/current.yaml")
	testkit.Put(t, target, "one")
	file := filepath.Join(dir, "etc/policy.yaml")
	link(t, target, file)
	rig := newWatchRig(t, file, quickEvents)
	rig.await("one")
	testkit.Put(t, target, "two")
	rig.await("two")
}

// A watch on a directory ends with the directory.
func TestWatchSeesADirectoryRemovedAndMadeAgain(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "config")
	file := filepath.Join(dir, "policy.yaml")
	testkit.Mkdir(t, dir)
	testkit.Put(t, file, "one")
	rig := newWatchRig(t, file, quickEvents)
	rig.await("one")
	for _, content := range []string{"two", "three"} {
		testkit.Remove(t, dir)
		rig.await("missing")
		testkit.Mkdir(t, dir)
		testkit.Put(t, file, content)
		rig.await(content)
	}
	// Replaced by a different directory in one step.
	testkit.Mkdir(t, dir+".new")
	testkit.Put(t, filepath.Join(dir+".new", "policy.yaml"), "four")
	rename(t, dir, dir+".old")
	rename(t, dir+".new", dir)
	rig.await("four")
	testkit.Put(t, file, "five")
	rig.await("five")
}

func TestWatchSeesAFileThatComesLater(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "later/policy.yaml")
	rig := newWatchRig(t, file, quickEvents)
	rig.await("missing")
	testkit.Mkdir(t, filepath.Dir(file))
	testkit.Put(t, file, "one")
	rig.await("one")
}

func TestWatchSeesFilesOfADirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "keys")
	testkit.Mkdir(t, dir)
	reloads := make(chan []string, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		watch(ctx, slog.New(slog.DiscardHandler), always(Group{Name: "keys", Paths: []string{dir}, Reload: func() error {
			entries, err := os.ReadDir(dir)
			var names []string
			for _, entry := range entries {
				names = append(names, entry.Name())
			}
			reloads <- names
			return err
		}}), nil, func(string, error) {}, quickEvents)
	}()
	t.Cleanup(func() { cancel(); <-done })
	await := func(want ...string) {
		t.Helper()
		for {
			select {
			case got := <-reloads:
				if slices.Equal(got, want) {
					return
				}
			case <-time.After(30 * time.Second):
				t.Fatalf("no reload has seen %q", want)
			}
		}
	}
	await()
	testkit.Put(t, filepath.Join(dir, "key-1.json"), "1")
	await("key-1.json")
	testkit.Put(t, filepath.Join(dir, "key-2.json"), "2")
	await("key-1.json", "key-2.json")
	testkit.Remove(t, filepath.Join(dir, "key-1.json"))
	await("key-2.json")
}

// Many events must not become many reloads, and a directory in which something
// is always written must not put a reload off for ever.
func TestWatchReloadsOnceForManyEvents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "policy.yaml")
	testkit.Put(t, file, "one")
	rig := newWatchRig(t, file, timing{quiet: time.Minute, most: 50 * time.Millisecond, poll: longPoll})
	rig.await("one")

	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // an audit log beside the policy
		defer close(stopped)
		log, err := os.OpenFile(filepath.Join(dir, "audit.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Error(err)
			return
		}
		defer log.Close()
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = log.WriteString("x")
			}
		}
	}()
	defer func() { close(stop); <-stopped }()

	testkit.Put(t, filepath.Join(dir, "next"), "two")
	rename(t, filepath.Join(dir, "next"), file) // a half-written file would be reloaded twice
	if n := rig.await("two"); n != 1 {
		t.Errorf("%d reloads for one change", n)
	}
	if n := len(rig.reloads); n > 0 {
		t.Errorf("%d reloads without a change", n)
	}
}

// Events are not the only way: inotify may be at its limit, and a link far up
// can be swapped where nothing is watched.
func TestWatchPolls(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	for _, release := range []string{"one", "two"} {
		testkit.Mkdir(t, filepath.Join(base, release, "etc/pullpass"))
		testkit.Put(t, filepath.Join(base, release, "etc/pullpass/policy.yaml"), release)
	}
	testkit.Mkdir(t, filepath.Join(base, "current"))
	link(t, filepath.Join(base, "one"), filepath.Join(base, "current/release"))
	timing := quickEvents
	timing.poll = 10 * time.Millisecond
	rig := newWatchRig(t, filepath.Join(base, "current/release/etc/pullpass/policy.yaml"), timing)
	rig.await("one")
	link(t, filepath.Join(base, "two"), filepath.Join(base, "current/next"))
	rename(t, filepath.Join(base, "current/next"), filepath.Join(base, "current/release"))
	rig.await("two")
}

func TestWatchReloadsWhatChangedAndRetriesWhatFailed(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	testkit.Put(t, file, "one")
	var reloads []string
	outcomes := map[string]int{}
	failing := false
	w := newWatcher(slog.New(slog.DiscardHandler), func(name string, err error) { outcomes[name+" "+errorText(err)]++ },
		always(Group{Name: "policy", Paths: []string{file}, Reload: func() error {
			data, err := os.ReadFile(file)
			reloads = append(reloads, string(data))
			if failing {
				return errors.New("bad content")
			}
			return err
		}}))
	expect := func(want ...string) {
		t.Helper()
		if !slices.Equal(reloads, want) {
			t.Errorf("reloads have read %q, want %q", reloads, want)
		}
	}
	w.look(failedToo)
	w.look(failedToo)
	expect("one") // nothing new, nothing to do
	testkit.Put(t, file, "two")
	w.look(changed)
	expect("one", "two")

	failing = true
	testkit.Put(t, file, "bad")
	w.look(changed)
	expect("one", "two", "bad")
	w.look(changed) // an event of something else
	expect("one", "two", "bad")
	w.look(failedToo) // a poll: the cause may lie elsewhere, so it may have gone
	expect("one", "two", "bad", "bad")
	failing = false
	w.look(failedToo)
	w.look(failedToo)
	expect("one", "two", "bad", "bad", "bad")
	w.look(everything)
	expect("one", "two", "bad", "bad", "bad", "bad")
	if outcomes["policy ok"] != 4 || outcomes["policy bad content"] != 2 {
		t.Errorf("outcomes %v, want 4 times ok, 2 times bad content", outcomes)
	}
}

// Groups come and go with the configuration. One that is there already is not
// read again, and one that is not the same any more is.
func TestWatchFollowsTheGroups(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	testkit.Put(t, one, "")
	testkit.Put(t, two, "")
	var reloads, told []string
	group := func(name string, part any, paths ...string) Group {
		return Group{Name: name, Part: part, Paths: paths, Reload: func() error { reloads = append(reloads, name); return nil }}
	}
	var groups []Group
	w := newWatcher(slog.New(slog.DiscardHandler), func(name string, _ error) { told = append(told, name) }, func() []Group { return groups })
	for _, step := range []struct {
		what   string
		groups []Group
		want   []string
	}{
		{"first", []Group{group("a", nil, one)}, []string{"a"}},
		{"one more", []Group{group("b", nil, two), group("a", nil, one)}, []string{"b"}},
		{"other files", []Group{group("b", nil, two), group("a", nil, one, two)}, []string{"a"}},
		{"another part", []Group{group("b", 1, two), group("a", nil, one, two)}, []string{"b"}},
		{"one less", []Group{group("b", 1, two)}, nil},
		{"back", []Group{group("b", 1, two), group("a", nil, one, two)}, []string{"a"}},
	} {
		reloads, told, groups = nil, nil, step.groups
		w.look(changed)
		if !slices.Equal(reloads, step.want) || !slices.Equal(told, step.want) {
			t.Errorf("%s: reloaded %q, told of %q, want %q", step.what, reloads, told, step.want)
		}
	}
}

// A slow reload does not delay others. Changes and requests during a reload are not lost.
func TestWatchDoesNotWait(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	slow, quick := filepath.Join(dir, "slow"), filepath.Join(dir, "quick")
	testkit.Put(t, slow, "one")
	testkit.Put(t, quick, "one")
	begun, release, told := make(chan string), make(chan bool), make(chan string, 100)
	all := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		watch(ctx, slog.New(slog.DiscardHandler), always(
			Group{Name: "slow", Paths: []string{slow}, Reload: func() error {
				data, err := os.ReadFile(slow)
				begun <- string(data)
				<-release
				return err
			}},
			Group{Name: "quick", Paths: []string{quick}, Reload: func() error { return nil }},
		), all, func(name string, _ error) { told <- name }, quickEvents)
	}()
	t.Cleanup(func() { cancel(); close(release); <-done })
	next := func(c chan string, want string) {
		t.Helper()
		for timeout := time.After(30 * time.Second); ; {
			select {
			case got := <-c:
				if got == want {
					return
				}
				if got != "quick" { // one change can make several events
					t.Fatalf("%q, want %q", got, want)
				}
			case <-timeout:
				t.Fatalf("no %q", want)
			}
		}
	}
	next(begun, "one")
	next(told, "quick")
	testkit.Put(t, quick, "two")
	next(told, "quick")
	testkit.Put(t, slow, "two")
	all <- struct{}{}
	next(told, "quick")
	release <- true
	next(told, "slow")
	next(begun, "two")
	release <- true
	next(told, "slow")

	all <- struct{}{}
	next(told, "quick")
	next(begun, "two")
	all <- struct{}{} // while it is under way
	next(told, "quick")
	release <- true
	next(told, "slow")
	next(begun, "two")
}

// A reload that puts load on other services is not repeated every minute, but runs after a change
// of its files.
func TestWatchRetriesLater(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	testkit.Put(t, file, "one")
	failure := error(fmt.Errorf("wrapped: %w", RetryLater{errors.New("down")}))
	tries := 0
	w := newWatcher(slog.New(slog.DiscardHandler), func(string, error) {},
		always(Group{Name: "kubeconfig", Paths: []string{file}, Reload: func() error { tries++; return failure }}))
	at := func(polls int) (tried []int) {
		t.Helper()
		for i := range polls {
			before := tries
			if w.look(failedToo); tries > before {
				tried = append(tried, i)
			}
		}
		return tried
	}
	if got := at(60); !slices.Equal(got, []int{0, 1, 3, 7, 15, 31, 47}) {
		t.Errorf("tried at %d", got)
	}
	testkit.Put(t, file, "two")
	w.look(changed)
	if tries != 8 {
		t.Errorf("%d tries; the files have changed", tries)
	}
	if got := at(4); !slices.Equal(got, []int{0, 2}) {
		t.Errorf("after a change, tried again at %d", got)
	}
	failure = errors.New("bad content")
	w.look(everything)
	if got := at(3); !slices.Equal(got, []int{0, 1, 2}) {
		t.Errorf("of another failure, tried at %d", got)
	}
	failure = nil
	if got := at(3); !slices.Equal(got, []int{0}) {
		t.Errorf("of none, tried at %d", got)
	}
}

func errorText(err error) string {
	if err == nil {
		return "ok"
	}
	return err.Error()
}

func TestWatchLogsWhatFailedAndWhatStays(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	var log strings.Builder
	w := newWatcher(slog.New(slog.NewTextHandler(&log, nil)), func(string, error) {},
		always(Group{Name: "policy", Paths: []string{file}, Reload: func() error {
			_, err := os.Stat(file)
			return err
		}}))
	w.look(failedToo)
	if want := `level=ERROR msg="reload failed, the last good files stay in use" name=policy error="stat ` + file; !strings.Contains(log.String(), want) {
		t.Errorf("log:\n%s\nwant %s", log.String(), want)
	}
	testkit.Put(t, file, "")
	w.look(failedToo)
	if want := "level=INFO msg=reloaded name=policy"; !strings.Contains(log.String(), want) {
		t.Errorf("log:\n%s\nwant %s", log.String(), want)
	}
}

// Two lists of files must never look alike.
func TestDigestTellsFilesApart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := func(n string) string { return filepath.Join(dir, n) }
	testkit.Put(t, name("a"), "a")
	testkit.Put(t, name("ab"), "ab")
	testkit.Put(t, name("b"), "b")
	testkit.Put(t, name("empty"), "")
	testkit.Mkdir(t, name("d"))
	testkit.Mkdir(t, name("e"))
	testkit.Put(t, name("e/a"), "a")
	seen := map[[32]byte][]string{}
	for _, paths := range [][]string{
		{}, {name("a")}, {name("b")}, {name("a"), name("b")}, {name("b"), name("a")}, {name("ab")}, {name("empty")},
		{name("empty"), name("empty")}, {name("missing")}, {name("d")}, {name("e")},
	} {
		content := Digest(paths)
		if other, twice := seen[content]; twice {
			t.Errorf("%q and %q look alike", paths, other)
		}
		seen[content] = paths
	}
}

func rename(t testing.TB, from, to string) {
	t.Helper()
	testkit.Must(t, os.Rename(from, to))
}

func link(t testing.TB, target, name string) {
	t.Helper()
	testkit.Must(t, os.Symlink(target, name))
}

// Whatever stands in a file's place is a change, and is neither waited for nor
// read without end.
func TestWatchSeesWhatIsNoFile(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "policy.yaml")
	for _, place := range []func() error{
		func() error { return syscall.Mkfifo(name, 0o600) },
		func() error { return os.Symlink("/dev/zero", name) },
		func() error { return os.Mkdir(name, 0o700) },
	} {
		testkit.Remove(t, name)
		testkit.Put(t, name, "good")
		rig := newWatchRig(t, name, quickEvents)
		rig.await("good")
		testkit.Remove(t, name)
		testkit.Must(t, place())
		rig.await("no file")
		testkit.Remove(t, name)
		testkit.Put(t, name, "better")
		rig.await("better")
	}
}

// A program may write again while its previous change is undone. The content is then the same as
// before the reload.
func TestWatchRestoresAFileThatIsRewrittenDuringAReload(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "hosts.toml")
	write := func(content string) {
		testkit.Put(t, name+".new", content)
		rename(t, name+".new", name)
	}
	write("ours")
	looked, repaired := make(chan bool, 1000), 0
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		watch(ctx, slog.New(slog.DiscardHandler), always(Group{Name: "node", Paths: []string{name}, Restores: true, Reload: func() error {
			data, err := os.ReadFile(name)
			if string(data) != "ours" {
				write("ours")
				if repaired++; repaired < 4 {
					write("theirs")
				}
			}
			looked <- string(data) == "ours" || repaired == 4
			return err
		}}), nil, func(string, error) {}, quickEvents)
	}()
	t.Cleanup(func() { cancel(); <-done })
	<-looked
	write("theirs")
	for timeout := time.After(30 * time.Second); ; {
		select {
		case restored := <-looked:
			if restored {
				return
			}
		case <-timeout:
			t.Fatal("the file is not restored")
		}
	}
}

// An event reloads a group without a change only if the group restores its files, and only once.
func TestWatchReloadsARestoringGroupAfterItsEvents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "certs.d", "hosts.toml")
	testkit.Mkdir(t, filepath.Dir(name))
	testkit.Put(t, name, "one")
	link(t, filepath.Join(dir, "certs.d"), filepath.Join(dir, "link"))
	var reloads []string
	reload := func() error { return nil }
	w := newWatcher(slog.New(slog.DiscardHandler), func(name string, _ error) { reloads = append(reloads, name) }, always(
		Group{Name: "config", Paths: []string{name}, Reload: reload},
		Group{Name: "node", Paths: []string{filepath.Join(dir, "link", "hosts.toml")}, Restores: true, Reload: reload},
	))
	w.look(changed)
	for _, step := range []struct {
		name  string
		which selection
		want  []string
	}{
		{name + ".new", touchedToo, nil},
		{filepath.Join(dir, "cert"), touchedToo, nil},
		{name, changed, nil}, // the end of another group's reload
		{"", touchedToo, []string{"node"}},
		{"", touchedToo, nil},
		{filepath.Join(dir, "link", "hosts.toml"), touchedToo, []string{"node"}},
		{filepath.Dir(name), touchedToo, []string{"node"}},
		{"", failedToo, []string{"node"}}, // a poll without events
	} {
		reloads = nil
		if step.name != "" {
			w.touch(step.name)
		}
		w.look(step.which)
		if !slices.Equal(reloads, step.want) {
			t.Errorf("%s, %d: reloaded %q, want %q", step.name, step.which, reloads, step.want)
		}
	}
}
