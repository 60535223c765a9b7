package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/server/login"
)

func loginCommand() *cobra.Command {
	var r login.Request
	command := &cobra.Command{
		Use:   "login",
		Short: "Ask a token endpoint for a token, and check its answer",
		Long: `Send a login to a token endpoint, as a client of a registry does: a request without
a scope. Exit code 1 if it is refused, or if the response has no token for the
service. Neither token is printed. helm test runs this command in a pod.`,
		Example: `  pullpass login --url https://registry.example.com:8443/token --service registry.example.com --token-file /var/run/secrets/pullpass/token`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			expiry, err := login.Send(cmd.Context(), r, time.Now)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: login accepted; the token for %s expires at %s\n", r.URL, r.Service, expiry.UTC().Format(time.RFC3339))
			return err
		},
	}
	flags := command.Flags()
	flags.StringVar(&r.URL, "url", "", "address of the token endpoint (required)")
	flags.StringVar(&r.Service, "service", "", "service of the registry (required)")
	flags.StringVar(&r.TokenFile, "token-file", "", "file with the token (required)")
	flags.StringVar(&r.CertFile, "certificate", "", "file with the certificate that the server must present; the name in --url is not checked then (default: one for that name, by a CA of the system)")
	requireFlags(command, "url", "service", "token-file")
	return command
}
