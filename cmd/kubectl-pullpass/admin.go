package main

import (
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/cmd/kubectl-pullpass/kubectl"
	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/server/audit"
)

// revokeFlags are those of pullpass revoke, which checks their values.
var revokeFlags = []struct{ name, usage string }{
	{"token-id", "one token: its jti, as in the audit log, with or without JTI="},
	{"pod-uid", "all tokens of a pod, by its UID"},
	{"service-account", "all tokens of a ServiceAccount: CLUSTER/NAMESPACE/NAME"},
	{"node", "all tokens that name a node: CLUSTER/NAME"},
	{"project", "all tokens of a project: IDENTITY/ID, as in the audit log"},
	{"run", "all tokens of a CI run: IDENTITY/ID, as in the audit log"},
	{"by", "name of the operator for the audit log (default: your name at the API server)"},
}

func revokeCommand(o *kubectl.Options) *cobra.Command {
	command := &cobra.Command{
		Use:   "revoke",
		Short: "Refuse one token, or the tokens of a pod, ServiceAccount, node, project or CI run, for a limited time",
		Long: `Run pullpass revoke in a pod of Pullpass. You need the rights to list pods and to create
pods/exec in its namespace, and Pullpass needs Redis.

Warning: registry tokens that were issued before stay valid until they expire.`,
		Example: `  kubectl pullpass revoke --node prod-eu/worker-17 --for 4h --reason "being examined"
  kubectl pullpass revoke list
  kubectl pullpass revoke undo --node prod-eu/worker-17`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runRevoke(cmd, o, "revoke") },
	}
	undo := &cobra.Command{
		Use:     "undo",
		Short:   "End a revocation before it expires",
		Example: `  kubectl pullpass revoke undo --node prod-eu/worker-17`,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runRevoke(cmd, o, "revoke", "undo") },
	}
	list := &cobra.Command{
		Use:     "list",
		Short:   "List the current revocations",
		Example: `  kubectl pullpass revoke list`,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runRevoke(cmd, o, "revoke", "list") },
	}
	for _, flag := range revokeFlags {
		command.Flags().String(flag.name, "", flag.usage)
		undo.Flags().String(flag.name, "", flag.usage)
	}
	command.Flags().String("reason", "", "reason, which callers see; at most 256 bytes (required)")
	command.Flags().String("for", "", "duration, such as 4h, at most 366 days (default: until all current tokens have expired)")
	command.AddCommand(list, undo)
	return command
}

// runRevoke passes the given flags on. They are part of the address of a request, which API servers
// log, so a token in the place of its id goes no further.
func runRevoke(cmd *cobra.Command, o *kubectl.Options, command ...string) error {
	if flag := cmd.Flags().Lookup("token-id"); flag != nil && flag.Changed && !names.IsTokenID(strings.TrimPrefix(flag.Value.String(), "JTI=")) {
		return errors.New("--token-id: not a valid token id; write the jti, as in the audit log")
	}
	cluster, err := kubectl.Connect(*o)
	if err != nil {
		return err
	}
	var args []string
	pass := func(name string) {
		if flag := cmd.Flags().Lookup(name); flag != nil && flag.Changed {
			args = append(args, "--"+name+"="+flag.Value.String())
		}
	}
	for _, flag := range revokeFlags {
		pass(flag.name)
	}
	pass("reason")
	pass("for")
	if flag := cmd.Flags().Lookup("by"); flag != nil && !flag.Changed {
		user, err := cluster.User(cmd.Context())
		if err != nil {
			return err
		}
		args = append(args, "--by="+user)
	}
	err = cluster.InPod(cmd.Context(), command, args, cmd.OutOrStdout(), cmd.ErrOrStderr())
	if errors.Is(err, kubectl.ErrFailed) {
		err = errReported
	}
	return err
}

func auditCommand(o *kubectl.Options) *cobra.Command {
	var q audit.Query
	var output string
	command := &cobra.Command{
		Use:   "audit",
		Short: "Search the audit log in the logs of Pullpass's pods",
		Long: `Search the audit log in the logs of Pullpass's pods, as pullpass audit does. An event is
shown if it meets every condition. You need the rights to list pods and to get pods/log in
the namespace of Pullpass. The logs of pods that are gone, and an audit log in a file
(audit.file), are not there.`,
		Example: `  kubectl pullpass audit --repository team-a/web --since 24h
  kubectl pullpass audit --pod prod-eu/team-a/web-0 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := q.CheckGiven(cmd.Flags().Changed); err != nil {
				return err
			}
			asJSON, err := isJSON(output)
			if err != nil {
				return err
			}
			search, err := audit.NewSearch(q, asJSON, time.Now(), cmd.OutOrStdout())
			if err != nil {
				return err
			}
			cluster, err := kubectl.Connect(*o)
			if err != nil {
				return err
			}
			logs, err := cluster.Logs(cmd.Context())
			if err != nil {
				return err
			}
			defer logs.Close()
			err = search.Run(cmd.Context(), nil, logs, cmd.ErrOrStderr())
			if right := new(kubectl.MissingRight); errors.As(err, &right) {
				return right
			}
			return err
		},
	}
	q.Conditions(func(value *string, name, usage string) { command.Flags().StringVar(value, name, "", usage) })
	outputFlag(command, &output)
	return command
}
