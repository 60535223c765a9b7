// Command mutants changes conditions, limits and reasons of refusals, one at a time, and looks whether a test fails.
//
//	go run ./internal/test/mutants ./internal/oidc/...
//	go run ./internal/test/mutants -changed -for 3m ./internal/oidc/...
//
// All mutants of a package are compiled at once, through an overlay; an environment variable switches one of them on. A first
// run of each test, alone, records the mutants for which the test makes a difference. For each mutant only these tests run:
// those of its package, then those of packages that import it.
//
// A mutant that no test notices, "survivor", is an error unless listed.txt has it with a reason.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// listFile has the survivors that may stay: a line with the reason, then a line with a tab for each mutant.
const listFile = "internal/test/mutants/listed.txt"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], ".", os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

var (
	errSurvivors = errors.New("no test notices the mutants above: add a test, remove the code, or list them with a reason in " + listFile)
	errUnused    = errors.New("lines of " + listFile + " name no survivor")
)

func run(ctx context.Context, args []string, dir string, out io.Writer) error {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	changed := flags.Bool("changed", false, "only the lines that differ from the main branch, or on it from the parent commit")
	limit := flags.Duration("for", 24*time.Hour, "leave out what is not done after this time")
	if err := flags.Parse(args); err != nil {
		return err
	}
	temporary, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temporary)
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()

	r := &runner{dir: dir, temporary: temporary, out: out, binaries: map[string]*binary{}}
	if *changed {
		if r.lines, err = changedLines(ctx, dir, out); err != nil || len(r.lines) == 0 {
			return err
		}
	}
	if err := r.load(ctx, flags.Args()); errors.Is(ctx.Err(), context.DeadlineExceeded) {
		fmt.Fprintln(out, "mutants: no time to compile: nothing is tested")
		return nil
	} else if err != nil {
		return err
	}
	listed, err := readList(filepath.Join(dir, listFile))
	if err != nil {
		return err
	}
	unused := r.apply(listed, *changed)
	if err := r.judge(ctx); err != nil {
		return err
	}
	survivors := r.report(listed)
	for _, m := range r.mutants {
		if m.verdict == killed && listed[m.key()] {
			unused = append(unused, m.key())
		}
	}
	if survivors > 0 {
		err = errSurvivors
	}
	if len(unused) > 0 {
		fmt.Fprintf(out, "\nnot a survivor, but in %s:\n\t%s\n", listFile, strings.Join(unused, "\n\t"))
		err = errors.Join(err, errUnused)
	}
	return err
}

// readList returns the keys of the mutants in the list.
func readList(name string) (map[string]bool, error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	listed := map[string]bool{}
	reason := false
	for i, line := range strings.Split(string(content), "\n") {
		key, isMutant := strings.CutPrefix(line, "\t")
		if isMutant && (!reason || listed[key]) {
			return nil, fmt.Errorf("%s:%d: no reason above, or a second time", name, i+1)
		}
		if isMutant {
			listed[key] = true
		}
		reason = isMutant || line != "" && line[0] != '#'
	}
	return listed, nil
}

// apply leaves out mutants on other lines than the changed ones, and then also those in the list. It returns the keys in
// the list that name no mutant of these files, or no file.
func (r *runner) apply(listed map[string]bool, leaveOut bool) (unused []string) {
	files, keys := map[string]bool{}, map[string]bool{}
	for _, m := range r.mutants {
		files[m.file], keys[m.key()] = true, true
	}
	for _, key := range slices.Sorted(maps.Keys(listed)) {
		file, _, _ := strings.Cut(key, " ")
		file = strings.TrimSuffix(file, ":")
		if _, err := os.Stat(filepath.Join(r.dir, file)); !keys[key] && (files[file] || err != nil) {
			unused = append(unused, key)
		}
	}
	if leaveOut {
		r.mutants = slices.DeleteFunc(r.mutants, func(m *mutant) bool { return listed[m.key()] || !r.lines.touch(m) })
	}
	return unused
}

// lines has the changed ranges of lines by file.
type lines map[string][][2]int

func (l lines) touch(m *mutant) bool {
	return slices.ContainsFunc(l[m.file], func(r [2]int) bool { return m.first <= r[1] && r[0] <= m.last })
}

// changedLines compares the files with the commit in which this branch and the main one meet. On the main branch, and where there is
// none, that is the parent commit.
func changedLines(ctx context.Context, dir string, out io.Writer) (lines, error) {
	head, err := command(ctx, dir, "git", "rev-parse", "HEAD")
	if err != nil {
		return nil, err
	}
	base := ""
	for _, branch := range []string{"origin/main", "main"} {
		if commit, err := command(ctx, dir, "git", "merge-base", "HEAD", branch); err == nil && base == "" && commit != head {
			base = commit
		}
	}
	if base == "" {
		if base, err = command(ctx, dir, "git", "rev-parse", "--verify", "-q", "HEAD^"); err != nil {
			fmt.Fprintln(out, "mutants: neither a main branch nor a parent commit to compare with: nothing is tested")
			return nil, nil
		}
	}
	diff, err := command(ctx, dir, "git", "diff", "-U0", "--no-color", "--no-ext-diff", "--no-renames", "--relative", "--src-prefix=a/", "--dst-prefix=b/", strings.TrimSpace(base), "--", "*.go")
	if err != nil {
		return nil, err
	}
	l, file := lines{}, ""
	for line := range strings.SplitSeq(diff, "\n") {
		if name, ok := strings.CutPrefix(line, "+++ b/"); ok {
			file = name
		}
		var from, count int
		if _, after, ok := strings.Cut(line, " +"); ok && strings.HasPrefix(line, "@@ ") {
			if n, _ := fmt.Sscanf(after, "%d,%d", &from, &count); n == 1 {
				count = 1
			}
			if count > 0 && !strings.HasSuffix(file, "_test.go") {
				l[file] = append(l[file], [2]int{from, from + count - 1})
			}
		}
	}
	if len(l) == 0 {
		fmt.Fprintln(out, "mutants: no line of Go changed since", base)
	}
	return l, nil
}

func command(ctx context.Context, dir, program string, args ...string) (string, error) {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Stderr = dir, &stderr
	output, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, stderr.Bytes())
	}
	return string(output), err
}

// goPackage is a package as "go list -json" prints it.
type goPackage struct {
	ImportPath, Dir, Name                    string
	GoFiles, TestGoFiles, XTestGoFiles       []string
	Imports, Deps, TestImports, XTestImports []string
	Module                                   struct{ Dir string }
}

func list(ctx context.Context, dir string, patterns ...string) (packages []*goPackage, err error) {
	output, err := command(ctx, dir, "go", append([]string{"list", "-json"}, patterns...)...)
	decoder := json.NewDecoder(strings.NewReader(output))
	for err == nil {
		p := &goPackage{}
		if err = decoder.Decode(p); err == nil {
			packages = append(packages, p)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return packages, err
}
