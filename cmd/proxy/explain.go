package main

import (
	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/explain"
)

func explainCommand() *cobra.Command {
	var r explain.Request
	var file, output string
	command := &cobra.Command{
		Use:   "explain",
		Short: "Say what a token, a ServiceAccount, claims or a request of the audit log would get now, and why",
		Long: `Say what a request would get now, step by step, by the same code that serves:
with a token, with a good token of a ServiceAccount or of somebody who has such
claims, or as a line of the audit log has it, with what was decided then. Nothing is issued, nothing is counted
for limits or replays, and the token is never printed. Where a cluster has an
API server, it is asked; so is Redis, about revocations. What is not judged is
said.

Exit code 0 if the question could be answered, whatever the answer.`,
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
	flags.StringVar(&r.As, "as", "", "CLUSTER/NAMESPACE/SERVICEACCOUNT, instead of a token")
	flags.StringVar(&r.ClaimsFile, "claims", "", "file with the claims of a token of --identity, a JSON object, instead of the token; - is standard input")
	flags.StringVar(&r.Identity, "identity", "", "identities[].name, of --claims")
	flags.StringVar(&r.FromAudit, "from-audit", "", "id of a line of the audit log, whose request is judged again")
	flags.StringArrayVar(&r.AuditFiles, "audit-file", nil, "where that line is, repeatable; - is standard input (default audit.file of the configuration)")
	flags.StringVar(&r.Service, "service", "", "service of the registry (may be left out when there is only one)")
	flags.StringArrayVar(&r.Scopes, "scope", nil, "requested scope, repeatable; none is a login")
	flags.StringVar(&r.Caller, "caller", "", "address that the request comes from, for node.proof by address")
	outputFlag(command, &output, "text", "text, or json: docs/explain.md says what its fields mean")
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
