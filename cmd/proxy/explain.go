package main

import (
	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/server/explain"
)

func explainCommand() *cobra.Command {
	var r explain.Request
	var file, output string
	command := &cobra.Command{
		Use:   "explain",
		Short: "Explain the decision for a token, a ServiceAccount, claims or an audit event",
		Long: `Explain, step by step, what a request would get now. The code is the same as in
serve. The request has one of these credentials:

  --token-file   a token
  --as           a valid token of a ServiceAccount
  --claims       a valid token with these claims
  --from-audit   the identity and scopes of a line of the audit log; the answer
                 also has the decision of that line

Nothing is issued or counted for limits or replays. The token is never printed.
explain queries the API servers of the clusters, and Redis for revocations. The
answer names every step that was not checked.

Exit code 0 if there is an answer, even if the request would be refused.`,
		Example: `  pullpass explain --config pullpass.yaml --token-file token.jwt --scope repository:team-a/web:pull
  kubectl create token web -n team-a --audience registry.example.com --bound-object-kind Pod --bound-object-name web-0 |
    pullpass explain --config pullpass.yaml --token-file - --scope repository:team-a/web:pull
  pullpass explain --config pullpass.yaml --as prod-eu/team-a/web --scope repository:team-a/web:pull,push
  pullpass explain --config pullpass.yaml --identity github --claims job.json --scope repository:team-a/web:push
  pullpass explain --config pullpass.yaml --from-audit RVAAVBYEBQLKHI2OMWKLLIJSK3 --audit-file audit.log
  kubectl logs -n pullpass -l app.kubernetes.io/name=pullpass --tail -1 |
    pullpass explain --config pullpass.yaml --from-audit RVAAVBYEBQLKHI2OMWKLLIJSK3 --audit-file - -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			asJSON, err := isJSON(output, "text")
			if err != nil {
				return err
			}
			cfg, err := config.Load(file)
			if err != nil {
				return err
			}
			answer, err := explain.Explain(cmd.Context(), cfg, r, cmd.InOrStdin(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if asJSON {
				return explain.WriteJSON(cmd.OutOrStdout(), answer)
			}
			return explain.WriteText(cmd.OutOrStdout(), answer)
		},
	}
	configFlag(command, &file)
	flags := command.Flags()
	flags.StringVar(&r.TokenFile, "token-file", "", "file with the token; - is standard input")
	flags.StringVar(&r.As, "as", "", "CLUSTER/NAMESPACE/SERVICEACCOUNT, in place of a token")
	flags.StringVar(&r.ClaimsFile, "claims", "", "file with the claims of a token of --identity as a JSON object, in place of a token; - is standard input")
	flags.StringVar(&r.Identity, "identity", "", "identities[].name of the token with --claims")
	flags.StringVar(&r.FromAudit, "from-audit", "", "id of a line of the audit log; its request is decided again")
	flags.StringArrayVar(&r.AuditFiles, "audit-file", nil, "audit log to search for that line, repeatable; - is standard input (default: audit.file of the configuration)")
	flags.StringVar(&r.Service, "service", "", "service of the registry (may be left out when there is only one)")
	flags.StringArrayVar(&r.Scopes, "scope", nil, "requested scope, repeatable; without it, the request is a login")
	flags.StringVar(&r.Caller, "caller", "", "client address of the request, for node.proof by address")
	outputFlag(command, &output, "text", "text, or json: docs/explain.schema.json describes the fields")
	command.MarkFlagsMutuallyExclusive("token-file", "as", "claims", "from-audit")
	command.MarkFlagsOneRequired("token-file", "as", "claims", "from-audit")
	command.MarkFlagsRequiredTogether("claims", "identity")
	for _, asked := range []string{"service", "scope", "caller"} {
		command.MarkFlagsMutuallyExclusive("from-audit", asked)
	}
	for _, other := range []string{"token-file", "as", "claims"} {
		command.MarkFlagsMutuallyExclusive("audit-file", other)
	}
	return command
}
