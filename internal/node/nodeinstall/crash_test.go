package nodeinstall

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/pullpass/pullpass/internal/node/hostfs"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// These tests run the commands in a separate process. strace kills it, or makes its disk full or
// faulty, at one system call after the other.
var (
	crashEvery = flag.Int("crash-every", 0, "disturb the commands at every file operation (1), every second (2), and so on; 0: let one operation fail for each line that its error passes, and no more")
	crashChild = flag.String("crash-child", "", "a command that is to be disturbed, in JSON: the test runs itself with it")
)

// The system calls that change files or make names durable (fsync(2) changes nothing), and those
// that need disk space. strace counts each call separately.
var (
	changing = []string{"mkdirat", "renameat", "unlinkat", "linkat", "symlinkat", "fchown", "fchownat", "fchmod"}
	filling  = []string{"write", "mkdirat", "linkat", "symlinkat"}
	syncing  = []string{"fsync"} // it fails after the change, which is then in place
)

// illImage is in a configuration with which the kubelet does not become healthy.
const illImage = "ill.example.com"

// scenario is a command on a node.
type scenario struct {
	Platform, Version string
	Command           string
	Dir               string // of the host; what the kubelet runs with is beside it
}

// desired returns the desired states of the node before and after the command; nil: not installed.
func (s scenario) desired() (before, after *Desired) {
	first, second := desired(s.Version), desired(s.Version)
	next := desired(map[string]string{"v1.36.2": "v1.33.5", "v1.33.5": "v1.34.0"}[s.Version])
	first.Hosts["quay.io"] = []byte(testHosts)
	first.Provider = []byte(strings.Replace(testProvider, `["ghcr.io"]`, `["ghcr.io", "quay.io"]`, 1))
	second.Plugin = []byte("NEW PLUGIN\n")
	second.Hosts["gcr.io"] = []byte(testHosts)
	second.CA = []byte("CA\n")
	second.Provider = []byte(strings.Replace(testProvider, `["ghcr.io"]`, `["ghcr.io", "gcr.io"]`, 1))
	switch s.Command {
	case "apply":
		return nil, &first
	case "upgrade":
		return &first, &second
	case "another kubelet":
		return &first, &next
	case "uninstall":
		return &first, nil
	case "rejected", "rejected after an interrupted one":
		second.Provider = []byte(strings.Replace(testProvider, `["ghcr.io"]`, `["ghcr.io", "`+illImage+`"]`, 1))
		return &first, &second
	case "repair":
		return &first, &first
	case "after an interrupted one", "after an interrupted uninstall":
		return &first, &second
	case "uninstall after an interrupted one":
		return &first, nil
	}
	return nil, nil
}

var crashCommands = []string{
	"apply", "upgrade", "another kubelet", "uninstall", "rejected", "repair", "after an interrupted one", "rejected after an interrupted one", "after an interrupted uninstall", "uninstall after an interrupted one",
}

// isRejected reports whether the kubelet does not become healthy with the configuration.
func (s scenario) isRejected() bool { return strings.HasPrefix(s.Command, "rejected") }

// command runs the command that is disturbed.
func (c *crashHost) command(ctx context.Context) error {
	_, after := c.desired()
	if c.Command == "repair" {
		_, err := c.Repair(*after)
		return err
	}
	_, err := c.do(ctx, after)
	return err
}

// spoil changes the files that Repair restores.
func (c *crashHost) spoil() {
	c.t.Helper()
	for _, name := range c.Repairable() {
		if filepath.Base(name) == "hosts.toml" {
			testkit.Remove(c.t, filepath.Dir(name))
		} else {
			testkit.Put(c.t, name, "of another owner")
		}
	}
}

func (h *host) do(ctx context.Context, d *Desired) (*Plan, error) {
	if d == nil {
		_, err := h.Uninstall(ctx)
		return nil, err
	}
	return h.Apply(ctx, *d)
}

// open returns the host in a directory, with a kubelet that reads the current files.
func (s scenario) open(t *testing.T) *crashHost {
	t.Helper()
	c := &crashHost{scenario: s, host: &host{t: t, dir: filepath.Join(s.Dir, "host")}}
	var err error
	c.tree, err = hostfs.Open(c.dir)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = c.tree.Close() })
	c.Installer = *New(Config{Tree: c.tree, Watcher: c})
	c.profile, err = findProfile(c.tree, s.Platform)
	testkit.Must(t, err)
	return c
}

type crashHost struct {
	*host
	scenario
	profile profile
	watched int // how often
}

func (c *crashHost) Watch(ctx context.Context) error {
	c.watched++
	return Watch(ctx, c.tree, c)
}

// Restart makes the kubelet run with the current files, or not at all.
func (c *crashHost) Restart(context.Context) error {
	registries, err := c.configured()
	content, _ := json.Marshal(running{registries, err == nil})
	f, err := os.OpenFile(filepath.Join(c.Dir, "running"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	// This is not a call at which the commands are disturbed.
	_, err = f.WriteAt(content, 0)
	return errors.Join(err, f.Truncate(int64(len(content))), f.Close())
}

type running struct {
	Registries []string // that it sends tokens for
	Up         bool
}

func (c *crashHost) running() (r running) {
	content, err := os.ReadFile(filepath.Join(c.Dir, "running"))
	testkit.Must(c.t, err)
	testkit.Must(c.t, json.Unmarshal(content, &r))
	return r
}

func (c *crashHost) Healthy(context.Context) error {
	if !c.running().Up {
		return errors.New("connection refused")
	}
	return nil
}

func (c *crashHost) Ended(context.Context) (int, error) {
	if !c.running().Up {
		return hopeless, nil
	}
	return 0, nil
}

// configured returns the registries for which a kubelet that starts now would send tokens. The
// error is the reason why it would not start.
func (c *crashHost) configured() (registries []string, err error) {
	failing := c.tree.Failing
	c.tree.Failing = nil // the kubelet does not fail
	defer func() { c.tree.Failing = failing }()
	p := c.profile
	flagFile, err := p.flagFile(c.tree)
	if err != nil {
		return nil, err
	}
	if p.flags.form == formRancher {
		flagFile = path.Dir(flagFile) + "/none"
	}
	v, err := p.flags.flagsOfOthers(c.tree, flagFile, nil, flagValues{})
	if err != nil {
		return nil, err
	}
	plugins := v.plugins
	if p.implied {
		is, err := c.tree.Exists(p.config)
		if err != nil {
			return nil, err
		}
		if is {
			v.config = cmp.Or(v.config, p.config)
		}
		plugins = cmp.Or(plugins, p.plugins)
	}
	if v.config == "" {
		return nil, nil
	}
	files := []string{v.config}
	mode, err := c.tree.Mode(v.config)
	if err != nil {
		return nil, err
	}
	if mode.IsDir() {
		files = nil
		names, err := c.tree.Names(v.config)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if slices.Contains([]string{".json", ".yaml", ".yml"}, path.Ext(name)) {
				files = append(files, path.Join(v.config, name))
			}
		}
	}
	var names []string
	for _, file := range files {
		content, err := readIfThere(c.tree, file)
		if err != nil {
			return nil, err
		}
		providers, err := parseProviders(content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if strings.Contains(string(content), illImage) {
			return nil, errors.New("the kubelet does not come up with this")
		}
		list, _ := providers.value["providers"].([]any)
		for i, name := range providers.names {
			if err := executable(c.tree, path.Join(plugins, name)); err != nil {
				return nil, err
			}
			if name == "pullpass-credential-provider" {
				images, _ := list[i].(map[string]any)["matchImages"].([]any)
				for _, image := range images {
					registries = append(registries, image.(string))
				}
			}
		}
		names = append(names, providers.names...)
	}
	slices.Sort(names)
	if len(names) == 0 || len(slices.Compact(slices.Clone(names))) != len(names) {
		return nil, fmt.Errorf("no provider, or one twice: %q", names)
	}
	return registries, nil
}

// expectSafe expects that no token goes to a wrong host, and that a kubelet that is restarted now
// becomes healthy.
func (c *crashHost) expectSafe(when string) {
	c.t.Helper()
	certs, err := c.profile.certsDir(c.tree)
	testkit.Must(c.t, err)
	for _, registry := range c.running().Registries {
		if c.Command == "repair" {
			break // the plugin gives no token
		}
		content, err := readIfThere(c.tree, path.Join(certs, registry, "hosts.toml"))
		if string(content) != testHosts || err != nil {
			c.t.Errorf("%s: the kubelet sends tokens for %s, whose hosts.toml is %q, %v", when, registry, content, err)
		}
	}
	if _, err := c.configured(); err != nil && !c.isRejected() {
		c.t.Errorf("%s: a kubelet that starts now would not come up: %v", when, err)
	}
}

// expectEnd expects that the node has the wanted files, and that the kubelet runs with them.
func (c *crashHost) expectEnd(when string, want map[string]string) {
	c.t.Helper()
	c.expect(when, withoutRecord(c.files()), want)
	c.expectSafe(when)
	registries, err := c.configured()
	if r := c.running(); err != nil || !r.Up || !slices.Equal(r.Registries, registries) {
		c.t.Errorf("%s: the kubelet runs with %v, and has %q, %v", when, r, registries, err)
	}
	s, err := readState(c.tree)
	if err != nil || s.Pending != nil {
		c.t.Errorf("%s: something is still pending, %v", when, err)
		return
	}
	for name := range s.Entries {
		if registry := path.Base(path.Dir(name)); path.Base(name) == "hosts.toml" && !slices.Contains(registries, registry) {
			c.t.Errorf("%s: containerd asks the gateway for %s, and the kubelet gives it no token", when, registry)
		}
	}
}

// withoutRecord leaves out the content of the state, which depends on the history.
func withoutRecord(files map[string]string) map[string]string {
	if text, is := files[stateFile]; is {
		files[stateFile], _, _ = strings.Cut(text, "\n")
	}
	return files
}

// copyTo copies the host and the configuration with which its kubelet runs.
func (s scenario) copyTo(t *testing.T, dir string) scenario {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", s.Dir, dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s.Dir = dir
	return s
}

// strace runs the command in a separate process, whose system calls strace disturbs. It returns the
// result of the process.
func (s scenario) strace(t *testing.T, log string, args ...string) error {
	t.Helper()
	child, err := json.Marshal(s)
	testkit.Must(t, err)
	program, err := os.Executable()
	testkit.Must(t, err)
	command := exec.CommandContext(t.Context(), "strace", slices.Concat([]string{"-f", "-qqq", "-o", log}, args, []string{program, "-test.run=^TestCrash$", "-crash-child=" + string(child)})...)
	out, err := command.CombinedOutput()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v; install strace", err)
	}
	if strings.Contains(string(out), "strace: ") {
		t.Fatalf("%v: %s", err, out)
	}
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return err
}

// counts returns how often the command makes system calls.
func (s scenario) counts(t *testing.T, calls []string) map[string]int {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	run := s.copyTo(t, filepath.Join(t.TempDir(), "run"))
	if err := run.strace(t, log, "-e", "trace="+strings.Join(calls, ",")); err != nil && !s.isRejected() {
		t.Fatal(err)
	}
	content := testkit.Read(t, log)
	threads, most := map[string]int{}, map[string]int{}
	for line := range strings.Lines(content) {
		call, _, _ := strings.Cut(line, "(")
		if fields := strings.Fields(call); len(fields) == 2 {
			// Only the thread that is locked to its goroutine changes files, but other threads also
			// write.
			threads[call]++
			most[fields[1]] = max(most[fields[1]], threads[call])
		}
	}
	return most
}

// TestCrash runs every command on every platform, in both forms of configuration. It disturbs the
// command as -crash-every sets.
func TestCrash(t *testing.T) {
	t.Parallel()
	if *crashChild != "" {
		var s scenario
		testkit.Must(t, json.Unmarshal([]byte(*crashChild), &s))
		synctest.Test(t, func(t *testing.T) {
			runtime.LockOSThread()
			testkit.Must(t, s.open(t).command(t.Context()))
		})
		return
	}
	platforms := Profiles()
	if *crashEvery == 0 {
		platforms = []string{"eks", "k3s", "kubeadm"} // the others make no further calls
	}
	calls := map[string]bool{} // through which the error of an earlier operation passes
	for _, platform := range platforms {
		for _, version := range []string{"v1.36.2", "v1.33.5"} {
			for _, command := range crashCommands {
				t.Run(platform+"/"+version+"/"+command, func(t *testing.T) {
					crash(t, scenario{Platform: platform, Version: version, Command: command}, calls)
				})
			}
		}
	}
}

// crash runs the command without a disturbance, one scenario after the other, and then disturbs it.
func crash(t *testing.T, s scenario, calls map[string]bool) {
	before, after := s.desired()
	base := newHost(t, s.Platform)
	for name, text := range base.files() {
		if strings.HasPrefix(text, "-") {
			testkit.Must(t, unix.Setxattr(filepath.Join(base.dir, name), "user.owner", []byte(name), 0))
		}
	}
	s.Dir = filepath.Dir(base.dir)
	var bare, old, wanted map[string]string
	synctest.Test(t, func(t *testing.T) {
		c := s.open(t)
		bare = c.files()
		testkit.Must(t, c.Restart(t.Context()))
		if strings.Contains(s.Command, "after an interrupted ") {
			begun := before
			if strings.HasSuffix(s.Command, "uninstall") {
				c.apply(*before)
				begun = nil
			}
			c.watcher = lost{errors.New("the power is gone")}
			if _, err := c.do(t.Context(), begun); err == nil {
				t.Fatal("it was not interrupted")
			}
			return
		}
		if before != nil {
			c.apply(*before)
		}
		if s.Command == "repair" {
			c.spoil()
		}
		old = withoutRecord(c.files())
		c.expectEnd("before", old)
	})
	// The result without a disturbance.
	var operations []operation
	done := s.copyTo(t, filepath.Join(t.TempDir(), "done"))
	synctest.Test(t, func(t *testing.T) {
		c := done.open(t)
		c.onOperation(func(o operation) error { operations = append(operations, o); return nil })
		err := c.command(t.Context())
		c.tree.Failing = nil
		if errors.Is(err, ErrRejected) != s.isRejected() || err != nil && !s.isRejected() {
			t.Fatal(err)
		}
		wanted = withoutRecord(c.files())
		c.expectEnd("undisturbed", wanted)
		if after == nil {
			c.expect("uninstalled", wanted, bare)
		}
		switch s.Command {
		case "rejected":
			c.expect("rolled back", wanted, old)
		case "rejected after an interrupted one":
			c.expect("rolled back", c.installation(), bare)
		}
	})
	operations = slices.DeleteFunc(operations, func(o operation) bool {
		if *crashEvery > 0 {
			// The sample begins at a different call in each scenario.
			return (o.count+len(t.Name()))%*crashEvery != 0
		}
		isKnown := true
		for _, call := range o.calls {
			isKnown = isKnown && calls[call]
			calls[call] = true
		}
		return isKnown
	})
	t.Parallel()
	s.failEach(t, operations, wanted)
	if old != nil {
		s.loseEach(t, operations, old)
	}
	if *crashEvery == 0 {
		return
	}
	number := 0
	for _, kind := range []struct {
		name, inject string
		calls        []string
	}{{"killed", "signal=KILL:when=%d", changing}, {"full disk", "error=ENOSPC:when=%d+", filling}, {"failing disk", "error=EIO:when=%d", syncing}} {
		counts := s.counts(t, kind.calls)
		if len(counts) == 0 {
			t.Fatalf("strace has seen nothing: %v", counts)
		}
		for _, call := range kind.calls {
			for n := 1; n <= counts[call]; n++ {
				// The sample begins at a different call in each scenario.
				if number++; (number+len(t.Name()))%*crashEvery != 0 {
					continue
				}
				run := s.copyTo(t, filepath.Join(t.TempDir(), "run"))
				err := run.strace(t, "/dev/null", "-e", "trace="+call, "-e", "inject="+call+":"+fmt.Sprintf(kind.inject, n))
				when := fmt.Sprintf("%s at %s %d (%v)", kind.name, call, n, err)
				isResumed := err == nil && kind.name == "failing disk" // by a second watcher, whose disk does not fail
				if !isResumed && (err == nil || (kind.name == "killed") != strings.Contains(err.Error(), "signal: killed")) {
					t.Fatalf("%s: it was not disturbed", when)
				}
				run.aftermath(t, when, bare, old, wanted)
				if t.Failed() {
					t.FailNow()
				}
				testkit.Must(t, os.RemoveAll(run.Dir))
			}
		}
	}
	t.Logf("%d operations", number)
}

// operation is a file operation of a command.
type operation struct {
	calls []string // that lead to it, the innermost first
	nth   int      // of those with the same calls: the order of the others may be random
	count int      // of all
}

// onOperation has do called before each operation, and do's error is that of the operation.
func (c *crashHost) onOperation(do func(o operation) error) {
	count, at := 0, map[string]int{}
	c.tree.Failing = func(string) error {
		calls := callers()
		place := strings.Join(calls, " ")
		count++
		at[place]++
		return do(operation{calls, at[place], count})
	}
}

// callers returns the files and lines of this package and of hostfs that lead here.
func callers() (calls []string) {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for isMore := true; isMore; {
		var frame runtime.Frame
		frame, isMore = frames.Next()
		if dir, file := filepath.Split(frame.File); strings.Contains(dir, "/internal/node/") && !strings.HasSuffix(file, "_test.go") {
			calls = append(calls, fmt.Sprintf("%s:%d", file, frame.Line))
		}
	}
	return calls
}

// failEach makes one operation after the other fail, reads too, in this process. The command must
// report it, and end its work when it is given again.
func (s scenario) failEach(t *testing.T, operations []operation, wanted map[string]string) {
	for _, fails := range operations {
		if t.Failed() {
			return
		}
		run := s.copyTo(t, filepath.Join(t.TempDir(), "run"))
		synctest.Test(t, func(t *testing.T) {
			c, isDisturbed := run.open(t), false
			c.onOperation(func(o operation) error {
				if o.nth == fails.nth && slices.Equal(o.calls, fails.calls) {
					isDisturbed = true
					return unix.EIO
				}
				return nil
			})
			err := c.command(t.Context())
			c.tree.Failing = nil
			when := fmt.Sprintf("operation %d fails, number %d of %s", fails.count, fails.nth, fails.calls)
			isEnded := err == nil || s.isRejected() && errors.Is(err, ErrRejected)
			if isResumed := isEnded && c.watched == 2; isResumed {
				c.expectEnd(when, wanted)
			} else if !isDisturbed || !errors.Is(err, unix.EIO) {
				t.Errorf("%s (%t): %v", when, isDisturbed, err)
			}
			c.expectSafe(when)
			_, after := s.desired()
			if _, err := c.do(t.Context(), after); errors.Is(err, ErrRejected) != s.isRejected() || err != nil && !s.isRejected() {
				t.Errorf("%s, then the same again: %v", when, err)
			}
			c.expectEnd(when+", then the same again", wanted)
		})
		testkit.Must(t, os.RemoveAll(run.Dir))
	}
	t.Logf("%d operations", len(operations))
}

// loseEach has the power lost before one operation after the other: nothing is written from then on.
func (s scenario) loseEach(t *testing.T, operations []operation, old map[string]string) {
	for _, lost := range operations {
		if t.Failed() {
			return
		}
		run := s.copyTo(t, filepath.Join(t.TempDir(), "run"))
		synctest.Test(t, func(t *testing.T) {
			c, isLost := run.open(t), false
			c.onOperation(func(o operation) error {
				if isLost = isLost || o.nth == lost.nth && slices.Equal(o.calls, lost.calls); isLost {
					return unix.EIO
				}
				return nil
			})
			if err := c.command(t.Context()); !isLost || !errors.Is(err, unix.EIO) {
				t.Errorf("operation %d: %v", lost.count, err)
			}
			c.tree.Failing = nil
			c.expectBoot(fmt.Sprintf("the power is lost at operation %d, number %d of %s", lost.count, lost.nth, lost.calls), old)
		})
		testkit.Must(t, os.RemoveAll(run.Dir))
	}
}

// expectBoot expects that the unit, if it stands by, restores all files, and that the state says so.
func (c *crashHost) expectBoot(when string, old map[string]string) {
	c.t.Helper()
	if _, err := os.Lstat(filepath.Join(c.dir, undoLink)); err != nil {
		return
	}
	c.boot()
	files, want := onlyFiles(c.installation()), onlyFiles(old)
	delete(files, lockFile) // it does not outlive a boot
	maps.DeleteFunc(want, func(name, _ string) bool { return strings.HasPrefix(name, stateDir) })
	c.expect(when+", then a boot", files, want)
	before, after := c.desired()
	for _, d := range []*Desired{before, after} {
		if d == nil {
			continue
		}
		plan, err := c.Status(*d)
		testkit.Must(c.t, err)
		if text := strings.Join(actions(plan), "\n"); strings.Contains(text, "another program") || d == before && text != "" {
			c.t.Errorf("%s, then a boot: the plan is\n%s", when, text)
		}
	}
}

// aftermath expects that every command ends the disturbed work.
func (s scenario) aftermath(t *testing.T, when string, bare, old, wanted map[string]string) {
	before, after := s.desired()
	synctest.Test(t, func(t *testing.T) {
		c := s.open(t)
		c.expectSafe(when)
		if strings.HasPrefix(when, "full disk") && !c.running().Up {
			t.Errorf("%s: the kubelet does not run: a roll-back needs no room", when)
		}
		d := after
		if d == nil {
			d = before
		}
		plan, err := c.Status(*d)
		if err != nil {
			t.Errorf("%s: plan: %v", when, err)
			return
		}
		now := withoutRecord(c.files())
		delete(now, lockFile) // the next command removes it
		if after != nil && plan.isDone() && !plan.Rejected && !reflect.DeepEqual(now, wanted) {
			t.Errorf("%s: there is said to be nothing to do", when)
			c.expect(when, now, wanted)
		}
		// A command that fails returns an error, and leaves no unfinished work.
		if strings.HasPrefix(when, "killed") && !plan.Pending && !reflect.DeepEqual(now, wanted) && !reflect.DeepEqual(now, old) {
			t.Errorf("%s: nothing is said to be pending", when)
			c.expect(when, now, wanted)
		}
	})
	if old != nil && strings.HasPrefix(when, "killed") {
		next := s.copyTo(t, s.Dir+"boot")
		synctest.Test(t, func(t *testing.T) { next.open(t).expectBoot(when, old) })
		testkit.Must(t, os.RemoveAll(next.Dir))
	}
	type end struct {
		name string
		d    *Desired
		want map[string]string
		err  error
	}
	ends := []end{{"uninstall", nil, bare, nil}}
	switch {
	case s.isRejected():
		ends = append(ends, end{"the same again", after, wanted, ErrRejected}, end{"what was there before", before, old, nil})
	case after == nil:
		ends = append(ends, end{"apply", before, old, nil})
	case before == nil, s.Command == "repair":
		ends = append(ends, end{"the same again", after, wanted, nil})
	default:
		ends = append(ends, end{"the same again", after, wanted, nil}, end{"what was there before", before, old, nil})
	}
	for i, end := range ends {
		next := s.copyTo(t, s.Dir+strconv.Itoa(i))
		synctest.Test(t, func(t *testing.T) {
			c := next.open(t)
			when := when + ", then " + end.name
			var said *Plan
			if end.d != nil {
				said, _ = c.Status(*end.d)
			}
			did, err := c.do(t.Context(), end.d)
			if !errors.Is(err, end.err) {
				t.Errorf("%s: %v", when, err)
			}
			if said != nil && did != nil && fmt.Sprint(said.Restart, said.Rejected, said.Digest, actions(said)) != fmt.Sprint(did.Restart, did.Rejected, did.Digest, actions(did)) {
				t.Errorf("%s: the plan was\n%+v\nand was not what was done:\n%+v", when, said, did)
			}
			want := end.want
			if want == nil {
				want = withoutRecord(c.files())
			}
			c.expectEnd(when, want)
			c.uninstall()
			c.expectEnd(when+", then uninstall", bare)
		})
		testkit.Must(t, os.RemoveAll(next.Dir))
	}
}
