package schematest

import (
	"os"
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
	document := testkit.Value(os.ReadFile(name))(t)
	Accept(t, s, name, document)
}
