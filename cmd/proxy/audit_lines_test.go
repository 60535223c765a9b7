package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/term"
)

const goodLine = `{"time":"2026-03-01T09:00:00Z","id":"a","result":"granted","status":200,"latency":0.1}`

func compressed(t testing.TB, text string) string {
	t.Helper()
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.String()
}

func readAll(in io.Reader) (lines []string, damaged int, err error) {
	damaged, err = readAudit(in, func(line []byte, _ *exchange.Event) error {
		lines = append(lines, string(line))
		return nil
	})
	return lines, damaged, err
}

func TestReadAudit(t *testing.T) {
	t.Parallel()
	long := `{"time":"2026-03-01T09:00:00Z","id":"long","result":"granted","client":"` + strings.Repeat("x", 3*maxAuditLine) + `"}`
	for name, c := range map[string]struct {
		in              string
		events, damaged int
	}{
		"nothing":               {"", 0, 0},
		"one":                   {goodLine + "\n", 1, 0},
		"no end of line":        {goodLine, 1, 0},
		"another system's":      {goodLine + "\r\n" + goodLine + "\r\n", 2, 0},
		"empty lines":           {"\n\n" + goodLine + "\n\n", 1, 0},
		"torn at the end":       {goodLine + "\n" + goodLine[:40], 1, 1},
		"torn, then ended":      {goodLine[:40] + "\n" + goodLine + "\n", 1, 1},
		"two lines in one":      {goodLine + goodLine + "\n", 0, 1},
		"zeroes after a crash":  {strings.Repeat("\x00", 100) + "\n" + goodLine + "\n", 1, 1},
		"too long":              {long + "\n" + goodLine + "\n", 1, 1},
		"too long, and the end": {goodLine + "\n" + long, 1, 1},
		"a list":                {"[" + goodLine + "]\n", 0, 1},
		"a wrong type":          {strings.Replace(goodLine, "200", `"200"`, 1) + "\n", 0, 1},
		"without id":            {strings.Replace(goodLine, `"id":"a",`, "", 1) + "\n", 0, 1},
		"without result":        {strings.Replace(goodLine, `"result":"granted",`, "", 1) + "\n", 0, 1},
		"without time":          {strings.Replace(goodLine, `"time":"2026-03-01T09:00:00Z",`, "", 1) + "\n", 0, 1},
		"a newer version's":     {strings.Replace(goodLine, `{`, `{"new":1,`, 1) + "\n", 1, 0},
		"the program's own log": {`{"time":"2026-03-01T09:00:00Z","level":"INFO","msg":"serving"}` + "\n" + goodLine + "\n", 1, 0},
	} {
		for form, in := range map[string]string{"plain": c.in, "gzip": compressed(t, c.in)} {
			lines, damaged, err := readAll(strings.NewReader(in))
			if err != nil || len(lines) != c.events || damaged != c.damaged {
				t.Errorf("%s, %s: %d events, %d damaged lines, %v; want %d and %d", name, form, len(lines), damaged, err, c.events, c.damaged)
			}
		}
	}
}

// Several files that were put together, as logs are.
func TestReadAuditTakesJoinedGzipFiles(t *testing.T) {
	t.Parallel()
	lines, damaged, err := readAll(strings.NewReader(compressed(t, goodLine+"\n") + compressed(t, goodLine+"\n")))
	if len(lines) != 2 || damaged != 0 || err != nil {
		t.Errorf("%d events, %d damaged lines, %v", len(lines), damaged, err)
	}
}

// What is not read is not known to be harmless: that is an error, not a warning.
func TestReadAuditFailsWhenItCannotGoOn(t *testing.T) {
	t.Parallel()
	packed := compressed(t, strings.Repeat(goodLine+"\n", 100))
	if _, _, err := readAll(strings.NewReader(packed[:len(packed)-4])); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a cut file: %v", err)
	}
	if _, _, err := readAll(strings.NewReader(packed[:4])); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a cut head: %v", err)
	}
	broken := errors.New("broken")
	if lines, _, err := readAll(io.MultiReader(strings.NewReader(goodLine+"\n"), failing{broken})); !errors.Is(err, broken) || len(lines) != 1 {
		t.Errorf("%d events, %v", len(lines), err)
	}
	_, err := readAudit(strings.NewReader(goodLine+"\n"), func([]byte, *exchange.Event) error { return broken })
	if !errors.Is(err, broken) {
		t.Errorf("an output that fails: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// Whatever lies in a file, reading ends, each line counts once, and nothing of
// it can steer a terminal.
func FuzzReadAudit(f *testing.F) {
	f.Add([]byte(scriptFile(f, "audit.log")), "team-a/web")
	f.Add([]byte(goodLine+"\n"+goodLine[:30]), "a")
	f.Add([]byte(compressed(f, goodLine+"\n")), "")
	f.Fuzz(func(t *testing.T, data []byte, pod string) {
		var table, raw bytes.Buffer
		rows := auditTable{out: &table}
		events := 0
		matches, _ := ofPod(pod)
		damaged, _ := readAudit(bytes.NewReader(data), func(line []byte, event *exchange.Event) error {
			events++
			if matches != nil {
				matches(event)
			}
			ofRepository(pod)(event)
			raw.Write(append(term.ASCIIJSON(line), '\n'))
			return rows.row(event)
		})
		if !bytes.HasPrefix(data, []byte("\x1f\x8b")) && events+damaged > bytes.Count(data, []byte("\n"))+1 {
			t.Errorf("%d events and %d damaged lines", events, damaged)
		}
		if i := bytes.IndexFunc(table.Bytes(), func(r rune) bool { return r != '\n' && (r < ' ' || r > '~') }); i >= 0 {
			t.Errorf("the table has the byte %#x", table.Bytes()[i])
		}
		if want := events + min(events, 1); bytes.Count(table.Bytes(), []byte("\n")) != want {
			t.Errorf("%d events in the table\n%s", events, &table)
		}
		if slices.ContainsFunc(raw.Bytes(), func(b byte) bool { return b > '~' }) {
			t.Errorf("not ASCII: %q", &raw)
		}
		for line := range bytes.Lines(raw.Bytes()) {
			if !json.Valid(line) {
				t.Errorf("not JSON: %q", line)
			}
		}
	})
}
