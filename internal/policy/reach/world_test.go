package reach

import (
	"fmt"
	"testing"

	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// clusters returns the objects of two clusters; in some clusters, no objects count.
func (w world) clusters(t *testing.T) []Accounts {
	t.Helper()
	all := []Accounts{{Cluster: "prod"}, {Cluster: "dev"}}
	for i := range all {
		if w.IntN(4) == 0 {
			continue
		}
		all[i].Objects = Objects{Policies: policy.NewPolicies(w.within(t), w.objects()...), HasRequests: w.IntN(4) > 0}
		for _, namespace := range []string{"a", "ab", "b"} {
			for n := range w.IntN(3) {
				all[i].Objects.Requests = append(all[i].Objects.Requests, w.request(namespace, fmt.Sprint("q", n)))
			}
		}
		if !all[i].Objects.HasRequests {
			all[i].Objects.Requests = nil
		}
	}
	return all
}

var placeholders = []string{"{namespace}", "{serviceAccount}", "{namespace}-{serviceAccount}", "{cluster}"}

func (w world) within(t *testing.T) []pattern.Pattern {
	t.Helper()
	within := []pattern.Pattern{"**"}
	for range 2 * w.IntN(2) {
		for _, text := range w.repositories(placeholders...) {
			p := testkit.Value(pattern.Parse(text))(t)
			within = append(within, p)
		}
	}
	return within[min(1, len(within)-1):]
}

// objects returns AccessPolicies, some of them with a fault.
func (w world) objects() []*policy.ObjectPolicy { return parseObjects(w.specs()) }

// parseObjects names the objects o0, o1 and so on.
func parseObjects(specs []map[string]any) []*policy.ObjectPolicy {
	all := make([]*policy.ObjectPolicy, len(specs))
	for i, spec := range specs {
		all[i] = policy.ParseObject(fmt.Sprint("o", i), spec)
	}
	return all
}

func (w world) specs() (all []map[string]any) {
	for range w.IntN(3) {
		var rules, deny []any
		for n := range 1 + w.IntN(2) {
			rules = append(rules, lists(map[string]any{
				"name": fmt.Sprint("r", n), "requests": w.IntN(2) == 0, "subjects": []any{w.ownSubject(false)}, "allow": []any{lists(w.allowance(placeholders...))},
			}))
		}
		spec := map[string]any{"rules": rules}
		if w.IntN(8) == 0 {
			spec["rules"] = append(rules, "a fault")
		}
		switch w.IntN(12) {
		case 0:
			deny = []any{map[string]any{"name": "d", "subjects": []any{w.ownSubject(true)}}}
		case 1: // it matches more than it seems to
			whom := w.ownSubject(true)
			whom["tokens"] = "x"
			deny = []any{map[string]any{"name": "d", "subjects": []any{whom}}}
		}
		if deny != nil {
			spec["deny"] = deny
		}
		all = append(all, spec)
	}
	return all
}

// ownSubject returns a subject of the cluster of an object.
func (w world) ownSubject(denies bool) map[string]any {
	for {
		s := w.subject(denies, false)
		if delete(s, "clusters"); len(s) > 0 {
			return lists(s)
		}
	}
}

// lists converts the lists to the types of a decoder.
func lists(m map[string]any) map[string]any {
	for key, value := range m {
		if list, ok := value.([]string); ok {
			all := make([]any, len(list))
			for i, s := range list {
				all[i] = s
			}
			m[key] = all
		}
	}
	return m
}

func (w world) request(namespace, name string) *policy.Request {
	spec := lists(w.allowance())
	spec["serviceAccounts"] = lists(map[string]any{"": w.some("a", "b", "ab")})[""]
	return policy.ParseRequest(namespace, name, spec)
}
