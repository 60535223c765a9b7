package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/state"
)

// revokeTimeout bounds all requests of a command to Redis.
const revokeTimeout = 10 * time.Second

// revokeOptions select the target and name the operator.
type revokeOptions struct {
	configs                                                 []string
	tokenID, podUID, serviceAccount, node, project, run, by string
	// formerNames says that the cluster or identity need not be configured: it may have a new name.
	formerNames bool
}

func revokeCommand() *cobra.Command {
	var o revokeOptions
	var reason string
	var lifetime time.Duration
	command := &cobra.Command{
		Use:   "revoke",
		Short: "Refuse one token, or the tokens of a pod, ServiceAccount, node, project or CI run, for a limited time",
		Long: `Refuse one token, or all tokens of a pod, a ServiceAccount, a node, a project of
identities[] (such as a source repository) or one CI run. Every replica refuses them
within a second. Revocations are kept in Redis (state.redis).

If regions have a Redis each, repeat --config: all are told at once. A failure in one
region leaves the others revoked, and the exit code is 1.

Warning: registry tokens that were issued before stay valid until they expire, after
registries[].tokenLifetime.

A revocation expires by itself, by default when all current tokens have expired, with
the push credentials that were issued for them (the longest maxTokenLifetime of
clusters[], or of identities[] and 15 minutes more, and two minutes). To refuse an identity
permanently, write a deny rule in the policy. Callers see the reason. Audit events
also have the operator.`,
		Example: `  pullpass revoke --config pullpass.yaml --token-id JTI=63ef7a8c-1d81-4c97-8f89-724a51634a91 --reason "found in a log"
  pullpass revoke --config pullpass.yaml --node prod-eu/worker-17 --for 4h --reason "being examined"
  pullpass revoke --config pullpass.yaml --run github/9876543210 --reason "runs unreviewed code"
  pullpass revoke --config pullpass.yaml --project github/123456789 --for 24h --reason "taken over"
  pullpass revoke --config eu.yaml --config us.yaml --service-account prod-eu/team-a/web --reason "found in a log"
  pullpass revoke list --config pullpass.yaml
  pullpass revoke undo --config pullpass.yaml --node prod-eu/worker-17`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			now := time.Now() // the same in every region
			return o.changeAll(cmd, func(ctx context.Context, cfg *config.Config, list *state.RedisRevocations, target state.Target) (string, error) {
				lifetime := lifetime
				if !cmd.Flags().Changed("for") {
					lifetime = setup.LongestAcceptance(cfg)
				}
				return o.add(ctx, list, target, reason, now.Add(lifetime))
			})
		},
	}
	o.flags(command)
	command.Flags().StringVar(&reason, "reason", "", "reason, which callers see; at most 256 bytes (required)")
	command.Flags().DurationVar(&lifetime, "for", 0, "duration, such as 4h, at most 366 days (default: until all current tokens have expired)")
	requireFlags(command, "reason")
	command.AddCommand(revokeListCommand(), revokeUndoCommand())
	return command
}

func revokeUndoCommand() *cobra.Command {
	o := revokeOptions{formerNames: true}
	command := &cobra.Command{
		Use:     "undo",
		Short:   "End a revocation before it expires",
		Example: `  pullpass revoke undo --config pullpass.yaml --pod-uid da2e7a3c-63e8-4855-9874-2073194456f5`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.changeAll(cmd, func(ctx context.Context, _ *config.Config, list *state.RedisRevocations, target state.Target) (string, error) {
				if err := list.Remove(ctx, target, o.by); err != nil {
					return "", fmt.Errorf("%s: %w", setup.TargetName(target), err)
				}
				return fmt.Sprintf("no longer revoked: %s, by %s\n", setup.TargetName(target), o.by), nil
			})
		},
	}
	o.flags(command)
	return command
}

func revokeListCommand() *cobra.Command {
	var file string
	command := &cobra.Command{
		Use:     "list",
		Short:   "List the current revocations",
		Example: `  pullpass revoke list --config pullpass.yaml`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.LoadOnce(cmd.Context(), file)
			if err != nil {
				return err
			}
			list, closeList, err := setup.OpenRevocations(cfg)
			if err != nil {
				return err
			}
			defer closeList()
			ctx, cancel := context.WithTimeout(cmd.Context(), revokeTimeout)
			defer cancel()
			all, err := list.List(ctx)
			if err != nil {
				return err
			}
			for _, r := range all {
				if !setup.HasEffect(cfg, r.Target) {
					fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s has no effect: %s\n", setup.TargetName(r.Target), setup.NoEffect)
				}
			}
			return printRevocations(cmd.OutOrStdout(), all)
		},
	}
	configFlag(command, &file)
	return command
}

// printRevocations quotes the fields that people wrote.
func printRevocations(out io.Writer, all []state.Revocation) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "REVOKED\tSINCE\tUNTIL\tBY\tREASON")
	for _, r := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t%q\t%q\n", setup.TargetName(r.Target), r.Since.UTC().Format(time.RFC3339), r.Until.UTC().Format(time.RFC3339), r.By, r.Reason)
	}
	return w.Flush()
}

func (o *revokeOptions) flags(command *cobra.Command) {
	flags := command.Flags()
	flags.StringArrayVar(&o.configs, "config", nil, "configuration file; repeat it for regions with a Redis each (required)")
	requireFlags(command, "config")
	flags.StringVar(&o.tokenID, "token-id", "", "one token: its jti, as in the audit log: credentialID, or gateway.tokenID of one for the gateway. One for a registry (issuedID) works until it ends")
	flags.StringVar(&o.podUID, "pod-uid", "", "all tokens of a pod, by its UID")
	flags.StringVar(&o.serviceAccount, "service-account", "", "all tokens of a ServiceAccount: CLUSTER/NAMESPACE/NAME")
	flags.StringVar(&o.node, "node", "", "all tokens that name a node: CLUSTER/NAME")
	flags.StringVar(&o.project, "project", "", "all tokens of a project: IDENTITY/ID, as identity.name and identity.project in the audit log")
	flags.StringVar(&o.run, "run", "", "all tokens of a CI run: IDENTITY/ID, as identity.name and identity.run in the audit log")
	flags.StringVar(&o.by, "by", operator(), "name of the operator for the audit log; at most 128 bytes")
	targets := []string{"token-id", "pod-uid", "service-account", "node", "project", "run"}
	command.MarkFlagsMutuallyExclusive(targets...)
	command.MarkFlagsOneRequired(targets...)
}

// add revokes a target and says so. It leaves a revocation that ends later: another operator relies on it.
func (o *revokeOptions) add(ctx context.Context, list *state.RedisRevocations, target state.Target, reason string, until time.Time) (string, error) {
	next := state.Revocation{Target: target, By: o.by, Reason: reason, Until: until}
	if err := next.Validate(time.Now()); err != nil {
		return "", err
	}
	present, err := list.List(ctx)
	if err != nil {
		return "", err
	}
	for _, r := range present {
		if r.Target == target && r.Until.After(until) {
			return fmt.Sprintf("stays revoked: %s until %s, by %s: %q; to shorten it, end it first with pullpass revoke undo\n", setup.TargetName(target), r.Until.UTC().Format(time.RFC3339), r.By, r.Reason), nil
		}
	}
	if err := list.Add(ctx, next); err != nil {
		return "", err
	}
	return fmt.Sprintf("revoked %s until %s, by %s: %q\n", setup.TargetName(target), until.UTC().Format(time.RFC3339), o.by, reason), nil
}

// A revocationChange returns what it did.
type revocationChange func(context.Context, *config.Config, *state.RedisRevocations, state.Target) (done string, err error)

// changeAll makes the change for every configuration at once: one whose Redis does not answer must not
// delay the others.
func (o *revokeOptions) changeAll(cmd *cobra.Command, do revocationChange) error {
	done, faults := make([]string, len(o.configs)), make([]error, len(o.configs))
	var changing sync.WaitGroup
	for i, file := range o.configs {
		changing.Go(func() {
			done[i], faults[i] = o.change(cmd.Context(), file, do)
			if faults[i] != nil && len(o.configs) > 1 {
				faults[i] = fmt.Errorf("%s: %w", file, faults[i])
			}
		})
	}
	changing.Wait()
	for i, text := range done {
		if text != "" && len(o.configs) > 1 {
			text = o.configs[i] + ": " + text
		}
		if _, err := io.WriteString(cmd.OutOrStdout(), text); err != nil {
			return err
		}
	}
	return errors.Join(faults...)
}

// change opens the revocations of a configuration and calls do for the target. It says if no replica
// learns of the change.
func (o *revokeOptions) change(ctx context.Context, file string, do revocationChange) (string, error) {
	cfg, err := config.LoadOnce(ctx, file)
	if err != nil {
		return "", err
	}
	target, err := o.target(cfg)
	if err != nil {
		return "", err
	}
	list, closeList, err := setup.OpenRevocations(cfg)
	if err != nil {
		return "", err
	}
	defer closeList()
	ctx, cancel := context.WithTimeout(ctx, revokeTimeout)
	defer cancel()
	done, err := do(ctx, cfg, list, target)
	if err != nil {
		return done, err
	}
	followed, err := list.IsFollowed(ctx)
	if err == nil && !followed {
		done += "warning: no replica uses this Redis (state.redis) now, so the change counts for none yet; if replicas run, they have a different state.redis: restart them with this one, or repeat the command with their configuration\n"
	}
	return done, err
}

// target refuses an id that no token can have: a typing error would silently revoke
// nothing. It does not repeat a --token-id, which may be the token itself.
func (o *revokeOptions) target(cfg *config.Config) (state.Target, error) {
	switch {
	case o.tokenID != "":
		id := o.tokenID
		if len(id) >= 4 && strings.EqualFold(id[:4], "JTI=") {
			id = id[4:]
		}
		if !names.IsTokenID(id) {
			return state.Target{}, errors.New("--token-id: not a valid token id; write the jti, as in the audit log")
		}
		return state.Target{Kind: state.TargetToken, Name: id}, nil
	case o.podUID != "":
		if !names.IsUID(o.podUID) || strings.Contains(o.podUID, "/") || o.podUID != strings.ToLower(o.podUID) {
			return state.Target{}, fmt.Errorf("--pod-uid %s: not a valid UID; write the metadata.uid of the pod, in lower case", term.QuoteValue(o.podUID))
		}
		return state.Target{Kind: state.TargetPod, Name: o.podUID}, nil
	case o.serviceAccount != "":
		account, err := names.ParseObject(o.serviceAccount)
		if err != nil {
			return state.Target{}, fmt.Errorf("--service-account %w", err)
		}
		if err := config.KnownCluster(cfg, "--service-account", account.Cluster); err != nil && !o.formerNames {
			return state.Target{}, err
		}
		if err := account.Check(); err != nil {
			return state.Target{}, fmt.Errorf("--service-account %q: %w", o.serviceAccount, err)
		}
		return state.Target{Kind: state.TargetServiceAccount, Cluster: account.Cluster, Namespace: account.Namespace, Name: account.Name}, nil
	case o.node != "":
		cluster, node, found := strings.Cut(o.node, "/")
		if !found || cluster == "" || node == "" || strings.Contains(node, "/") {
			return state.Target{}, fmt.Errorf("--node %q is not CLUSTER/NAME", o.node)
		}
		if err := config.KnownCluster(cfg, "--node", cluster); err != nil && !o.formerNames {
			return state.Target{}, err
		}
		if !names.IsSubdomain(node) {
			return state.Target{}, fmt.Errorf("--node %q: %q is not a valid name of a node", o.node, node)
		}
		return state.Target{Kind: state.TargetNode, Cluster: cluster, Name: node}, nil
	case o.project != "":
		return o.identityTarget(cfg, state.TargetProject, "--project", o.project, func(p *config.Provider) string { return p.Profile.ProjectClaim() })
	case o.run != "":
		return o.identityTarget(cfg, state.TargetRun, "--run", o.run, func(p *config.Provider) string { return p.Profile.RunClaim() })
	}
	return state.Target{}, errors.New("--token-id, --pod-uid, --service-account, --node, --project or --run is empty; write its value")
}

// identityTarget parses IDENTITY/ID. An id may contain slashes: it can be the name of
// a role or a workload.
func (o *revokeOptions) identityTarget(cfg *config.Config, kind state.TargetKind, flag, value string, claimOf func(*config.Provider) string) (state.Target, error) {
	name, id, found := strings.Cut(value, "/")
	if !found || name == "" || id == "" {
		return state.Target{}, fmt.Errorf("%s %s is not IDENTITY/ID", flag, term.QuoteValue(value))
	}
	target := state.Target{Kind: kind, Identity: name, Name: id}
	known, err := config.FindIdentity(cfg, flag, name)
	if err != nil {
		if o.formerNames {
			return target, nil
		}
		return state.Target{}, err
	}
	switch claim := claimOf(known); {
	case claim == "":
		return state.Target{}, fmt.Errorf("%s %s: tokens of profile %s have no claim for the run; revoke --project or --token-id", flag, term.QuoteValue(value), known.Profile)
	case claim != "sub" && (!names.IsUID(id) || strings.Contains(id, "/")):
		return state.Target{}, fmt.Errorf("%s %s: not a valid id for profile %s; write the value of the claim %s, which is an id, not a name", flag, term.QuoteValue(value), known.Profile, claim)
	case strings.Contains(id, "*"):
		return state.Target{}, fmt.Errorf("%s %s: an id is compared as a whole, so * would match nothing else; write the whole id", flag, term.QuoteValue(value))
	}
	return target, nil
}

// operator is the user and host of this process. It proves nothing: every client that
// can write to Redis can write any name.
func operator() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = cmp.Or(u.Username, u.Uid)
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}
