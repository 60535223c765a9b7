package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/file"
	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// Query selects events. All conditions that are set must hold.
type Query struct {
	TokenID, Repository, Pod, ServiceAccount, Project, Run, Since, Until string
	Trial                                                                bool // only requests that the policy trial would have decided differently
}

// Conditions calls each for every condition, with its name and meaning as a flag of a command.
func (q *Query) Conditions(each func(value *string, name, usage string)) {
	each(&q.TokenID, "token-id", "id of a token, with or without JTI=, or of a registry token or push credential that was issued")
	each(&q.Repository, "repository", "repository in the requested or granted scopes")
	each(&q.Pod, "pod", "CLUSTER/NAMESPACE/NAME or UID of a pod")
	each(&q.ServiceAccount, "service-account", "CLUSTER/NAMESPACE/NAME of a ServiceAccount")
	each(&q.Project, "project", "IDENTITY/ID of the project of a CI job, as for pullpass revoke")
	each(&q.Run, "run", "IDENTITY/ID of a CI run, as for pullpass revoke")
	each(&q.Since, "since", "earliest time: RFC 3339, or a duration before now such as 90m")
	each(&q.Until, "until", "events before this time: RFC 3339, or a duration before now")
}

// CheckGiven rejects a condition that is given and empty. A variable of a script that is not set
// must not widen the search.
func (q *Query) CheckGiven(isGiven func(name string) bool) (err error) {
	q.Conditions(func(value *string, name, _ string) {
		if err == nil && *value == "" && isGiven(name) {
			err = fmt.Errorf("--%s is empty; leave it out to search without it", name)
		}
	})
	return err
}

// Search is one search of the audit log.
type Search struct {
	conditions []func(*exchange.Event) bool
	show       func(line []byte, event *exchange.Event) error
	found      int
}

// NewSearch returns a search that writes events to out, as a table or as the lines of the log.
func NewSearch(q Query, asJSON bool, now time.Time, out io.Writer) (*Search, error) {
	s := &Search{}
	rows := table{out: out}
	s.show = func(_ []byte, event *exchange.Event) error { return rows.row(event) }
	if asJSON {
		s.show = func(line []byte, _ *exchange.Event) error {
			_, err := fmt.Fprintf(out, "%s\n", term.ASCIIJSON(line))
			return err
		}
	}
	if q.Trial {
		s.conditions = append(s.conditions, func(e *exchange.Event) bool { return e.Trial != nil })
	}
	if q.TokenID != "" {
		id := strings.TrimPrefix(q.TokenID, "JTI=")
		if id == "" {
			return nil, fmt.Errorf("--token-id %q names no token", q.TokenID)
		}
		s.conditions = append(s.conditions, ofToken(id))
	}
	if q.Repository != "" {
		s.conditions = append(s.conditions, ofRepository(q.Repository))
	}
	if q.Pod != "" {
		condition, err := ofPod(q.Pod)
		if err != nil {
			return nil, fmt.Errorf("--pod %w or a UID", err)
		}
		s.conditions = append(s.conditions, condition)
	}
	if q.ServiceAccount != "" {
		name, err := names.ParseObject(q.ServiceAccount)
		if err != nil {
			return nil, fmt.Errorf("--service-account %w", err)
		}
		s.conditions = append(s.conditions, ofServiceAccount(name))
	}
	for flag, of := range map[string]struct {
		value string
		id    func(*exchange.Identity) string
	}{
		"project": {q.Project, func(i *exchange.Identity) string { return i.Project }},
		"run":     {q.Run, func(i *exchange.Identity) string { return i.Run }},
	} {
		if of.value == "" {
			continue
		}
		name, id, _ := strings.Cut(of.value, "/")
		if name == "" || id == "" {
			return nil, fmt.Errorf("--%s %q is not IDENTITY/ID", flag, of.value)
		}
		s.conditions = append(s.conditions, func(e *exchange.Event) bool {
			return e.Identity != nil && e.Identity.Name == name && of.id(e.Identity) == id
		})
	}
	for flag, value := range map[string]string{"since": q.Since, "until": q.Until} {
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

// Run continues after a file that cannot be read.
func (s *Search) Run(ctx context.Context, files []string, stdin io.Reader, stderr io.Writer) error {
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
	warnDamaged(stderr, damaged)
	if s.found == 0 {
		fmt.Fprintln(stderr, "no audit event was found")
	}
	return errors.Join(faults...)
}

func (s *Search) file(ctx context.Context, name string, stdin io.Reader) (damaged int, err error) {
	in := file.Until(ctx, stdin)
	if name == "-" {
		name = "standard input"
	} else {
		f, err := file.OpenArgument(ctx, name)
		if err != nil {
			return 0, err
		}
		defer f.Close()
		in = f
	}
	damaged, err = read(in, func(line []byte, event *exchange.Event) error {
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
		return e.CredentialID == "JTI="+id || e.IssuedID == id || e.PushCredential == id || e.Claimed != nil && e.Claimed.CredentialID == "JTI="+id
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
		pod = strings.ToLower(pod) // as UIDs of the API server are
		return func(e *exchange.Event) bool { return e.Pod != nil && e.Pod.UID == pod }, nil
	}
	name, err := names.ParseObject(pod)
	if err != nil {
		return nil, err
	}
	return func(e *exchange.Event) bool {
		if e.Claimed != nil {
			account, ok := ClaimedServiceAccount(e)
			return ok && name == names.Object{Cluster: account.Cluster, Namespace: account.Namespace, Name: e.Claimed.Pod}
		}
		return e.Pod != nil && name == names.Object{Cluster: e.Cluster, Namespace: e.Namespace, Name: e.Pod.Name}
	}, nil
}

func ofServiceAccount(name names.Object) func(*exchange.Event) bool {
	return func(e *exchange.Event) bool {
		if e.Claimed != nil {
			account, ok := ClaimedServiceAccount(e)
			return ok && name == account
		}
		return e.ServiceAccount != nil && name == names.Object{Cluster: e.Cluster, Namespace: e.Namespace, Name: e.ServiceAccount.Name}
	}
}

// ClaimedServiceAccount returns the ServiceAccount that a refused token claims. The cluster is the
// one whose issuer the token names.
func ClaimedServiceAccount(e *exchange.Event) (names.Object, bool) {
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

var errFound = errors.New("found")

// Find returns the event with an id, and its line.
func Find(ctx context.Context, files []string, id string, stdin io.Reader, stderr io.Writer) (line []byte, event *exchange.Event, err error) {
	err = each(ctx, files, stdin, stderr, func(found []byte, e *exchange.Event) error {
		if e.ID != id {
			return nil
		}
		line, event = bytes.Clone(found), e
		return errFound
	})
	switch {
	case errors.Is(err, errFound):
		return line, event, nil
	case err != nil:
		return nil, nil, err
	}
	return nil, nil, fmt.Errorf("no line with the id %q is in %s; ids are what pullpass audit shows below ID", id, strings.Join(files, ", "))
}

// Each calls one for every event of the files, in their order. one may keep the event.
func Each(ctx context.Context, files []string, stdin io.Reader, stderr io.Writer, one func(*exchange.Event) error) error {
	return each(ctx, files, stdin, stderr, func(_ []byte, e *exchange.Event) error { return one(e) })
}

func each(ctx context.Context, files []string, stdin io.Reader, stderr io.Writer, show func(line []byte, e *exchange.Event) error) error {
	search := Search{show: show}
	damaged := 0
	for _, name := range files {
		n, err := search.file(ctx, name, stdin)
		if err != nil {
			return fmt.Errorf("--audit-file: %w", err)
		}
		damaged += n
	}
	warnDamaged(stderr, damaged)
	return nil
}

func warnDamaged(stderr io.Writer, damaged int) {
	if damaged > 0 {
		fmt.Fprintf(stderr, "warning: %d lines are damaged, or no audit events, and were left out\n", damaged)
	}
}
