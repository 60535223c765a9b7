package diff

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/pattern"
)

// compareUnknown adds an entry for each cluster whose AccessPolicy objects are not known, if objects
// could grant more or refuse less on this side. Without a configuration, no other rules are known: a
// denial that the other side has could refuse what they grant.
func (c *comparison) compareUnknown() {
	for _, cluster := range c.to.Clusters {
		if why := c.unknownObjects(cluster); why != "" {
			c.addUnknown(cluster.Name+"/*/*", "AccessPolicy objects", fmt.Sprintf("AccessPolicy objects of cluster %s are not known, and %s; name them with --objects %s=FILE", cluster.Name, why, cluster.Name))
		}
	}
	if !c.to.IsOpen || !c.from.IsOpen {
		return
	}
	for _, d := range c.removed {
		if d.isNew {
			continue
		}
		callers := []string{"*/*/*"}
		if d.whom.Identities != nil {
			callers = nil
			for _, name := range d.whom.Identities {
				callers = append(callers, "identity/"+name)
			}
		}
		for _, who := range callers {
			c.addUnknown(who, "of other files", fmt.Sprintf("other rules are not known, and deny rule %s could refuse what they grant; compare two configurations", d.rule))
		}
	}
}

// unknownObjects says why unknown AccessPolicy objects could make a difference in a cluster; empty: they cannot.
func (c *comparison) unknownObjects(cluster Cluster) string {
	other, isOld := c.from.cluster(cluster.Name)
	to, from := cluster.Objects.orNone(), other.Objects.orNone()
	isOpen := func(p pattern.Pattern) bool {
		return !slices.ContainsFunc(from.Policies.Within(), func(old pattern.Pattern) bool { return old.Contains(p) })
	}
	switch {
	case !to.isUnknown() && !from.isUnknown():
		return ""
	case !isOld:
		return "only one side has the cluster"
	case to.PoliciesAreRead != from.PoliciesAreRead:
		return "clusters[].kubernetes.objects.policies differs"
	case to.AreKnown != from.AreKnown:
		return "only one side has objects"
	case slices.ContainsFunc(to.Policies.Within(), isOpen):
		return "clusters[].kubernetes.objects.within differs"
	case to.RequestsAreRead && !from.RequestsAreRead:
		return "clusters[].kubernetes.objects.requests differs"
	case slices.ContainsFunc(c.to.Services, func(s Service) bool { _, ok := c.from.service(s.Name); return !ok || len(c.opened(s)) > 0 }):
		return "registries or upstreams differ"
	}
	for _, d := range c.removed {
		if d.whom.Identities == nil && overlap(clustersOf(d.whom), []string{cluster.Name}) {
			return "deny rule " + d.rule + " could refuse what they grant"
		}
	}
	return ""
}

func (o *Objects) orNone() *Objects {
	if o == nil {
		return &Objects{Policies: policy.NewPolicies(nil)}
	}
	return o
}

func (o *Objects) isUnknown() bool { return o.PoliciesAreRead && !o.AreKnown }

// addUnknown adds an entry for all that callers may do, since their access is not compared.
func (c *comparison) addUnknown(who, rule, why string) {
	c.found = append(c.found, Entry{Who: who, Service: "*", Repositories: "**", Actions: atoms(action.All).Names(), Rule: rule, position: len(c.to.units), Unjudged: why})
}

// compareTokens adds an entry for each cluster and identity of both sides that may accept other tokens, and one for all callers.
func (c *comparison) compareTokens() {
	compare := func(who, above string, a, b Fields) {
		var differ []string
		for _, path := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Keys(a)), slices.Collect(maps.Keys(b)))))) {
			if a[path] != b[path] {
				differ = append(differ, above+path)
			}
		}
		if differ != nil {
			c.addUnknown(who, "of any name", "which tokens are valid may change; compare "+strings.Join(differ, ", "))
		}
	}
	if !c.from.IsOpen && !c.to.IsOpen {
		compare("*/*/*", "", c.to.Callers, c.from.Callers)
	}
	for _, cluster := range c.to.Clusters {
		if other, ok := c.from.cluster(cluster.Name); ok {
			compare(cluster.Name+"/*/*", "clusters[].", cluster.Tokens, other.Tokens)
		}
	}
	for _, id := range c.to.Identities {
		if other, ok := c.from.identity(id.Name); ok {
			compare("identity/"+id.Name, "identities[].", id.Tokens, other.Tokens)
		}
	}
}
