package main

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/pullpass/pullpass/internal/policy/diff"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// cmdPolicyDifference is the command of scripts that holds a file to the schema of policy diff.
func cmdPolicyDifference(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: policy-difference FILE")
	}
	schema, err := proxytest.OpenPolicyDiffSchema()
	ts.Check(err)
	ts.Check(proxytest.CheckAnswer(schema.Compiled, []byte(ts.ReadFile(args[0]))))
}

// cmdExits is the command of scripts that runs a program which has to end with an exit code.
func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM [ARGUMENT...]")
	}
	if err := ts.Exec(args[1], args[2:]...); err == nil || err.Error() != "exit status "+strconv.Itoa(exitCode(args[0])) {
		ts.Fatalf("%q: %v", args, err)
	}
}

func exitCode(text string) int {
	code, _ := strconv.Atoi(text)
	return code
}

func TestPolicyDiffFieldsAreDocumented(t *testing.T) {
	t.Parallel()
	schema := testkit.Value(proxytest.OpenPolicyDiffSchema())(t)
	fields, inSchema := map[string]bool{}, map[string]bool{}
	auditFields(t, reflect.TypeFor[diff.Difference](), "", fields)
	schema.Fields(t, schema.Document, "", inSchema)
	sameSet(t, "fields of the difference", fields, "of the schema", inSchema)
	proxytest.RequireDescriptions(t, schema.Document, "")
}

// Every command of the document and of --help works as it stands there, and prints what the document shows.
func TestPolicyDiffExamplesWork(t *testing.T) {
	t.Parallel()
	archive := testkit.Value(txtar.ParseFile("testdata/script/policy-diff.txtar"))(t)
	dir, printed := t.TempDir(), ""
	for _, f := range archive.Files {
		data := string(f.Data)
		switch {
		case f.Name == "diff.txt":
			printed = data
		case strings.HasPrefix(f.Name, "old/"):
			testkit.Write(t, dir, strings.TrimPrefix(f.Name, "old/"), data)
			fallthrough
		case strings.HasPrefix(f.Name, "new/"):
			testkit.Must(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(f.Name)), 0o700))
			testkit.Write(t, dir, f.Name, strings.ReplaceAll(data, "audiences: [registry.example.com]}\nidentities", "audiences: [registry.example.com], kubernetes: {inCluster: true, objects: {policies: true, within: [\"**\"]}}}\nidentities"))
		case f.Name == "objects.yaml":
			for _, name := range []string{f.Name, "old/" + f.Name, "new/" + f.Name} {
				testkit.Write(t, dir, name, data)
			}
		}
	}
	document := testkit.Read(t, "../../docs/how-to/policy-diff.md")
	_, shown, _ := strings.Cut(document, "```text\n")
	shown, _, _ = strings.Cut(shown, "```")
	if !strings.HasPrefix(printed, shown) {
		t.Errorf("the document shows\n%s\nthe command prints\n%s", shown, printed)
	}
	examples := regexp.MustCompile(`(?m)^ *(pullpass policy diff .*?)(?: +#.*)?$`).FindAllStringSubmatch(document+"\n"+policyDiffCommand().Example, -1)
	if len(examples) < 6 {
		t.Fatalf("only %d examples were found", len(examples))
	}
	for _, example := range examples {
		args := strings.Fields(example[1])[1:]
		for i, arg := range args {
			cluster, name, isObjects := strings.Cut(arg, "=")
			if !isObjects {
				cluster, name = "", arg
			}
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil && name != "" {
				if args[i] = filepath.Join(dir, name); isObjects {
					args[i] = cluster + "=" + args[i]
				}
			}
		}
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), args, nil, &stdout, &stderr); code != 0 && !strings.Contains(example[1], "--fail-on") || stderr.Len() > 0 {
			t.Errorf("%s: exit code %d\n%s%s", example[1], code, &stdout, &stderr)
		}
	}
}
