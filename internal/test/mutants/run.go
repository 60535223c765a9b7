package main

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
)

type verdict int

const (
	survives verdict = iota
	killed
	leftOut // the time is over
)

type runner struct {
	dir, temporary string
	out            io.Writer
	lines          lines // nil: all

	packages []*goPackage // with mutants
	module   []*goPackage
	overlay  string
	files    []string // of the overlay, by their number there
	mutants  []*mutant
	binaries map[string]*binary
}

// runtimeSource is added to each package. Its functions are those that mutate calls.
//
//go:embed runtime.txt
var runtimeSource string

// load writes the overlay with all mutants of the packages that compile. Helpers of tests have none.
func (r *runner) load(ctx context.Context, patterns []string) (err error) {
	if r.module, err = list(ctx, r.dir, "./..."); err != nil {
		return err
	}
	if r.packages, err = list(ctx, r.dir, patterns...); err != nil {
		return err
	}
	r.packages = slices.DeleteFunc(r.packages, func(p *goPackage) bool {
		return slices.Contains(p.Deps, "testing") || r.lines != nil && !slices.ContainsFunc(p.GoFiles, func(name string) bool { return r.lines[p.file(name)] != nil })
	})
	files, err := filepath.Glob(filepath.Join(r.dir, "internal/refusal/*.go"))
	if err != nil {
		return err
	}
	c, err := readCatalogue(files)
	if err != nil {
		return err
	}
	banned := map[string]map[int]bool{}
	for {
		if err := r.write(c, banned); err != nil || len(r.packages) == 0 {
			return err
		}
		args := []string{"build", "-overlay", r.overlay}
		for _, p := range r.packages {
			args = append(args, p.ImportPath)
		}
		_, failure := command(ctx, r.dir, "go", args...)
		if failure == nil {
			for file, lines := range banned {
				for line := range lines {
					fmt.Fprintf(r.out, "%s:%d: its mutants do not compile\n", file, line)
				}
			}
			return nil
		}
		found := false
		for _, match := range compilerError.FindAllStringSubmatch(failure.Error(), -1) {
			number, _ := strconv.Atoi(match[1])
			line, _ := strconv.Atoi(match[2])
			for _, m := range r.mutants {
				if m.file == r.files[number] && m.first <= line && line <= m.last {
					if banned[m.file] == nil {
						banned[m.file] = map[int]bool{}
					}
					banned[m.file][line] = true
					found = true
				}
			}
		}
		if !found {
			return failure
		}
	}
}

// compilerError has the number of a file of the overlay, and the line.
var compilerError = regexp.MustCompile(`(?m)(\d+)\.go:(\d+):\d+: `)

// file is the path of a file of the package in its module.
func (p *goPackage) file(name string) string {
	relative, _ := filepath.Rel(p.Module.Dir, filepath.Join(p.Dir, name))
	return filepath.ToSlash(relative)
}

func (r *runner) write(c catalogue, banned map[string]map[int]bool) error {
	replace := map[string]string{}
	add := func(p *goPackage, name, content string) error {
		overlaid := filepath.Join(r.temporary, strconv.Itoa(len(r.files))+".go")
		replace[filepath.Join(p.Dir, name)] = overlaid
		r.files = append(r.files, p.file(name))
		return os.WriteFile(overlaid, []byte(content), 0o600)
	}
	r.mutants, r.files = nil, nil
	for _, p := range r.packages {
		first := len(r.mutants) + 1
		for _, name := range p.GoFiles {
			source, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				return err
			}
			file := p.file(name)
			changed, mutants, err := mutate(p.ImportPath, file, string(source), len(r.mutants)+1, c, banned[file])
			if err != nil {
				return err
			}
			r.mutants = append(r.mutants, mutants...)
			if err := add(p, name, changed); err != nil {
				return err
			}
		}
		source := strings.NewReplacer("PACKAGE", p.Name, "FIRST", strconv.Itoa(first), "COUNT", strconv.Itoa(len(r.mutants)-first+2)).Replace(runtimeSource)
		if err := add(p, "mutants_overlay.go", source); err != nil {
			return err
		}
	}
	content, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	r.overlay = filepath.Join(r.temporary, "overlay.json")
	return os.WriteFile(r.overlay, content, 0o600)
}

// binary has the tests of a package, with all mutants.
type binary struct {
	name  string
	dir   string
	tests []*test
}

type test struct {
	name    string
	took    time.Duration
	reaches map[int]bool // the mutants for which a condition of this test has a different value
}

// judge tries the tests of the mutants' packages, and then those of packages that import them.
func (r *runner) judge(ctx context.Context) error {
	for _, p := range r.packages {
		if err := r.try(ctx, p, func(m *mutant) bool { return m.pkg == p.ImportPath }); err != nil {
			return err
		}
	}
	slices.SortStableFunc(r.module, func(a, b *goPackage) int { return cmp.Compare(len(a.Deps), len(b.Deps)) })
	for _, p := range r.module {
		imports := slices.Concat(p.Imports, p.TestImports, p.XTestImports)
		if err := r.try(ctx, p, func(m *mutant) bool { return m.pkg != p.ImportPath && slices.Contains(imports, m.pkg) }); err != nil {
			return err
		}
	}
	return nil
}

// try runs the tests of p for the surviving mutants that it is asked for.
func (r *runner) try(ctx context.Context, p *goPackage, asked func(*mutant) bool) error {
	var mutants []*mutant
	for _, m := range r.mutants {
		if m.verdict == survives && asked(m) {
			mutants = append(mutants, m)
		}
	}
	if len(mutants) == 0 || len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 {
		return nil
	}
	start := time.Now()
	b, err := r.build(ctx, p)
	if err != nil {
		if ctx.Err() == nil {
			return err
		}
		for _, m := range mutants {
			m.verdict = leftOut
		}
		return nil
	}
	traced := time.Since(start)

	var mutex sync.Mutex
	killers := map[string]*test{} // of the mutant before, by file
	parallel(mutants, func(m *mutant) {
		var tests []*test
		for _, t := range b.tests {
			if t.reaches[m.id] {
				tests = append(tests, t)
			}
		}
		m.uncovered = m.uncovered && len(tests) == 0
		mutex.Lock()
		likely := killers[m.file]
		mutex.Unlock()
		for _, batch := range batches(tests, likely) {
			switch failed, err := b.run(ctx, r.temporary, batch, "MUTANT="+strconv.Itoa(m.id)); {
			case ctx.Err() != nil:
				m.verdict = leftOut
				return
			case err != nil:
				m.verdict = killed
				mutex.Lock()
				defer mutex.Unlock()
				if failed != nil {
					killers[m.file] = failed
				}
				return
			}
		}
	})
	if ctx.Err() != nil {
		for _, m := range mutants {
			if m.verdict == survives {
				m.verdict = leftOut
			}
		}
	}
	remaining := 0
	for _, m := range mutants {
		if m.verdict != killed {
			remaining++
		}
	}
	fmt.Fprintf(r.out, "%s: %d of %d mutants killed in %.0f s, and %.0f s before\n", p.file("."), len(mutants)-remaining, len(mutants), (time.Since(start) - traced).Seconds(), traced.Seconds())
	return nil
}

// batches has first the likely killer, then the quick tests, then all others: most mutants need few.
func batches(tests []*test, likely *test) (all [][]*test) {
	if i := slices.Index(tests, likely); i >= 0 {
		all = append(all, tests[i:i+1])
		tests = slices.Delete(slices.Clone(tests), i, i+1)
	}
	quick, sum := 0, time.Duration(0)
	for _, t := range tests {
		if sum += t.took; quick == 0 || sum < time.Second {
			quick++
		}
	}
	for _, batch := range [][]*test{tests[:quick], tests[quick:]} {
		if len(batch) > 0 {
			all = append(all, batch)
		}
	}
	return all
}

func parallel[T any](items []T, do func(T)) {
	work := make(chan T)
	var workers sync.WaitGroup
	for range runtime.NumCPU() {
		workers.Go(func() {
			for item := range work {
				do(item)
			}
		})
	}
	for _, item := range items {
		work <- item
	}
	close(work)
	workers.Wait()
}

// build compiles the tests of a package, and runs each of them alone.
func (r *runner) build(ctx context.Context, p *goPackage) (*binary, error) {
	if b := r.binaries[p.ImportPath]; b != nil {
		return b, nil
	}
	b := &binary{name: filepath.Join(r.temporary, strconv.Itoa(len(r.binaries)), path.Base(p.ImportPath)+".test"), dir: p.Dir}
	if _, err := command(ctx, r.dir, "go", "test", "-c", "-vet=off", "-overlay", r.overlay, "-o", b.name, p.ImportPath); err != nil {
		return nil, err
	}
	names, err := command(ctx, p.Dir, b.name, "-test.list", "^(Test|Example|Fuzz)")
	if err != nil {
		return nil, err
	}
	for name := range strings.FieldsSeq(names) {
		b.tests = append(b.tests, &test{name: name, reaches: map[int]bool{}, took: time.Minute})
	}
	var mutex sync.Mutex
	var failed []string
	parallel(b.tests, func(t *test) {
		trace := filepath.Join(r.temporary, t.name+".trace")
		start := time.Now()
		_, err := b.run(ctx, r.temporary, []*test{t}, "MUTANT_TRACE="+trace)
		t.took = time.Since(start)
		reached, _ := os.ReadFile(trace)
		os.Remove(trace)
		if err != nil {
			mutex.Lock()
			defer mutex.Unlock()
			failed = append(failed, t.name)
			return
		}
		for id := range strings.FieldsSeq(string(reached)) {
			if n, err := strconv.Atoi(id); err == nil {
				t.reaches[n] = true
			}
		}
	})
	if len(failed) > 0 && ctx.Err() == nil {
		fmt.Fprintf(r.out, "%s: left out, since they fail without a mutant: %s\n", p.file("."), strings.Join(failed, " "))
	}
	slices.SortStableFunc(b.tests, func(x, y *test) int { return cmp.Compare(x.took, y.took) })
	r.binaries[p.ImportPath] = b
	return b, ctx.Err()
}

// run returns an error if one of the tests fails, takes ten times its time, or takes all memory; and the test that failed, if it is known.
func (b *binary) run(ctx context.Context, temporary string, tests []*test, variable string) (*test, error) {
	var names []string
	limit := 5 * time.Second
	for _, t := range tests {
		names = append(names, t.name)
		limit += 10 * t.took
	}
	dir, err := os.MkdirTemp(temporary, "")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, "sh", "-c", `ulimit -v 4000000; exec "$@"`, "sh", b.name, "-test.failfast", "-test.run", "^("+strings.Join(names, "|")+")$")
	cmd.Dir, cmd.Stdout = b.dir, &output
	cmd.Env = append(cmd.Environ(), "TMPDIR="+dir, variable)
	// Programs that a test started end with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err = cmd.Run()
	if cmd.Process != nil {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	for _, t := range tests {
		if strings.Contains(output.String(), "--- FAIL: "+t.name+" ") {
			return t, err
		}
	}
	if len(tests) == 1 {
		return tests[0], err
	}
	return nil, err
}

// report prints a line for each package and each survivor that is not listed, and returns their number.
func (r *runner) report(listed map[string]bool) (survivors int) {
	table := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "mutants\tkilled\tlisted\tsurvivors\tleft out\t  package\t")
	var lines []string
	for _, p := range r.packages {
		var all, dead, known, alive, left int
		for _, m := range r.mutants {
			if m.pkg != p.ImportPath {
				continue
			}
			all++
			switch {
			case m.verdict == killed:
				dead++
			case listed[m.key()]:
				known++
			case m.verdict == leftOut:
				left++
				lines = append(lines, m.String()+" (left out: no time)")
			default:
				alive++
				line := m.String()
				if m.uncovered {
					line += " (no test reaches it)"
				}
				lines = append(lines, line)
			}
		}
		survivors += alive
		fmt.Fprintf(table, "%d\t%d\t%d\t%d\t%d\t  %s\t\n", all, dead, known, alive, left, p.file("."))
	}
	for _, line := range lines {
		fmt.Fprintln(r.out, line)
	}
	table.Flush()
	return survivors
}
