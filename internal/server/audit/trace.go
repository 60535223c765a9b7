package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/redact"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
)

// Trace holds the pushes and pulls of an image.
type Trace struct {
	Pushes []Push `json:"pushes"` // by time, as Pulls
	Pulls  []Pull `json:"pulls"`
	// Inexact counts the entries without a digest. The token endpoint sees only that a repository was
	// opened: its entries are related by service, repository and time. Those of the gateway, where an upstream
	// named no digest, are related to none.
	Inexact int `json:"-"`
	// Unknown counts the pushes whose outcome is unknown.
	Unknown int `json:"-"`
}

// Push is a manifest that was pushed, or a token with the right to push.
type Push struct {
	Time       time.Time `json:"time"`
	Identity   string    `json:"identity"`      // identities[].name, or CLUSTER/NAMESPACE/NAME of a ServiceAccount
	Run        string    `json:"run,omitempty"` // the id of the CI run
	Service    string    `json:"service"`       // registries[].service
	Repository string    `json:"repository"`
	Digest     string    `json:"digest,omitempty"`
	Tags       []string  `json:"tags,omitempty"`
	// OutcomeUnknown: the upstream had the manifest, and may have stored it.
	OutcomeUnknown bool `json:"outcomeUnknown,omitempty"`

	from source
}

// Pull is a manifest that was pulled, or a token with the right to pull.
type Pull struct {
	Time           time.Time `json:"time"`
	Cluster        string    `json:"cluster,omitempty"`
	Namespace      string    `json:"namespace,omitempty"`
	ServiceAccount string    `json:"serviceAccount,omitempty"`
	Pod            string    `json:"pod,omitempty"`
	Node           string    `json:"node,omitempty"`
	Identity       string    `json:"identity,omitempty"` // identities[].name of a caller that is not a ServiceAccount
	Run            string    `json:"run,omitempty"`
	Service        string    `json:"service"`
	Repository     string    `json:"repository"`
	Digest         string    `json:"digest,omitempty"`

	from source
}

// source is what else is known of the caller.
type source struct{ podUID, project string }

// TraceQuery is the start of a trace: a repository, perhaps with a tag or a digest; a CI run; or a pod.
type TraceQuery struct {
	Repository, Tag, Digest string
	Run                     string // IDENTITY/ID
	Pod                     string // CLUSTER/NAMESPACE/NAME or a UID
	Service                 string // if set, only the pushes and pulls there
}

// ParseReference reads REPOSITORY[:TAG][@DIGEST]. Beside a digest, the tag does not count.
func ParseReference(text string) (q TraceQuery, err error) {
	name, digested, hasDigest := strings.Cut(text, "@")
	q.Repository, q.Digest = name, digested
	if colon := strings.LastIndexByte(name, ':'); colon > strings.LastIndexByte(name, '/') {
		q.Repository, q.Tag = name[:colon], name[colon+1:]
		if q.Tag == "" {
			return TraceQuery{}, fmt.Errorf("%q has no tag after its colon", text)
		}
	}
	if hasDigest && !names.IsDigest(digested) {
		return TraceQuery{}, fmt.Errorf("%q: %q is not a digest, such as sha256:HEX", text, digested)
	}
	if q.Repository == "" {
		return TraceQuery{}, fmt.Errorf("%q names no repository", text)
	}
	return q, nil
}

// move is a push or a pull.
type move struct {
	event      *exchange.Event
	isPush     bool
	repository string
	digest     string // empty: the token endpoint does not know it, or the upstream did not name it
	tags       []string
	isUnknown  bool // whether the push was done
}

// place is where a move without a digest is related to others: another registry may have a repository of
// the same name.
type place struct{ service, repository string }

func (m *move) place() place { return place{m.event.Service, m.repository} }

// moves returns the pushes and pulls of an event. A token with both rights is a push and a pull.
func (q *TraceQuery) moves(e *exchange.Event) (all []move) {
	if q.Service != "" && e.Service != q.Service {
		return nil
	}
	if g := e.Gateway; g != nil {
		isDone, isUnknown := outcome(e)
		if !isDone && !isUnknown {
			return nil
		}
		m := move{event: e, isPush: g.Method == http.MethodPut, repository: g.Repository, digest: g.Digest, tags: slices.Clone(g.Tags), isUnknown: isUnknown}
		switch {
		case !names.IsDigest(g.Reference):
			m.tags = append(m.tags, g.Reference)
		case isDone: // else the client may have sent something else under this digest
			m.digest = g.Reference
		}
		return []move{m}
	}
	if e.Status != http.StatusOK {
		return nil
	}
	for _, text := range e.Granted {
		scope, err := registryauth.ParseScope(text)
		if err != nil || scope.Type != "repository" {
			continue
		}
		for _, action := range []string{"push", "pull"} {
			if slices.Contains(scope.Actions, action) {
				all = append(all, move{event: e, isPush: action == "push", repository: scope.Name})
			}
		}
	}
	return all
}

// outcome reports whether a request to the gateway pushed or pulled a manifest, or whether that is
// unknown: an upstream that was sent a manifest may have stored it, though its answer did not come.
func outcome(e *exchange.Event) (isDone, isUnknown bool) {
	g, isGood := e.Gateway, e.Status < http.StatusMultipleChoices
	switch {
	case g.Kind != "manifest" || g.Method == http.MethodDelete:
		return false, false
	case g.Method != http.MethodPut: // the client of a redirect pulls at the storage
		return e.Result == exchange.ResultGranted && (isGood || e.Status == http.StatusTemporaryRedirect), false
	case isGood: // also if the answer broke off
		return true, false
	}
	isRefused := g.UpstreamStatus >= http.StatusBadRequest && g.UpstreamStatus < http.StatusInternalServerError
	return false, g.Digest != "" && !isRefused // of a body that the upstream was sent whole
}

// tracer relates pushes and pulls.
type tracer struct {
	query    TraceQuery
	isNamed  func(*move) bool // the query names the move
	gateways map[string]bool  // services of the gateway, whose tokens open only the gateway
	digests  map[string]bool  // of the moves that the query names
	// Of the moves without a digest that the query names: the time of the first push, or of the last pull.
	limits map[place]time.Time
}

// NewTrace relates the pushes and pulls of a log. It reads the log twice: each time, events calls
// its argument for every event.
func NewTrace(q TraceQuery, events func(one func(*exchange.Event) error) error) (*Trace, error) {
	isNamed, err := q.names()
	if err != nil {
		return nil, err
	}
	t := tracer{query: q, isNamed: isNamed, gateways: map[string]bool{}, digests: map[string]bool{}, limits: map[place]time.Time{}}
	var undigested []move
	err = events(func(e *exchange.Event) error {
		if e.Gateway != nil {
			t.gateways[e.Service] = true
		}
		for _, m := range q.moves(e) {
			switch {
			case !t.isNamed(&m):
			case m.digest != "":
				t.digests[m.digest] = true
			case q.Repository == "": // else all of them belong to the trace
				undigested = append(undigested, m)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	t.limit(undigested)
	found := &Trace{Pushes: []Push{}, Pulls: []Pull{}}
	seen := map[string]bool{}
	err = events(func(e *exchange.Event) error {
		for _, m := range q.moves(e) {
			if !t.has(&m) {
				continue
			}
			if m.isPush && e.Gateway != nil {
				found.add(&m)
				continue
			}
			// A pull asks for its manifest twice, and a token is handed out again.
			key := strings.Join([]string{strconv.FormatBool(m.isPush), m.repository, cmp.Or(m.digest, strings.Join(m.tags, " ")), cmp.Or(tokenOf(e), e.ID)}, " ")
			if !seen[key] {
				seen[key] = true
				found.add(&m)
			}
		}
		return nil
	})
	slices.SortStableFunc(found.Pushes, func(a, b Push) int { return a.Time.Compare(b.Time) })
	slices.SortStableFunc(found.Pulls, func(a, b Pull) int { return a.Time.Compare(b.Time) })
	return found, err
}

// TraceFiles relates the pushes and pulls of files.
func TraceFiles(ctx context.Context, q TraceQuery, files []string, stderr io.Writer) (*Trace, error) {
	return NewTrace(q, func(one func(*exchange.Event) error) error {
		defer func() { stderr = io.Discard }() // the second reading finds the same damages
		return Each(ctx, files, nil, stderr, one)
	})
}

// limit sets the limits by the moves without a digest that the query names.
func (t *tracer) limit(named []move) {
	for _, m := range named {
		at := m.event.Time
		limit, ok := t.limits[m.place()]
		if !t.gateways[m.event.Service] && (!ok || m.isPush && at.Before(limit) || !m.isPush && at.After(limit)) {
			t.limits[m.place()] = at
		}
	}
}

// has reports whether a move belongs to the trace.
func (t *tracer) has(m *move) bool {
	switch {
	case t.query.Repository != "" && m.repository != t.query.Repository:
		return false
	case m.digest == "" && m.event.Gateway != nil: // it is related to none
		return t.isNamed(m)
	case m.digest == "" && t.gateways[m.event.Service]: // the gateway's own lines say more
		return false
	case t.isNamed(m):
		return true
	case t.query.Run != "" && m.isPush || t.query.Pod != "" && !m.isPush: // of others
		return false
	case m.digest != "":
		return t.digests[m.digest]
	case t.query.Repository != "":
		return true
	}
	// The token of a pull may be older than the push.
	limit, ok := t.limits[m.place()]
	if m.isPush {
		return !m.event.Time.After(limit.Add(signing.MaxLifetime))
	}
	return ok && !m.event.Time.Add(signing.MaxLifetime).Before(limit)
}

// names returns a function that recognizes the moves that the query names.
func (q *TraceQuery) names() (func(*move) bool, error) {
	switch {
	case q.Run != "":
		name, id, _ := strings.Cut(q.Run, "/")
		if name == "" || id == "" {
			return nil, fmt.Errorf("%q is not IDENTITY/ID of a CI run", q.Run)
		}
		return func(m *move) bool {
			i := m.event.Identity
			return m.isPush && i != nil && i.Name == name && i.Run == id
		}, nil
	case q.Pod != "":
		is, err := ofPod(q.Pod)
		if err != nil {
			return nil, fmt.Errorf("%w or a UID of a pod", err)
		}
		return func(m *move) bool { return !m.isPush && is(m.event) }, nil
	case q.Repository == "":
		return nil, errors.New("a trace starts from a repository, a CI run or a pod")
	}
	return func(m *move) bool {
		return m.repository == q.Repository &&
			(q.Tag == "" || q.Digest != "" || slices.ContainsFunc(m.tags, func(tag string) bool { return redact.Names(tag, q.Tag) })) && (q.Digest == "" || m.digest == q.Digest)
	}, nil
}

func tokenOf(e *exchange.Event) string {
	if e.Gateway != nil {
		return e.Gateway.TokenID
	}
	return e.IssuedID
}

func (t *Trace) add(m *move) {
	e := m.event
	if m.digest == "" {
		t.Inexact++
	}
	var from source
	var identity, run, account, pod, node string
	if e.ServiceAccount != nil {
		account = e.ServiceAccount.Name
	}
	if e.Pod != nil {
		pod, from.podUID = e.Pod.Name, e.Pod.UID
	}
	if e.Node != nil {
		node = e.Node.Name
	}
	if i := e.Identity; i != nil {
		identity, run, from.project = i.Name, i.Run, i.Project
	}
	if !m.isPush {
		t.Pulls = append(t.Pulls, Pull{e.Time, e.Cluster, e.Namespace, account, pod, node, identity, run, e.Service, m.repository, m.digest, from})
		return
	}
	if account != "" {
		identity = names.Object{Cluster: e.Cluster, Namespace: e.Namespace, Name: account}.String()
	}
	if m.isUnknown {
		t.Unknown++
	}
	t.Pushes = append(t.Pushes, Push{e.Time, identity, run, e.Service, m.repository, m.digest, m.tags, m.isUnknown, from})
}

// Write writes a table of the pushes and one of the pulls.
func (t *Trace) Write(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(cells ...string) {
		for i := range cells {
			cells[i] = cmp.Or(cells[i], "-")
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	row("PUSHED", "BY", "RUN", "SERVICE", "REPOSITORY", "DIGEST", "TAGS")
	for _, p := range t.Pushes {
		doubt := ""
		if p.OutcomeUnknown {
			doubt = "?"
		}
		row(p.Time.UTC().Format(time.RFC3339), term.Words(p.Identity), term.Words(p.Run), term.Words(p.Service), term.Words(p.Repository), term.Words(p.Digest, doubt), term.Words(p.Tags...))
	}
	fmt.Fprintln(w)
	row("PULLED", "BY", "POD", "NODE", "SERVICE", "REPOSITORY", "DIGEST")
	for _, p := range t.Pulls {
		by := term.Words(p.Identity, p.Run)
		if p.ServiceAccount != "" {
			by = term.Words(names.Object{Cluster: p.Cluster, Namespace: p.Namespace, Name: p.ServiceAccount}.String())
		}
		row(p.Time.UTC().Format(time.RFC3339), by, term.Words(p.Pod), term.Words(p.Node), term.Words(p.Service), term.Words(p.Repository), term.Words(p.Digest))
	}
	return w.Flush()
}

// Target is what can be revoked, as a flag of pullpass revoke.
type Target struct{ Flag, Value string }

// Targets returns what ends the access of those who pushed and pulled, each once: CI runs, or else
// their projects; pods, or else their ServiceAccounts. It counts the entries of the others.
func (t *Trace) Targets() (all []Target, others int) {
	add := func(flag, value string, known ...string) bool {
		target := Target{flag, value}
		if slices.Contains(known, "") {
			return false
		}
		if !slices.Contains(all, target) {
			all = append(all, target)
		}
		return true
	}
	count := func(isAdded bool) {
		if !isAdded {
			others++
		}
	}
	for _, p := range t.Pushes {
		switch {
		case add("pod-uid", p.from.podUID, p.from.podUID):
		case strings.Contains(p.Identity, "/"):
			add("service-account", p.Identity)
		default:
			count(add("run", p.Identity+"/"+p.Run, p.Identity, p.Run) || add("project", p.Identity+"/"+p.from.project, p.Identity, p.from.project))
		}
	}
	for _, p := range t.Pulls {
		count(add("pod-uid", p.from.podUID, p.from.podUID) ||
			add("service-account", names.Object{Cluster: p.Cluster, Namespace: p.Namespace, Name: p.ServiceAccount}.String(), p.ServiceAccount) ||
			add("run", p.Identity+"/"+p.Run, p.Identity, p.Run) || add("project", p.Identity+"/"+p.from.project, p.Identity, p.from.project))
	}
	return all, others
}
