package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/names"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/term"
)

// auditQuery says which events are searched. Conditions that are given must all
// hold.
type auditQuery struct {
	tokenID, repository, pod, serviceAccount, since, until string
}

func auditCommand() *cobra.Command {
	var q auditQuery
	var output string
	command := &cobra.Command{
		Use:   "audit [FILE...]",
		Short: "Search the audit log: what did a token, a pod, a ServiceAccount do, who touched a repository",
		Long: `Search the audit log in the files, in their order, or on standard input (also
as -). Files may be compressed with gzip. Conditions that are given must all
hold; without any, every event is shown.

What a refused token says of itself is not proven. It is found as well, and
marked: claimed. Damaged lines, as a crash leaves them, are counted on standard
error; exit code 1 only if a file cannot be read to its end.`,
		Example: `  pullpass audit --token-id JTI=63ef7a8c-1d81-4c97-8f89-724a51634a91 audit.log
  pullpass audit --repository team-a/web --since 24h audit.log.1.gz audit.log
  pullpass audit --pod prod-eu/team-a/web-5c9f-x2x7q audit.log
  pullpass audit --service-account prod-eu/team-a/web --since 2026-03-01T00:00:00Z --until 2026-03-02T00:00:00Z audit.log
  kubectl logs -n pullpass -l app.kubernetes.io/name=pullpass --tail -1 | pullpass audit --repository team-a/web -o json`,
		RunE: func(cmd *cobra.Command, files []string) error {
			for _, name := range []string{"token-id", "repository", "pod", "service-account", "since", "until"} {
				// A variable of a script that is not set must not widen the search.
				if flag := cmd.Flags().Lookup(name); flag.Changed && flag.Value.String() == "" {
					return fmt.Errorf("--%s is empty; leave it out to search without it", name)
				}
			}
			search, err := newAuditSearch(q, output, time.Now(), cmd.OutOrStdout())
			if err != nil {
				return err
			}
			// A write to a pipe cannot be interrupted.
			ended := make(chan error, 1)
			go func() { ended <- search.run(cmd.Context(), files, cmd.InOrStdin(), cmd.ErrOrStderr()) }()
			select {
			case err := <-ended:
				return err
			case <-cmd.Context().Done():
				return errReported
			}
		},
	}
	flags := command.Flags()
	flags.StringVar(&q.tokenID, "token-id", "", "id of a ServiceAccount token, with or without JTI=, or of a registry token that was issued")
	flags.StringVar(&q.repository, "repository", "", "repository that was asked for or granted")
	flags.StringVar(&q.pod, "pod", "", "CLUSTER/NAMESPACE/NAME or UID of a pod")
	flags.StringVar(&q.serviceAccount, "service-account", "", "CLUSTER/NAMESPACE/NAME of a ServiceAccount")
	flags.StringVar(&q.since, "since", "", "not before: a time as in RFC 3339, or how long ago, such as 90m")
	flags.StringVar(&q.until, "until", "", "before: likewise")
	flags.StringVarP(&output, "output", "o", "table", "table, or json: the lines of the log")
	return command
}

// auditSearch is one search of the audit log.
type auditSearch struct {
	conditions []func(*exchange.Event) bool
	show       func(line []byte, event *exchange.Event) error
	found      int
}

// newAuditSearch returns a search whose events are written to out, as a table or as
// JSON.
func newAuditSearch(q auditQuery, output string, now time.Time, out io.Writer) (*auditSearch, error) {
	s := &auditSearch{}
	switch output {
	case "table":
		table := auditTable{out: out}
		s.show = func(_ []byte, event *exchange.Event) error { return table.row(event) }
	case "json":
		s.show = func(line []byte, _ *exchange.Event) error {
			_, err := fmt.Fprintf(out, "%s\n", term.ASCIIJSON(line))
			return err
		}
	default:
		return nil, fmt.Errorf("--output %q is not known: use table or json", output)
	}
	if q.tokenID != "" {
		id := strings.TrimPrefix(q.tokenID, "JTI=")
		if id == "" {
			return nil, fmt.Errorf("--token-id %q names no token", q.tokenID)
		}
		s.conditions = append(s.conditions, ofToken(id))
	}
	if q.repository != "" {
		s.conditions = append(s.conditions, ofRepository(q.repository))
	}
	if q.pod != "" {
		condition, err := ofPod(q.pod)
		if err != nil {
			return nil, fmt.Errorf("--pod %w or a UID", err)
		}
		s.conditions = append(s.conditions, condition)
	}
	if q.serviceAccount != "" {
		name, err := names.ParseObject(q.serviceAccount)
		if err != nil {
			return nil, fmt.Errorf("--service-account %w", err)
		}
		s.conditions = append(s.conditions, ofServiceAccount(name))
	}
	for flag, value := range map[string]string{"since": q.since, "until": q.until} {
		if value == "" {
			continue
		}
		limit, err := parseMoment(value, now)
		if err != nil {
			return nil, fmt.Errorf("--%s %w", flag, err)
		}
		isUntil := flag == "until"
		s.conditions = append(s.conditions, func(e *exchange.Event) bool { return e.Time.Before(limit) == isUntil })
	}
	return s, nil
}

// run goes on after a file that cannot be read.
func (s *auditSearch) run(ctx context.Context, files []string, stdin io.Reader, stderr io.Writer) error {
	if len(files) == 0 {
		files = []string{"-"}
	}
	damaged := 0
	var faults []error
	for _, name := range files {
		n, err := s.file(ctx, name, stdin)
		damaged += n
		if err != nil {
			faults = append(faults, err)
		}
	}
	if damaged > 0 {
		fmt.Fprintf(stderr, "warning: %d lines are damaged, or no audit events, and were left out\n", damaged)
	}
	if s.found == 0 {
		fmt.Fprintln(stderr, "no audit event was found")
	}
	return errors.Join(faults...)
}

func (s *auditSearch) file(ctx context.Context, name string, stdin io.Reader) (damaged int, err error) {
	in := until(ctx, stdin)
	if name == "-" {
		name = "standard input"
	} else {
		f, err := openArgument(ctx, name)
		if err != nil {
			return 0, err
		}
		defer f.Close()
		in = f
	}
	damaged, err = readAudit(in, func(line []byte, event *exchange.Event) error {
		for _, holds := range s.conditions {
			if !holds(event) {
				return nil
			}
		}
		s.found++
		return s.show(line, event)
	})
	if err != nil {
		return damaged, fmt.Errorf("%s: %w", name, err)
	}
	return damaged, nil
}

func ofToken(id string) func(*exchange.Event) bool {
	return func(e *exchange.Event) bool {
		return e.CredentialID == "JTI="+id || e.IssuedID == id || e.Claimed != nil && e.Claimed.CredentialID == "JTI="+id
	}
}

func ofRepository(name string) func(*exchange.Event) bool {
	is := func(s string) bool {
		scope, err := registryauth.ParseScope(s)
		return err == nil && scope.Type == "repository" && scope.Name == name
	}
	return func(e *exchange.Event) bool {
		return slices.ContainsFunc(e.Requested, is) || slices.ContainsFunc(e.Granted, is)
	}
}

func ofPod(pod string) (func(*exchange.Event) bool, error) {
	if !strings.Contains(pod, "/") {
		return func(e *exchange.Event) bool { return e.Pod != nil && e.Pod.UID == pod }, nil
	}
	name, err := names.ParseObject(pod)
	if err != nil {
		return nil, err
	}
	return func(e *exchange.Event) bool {
		if e.Claimed != nil {
			account, ok := claimedServiceAccount(e)
			return ok && name == names.Object{Cluster: account.Cluster, Namespace: account.Namespace, Name: e.Claimed.Pod}
		}
		return e.Pod != nil && name == names.Object{Cluster: e.Cluster, Namespace: e.Namespace, Name: e.Pod.Name}
	}, nil
}

func ofServiceAccount(name names.Object) func(*exchange.Event) bool {
	return func(e *exchange.Event) bool {
		if e.Claimed != nil {
			account, ok := claimedServiceAccount(e)
			return ok && name == account
		}
		return e.ServiceAccount != nil && name == names.Object{Cluster: e.Cluster, Namespace: e.Namespace, Name: e.ServiceAccount.Name}
	}
}

// claimedServiceAccount is who a refused token says to be. The cluster is the
// one whose issuer the token names.
func claimedServiceAccount(e *exchange.Event) (names.Object, bool) {
	rest, ok := strings.CutPrefix(e.Claimed.Subject, "system:serviceaccount:")
	namespace, name, found := strings.Cut(rest, ":")
	return names.Object{Cluster: e.Cluster, Namespace: namespace, Name: name}, ok && found
}

func parseMoment(s string, now time.Time) (time.Time, error) {
	if ago, err := time.ParseDuration(s); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	moment, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return time.Time{}, fmt.Errorf("%q is neither a time, such as 2026-03-01T15:04:05Z, nor how long ago, such as 90m", s)
	}
	return moment, nil
}
