package main

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/server/metrics"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The schema refuses what is not an event, or it would prove nothing.
func TestAuditSchemaIsStrict(t *testing.T) {
	t.Parallel()
	schema := testkit.Value(proxytest.OpenAuditSchema())(t)
	const good = `{"time":"2026-03-01T09:00:00Z","id":"a","result":"refused","status":401,"reason":"anonymous","message":"m","proof":{"mode":"audit","passed":true,"method":"address"},"node":{"name":"n"},"claimed":{"pod":"p"},"scopes":[{"scope":"s","reason":"r"}],"latency":0.1}`
	proxytest.CheckAuditLines(t, []byte(good))
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
		event := testkit.Value(jsonschema.UnmarshalJSON(strings.NewReader(strings.Replace(good, old, changed, 1))))(t)
		if schema.Compiled.Validate(event) == nil {
			t.Errorf("the schema accepts %s instead of %s", changed, old)
		}
	}
}

// If the schema lacks a field of an event, or does not describe it, consumers of the log cannot know it.
func TestAuditFieldsAreDocumented(t *testing.T) {
	t.Parallel()
	schema := testkit.Value(proxytest.OpenAuditSchema())(t)
	fields := map[string]bool{}
	auditFields(t, reflect.TypeFor[exchange.Event](), "", fields)
	inSchema := map[string]bool{}
	schema.Fields(t, schema.Document, "", inSchema)
	sameSet(t, "fields of exchange.Event", fields, "of the schema", inSchema)
	proxytest.RequireDescriptions(t, schema.Document, "")

	_, example, _ := strings.Cut(testkit.Read(t, "../../docs/"+auditDocument), "```json\n")
	example, _, _ = strings.Cut(example, "```")
	var line bytes.Buffer
	testkit.Must(t, json.Compact(&line, []byte(example)))
	proxytest.CheckAuditLines(t, append(line.Bytes(), '\n'))
}

const auditDocument = "reference/audit.md"

// The sets of words are closed: counts and alerts can rely on that.
func TestAuditWordsAreDocumented(t *testing.T) {
	t.Parallel()
	schema := testkit.Value(proxytest.OpenAuditSchema())(t)
	inExchange := stringConstants(t, "../../internal/exchange/*.go")
	choose := func(constants map[string]string, prefix string) map[string]bool {
		chosen := map[string]bool{}
		for name, value := range constants {
			if strings.HasPrefix(name, prefix) {
				chosen[value] = true
			}
		}
		return chosen
	}
	reasons, gatewayReasons := reasonsUsed(t, "internal/exchange", "internal/oidc"), reasonsUsed(t, "internal/gateway")
	documented := firstCells(t, auditDocument, "## Gateway reasons", "gateway reason")
	for reason := range gatewayReasons {
		if !reasons[reason] && !documented[reason] {
			t.Errorf("docs/reference/audit.md: the gateway's reason %s is not there", reason)
		}
	}
	inProof := stringConstants(t, "../../internal/exchange/nodeproof/*.go")
	for _, other := range []string{"Off", "Audit", "Enforce", "Certificate", "Address", "nodeUserPrefix", "nodesGroup"} {
		delete(inProof, other)
	}
	proofReasons := choose(inProof, "")
	replayReasons := choose(inExchange, "Replay")
	for _, other := range []string{"ReplayOff", "ReplayAudit", "ReplayEnforce"} {
		delete(replayReasons, inExchange[other])
	}
	all := maps.Clone(reasons)
	maps.Copy(all, gatewayReasons)
	sameSet(t, "reasons used", all, "the schema", schema.Enum(t, "reason"))
	sameSet(t, "reasons used", reasons, "docs/reference/audit.md", firstCells(t, auditDocument, "## Reasons", "reason"))
	for _, words := range []struct {
		path     string
		want     map[string]bool
		listed   []string
		document string
		heading  string
		column   string
	}{
		{"result", choose(inExchange, "Result"), metrics.ClosedSet(exchange.Results()...), auditDocument, "## Results", "result"},
		{"proof.reason", proofReasons, metrics.ClosedSet(nodeproof.Reasons()...), "how-to/node-proof.md", "## Roll it out", "reason"},
		{"replay.reason", replayReasons, metrics.ClosedSet(exchange.ReplayReasons()...), auditDocument, "## Reasons", "replay.reason"},
	} {
		if len(words.want) < 3 {
			t.Fatalf("only %d constants for %s were found", len(words.want), words.path)
		}
		sameSet(t, "constants for "+words.path, words.want, "the function for metrics", setOf(words.listed))
		sameSet(t, "constants for "+words.path, words.want, "the schema", schema.Enum(t, words.path))
		sameSet(t, "constants for "+words.path, words.want, "docs/"+words.document, firstCells(t, words.document, words.heading, words.column))
	}
}

// Every example of the document and of --help works as it stands there.
func TestAuditExamplesWork(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := proxytest.ScriptFile(t, "audit.log")
	testkit.Write(t, dir, "audit.log", log)
	testkit.Write(t, dir, "audit.log.1.gz", proxytest.Compressed(t, log))
	document := testkit.Read(t, "../../docs/reference/audit.md")
	examples := regexp.MustCompile(`(?m)(?:^|\| |^  )(pullpass audit .*)$`).FindAllStringSubmatch(auditCommand().Example+"\n"+document, -1)
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
		if !field.IsExported() || name == "-" {
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

// firstCells returns the words in the first column of a table of a document in
// docs, which stands below a heading and has a name in its first column.
func firstCells(t *testing.T, document, heading, column string) map[string]bool {
	t.Helper()
	data := testkit.Read(t, "../../docs/"+document)
	_, text, _ := strings.Cut(data, heading+"\n")
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

// stringConstants returns the constants in some files that are written as
// strings, by name.
func stringConstants(t *testing.T, pattern string) map[string]string {
	t.Helper()
	constants := map[string]string{}
	names := testkit.Value(filepath.Glob(pattern))(t)
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file := testkit.Value(parser.ParseFile(token.NewFileSet(), name, nil, 0))(t)
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for i, value := range spec.Values {
				if literal, ok := value.(*ast.BasicLit); ok && literal.Kind == token.STRING {
					constants[spec.Names[i].Name] = testkit.Value(strconv.Unquote(literal.Value))(t)
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
