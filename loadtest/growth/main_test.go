package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	t.Parallel()
	var measured strings.Builder
	measured.WriteString("goos: linux\nBenchmarkOther/of=x/n=1-2 1 1 ns/op\n")
	for _, s := range subjects {
		for run := range 2 {
			for _, n := range []int{100_000, 10} {
				fmt.Fprintf(&measured, "BenchmarkGrowth/of=%s/n=%d-2 \t 100 \t 99 ns/op \t %d cpu-ns/op\n", s.name, n, 20_000+n/10+run)
			}
		}
	}
	file := filepath.Join(t.TempDir(), "p.md")
	page := "# Before\n" + begin + "\nold\n" + end + "\nAfter\n"
	if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(strings.NewReader(measured.String()), file, nil); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# Before\n" + begin, "| clusters | the check of a new token | 20 µs | 10: 1.00, 100,000: 1.50 |\n", end + "\nAfter\n"} {
		if !strings.Contains(string(got), want) {
			t.Errorf("lacks %q:\n%s", want, got)
		}
	}
	if strings.Contains(string(got), "old") {
		t.Error("what was measured before is still there")
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	for input, want := range map[string]string{
		"":                                       "nothing was measured of rules for other namespaces",
		"BenchmarkGrowth/of=x/n=y 1 2 cpu-ns/op": "invalid syntax",
	} {
		if err := run(strings.NewReader(input), "", nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", input, err, want)
		}
	}
}
