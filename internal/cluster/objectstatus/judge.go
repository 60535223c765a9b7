package objectstatus

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/cluster/kube"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/policy/policyobjects"
)

// Texts in a status are short: the author of one object causes up to 128 of them.
const (
	maxReasonBytes  = 500
	maxRemedyBytes  = 400
	maxMessageBytes = 1000
	maxRules        = 8
	maxServices     = 16
)

// judge computes the status of objects by the current decisions.
type judge struct {
	policy   *policy.Policy
	services []string
	cluster  string
	issuer   string
	within   []pattern.Pattern
	allows   map[string][]pattern.Pattern // by rule
	counts   map[string]bool              // AccessPolicies with a part that counts
	account  func(namespace, name string) (kube.ServiceAccount, bool, error)
}

// newJudge looks at all AccessPolicies.
func (c *Controller) newJudge(serving *Serving) (*judge, error) {
	j := &judge{
		policy: serving.Policy, services: serving.Services, cluster: c.cluster, issuer: c.issuer, within: c.within,
		allows: map[string][]pattern.Pattern{}, counts: map[string]bool{}, account: c.objects.KnownAccount,
	}
	for _, rule := range j.policy.WrittenRules() {
		for _, allowed := range rule.Allow {
			j.allows[rule.Name] = append(j.allows[rule.Name], allowed.Repositories...)
		}
	}
	nobody := policy.Subject{Identity: &oidc.Identity{Cluster: c.cluster}, Objects: policy.Objects{Policies: c.objects.Policies()}}
	_, trace := j.policy.Explain(nobody, "", nil)
	for _, t := range trace.Rules {
		j.noteCounts(t.Name)
	}
	for _, t := range trace.Deny {
		j.noteCounts(t.Name)
	}
	refs, err := c.objects.PolicyObjects()
	if err != nil {
		return nil, err
	}
	for _, ref := range refs {
		if ref.Namespace != "" {
			continue
		}
		if o, ok := c.objects.PolicyObject(ref); ok && o.Remembered != nil {
			for rule, texts := range o.Allows {
				for _, text := range texts {
					if allowed, err := pattern.Parse(text); err == nil {
						j.allows[rule] = append(j.allows[rule], allowed)
					}
				}
			}
		}
	}
	return j, nil
}

func (j *judge) noteCounts(rule string) {
	if object, _, ok := strings.Cut(rule, "/"); ok { // rules from files have no /
		j.counts[object] = true
	}
}

// status returns the status that the object should have, without the times of its conditions. An
// error means that it is not known now, or that ctx ended.
func (j *judge) status(ctx context.Context, o *kube.PolicyObject) (*policyobjects.RepositoryAccessStatus, error) {
	s := &policyobjects.RepositoryAccessStatus{ObservedGeneration: o.Generation}
	switch {
	case o.Policy != nil:
		s.Conditions = []policyobjects.Condition{j.acceptedPolicy(o)}
		return s, nil
	case o.Beyond:
		s.Conditions = []policyobjects.Condition{
			condition(o, policyobjects.Accepted, "False", "TooMany", "nothing of it counts: older RepositoryAccess objects take all that is kept of one namespace; delete some of them, or write fewer and shorter ones"),
			condition(o, policyobjects.Granted, "False", "TooMany", "nothing of it counts, see Accepted"),
		}
		return s, nil
	}
	accepted := condition(o, policyobjects.Accepted, "True", "Valid", "it counts, as far as rules with requests: true allow")
	if err := o.Request.Err(); err != nil {
		accepted = condition(o, policyobjects.Accepted, "False", "Invalid", "nothing of it counts: "+err.Error())
		s.Conditions = []policyobjects.Condition{accepted, condition(o, policyobjects.Granted, "False", "Invalid", "nothing of it counts, see Accepted")}
		return s, nil
	}
	accounts := make([]knownAccount, len(o.Asks.ServiceAccounts))
	for i, name := range o.Asks.ServiceAccounts {
		known, isThere, err := j.account(o.Namespace, name)
		if err != nil {
			return nil, err
		}
		accounts[i] = knownAccount{name, isThere, policy.Subject{
			Identity: &oidc.Identity{
				Cluster: j.cluster, Issuer: j.issuer, Subject: oidc.ServiceAccountSubject(o.Namespace, name),
				Kubernetes: oidc.KubernetesIdentity{Namespace: o.Namespace, ServiceAccount: oidc.ObjectRef{Name: name}},
			},
			Annotations: known.Annotations, NamespaceLabels: known.NamespaceLabels, Objects: known.Objects, NoToken: true,
		}}
	}
	denied, spent := true, 0
	for _, text := range o.Asks.Repositories {
		found, isDenied, err := j.repository(ctx, o, accounts, text, &spent)
		if err != nil {
			return nil, err
		}
		s.Repositories = append(s.Repositories, found)
		denied = denied && isDenied
	}
	state := granted(o, s.Repositories, denied)
	if spent > maxSteps {
		state = condition(o, policyobjects.Granted, "Unknown", "TooMany", "it is not known whether all of it is granted: it asks for too much to judge; write several objects, with fewer ServiceAccounts and repositories")
	}
	s.Conditions = []policyobjects.Condition{accepted, state}
	return s, nil
}

// tooMany is the status of a repository that exceeds the limit of steps.
func tooMany(o *kube.PolicyObject, text string) policyobjects.RepositoryStatus {
	return policyobjects.RepositoryStatus{
		Repository: text, Granted: policyobjects.Unknown, LastUsed: o.LastUsed(text),
		Reason: "it was not judged: the object asks for too much", Remedy: "write several objects, with fewer ServiceAccounts and repositories",
	}
}

func (j *judge) acceptedPolicy(o *kube.PolicyObject) policyobjects.Condition {
	switch err := o.Policy.Err(); {
	case err != nil && o.Policy.IsTrial():
		return condition(o, policyobjects.Accepted, "False", "Invalid", "it decides nothing (spec.trial), and none of its rules is tried: "+err.Error())
	case o.Policy.IsTrial():
		return condition(o, policyobjects.Accepted, "True", "Trial", "it decides nothing (spec.trial); the audit log says what it would change")
	case err != nil:
		return condition(o, policyobjects.Accepted, "False", "Invalid", "none of its rules counts, and a denial with a fault refuses all whom it could mean: "+err.Error())
	case !j.counts[o.Name]:
		return condition(o, policyobjects.Accepted, "False", "TooMany", "nothing of it counts: with those of objects that come first by their names there are too many rules and denials in the cluster")
	}
	return condition(o, policyobjects.Accepted, "True", "Valid", "its rules and denials count")
}

func condition(o *kube.PolicyObject, kind, status, reason, message string) policyobjects.Condition {
	return policyobjects.Condition{Type: kind, Status: status, ObservedGeneration: o.Generation, Reason: reason, Message: term.Shorten(message, maxMessageBytes)}
}

// granted summarizes the results of all repositories.
func granted(o *kube.PolicyObject, all []policyobjects.RepositoryStatus, denied bool) policyobjects.Condition {
	whole, extent := 0, all[0].Granted
	first := ""
	for _, r := range all {
		extent = merge(extent, r.Granted)
		if r.Granted == policyobjects.All {
			whole++
		} else if first == "" {
			first = "; " + r.Repository + ": " + r.Reason
		}
	}
	message := fmt.Sprintf("%d of %d repositories are granted%s", whole, len(all), first)
	switch {
	case extent == policyobjects.All:
		return condition(o, policyobjects.Granted, "True", "AllGranted", message)
	case denied:
		return condition(o, policyobjects.Granted, "False", "Denied", all[0].Reason)
	case extent == policyobjects.Part:
		return condition(o, policyobjects.Granted, "False", "PartlyGranted", message)
	case extent == policyobjects.None:
		return condition(o, policyobjects.Granted, "False", "NotGranted", message)
	}
	return condition(o, policyobjects.Granted, "Unknown", "Unclear", message)
}

// knownAccount is a ServiceAccount that the object names.
type knownAccount struct {
	name    string
	isThere bool
	subject policy.Subject
}

// verdict is the result for a repository at one registry, for one ServiceAccount or for all.
type verdict struct {
	extent         policyobjects.Extent
	rules          []string
	reason, remedy string // empty: everything is granted
	others         int    // further ServiceAccounts without a complete grant
	denied         bool   // for all ServiceAccounts
}

// repository returns the best result of all registries, because most repositories exist in one
// registry.
func (j *judge) repository(ctx context.Context, o *kube.PolicyObject, accounts []knownAccount, text string, spent *int) (found policyobjects.RepositoryStatus, denied bool, err error) {
	var best verdict
	var services []string
	for i, service := range j.services {
		v, err := j.at(ctx, service, o, accounts, text, spent)
		if err != nil {
			return found, false, err
		}
		switch {
		case i == 0 || rank[v.extent] > rank[best.extent]:
			best, services = v, []string{service}
		case v.extent == best.extent:
			services = append(services, service)
		}
	}
	if *spent > maxSteps {
		return tooMany(o, text), false, nil
	}
	found = policyobjects.RepositoryStatus{
		Repository: text, Granted: best.extent, Rules: best.rules[:min(len(best.rules), maxRules)], LastUsed: o.LastUsed(text),
		Reason: term.Shorten(best.reason, maxReasonBytes), Remedy: term.Shorten(best.remedy, maxRemedyBytes),
	}
	if best.others > 0 {
		found.Reason += fmt.Sprintf(" (and so for %d more ServiceAccounts)", best.others)
	}
	if len(services) < len(j.services) && best.extent != policyobjects.None {
		found.Services = services[:min(len(services), maxServices)]
	}
	return found, best.denied, nil
}

var rank = map[policyobjects.Extent]int{policyobjects.None: 0, policyobjects.Unknown: 1, policyobjects.Part: 2, policyobjects.All: 3}

// at combines the results of each ServiceAccount, unless that costs too much.
func (j *judge) at(ctx context.Context, service string, o *kube.PolicyObject, accounts []knownAccount, text string, spent *int) (verdict, error) {
	var all verdict
	for i := range accounts {
		if err := ctx.Err(); err != nil || *spent > maxSteps {
			return verdict{}, err
		}
		v := j.one(service, o, &accounts[i], pattern.Pattern(text), spent)
		if i == 0 {
			all = v
			continue
		}
		all.extent, all.denied = merge(all.extent, v.extent), all.denied && v.denied
		for _, rule := range v.rules {
			if !slices.Contains(all.rules, rule) {
				all.rules = append(slices.Clip(all.rules), rule)
			}
		}
		switch {
		case v.reason == "":
		case all.reason == "":
			all.reason, all.remedy = v.reason, v.remedy
		default:
			all.others++
		}
	}
	return all, nil
}

// one asks the policy about one ServiceAccount. A result that a token could change is not known.
func (j *judge) one(service string, o *kube.PolicyObject, account *knownAccount, asked pattern.Pattern, spent *int) verdict {
	v, decision := j.byName(service, o, account, asked, spent)
	decides := ""
	if v.extent != policyobjects.None {
		if decision.UnjudgedDenials != nil { // a denial of one node would leave no status known
			decides = "deny rule " + decision.UnjudgedDenials[0]
		}
	} else if i := slices.IndexFunc(decision.UnjudgedRules, func(rule string) bool { return j.mayAllow(rule, asked, account) }); i >= 0 {
		decides = "rule " + decision.UnjudgedRules[i]
	}
	if decides != "" {
		v.extent, v.reason, v.remedy = policyobjects.Unknown, "only a token decides whether "+decides+" matches", "use pullpass explain with the token of a pod"
	}
	return v
}

// mayAllow reports whether the rule allows anything on some repository of the pattern.
func (j *judge) mayAllow(rule string, asked pattern.Pattern, account *knownAccount) bool {
	return slices.ContainsFunc(j.allows[rule], func(allowed pattern.Pattern) bool {
		return pattern.Pattern(allowed.Expand(account.subject.Identity)).Overlaps(asked)
	})
}

// byName judges by the name of the ServiceAccount.
func (j *judge) byName(service string, o *kube.PolicyObject, account *knownAccount, asked pattern.Pattern, spent *int) (verdict, policy.Decision) {
	name := o.Namespace + "/" + account.name
	if !account.isThere {
		return verdict{
			extent: policyobjects.None, reason: "there is no ServiceAccount " + account.name + " in the namespace " + o.Namespace,
			remedy: "make it, or correct the name in spec.serviceAccounts",
		}, policy.Decision{}
	}
	a := asker{policy: j.policy, subject: account.subject, service: service, spent: spent}
	for _, action := range o.Asks.Actions {
		a.actions = append(a.actions, string(action))
	}
	slices.Sort(a.actions)
	// A text for people shows the pattern as it is written. covers determines whether it is
	// granted.
	decision := a.decide(string(asked))
	d := &decision.Scopes[0]
	isPattern := strings.Contains(string(asked), "*")
	v := verdict{extent: policyobjects.None, rules: d.Rules, reason: d.Reason, remedy: d.Remedy, denied: decision.DeniedBy != ""}
	all, some := d.Reason == "", len(d.Granted) > 0
	if isPattern {
		all, some, _ = a.covers(asked, j.within)
	}
	if all {
		return verdict{extent: policyobjects.All, rules: d.Rules}, decision
	}
	_, trace := a.explain(string(asked))
	if j.isCut(o, trace) {
		v.reason = fmt.Sprintf("too many repositories are asked for the ServiceAccount %s: those of objects that come first by their names count, and these are behind them", name)
		v.remedy = "ask for fewer: a pattern can stand for many"
		return v, decision
	}
	if some {
		v.extent = policyobjects.Part
	}
	if !isPattern {
		return v, decision
	}
	if v.reason == "" { // it is granted if ** is one component
		v.reason, v.remedy = "no rule allows all of it to "+name, policy.Administrator+" has to allow the rest, or ask for less"
	}
	parts := a.parts(asked, trace, j.allows, j.within)
	switch {
	case len(parts.patterns) > 0:
		v.extent, v.rules = policyobjects.Part, parts.rules
		v.reason = name + " gets of it " + strings.Join(parts.patterns, " and ") + "; beyond that, " + v.reason
	case parts.unclear && !some:
		v.extent = policyobjects.Unknown
		v.reason = "whether " + name + " gets anything of it, the patterns alone do not tell; " + v.reason
		v.remedy = "ask for the names of the repositories, or see pullpass explain for one"
	}
	return v, decision
}

// isCut reports whether rules read requests of objects, but not those of this object.
func (j *judge) isCut(o *kube.PolicyObject, trace policy.Trace) bool {
	reads := false
	for _, t := range trace.Rules {
		for _, s := range t.Scopes {
			if slices.Contains(s.Objects, o.Namespace+"/"+o.Name) {
				return false
			}
			reads = reads || t.Requests
		}
	}
	return reads
}
