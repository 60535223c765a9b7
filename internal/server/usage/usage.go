// Package usage compares a policy with the audit log. It finds rules that granted nothing, denials
// that refused no request, and annotations and RepositoryAccess objects without effect.
package usage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/reach"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/server/audit"
)

// Request selects the data to compare.
type Request struct {
	Policy   *policy.Policy
	Accounts []reach.Accounts // the present accounts
	Files    []string         // of the audit log; - is standard input
	Since    time.Time        // earlier use counts as unused
}

// Report lists the unused parts of the policy. docs/who-can.schema.json describes each
// field.
type Report struct {
	APIVersion  string       `json:"apiVersion"`
	Kind        string       `json:"kind"`
	Since       time.Time    `json:"since"`
	From        time.Time    `json:"from,omitzero"` // time of the first line
	To          time.Time    `json:"to,omitzero"`   // time of the last line
	Lines       int          `json:"lines"`
	Rules       []Rule       `json:"rules"`
	Deny        []Rule       `json:"deny"`
	Annotations []Annotation `json:"annotations"`
	Requests    []Asked      `json:"requests"`
	Unknown     []string     `json:"unknown,omitempty"` // clusters whose ServiceAccounts and objects are not known, and why
}

// Rule is a rule that granted nothing, or a denial that refused no request.
type Rule struct {
	Name     string    `json:"name"`
	Origin   string    `json:"origin"`
	Cluster  string    `json:"cluster,omitempty"` // the cluster of its object
	LastUsed time.Time `json:"lastUsed,omitzero"` // before Since
}

// Annotation is an item of an annotation whose access was never used.
type Annotation struct {
	ServiceAccount string    `json:"serviceAccount"` // CLUSTER/NAMESPACE/NAME
	Annotation     string    `json:"annotation"`
	Item           string    `json:"item,omitempty"`  // empty: the annotation has no effect
	Fault          string    `json:"fault,omitempty"` // why it has no effect
	LastUsed       time.Time `json:"lastUsed,omitzero"`
}

// Asked is one pattern of a RepositoryAccess whose access was never used.
type Asked struct {
	Cluster  string    `json:"cluster"`
	Object   string    `json:"object"`          // NAMESPACE/NAME
	Item     string    `json:"item,omitempty"`  // empty: the object has no effect
	Fault    string    `json:"fault,omitempty"` // why it has no effect
	LastUsed time.Time `json:"lastUsed,omitzero"`
}

// byRequest is the selector of a rule with requests. Other rules have the key of an annotation in
// its place, and no key contains a space.
const byRequest = "a " + policy.KindRequest

// item is one requested pattern of an annotation or a RepositoryAccess.
type item struct {
	key      string
	object   string // NAMESPACE/NAME of the RepositoryAccess
	asked    policy.WrittenAllowance
	text     string
	lastUsed time.Time
}

// finder reads events one at a time. Its memory depends on the policy and the clusters, not on the
// number of lines.
type finder struct {
	keys   map[ruleName]string    // selector of each rule, or empty
	used   map[ruleName]time.Time // last use of each rule
	items  map[names.Object][]*item
	asked  map[string][]*item // of RepositoryAccess objects, each once, by cluster
	report *Report
}

// ruleName names a rule or a denial. A rule of an object belongs to a cluster. Rules of two
// clusters may have the same name.
type ruleName struct{ cluster, name string }

// written holds the rules and denials of the files, or of the objects of a cluster.
type written struct {
	cluster string
	rules   []policy.WrittenRule
	denials []policy.WrittenDenial
}

// Find reads the log to its end. Its error joins the errors of reading.
func Find(ctx context.Context, r Request, stdin io.Reader, stderr io.Writer) (*Report, error) {
	f := finder{keys: map[ruleName]string{}, used: map[ruleName]time.Time{}, items: map[names.Object][]*item{}, asked: map[string][]*item{}}
	f.report = &Report{
		APIVersion: strictyaml.AnswerVersion, Kind: "PolicyUnused", Since: r.Since.UTC(), Rules: []Rule{}, Deny: []Rule{}, Annotations: []Annotation{}, Requests: []Asked{},
	}
	all := []written{{"", r.Policy.WrittenRules(), r.Policy.WrittenDenials()}}
	for _, known := range r.Accounts {
		if objects := known.Objects.Policies; objects != nil {
			all = append(all, written{known.Cluster, objects.WrittenRules(), objects.WrittenDenials()})
		}
	}
	for _, w := range all {
		for _, rule := range w.rules {
			f.keys[ruleName{w.cluster, rule.Name}] = rule.Annotation
			if rule.Requests {
				f.keys[ruleName{w.cluster, rule.Name}] = byRequest
			}
		}
		for _, d := range w.denials {
			f.keys[ruleName{w.cluster, d.Name}] = ""
		}
	}
	for _, known := range r.Accounts {
		if known.Unknown != nil {
			f.report.Unknown = append(f.report.Unknown, known.Cluster+": "+known.Unknown.Error())
		}
		f.read(r.Policy.AnnotationKeys(), known)
		f.readRequests(known)
	}
	if err := audit.Each(ctx, r.Files, stdin, stderr, f.event); err != nil {
		return nil, err
	}
	if f.report.Lines == 0 {
		return nil, errors.New("no audit event was found, so nothing can be said of what is used")
	}
	f.conclude(all)
	return f.report, nil
}

// read records the patterns that the annotations of the ServiceAccounts request.
func (f *finder) read(keys []string, known reach.Accounts) {
	for _, account := range known.All {
		name := names.Object{Cluster: known.Cluster, Namespace: account.Namespace, Name: account.Name}
		for _, key := range keys {
			text, ok := account.Annotations[key]
			if !ok {
				continue
			}
			asked, err := policy.AnnotationItems(text)
			if err != nil {
				f.report.Annotations = append(f.report.Annotations, Annotation{ServiceAccount: name.String(), Annotation: key, Fault: err.Error()})
			}
			for _, a := range asked {
				f.items[name] = append(f.items[name], newItem(key, "", a))
			}
		}
	}
}

// readRequests records the patterns that RepositoryAccess objects request. An event does not name
// the object: if two objects request the same pattern, both count as used.
func (f *finder) readRequests(known reach.Accounts) {
	for _, r := range known.Objects.Requests {
		if r.Err() != nil {
			f.report.Requests = append(f.report.Requests, Asked{Cluster: known.Cluster, Object: r.Namespace() + "/" + r.Name(), Fault: r.Err().Error()})
		}
		for _, asked := range r.Written() {
			i := newItem(byRequest, asked.Object, asked.WrittenAllowance)
			f.asked[known.Cluster] = append(f.asked[known.Cluster], i)
			for _, account := range r.ServiceAccounts() {
				name := names.Object{Cluster: known.Cluster, Namespace: r.Namespace(), Name: account}
				f.items[name] = append(f.items[name], i)
			}
		}
	}
}

func newItem(key, object string, a policy.WrittenAllowance) *item {
	return &item{key: key, object: object, asked: a, text: string(a.Repositories[0]) + ":" + strings.ReplaceAll(a.Actions.String(), " ", "")}
}

func (f *finder) event(e *exchange.Event) error {
	f.report.Lines++
	if f.report.From.IsZero() || e.Time.Before(f.report.From) {
		f.report.From = e.Time.UTC()
	}
	if e.Time.After(f.report.To) {
		f.report.To = e.Time.UTC()
	}
	if e.Rule == "" {
		return nil
	}
	keys := map[string]bool{}
	for text := range strings.SplitSeq(e.Rule, ",") {
		name := ruleName{"", text}
		if strings.Contains(text, "/") {
			name.cluster = e.Cluster
		}
		key, ok := f.keys[name]
		if !ok {
			continue // of a rule that was removed
		}
		keys[key] = true
		if f.used[name].Before(e.Time) {
			f.used[name] = e.Time
		}
	}
	if e.ServiceAccount == nil || len(e.Granted) == 0 {
		return nil
	}
	items := f.items[names.Object{Cluster: e.Cluster, Namespace: e.Namespace, Name: e.ServiceAccount.Name}]
	for _, item := range items {
		if keys[item.key] && item.lastUsed.Before(e.Time) && item.isUsedFor(e.Granted) {
			item.lastUsed = e.Time
		}
	}
	return nil
}

func (i *item) isUsedFor(granted []string) bool {
	return slices.ContainsFunc(granted, func(text string) bool {
		scope, err := registryauth.ParseScope(text)
		return err == nil && scope.Type == "repository" && i.asked.Actions.Intersect(action.Of(scope.Actions)) != 0 &&
			i.asked.Repositories[0].Match(scope.Name, nil, new(int))
	})
}

func (f *finder) conclude(all []written) {
	report := f.report
	for _, w := range all {
		for _, r := range w.rules {
			if last := f.used[ruleName{w.cluster, r.Name}]; last.Before(report.Since) {
				report.Rules = append(report.Rules, Rule{r.Name, r.Origin, w.cluster, last.UTC()})
			}
		}
		for _, d := range w.denials {
			if last := f.used[ruleName{w.cluster, d.Name}]; last.Before(report.Since) {
				report.Deny = append(report.Deny, Rule{d.Name, d.Origin, w.cluster, last.UTC()})
			}
		}
	}
	for cluster, items := range f.asked {
		for _, i := range items {
			if i.lastUsed.Before(report.Since) {
				report.Requests = append(report.Requests, Asked{Cluster: cluster, Object: i.object, Item: i.text, LastUsed: i.lastUsed.UTC()})
			}
		}
	}
	slices.SortFunc(report.Requests, func(a, b Asked) int {
		return cmp.Or(strings.Compare(a.Cluster, b.Cluster), strings.Compare(a.Object, b.Object), strings.Compare(a.Item, b.Item))
	})
	for name, items := range f.items {
		for _, i := range items {
			if i.key != byRequest && i.lastUsed.Before(report.Since) {
				report.Annotations = append(report.Annotations, Annotation{ServiceAccount: name.String(), Annotation: i.key, Item: i.text, LastUsed: i.lastUsed.UTC()})
			}
		}
	}
	slices.SortFunc(report.Annotations, func(a, b Annotation) int {
		return cmp.Or(strings.Compare(a.ServiceAccount, b.ServiceAccount), strings.Compare(a.Annotation, b.Annotation), strings.Compare(a.Item, b.Item))
	})
}

// WriteText writes the report as text.
func WriteText(w io.Writer, r *Report) error {
	var out strings.Builder
	line := func(what, format string, args ...any) {
		fmt.Fprintf(&out, "%-12s %s\n", what, fmt.Sprintf(format, args...))
	}
	line("audit log", "%d events from %s to %s; unused is what none of them names since %s", r.Lines, r.From.Format(time.RFC3339), r.To.Format(time.RFC3339), r.Since.Format(time.RFC3339))
	if r.From.After(r.Since) {
		line("", "NOTE: the log begins after that: what was used before is not known")
	}
	for _, rule := range r.Rules {
		line("rule", "%s (%s) granted nothing%s", rule.Name, reach.Where(rule.Origin, rule.Cluster), lastUsed(rule.LastUsed))
	}
	for _, d := range r.Deny {
		line("deny rule", "%s (%s) refused no caller%s", d.Name, reach.Where(d.Origin, d.Cluster), lastUsed(d.LastUsed))
	}
	for _, a := range r.Annotations {
		if a.Fault != "" {
			line("annotation", "%s %s counts for nothing: %s", term.Words(a.ServiceAccount), a.Annotation, term.Line(a.Fault))
			continue
		}
		line("annotation", "%s %s: %s is not used%s", term.Words(a.ServiceAccount), a.Annotation, term.Words(a.Item), lastUsed(a.LastUsed))
	}
	for _, a := range r.Requests {
		if a.Fault != "" {
			line("request", "%s of cluster %s counts for nothing: %s", term.Words(a.Object), a.Cluster, term.Line(a.Fault))
			continue
		}
		line("request", "%s of cluster %s: %s is not used%s", term.Words(a.Object), a.Cluster, term.Words(a.Item), lastUsed(a.LastUsed))
	}
	if len(r.Rules)+len(r.Deny)+len(r.Annotations)+len(r.Requests) == 0 {
		line("unused", "nothing")
	}
	for _, unknown := range r.Unknown {
		line("not known", "ServiceAccounts and objects of cluster %s", term.Line(unknown))
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func lastUsed(last time.Time) string {
	if last.IsZero() {
		return ""
	}
	return ", last on " + last.Format(time.DateOnly)
}
