package main

import (
	"reflect"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/pullpass/pullpass/internal/policy/reach"
	"github.com/pullpass/pullpass/internal/server/usage"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// cmdPolicyAnswer is the command of scripts that holds a file to the schema of answers
// about the policy.
func cmdPolicyAnswer(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: policy-answer FILE")
	}
	ts.Check(checkPolicyAnswer([]byte(ts.ReadFile(args[0]))))
}

func checkPolicyAnswer(text []byte) error {
	schema, err := proxytest.OpenWhoCanSchema()
	if err != nil {
		return err
	}
	return proxytest.CheckAnswer(schema.Compiled, text)
}

func TestPolicyAnswersAreDocumented(t *testing.T) {
	t.Parallel()
	schema := testkit.Value(proxytest.OpenWhoCanSchema())(t)
	for _, answer := range []struct {
		name string
		typ  reflect.Type
	}{
		{"who", reflect.TypeFor[reach.Who]()},
		{"reach", reflect.TypeFor[reach.What]()},
		{"unused", reflect.TypeFor[usage.Report]()},
	} {
		fields, inSchema := map[string]bool{}, map[string]bool{}
		auditFields(t, answer.typ, "", fields)
		schema.Fields(t, schema.Document["$defs"].(map[string]any)[answer.name].(map[string]any), "", inSchema)
		sameSet(t, "fields of "+answer.name, fields, "of the schema", inSchema)
	}
	proxytest.RequireDescriptions(t, schema.Document, "")
}
