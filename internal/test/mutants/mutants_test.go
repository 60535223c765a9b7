package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

func newModule(t *testing.T) (dir string) {
	t.Helper()
	archive := testkit.Value(txtar.ParseFile("testdata/module.txtar"))(t)
	dir = t.TempDir()
	for _, f := range archive.Files {
		name := filepath.Join(dir, f.Name)
		testkit.Must(t, os.MkdirAll(filepath.Dir(name), 0o700))
		testkit.Put(t, name, f.Data)
	}
	return dir
}

var timings = regexp.MustCompile(` in .* before`)

func TestRun(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := run(t.Context(), []string{"./gate"}, newModule(t), &out); !errors.Is(err, errSurvivors) || !errors.Is(err, errUnused) {
		t.Error(err)
	}
	want := `gate/gate.go:44: its mutants do not compile
gate: left out, since they fail without a mutant: TestFails
gate: 5 of 8 mutants killed
user: 1 of 3 mutants killed
gate/gate.go:20 Kind: "c" -> no case (no test reaches it)
  mutants  killed  listed  survivors  left out    package
        8       6       1          1         0       gate

not a survivor, but in internal/test/mutants/listed.txt:
	gate/gate.go Lost: a -> false
	gate/lost.go Lost: a -> false
	gate/gate.go Check: age > 7 -> false
`
	if got := timings.ReplaceAllString(out.String(), ""); got != want {
		t.Errorf("%s\nwant:\n%s", got, want)
	}
}

func TestTimeIsOver(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	err := run(t.Context(), []string{"-for", "1ns", "./gate"}, newModule(t), &out)
	if err != nil || out.String() != "mutants: no time to compile: nothing is tested\n" {
		t.Errorf("%v, %s", err, &out)
	}

	r := &runner{dir: newModule(t), temporary: t.TempDir(), out: &out}
	testkit.Must(t, r.load(t.Context(), []string{"./gate"}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	testkit.Must(t, r.judge(ctx))
	survivors := r.report(nil)
	for _, want := range []string{"gate/gate.go:7 Check: age > 7 -> false (left out: no time)\n", "  8       0       0          0         8       gate\n"} {
		if survivors != 0 || !strings.Contains(out.String(), want) {
			t.Errorf("%d %s\nwant: %s", survivors, &out, want)
		}
	}
}

// Of two commits and an edit, the edit and what is not on the main branch are new.
func TestChanged(t *testing.T) {
	t.Parallel()
	dir := newModule(t)
	git := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.test"}, args...)...)
		cmd.Dir = dir
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, output)
		}
	}
	replace := func(old, changed string) {
		t.Helper()
		name := filepath.Join(dir, "gate/gate.go")
		testkit.Put(t, name, strings.Replace(testkit.Read(t, name), old, changed, 1))
	}
	changed := func() (files lines, output string) {
		t.Helper()
		var out strings.Builder
		files = testkit.Value(changedLines(t.Context(), dir, &out))(t)
		return files, out.String()
	}

	git("init", "-q", "-b", "main")
	git("add", ".")
	git("commit", "-q", "-m", "a")
	if files, output := changed(); len(files) != 0 || !strings.Contains(output, "neither a main branch nor a parent commit") {
		t.Error(files, output)
	}
	replace("age > 7", "age > 8")
	git("commit", "-q", "-a", "-m", "b")
	onlyAge := [][2]int{{7, 7}}
	if files, output := changed(); !slices.Equal(files["gate/gate.go"], onlyAge) {
		t.Error("on the main branch:", files, output)
	}
	git("checkout", "-q", "-b", "change")
	replace("n == 3", "n == 4")
	git("commit", "-q", "-a", "-m", "c")
	replace("\tcase \"a\":\n\t\treturn 1\n", "\tcase \"a\":\n\t\treturn 1 +\n\t\t\t0\n")
	replace("\t\tn++\n", "")
	testkit.Put(t, filepath.Join(dir, "gate/gate_test.go"), "package gate\n")
	if files, output := changed(); len(files) != 1 || !slices.Equal(files["gate/gate.go"], [][2]int{{17, 18}, {30, 30}}) {
		t.Error("on a branch:", files, output)
	}

	r := &runner{lines: lines{"a.go": {{17, 18}, {31, 31}}}, mutants: []*mutant{
		{file: "a.go", first: 16, last: 16}, {file: "a.go", first: 16, last: 17}, {file: "a.go", first: 18, last: 40},
		{file: "a.go", first: 19, last: 30}, {file: "b.go", first: 17, last: 17},
	}}
	r.apply(nil, true)
	if len(r.mutants) != 2 || r.mutants[0].last != 17 || r.mutants[1].last != 40 {
		t.Error(r.mutants)
	}
}

func TestMutate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		source string
		want   []string
	}{
		{"func f() { if a { g() } }", []string{"f: a -> false", "f: a -> true"}},
		{"func f() error { if a { return b }; return nil }", []string{"f: a -> false"}},
		{"func f() error { if a { return nil }; return b }", []string{"f: a -> false", "f: a -> true"}},
		{"func f() { for a { } }", []string{"f: a -> false"}},
		{"func (t *T) f() { g(a == b) }", []string{"T.f: a == b -> false", "T.f: a == b -> true"}},
		{"func f() { g(!a) }", []string{"f: !a -> false", "f: !a -> true"}},
		{"func f() { x = a && b && !c }", []string{"f: a && b && !c -> false", "f: a -> true", "f: b -> true", "f: !c -> true"}},
		{"func f() { x = a || b }", []string{"f: a || b -> true", "f: a -> false", "f: b -> false"}},
		{"func f() { x = a && (b || c) }", []string{"f: a && (b || c) -> false", "f: a -> true", "f: (b || c) -> true", "f: b -> false", "f: c -> false"}},
		{"func f() { x = !(a && b) }", []string{"f: !(a && b) -> true", "f: a -> true", "f: b -> true"}},
		{"func f() { if a < b { g() } }", []string{"f: a < b -> false", "f: a < b -> true", "f: a < b -> a <= b"}},
		{"func f() { if len(a) > 0 { g() } }", []string{"f: len(a) > 0 -> false", "f: len(a) > 0 -> true"}},
		{"func f() { switch { case a: } }", []string{"f: a -> false", "f: a -> true"}},
		{"func f() { switch x { case 1, 2: } }", []string{"f: 1 -> no case", "f: 2 -> no case"}},
		{"func f() (int, bool) { return 1, true }", []string{"f: true -> false"}},
		{"func f() (ok bool) { return g() }", []string{"f: g() -> false", "f: g() -> true"}},
		{"func f() bool { h(func() int { return g() }); return a }", []string{"f: a -> false", "f: a -> true"}},
		{"var x = a == b", []string{": a == b -> false", ": a == b -> true"}},
		{"const x = a == b", nil},
		{"func f() { g(a == b); g(a == b) }", []string{"f: a == b -> false", "f: a == b -> true", "f: a == b -> false (2)", "f: a == b -> true (2)"}},
		{"func f() { g(a ==\n\t b) }", []string{"f: a == b -> false", "f: a == b -> true"}},
		{"func f() { g(refusal.Old); g(refusal.Find) }", []string{"f: refusal.Old -> Young"}},
		{"var all = []Entry{{Old, Forbidden, ``, ``}}", []string{": Old -> Young", ": Forbidden -> NotFound"}},
		{"var all = map[Class]int{Forbidden: http.StatusForbidden, Lost: http.StatusOK}", []string{": http.StatusForbidden -> http.StatusTeapot"}},
	} {
		_, mutants, err := mutate("p", "p.go", "package p\n"+c.source, 1, catalogue{"Old": "Young", "Forbidden": "NotFound"}, nil)
		var got []string
		for _, m := range mutants {
			got = append(got, strings.TrimPrefix(strings.TrimPrefix(m.key(), "p.go"), " "))
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v; want %q", c.source, got, err, c.want)
		}
	}
}

func TestCatalogue(t *testing.T) {
	t.Parallel()
	c, err := readCatalogue([]string{filepath.Join(newModule(t), "internal/refusal/refusal.go")})
	if err != nil || c["Old"] != "Young" || c["Young"] != "Old" || c["Gone"] != "Young" || c["Forbidden"] != "NotFound" || c["NotFound"] != "Forbidden" || len(c) != 5 {
		t.Error(c, err)
	}
}

// Each line of the list names a mutant of the sources. "make mutants" says whether it survives.
func TestListNamesMutants(t *testing.T) {
	t.Parallel()
	listed := testkit.Value(readList("listed.txt"))(t)
	reasons := testkit.Value(filepath.Glob(testkit.InModule("internal/refusal") + "/*.go"))(t)
	c := testkit.Value(readCatalogue(reasons))(t)
	read := map[string]bool{}
	for key := range listed {
		file, _, _ := strings.Cut(key, " ")
		if file = strings.TrimSuffix(file, ":"); read[file] {
			continue
		}
		read[file] = true
		_, mutants, err := mutate("", file, testkit.Read(t, testkit.InModule(file)), 1, c, nil)
		testkit.Must(t, err)
		for _, m := range mutants {
			delete(listed, m.key())
		}
	}
	for key := range listed {
		t.Errorf("%s: not a mutant any more", key)
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"":                     "",
		"reason\n\ta\n\tb\n":   "",
		"# comment\n\ta\n":     ":2: no reason above",
		"\ta\n":                ":1: no reason above",
		"reason\n\n\ta\n":      ":3: no reason above",
		"reason\n\ta\n\ta\n":   ":3: no reason above, or a second time",
		"r\n\ta\n\nr\n\ta\n":   ":5: no reason above, or a second time",
		"r\n\ta\n\n# c\n\tb\n": ":5: no reason above",
	} {
		_, err := readList(testkit.TempFile(t, "listed.txt", content))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", content, err, want)
		}
	}
}
