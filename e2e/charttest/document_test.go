package charttest

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// manual is a document, read and done step by step in a directory.
type manual struct {
	name      string
	directory string
	blocks    []string // with the language in the first line
}

func openManual(t testing.TB, name, directory string) *manual {
	t.Helper()
	content := testenv.ReadFile(t, filepath.Join(programs.Checkout(t), "docs", name))
	m := &manual{name: name, directory: directory}
	for i, part := range strings.Split(content, "```") {
		if i%2 == 1 {
			m.blocks = append(m.blocks, part)
		}
	}
	return m
}

// block is the only one of a language that holds a text.
func (m *manual) block(t testing.TB, language, text string) string {
	t.Helper()
	var found []string
	for _, block := range m.blocks {
		if content, ok := strings.CutPrefix(block, language+"\n"); ok && strings.Contains(content, text) {
			found = append(found, content)
		}
	}
	if len(found) != 1 {
		t.Fatalf("docs/%s has %d blocks of %s with %q, want one", m.name, len(found), language, text)
	}
	return found[0]
}

// do runs the commands that hold a text, and returns what they print. more is added to the last one.
func (s *site) do(t testing.TB, m *manual, text string, more ...string) string {
	t.Helper()
	commands := strings.TrimSpace(m.block(t, "sh", text) + " " + strings.Join(more, " "))
	commands = strings.NewReplacer(" deploy/helm/pullpass ", " "+chart(t)+" ", " deploy/start/values.yaml", " values.yaml").Replace(commands)
	return s.run(t, "sh", "-euc", "cd "+m.directory+"\n"+commands)
}

func (m *manual) write(t testing.TB, name, content string) {
	t.Helper()
	testenv.WriteFile(t, filepath.Join(m.directory, name), content)
}

func (m *manual) read(t testing.TB, name string) string {
	t.Helper()
	return testenv.ReadFile(t, filepath.Join(m.directory, name))
}
