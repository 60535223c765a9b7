package main

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/pullpass/pullpass/internal/server/explain"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// cmdExplanation is the command of scripts that holds a file to the schema.
func cmdExplanation(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: explanation FILE")
	}
	ts.Check(proxytest.CheckExplanation([]byte(ts.ReadFile(args[0]))))
}

// The schema refuses what is not an explanation, or it would prove nothing.
func TestExplanationSchemaIsStrict(t *testing.T) {
	t.Parallel()
	const good = `{"apiVersion":"pullpass.dev/v1alpha1","kind":"Explanation","subject":{"source":"token","proven":true,"node":{"name":"n"}},"service":"s",` +
		`"steps":[{"step":"service","verdict":"passed","message":"m"},STEP,STEP,STEP,STEP,STEP,STEP,STEP,STEP],` +
		`"rules":[{"name":"r","origin":"o","subjectMatched":true,"serviceMatched":true,"scopes":[{"requested":"s"}]}],"now":{"result":"none","status":200,"reason":"scope_not_granted"}}`
	whole := strings.ReplaceAll(good, "STEP", `{"step":"deny","verdict":"off","message":"m"}`)
	testkit.Must(t, proxytest.CheckExplanation([]byte(whole)))
	for old, changed := range map[string]string{
		`"service":"s"`:                 `"service":"s","other":1`,
		`"name":"n"`:                    `"name":"n","other":1`,
		`"requested":"s"`:               `"requested":"s","other":1`,
		`"verdict":"passed"`:            `"verdict":"fine"`,
		`"step":"service"`:              `"step":"anything"`,
		`"proven":true`:                 `"proven":false`,
		`"source":"token"`:              `"source":"name"`,
		`"proven":true,`:                `"proven":true,"unproven":"why",`,
		`"reason":"scope_not_granted"`:  `"reason":"because"`,
		`"status":200`:                  `"status":500`,
		`"result":"none"`:               `"result":"unavailable"`,
		`,{"step":"deny","verdict":"of`: `,{"other":1},{"step":"deny","verdict":"of`,
		`"kind":"Explanation"`:          `"kind":"Other"`,
	} {
		if err := proxytest.CheckExplanation([]byte(strings.Replace(whole, old, changed, 1))); err == nil {
			t.Errorf("the schema accepts %s instead of %s", changed, old)
		}
	}
	claim := strings.NewReplacer(`"source":"token","proven":true`, `"source":"claim","proven":false,"unproven":"why"`, `"service":"s"`,
		`"service":"s","then":{"time":"2026-03-01T09:00:00Z","id":"a","result":"refused","status":401,"reason":"anonymous","message":"m","latency":0.1}`).Replace(whole)
	testkit.Must(t, proxytest.CheckExplanation([]byte(claim)))
	for old, changed := range map[string]string{
		`"service":"s"`:      `"service":"s","edit":{"cluster":"c","rule":"- name: x"}`,
		`,"unproven":"why"`:  ``,
		`"then":`:            `"than":`,
		`"id":"a",`:          ``,
		`"message":"m","lat`: `"lat`,
	} {
		if err := proxytest.CheckExplanation([]byte(strings.Replace(claim, old, changed, 1))); err == nil {
			t.Errorf("of a claim, the schema accepts %s instead of %s", changed, old)
		}
	}
}

func TestExplanationFieldsAreDocumented(t *testing.T) {
	t.Parallel()
	schema := testkit.Value(proxytest.OpenExplanationSchema())(t)
	fields := map[string]bool{}
	auditFields(t, reflect.TypeFor[explain.Explanation](), "", fields)
	inSchema := map[string]bool{}
	schema.Fields(t, schema.Document, "", inSchema)
	for name := range fields { // of another document
		for _, of := range []string{"subject.claimed.", "subject.identity.", "now.scopes.", "now.revocation.", "subject.serviceAccount.", "subject.pod.", "subject.node.", "subject.pullSecret."} {
			if strings.HasPrefix(name, of) {
				inSchema[name] = true
			}
		}
	}
	sameSet(t, "fields of the explanation", fields, "of the schema", inSchema)
	proxytest.RequireDescriptions(t, schema.Document, "")
}

// Every example of documents and of --help works as it stands there.
func TestExplainExamplesWork(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log, token := proxytest.ScriptFile(t, "audit.log"), kubetest.Token(t, "https://oidc.prod-eu.example.com")
	testkit.Write(t, dir, "audit.log", log)
	testkit.Write(t, dir, "token.jwt", token)
	testkit.Write(t, dir, "issuer.json", kubetest.IssuerJWKS(t))
	testkit.Write(t, dir, "policy.yaml", proxytest.PolicyFor("team-a/**"))
	testkit.Write(t, dir, "pullpass.yaml", `
apiVersion: pullpass.dev/v1alpha1
kind: ProxyConfiguration
clusters:
- name: prod-eu
  issuer: https://oidc.prod-eu.example.com
  audiences: [registry.example.com]
  discovery: {jwksFile: issuer.json}
`+proxytest.Identities+`
registries: [{service: registry.example.com, issuer: pullpass.example.com}]
policyFiles: [policy.yaml]
`)
	testkit.Write(t, dir, "job.json", `{"repository_id": "42", "repository_owner_id": "7"}`)
	text := explainCommand().Example + "\n" + rootCommand().Example
	for _, name := range []string{"docs/how-to/explain.md", "docs/reference/policy.md", "README.md"} {
		text += "\n" + testkit.Read(t, "../../"+name)
	}
	examples := regexp.MustCompile(`(?m)^ *(pullpass explain .*?)(?: #.*)?$`).FindAllStringSubmatch(text, -1)
	if len(examples) < 10 {
		t.Fatalf("only %d examples were found", len(examples))
	}
	for _, example := range examples {
		args, stdin := strings.Fields(example[1])[1:], log
		for i, arg := range args {
			if _, err := os.Stat(filepath.Join(dir, arg)); err == nil {
				args[i] = filepath.Join(dir, arg)
			}
			if arg == "--token-file" {
				stdin = token
			}
		}
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), args, strings.NewReader(stdin), &stdout, &stderr); code != 0 || strings.Contains(stdout.String(), "token_malformed") {
			t.Errorf("%s: exit code %d\n%s%s", example[1], code, &stdout, &stderr)
		}
	}
}
