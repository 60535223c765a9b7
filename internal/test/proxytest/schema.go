package proxytest

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const GoodLine = `{"time":"2026-03-01T09:00:00Z","id":"a","result":"granted","status":200,"latency":0.1}`

func Compressed(t testing.TB, text string) string {
	t.Helper()
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	testkit.Must(t, w.Close())
	return packed.String()
}

// outputSchema is a schema of docs.
type outputSchema struct {
	Compiled *jsonschema.Schema
	Document map[string]any
}

var (
	OpenAuditSchema       = sync.OnceValues(func() (outputSchema, error) { return openSchema("audit.schema.json") })
	OpenExplanationSchema = sync.OnceValues(func() (outputSchema, error) { return openSchema("explain.schema.json", "audit.schema.json") })
	OpenWhoCanSchema      = sync.OnceValues(func() (outputSchema, error) { return openSchema("who-can.schema.json") })
	OpenPolicyDiffSchema  = sync.OnceValues(func() (outputSchema, error) { return openSchema("policy-diff.schema.json") })
)

// openSchema compiles a schema of docs, which may refer to the others.
func openSchema(name string, others ...string) (outputSchema, error) {
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	var schema outputSchema
	for _, name := range append(others, name) {
		data, err := os.ReadFile(testkit.InModule("docs/" + name))
		if err != nil {
			return outputSchema{}, err
		}
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
		if err != nil {
			return outputSchema{}, err
		}
		schema.Document = document.(map[string]any)
		if err := compiler.AddResource(schema.Document["$id"].(string), document); err != nil {
			return outputSchema{}, err
		}
	}
	compiled, err := compiler.Compile(schema.Document["$id"].(string))
	schema.Compiled = compiled
	return schema, err
}

// CheckAuditLines holds every line to the schema.
func CheckAuditLines(t testing.TB, lines []byte) {
	t.Helper()
	schema := testkit.Value(OpenAuditSchema())(t)
	for line := range bytes.Lines(lines) {
		event, err := jsonschema.UnmarshalJSON(bytes.NewReader(line))
		if err == nil {
			err = schema.Compiled.Validate(event)
		}
		if err != nil {
			t.Errorf("audit line %.2000s%v", line, err)
		}
	}
}

// CheckExplanation holds an answer of explain to the schema.
func CheckExplanation(text []byte) error {
	schema, err := OpenExplanationSchema()
	if err != nil {
		return err
	}
	return CheckAnswer(schema.Compiled, text)
}

// CheckAnswer checks output for programs against a schema, and that a terminal can show it.
func CheckAnswer(schema *jsonschema.Schema, text []byte) error {
	answer, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	if i := bytes.IndexFunc(text, func(r rune) bool { return r != '\n' && (r < ' ' || r > '~') }); i >= 0 {
		return fmt.Errorf("byte %#x is not printable ASCII", text[i])
	}
	return schema.Validate(answer)
}

// ScriptFile returns a file of the script of pullpass audit.
func ScriptFile(t testing.TB, name string) string {
	t.Helper()
	archive := testkit.Value(txtar.ParseFile(testkit.InModule("cmd/proxy/testdata/script/audit.txtar")))(t)
	i := slices.IndexFunc(archive.Files, func(f txtar.File) bool { return f.Name == name })
	if i < 0 {
		t.Fatalf("the script has no file %s", name)
	}
	return string(archive.Files[i].Data)
}

// resolve follows a reference within the document, and goes into arrays.
func (s outputSchema) resolve(schema map[string]any) map[string]any {
	if ref, ok := schema["$ref"].(string); ok {
		definition, ok := strings.CutPrefix(ref, "#/$defs/")
		if !ok {
			return nil // of another document
		}
		return s.resolve(s.Document["$defs"].(map[string]any)[definition].(map[string]any))
	}
	if items, ok := schema["items"].(map[string]any); ok {
		return s.resolve(items)
	}
	return schema
}

func (s outputSchema) Fields(t *testing.T, schema map[string]any, path string, into map[string]bool) {
	t.Helper()
	schema = s.resolve(schema)
	properties, ok := schema["properties"].(map[string]any)
	if ok && schema["additionalProperties"] != false {
		t.Errorf("the schema accepts any field in %q", path)
	}
	for name, property := range properties {
		into[path+name] = true
		s.Fields(t, property.(map[string]any), path+name+".", into)
	}
}

// RequireDescriptions fails for each field that a schema does not describe.
func RequireDescriptions(t *testing.T, schema map[string]any, path string) {
	t.Helper()
	for _, key := range []string{"properties", "$defs"} {
		named, _ := schema[key].(map[string]any)
		for name, part := range named {
			part, path := part.(map[string]any), path+"."+name
			if key == "properties" && name != "apiVersion" && name != "kind" && part["description"] == nil {
				t.Errorf("the schema does not describe %s", path)
			}
			RequireDescriptions(t, part, path)
		}
	}
	if items, ok := schema["items"].(map[string]any); ok {
		RequireDescriptions(t, items, path)
	}
}

func (s outputSchema) Enum(t *testing.T, path string) map[string]bool {
	t.Helper()
	schema := s.Document
	for name := range strings.SplitSeq(path, ".") {
		schema = s.resolve(schema["properties"].(map[string]any)[name].(map[string]any))
	}
	values := map[string]bool{}
	for _, value := range schema["enum"].([]any) {
		values[value.(string)] = true
	}
	return values
}

// EventIDs returns the ids of the events in lines that must be whole.
func EventIDs(t *testing.T, lines []byte) []string {
	t.Helper()
	CheckAuditLines(t, lines)
	var all []string
	for decoder := json.NewDecoder(bytes.NewReader(lines)); ; {
		var event exchange.Event
		err := decoder.Decode(&event)
		if errors.Is(err, io.EOF) {
			return all
		}
		testkit.Must(t, err)
		all = append(all, event.ID)
	}
}
