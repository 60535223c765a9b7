package nodeinstall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
	"golang.org/x/tools/txtar"

	"github.com/pullpass/pullpass/internal/node/hostfs"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const (
	testPlugin   = "PLUGIN\n"
	testHosts    = "HOSTS\n"
	testProvider = `apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: pullpass-credential-provider
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: ["ghcr.io"]
  defaultCacheDuration: "0s"
`
)

func desired(version string) Desired {
	return Desired{KubeletVersion: version, Plugin: []byte(testPlugin), Provider: []byte(testProvider), Hosts: map[string][]byte{"ghcr.io": []byte(testHosts)}}
}

// host is a host in a directory, and its kubelet.
type host struct {
	t       *testing.T
	dir     string
	tree    *hostfs.Tree
	before  map[string]string
	kubelet fakeKubelet
	Installer
}

// fakeKubelet becomes healthy unless sick gives a reason. As the real one, it does not answer after the end
// of a time limit.
type fakeKubelet struct {
	restarts int
	lost     error // instead of a restart
	sick     func() error
	ended    func() (int, error)
}

func (k *fakeKubelet) Restart(context.Context) error { k.restarts++; return k.lost }
func (k *fakeKubelet) Ended(ctx context.Context) (times int, err error) {
	if k.ended != nil {
		times, err = k.ended()
	}
	return times, cmp.Or(ctx.Err(), err)
}

func (k *fakeKubelet) Healthy(ctx context.Context) (err error) {
	if k.sick != nil {
		err = k.sick()
	}
	return cmp.Or(ctx.Err(), err)
}

// The watcher of the tests runs in the process.
func (h *host) Ready(context.Context) error     { return nil }
func (h *host) Watch(ctx context.Context) error { return Watch(ctx, h.tree, &h.kubelet) }

// newHost creates the host of a fixture.
func newHost(t *testing.T, name string) *host {
	t.Helper()
	archive := testkit.Value(txtar.ParseFile(filepath.Join("testdata", name+".txtar")))(t)
	h := &host{t: t, dir: filepath.Join(t.TempDir(), "host")}
	for _, file := range archive.Files {
		if path, found := strings.CutPrefix(file.Name, "host/"); found {
			h.put(path, string(file.Data))
		}
	}
	h.put("etc/passwd", "root:x:0:0:\n")
	for _, dir := range []string{"etc", "usr", "var/lib", "run/systemd/system"} {
		testkit.Must(t, os.MkdirAll(filepath.Join(h.dir, dir), 0o755))
	}
	for line := range strings.Lines(string(archive.Comment)) {
		switch fields := strings.Fields(line); {
		case len(fields) == 3 && fields[0] == "link":
			h.link(fields[1], fields[2])
		case len(fields) == 3 && fields[0] == "mode":
			mode := testkit.Value(strconv.ParseUint(fields[2], 8, 32))(t)
			testkit.Must(t, os.Chmod(filepath.Join(h.dir, fields[1]), fs.FileMode(mode)))
		}
	}
	h.tree = testkit.Value(hostfs.Open(h.dir))(t)
	t.Cleanup(func() { _ = h.tree.Close() })
	h.Installer = *New(Config{Tree: h.tree, Watcher: h})
	h.before = h.files()
	return h
}

func (h *host) put(name, content string) {
	h.t.Helper()
	name = filepath.Join(h.dir, name)
	testkit.Must(h.t, os.MkdirAll(filepath.Dir(name), 0o755))
	testkit.Must(h.t, os.WriteFile(name, []byte(content), 0o640))
}

func (h *host) link(name, target string) {
	h.t.Helper()
	name = filepath.Join(h.dir, name)
	testkit.Must(h.t, os.MkdirAll(filepath.Dir(name), 0o755))
	testkit.Must(h.t, os.Symlink(target, name))
}

func (h *host) read(name string) string {
	h.t.Helper()
	data, err := os.ReadFile(filepath.Join(h.dir, name))
	testkit.Must(h.t, err)
	return string(data)
}

// files returns the whole tree, with modes, links and contents.
func (h *host) files() map[string]string { return h.list(false) }

// writes returns the same with details that show whether anything was written.
func (h *host) writes() map[string]string { return h.list(true) }

func (h *host) list(times bool) map[string]string {
	h.t.Helper()
	all := map[string]string{}
	testkit.Must(h.t, filepath.WalkDir(h.dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String()
		if times {
			text += " " + info.ModTime().String()
		}
		switch info.Mode().Type() {
		case fs.ModeSymlink:
			target, err := os.Readlink(name)
			all[strings.TrimPrefix(name, h.dir)] = text + " " + target
			return err
		case 0:
			owner := make([]byte, 1024)
			if n, err := unix.Getxattr(name, "user.owner", owner); err == nil {
				text += " of " + string(owner[:n])
			}
			data, err := os.ReadFile(name)
			all[strings.TrimPrefix(name, h.dir)] = text + "\n" + string(data)
			return err
		}
		all[strings.TrimPrefix(name, h.dir)] = text
		return nil
	}))
	return all
}

// expect compares two trees.
func (h *host) expect(what string, got, want map[string]string) {
	h.t.Helper()
	names := map[string]bool{}
	for name := range got {
		names[name] = true
	}
	for name := range want {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if got[name] != want[name] {
			h.t.Errorf("%s: %s:\n%s\nwant\n%s", what, name, got[name], want[name])
		}
	}
}

// untouched verifies that do returns the error and writes nothing.
func (h *host) untouched(want error, text string, do func() error) {
	h.t.Helper()
	before := h.writes()
	if err := do(); !errors.Is(err, want) || !strings.Contains(err.Error(), text) {
		h.t.Errorf("error %v, want %v with %q", err, want, text)
	}
	h.expect("after an error", h.writes(), before)
}

// apply expects that nothing is left to do.
func (h *host) apply(d Desired) *Plan {
	h.t.Helper()
	plan, err := h.Apply(h.t.Context(), d)
	testkit.Must(h.t, err)
	if rest, err := h.Status(d); err != nil || !rest.isDone() {
		h.t.Errorf("after apply: %+v, %v", rest, err)
	}
	return plan
}

func (h *host) uninstall() {
	h.t.Helper()
	_, err := h.Uninstall(h.t.Context())
	testkit.Must(h.t, err)
}

// expectUninstalled uninstalls, and expects the host as it was.
func (h *host) expectUninstalled() {
	h.t.Helper()
	h.uninstall()
	h.expect("after uninstall", h.files(), h.before)
}

// actions returns the changes of a plan, one a line.
func actions(p *Plan) (all []string) {
	for _, c := range p.Changes {
		all = append(all, fmt.Sprintf("%s %s: %s", c.Action, c.Path, c.Reason))
	}
	return all
}

// bubble runs a test with its own clock, because a kubelet is watched for seconds.
func bubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// onHost runs a test on a host of a platform.
func onHost(t *testing.T, name string, test func(*testing.T, *host)) {
	t.Helper()
	bubble(t, func(t *testing.T) { test(t, newHost(t, name)) })
}
