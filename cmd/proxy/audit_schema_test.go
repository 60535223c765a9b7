package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/pullpass/pullpass/internal/exchange"
)

// outputSchema is a schema of docs.
type outputSchema struct {
	compiled *jsonschema.Schema
	document map[string]any
}

var (
	openAuditSchema       = sync.OnceValues(func() (outputSchema, error) { return openSchema("audit.schema.json") })
	openExplanationSchema = sync.OnceValues(func() (outputSchema, error) { return openSchema("explain.schema.json", "audit.schema.json") })
)

// openSchema compiles a schema of docs, which may refer to the others.
func openSchema(name string, others ...string) (outputSchema, error) {
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	var schema outputSchema
	for _, name := range append(others, name) {
		data, err := os.ReadFile("../../docs/" + name)
		if err != nil {
			return outputSchema{}, err
		}
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
		if err != nil {
			return outputSchema{}, err
		}
		schema.document = document.(map[string]any)
		if err := compiler.AddResource(schema.document["$id"].(string), document); err != nil {
			return outputSchema{}, err
		}
	}
	compiled, err := compiler.Compile(schema.document["$id"].(string))
	schema.compiled = compiled
	return schema, err
}

// checkAuditLines holds every line to the schema.
func checkAuditLines(t testing.TB, lines []byte) {
	t.Helper()
	schema, err := openAuditSchema()
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(lines) {
		event, err := jsonschema.UnmarshalJSON(bytes.NewReader(line))
		if err == nil {
			err = schema.compiled.Validate(event)
		}
		if err != nil {
			t.Errorf("audit line %.2000s%v", line, err)
		}
	}
}

// The schema refuses what is not an event, or it would prove nothing.
func TestAuditSchemaIsStrict(t *testing.T) {
	t.Parallel()
	schema, err := openAuditSchema()
	must(t, err)
	const good = `{"time":"2026-03-01T09:00:00Z","id":"a","result":"refused","status":401,"reason":"anonymous","message":"m","proof":{"mode":"audit","passed":true,"method":"address"},"node":{"name":"n"},"claimed":{"pod":"p"},"scopes":[{"scope":"s","reason":"r"}],"latency":0.1}`
	checkAuditLines(t, []byte(good))
	for old, changed := range map[string]string{
		`"id":"a"`:               `"id":"a","other":1`,
		`"name":"n"`:             `"name":"n","other":1`,
		`"pod":"p"`:              `"pod":"p","other":1`,
		`"method":"address"`:     `"method":"address","other":1`,
		`"scope":"s"`:            `"scope":"s","other":1`,
		`"reason":"anonymous"`:   `"reason":"because"`,
		`"result":"refused"`:     `"result":"maybe"`,
		`2026-03-01T09:00:00Z`:   `yesterday`,
		`,"latency":0.1`:         ``,
		`"passed":true`:          `"passed":false`,
		`"message":"m"`:          `"message":"m","granted":["s"]`,
		`"claimed":{"pod":"p"}`:  `"claimed":{"pod":"p"},"credentialID":"JTI=x"`,
		`"claimed":{"pod":"p"},`: `"credentialID":"x",`,
	} {
		event, err := jsonschema.UnmarshalJSON(strings.NewReader(strings.Replace(good, old, changed, 1)))
		must(t, err)
		if schema.compiled.Validate(event) == nil {
			t.Errorf("the schema accepts %s instead of %s", changed, old)
		}
	}
}

// A field of an event that the schema or the document does not know is one that
// nobody downstream knows.
func TestAuditFieldsAreDocumented(t *testing.T) {
	t.Parallel()
	schema, err := openAuditSchema()
	must(t, err)
	fields := map[string]bool{}
	auditFields(t, reflect.TypeFor[exchange.Event](), "", fields)
	inSchema := map[string]bool{}
	schema.fields(t, schema.document, "", inSchema)
	sameSet(t, "fields of exchange.Event", fields, "of the schema", inSchema)
	sameSet(t, "fields of exchange.Event", fields, "of docs/audit.md", firstCells(t, auditDocument, "## Fields", "field"))
}

const auditDocument = "audit.md"

// The sets of words are closed: whoever counts or alerts on them can rely on it.
func TestAuditWordsAreDocumented(t *testing.T) {
	t.Parallel()
	schema, err := openAuditSchema()
	must(t, err)
	inExchange, inOIDC := stringConstants(t, "../../internal/exchange"), stringConstants(t, "../../internal/oidc")
	choose := func(constants map[string]string, prefix string) map[string]bool {
		chosen := map[string]bool{}
		for name, value := range constants {
			if strings.HasPrefix(name, prefix) {
				chosen[value] = true
			}
		}
		return chosen
	}
	reasons := choose(inExchange, "reason")
	delete(reasons, inExchange["reasonGone"]) // the end of three
	for _, kind := range []exchange.Kind{exchange.KindServiceAccount, exchange.KindPod, exchange.KindNode} {
		reasons[(&exchange.GoneError{Kind: kind}).Reason()] = true
	}
	maps.Copy(reasons, choose(inOIDC, "Reason"))
	proofReasons := choose(inExchange, "Proof")
	for _, other := range []string{"ProofOff", "ProofAudit", "ProofEnforce", "ProofCertificate", "ProofAddress"} {
		delete(proofReasons, inExchange[other])
	}
	replayReasons := choose(inExchange, "Replay")
	for _, other := range []string{"ReplayOff", "ReplayAudit", "ReplayEnforce"} {
		delete(replayReasons, inExchange[other])
	}
	for _, words := range []struct {
		path    string
		want    map[string]bool
		listed  []string
		heading string
		column  string
	}{
		{"reason", reasons, exchange.Reasons(), "## Reasons", "reason"},
		{"result", choose(inExchange, "Result"), closedSet(exchange.Results()...), "## Results", "result"},
		{"proof.reason", proofReasons, closedSet(exchange.ProofReasons()...), "## Reasons", "proof.reason"},
		{"replay.reason", replayReasons, closedSet(exchange.ReplayReasons()...), "## Reasons", "replay.reason"},
	} {
		if len(words.want) < 3 {
			t.Fatalf("only %d constants for %s were found", len(words.want), words.path)
		}
		sameSet(t, "constants for "+words.path, words.want, "the function for metrics", setOf(words.listed))
		sameSet(t, "constants for "+words.path, words.want, "the schema", schema.enum(t, words.path))
		sameSet(t, "constants for "+words.path, words.want, "docs/audit.md", firstCells(t, auditDocument, words.heading, words.column))
	}
}

// The lines that the document and the scripts show are such as the program writes.
func TestAuditExampleLines(t *testing.T) {
	t.Parallel()
	checkAuditLines(t, []byte(scriptFile(t, "line.json")))
	for line := range strings.Lines(scriptFile(t, "audit.log")) {
		if _, kind := parseAuditLine([]byte(line)); kind == auditEvent {
			checkAuditLines(t, []byte(line))
		}
	}
}

// Every example of the document and of --help works as it stands there.
func TestAuditExamplesWork(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := scriptFile(t, "audit.log")
	write(t, dir, "audit.log", log)
	write(t, dir, "audit.log.1.gz", compressed(t, log))
	document, err := os.ReadFile("../../docs/audit.md")
	must(t, err)
	examples := regexp.MustCompile(`(?m)(?:^|\| |^  )(pullpass audit .*)$`).FindAllStringSubmatch(auditCommand().Example+"\n"+string(document), -1)
	if len(examples) < 10 {
		t.Fatalf("only %d examples were found", len(examples))
	}
	for _, example := range examples {
		args := strings.Fields(example[1])[1:]
		for i, arg := range args {
			if strings.HasPrefix(arg, "audit.log") {
				args[i] = filepath.Join(dir, arg)
			}
		}
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), args, strings.NewReader(log), &stdout, &stderr)
		found := stdout.Len() > 0 || slices.Contains(args, "24h") // the log is from 2026
		if code != 0 || !found {
			t.Errorf("%s: exit code %d\n%s%s", example[1], code, &stdout, &stderr)
		}
	}
}

// scriptFile returns a file of the script of pullpass audit.
func scriptFile(t testing.TB, name string) string {
	t.Helper()
	archive, err := txtar.ParseFile("testdata/script/audit.txtar")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(archive.Files, func(f txtar.File) bool { return f.Name == name })
	if i < 0 {
		t.Fatalf("the script has no file %s", name)
	}
	return string(archive.Files[i].Data)
}

// auditFields adds the paths of all fields as JSON has them.
func auditFields(t *testing.T, typ reflect.Type, path string, into map[string]bool) {
	t.Helper()
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct || typ == reflect.TypeFor[time.Time]() {
		return
	}
	for field := range typ.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if !field.IsExported() {
			continue
		}
		if field.Anonymous && name == "" {
			auditFields(t, field.Type, path, into)
			continue
		}
		if name == "" {
			t.Fatalf("the field %s%s has no name in JSON", path, field.Name)
		}
		into[path+name] = true
		auditFields(t, field.Type, path+name+".", into)
	}
}

// resolve follows a reference within the document, and goes into arrays.
func (s outputSchema) resolve(schema map[string]any) map[string]any {
	if ref, ok := schema["$ref"].(string); ok {
		definition, ok := strings.CutPrefix(ref, "#/$defs/")
		if !ok {
			return nil // of another document
		}
		return s.resolve(s.document["$defs"].(map[string]any)[definition].(map[string]any))
	}
	if items, ok := schema["items"].(map[string]any); ok {
		return s.resolve(items)
	}
	return schema
}

func (s outputSchema) fields(t *testing.T, schema map[string]any, path string, into map[string]bool) {
	t.Helper()
	schema = s.resolve(schema)
	properties, ok := schema["properties"].(map[string]any)
	if ok && schema["additionalProperties"] != false {
		t.Errorf("the schema accepts any field in %q", path)
	}
	for name, property := range properties {
		into[path+name] = true
		s.fields(t, property.(map[string]any), path+name+".", into)
	}
}

func (s outputSchema) enum(t *testing.T, path string) map[string]bool {
	t.Helper()
	schema := s.document
	for name := range strings.SplitSeq(path, ".") {
		schema = s.resolve(schema["properties"].(map[string]any)[name].(map[string]any))
	}
	values := map[string]bool{}
	for _, value := range schema["enum"].([]any) {
		values[value.(string)] = true
	}
	return values
}

// firstCells returns the words in the first column of a table of a document in
// docs, which stands below a heading and has a name in its first column.
func firstCells(t *testing.T, document, heading, column string) map[string]bool {
	t.Helper()
	data, err := os.ReadFile("../../docs/" + document)
	must(t, err)
	_, text, _ := strings.Cut(string(data), heading+"\n")
	_, text, _ = strings.Cut(text, "\n| "+column+" |")
	text, _, _ = strings.Cut(text, "\n\n")
	words := map[string]bool{}
	for row := range strings.Lines(text) {
		if cells := strings.Split(row, " | "); strings.HasPrefix(row, "| `") {
			for word := range strings.SplitSeq(strings.TrimPrefix(cells[0], "| "), ", ") {
				words[strings.Trim(word, "`")] = true
			}
		}
	}
	return words
}

// stringConstants returns the constants of a package that are written as
// strings, by name.
func stringConstants(t *testing.T, dir string) map[string]string {
	t.Helper()
	constants := map[string]string{}
	names, err := filepath.Glob(dir + "/*.go")
	must(t, err)
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		must(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for i, value := range spec.Values {
				if literal, ok := value.(*ast.BasicLit); ok && literal.Kind == token.STRING {
					constants[spec.Names[i].Name], err = strconv.Unquote(literal.Value)
					must(t, err)
				}
			}
			return true
		})
	}
	return constants
}

func sameSet(t *testing.T, whatA string, a map[string]bool, whatB string, b map[string]bool) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(a)) {
		if !b[name] {
			t.Errorf("%q is one of the %s, but not %s", name, whatA, whatB)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b)) {
		if !a[name] {
			t.Errorf("%q is %s, but not one of the %s", name, whatB, whatA)
		}
	}
}

func setOf(names []string) map[string]bool {
	set := map[string]bool{}
	for _, name := range names {
		set[name] = true
	}
	return set
}
