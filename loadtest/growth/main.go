// Command growth writes what BenchmarkGrowth measured, as a table in Markdown. Its standard input is what
// "go test -bench=Growth" wrote, of several runs; the file is rewritten between two marks:
//
//	go run ./growth -into ../docs/internals/performance.md <../bin/performance.txt
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

const begin, end = "<!-- measured: make performance writes what follows -->\n", "<!-- measured until here -->"

// subject is something of which there can be more and more.
type subject struct{ name, title, measured string }

var subjects = []subject{
	{"rules-for-others", "rules for other namespaces", "an exchange, a new token"},
	{"rules-by-labels", "rules for namespaces with other labels", "an exchange, a new token"},
	{"rules-for-everybody", "rules for all callers, about other repositories", "an exchange, a new token"},
	{"scopes-of-a-request", "scopes in one request", "an exchange, a new token"},
	{"live-identities", "identities that are remembered", "an exchange, a token that comes again"},
	{"clusters", "clusters", "the check of a new token"},
	{"service-accounts-and-pods", "ServiceAccounts in memory, and as many pods", "the look at those of a token"},
	{"revocations", "revocations", "the look whether a token is revoked"},
	{"upstreams", "upstreams of the gateway", "a manifest through the gateway, the registry included"},
}

func main() {
	into := flag.String("into", "", "Markdown file to rewrite; empty: standard output")
	flag.Parse()
	if err := run(os.Stdin, *into, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "growth:", err)
		os.Exit(1)
	}
}

func run(from io.Reader, into string, stdout io.Writer) error {
	measured, err := read(from)
	if err != nil {
		return err
	}
	text, err := table(measured)
	if err != nil {
		return err
	}
	if into == "" {
		_, err := io.WriteString(stdout, text)
		return err
	}
	page, err := os.ReadFile(into)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(page), begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		return fmt.Errorf("%s has no place for it: write %q and %q", into, begin, end)
	}
	return os.WriteFile(into, []byte(before+begin+"\n"+text+end+after), 0o644)
}

// point is what one turn costs beside so many.
type point struct {
	n  int
	ns float64
}

// read returns the least of all runs for each number: others use the processor, too, and never make it faster.
func read(from io.Reader) (map[string][]point, error) {
	measured := map[string][]point{}
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		name, ok := strings.CutPrefix(lines.Text(), "BenchmarkGrowth/of=")
		at := slices.Index(fields, "cpu-ns/op")
		if !ok || at < 1 {
			continue
		}
		name, number, _ := strings.Cut(strings.Fields(name)[0], "/n=")
		number, _, _ = strings.Cut(number, "-") // GOMAXPROCS
		n, err := strconv.Atoi(number)
		ns, err2 := strconv.ParseFloat(fields[at-1], 64)
		if err := errors.Join(err, err2); err != nil {
			return nil, fmt.Errorf("%s: %w", lines.Text(), err)
		}
		points := measured[name]
		if i := slices.IndexFunc(points, func(p point) bool { return p.n == n }); i >= 0 {
			points[i].ns = min(points[i].ns, ns)
		} else {
			measured[name] = append(points, point{n, ns})
		}
	}
	return measured, lines.Err()
}

func table(measured map[string][]point) (string, error) {
	var b strings.Builder
	b.WriteString("| more and more | measured | CPU, of the fewest | beside the fewest |\n| --- | --- | --- | --- |\n")
	for _, s := range subjects {
		points := measured[s.name]
		if len(points) < 2 {
			return "", fmt.Errorf("nothing was measured of %s", s.title)
		}
		slices.SortFunc(points, func(a, b point) int { return a.n - b.n })
		var ratios []string
		for _, p := range points {
			ratios = append(ratios, fmt.Sprintf("%s: %.2f", thousands(p.n), p.ns/points[0].ns))
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", s.title, s.measured, duration(points[0].ns), strings.Join(ratios, ", "))
	}
	return b.String() + "\n", nil
}

func duration(ns float64) string {
	if ns < 10_000 {
		return thousands(int(ns)) + " ns"
	}
	return thousands(int(ns/1000)) + " µs"
}

func thousands(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
