package reach

import (
	"fmt"
	"slices"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/pattern"
)

// Idle names parts of a cluster's objects that have no effect, as Shadowed does for the files:
//   - rules and denials that are redundant beside the files or other objects,
//   - rules that allow nothing within the limit on objects,
//   - requests of RepositoryAccess objects that no rule allows.
//
// The objects must have no faults: without the faults, further rules of theirs could count. Idle
// names nothing of the files, because an object is easily deleted.
func Idle(p *policy.Policy, cluster string, objects Objects) []string {
	if objects.Policies == nil {
		return nil
	}
	own := shadows(objects.Policies.WrittenRules())
	for i := range own {
		inCluster(own[i].whom, cluster)
	}
	ownDenials := denialsOf(cluster, objects.Policies.WrittenDenials())
	for _, d := range ownDenials {
		inCluster(d.Subjects, cluster)
	}
	files, denials := shadows(p.WrittenRules()), denialsOf("", p.WrittenDenials())
	all := written{slices.Concat(files, own), slices.Concat(denials, ownDenials), len(files), len(denials)}
	within := objects.Policies.Within()
	found := all.shadowed(func(r *shadow) string {
		switch {
		case r.Requests && !objects.HasRequests:
			return "no RepositoryAccess objects count in the cluster (clusters[].kubernetes.objects.requests)"
		case !slices.ContainsFunc(r.whom, func(w Whom) bool {
			return slices.ContainsFunc(literalNames(&w), func(id *oidc.Identity) bool { return allowsWithin(r.Allow, within, id) })
		}):
			return "nothing that it allows is within what objects may give (clusters[].kubernetes.objects.within)"
		}
		return ""
	})
	for i, text := range found {
		found[i] = "cluster " + cluster + ": " + text
	}
	if !objects.HasRequests {
		return found
	}
	for _, r := range objects.Requests {
		for _, asked := range r.Written() {
			if !isAnyGranted(all.rules, within, cluster, r, asked) {
				found = append(found, fmt.Sprintf("cluster %s: %s %s: asks for %s, which no rule with requests: true allows to its ServiceAccounts within what objects may give: remove it, or let an administrator of the policy allow it",
					cluster, policy.KindRequest, asked.Object, asked.Repositories[0]))
			}
		}
	}
	return found
}

// inCluster restricts the subjects of an object to its cluster.
func inCluster(whom []Whom, cluster string) {
	for i := range whom {
		whom[i].Clusters = []string{cluster}
	}
}

func allowsWithin(all []policy.WrittenAllowance, within []pattern.Pattern, id *oidc.Identity) bool {
	return slices.ContainsFunc(all, func(a policy.WrittenAllowance) bool {
		return slices.ContainsFunc(a.Repositories, func(p pattern.Pattern) bool {
			return slices.ContainsFunc(within, func(limit pattern.Pattern) bool { return expand(p, id).Overlaps(expand(limit, id)) })
		})
	})
}

// isAnyGranted reports whether a part of the request could be granted to a subject.
func isAnyGranted(rules []shadow, within []pattern.Pattern, cluster string, r *policy.Request, asked policy.WrittenRequest) bool {
	for _, account := range r.ServiceAccounts() {
		id := &oidc.Identity{Cluster: cluster, Kubernetes: oidc.KubernetesIdentity{Namespace: r.Namespace(), ServiceAccount: oidc.ObjectRef{Name: account}}}
		limited := func(p pattern.Pattern) bool {
			return slices.ContainsFunc(expandAll(within, id), func(limit pattern.Pattern) bool { return len(intersect(intersect(asked.Repositories, p), limit)) > 0 })
		}
		for i := range rules {
			rule := &rules[i]
			if rule.Requests && slices.ContainsFunc(rule.whom, func(w Whom) bool {
				return anyMatches(w.Clusters, cluster) && anyMatches(w.Namespaces, r.Namespace()) && anyMatches(w.ServiceAccounts, account)
			}) && slices.ContainsFunc(rule.Allow, func(a policy.WrittenAllowance) bool {
				return a.Actions.Intersect(asked.Actions) != 0 && slices.ContainsFunc(expandAll(a.Repositories, id), limited)
			}) {
				return true
			}
		}
	}
	return false
}
