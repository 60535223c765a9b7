package main

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
	"time"

	"github.com/fsnotify/fsnotify"
)

// WatchGroup are files that are read together.
type WatchGroup struct {
	Name string // for the log and for metrics
	// Paths are files, which may be symbolic links, or directories, which are
	// watched for what lies in them, one level deep. They need not exist.
	Paths []string
	// Reload reads them all again and keeps what it had when it fails. It is
	// never called twice at a time.
	Reload func() error
}

// watchTiming says how fast Watch is.
type watchTiming struct {
	quiet time.Duration // how long nothing must happen before files are looked at
	most  time.Duration // … but no longer than this after the first event
	poll  time.Duration // how often files are looked at without an event
}

// Watch calls Reload of each group once, so that no change since the first
// reading is missed, and then whenever the content of one of its files has
// changed. It tells the outcome to onReload and the log, and returns when ctx
// ends.
//
// Events come from the directories, not from the files: the kubelet replaces
// the files of a volume by swapping a symbolic link beside them (..data), of
// which a watch on the file would see nothing. Which file an event is about
// does not matter: contents are compared. Because events get lost (inotify is
// at its limit, a directory is replaced, a link far up is swapped), files are
// also looked at once a minute. A reload that failed is tried again then.
func Watch(ctx context.Context, logger *slog.Logger, groups []WatchGroup, onReload func(name string, err error)) {
	watch(ctx, logger, groups, onReload, watchTiming{quiet: 150 * time.Millisecond, most: time.Second, poll: time.Minute})
}

func watch(ctx context.Context, logger *slog.Logger, groups []WatchGroup, onReload func(string, error), timing watchTiming) {
	w := &fileWatcher{logger: logger, onReload: onReload, warned: map[string]bool{}}
	for _, g := range groups {
		w.groups = append(w.groups, &watchedGroup{WatchGroup: g})
	}
	var events chan fsnotify.Event
	var failures chan error
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		logger.Warn("no file events, changes are seen within the time of a poll", "poll", timing.poll, "error", err)
	} else {
		defer notify.Close()
		w.notify, events, failures = notify, notify.Events, notify.Errors
	}

	w.check(true)
	poll := time.NewTicker(timing.poll)
	defer poll.Stop()
	pending := time.NewTimer(timing.quiet)
	pending.Stop()
	defer pending.Stop()
	var since time.Time // of the first event that is pending; zero: none
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
		case err := <-failures:
			logger.Warn("file events were lost, files are looked at instead", "error", err)
		case <-poll.C:
			w.check(true)
			continue
		case <-pending.C:
			since = time.Time{}
			w.check(false)
			continue
		}
		if since.IsZero() {
			since = time.Now()
		}
		// A directory in which something is always going on, a log for example,
		// must not put the reload off for ever.
		pending.Reset(min(timing.quiet, max(0, timing.most-time.Since(since))))
	}
}

// fileWatcher belongs to one goroutine.
type fileWatcher struct {
	logger   *slog.Logger
	notify   *fsnotify.Watcher // nil: only polling
	groups   []*watchedGroup
	onReload func(string, error)
	warned   map[string]bool // directories that cannot be watched, said once
}

type watchedGroup struct {
	WatchGroup
	content [sha256.Size]byte // at the last reload
	loaded  bool              // a reload was tried
	failed  bool              // … and the last one failed
}

// check reloads the groups whose content has changed, and, when retry is set,
// those whose last reload failed.
func (w *fileWatcher) check(retry bool) {
	w.watchDirectories()
	for _, g := range w.groups {
		// Before the reload: what changes during it is seen as a change at the
		// next look.
		content := contentOf(g.Paths)
		first := !g.loaded
		if !first && content == g.content && !(retry && g.failed) {
			continue
		}
		err := g.Reload()
		switch {
		case err != nil:
			w.logger.Error("reload failed, the last good files stay in use", "name", g.Name, "error", err)
		case !first:
			w.logger.Info("reloaded", "name", g.Name)
		}
		w.onReload(g.Name, err)
		g.content, g.loaded, g.failed = content, true, err != nil
	}
}

// watchDirectories brings the watches in line with where the files are now: in
// their directory, in the one above it (it sees the directory come and go), and
// where their links lead. A directory that is not there is tried again at the
// next look.
func (w *fileWatcher) watchDirectories() {
	if w.notify == nil {
		return
	}
	wanted := map[string]bool{} // true: the files themselves are in it
	for _, g := range w.groups {
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
			_ = w.notify.Remove(dir) // it is gone, or nothing of ours is in it
		}
	}
	// Also those that are watched already: the name may lead to another directory by now.
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

// contentOf digests what the paths lead to. Times and sizes would not do: a
// file can be replaced by one of the same size within one tick of the file
// system's clock.
func contentOf(paths []string) [sha256.Size]byte {
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
	case info.Mode().IsRegular():
		addFile(sum, path)
	}
}

// maxWatchedBytes is how much of a file is compared; none that is read may be larger.
const maxWatchedBytes = 64 << 20

func addFile(sum hash.Hash, path string) {
	f, err := os.Open(path)
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
