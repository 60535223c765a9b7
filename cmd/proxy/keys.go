package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
)

func keysCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "keys",
		Short: "Make, rotate, revoke and list signing keys and their CAs",
		Long: `Make, rotate and revoke the signing keys and their CAs in the directories that
Pullpass manages (registries[].signing.managedDir). A running server sees the
change by itself. "list" also shows assertion keys, which Pullpass rotates by
itself (assertions.managedDir). To replace keys from files, replace the files.
docs/how-to/keys.md has the steps for both.`,
		Args: cobra.NoArgs,
	}
	command.AddCommand(keysInitCommand(), keysRotateCommand(), keysRotateCACommand(), keysRevokeCommand(), keysListCommand(), keysSecretsCommand())
	return command
}

// openedRegistry is a registry with its keys as they are now.
type openedRegistry struct {
	*config.Registry
	keys *setup.SigningKeys
}

// keysFlags are the flags of every command about keys.
type keysFlags struct{ config, service string }

func (f *keysFlags) add(command *cobra.Command) {
	configFlag(command, &f.config)
	command.Flags().StringVar(&f.service, "service", "", "only this registry (default: all)")
}

// open reads the keys of the chosen registry, or of all. It returns the keys of the
// other registries even if one registry has a fault.
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

// managed returns the registries whose keys Pullpass manages, at least one.
func (f *keysFlags) managed(ctx context.Context, log io.Writer) ([]openedRegistry, error) {
	all, err := f.open(ctx, log)
	var managed []openedRegistry
	for _, r := range all {
		if r.keys.Managed != nil {
			managed = append(managed, r)
		}
	}
	if err == nil && len(managed) == 0 {
		err = errors.New("no registry has managed keys: the keys come from files (registries[].signing.keyFile); replace the files instead")
	}
	return managed, err
}

func keysInitCommand() *cobra.Command {
	var flags keysFlags
	command := &cobra.Command{
		Use:   "init",
		Short: "Create the directory, its CA and a first key where they are missing",
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
	// jwksSignAfter is the default delay: time to give a registry its new key set and
	// to restart it.
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
trusts the CA and needs no change. With trust "jwks" it is published at once and
signs only after --sign-after (by default 24h). Give the registry the new key set
within that time.`,
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
	command.Flags().DurationVar(&signAfter, "sign-after", 0, "publish now, sign after this duration")
	return command
}

func (r openedRegistry) trustsKeySet() bool { return r.Signing.Trust == signing.TrustJWKS }

func keysRotateCACommand() *cobra.Command {
	var flags keysFlags
	var signAfter time.Duration
	command := &cobra.Command{
		Use:   "rotate-ca",
		Short: "Make a new CA that signs later, after the registries have it",
		Long: `Make a new CA (trust "certificate"). It is published at once beside the old one and
certifies signing keys only after --sign-after. Within that time, give both CAs to
every registry (registry-config --trust-file) and restart it.

Warning: a registry that knows only the old CA refuses every token from then on.

To switch sooner, revoke the old CA. With --sign-after 0, revoking it ends its
trust at once. To go back, revoke the new CA. That works until the old CA is
removed, a week after its last signature. keys list shows these times.`,
		Example: `  pullpass keys rotate-ca --config pullpass.yaml --service registry.example.com --sign-after 336h`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			registries, err := flags.managed(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			for _, r := range registries {
				if r.trustsKeySet() && flags.service == "" {
					continue // it has no CA, and --service does not name it
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
	command.Flags().DurationVar(&signAfter, "sign-after", caSignAfter, "publish now, sign after this duration")
	return command
}

func keysRevokeCommand() *cobra.Command {
	var flags keysFlags
	var id string
	command := &cobra.Command{
		Use:   "revoke",
		Short: "Remove a key, or a CA with all of its keys, at once",
		Long: `Remove a key, or a CA with all of its keys, at once. It stops signing, its file is
deleted, and Pullpass no longer publishes it. The next prepared key takes its
place. If there is none, a new key is made. The last CA cannot be revoked: make a
new CA first.

Warning: registries do not learn of the revocation by themselves. They accept every
token that the key signs, a thief's too, until you restart them with a key set
(trust "jwks") or CAs (trust "certificate") without it, or until its certificate
expires (see keys list).`,
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
				if r.trustsKeySet() && !hasKey(known, key.ID) {
					fmt.Fprintf(cmd.ErrOrStderr(), "%s: pulls fail until the registry has the new key set: pullpass registry-config --trust-file, and restart it\n", r.Service)
				}
				return nil
			}
			return fmt.Errorf("no managed key or CA has the id %q; pullpass keys list shows the ids", id)
		},
	}
	flags.add(command)
	// A flag, not an argument: an id may begin with "-".
	command.Flags().StringVar(&id, "id", "", "id of the key or CA, as keys list shows it (required)")
	requireFlags(command, "id")
	return command
}

func hasKey(status signing.Status, id string) bool {
	return slices.ContainsFunc(status.Keys, func(key signing.KeyInfo) bool { return key.ID == id })
}
