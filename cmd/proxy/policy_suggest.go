package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/base/file"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/pullsecrets"
	"github.com/pullpass/pullpass/internal/pullsecrets/migration"
	"github.com/pullpass/pullpass/internal/server/suggest"
)

func policySuggestCommand() *cobra.Command {
	var configFile, tests string
	var files, inventories, manifests []string
	c := suggest.Config{}
	var cluster, namespace, service string
	var registries []string
	command := &cobra.Command{
		Use:   "suggest",
		Short: "Write the rules for refused requests, from the audit log or from manifests",
		Long: `Write the smallest AccessPolicy that grants all refused access in the log, to standard
output. --from-nothing also includes granted access, for a policy that begins anew.

Each rule names exactly the callers that made the requests. ** stands for several
repositories, and {namespace} for several namespaces, only where at least --at-least
requests speak for it. A comment names each pattern that grants more than was
requested. Review the rules before you use them: a request is not a permission.

With --config, access that the present policy grants by names is left out, and rules
for identities[] can be suggested.`,
		Example: `  pullpass policy suggest --config pullpass.yaml --audit-file audit.log > missing.yaml
  pullpass policy suggest --config pullpass.yaml --audit-file audit.log --from-nothing --tests-out policy-tests.yaml > policy.yaml
  pullpass policy suggest --config pullpass.yaml --inventory inventory.json
  helm template web ./chart -n team-a | pullpass policy suggest --config pullpass.yaml --registry registry.example.com -n team-a --manifests /dev/stdin
  kubectl logs -n pullpass -l app.kubernetes.io/name=pullpass --tail -1 | pullpass policy suggest --audit-file - --at-least 10`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case c.AtLeast < 1:
				return fmt.Errorf("--at-least %d: must be 1 or more", c.AtLeast)
			case len(manifests) > 0 && (configFile == "" || len(registries) == 0):
				return errors.New("--manifests needs --config and --registry")
			}
			m := suggest.Manifests{Namespace: namespace}
			if configFile != "" {
				cfg, err := config.LoadOnce(cmd.Context(), configFile)
				if err != nil {
					return err
				}
				present, err := setup.LoadPolicy(cfg)
				if err != nil {
					return err
				}
				issuers := map[string]string{}
				for i := range cfg.Clusters {
					issuers[cfg.Clusters[i].Name] = cfg.Clusters[i].Issuer
				}
				c.Grants, c.Profiles = suggest.GrantsOf(present, issuers), suggest.Profiles{}
				for i := range cfg.Identities {
					c.Profiles[cfg.Identities[i].Name] = cfg.Identities[i].Profile
				}
				if len(manifests) > 0 {
					of, err := config.FindCluster(cfg, cluster)
					if err != nil {
						return err
					}
					if m.Services, err = migration.ServicesOf(cfg, registries, service); err != nil {
						return err
					}
					m.Cluster = of.Name
				}
			}
			found, err := suggest.Of(cmd.Context(), c, files, cmd.InOrStdin(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			for _, name := range inventories {
				data, err := file.ReadArgument(cmd.Context(), name, suggest.MaxInventoryBytes)
				if err == nil {
					err = found.AddInventory(data)
				}
				if err != nil {
					return fmt.Errorf("--inventory %s: %w", name, err)
				}
			}
			for _, name := range manifests {
				if err := addManifests(cmd.Context(), found, name, registries, m); err != nil {
					return fmt.Errorf("--manifests %s: %w", name, err)
				}
			}
			return writeSuggestion(found, tests, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := command.Flags()
	flags.StringArrayVar(&files, "audit-file", nil, "audit log, repeatable; - is standard input")
	flags.StringArrayVar(&inventories, "inventory", nil, "output of pullpass pull-secrets -o json, repeatable: pulls of workloads count as requests")
	flags.StringArrayVar(&manifests, "manifests", nil, "Kubernetes objects, repeatable, such as the output of helm template: their images count as requests")
	flags.StringArrayVar(&registries, "registry", nil, "host[:port] of the registry as in the images of --manifests, repeatable")
	flags.StringVar(&service, "service", "", "service of the registries, if it differs from --registry")
	flags.StringVar(&cluster, "cluster", "", "cluster of --manifests (may be left out when there is only one)")
	flags.StringVarP(&namespace, "namespace", "n", "", "namespace of objects in --manifests that name none")
	flags.StringVar(&configFile, "config", "", "configuration file")
	flags.BoolVar(&c.FromNothing, "from-nothing", false, "also access that was granted, for a policy that begins anew")
	flags.IntVar(&c.AtLeast, "at-least", 3, "requests that speak for ** or {namespace}")
	flags.StringVar(&tests, "tests-out", "", "file for AccessPolicyTests of the requests")
	command.MarkFlagsOneRequired("audit-file", "inventory", "manifests")
	return command
}

func addManifests(ctx context.Context, found *suggest.Suggestion, name string, registries []string, m suggest.Manifests) error {
	data, err := file.ReadArgument(ctx, name, suggest.MaxInventoryBytes)
	if err != nil {
		return err
	}
	workloads, err := pullsecrets.ReadManifests(bytes.NewReader(data), registries)
	if err != nil {
		return err
	}
	return found.AddManifests(workloads, m)
}

// writeSuggestion writes nothing for no rule: an AccessPolicy needs at least one.
func writeSuggestion(found *suggest.Suggestion, tests string, stdout, stderr io.Writer) error {
	for _, why := range slices.Sorted(maps.Keys(found.Skipped)) {
		fmt.Fprintf(stderr, "warning: %d requests were left out: %s\n", found.Skipped[why], why)
	}
	policy := found.Policy()
	if policy == "" {
		fmt.Fprintln(stderr, "nothing is to be granted")
		return nil
	}
	_, err := io.WriteString(stdout, policy)
	if tests != "" {
		err = errors.Join(err, os.WriteFile(tests, []byte(found.Tests()), 0o644)) //nolint:gosec // for others to read, like the policy
	}
	return err
}
