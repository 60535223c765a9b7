package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/registryauth"
)

func keysCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "keys",
		Short: "Make, rotate and list the signing keys that Pullpass manages",
		Long: `Make, rotate and list the signing keys in the directories that Pullpass manages
(registries[].signing.managedDir). A running server sees the change by itself.`,
		Args: cobra.NoArgs,
	}
	command.AddCommand(keysInitCommand(), keysRotateCommand(), keysListCommand())
	return command
}

// managedRegistry is a registry whose keys Pullpass manages.
type managedRegistry struct {
	*Registry
	keys *registryauth.ManagedKeys
}

// managedRegistries opens the managed keys of the chosen registry, or of all.
func managedRegistries(config, service string, log io.Writer) ([]managedRegistry, error) {
	cfg, err := LoadConfig(config)
	if err != nil {
		return nil, err
	}
	registries := make([]*Registry, len(cfg.Registries))
	for i := range cfg.Registries {
		registries[i] = &cfg.Registries[i]
	}
	if service != "" {
		chosen, err := findRegistry(cfg, service)
		if err != nil {
			return nil, err
		}
		registries = []*Registry{chosen}
	}
	logger := slog.New(slog.NewTextHandler(log, nil))
	var managed []managedRegistry
	for _, r := range registries {
		if r.Signing.KeyFile != "" {
			continue
		}
		keys, err := newSigningKeys(r, logger)
		if err != nil {
			return nil, err
		}
		managed = append(managed, managedRegistry{r, keys.managed})
	}
	if len(managed) == 0 {
		return nil, errors.New("there are no managed keys: they come from files (registries[].signing.keyFile); replace the files instead")
	}
	return managed, nil
}

func keysInitCommand() *cobra.Command {
	var config, service string
	command := &cobra.Command{
		Use:   "init",
		Short: "Make the directory, its CA and a first key, where they are missing",
		Example: `  pullpass keys init --config pullpass.yaml
  pullpass registry-config --config pullpass.yaml --service registry.example.com --trust-file ca.pem`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			registries, err := managedRegistries(config, service, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			for _, r := range registries {
				if err := r.keys.Maintain(); err != nil {
					return fmt.Errorf("%s: %w", r.Service, err)
				}
				key, err := r.keys.Signing()
				if err != nil {
					return fmt.Errorf("%s: %w", r.Service, err)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: key %s signs\n", r.Service, key.ID)
			}
			return nil
		},
	}
	configFlag(command, &config)
	command.Flags().StringVar(&service, "service", "", "only this registry (default: all)")
	return command
}

// jwksSignAfter leaves time to give a registry its new key set and to restart
// it, when the operator says nothing else.
const jwksSignAfter = 24 * time.Hour

func keysRotateCommand() *cobra.Command {
	var config, service string
	var signAfter time.Duration
	command := &cobra.Command{
		Use:   "rotate",
		Short: "Make a new signing key now",
		Long: `Make a new signing key now. With trust "certificate" it signs at once: the registry
trusts the CA and notices nothing. With trust "jwks" it is published at once and
signs only after --sign-after (there 24h by default): give the registry the new
key set within that time.`,
		Example: `  pullpass keys rotate --config pullpass.yaml
  pullpass keys rotate --config pullpass.yaml --service registry.example.com --sign-after 1h`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			registries, err := managedRegistries(config, service, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			for _, r := range registries {
				delay := signAfter
				if r.Signing.Trust == string(registryauth.TrustJWKS) && !cmd.Flags().Changed("sign-after") {
					delay = jwksSignAfter
				}
				key, err := r.keys.Rotate(registryauth.RotateOptions{SignAfter: delay})
				if err != nil {
					return fmt.Errorf("%s: %w", r.Service, err)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: key %s signs from %s\n", r.Service, key.ID, key.SignsFrom.UTC().Format(time.RFC3339))
			}
			return nil
		},
	}
	configFlag(command, &config)
	command.Flags().StringVar(&service, "service", "", "only this registry (default: all)")
	command.Flags().DurationVar(&signAfter, "sign-after", 0, "publish now, sign after this time")
	return command
}

func keysListCommand() *cobra.Command {
	var config, service string
	command := &cobra.Command{
		Use:     "list",
		Short:   "Show which key signs, and which are trusted until when",
		Example: `  pullpass keys list --config pullpass.yaml`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			registries, err := managedRegistries(config, service, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "SERVICE\tKEY\tALGORITHM\tSTATE\tSIGNS FROM\tSIGNS UNTIL\tPUBLISHED UNTIL\tCERTIFICATE ENDS")
			for _, r := range registries {
				for _, key := range r.keys.List() {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Service, key.ID, key.Algorithm, key.State,
						orDash(key.SignsFrom), orDash(key.SignsUntil), orDash(key.PublishedUntil), orDash(key.CertificateExpiry))
				}
			}
			return w.Flush()
		},
	}
	configFlag(command, &config)
	command.Flags().StringVar(&service, "service", "", "only this registry (default: all)")
	return command
}

func orDash(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// configFlag adds the --config that every command needs.
func configFlag(command *cobra.Command, target *string) {
	command.Flags().StringVar(target, "config", "", "configuration file (required)")
	if err := command.MarkFlagRequired("config"); err != nil {
		panic(err) // the flag was defined a line before
	}
}
