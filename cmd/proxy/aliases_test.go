package main

import (
	"bytes"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
)

// A file of 605 kB that would be a gigabyte if its aliases were written out: check
// refuses it, and a service that runs goes on. It is alone while it measures: it
// does not run in parallel.
func TestAPolicyOfAliases(t *testing.T) {
	p := serveReady(t, "")
	raw := kubetest.Token(t, "https://issuer.example.com")
	const fault = "policy.yaml: is not valid YAML: line 2: with its aliases written out, the document has more than 1048576 bytes; use fewer"
	aliases := "x: &a " + strings.Repeat("x", 5_000) + "\nrules: [" + strings.Repeat("*a,", 200_000) + "]\n"

	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	p.Put(t, "policy.yaml", aliases)
	p.Refuses(t, "policy", fault)
	if status := p.Status(t, raw); status != http.StatusOK {
		t.Errorf("status %d", status)
	}
	var stderr bytes.Buffer
	args := []string{"check", "--config", filepath.Join(p.Dir, "pullpass.yaml"), "--tests", filepath.Join(p.Dir, "policy.yaml")}
	if code := run(t.Context(), args, nil, &bytes.Buffer{}, &stderr); code != 1 || strings.Count(stderr.String(), fault) != 2 {
		t.Errorf("exit code %d\n%s", code, &stderr)
	}
	runtime.ReadMemStats(&after)
	if allocated := (after.TotalAlloc - before.TotalAlloc) >> 20; allocated > 1_000 {
		t.Errorf("%d MiB were taken", allocated)
	}

	p.Put(t, "policy.yaml", proxytest.PolicyFor("{namespace}/**"))
	p.Accepts(t, "policy")
}
