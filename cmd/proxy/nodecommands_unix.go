//go:build unix

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/base/file"
	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/node/hostfs"
	"github.com/pullpass/pullpass/internal/node/nodeconfig"
	"github.com/pullpass/pullpass/internal/node/nodeinstall"
	"github.com/pullpass/pullpass/internal/server"
)

// nodeCommands are those that use the files of a node.
func nodeCommands() []*cobra.Command {
	return []*cobra.Command{nodeRunCommand(), nodeApplyCommand(), nodePlanCommand(), nodeUninstallCommand(), nodePrintCommand(), nodeWatchCommand()}
}

// maxPluginBytes is far above the size of the plugin.
const maxPluginBytes = 256 << 20

// nodeOptions are the flags of commands that compute the desired state.
type nodeOptions struct {
	host           hostOptions
	config         string
	target         nodeconfig.Options
	plugin         string
	ca             string
	kubeletVersion string
	output         string
}

// hostOptions select the node.
type hostOptions struct{ root, profile string }

func (o *hostOptions) addTo(command *cobra.Command) {
	command.Flags().StringVar(&o.root, "host-root", "/", "directory where the root of the host is mounted")
	command.Flags().StringVar(&o.profile, "profile", "", "platform of the node (default: detected): "+strictyaml.List(nodeinstall.Profiles()))
}

func (o *nodeOptions) addTo(command *cobra.Command) {
	o.addDesired(command)
	command.Flags().StringVar(&o.kubeletVersion, "kubelet-version", "", "version of the node's kubelet, as kubectl get nodes prints it (required)")
	outputFlag(command, &o.output, "text", "text or json")
	requireFlags(command, "kubelet-version")
}

func (o *nodeOptions) addDesired(command *cobra.Command) {
	o.host.addTo(command)
	targetFlags(command, &o.config, &o.target)
	flags := command.Flags()
	flags.StringVar(&o.plugin, "plugin", "", "the plugin's program, for the node's architecture (required)")
	flags.StringVar(&o.ca, "ca", "", "CA certificates with which containerd verifies registries and gateway (default: the CAs of the node)")
	requireFlags(command, "plugin")
}

func (o *nodeOptions) desired(ctx context.Context, kubeletVersion string) (d nodeinstall.Desired, err error) {
	cfg, err := config.LoadOnce(ctx, o.config)
	if err != nil {
		return d, err
	}
	target, err := nodeconfig.NewTarget(cfg, o.target)
	if err != nil {
		return d, err
	}
	d.KubeletVersion, d.Client = kubeletVersion, nodeconfig.KubeletCertificate
	if target.Gateway == "" {
		d.Registry, d.LintHosts = target.Registries[0], target.LintHosts
	}
	if d.Provider, err = target.ProviderFile(); err != nil {
		return d, err
	}
	if d.Hosts, err = target.HostsFiles(o.ca != ""); err != nil {
		return d, err
	}
	if o.ca != "" {
		if d.CA, err = file.Read(o.ca, config.MaxBytes); err != nil {
			return d, err
		}
		// containerd skips what it cannot read, and every user of the node can read the copy.
		if _, err := server.ParseCertificates(d.CA); err != nil {
			return d, fmt.Errorf("--ca %s %w; name a file with CA certificates in PEM and nothing else", o.ca, err)
		}
	}
	d.Plugin, err = file.Read(o.plugin, maxPluginBytes)
	return d, err
}

func nodeApplyCommand() *cobra.Command {
	var o nodeOptions
	command := &cobra.Command{
		Use:   "apply",
		Short: "Make the node pull with its pods' tokens; change only what differs",
		Long: `Make the node pull with its pods' tokens. If the node is as desired, nothing is
written or restarted, so you can run it again at any time to repair changes by
other programs. In a pod it needs the host's root directory, hostPID and a
privileged container: with systemd-run it starts the process that watches the
kubelet.`,
		Example: `  pullpass node-install apply --config pullpass.yaml --registry registry.example.com --plugin pullpass-credential-provider --kubelet-version v1.36.2
  pullpass node-install apply --config pullpass.yaml --mirror ghcr.io --plugin /pullpass-credential-provider --kubelet-version v1.34.2+k3s1 --host-root /host --profile k3s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd, func(i *nodeinstall.Installer, d nodeinstall.Desired) (*nodeinstall.Plan, error) {
				return i.Apply(cmd.Context(), d)
			})
		},
	}
	o.addTo(command)
	return command
}

func nodePlanCommand() *cobra.Command {
	var o nodeOptions
	command := &cobra.Command{
		Use:   "plan",
		Short: "Show the changes that apply would make on the node",
		Example: `  pullpass node-install plan --config pullpass.yaml --registry registry.example.com --plugin pullpass-credential-provider --kubelet-version v1.36.2
  pullpass node-install plan --config pullpass.yaml --registry registry.example.com --plugin pullpass-credential-provider --kubelet-version v1.36.2 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd, func(i *nodeinstall.Installer, d nodeinstall.Desired) (*nodeinstall.Plan, error) { return i.Status(d) })
		},
	}
	o.addTo(command)
	return command
}

// run writes the plan for the desired state.
func (o *nodeOptions) run(cmd *cobra.Command, do func(*nodeinstall.Installer, nodeinstall.Desired) (*nodeinstall.Plan, error)) error {
	asJSON, err := isJSON(o.output, "text")
	if err != nil {
		return err
	}
	d, err := o.desired(cmd.Context(), o.kubeletVersion)
	if err != nil {
		return err
	}
	return o.host.run(func(i *nodeinstall.Installer) error {
		plan, err := do(i, d)
		if err != nil {
			return err
		}
		remarks, err := i.Remarks(d)
		if err != nil {
			return err
		}
		if !asJSON {
			for _, remark := range remarks {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning:", remark)
			}
		}
		return writePlan(cmd.OutOrStdout(), plan, remarks, asJSON)
	})
}

func (o *hostOptions) run(do func(*nodeinstall.Installer) error) error {
	return o.open(func(tree *hostfs.Tree, watcher nodeinstall.Watcher) error {
		return do(nodeinstall.New(nodeinstall.Config{Tree: tree, Profile: o.profile, Watcher: watcher}))
	})
}

func (o *hostOptions) open(do func(*hostfs.Tree, nodeinstall.Watcher) error) error {
	tree, err := hostfs.Open(o.root)
	if err != nil {
		return err
	}
	defer func() { _ = tree.Close() }() // nothing is written through it
	stat, err := file.Read("/proc/self/stat", 1<<12)
	if err != nil {
		return err
	}
	return do(tree, nodeinstall.Systemd{Tree: tree, HostRoot: o.root, PID: os.Getpid(), Stat: stat, Run: (*exec.Cmd).CombinedOutput})
}

func nodeUninstallCommand() *cobra.Command {
	var o hostOptions
	command := &cobra.Command{
		Use:   "uninstall",
		Short: "Restore the node's files and restart the kubelet",
		Long: `Restore the node's files and restart the kubelet. hosts.toml is removed only after
that restart: without it, containerd would send tokens to another registry. If the
kubelet cannot be restarted, the remaining files stay, and the next "uninstall"
continues.`,
		Example: `  pullpass node-install uninstall
  pullpass node-install uninstall --host-root /host`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(func(i *nodeinstall.Installer) error {
				changes, err := i.Uninstall(cmd.Context())
				if err != nil {
					return err
				}
				writeChanges(cmd.OutOrStdout(), changes)
				return nil
			})
		},
	}
	o.addTo(command)
	return command
}

func nodePrintCommand() *cobra.Command {
	var config, platform string
	var o nodeconfig.Options
	command := &cobra.Command{
		Use:   "print",
		Short: "Print the settings for a platform whose nodes cannot be changed in place",
		Example: `  pullpass node-install print --config pullpass.yaml --registry registry.example.com --profile talos
  pullpass node-install print --config pullpass.yaml --mirror ghcr.io --profile karpenter`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return printGuidance(cmd, config, platform, o)
		},
	}
	targetFlags(command, &config, &o)
	command.Flags().StringVar(&platform, "profile", "", "platform (required): "+strictyaml.List(nodeinstall.GuidedPlatforms()))
	requireFlags(command, "profile")
	return command
}

func printGuidance(cmd *cobra.Command, file, platform string, o nodeconfig.Options) error {
	cfg, err := config.LoadOnce(cmd.Context(), file)
	if err != nil {
		return err
	}
	o.CRIO = platform == "openshift"
	target, err := nodeconfig.NewTarget(cfg, o)
	if err != nil {
		return err
	}
	provider, err := target.ProviderFile()
	if err != nil {
		return err
	}
	hosts, err := target.HostsFiles(false)
	if err != nil {
		return err
	}
	g := nodeinstall.Guidance{
		Provider: string(provider), Plugin: nodeconfig.PluginName, Client: nodeconfig.KubeletCertificate, Gateway: target.Gateway, Hosts: map[string]string{},
		OnlyCertificate: target.OnlyCertificate,
	}
	for registry, content := range hosts {
		g.Hosts[registry] = string(content)
	}
	return g.Write(cmd.OutOrStdout(), platform)
}

func nodeWatchCommand() *cobra.Command {
	var o hostOptions
	command := &cobra.Command{
		Use:    "watch",
		Hidden: true, // apply and uninstall start it with systemd
		Short:  "Restart the kubelet if needed, and restore the files if it is not healthy",
		Long: `Restart the kubelet if needed. If it is not healthy within 90 seconds of its start,
restore the files. systemd may take five minutes for the start. apply and uninstall
run this command as a unit of systemd on the host, where it outlives their pod.`,
		Example: `  pullpass node-install watch`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			tree, err := hostfs.Open(o.root)
			if err != nil {
				return err
			}
			defer func() { _ = tree.Close() }() // nothing is written through it
			return nodeinstall.Watch(cmd.Context(), tree, &nodeinstall.HostKubelet{
				Systemd: nodeinstall.Systemd{Tree: tree, HostRoot: o.root, Run: (*exec.Cmd).CombinedOutput}, URL: nodeinstall.DefaultHealthz,
				Client: &http.Client{
					Timeout: 5 * time.Second,
					// Any user of the node can listen there while the kubelet does not.
					CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
				},
			})
		},
	}
	command.Flags().StringVar(&o.root, "host-root", "/", "directory where the root of the host is mounted")
	return command
}

func writePlan(w io.Writer, plan *nodeinstall.Plan, remarks []string, asJSON bool) error {
	if asJSON {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(struct {
			*nodeinstall.Plan
			Warnings []string `json:"warnings,omitempty"`
		}{plan, remarks})
	}
	fmt.Fprintf(w, "%s: %d changes", plan.Profile, len(plan.Changes))
	switch {
	case plan.Rejected:
		fmt.Fprint(w, ", rejected: the kubelet was not healthy with this configuration, or containerd did not answer it")
	case plan.Restart:
		fmt.Fprintf(w, ", with a restart of %s", plan.Unit)
	}
	if plan.Pending {
		fmt.Fprint(w, ", after a command that was interrupted")
	}
	fmt.Fprintln(w)
	writeChanges(w, plan.Changes)
	return nil
}

func writeChanges(w io.Writer, changes []nodeinstall.Change) {
	for _, c := range changes {
		fmt.Fprintf(w, "%s %s: %s\n", c.Action, c.Path, c.Reason)
	}
}
