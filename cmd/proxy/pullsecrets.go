package main

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/migration"
)

func pullSecretsCommand() *cobra.Command {
	var o migration.Options
	var config, output string
	command := &cobra.Command{
		Use:   "pull-secrets",
		Short: "Say who in a cluster still pulls with imagePullSecrets, and what to do next",
		Long: `Say which ServiceAccounts and workloads of a cluster still use imagePullSecrets
for a registry, which pull Secrets and legacy ServiceAccount tokens there are, and
what to do next for each, in an order that never breaks a pull. Nothing is
changed. Whether a pull would be granted is decided by the code that serves.

The user of --kubeconfig is an administrator, never the proxy. It needs the verb
list on secrets, serviceaccounts, pods, replicationcontrollers, deployments,
statefulsets, daemonsets, replicasets, jobs, cronjobs and namespaces, and get on
the ConfigMap kube-apiserver-legacy-service-account-token-tracking of kube-system
and on /.well-known/openid-configuration.
Only ServiceAccounts and pods are indispensable; what else cannot be read is said.
Nothing that a Secret holds is printed.

Exit code 0 if the question could be answered, whatever the answer.`,
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
	flags.StringVar(&o.Service, "service", "", "service of the registries, if it is not the same as --registry")
	flags.StringVar(&o.Cluster, "cluster", "", "name of the cluster (may be left out when there is only one)")
	flags.StringVarP(&o.Namespace, "namespace", "n", "", "look at one namespace alone")
	outputFlag(command, &output, "table", "table or json")
	requireFlags(command, "kubeconfig", "registry")
	command.AddCommand(pullSecretsControllerCommand())
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
