package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"pullpass": main})
}

// TestScripts runs the commands as an operator does.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"explanation": cmdExplanation, "policy-answer": cmdPolicyAnswer, "policy-difference": cmdPolicyDifference, "exits": cmdExits,
		},
		Setup: func(env *testscript.Env) error {
			endAtOnce(env)
			return nil
		},
	})
}

// endAtOnce keeps the race detector from letting each program of a script sleep for a
// second at its end, for others of its goroutines, of which there are none.
func endAtOnce(env *testscript.Env) { env.Setenv("GORACE", "atexit_sleep_ms=0") }

// Help is the manual that is always at hand: every command has an example, and
// begins with the command line.
func TestHelpHasExamples(t *testing.T) {
	t.Parallel()
	seen := 0
	var walk func(command *cobra.Command)
	walk = func(command *cobra.Command) {
		for _, child := range command.Commands() {
			walk(child)
		}
		if !command.Runnable() && command.HasParent() {
			return // a name for others, like keys
		}
		seen++
		path := command.CommandPath()
		var stdout, stderr bytes.Buffer
		args := append(strings.Fields(path)[1:], "--help")
		if code := run(t.Context(), args, nil, &stdout, &stderr); code != 0 {
			t.Errorf("%s --help: exit code %d: %s", path, code, stderr.String())
		}
		_, examples, _ := strings.Cut(stdout.String(), "Examples:\n")
		examples, _, _ = strings.Cut(examples, "\n\n")
		if !strings.Contains("\n"+examples, "\n  "+path) {
			t.Errorf("%s --help has no example of it:\n%s", path, stdout.String())
		}
	}
	walk(rootCommand())
	if seen < 15 {
		t.Errorf("only %d commands were found", seen)
	}
}
