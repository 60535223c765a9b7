//go:build unix

package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/base/filewatch"
	"github.com/pullpass/pullpass/internal/cluster/controller"
	"github.com/pullpass/pullpass/internal/node/hostfs"
	"github.com/pullpass/pullpass/internal/node/nodeinstall"
	"github.com/pullpass/pullpass/internal/node/rollout"
	"github.com/pullpass/pullpass/internal/server"
	"github.com/pullpass/pullpass/internal/server/metrics"
)

// nodeRunOptions are the flags of the agent that runs on every node of a cluster.
type nodeRunOptions struct {
	nodeOptions
	node, namespace, kubeconfig, admin string
	probe, taint, uninstall            bool
}

func nodeRunCommand() *cobra.Command {
	var o nodeRunOptions
	command := &cobra.Command{
		Use:   "run",
		Short: "Keep this node installed; the Helm chart runs it on every node",
		Long: `Keep this node as "apply" would make it. If another program changes the plugin or a
hosts.toml, the file is restored within a second. Other files are restored every five
minutes. The Lease pullpass-node-install lets one node at a time restart its kubelet.
The turn of a node ends when it is Ready and, with --probe, when a pod on it has
pulled an image. If that fails, no other node gets this configuration.

The label pullpass.dev/node-install of the Node has the state. The annotation of the
same name has the details.`,
		Example: `  pullpass node-install run --node worker-1 --namespace pullpass-nodes --probe --taint --host-root /host --plugin /pullpass-credential-provider --config /etc/pullpass/config/pullpass.yaml --registry registry.example.com`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.ErrOrStderr())
		},
	}
	o.addDesired(command)
	flags := command.Flags()
	flags.StringVar(&o.node, "node", "", "name of the Node that it runs on (required)")
	flags.StringVarP(&o.namespace, "namespace", "n", "", "namespace of the agent, of its Lease and of the probe pods (required)")
	flags.BoolVar(&o.probe, "probe", false, "the node is ready only after a pod with the label pullpass.dev/node-probe=true has pulled its image on it")
	flags.BoolVar(&o.taint, "taint", false, "remove the taint pullpass.dev/not-ready, with which nodes are created, when the node is ready")
	flags.BoolVar(&o.uninstall, "uninstall", false, "uninstall, one node after the other")
	flags.StringVar(&o.admin, "admin-address", "", "address:port of /livez, /readyz and /metrics; empty: no listener")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster; empty: the one that this runs in")
	requireFlags(command, "node", "namespace")
	return command
}

func (o *nodeRunOptions) run(ctx context.Context, stderr io.Writer) error {
	connection, err := controller.Connect(o.kubeconfig)
	if err != nil {
		return err
	}
	logger := slog.New(slog.NewJSONHandler(stderr, nil))
	changed := make(chan struct{}, 1)
	c := rollout.Config{
		REST: connection, Namespace: o.namespace, Node: o.node, Version: programVersion(), Profile: o.host.profile, Probe: o.probe, Taint: o.taint, Changed: changed, Logger: logger,
	}
	if !o.uninstall {
		c.Desired = o.desired
	}
	return o.host.open(func(tree *hostfs.Tree, watcher nodeinstall.Watcher) error {
		c.Tree, c.Watcher = tree, watcher
		agent, err := rollout.New(c)
		if err != nil {
			return err
		}
		go watchNode(ctx, logger, o.files(), changed, agent)
		// The first message says that the files are watched. During the first pass, it would begin the
		// second one at once, which must not try a restart of the kubelet again.
		select {
		case <-changed:
		case <-ctx.Done():
		}
		if o.admin == "" {
			agent.Run(ctx)
			return nil
		}
		ctx, stop := context.WithCancel(ctx)
		ran := make(chan struct{})
		go func() { agent.Run(ctx); close(ran) }()
		err = server.ServeAdmin(ctx, o.admin, readiness(agent.Ready), metrics.NodeInstall(o.node, agent.Status), logger)
		stop()
		<-ran
		if err != nil {
			return fmt.Errorf("--admin-address: %w", err)
		}
		return nil
	})
}

// keptNode is a node whose files others may change.
type keptNode interface {
	Files() []string          // as this process sees them
	Applied() <-chan struct{} // they may be others now
	// Repair restores them. It is called again after an error.
	Repair(ctx context.Context) error
}

// watchNode begins a pass when the desired state changes, and repairs the node's files
// as soon as they change: containerd reads hosts.toml at the next pull, so the drift
// interval is too long.
func watchNode(ctx context.Context, logger *slog.Logger, wanted []string, changed chan<- struct{}, node keptNode) {
	var seen [sha256.Size]byte
	config := filewatch.Group{Name: "config", Paths: wanted, Reload: func() error {
		before := seen
		if seen = filewatch.Digest(wanted); seen == before {
			return nil // other files were applied
		}
		select {
		case changed <- struct{}{}:
		default: // one is on its way
		}
		return nil
	}}
	filewatch.Watch(ctx, logger, func() []filewatch.Group {
		return []filewatch.Group{config, {Name: "files of the node", Paths: node.Files(), Restores: true, Reload: func() error { return node.Repair(ctx) }}}
	}, node.Applied(), func(string, error) {})
}

// files are the sources of the desired state.
func (o *nodeRunOptions) files() []string {
	if o.ca == "" {
		return []string{o.config}
	}
	return []string{o.config, o.ca}
}
