package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/base/file"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/policytest"
	"github.com/pullpass/pullpass/internal/server/explain"
)

// runPolicyTests writes a line for each test and the reasons for each failure. It
// reports whether all tests passed.
func runPolicyTests(ctx context.Context, cfg *config.Config, names []string, objects objectSets, stdout, stderr io.Writer) bool {
	suite, err := loadCases(ctx, cfg, names)
	if err != nil {
		_ = reportFaults(stderr, err)
	}
	policy, policyErr := setup.LoadPolicy(cfg) // the caller has reported its faults
	if err != nil || policyErr != nil {
		fmt.Fprintln(stderr, "the policy tests were not run")
		return false
	}
	failed := 0
	writeWarnings(stderr, suite.Deprecated)
	for i := range suite.Cases {
		objects.addTo(&suite.Cases[i].Subject, cfg)
		c := suite.Cases[i]
		differences, decision, trace := policytest.Run(policy, c)
		verdict := "ok  "
		if len(differences) > 0 {
			failed++
			verdict = "FAIL"
		}
		fmt.Fprintf(stdout, "%s  %s: %s\n", verdict, c.Origin, c.Name)
		if len(differences) == 0 {
			continue
		}
		for _, difference := range differences {
			fmt.Fprintf(stdout, "      %s\n", difference)
		}
		// The proposed edit grants only the scopes that the test expects, not all requested ones.
		_, expected := policy.Explain(c.Subject, c.Service, c.Expected.Granted)
		trace.Edit = expected.Edit
		var why bytes.Buffer
		_ = explain.WriteDecision(&why, decision, trace)
		writeIndented(stdout, why.Bytes())
	}
	writeWarnings(stderr, slices.Concat(unreadAnnotations(policy, suite.Cases), withoutNode(policy, suite.Cases)))
	fmt.Fprintf(stdout, "%d policy tests: %d passed, %d failed\n", len(suite.Cases), len(suite.Cases)-failed, failed)
	return failed == 0
}

// loadCases reads the test files. It refuses a cluster or service that is not
// configured: a test of a mistyped cluster would test nothing.
func loadCases(ctx context.Context, cfg *config.Config, names []string) (*policytest.Suite, error) {
	files := make([]policy.File, 0, len(names))
	var faults []error
	for _, name := range names {
		data, err := file.ReadArgument(ctx, name, policy.MaxBytes)
		if err != nil {
			faults = append(faults, fmt.Errorf("--tests: %w", err))
			continue
		}
		files = append(files, policy.File{Name: name, Data: data})
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	suite, err := policytest.Parse(setup.IdentityIssuers(cfg), files...)
	if err != nil {
		return nil, err
	}
	for i := range suite.Cases {
		c := &suite.Cases[i]
		if id := c.Subject.Identity; id != nil && id.External == nil {
			if cluster := cfg.Cluster(id.Cluster); cluster != nil {
				id.Issuer = cluster.Issuer
			} else {
				faults = append(faults, fmt.Errorf("%s.identity.cluster: %q is not configured (clusters[].name)", c.Origin, id.Cluster))
			}
		}
		switch registry, err := config.FindRegistry(cfg, c.Service); {
		case err == nil:
			c.Service = registry.Service
		case c.Service == "":
			faults = append(faults, fmt.Errorf("%s.service: must be set, because there are %d registries; write the service of one of them", c.Origin, len(cfg.Registries)))
		default:
			faults = append(faults, fmt.Errorf("%s.service: %q is not configured (registries[].service)", c.Origin, c.Service))
		}
	}
	return suite, errors.Join(faults...)
}

// unreadAnnotations names annotations in tests that no rule reads.
func unreadAnnotations(policy *policy.Policy, cases []policytest.Case) []string {
	var warnings []string
	for _, c := range cases {
		for key := range c.Subject.Annotations {
			if !slices.Contains(policy.AnnotationKeys(), key) {
				warnings = append(warnings, fmt.Sprintf("%s.identity.annotations: no rule reads %q", c.Origin, key))
			}
		}
	}
	slices.Sort(warnings)
	return warnings
}

// withoutNode names tests of a token without a node, but not those of one token, if rules or
// conditions decide by the node: the tokens of pods name one. The nodes of denials do not count, since
// most pods are on others.
func withoutNode(policy *policy.Policy, cases []policytest.Case) []string {
	var warnings []string
	for _, c := range cases {
		id := c.Subject.Identity
		if id == nil || id.External != nil || id.InSecret() || id.Kubernetes.Node.Name != "" || id.TokenID != "" {
			continue
		}
		c.Subject.NoToken = true
		decision := policy.Decide(c.Subject, c.Service, c.Requested)
		decides := decision.UnjudgedDenials
		for _, s := range decision.Scopes {
			decides = append(decides, s.Unjudged...)
		}
		if len(decides) > 0 {
			slices.Sort(decides)
			warnings = append(warnings, fmt.Sprintf("%s.identity: names no node, so only tokens without one are tested; for pods, %s can decide otherwise: write node", c.Origin, strings.Join(slices.Compact(decides), ", ")))
		}
	}
	return warnings
}

func writeIndented(w io.Writer, text []byte) {
	var out bytes.Buffer
	for line := range strings.Lines(string(text)) {
		if line != "\n" {
			out.WriteString("      ")
		}
		out.WriteString(line)
	}
	_, _ = w.Write(out.Bytes())
}
