package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/policytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The policy that the document shows passes the tests that it shows.
func TestPolicyDocument(t *testing.T) {
	t.Parallel()
	cfg := &config.Config{
		PolicyFiles: []string{"../../docs/reference/policy.yaml"},
		Identities: []config.Provider{{
			Name: "github", Issuer: "https://token.actions.githubusercontent.com", Profile: "github", Require: map[string][]string{"repository_owner_id": {"1234"}},
		}},
	}
	p := testkit.Value(setup.LoadPolicy(cfg))(t)
	const file = "../../docs/reference/policy-tests.yaml"
	cases := testkit.Value(policytest.Parse(setup.IdentityIssuers(cfg), policy.File{Name: file, Data: []byte(testkit.Read(t, file))}))(t)
	for _, c := range cases.Cases {
		if differences, _, _ := policytest.Run(p, c); differences != nil {
			t.Errorf("%s: %q", c.Name, differences)
		}
	}
}

// The example policy passes its tests, and they are tests: with another policy
// they fail.
func TestExamplePolicyTests(t *testing.T) {
	t.Parallel()
	check := func(config string) (int, string) {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), []string{"check", "--config", config, "--config-only", "--tests", "../../examples/policy-tests.yaml"}, nil, &stdout, &stderr)
		return code, stdout.String() + stderr.String()
	}
	if code, out := check("../../examples/pullpass.yaml"); code != 0 || !strings.Contains(out, "6 policy tests: 6 passed, 0 failed\n") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	dir := t.TempDir()
	for _, name := range []string{"pullpass.yaml", "policy.yaml"} {
		data := testkit.Read(t, "../../examples/"+name)
		testkit.Write(t, dir, name, strings.NewReplacer("actions: [pull]", "actions: [push]", "team-quarantined", "team-other").Replace(data))
	}
	if code, out := check(filepath.Join(dir, "pullpass.yaml")); code != 1 || !strings.Contains(out, "1 passed, 5 failed\n") {
		t.Errorf("of another policy: exit code %d\n%s", code, out)
	}
}

// The examples for nodes and cluster are what the command prints for that of the
// configuration.
func TestExamplesAgree(t *testing.T) {
	t.Parallel()
	for part, name := range map[string]string{"provider": "credential-provider.yaml", "rbac": "audience-rbac.yaml"} {
		var printed, stderr bytes.Buffer
		args := []string{"kubelet-config", "--config", "../../examples/pullpass.yaml", "--registry", "registry.example.com", "--part", part}
		if code := run(t.Context(), args, nil, &printed, &stderr); code != 0 {
			t.Fatalf("exit code %d: %s", code, stderr.String())
		}
		example := testkit.Read(t, "../../examples/"+name)
		if example != printed.String() {
			t.Errorf("%s is not what kubelet-config --part %s prints:\n%s", name, part, &printed)
		}
	}
}
