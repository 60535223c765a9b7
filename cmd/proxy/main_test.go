package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"pullpass": main})
}

// TestScripts runs the commands as an operator does.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{Dir: "testdata/script"})
}

// Help is the manual that is always at hand: every command has an example.
func TestHelpHasExamples(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"", "serve", "check", "explain", "audit", "registry-config", "keys init", "keys rotate", "keys list", "revoke", "revoke list", "revoke undo"} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), append(strings.Fields(command), "--help"), nil, &stdout, &stderr); code != 0 {
			t.Errorf("pullpass %s --help: exit code %d: %s", command, code, stderr.String())
		}
		if !strings.Contains(stdout.String(), "Examples:\n  pullpass ") {
			t.Errorf("pullpass %s --help has no example:\n%s", command, stdout.String())
		}
	}
}
