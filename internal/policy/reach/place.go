package reach

import (
	"maps"
	"slices"

	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// solution holds the values of placeholders with which patterns match one repository.
type solution struct {
	patterns []string         // that can match
	choices  []pattern.Values // values of their placeholders
	isWhole  bool             // there are no other choices
}

func (s *solution) add(patterns []pattern.Pattern, repository string) {
	for _, p := range patterns {
		found, all := p.Solve(repository)
		if len(found) == 0 && all {
			continue
		}
		s.patterns = append(s.patterns, string(p))
		s.choices = append(s.choices, found...)
		s.isWhole = s.isWhole && all
	}
}

// maxPairs bounds the combinations of two solutions.
const maxPairs = 1 << 12

// and returns the values that are in both solutions.
func (s solution) and(other solution) solution {
	if other.patterns == nil {
		return solution{isWhole: true}
	}
	both := solution{patterns: s.patterns, isWhole: s.isWhole && other.isWhole}
	pairs := 0
	for _, a := range s.choices {
		for _, b := range other.choices {
			if pairs++; pairs > maxPairs {
				both.isWhole = false
				return both
			}
			if values, ok := merge(a, b); ok {
				both.choices = append(both.choices, values)
			}
		}
	}
	return both
}

// merge returns values of placeholders that agree with both.
func merge(a, b pattern.Values) (pattern.Values, bool) {
	for name, value := range a {
		if other, ok := b[name]; ok && other != value {
			return nil, false
		}
	}
	merged := maps.Clone(a)
	maps.Copy(merged, b)
	return merged, true
}

// in returns the part of the solution in a cluster.
func (s solution) in(cluster string) solution {
	own := solution{patterns: s.patterns, isWhole: s.isWhole}
	for _, values := range s.choices {
		if name, ok := values["cluster"]; ok {
			if name != cluster {
				continue
			}
			values = maps.Clone(values)
			delete(values, "cluster")
		}
		own.choices = append(own.choices, values)
	}
	return own
}

// place is the data of a cluster's objects for a repository.
type place struct {
	cluster     string
	limit       solution // of the limit on objects
	hasRequests bool
	asked       []request
}

// request is the request of one RepositoryAccess.
type request struct {
	namespace, object string
	accounts          []string
}

func placeOf(known Accounts, scope registryauth.Scope) place {
	in := place{cluster: known.Cluster, hasRequests: known.Objects.HasRequests, limit: solution{isWhole: true}}
	if known.Objects.Policies != nil {
		in.limit.add(known.Objects.Policies.Within(), scope.Name)
	}
	all := known.Objects.Requests
	for len(all) > 0 {
		n := slices.IndexFunc(all, func(r *policy.Request) bool { return r.Namespace() != all[0].Namespace() })
		if n == -1 {
			n = len(all)
		}
		in.asked = append(in.asked, askedFor(all[:n], scope)...)
		all = all[n:]
	}
	return in
}

// askedFor returns the objects of a namespace that ask for the scope, and their ServiceAccounts.
func askedFor(objects []*policy.Request, scope registryauth.Scope) []request {
	var found []request
	for _, o := range objects {
		if !isAsked(o.Written(), "", scope) {
			continue
		}
		r := request{namespace: o.Namespace(), object: o.Namespace() + "/" + o.Name()}
		for _, account := range o.ServiceAccounts() {
			// Beyond a limit, further objects do not count.
			if isAsked(policy.NewRequests(account, objects).Written(), r.object, scope) {
				r.accounts = append(r.accounts, account)
			}
		}
		found = append(found, r)
	}
	return found
}

// isAsked reports whether the object asks for the scope; without a name, whether any does.
func isAsked(all []policy.WrittenRequest, object string, scope registryauth.Scope) bool {
	return slices.ContainsFunc(all, func(r policy.WrittenRequest) bool {
		return (object == "" || r.Object == object) && r.Actions.Intersect(action.Of(scope.Actions)) != 0 &&
			r.Repositories[0].Match(scope.Name, nil, new(int))
	})
}

// askedOf returns the requests for ServiceAccounts that the subjects can match.
func (in *place) askedOf(subjects []Subject) []Asked {
	var all []Asked
	for _, r := range in.asked {
		asked := Asked{Object: r.object}
		for _, account := range r.accounts {
			if slices.ContainsFunc(subjects, func(s Subject) bool { return s.canMean(in.cluster, r.namespace, account) }) {
				asked.ServiceAccounts = append(asked.ServiceAccounts, account)
			}
		}
		if asked.ServiceAccounts != nil {
			all = append(all, asked)
		}
	}
	return all
}

// canMean compares names alone.
func (s *Subject) canMean(cluster, namespace, account string) bool {
	own := pattern.Values{"cluster": cluster, "namespace": namespace, "serviceAccount": account}
	return anyMatches(s.Namespaces, namespace) && anyMatches(s.ServiceAccounts, account) &&
		(s.Names == nil || slices.ContainsFunc(s.Names, func(values pattern.Values) bool {
			_, ok := merge(values, own)
			return ok
		}))
}
