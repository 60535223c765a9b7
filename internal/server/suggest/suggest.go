// Package suggest makes the smallest policy that grants what the lines of an audit log asked for.
package suggest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/pullsecrets"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/server/audit"
)

// Config says what is suggested.
type Config struct {
	// FromNothing suggests everything that was granted or refused, instead of what was refused alone.
	FromNothing bool
	// AtLeast is the number of lines from which a pattern replaces repositories, or {namespace} a name.
	AtLeast  int
	Profiles Profiles
	// Grants returns what the present policy grants; nil: nothing.
	Grants func(e *exchange.Event, scope registryauth.Scope) []string
}

// Profiles has the profile of each identity of the configuration, by its name.
type Profiles map[string]identity.Profile

// Suggestion gathers lines, in any order. Its memory grows with the callers and repositories, not
// with the lines.
type Suggestion struct {
	config Config
	needs  map[place]*need
	// Skipped counts lines for which no rule can be suggested, by the reason.
	Skipped map[string]int
}

// subject is a ServiceAccount, or a project of an identity on one ref.
type subject struct {
	cluster, namespace, account string
	identity, claim, project    string
	refs                        string // as conditions of claims: , ref: ["main"]
}

// place is what a subject asked for; actions are needed there.
type place struct {
	subject
	service, repository string
}

type need struct {
	actions action.Set
	lines   int
	first   []string // the ids of the first lines by their ids, at most maxShown
	claims  map[string]string
}

const maxShown = 3

// New returns a Suggestion without lines.
func New(c Config) *Suggestion {
	return &Suggestion{config: c, needs: map[place]*need{}, Skipped: map[string]int{}}
}

// Add reads a line.
func (s *Suggestion) Add(e *exchange.Event) error {
	isDenied := e.Reason == string(refusal.SubjectDenied)
	if e.Gateway != nil || e.Retry || len(e.Requested) == 0 || e.Status != http.StatusOK && !isDenied {
		return nil
	}
	who, why := s.subject(e)
	switch {
	case e.Service == "":
		why = "their registry is not known"
	case isDenied:
		why = "a denial refuses the caller"
	}
	if why != "" {
		s.Skipped[why]++
		return nil
	}
	granted := map[string][]string{}
	for _, text := range e.Granted {
		if scope, err := registryauth.ParseScope(text); err == nil {
			granted[scope.Type+" "+scope.Name] = scope.Actions
		}
	}
	for _, text := range e.Requested {
		scope, err := registryauth.ParseScope(text)
		if err != nil {
			continue // the line says so
		}
		has := granted[scope.Type+" "+scope.Name]
		if s.config.FromNothing {
			has = nil
		} else if s.config.Grants != nil {
			has = append(slices.Clone(has), s.config.Grants(e, scope)...)
		}
		missing := slices.DeleteFunc(slices.Clone(scope.Actions), func(a string) bool { return slices.Contains(has, a) })
		switch set := action.Of(missing); {
		case len(missing) == 0:
		case scope.Type != "repository" || set&action.Other != 0 || !isPlain(scope.Name):
			s.Skipped["they ask for something other than pull, push or delete on a repository"]++
		default:
			s.note(place{who, e.Service, scope.Name}, set, e)
		}
	}
	return nil
}

// isPlain reports whether a repository's name is a pattern for itself alone.
func isPlain(name string) bool {
	parsed, err := pattern.Parse(name)
	return err == nil && !strings.ContainsAny(name, "*{}") && string(parsed) == name
}

func (s *Suggestion) note(at place, actions action.Set, e *exchange.Event) {
	n := s.needs[at]
	if n == nil {
		n = &need{}
		s.needs[at] = n
	}
	n.actions |= actions
	n.lines++
	id := term.Plain(e.ID) // it becomes a part of a comment
	i, _ := slices.BinarySearch(n.first, id)
	if n.first = slices.Insert(n.first, i, id); len(n.first) > maxShown {
		n.first = n.first[:maxShown]
	}
	if n.first[0] == id && e.Identity != nil {
		n.claims = e.Identity.Claims
	}
}

// subject returns the caller of a line, or why none can be named.
func (s *Suggestion) subject(e *exchange.Event) (who subject, why string) {
	switch i := e.Identity; {
	case i != nil:
		profile := s.config.Profiles[i.Name]
		claim := profile.ProjectClaim()
		if claim == "" || i.Project == "" || strings.Contains(i.Project, "*") {
			return subject{}, "the configuration has no identity of their caller, or its tokens name no project"
		}
		refs, isKnown := refsOf(profile, i.Claims)
		if !isKnown {
			return subject{}, "the line does not say which branch or tag the job runs"
		}
		return subject{identity: i.Name, claim: claim, project: i.Project, refs: refs}, ""
	case e.ServiceAccount == nil:
		return subject{}, "the caller is anonymous"
	case strings.Contains(e.Cluster+e.Namespace+e.ServiceAccount.Name, "*"):
		return subject{}, "no ServiceAccount can have the caller's name"
	}
	return subject{cluster: e.Cluster, namespace: e.Namespace, account: e.ServiceAccount.Name}, ""
}

// refsOf returns conditions for the ref of a job. Without its ref, a rule would be for all branches
// of the project. A line has no value of more than 256 bytes.
func refsOf(p identity.Profile, claims map[string]string) (conditions string, isKnown bool) {
	for i, name := range p.RefClaims() {
		switch value := claims[name]; {
		case strings.Contains(value, "*"), value == "" && i == 0:
			return "", false
		case value != "":
			conditions += fmt.Sprintf(", %s: [%q]", name, value)
		}
	}
	return conditions, true
}

// support is what speaks for a pattern.
type support struct {
	lines                    int
	repositories, namespaces map[string]bool
}

// claimFor is a pattern for which lines speak: for all callers of a cluster if who is empty.
type claimFor struct {
	who              subject
	cluster, service string
	actions          action.Set
	pattern          string
}

// widths returns the patterns that could stand for a place: {namespace} and **, ** for this caller
// alone, and {namespace}.
func widths(at place, actions action.Set) (own, below, named claimFor) {
	under := func(name string) string {
		if i := strings.LastIndexByte(name, '/'); i > 0 {
			return name[:i] + "/**"
		}
		return ""
	}
	below = claimFor{at.subject, at.cluster, at.service, actions, under(at.repository)}
	if rest, ok := strings.CutPrefix(at.repository, at.namespace+"/"); ok && at.namespace != "" {
		relative := "{namespace}/" + rest
		own = claimFor{subject{}, at.cluster, at.service, actions, under(relative)}
		named = claimFor{subject{}, at.cluster, at.service, actions, relative}
	}
	return own, below, named
}

// choose returns the pattern for each place.
func (s *Suggestion) choose() map[place]string {
	all := map[claimFor]*support{}
	for at, n := range s.needs {
		own, below, named := widths(at, n.actions)
		for _, c := range []claimFor{own, below, named} {
			if c.pattern == "" {
				continue
			}
			if all[c] == nil {
				all[c] = &support{repositories: map[string]bool{}, namespaces: map[string]bool{}}
			}
			all[c].lines += n.lines
			// Below {namespace}, the same name in two namespaces is one.
			all[c].repositories[strings.TrimPrefix(at.repository, at.namespace+"/")] = true
			all[c].namespaces[at.namespace] = true
		}
	}
	is := func(c claimFor, repositories, namespaces int) bool {
		found := all[c]
		return found != nil && found.lines >= s.config.AtLeast && len(found.repositories) >= repositories && len(found.namespaces) >= namespaces
	}
	chosen := map[place]string{}
	for at, n := range s.needs {
		switch own, below, named := widths(at, n.actions); {
		case is(own, 2, 2):
			chosen[at] = own.pattern
		case is(below, 2, 1):
			chosen[at] = below.pattern
		case is(named, 1, 2):
			chosen[at] = named.pattern
		default:
			chosen[at] = at.repository
		}
	}
	return chosen
}

// draft is a rule.
type draft struct {
	service  string
	allow    []policy.Allowance
	subjects []subject
	lines    int
	first    []string
}

// rules returns the rules in a fixed order.
func (s *Suggestion) rules() []*draft {
	chosen := s.choose()
	type holder struct {
		subject
		service string
	}
	allowed := map[holder]map[string]action.Set{}
	for at, text := range chosen {
		h := holder{at.subject, at.service}
		if allowed[h] == nil {
			allowed[h] = map[string]action.Set{}
		}
		allowed[h][text] |= s.needs[at].actions
	}
	drafts := map[string]*draft{}
	of := map[holder]*draft{}
	for h, patterns := range allowed {
		var allow []policy.Allowance
		key := h.service + "\n" + h.identity
		for _, text := range slices.Sorted(maps.Keys(patterns)) {
			names := patterns[text].Names()
			key += "\n" + text + " " + strings.Join(names, ",")
			last := len(allow) - 1
			if last >= 0 && slices.EqualFunc(allow[last].Actions, names, func(a policy.ActionName, b string) bool { return string(a) == b }) {
				allow[last].Repositories = append(allow[last].Repositories, text)
				continue
			}
			entry := policy.Allowance{Repositories: []string{text}}
			for _, name := range names {
				entry.Actions = append(entry.Actions, policy.ActionName(name))
			}
			allow = append(allow, entry)
		}
		if drafts[key] == nil {
			drafts[key] = &draft{service: h.service, allow: allow}
		}
		of[h] = drafts[key]
		drafts[key].subjects = append(drafts[key].subjects, h.subject)
	}
	for at, n := range s.needs {
		d := of[holder{at.subject, at.service}]
		d.lines += n.lines
		d.first = append(d.first, n.first...)
	}
	for _, d := range drafts {
		slices.SortFunc(d.subjects, compareSubjects)
		slices.Sort(d.first)
		d.first = slices.Compact(d.first)
		d.first = d.first[:min(len(d.first), maxShown)]
	}
	return slices.SortedFunc(maps.Values(drafts), func(a, b *draft) int {
		return cmp.Or(strings.Compare(a.service, b.service), compareSubjects(a.subjects[0], b.subjects[0]))
	})
}

func compareSubjects(a, b subject) int {
	return cmp.Or(strings.Compare(a.cluster, b.cluster), strings.Compare(a.namespace, b.namespace), strings.Compare(a.account, b.account),
		strings.Compare(a.identity, b.identity), strings.Compare(a.refs, b.refs), strings.Compare(a.project, b.project))
}

// Policy returns an AccessPolicy with comments, or "" if nothing is missing. The same lines in any
// order give the same text.
func (s *Suggestion) Policy() string {
	rules := s.rules()
	if len(rules) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: %s\nkind: %s\nrules:\n", strictyaml.CurrentVersion, policy.Kind)
	for i, d := range rules {
		fmt.Fprintf(&b, "# Requested %d times, as in %s\n", d.lines, strings.Join(d.first, ", "))
		if wide := d.wide(); len(wide) > 0 {
			fmt.Fprintf(&b, "# Wider than the lines, by **: %s\n", strings.Join(wide, ", "))
		}
		fmt.Fprintf(&b, "- name: suggested-%d\n  subjects:\n", i+1)
		for _, line := range d.subjectLines() {
			fmt.Fprintf(&b, "  - %s\n", line)
		}
		fmt.Fprintf(&b, "  services: [%q]\n  allow:\n", d.service)
		for _, a := range d.allow {
			fmt.Fprintf(&b, "  - {repositories: [%s], actions: [%s]}\n", quoted(a.Repositories), quoted(a.Actions))
		}
	}
	return b.String()
}

// wide returns the patterns that grant more than the lines asked for.
func (d *draft) wide() (all []string) {
	for _, a := range d.allow {
		for _, text := range a.Repositories {
			if strings.Contains(text, "**") {
				all = append(all, text)
			}
		}
	}
	return all
}

// subjectLines joins the namespaces with the same ServiceAccounts, and the projects on one ref.
// Together they name the subjects exactly.
func (d *draft) subjectLines() (all []string) {
	type key struct{ cluster, accounts, identity, claim, refs string }
	accounts := map[[2]string][]string{}
	for _, s := range d.subjects {
		accounts[[2]string{s.cluster, s.namespace}] = append(accounts[[2]string{s.cluster, s.namespace}], s.account)
	}
	joined := map[key][]string{} // namespaces or projects
	var order []key
	for _, s := range d.subjects {
		k, member := key{cluster: s.cluster, accounts: quoted(accounts[[2]string{s.cluster, s.namespace}])}, s.namespace
		if s.identity != "" {
			k, member = key{identity: s.identity, claim: s.claim, refs: s.refs}, s.project
		}
		if joined[k] == nil {
			order = append(order, k)
		}
		if !slices.Contains(joined[k], member) {
			joined[k] = append(joined[k], member)
		}
	}
	for _, k := range order {
		if k.identity == "" {
			all = append(all, fmt.Sprintf("{clusters: [%q], namespaces: [%s], serviceAccounts: [%s]}", k.cluster, quoted(joined[k]), k.accounts))
			continue
		}
		all = append(all, fmt.Sprintf("{identities: [%q], claims: {%s: [%s]%s}}", k.identity, k.claim, quoted(joined[k]), k.refs))
	}
	return all
}

func quoted[T ~string](list []T) string {
	all := make([]string, len(list))
	for i, s := range list {
		all[i] = fmt.Sprintf("%q", s)
	}
	return strings.Join(all, ", ")
}

// Tests returns AccessPolicyTests, one for each caller and repository; "" if there are none.
func (s *Suggestion) Tests() string {
	if len(s.needs) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: %s\nkind: AccessPolicyTests\ntests:\n", strictyaml.CurrentVersion)
	places := slices.SortedFunc(maps.Keys(s.needs), func(a, b place) int {
		return cmp.Or(strings.Compare(a.service, b.service), compareSubjects(a.subject, b.subject), strings.Compare(a.repository, b.repository))
	})
	for i, at := range places {
		n := s.needs[at]
		scope := registryauth.Scope{Type: "repository", Name: at.repository, Actions: n.actions.Names()}.String()
		identity := fmt.Sprintf("{cluster: %q, namespace: %q, serviceAccount: %q}", at.cluster, at.namespace, at.account)
		if at.identity != "" {
			all := map[string]string{at.claim: at.project} // of a project that is its sub, the log has no claim
			maps.Copy(all, n.claims)
			var claims []string
			for _, name := range slices.Sorted(maps.Keys(all)) {
				claims = append(claims, fmt.Sprintf("%q: %q", name, all[name]))
			}
			identity = fmt.Sprintf("{provider: %q, claims: {%s}}", at.identity, strings.Join(claims, ", "))
		}
		fmt.Fprintf(&b, "- name: %q\n  identity: %s\n  service: %q\n  scopes: [%q]\n  expect: {granted: [%q]}\n",
			fmt.Sprintf("%d: line %s", i+1, n.first[0]), identity, at.service, scope, scope)
	}
	return b.String()
}

// Of reads the lines of files once, also of standard input.
func Of(ctx context.Context, c Config, files []string, stdin io.Reader, stderr io.Writer) (*Suggestion, error) {
	s := New(c)
	err := audit.Each(ctx, files, stdin, stderr, s.Add)
	return s, err
}

// GrantsOf returns what a policy grants to ServiceAccounts by their names. Annotations and labels are
// not in the log, so rules that read them grant nothing. issuers are those of the clusters, by name.
func GrantsOf(p *policy.Policy, issuers map[string]string) func(*exchange.Event, registryauth.Scope) []string {
	return func(e *exchange.Event, scope registryauth.Scope) []string {
		if e.ServiceAccount == nil {
			return nil
		}
		id := &oidc.Identity{
			Cluster: e.Cluster, Issuer: issuers[e.Cluster], Subject: oidc.ServiceAccountSubject(e.Namespace, e.ServiceAccount.Name),
			Kubernetes: oidc.KubernetesIdentity{Namespace: e.Namespace, ServiceAccount: oidc.ObjectRef{Name: e.ServiceAccount.Name}},
		}
		return p.Decide(policy.Subject{Identity: id}, e.Service, []registryauth.Scope{scope}).Scopes[0].Granted
	}
}

// MaxInventoryBytes is the size of the largest inventory that is read.
const MaxInventoryBytes = 64 << 20

// AddInventory reads the output of pullpass pull-secrets -o json: each pull of a workload counts as a
// request.
func (s *Suggestion) AddInventory(data []byte) error {
	var inventory struct {
		Kind, Cluster string
		Registries    []struct{ Host, Service string }
		Rows          []struct {
			Kind, Namespace, Name, ServiceAccount string
			Pulls                                 []struct {
				Registry, Repository string
				Granted              bool
			}
		}
	}
	if err := json.Unmarshal(data, &inventory); err != nil {
		return err
	}
	if inventory.Kind != "PullSecretReport" {
		return errors.New("it is not the output of pullpass pull-secrets -o json")
	}
	services := map[string]string{}
	for _, r := range inventory.Registries {
		services[r.Host] = r.Service
	}
	for _, row := range inventory.Rows {
		for _, pull := range row.Pulls {
			e := pullOf(row.Kind, row.Namespace, row.Name, pull.Repository)
			e.Service, e.Cluster, e.ServiceAccount = services[pull.Registry], inventory.Cluster, &exchange.Object{Name: row.ServiceAccount}
			if pull.Granted {
				e.Granted = e.Requested
			}
			if err := s.Add(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// Manifests says what manifests leave open.
type Manifests struct {
	Cluster   string
	Namespace string            // of objects that name none
	Services  map[string]string // by the registry's host
}

// AddManifests counts each image of the workloads as a request.
func (s *Suggestion) AddManifests(workloads []pullsecrets.Workload, m Manifests) error {
	for _, w := range workloads {
		namespace := cmp.Or(w.Namespace, m.Namespace)
		if namespace == "" {
			s.Skipped["their manifest names no namespace, and --namespace is not set"] += len(w.Images)
			continue
		}
		for _, image := range w.Images {
			e := pullOf(w.Kind, namespace, w.Name, image.Repository)
			e.Service, e.Cluster, e.ServiceAccount = m.Services[image.Registry], m.Cluster, &exchange.Object{Name: w.Account}
			if err := s.Add(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// pullOf returns the request that a workload's pull makes.
func pullOf(kind, namespace, name, repository string) *exchange.Event {
	scope := registryauth.Scope{Type: "repository", Name: repository, Actions: []string{"pull"}}
	return &exchange.Event{ID: kind + "/" + namespace + "/" + name, Status: http.StatusOK, Namespace: namespace, Requested: []string{scope.String()}}
}
