package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
)

func keysListCommand() *cobra.Command {
	var flags keysFlags
	var output string
	command := &cobra.Command{
		Use:   "list",
		Short: "List keys and CAs with their states and times",
		Long: `List keys and CAs, managed or from files: which of them sign, and how long each is
trusted. Keys that sign registry tokens are listed by registry. Keys that sign
assertions for upstreams are listed by issuer. The id of a CA is the SHA-256 of its
certificate: openssl x509 -in ca.pem -outform der | sha256sum. After you replace a
key file, only the running server knows the old key. It publishes that key until the
tokens of the key have expired.`,
		Example: `  pullpass keys list --config pullpass.yaml
  pullpass keys list --config pullpass.yaml --service registry.example.com -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			asJSON, err := isJSON(output, "table")
			if err != nil {
				return err
			}
			write := writeKeysTable
			if asJSON {
				write = writeKeysJSON
			}
			cfg, err := config.LoadOnce(cmd.Context(), flags.config)
			if err != nil {
				return err
			}
			logger := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			registries, err := flags.registries(cfg, logger)
			var assertions *assertionKeys
			if cfg.Assertions != nil && flags.service == "" {
				issuer, openErr := setup.NewAssertions(cfg, logger)
				if err = errors.Join(err, openErr); openErr == nil {
					assertions = &assertionKeys{cfg.Assertions.Issuer, issuer.Keys().Status()}
				}
			}
			return errors.Join(write(cmd.OutOrStdout(), registries, assertions), err)
		},
	}
	flags.add(command)
	outputFlag(command, &output, "table", "table or json")
	return command
}

// assertionKeys sign the assertions that identify callers to upstreams.
type assertionKeys struct {
	Issuer string `json:"issuer"`
	signing.Status
}

func writeKeysJSON(out io.Writer, registries []openedRegistry, assertions *assertionKeys) error {
	type registry struct {
		Service string        `json:"service"`
		Trust   signing.Trust `json:"trust"`
		signing.Status
	}
	list := struct {
		Registries []registry     `json:"registries"`
		Assertions *assertionKeys `json:"assertions,omitempty"`
	}{Registries: []registry{}, Assertions: assertions}
	for _, r := range registries {
		list.Registries = append(list.Registries, registry{r.Service, r.Signing.Trust, r.keys.Status()})
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(list)
}

func writeKeysTable(out io.Writer, registries []openedRegistry, assertions *assertionKeys) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SERVICE\tKEY\tALGORITHM\tSTATE\tSIGNS FROM\tSIGNS UNTIL\tPUBLISHED UNTIL\tENDS\tCA")
	for _, r := range registries {
		for _, key := range r.keys.Status().Keys {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Service, key.ID, key.Algorithm, key.State,
				orDash(key.SignsFrom), orDash(key.SignsUntil), orDash(key.PublishedUntil), orDash(key.NotAfter), cmp.Or(shortID(key.CA), "-"))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	header := "SERVICE\tCA\tSTATE\tSIGNS FROM\tSIGNS UNTIL\tPUBLISHED UNTIL\tENDS\tSUBJECT"
	for _, r := range registries {
		for _, ca := range r.keys.Status().CAs {
			if header != "" {
				fmt.Fprintf(w, "\n%s\n", header)
				header = ""
			}
			state := string(ca.State)
			if ca.Intermediate {
				state = "intermediate" // tokens carry it, registries need the CA above
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%q\n", r.Service, ca.ID, state,
				orDash(ca.SignsFrom), orDash(ca.SignsUntil), orDash(ca.PublishedUntil), orDash(ca.NotAfter), ca.Subject)
		}
	}
	if err := w.Flush(); err != nil || assertions == nil {
		return err
	}
	fmt.Fprint(w, "\nASSERTIONS OF\tKEY\tALGORITHM\tSTATE\tSIGNS FROM\tSIGNS UNTIL\tPUBLISHED UNTIL\n")
	for _, key := range assertions.Keys {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", assertions.Issuer, key.ID, key.Algorithm, key.State, orDash(key.SignsFrom), orDash(key.SignsUntil), orDash(key.PublishedUntil))
	}
	return w.Flush()
}

// shortID is enough to find a CA in the other table.
func shortID(id string) string { return id[:min(len(id), 12)] }

func orDash(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}
