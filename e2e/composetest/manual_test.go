package composetest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/process"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// manual is docs/start/docker.md: its commands, in their order, in one shell.
type manual struct {
	blocks []string
	input  io.Writer
	output *bufio.Reader
}

func openManual(t *testing.T, checkout string) *manual {
	t.Helper()
	content := testenv.ReadFile(t, filepath.Join(checkout, "docs/start/docker.md"))
	m := &manual{}
	for i, part := range strings.Split(content, "```") {
		if commands, ok := strings.CutPrefix(part, "sh\n"); ok && i%2 == 1 {
			m.blocks = append(m.blocks, commands)
		}
	}
	inside, input, err := os.Pipe()
	testenv.Must(t, err)
	output, outside, err := os.Pipe()
	testenv.Must(t, err)
	shell := exec.Command("bash")
	shell.Dir, shell.Stdin, shell.Stdout = checkout, inside, outside
	process.Start(t, shell)
	m.input, m.output = input, bufio.NewReader(output)
	t.Cleanup(func() {
		for _, end := range []*os.File{inside, input, output, outside} {
			_ = end.Close()
		}
	})
	return m
}

// do runs the next block, in which text stands. The last command ends with the status, and the texts of want are printed.
func (m *manual) do(t *testing.T, text string, status int, want ...string) string {
	t.Helper()
	if len(m.blocks) == 0 || !strings.Contains(m.blocks[0], text) {
		t.Fatalf("docs/start/docker.md: the next block has no %q: %q", text, m.blocks)
	}
	const end = "-- end of the block, status "
	testenv.Value(fmt.Fprintf(m.input, "{\n%s\n} </dev/null 2>&1\nprintf '\\n%s%%d\\n' $?\n", m.blocks[0], end))(t)
	m.blocks = m.blocks[1:]
	var printed strings.Builder
	for {
		line := testenv.Value(m.output.ReadString('\n'))(t)
		if got, ok := strings.CutPrefix(line, end); ok {
			if got != fmt.Sprintln(status) {
				t.Fatalf("%q: status %s, want %d:\n%s", text, strings.TrimSpace(got), status, printed.String())
			}
			break
		}
		printed.WriteString(line)
	}
	if i := slices.IndexFunc(want, func(w string) bool { return !strings.Contains(printed.String(), w) }); i >= 0 {
		t.Fatalf("%q does not print %q:\n%s", text, want[i], printed.String())
	}
	return printed.String()
}

// variable is what a variable of the shell holds.
func (m *manual) variable(t *testing.T, name string) string {
	t.Helper()
	testenv.Value(fmt.Fprintf(m.input, "printf '%%s\\n' \"$%s\"\n", name))(t)
	line := testenv.Value(m.output.ReadString('\n'))(t)
	return strings.TrimSpace(line)
}

// end makes sure that all was done.
func (m *manual) end(t *testing.T) {
	t.Helper()
	if len(m.blocks) > 0 {
		t.Errorf("docs/start/docker.md: the test did not run %q", m.blocks)
	}
}
