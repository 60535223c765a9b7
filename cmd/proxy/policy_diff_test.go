package main

import (
	"reflect"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

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
