package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/server/audit"
	"github.com/pullpass/pullpass/internal/state"
)

type traceOptions struct {
	files                    []string
	query                    audit.TraceQuery
	output                   string
	revokes, dryRun          bool
	configFile, reason, what string
	lifetime                 time.Duration
	by                       string
}

func traceCommand() *cobra.Command {
	var o traceOptions
	command := &cobra.Command{
		Use:   "trace [REPOSITORY[:TAG|@DIGEST]]",
		Short: "Find the builds that pushed an image and the pods that pulled it, in the audit log",
		Long: `Find the builds that pushed an image and the pods that pulled it: from a repository,
a tag, a digest, a CI run or a pod. The commands that revoke their tokens follow.

The gateway notes the digest of each manifest, so a tag that moved and an image with
several tags are told apart. The token endpoint sees only which repository a token
opens: a pull there has no digest, and may be of each push to the same service before
it or within the hour after it.

The log is read twice, so it cannot be standard input. --revoke revokes the tokens of
all listed callers at once; with --dry-run, it only lists them.`,
		Example: `  pullpass trace ghcr.io/acme/app:v1.2 --audit-file audit.log
  pullpass trace --run github/9876543210 --audit-file audit.log.1.gz --audit-file audit.log
  pullpass trace --pod prod-eu/team-a/web-5c9f-x2x7q --audit-file audit.log -o json
  pullpass trace --run github/9876543210 --audit-file audit.log --config pullpass.yaml --revoke --dry-run --reason "taken over"`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.query.Service == "" && cmd.Flags().Changed("service") { // a variable that is not set must not widen --revoke
				return errors.New("--service is empty; leave it out to trace all services")
			}
			return o.run(cmd.Context(), args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := command.Flags()
	flags.StringArrayVar(&o.files, "audit-file", nil, "audit log, repeatable (required)")
	flags.StringVar(&o.query.Run, "run", "", "start from the pushes of a CI run: IDENTITY/ID, as for pullpass revoke")
	flags.StringVar(&o.query.Pod, "pod", "", "start from the pulls of a pod: CLUSTER/NAMESPACE/NAME or UID")
	flags.StringVar(&o.query.Service, "service", "", "only the pushes and pulls of this registry (default: all)")
	flags.BoolVar(&o.revokes, "revoke", false, "revoke the tokens of all listed callers")
	flags.BoolVar(&o.dryRun, "dry-run", false, "with --revoke: revoke nothing")
	flags.StringVar(&o.configFile, "config", "", "configuration file, for --revoke and its commands")
	flags.StringVar(&o.reason, "reason", "", "with --revoke: reason, which callers see; at most 256 bytes")
	flags.DurationVar(&o.lifetime, "for", 0, "with --revoke: duration, such as 4h (default: until all current tokens have expired)")
	flags.StringVar(&o.by, "by", operator(), "with --revoke: name of the operator for the audit log")
	outputFlag(command, &o.output, "table", "table or json")
	requireFlags(command, "audit-file")
	command.MarkFlagsMutuallyExclusive("run", "pod")
	return command
}

func (o *traceOptions) run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	asJSON, err := isJSON(o.output, "table")
	if err != nil {
		return err
	}
	if err := o.check(args); err != nil {
		return err
	}
	found, err := audit.TraceFiles(ctx, o.query, o.files, stderr)
	if err != nil {
		return err
	}
	targets, others := found.Targets()
	commands := make([]string, len(targets))
	for i, t := range targets {
		commands[i] = o.command(t)
	}
	if asJSON {
		err = writeTraceJSON(stdout, found, commands)
	} else {
		err = writeTrace(stdout, found, commands)
	}
	if found.Inexact > 0 {
		fmt.Fprintf(stderr, "warning: %d of them have no digest: those of the token endpoint are related by service, repository and time, those of the gateway to nothing; trace their tags, too\n", found.Inexact)
	}
	if found.Unknown > 0 {
		fmt.Fprintf(stderr, "warning: %d of the pushes, marked with ?, have an unknown outcome: the upstream may have stored them\n", found.Unknown)
	}
	if others > 0 {
		fmt.Fprintf(stderr, "warning: %d of them are of callers that cannot be revoked: anonymous ones, and identities without a run and a project\n", others)
	}
	if len(found.Pushes)+len(found.Pulls) == 0 && !o.revokes {
		fmt.Fprintf(stderr, "warning: these logs have nothing of %s: see that the name is right, and that --audit-file names all logs of that time\n", o.searched())
	}
	switch {
	case err != nil || !o.revokes:
		return err
	case len(targets) == 0:
		return o.nothing()
	case o.dryRun:
		return nil
	}
	return o.revoke(ctx, targets, stderr)
}

func (o *traceOptions) check(args []string) (err error) {
	switch {
	case len(args) == 1 && (o.query.Run != "" || o.query.Pod != ""):
		return errors.New("write a repository, --run or --pod, but not two of them")
	case len(args) == 1:
		service := o.query.Service
		o.query, err = audit.ParseReference(args[0])
		o.query.Service = service
		o.what = args[0]
	case o.query.Run != "":
		o.what = "run " + o.query.Run
	case o.query.Pod != "":
		o.what = "pod " + o.query.Pod
	default:
		return errors.New("write a repository, or --run or --pod")
	}
	switch {
	case err != nil:
		return err
	case slices.Contains(o.files, "-"):
		return errors.New("--audit-file -: the log is read twice; write it to a file first")
	case o.dryRun && !o.revokes:
		return errors.New("--dry-run is only for --revoke")
	case o.revokes && !o.dryRun && (o.configFile == "" || o.reason == ""):
		return errors.New("--revoke needs --config and --reason")
	}
	return nil
}

// command is the one that revokes a target.
func (o *traceOptions) command(t audit.Target) string {
	file, reason := cmp.Or(o.configFile, "pullpass.yaml"), cmp.Or(o.reason, "trace of "+o.what)
	return strings.Join([]string{"pullpass revoke --config", term.ShellWord(file), "--" + t.Flag, term.ShellWord(t.Value), "--reason", term.ShellWord(reason)}, " ")
}

// nothing is the error of a trace that would revoke nothing: a script must not take it for a success.
func (o *traceOptions) nothing() error {
	remedy := "correct the name of the repository"
	switch {
	case o.query.Run != "":
		remedy = "to revoke it all the same: " + o.command(audit.Target{Flag: "run", Value: o.query.Run})
	case strings.Contains(o.query.Pod, "/"):
		remedy = "to revoke it all the same: pullpass revoke --pod-uid UID"
	case o.query.Pod != "":
		remedy = "to revoke it all the same: " + o.command(audit.Target{Flag: "pod-uid", Value: o.query.Pod})
	}
	return fmt.Errorf("the trace of %s found no caller to revoke; see that --audit-file names all logs of that time; %s", o.searched(), remedy)
}

// searched says what was looked for, and at which service: the names of services are easily mistyped, too.
func (o *traceOptions) searched() string {
	if o.query.Service == "" {
		return o.what
	}
	return o.what + " at service " + o.query.Service
}

// revoke goes on after a target that cannot be revoked.
func (o *traceOptions) revoke(ctx context.Context, targets []audit.Target, stderr io.Writer) error {
	var faults []error
	for _, t := range targets {
		r := revokeOptions{by: o.by}
		*map[string]*string{"run": &r.run, "project": &r.project, "pod-uid": &r.podUID, "service-account": &r.serviceAccount}[t.Flag] = t.Value
		done, err := r.change(ctx, o.configFile, func(ctx context.Context, cfg *config.Config, list *state.RedisRevocations, target state.Target) (string, error) {
			return r.add(ctx, list, target, o.reason, time.Now().Add(cmp.Or(o.lifetime, setup.LongestAcceptance(cfg))))
		})
		_, _ = io.WriteString(stderr, done)
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

func writeTraceJSON(w io.Writer, found *audit.Trace, commands []string) error {
	text, err := json.Marshal(struct {
		*audit.Trace
		Revoke []string `json:"revoke"`
	}{found, commands})
	if err == nil {
		_, err = fmt.Fprintf(w, "%s\n", term.ASCIIJSON(text))
	}
	return err
}

func writeTrace(out io.Writer, found *audit.Trace, commands []string) error {
	err := found.Write(out)
	if len(commands) > 0 {
		fmt.Fprintf(out, "\nTo revoke their tokens:\n")
	}
	for _, c := range commands {
		fmt.Fprintln(out, "  "+c)
	}
	return err
}
