package server

import (
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"time"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/reach"
)

// CheckConfig reads only the policy files.
func CheckConfig(cfg *config.Config, insecureHTTP bool) (faults []error, warnings []string) {
	_, warnings, err := loadPolicies(cfg)
	return slices.Concat(strictyaml.Flatten(cfg.CheckListeners(insecureHTTP)), strictyaml.Flatten(err)), warnings
}

// loadPolicies reads the policy and its trial. The keys are those of annotations that the policy reads.
func loadPolicies(cfg *config.Config) (keys, warnings []string, err error) {
	policy, err := setup.LoadPolicy(cfg)
	if err == nil {
		keys, warnings = policy.AnnotationKeys(), policyWarnings(cfg, policy)
	}
	trial, trialErr := setup.LoadTrial(cfg)
	if trial != nil {
		for _, warning := range policyWarnings(cfg, trial) {
			warnings = append(warnings, "policyTrial: "+warning)
		}
	}
	return keys, warnings, errors.Join(err, trialErr)
}

// policyWarnings returns the warnings that serve logs, and those that take too long to find for
// serve.
func policyWarnings(cfg *config.Config, policy *policy.Policy) []string {
	return append(setup.PolicyWarnings(cfg, policy), reach.Shadowed(policy)...)
}

// CheckFiles reads the files that serve reads, and continues after a fault.
func CheckFiles(cfg *config.Config, insecureHTTP bool) (faults []error, warnings []string) {
	note := func(err error) { faults = append(faults, strictyaml.Flatten(err)...) }
	// The CheckFiles of package config already reported missing files, with their fields.
	noteContent := func(err error) {
		for _, fault := range strictyaml.Flatten(err) {
			if !errors.Is(fault, fs.ErrNotExist) {
				note(fault)
			}
		}
	}
	logger := slog.New(slog.DiscardHandler)
	listeners := cfg.CheckListeners(insecureHTTP)
	note(listeners)
	note(cfg.CheckFiles())
	keys, warnings, err := loadPolicies(cfg)
	noteContent(err)
	if err == nil {
		_, err = setup.NewManifests(cfg, keys)
		noteContent(err)
	}
	for i := range cfg.Clusters {
		// Only a pod can tell whether inCluster works.
		if file := cfg.Clusters[i].Kubernetes.KubeconfigFile; file != "" && config.CheckReadable(file) == nil {
			note(setup.CheckConnection(cfg, i))
		}
	}
	_, err = setup.NewVerifier(cfg, logger)
	note(err)
	all := map[string]*setup.SigningKeys{}
	for i := range cfg.Registries {
		// keys init or serve makes managed keys, so missing keys are not a fault.
		keys, err := setup.NewSigningKeys(&cfg.Registries[i], logger)
		if err == nil {
			all[cfg.Registries[i].Service] = keys
			err = keys.Reload()
		}
		noteContent(err)
	}
	if len(all) == len(cfg.Registries) {
		note(setup.CheckGatewayKeys(cfg, all))
	}
	_, err = setup.NewAssertions(cfg, logger)
	noteContent(err)
	noteContent(checkPasswords(cfg))
	if !insecureHTTP && listeners == nil {
		serving, err := openTLS(cfg, time.Now())
		note(err)
		if err == nil {
			warnings = append(warnings, serving.warnings(cfg)...)
		}
	}
	return faults, warnings
}
