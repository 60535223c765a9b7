package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/setup"
	"github.com/pullpass/pullpass/internal/signing"
)

func keysCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "keys",
		Short: "Make, rotate, revoke and list signing keys and their CAs",
		Long: `Make, rotate and revoke the signing keys, and their CAs, in the directories that
Pullpass manages (registries[].signing.managedDir), and list all keys, those of
assertions among them, which change by themselves (assertions.managedDir). A running
server sees the change by itself. Keys from files are replaced by replacing the
files; docs/keys.md has the steps for both.`,
		Args: cobra.NoArgs,
	}
	command.AddCommand(keysInitCommand(), keysRotateCommand(), keysRotateCACommand(), keysRevokeCommand(), keysListCommand())
	return command
}

// openedRegistry is a registry with its keys as they are now.
type openedRegistry struct {
	*config.Registry
	keys *setup.SigningKeys
}

// keysFlags are those of every command about keys.
type keysFlags struct{ config, service string }

func (f *keysFlags) add(command *cobra.Command) {
	configFlag(command, &f.config)
	command.Flags().StringVar(&f.service, "service", "", "only this registry (default: all)")
}

// open reads the keys of the chosen registry, or of all. Faults of one are no
// reason not to return the others.
func (f *keysFlags) open(ctx context.Context, log io.Writer) ([]openedRegistry, error) {
	cfg, err := config.LoadOnce(ctx, f.config)
	if err != nil {
		return nil, err
	}
	return f.registries(cfg, slog.New(slog.NewTextHandler(log, nil)))
}

func (f *keysFlags) registries(cfg *config.Config, logger *slog.Logger) ([]openedRegistry, error) {
	registries := make([]*config.Registry, len(cfg.Registries))
	for i := range cfg.Registries {
		registries[i] = &cfg.Registries[i]
	}
	if f.service != "" {
		chosen, err := config.FindRegistry(cfg, f.service)
		if err != nil {
			return nil, err
		}
		registries = []*config.Registry{chosen}
	}
	var opened []openedRegistry
	var faults []error
	for _, r := range registries {
		keys, err := setup.NewSigningKeys(r, logger)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		opened = append(opened, openedRegistry{r, keys})
	}
	return opened, errors.Join(faults...)
}

// managed returns those whose keys Pullpass manages, at least one.
func (f *keysFlags) managed(ctx context.Context, log io.Writer) ([]openedRegistry, error) {
	all, err := f.open(ctx, log)
	var managed []openedRegistry
	for _, r := range all {
		if r.keys.Managed != nil {
			managed = append(managed, r)
		}
	}
	if err == nil && len(managed) == 0 {
		err = errors.New("there are no managed keys: they come from files (registries[].signing.keyFile); replace the files instead")
	}
	return managed, err
}

func keysInitCommand() *cobra.Command {
	var flags keysFlags
	command := &cobra.Command{
		Use:   "init",
		Short: "Make the directory, its CA and a first key, where they are missing",
		Example: `  pullpass keys init --config pullpass.yaml
  pullpass registry-config --config pullpass.yaml --service registry.example.com --trust-file ca.pem`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			registries, err := flags.managed(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			for _, r := range registries {
				if err := r.keys.Managed.Maintain(); err != nil {
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
	flags.add(command)
	return command
}

const (
	// jwksSignAfter leaves time to give a registry its new key set and to restart
	// it, when the operator says nothing else.
	jwksSignAfter = 24 * time.Hour
	// caSignAfter is the same for a new CA, which all registries need.
	caSignAfter = 7 * 24 * time.Hour
)

func keysRotateCommand() *cobra.Command {
	var flags keysFlags
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
			registries, err := flags.managed(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			for _, r := range registries {
				delay := signAfter
				if r.trustsKeySet() && !cmd.Flags().Changed("sign-after") {
					delay = jwksSignAfter
				}
				key, err := r.keys.Managed.Rotate(signing.RotateOptions{SignAfter: delay})
				if err != nil {
					return fmt.Errorf("%s: %w", r.Service, err)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: key %s signs from %s\n", r.Service, key.ID, key.SignsFrom.UTC().Format(time.RFC3339))
			}
			return nil
		},
	}
	flags.add(command)
	command.Flags().DurationVar(&signAfter, "sign-after", 0, "publish now, sign after this time")
	return command
}

func (r openedRegistry) trustsKeySet() bool { return r.Signing.Trust == signing.TrustJWKS }

func keysRotateCACommand() *cobra.Command {
	var flags keysFlags
	var signAfter time.Duration
	command := &cobra.Command{
		Use:   "rotate-ca",
		Short: "Make a new CA that signs later, when the registries have it",
		Long: `Make a new CA (trust "certificate"). It is published at once beside the old one and
certifies signing keys only after --sign-after. Within that time give both to
every registry (registry-config --trust-file) and restart it: a registry that
knows only the old CA refuses every token from then on.

To change over sooner, or after --sign-after 0 to end the old CA at once, revoke
the old CA. To go back, revoke the new one: that works until the old one is
removed, a week after it signed last. keys list shows these times.`,
		Example: `  pullpass keys rotate-ca --config pullpass.yaml --service registry.example.com --sign-after 336h`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			registries, err := flags.managed(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			for _, r := range registries {
				if r.trustsKeySet() && flags.service == "" {
					continue // it has no CA, and nobody said that it had
				}
				ca, err := r.keys.Managed.RotateCA(signing.RotateOptions{SignAfter: signAfter})
				if err != nil {
					return fmt.Errorf("%s: %w", r.Service, err)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: CA %s signs from %s\n", r.Service, ca.ID, ca.SignsFrom.UTC().Format(time.RFC3339))
			}
			return nil
		},
	}
	flags.add(command)
	command.Flags().DurationVar(&signAfter, "sign-after", caSignAfter, "publish now, sign after this time")
	return command
}

func keysRevokeCommand() *cobra.Command {
	var flags keysFlags
	var id string
	command := &cobra.Command{
		Use:   "revoke",
		Short: "Remove a key, or a CA with all of its keys, at once",
		Long: `Remove a key, or a CA with all of its keys, at once: it signs no more, and its file
and its place in what Pullpass publishes are gone. What waits takes its place, or
else a new key is made. The last CA cannot be revoked: make another first.

Registries ask nobody. They accept whatever the key has signed, and what a thief
signs with it, until they are restarted with a key set (trust "jwks") or CAs (trust
"certificate") without it, or until its certificate ends (see keys list).`,
		Example: `  pullpass keys revoke --config pullpass.yaml --id NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			registries, err := flags.managed(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			for _, r := range registries {
				known := r.keys.Status()
				key, err := r.keys.Managed.Revoke(id)
				if errors.Is(err, signing.ErrUnknownKey) {
					continue
				}
				if err != nil {
					return fmt.Errorf("%s: %w", r.Service, err)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: %s is revoked, key %s signs\n", r.Service, id, key.ID)
				if r.trustsKeySet() && !knows(known, key.ID) {
					fmt.Fprintf(cmd.ErrOrStderr(), "%s: pulls fail until the registry has the new key set: pullpass registry-config --trust-file, and restart it\n", r.Service)
				}
				return nil
			}
			return fmt.Errorf("no managed key and no CA has the id %q: pullpass keys list shows them", id)
		},
	}
	flags.add(command)
	// A flag and no argument: an id may begin with "-".
	command.Flags().StringVar(&id, "id", "", "the key or the CA, as keys list shows it (required)")
	requireFlags(command, "id")
	return command
}

func knows(status signing.Status, id string) bool {
	for _, key := range status.Keys {
		if key.ID == id {
			return true
		}
	}
	return false
}
