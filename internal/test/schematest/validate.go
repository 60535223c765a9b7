package schematest

import (
	"bytes"
	"os"
	"regexp"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Accept holds a document to the schema.
func Accept(t *testing.T, s *jsonschema.Schema, name string, document []byte) {
	t.Helper()
	if err := validate(t, s, document); err != nil {
		t.Errorf("%s: %v", name, err)
	}
}

// Refuse finds a document that the schema accepts.
func Refuse(t *testing.T, s *jsonschema.Schema, name string, document []byte) {
	t.Helper()
	if validate(t, s, document) == nil {
		t.Errorf("%s: the schema accepts it", name)
	}
}

func validate(t *testing.T, s *jsonschema.Schema, document []byte) error {
	t.Helper()
	var value any
	testkit.Must(t, yaml.Unmarshal(document, &value))
	return s.Validate(value)
}

// AcceptFile is Accept for a file.
func AcceptFile(t *testing.T, s *jsonschema.Schema, name string) {
	t.Helper()
	document, err := os.ReadFile(name)
	testkit.Must(t, err)
	Accept(t, s, name, document)
}

// AcceptBlocks holds the blocks of YAML in a Markdown file that are documents of
// a kind to the schema.
func AcceptBlocks(t *testing.T, s *jsonschema.Schema, name, kind string) {
	t.Helper()
	text, err := os.ReadFile(name)
	testkit.Must(t, err)
	found := false
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(text, -1) {
		if bytes.Contains(block[1], []byte("\nkind: "+kind+"\n")) {
			found = true
			Accept(t, s, name, block[1])
		}
	}
	if !found {
		t.Errorf("%s has no block of YAML with the kind %s", name, kind)
	}
}
