package filewatch

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/pullpass/pullpass/internal/base/file"
)

// Group is a set of files that are read together.
type Group struct {
	Name string // for the log and for metrics
	// Paths are files, which may be symbolic links, or directories. The files in a directory are
	// watched, one level deep. The paths need not exist.
	Paths []string
	// Part is the object that Reload reloads, if it can be replaced. A new object is reloaded at
	// once. Part must be comparable.
	Part any
	// Restores says that Reload writes the files if they differ from its own content. It is then also
	// called after an event of them: another program may have written the same content as before
	// the last reload.
	Restores bool
	// Reload reads all the files again. On an error it keeps the previous state. It is never called
	// twice at a time, but may run at the same time as that of other groups.
	Reload func() error
}

// RetryLater is the error of a reload that puts load on other services. Unless its files change, it
// is tried again only at the first, third, seventh… poll.
type RetryLater struct{ Err error }

func (e RetryLater) Error() string { return e.Err.Error() }
func (e RetryLater) Unwrap() error { return e.Err }

// maxRetryPolls is the maximum number of polls between two attempts.
const maxRetryPolls = 15

// timing holds the intervals of Watch.
type timing struct {
	quiet time.Duration // files are read after this time without events
	most  time.Duration // … but no longer than this after the first event
	poll  time.Duration // how often files are read without an event
	blind bool          // there are no events
}

// Watch calls Reload of each group once, so that no change since the first reading is missed. Then
// it calls Reload when the content of one of the group's files has changed, or when all requests
// it. It reports each result to onReload and the log. It returns when ctx ends and no reload is
// running. It calls groups each time that it reads the files. A slow reload does not delay other
// groups.
//
// Events come from the directories, not from the files. The kubelet replaces the files of a volume
// through a symbolic link beside them (..data), and a watch on the file would not notice that.
// Contents are compared, so the file that an event names does not matter. Events can be lost:
// inotify is at its limit, a directory is replaced, a link in a parent directory changes. So files
// are also read once a minute. A failed reload is then tried again.
func Watch(ctx context.Context, logger *slog.Logger, groups func() []Group, all <-chan struct{}, onReload func(name string, err error)) {
	watch(ctx, logger, groups, all, onReload, timing{quiet: 150 * time.Millisecond, most: time.Second, poll: time.Minute})
}

// Poll is Watch without events, for simulations in virtual time: that stands still while a goroutine waits for
// the operating system.
func Poll(ctx context.Context, logger *slog.Logger, groups func() []Group, all <-chan struct{}, onReload func(name string, err error)) {
	watch(ctx, logger, groups, all, onReload, timing{poll: time.Minute, blind: true})
}

func watch(ctx context.Context, logger *slog.Logger, groups func() []Group, all <-chan struct{}, onReload func(string, error), t timing) {
	w := &watcher{logger: logger, groups: groups, onReload: onReload, warned: map[string]bool{}, ended: make(chan *watchedGroup)}
	defer w.end()
	var events chan fsnotify.Event
	var failures chan error
	if !t.blind {
		notify, err := fsnotify.NewWatcher()
		if err != nil {
			logger.Warn("no file events, changes are seen within the time of a poll", "poll", t.poll, "error", err)
		} else {
			defer notify.Close()
			w.notify, events, failures = notify, notify.Events, notify.Errors
		}
	}

	w.check(failedToo)
	poll := time.NewTicker(t.poll)
	defer poll.Stop()
	pending := time.NewTimer(t.quiet)
	pending.Stop()
	defer pending.Stop()
	var since time.Time // of the first event that is pending; zero: none
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-events:
			w.touch(event.Name)
		case err := <-failures:
			logger.Warn("file events were lost, files are looked at instead", "error", err)
		case <-poll.C:
			w.check(failedToo)
			continue
		case <-all:
			w.check(everything)
			continue
		case g := <-w.ended:
			w.reloaded(g)
			w.check(changed)
			continue
		case <-pending.C:
			since = time.Time{}
			w.check(touchedToo)
			continue
		}
		if since.IsZero() {
			since = time.Now()
		}
		// A directory with constant activity, a log for example, must not delay the reload forever.
		pending.Reset(min(t.quiet, max(0, t.most-time.Since(since))))
	}
}

// watcher belongs to one goroutine. Other goroutines only run reloads and report to ended.
type watcher struct {
	logger   *slog.Logger
	notify   *fsnotify.Watcher // nil: polling only
	groups   func() []Group
	watched  []*watchedGroup
	onReload func(string, error)
	warned   map[string]bool // directories that cannot be watched, each logged once
	ended    chan *watchedGroup
	running  int // running reloads
}

type watchedGroup struct {
	Group
	content [sha256.Size]byte // at the last reload
	busy    bool              // a reload is running
	again   bool              // … and a further reload is needed
	touched bool              // an event has named a file that Reload restores
	reloads int               // so far
	err     error             // of the last reload
	skip    int               // number of polls without a retry
	backoff int               // skip after the next failure
}

// selection says which groups are reloaded, besides those that never were.
type selection int

const (
	changed    selection = iota // whose content has changed
	touchedToo                  // and those that restore a file with an event
	failedToo                   // and those whose last reload failed
	everything                  // all
)

// check reloads the groups that are selected.
func (w *watcher) check(which selection) {
	w.follow(w.groups())
	w.watchDirectories()
	for _, g := range w.watched {
		// Without events, a poll may find the same content as before a reload that restored the files.
		forced := which == everything || which == touchedToo && g.touched || which == failedToo && g.Restores && w.notify == nil
		if which == touchedToo {
			g.touched = false
		}
		if g.busy {
			g.again = g.again || forced
			continue // changes since then are checked when it ends
		}
		// Read before the reload: a change during the reload is then found at the next check.
		content := Digest(g.Paths)
		if g.reloads > 0 && content == g.content && !(which == failedToo && g.isDue()) && !forced && !g.again {
			continue
		}
		if content != g.content {
			g.backoff = 0
		}
		g.content, g.busy, g.again = content, true, false
		w.running++
		go func() {
			g.err = g.Reload()
			w.ended <- g
		}()
	}
}

// touch notes an event of a file, or of a directory above it.
func (w *watcher) touch(name string) {
	for _, g := range w.watched {
		g.touched = g.touched || g.Restores && slices.ContainsFunc(g.Paths, func(path string) bool {
			return strings.HasPrefix(path+"/", name+"/") || strings.HasPrefix(resolved(path)+"/", name+"/")
		})
	}
}

// isDue reports, once for each poll, whether a failed reload is tried again.
func (g *watchedGroup) isDue() bool {
	if g.err == nil {
		return false
	}
	g.skip--
	return g.skip < 0
}

// follow adapts the watched groups to the present groups.
func (w *watcher) follow(groups []Group) {
	var watched []*watchedGroup
	for _, now := range groups {
		i := slices.IndexFunc(w.watched, func(g *watchedGroup) bool {
			return g.Name == now.Name && g.Part == now.Part && slices.Equal(g.Paths, now.Paths)
		})
		if i >= 0 {
			watched = append(watched, w.watched[i])
		} else {
			watched = append(watched, &watchedGroup{Group: now})
		}
	}
	w.watched = watched
}

// reloaded records the result of a reload, if its group still exists.
func (w *watcher) reloaded(g *watchedGroup) {
	w.running--
	g.busy = false
	g.reloads++
	g.skip = 0
	if _, later := errors.AsType[RetryLater](g.err); later {
		g.skip, g.backoff = g.backoff, min(2*g.backoff+1, maxRetryPolls)
	} else {
		g.backoff = 0
	}
	if !slices.Contains(w.watched, g) {
		return
	}
	switch {
	case g.err != nil:
		w.logger.Error("reload failed, the last good files stay in use", "name", g.Name, "error", g.err)
	case g.reloads > 1 && !g.Restores:
		w.logger.Info("reloaded", "name", g.Name)
	}
	w.onReload(g.Name, g.err)
}

// end waits for the running reloads.
func (w *watcher) end() {
	for ; w.running > 0; w.running-- {
		<-w.ended
	}
}

// watchDirectories adapts the watches to the present places of the files. It watches their
// directory, the directory above it (which shows the directory come and go), and the targets of
// their links. A missing directory is tried again at the next check.
func (w *watcher) watchDirectories() {
	if w.notify == nil {
		return
	}
	wanted := map[string]bool{} // true: the files themselves are in it
	for _, g := range w.watched {
		for _, path := range g.Paths {
			for _, name := range []string{path, resolved(path)} {
				if info, err := os.Stat(name); err == nil && info.IsDir() {
					wanted[name] = true
				}
				dir := filepath.Dir(name)
				wanted[dir] = true
				wanted[filepath.Dir(dir)] = wanted[filepath.Dir(dir)]
			}
		}
	}
	for _, dir := range w.notify.WatchList() {
		if _, ok := wanted[dir]; !ok {
			_ = w.notify.Remove(dir) // it was removed, or contains none of the files any longer
		}
	}
	// Also those that are watched already, because the name may lead to a different directory by
	// now.
	for _, dir := range slices.Sorted(maps.Keys(wanted)) {
		err := w.notify.Add(dir)
		if err != nil && wanted[dir] && !errors.Is(err, os.ErrNotExist) && !w.warned[dir] {
			w.warned[dir] = true
			w.logger.Warn("no file events of a directory, changes are seen within the time of a poll", "directory", dir, "error", err)
		}
	}
}

func resolved(path string) string {
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return path
	}
	return target
}

// Digest returns a digest of the contents of the paths. Times and sizes are not enough: a file can
// be replaced by one of the same size within one tick of the file system's clock.
func Digest(paths []string) [sha256.Size]byte {
	sum := sha256.New()
	for _, path := range paths {
		addPath(sum, path)
	}
	return [sha256.Size]byte(sum.Sum(nil))
}

func addPath(sum hash.Hash, path string) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		addPart(sum, "error", err.Error())
	case info.IsDir():
		entries, err := os.ReadDir(path)
		addPart(sum, "directory", "")
		if err != nil {
			addPart(sum, "error", err.Error())
		}
		for _, entry := range entries {
			addPart(sum, "entry", entry.Name())
			if info, err := os.Stat(filepath.Join(path, entry.Name())); err == nil && info.Mode().IsRegular() {
				addFile(sum, filepath.Join(path, entry.Name()))
			}
		}
	default:
		addFile(sum, path)
	}
}

// maxWatchedBytes is how much of a file is compared. No file that is read may be larger.
const maxWatchedBytes = 64 << 20

func addFile(sum hash.Hash, path string) {
	f, err := file.Open(path)
	if err != nil {
		addPart(sum, "error", err.Error())
		return
	}
	defer f.Close()
	content := sha256.New()
	if _, err := io.Copy(content, io.LimitReader(f, maxWatchedBytes)); err != nil {
		addPart(sum, "error", err.Error())
		return
	}
	addPart(sum, "file", string(content.Sum(nil)))
}

// addPart is injective: no two lists of parts give the same bytes.
func addPart(sum hash.Hash, kind, value string) {
	var size [8]byte
	for _, s := range []string{kind, value} {
		binary.BigEndian.PutUint64(size[:], uint64(len(s)))
		_, _ = sum.Write(size[:])
		_, _ = sum.Write([]byte(s))
	}
}
