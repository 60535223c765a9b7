package objectstatus

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/kube"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/pattern"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policyobjects"
	"github.com/pullpass/pullpass/internal/term"
)

// What a status says is short: whoever may edit an object has up to 128 of them written
// by it.
const (
	maxReasonBytes  = 500
	maxRemedyBytes  = 400
	maxMessageBytes = 1000
	maxRules        = 8
	maxServices     = 16
)

// judge says what the status of objects should be, by what is decided now.
type judge struct {
	policy   *policy.Policy
	services []string
	cluster  string
	issuer   string
	within   []pattern.Pattern
	allows   map[string][]pattern.Pattern // of each rule
	counts   map[string]bool              // AccessPolicies of which something counts
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
	if object, _, ok := strings.Cut(rule, "/"); ok { // those of files have no /
		j.counts[object] = true
	}
}

// status returns what the status of the object should be, but for the times of its
// conditions. An error says that it cannot be known now.
func (j *judge) status(o *kube.PolicyObject) (*policyobjects.RepositoryAccessStatus, error) {
	s := &policyobjects.RepositoryAccessStatus{ObservedGeneration: o.Generation}
	if o.Policy != nil {
		s.Conditions = []policyobjects.Condition{j.acceptedPolicy(o)}
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
			Annotations: known.Annotations, NamespaceLabels: known.NamespaceLabels, Objects: known.Objects,
		}}
	}
	denied := true
	for _, text := range o.Asks.Repositories {
		found, isDenied := j.repository(o, accounts, text)
		s.Repositories = append(s.Repositories, found)
		denied = denied && isDenied
	}
	s.Conditions = []policyobjects.Condition{accepted, granted(o, s.Repositories, denied)}
	return s, nil
}

func (j *judge) acceptedPolicy(o *kube.PolicyObject) policyobjects.Condition {
	switch err := o.Policy.Err(); {
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

// granted puts together what became of each repository.
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

// knownAccount is one that is asked for.
type knownAccount struct {
	name    string
	isThere bool
	subject policy.Subject
}

// verdict is what became of a repository, for one ServiceAccount or for all, at one
// registry.
type verdict struct {
	extent         policyobjects.Extent
	rules          []string
	reason, remedy string // empty: all is granted
	others         int    // for whom not all is granted either
	denied         bool   // to all
}

// repository takes the best of all registries: most repositories are those of one.
func (j *judge) repository(o *kube.PolicyObject, accounts []knownAccount, text string) (found policyobjects.RepositoryStatus, denied bool) {
	var best verdict
	var services []string
	for i, service := range j.services {
		v := j.at(service, o, accounts, text)
		switch {
		case i == 0 || rank[v.extent] > rank[best.extent]:
			best, services = v, []string{service}
		case v.extent == best.extent:
			services = append(services, service)
		}
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
	return found, best.denied
}

var rank = map[policyobjects.Extent]int{policyobjects.None: 0, policyobjects.Unknown: 1, policyobjects.Part: 2, policyobjects.All: 3}

// at puts together what became of it for each ServiceAccount.
func (j *judge) at(service string, o *kube.PolicyObject, accounts []knownAccount, text string) verdict {
	var all verdict
	for i := range accounts {
		v := j.one(service, o, &accounts[i], pattern.Pattern(text))
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
	return all
}

// one asks the policy for one ServiceAccount.
func (j *judge) one(service string, o *kube.PolicyObject, account *knownAccount, asked pattern.Pattern) verdict {
	name := o.Namespace + "/" + account.name
	if !account.isThere {
		return verdict{
			extent: policyobjects.None, reason: "there is no ServiceAccount " + account.name + " in the namespace " + o.Namespace,
			remedy: "make it, or correct the name in spec.serviceAccounts",
		}
	}
	a := asker{policy: j.policy, subject: account.subject, service: service}
	for _, action := range o.Asks.Actions {
		a.actions = append(a.actions, string(action))
	}
	slices.Sort(a.actions)
	// For people, a pattern is told of as it is written; whether it is granted is for
	// covers to say.
	decision := j.policy.Decide(a.subject, service, a.scope(string(asked)))
	d := &decision.Scopes[0]
	isPattern := strings.Contains(string(asked), "*")
	v := verdict{extent: policyobjects.None, rules: d.Rules, reason: d.Reason, remedy: d.Remedy, denied: decision.DeniedBy != ""}
	all, some := d.Reason == "", len(d.Granted) > 0
	if isPattern {
		all, some, _ = a.covers(asked, j.within)
	}
	if all {
		return verdict{extent: policyobjects.All, rules: d.Rules}
	}
	_, trace := j.policy.Explain(a.subject, service, a.scope(string(asked)))
	if j.isCut(o, trace) {
		v.reason = fmt.Sprintf("too many repositories are asked for the ServiceAccount %s: those of objects that come first by their names count, and these are behind them", name)
		v.remedy = "ask for fewer: a pattern can stand for many"
		return v
	}
	if some {
		v.extent = policyobjects.Part
	}
	if !isPattern {
		return v
	}
	if v.reason == "" { // it is granted where ** is one component
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
	return v
}

// isCut reports whether rules read what objects ask for, but not this one's.
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
