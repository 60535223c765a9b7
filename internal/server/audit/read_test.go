package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/test/proxytest"
)

func readAll(in io.Reader) (lines []string, damaged int, err error) {
	damaged, err = read(in, func(line []byte, _ *exchange.Event) error {
		lines = append(lines, string(line))
		return nil
	})
	return lines, damaged, err
}

func TestReadAudit(t *testing.T) {
	t.Parallel()
	long := `{"time":"2026-03-01T09:00:00Z","id":"long","result":"granted","client":"` + strings.Repeat("x", 3*maxLine) + `"}`
	for name, c := range map[string]struct {
		in              string
		events, damaged int
	}{
		"nothing":               {"", 0, 0},
		"one":                   {proxytest.GoodLine + "\n", 1, 0},
		"no end of line":        {proxytest.GoodLine, 1, 0},
		"another system's":      {proxytest.GoodLine + "\r\n" + proxytest.GoodLine + "\r\n", 2, 0},
		"empty lines":           {"\n\n" + proxytest.GoodLine + "\n\n", 1, 0},
		"torn at the end":       {proxytest.GoodLine + "\n" + proxytest.GoodLine[:40], 1, 1},
		"torn, then ended":      {proxytest.GoodLine[:40] + "\n" + proxytest.GoodLine + "\n", 1, 1},
		"two lines in one":      {proxytest.GoodLine + proxytest.GoodLine + "\n", 0, 1},
		"zeroes after a crash":  {strings.Repeat("\x00", 100) + "\n" + proxytest.GoodLine + "\n", 1, 1},
		"too long":              {long + "\n" + proxytest.GoodLine + "\n", 1, 1},
		"too long, and the end": {proxytest.GoodLine + "\n" + long, 1, 1},
		"a list":                {"[" + proxytest.GoodLine + "]\n", 0, 1},
		"a wrong type":          {strings.Replace(proxytest.GoodLine, "200", `"200"`, 1) + "\n", 0, 1},
		"without id":            {strings.Replace(proxytest.GoodLine, `"id":"a",`, "", 1) + "\n", 0, 1},
		"without result":        {strings.Replace(proxytest.GoodLine, `"result":"granted",`, "", 1) + "\n", 0, 1},
		"without time":          {strings.Replace(proxytest.GoodLine, `"time":"2026-03-01T09:00:00Z",`, "", 1) + "\n", 0, 1},
		"a newer version's":     {strings.Replace(proxytest.GoodLine, `{`, `{"new":1,`, 1) + "\n", 1, 0},
		"the program's own log": {`{"time":"2026-03-01T09:00:00Z","level":"INFO","msg":"serving"}` + "\n" + proxytest.GoodLine + "\n", 1, 0},
	} {
		for form, in := range map[string]string{"plain": c.in, "gzip": proxytest.Compressed(t, c.in)} {
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
	lines, damaged, err := readAll(strings.NewReader(proxytest.Compressed(t, proxytest.GoodLine+"\n") + proxytest.Compressed(t, proxytest.GoodLine+"\n")))
	if len(lines) != 2 || damaged != 0 || err != nil {
		t.Errorf("%d events, %d damaged lines, %v", len(lines), damaged, err)
	}
}

// An unread part of the log may matter, so it is an error, not a warning.
func TestReadAuditFailsWhenItCannotGoOn(t *testing.T) {
	t.Parallel()
	packed := proxytest.Compressed(t, strings.Repeat(proxytest.GoodLine+"\n", 100))
	if _, _, err := readAll(strings.NewReader(packed[:len(packed)-4])); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a cut file: %v", err)
	}
	if _, _, err := readAll(strings.NewReader(packed[:4])); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a cut head: %v", err)
	}
	broken := errors.New("broken")
	if lines, _, err := readAll(io.MultiReader(strings.NewReader(proxytest.GoodLine+"\n"), iotest.ErrReader(broken))); !errors.Is(err, broken) || len(lines) != 1 {
		t.Errorf("%d events, %v", len(lines), err)
	}
	_, err := read(strings.NewReader(proxytest.GoodLine+"\n"), func([]byte, *exchange.Event) error { return broken })
	if !errors.Is(err, broken) {
		t.Errorf("an output that fails: %v", err)
	}
}

// Whatever lies in a file, reading ends, each line counts once, and nothing of
// it can steer a terminal.
func FuzzReadAudit(f *testing.F) {
	f.Add([]byte(proxytest.ScriptFile(f, "audit.log")), "team-a/web")
	f.Add([]byte(proxytest.GoodLine+"\n"+proxytest.GoodLine[:30]), "a")
	f.Add([]byte(proxytest.Compressed(f, proxytest.GoodLine+"\n")), "")
	f.Fuzz(func(t *testing.T, data []byte, pod string) {
		var printed, raw bytes.Buffer
		rows := table{out: &printed}
		events := 0
		matches, _ := ofPod(pod)
		damaged, _ := read(bytes.NewReader(data), func(line []byte, event *exchange.Event) error {
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
		if i := bytes.IndexFunc(printed.Bytes(), func(r rune) bool { return r != '\n' && (r < ' ' || r > '~') }); i >= 0 {
			t.Errorf("the table has the byte %#x", printed.Bytes()[i])
		}
		if want := events + min(events, 1); bytes.Count(printed.Bytes(), []byte("\n")) != want {
			t.Errorf("%d events in the table\n%s", events, &printed)
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

// The lines that the document and the scripts show are such as the program writes.
func TestAuditExampleLines(t *testing.T) {
	t.Parallel()
	proxytest.CheckAuditLines(t, []byte(proxytest.ScriptFile(t, "line.json")))
	for line := range strings.Lines(proxytest.ScriptFile(t, "audit.log")) {
		if _, kind := parseLine([]byte(line)); kind == eventLine {
			proxytest.CheckAuditLines(t, []byte(line))
		}
	}
}
