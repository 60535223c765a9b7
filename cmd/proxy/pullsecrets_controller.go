package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/controller"
	"github.com/pullpass/pullpass/internal/controller/tokensecrets"
	"github.com/pullpass/pullpass/internal/metrics"
	"github.com/pullpass/pullpass/internal/server"
)

func pullSecretsControllerCommand() *cobra.Command {
	var c tokensecrets.Config
	var kubeconfig, admin string
	command := &cobra.Command{
		Use:   "controller",
		Short: "Keep pull secrets with short-lived tokens, for nodes that nobody may change",
		Long: `Keep image pull secrets whose passwords are tokens that live for an hour, for the
ServiceAccounts that have opted in: they and their namespaces have the label
pullpass.dev/pull-secrets=enabled. It is for nodes whose kubelets cannot be given
a credential provider, and needs clusters[].pullSecrets in the proxy's
configuration, with the same audience.

The Secret of a ServiceAccount NAME is pullpass-pull-NAME. It ends with the
ServiceAccount. No ServiceAccount is changed, nor any Secret that is somebody
else's, and no Secret can be read. What it may do, and the policies that bound it,
are in deploy/kubernetes/pull-secrets-controller.yaml.

Of several replicas, one works; each needs an --identity of its own.`,
		Example: `  pullpass pull-secrets controller --audience pull.registry.example.com --registry registry.example.com --namespace pullpass`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return keepPullSecrets(cmd.Context(), c, kubeconfig, admin, cmd.ErrOrStderr())
		},
	}
	flags := command.Flags()
	flags.StringVar(&c.Audience, "audience", "", "audience of the tokens: clusters[].pullSecrets.audience of the proxy (required)")
	flags.StringArrayVar(&c.Registries, "registry", nil, "host[:port] of the registry as in the names of images, repeatable (required)")
	flags.StringVarP(&c.LeaseNamespace, "namespace", "n", "", "namespace of the Lease by which one of several replicas leads (required)")
	flags.StringVar(&c.Identity, "identity", "", "name of this replica, unique; empty: that of the host, which in a pod is the pod's")
	flags.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of the cluster; empty: the one that this runs in")
	flags.StringVar(&admin, "admin-address", "", "address:port of /livez, /readyz and /metrics; empty: none of them")
	requireFlags(command, "audience", "registry", "namespace")
	return command
}

// keepPullSecrets ends with its first error: a controller that nobody can see is none.
func keepPullSecrets(ctx context.Context, c tokensecrets.Config, kubeconfig, admin string, stderr io.Writer) error {
	var err error
	if c.Identity == "" {
		if c.Identity, err = os.Hostname(); err != nil {
			return fmt.Errorf("--identity: %w", err)
		}
	}
	if c.REST, err = controller.Connect(kubeconfig); err != nil {
		return err
	}
	c.Logger = slog.New(slog.NewJSONHandler(stderr, nil))
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
