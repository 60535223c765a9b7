package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/kube"
	"github.com/pullpass/pullpass/internal/names"
	"github.com/pullpass/pullpass/internal/pullsecrets"
	"github.com/pullpass/pullpass/internal/term"
)

// pullSecretsTimeout bounds the whole command. 150,000 pods are 300 pages, of
// which an API server sends several in a second.
const pullSecretsTimeout = 10 * time.Minute

// migrationOptions say what is looked at.
type migrationOptions struct {
	kubeconfig string   // of an administrator
	registries []string // host[:port] as in the names of images
	service    string   // of the registries; empty: each is its own
	cluster    string   // may be empty when there is only one
	namespace  string   // empty: all
}

func pullSecretsCommand() *cobra.Command {
	var o migrationOptions
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
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of an administrator of the cluster (required)")
	flags.StringArrayVar(&o.registries, "registry", nil, "host[:port] of the registry as in the names of images, repeatable (required)")
	flags.StringVar(&o.service, "service", "", "service of the registries, if it is not the same as --registry")
	flags.StringVar(&o.cluster, "cluster", "", "name of the cluster (may be left out when there is only one)")
	flags.StringVarP(&o.namespace, "namespace", "n", "", "look at one namespace alone")
	flags.StringVarP(&output, "output", "o", "table", "table or json")
	for _, name := range []string{"kubeconfig", "registry"} {
		if err := command.MarkFlagRequired(name); err != nil {
			panic(err) // the flag is defined above
		}
	}
	return command
}

func pullSecrets(ctx context.Context, config string, o migrationOptions, output string, now time.Time, stdout io.Writer) error {
	write, ok := map[string]func(io.Writer, *migration) error{"table": writeMigrationTable, "json": writeMigrationJSON}[output]
	if !ok {
		return fmt.Errorf("--output %s is not known: use table or json", term.QuoteValue(output))
	}
	cfg, err := readConfig(ctx, config)
	if err != nil {
		return err
	}
	m, err := planMigration(ctx, cfg, o, now)
	if err != nil {
		return err
	}
	return write(stdout, m)
}

// planMigration reads a cluster and plans what is next for each of its objects.
// Nothing is changed.
func planMigration(ctx context.Context, cfg *Config, o migrationOptions, now time.Time) (*migration, error) {
	ctx, cancel := context.WithTimeout(ctx, pullSecretsTimeout)
	defer cancel()
	if o.namespace != "" && !names.IsLabel(o.namespace) {
		return nil, fmt.Errorf("--namespace %s is not the name of a namespace", term.QuoteValue(o.namespace))
	}
	cluster, err := findCluster(cfg, o.cluster)
	if err != nil {
		return nil, err
	}
	services, err := servicesOf(cfg, o.registries, o.service)
	if err != nil {
		return nil, err
	}
	policy, err := loadPolicy(cfg)
	if err != nil {
		return nil, err
	}
	grants, err := newPullGrants(cfg, cluster, policy, services)
	if err != nil {
		return nil, err
	}
	connection, err := kube.Kubeconfig(o.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	inventory, err := pullsecrets.Read(ctx, pullsecrets.Config{
		REST: connection, Issuer: cluster.Issuer, Registries: o.registries, Namespace: o.namespace,
		AnnotationKeys: policy.AnnotationKeys(), Labels: cluster.Kubernetes.connected(),
	})
	if err != nil {
		return nil, err
	}
	if o.namespace != "" && len(inventory.Accounts) == 0 {
		// Kubernetes makes one in every namespace.
		return nil, fmt.Errorf("--namespace %s has no ServiceAccount; is it a namespace of this cluster?", o.namespace)
	}
	m := &migration{options: o, config: cfg.name, now: now, inventory: inventory, grants: grants, Cluster: cluster.Name, Namespace: o.namespace, Unread: inventory.Unread, StaticPods: inventory.StaticPods}
	for _, host := range o.registries {
		m.Registries = append(m.Registries, migrationRegistry{host, services[host]})
	}
	return m, m.plan(ctx)
}

// servicesOf finds the service of each registry: a host says nothing about it.
func servicesOf(cfg *Config, hosts []string, service string) (map[string]string, error) {
	services := map[string]string{}
	for _, host := range hosts {
		if !isRegistryHost(host) {
			return nil, fmt.Errorf("--registry %s is not a registry's host; write host or host:port as in the names of images, without scheme and path", term.QuoteValue(host))
		}
		if _, twice := services[host]; twice {
			return nil, fmt.Errorf("--registry %s is given twice", host)
		}
		wanted := service
		if service == "" && slices.ContainsFunc(cfg.Registries, func(r Registry) bool { return r.Service == host }) {
			wanted = host
		}
		registry, err := findRegistry(cfg, wanted)
		if err != nil {
			if service == "" {
				err = errors.Join(fmt.Errorf("--registry %s is no configured service, and there are several; name its own", host), err)
			}
			return nil, err
		}
		services[host] = registry.Service
	}
	return services, nil
}
