package main

import (
	"context"
	"io"
	"io/fs"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/pullsecrets/migration"
)

func pullSecretsCommand(root fs.FS) *cobra.Command {
	var o migration.Options
	var config, output string
	command := &cobra.Command{
		Use:   "pull-secrets",
		Short: "Find the ServiceAccounts and workloads that still pull with imagePullSecrets",
		Long: `Find the ServiceAccounts and workloads of a cluster that still use imagePullSecrets
for a registry, the pull Secrets, and the legacy ServiceAccount tokens. Print the
next step for each, in an order that never breaks a pull. The command changes
nothing. The code that decides whether a pull would be granted is the same as in
serve.

The user of --kubeconfig is an administrator, never the proxy. It needs the verb
list on secrets, serviceaccounts, pods, replicationcontrollers, deployments,
statefulsets, daemonsets, replicasets, jobs, cronjobs and namespaces, and get on
the ConfigMap kube-apiserver-legacy-service-account-token-tracking of kube-system
and on /.well-known/openid-configuration. If objects of the cluster count in the
policy, it needs list on accesspolicies and repositoryaccesses, in all namespaces.
Only ServiceAccounts, pods and these objects are indispensable. The answer names
every other kind that could not be read. The data of Secrets is never printed.

Exit code 0 if there is an answer, even if workloads still use imagePullSecrets.`,
		Example: `  pullpass pull-secrets --config pullpass.yaml --kubeconfig admin.conf --registry registry.example.com
  pullpass pull-secrets --config pullpass.yaml --kubeconfig admin.conf --registry registry.example.com --namespace team-a
  pullpass pull-secrets --config pullpass.yaml --kubeconfig admin.conf --registry registry.example.com -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return pullSecrets(cmd.Context(), config, o, output, time.Now(), cmd.OutOrStdout())
		},
	}
	configFlag(command, &config)
	flags := command.Flags()
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig of an administrator of the cluster (required)")
	flags.StringArrayVar(&o.Registries, "registry", nil, "host[:port] of the registry as in the names of images, repeatable (required)")
	flags.StringVar(&o.Service, "service", "", "service of the registries, if it differs from --registry")
	flags.StringVar(&o.Cluster, "cluster", "", "name of the cluster (may be left out when there is only one)")
	flags.StringVarP(&o.Namespace, "namespace", "n", "", "only this namespace")
	outputFlag(command, &output, "table", "table or json")
	requireFlags(command, "kubeconfig", "registry")
	command.AddCommand(pullSecretsControllerCommand(root))
	return command
}

func pullSecrets(ctx context.Context, file string, o migration.Options, output string, now time.Time, stdout io.Writer) error {
	asJSON, err := isJSON(output, "table")
	if err != nil {
		return err
	}
	cfg, err := config.LoadOnce(ctx, file)
	if err != nil {
		return err
	}
	m, err := migration.New(ctx, cfg, o, now)
	if err != nil {
		return err
	}
	if asJSON {
		return migration.WriteJSON(stdout, m)
	}
	return migration.WriteTable(stdout, m)
}
