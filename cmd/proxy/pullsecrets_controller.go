package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/cluster/controller"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/pullsecrets/tokensecrets"
	"github.com/pullpass/pullpass/internal/server"
	"github.com/pullpass/pullpass/internal/server/metrics"
)

func pullSecretsControllerCommand(root fs.FS) *cobra.Command {
	var c tokensecrets.Config
	var kubeconfig, admin string
	command := &cobra.Command{
		Use:   "controller",
		Short: "Keep pull secrets with short-lived tokens, for nodes that you cannot change",
		Long: `Keep image pull secrets whose passwords are tokens with a lifetime of one hour. A
ServiceAccount gets one if it and its namespace have the label
pullpass.dev/pull-secrets=enabled. Use the controller for nodes whose kubelets cannot
have a credential provider. It needs clusters[].pullSecrets in the proxy's
configuration, with the same audience.

The Secret of a ServiceAccount NAME is pullpass-pull-NAME. It is deleted with the
ServiceAccount. The controller changes no ServiceAccount and no Secret that it does
not own, and it cannot read any Secret. Its rights, and the policies that limit them,
are in deploy/kubernetes/pull-secrets-controller.yaml.

Of several replicas, only the leader works. Each needs its own --identity.`,
		Example: `  pullpass pull-secrets controller --audience pull.registry.example.com --registry registry.example.com --namespace pullpass`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Logger = slog.New(slog.NewJSONHandler(cmd.ErrOrStderr(), nil))
			if err := forbidCoreImages(); err != nil {
				return fmt.Errorf("limit the size of core images: %w", err)
			}
			setup.LimitMemory(root, os.Getenv("GOMEMLIMIT"), c.Logger)
			return keepPullSecrets(cmd.Context(), c, kubeconfig, admin)
		},
	}
	flags := command.Flags()
	flags.StringVar(&c.Audience, "audience", "", "audience of the tokens: clusters[].pullSecrets.audience of the proxy (required)")
	flags.StringArrayVar(&c.Registries, "registry", nil, "host[:port] of the registry as in the names of images, repeatable (required)")
	flags.StringVarP(&c.LeaseNamespace, "namespace", "n", "", "namespace of the Lease that elects the leader, and of the ConfigMap pullpass-pull-secrets, which stores its state (required)")
	flags.StringVar(&c.Identity, "identity", "", "unique name of this replica; empty: the host name, which in a pod is the name of the pod")
	flags.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of the cluster; empty: the one that this runs in")
	flags.StringVar(&admin, "admin-address", "", "address:port of /livez, /readyz and /metrics; empty: no listener")
	requireFlags(command, "audience", "registry", "namespace")
	return command
}

// keepPullSecrets ends with its first error, that of the admin listener too: an
// unobserved controller must not run.
func keepPullSecrets(ctx context.Context, c tokensecrets.Config, kubeconfig, admin string) error {
	var err error
	if c.Identity == "" {
		if c.Identity, err = os.Hostname(); err != nil {
			return fmt.Errorf("--identity: %w", err)
		}
	}
	if c.REST, err = controller.Connect(kubeconfig); err != nil {
		return err
	}
	keeper, err := tokensecrets.New(c)
	if err != nil {
		return err
	}
	if admin == "" {
		return keeper.Run(ctx)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 2)
	go func() { ended <- keeper.Run(ctx) }()
	go func() {
		err := server.ServeAdmin(ctx, admin, readiness(keeper.Ready), metrics.PullSecrets(keeper.Status), c.Logger)
		if err != nil {
			err = fmt.Errorf("--admin-address: %w", err)
		}
		ended <- err
	}()
	err = <-ended
	stop()
	return errors.Join(err, <-ended)
}

// readiness answers /readyz.
func readiness(ready func() error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	})
}
