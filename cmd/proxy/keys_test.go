package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// TestKeysScripts changes keys as docs/how-to/keys.md says. The files of signing/ are
// those that cert-manager makes of a CA below a root; next/ holds those of
// another root.
func TestKeysScripts(t *testing.T) {
	t.Parallel()
	ofAssertions := string(pkitest.KeyPEM(t, pkitest.RSAKey(t)))
	testscript.Run(t, testscript.Params{Dir: "testdata/keys", Cmds: map[string]func(*testscript.TestScript, bool, []string){
		// keep NAME REGEXP: what the group of the expression matches in the last output
		"keep": func(ts *testscript.TestScript, _ bool, args []string) {
			match := regexp.MustCompile("(?m)" + args[1]).FindStringSubmatch(ts.ReadFile("stdout"))
			if match == nil {
				ts.Fatalf("no match for %s", args[1])
			}
			ts.Setenv(args[0], match[1])
		},
	}, Setup: func(env *testscript.Env) error {
		endAtOnce(env)
		var faults []error
		put := func(name, content string) {
			faults = append(faults, os.WriteFile(filepath.Join(env.WorkDir, name), []byte(content), 0o600))
		}
		for dir, name := range map[string]string{"signing": "root", "next": "next root"} {
			faults = append(faults, os.Mkdir(filepath.Join(env.WorkDir, dir), 0o700))
			root := pkitest.NewAuthority(t, name)
			below := root.Intermediate(t, "below "+name)
			cert, key := below.Leaf(t, "leaf", -time.Hour, time.Hour)
			put(dir+"/tls.crt", cert+below.Pem())
			put(dir+"/tls.key", key)
			put(dir+"/roots.pem", root.Pem())
		}
		put("assertions.pem", ofAssertions)
		return errors.Join(faults...)
	}})
}

// TestKeysDocument compares docs/how-to/keys.md with the scripts: each of its commands was run. Commands for a cluster are
// run in e2e/charttest.
func TestKeysDocument(t *testing.T) {
	t.Parallel()
	document := testkit.Read(t, "../../docs/how-to/keys.md")
	scripts := testkit.Value(filepath.Glob("testdata/keys/*.txtar"))(t)
	typed := map[string]bool{}
	for _, name := range scripts {
		script := testkit.Read(t, name)
		for line := range strings.Lines(script) {
			typed[strings.TrimPrefix(strings.TrimSpace(line), "exec ")] = true
		}
	}
	commands := 0
	text, cluster, found := strings.Cut(document, "\n## Helm\n")
	_, rest, _ := strings.Cut(cluster, "\n## ")
	if !found {
		t.Error("docs/how-to/keys.md has no chapter on Helm")
	}
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(text+rest, -1) {
		for line := range strings.Lines(block[1]) {
			commands++
			if line = strings.TrimSpace(line); !typed[line] {
				t.Errorf("no script runs %q", line)
			}
		}
	}
	if commands < 10 {
		t.Errorf("%d commands were found", commands)
	}
}
