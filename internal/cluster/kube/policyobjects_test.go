package kube

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const filePolicy = `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- {name: file, subjects: [{namespaces: ["*"]}], allow: [{repositories: ["public/**"], actions: [pull]}]}
- {name: ceiling, subjects: [{namespaces: ["*"]}], requests: true, allow: [{repositories: ["{namespace}/**"], actions: [pull]}]}
`

// repositoryAccess requests a repository for web.
func repositoryAccess(namespace, name, uid, repository string) kubetest.Object {
	return kubetest.Object{
		"metadata": kubetest.Object{"name": name, "namespace": namespace, "uid": uid},
		"spec":     map[string]any{"serviceAccounts": []any{"web"}, "repositories": []any{repository}, "actions": []any{"pull"}},
	}
}

// accessPolicy has a rule, and a denial for a namespace.
func accessPolicy(name, uid, repository, denied string) kubetest.Object {
	o := kubetest.Object{
		"metadata": kubetest.Object{"name": name, "uid": uid},
		"spec": map[string]any{"rules": []any{map[string]any{"name": "r", "subjects": []any{map[string]any{"namespaces": []any{"*"}}},
			"allow": []any{map[string]any{"repositories": []any{repository}, "actions": []any{"pull"}}}}}},
	}
	if denied != "" {
		o["spec"].(map[string]any)["deny"] = []any{map[string]any{"name": "d", "subjects": []any{map[string]any{"namespaces": []any{denied}}}}}
	}
	return o
}

// gets returns the grants of a token, or the denial.
func gets(t *testing.T, c *Cluster, id oidc.Identity, repository string) string {
	t.Helper()
	facts, err := c.Lookup(t.Context(), id, nil)
	if err != nil {
		return "error: " + err.Error()
	}
	p, err := policy.Parse(policy.File{Name: "p", Data: []byte(filePolicy)})
	testkit.Must(t, err)
	scope := registryauth.Scope{Type: "repository", Name: repository, Actions: []string{"pull"}}
	d := p.Decide(policy.Subject{Identity: &id, NamespaceLabels: facts.NamespaceLabels, Objects: facts.Objects}, "", []registryauth.Scope{scope})
	if d.DeniedBy != "" {
		return "denied by " + d.DeniedBy
	}
	return fmt.Sprint(d.Scopes[0].Rules)
}

var bothObjects = PolicyObjects{Policies: true, Requests: true, Within: []pattern.Pattern{"team-*/**", "objects/**"}}

func TestObjectsCount(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		s.Put("repositoryaccesses", repositoryAccess("team-a", "web", "uid-r", "team-a/web"), repositoryAccess("bare", "other", "uid-o", "team-a/**"))
		s.Put("accesspolicies", accessPolicy("p", "uid-p", "objects/**", "bare"))
		c := newTestCluster(t, s, ClusterConfig{Objects: bothObjects})
		run(t, c)
		expect := func(when string, id oidc.Identity, repository, want string) {
			t.Helper()
			synctest.Wait()
			if got := gets(t, c, id, repository); got != want {
				t.Errorf("%s: %s: %s, want %s", when, repository, got, want)
			}
		}
		web, bare := webPod(), identity("one", "bare", "web", "uid-bare")
		expect("at first", web, "team-a/web", "[ceiling]")
		expect("at first", web, "team-a/other", "[]")
		expect("at first", web, "objects/x", "[p/r]")
		expect("at first", bare, "objects/x", "denied by p/d")
		s.Put("repositoryaccesses", repositoryAccess("team-a", "web", "uid-r", "team-a/other"))
		expect("after a change", web, "team-a/web", "[]")
		expect("after a change", web, "team-a/other", "[ceiling]")
		s.Put("repositoryaccesses", repositoryAccess("team-a", "a-first", "uid-r2", "team-a/more"))
		expect("with another", web, "team-a/more", "[ceiling]")
		expect("with another", web, "team-a/other", "[ceiling]")
		s.Remove("repositoryaccesses", "team-a", "web")
		expect("after its removal", web, "team-a/other", "[]")
		expect("after its removal", web, "team-a/more", "[ceiling]")
		s.Remove("repositoryaccesses", "team-a", "a-first")
		expect("after all", web, "team-a/more", "[]")
		s.Put("accesspolicies", accessPolicy("p", "uid-p", "objects/**", "team-a"))
		expect("another denial", web, "public/x", "denied by p/d")
		expect("another denial", bare, "objects/x", "[p/r]")
		s.Remove("accesspolicies", "", "p")
		expect("without policies", web, "public/x", "[file]")
		expect("without policies", web, "objects/x", "[]")
		// A new list after a loss of history has the same result as changes.
		s.Put("accesspolicies", accessPolicy("q", "uid-q", "objects/**", ""))
		s.Put("repositoryaccesses", repositoryAccess("team-a", "web", "uid-r3", "team-a/again"))
		s.Compact()
		time.Sleep(10 * time.Second)
		expect("after a list", web, "team-a/again", "[ceiling]")
		expect("after a list", web, "objects/x", "[q/r]")
	})
}

// An object that is only tried counts beside the others in a trial, and for nothing else.
func TestObjectsAreTried(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		s.Put("accesspolicies", accessPolicy("p", "uid-p", "objects/**", ""))
		var ahead atomic.Int64
		c := newTestCluster(t, s, ClusterConfig{Objects: bothObjects, Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
		run(t, c)
		trial := func() *policy.Policies { return testkit.Value(c.Lookup(t.Context(), webPod(), nil))(t).Objects.Trial }
		if trial() != nil {
			t.Error("a trial without an object that is tried")
		}
		tried := accessPolicy("next", "uid-n", "objects/next", "team-a")
		tried["spec"].(map[string]any)["trial"] = true
		s.Put("accesspolicies", tried)
		synctest.Wait()
		if got := trial(); len(got.WrittenRules()) != 2 || len(got.WrittenDenials()) != 1 {
			t.Errorf("tried are %+v, %+v", got.WrittenRules(), got.WrittenDenials())
		}
		if got := gets(t, c, webPod(), "objects/next"); got != "[p/r]" {
			t.Errorf("beside the trial: %s", got)
		}
		s.Refuse(true)
		ahead.Store(int64(MaxPolicyAge + time.Minute))
		if trial() != nil {
			t.Error("a trial of objects that are too old")
		}
		ahead.Store(0)
		s.Refuse(false)
		s.Remove("accesspolicies", "", "next")
		time.Sleep(time.Minute)
		synctest.Wait()
		if trial() != nil {
			t.Error("a trial after its object")
		}
	})
}

// Disabled kinds are not requested, and do not count.
func TestObjectsAreOff(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		s.Put("repositoryaccesses", repositoryAccess("team-a", "web", "uid-r", "team-a/web"))
		s.Put("accesspolicies", accessPolicy("p", "uid-p", "objects/**", ""))
		for _, test := range []struct {
			objects            PolicyObjects
			request, rule      string
			policies, request0 bool
		}{
			{PolicyObjects{Within: bothObjects.Within}, "[]", "[]", false, false},
			{PolicyObjects{Policies: true, Within: bothObjects.Within}, "[]", "[p/r]", true, false},
			{PolicyObjects{Requests: true, Within: bothObjects.Within}, "[ceiling]", "[]", false, true},
		} {
			c := newTestCluster(t, s, ClusterConfig{Objects: test.objects})
			s.Count("")
			run(t, c)
			if policies, requests := s.Count("watch accesspolicies") > 0, s.Count("watch repositoryaccesses") > 0; policies != test.policies || requests != test.request0 {
				t.Errorf("%+v: watched %t, %t", test.objects, policies, requests)
			}
			if request, rule := gets(t, c, webPod(), "team-a/web"), gets(t, c, webPod(), "objects/x"); request != test.request || rule != test.rule {
				t.Errorf("%+v: %s, %s", test.objects, request, rule)
			}
		}
	})
}

// After an hour without the API server, the same pods as before can pull. After a day, objects
// grant nothing any more, and their denials continue.
func TestObjectsWithoutAPIServer(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		s.Put("repositoryaccesses", repositoryAccess("team-a", "web", "uid-r", "team-a/web"))
		s.Put("accesspolicies", accessPolicy("p", "uid-p", "objects/**", "bare"))
		var ahead atomic.Int64 // the test does not wait for a day of retries
		c := newTestCluster(t, s, ClusterConfig{Objects: bothObjects, Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
		run(t, c)
		s.Refuse(true)
		check := func(when, request, rule string) {
			t.Helper()
			web, bare := webPod(), identity("one", "bare", "web", "uid-bare")
			for _, got := range [][2]string{{gets(t, c, web, "team-a/web"), request}, {gets(t, c, web, "objects/x"), rule}, {gets(t, c, web, "public/x"), "[file]"}, {gets(t, c, bare, "public/x"), "denied by p/d"}} {
				if got[0] != got[1] {
					t.Errorf("%s: %s, want %s", when, got[0], got[1])
				}
			}
		}
		for range 60 {
			time.Sleep(time.Minute)
			check("within the hour", "[ceiling]", "[p/r]")
		}
		ahead.Store(int64(MaxPolicyAge - time.Hour - time.Minute))
		check("within the day", "[ceiling]", "[p/r]")
		time.Sleep(3 * time.Minute)
		check("after a day", "[]", "[]")
		s.Refuse(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		check("later", "[ceiling]", "[p/r]")
	})
}

// A cluster may lack the CRDs, or the right to list them, and a list of large objects may take long.
// It then uses only the policy files, and reports why.
func TestObjectsThatCannotBeListed(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		s.Put("repositoryaccesses", repositoryAccess("team-a", "web", "uid-r", "team-a/web"))
		for _, verb := range []string{"list", "watch"} {
			s.Fail(verb+" repositoryaccesses", kubetest.Hang)
		}
		c := newTestCluster(t, s, ClusterConfig{Objects: bothObjects})
		requests := func() ResourceStatus {
			all := c.Status().Resources
			return all[slices.IndexFunc(all, func(r ResourceStatus) bool { return r.Resource == requestsResource })]
		}
		if requests().Overdue {
			t.Error("overdue before Run")
		}
		go c.Run(t.Context())
		for _, overdue := range []bool{false, true} {
			time.Sleep(maxFirstList - time.Second)
			if got := gets(t, c, webPod(), "public/x"); got != "[file]" {
				t.Errorf("before the list: %s", got)
			}
			if r := requests(); r.Synced || !r.Optional || r.Overdue != overdue || r.LastFailure != "" {
				t.Errorf("before the list: %+v", r)
			}
		}
		for _, verb := range []string{"list", "watch"} {
			s.Fail(verb+" repositoryaccesses", kubetest.Status(http.StatusForbidden, "Forbidden", "no"))
		}
		time.Sleep(10 * time.Minute)
		if got := gets(t, c, webPod(), "public/x"); got != "[file]" {
			t.Errorf("forbidden: %s", got)
		}
		if got := gets(t, c, webPod(), "team-a/web"); got != "[]" {
			t.Errorf("forbidden: %s", got)
		}
		if r := requests(); r.Synced || !r.Optional || !has(fmt.Errorf("%s", r.LastFailure), `give the proxy's ClusterRole the verb "list" on "repositoryaccesses"`) {
			t.Errorf("%+v", r)
		}
		for _, verb := range []string{"list", "watch"} {
			s.Fail(verb+" repositoryaccesses", nil)
		}
		time.Sleep(time.Minute)
		if got := gets(t, c, webPod(), "team-a/web"); got != "[ceiling]" || requests().Overdue {
			t.Errorf("later: %s, %+v", got, requests())
		}
	})
}

// Denials count from the first answer on. A failure at the start says nothing about them, unless the
// API server says that there are none, or that the proxy may not know them.
func TestDenialsBeforeTheyAreListed(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		s.Put("accesspolicies", accessPolicy("p", "uid-p", "objects/**", "bare"))
		fail := func(with http.HandlerFunc) {
			for _, verb := range []string{"list", "watch"} {
				s.Fail(verb+" accesspolicies", with)
			}
			time.Sleep(time.Minute)
		}
		bare := identity("one", "bare", "web", "uid-bare")
		unavailable := kubetest.Status(http.StatusServiceUnavailable, "ServiceUnavailable", "not yet")
		for name, test := range map[string]struct {
			first http.HandlerFunc
			want  string
		}{
			"a failure":     {unavailable, "error: cluster one: accesspolicies are not listed yet"},
			"no CRD":        {kubetest.Status(http.StatusNotFound, "NotFound", "no such resource"), "[file]"},
			"no permission": {kubetest.Status(http.StatusForbidden, "Forbidden", "no"), "[file]"},
		} {
			c := newTestCluster(t, s, ClusterConfig{Objects: bothObjects})
			ctx, stop := context.WithCancel(t.Context())
			go c.Run(ctx)
			fail(test.first)
			for _, when := range []string{"at first", "later"} {
				if got := gets(t, c, bare, "public/x"); got != test.want {
					t.Errorf("%s, %s: %s, want %s", name, when, got, test.want)
				}
				for _, r := range c.Status().Resources {
					if r.Resource == policiesResource && r.Optional != (test.want == "[file]") {
						t.Errorf("%s, %s: %+v", name, when, r)
					}
				}
				fail(unavailable) // what was said before still holds
			}
			fail(nil)
			if got := gets(t, c, bare, "public/x"); got != "denied by p/d" {
				t.Errorf("%s, then listed: %s", name, got)
			}
			stop()
		}
	})
}

// An API server that has just begun refuses every request until it has loaded RBAC, and knows no
// CRDs until it has loaded those. That says nothing about denials. Its /readyz says whether it has
// loaded them.
func TestDenialsWhileTheAPIServerBegins(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		const unlisted, alone, denied = "error: cluster one: accesspolicies are not listed yet", "[file]", "denied by p/d"
		forbidden, missing := kubetest.Status(http.StatusForbidden, "Forbidden", "no"), kubetest.Status(http.StatusNotFound, "NotFound", "no such resource")
		down := kubetest.Status(http.StatusInternalServerError, "InternalError", "down")
		type phase struct {
			list, readyz http.HandlerFunc // nil: succeeds
			lasts        time.Duration
			want         string // at the end
		}
		for name, phases := range map[string][]phase{
			"then listed":                  {{forbidden, forbidden, 20 * time.Second, unlisted}, {nil, nil, 15 * time.Second, denied}},
			"CRDs, then listed":            {{missing, down, 5 * time.Minute, unlisted}, {nil, nil, 15 * time.Second, denied}},
			"then down":                    {{forbidden, forbidden, 20 * time.Second, unlisted}, {down, down, 5 * time.Minute, unlisted}, {nil, nil, 15 * time.Second, denied}},
			"then down, except for readyz": {{forbidden, down, 20 * time.Second, unlisted}, {down, nil, 5 * time.Minute, unlisted}},
			"in between":                   {{forbidden, forbidden, 20 * time.Second, unlisted}, {down, forbidden, 15 * time.Second, unlisted}, {forbidden, forbidden, 20 * time.Second, unlisted}},
			"readyz is down in between":    {{forbidden, forbidden, 20 * time.Second, unlisted}, {forbidden, down, 15 * time.Second, unlisted}, {forbidden, forbidden, 20 * time.Second, unlisted}},
			"then no right":                {{forbidden, forbidden, 20 * time.Second, unlisted}, {forbidden, nil, 15 * time.Second, alone}},
			"no right to both":             {{forbidden, forbidden, 20 * time.Second, unlisted}, {forbidden, forbidden, time.Minute, alone}, {nil, forbidden, 15 * time.Second, denied}},
			"readyz is not served":         {{missing, missing, 20 * time.Second, unlisted}, {missing, missing, time.Minute, alone}},
			// A certain answer holds during an outage, as listed objects do.
			"no right, then down": {{forbidden, nil, time.Second, alone}, {down, down, 5 * time.Minute, alone}, {nil, nil, 15 * time.Second, denied}},
			"no CRDs, then down":  {{missing, nil, time.Second, alone}, {down, down, 5 * time.Minute, alone}},
		} {
			s := newAPIServer(team()...)
			s.Put("accesspolicies", accessPolicy("p", "uid-p", "objects/**", "bare"))
			c := newTestCluster(t, s, ClusterConfig{Objects: bothObjects})
			for i, p := range phases {
				s.Fail("list accesspolicies", p.list)
				s.Fail("watch accesspolicies", p.list)
				s.Fail("list readyz", p.readyz)
				if i == 0 {
					go c.Run(t.Context())
				}
				time.Sleep(p.lasts)
				if got := gets(t, c, identity("one", "bare", "web", "uid-bare"), "public/x"); got != p.want {
					t.Errorf("%s, phase %d: %s, want %s", name, i, got, p.want)
				}
			}
		}
	})
}

// The list that was refused is asked for again as soon as /readyz succeeds: it can have come just
// before.
func TestRefusalJustBeforeTheAPIServerIsReady(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		s.Streams(false)
		s.Put("accesspolicies", accessPolicy("p", "uid-p", "objects/**", "bare"))
		s.Fail("list accesspolicies", kubetest.Status(http.StatusForbidden, "Forbidden", "no"))
		s.Fail("list readyz", func(http.ResponseWriter, *http.Request) { s.Fail("list accesspolicies", nil) })
		c := newTestCluster(t, s, ClusterConfig{Objects: bothObjects})
		run(t, c)
		if got := gets(t, c, identity("one", "bare", "web", "uid-bare"), "public/x"); got != "denied by p/d" {
			t.Error(got)
		}
	})
}

// A watching Cluster does not list as well: deleted objects would count again.
func TestWhoWatchesListsNothing(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		s.Put("repositoryaccesses", repositoryAccess("team-a", "web", "uid-r", "team-a/web"))
		s.Put("accesspolicies", accessPolicy("p", "uid-p", "objects/**", ""))
		c := newTestCluster(t, s, ClusterConfig{Objects: bothObjects})
		run(t, c)
		s.Count("")
		if err := c.ListPolicyObjects(t.Context()); err != nil {
			t.Error(err)
		}
		all := testkit.Value(c.List(t.Context()))(t)
		if n := s.Count("list accesspolicies") + s.Count("list repositoryaccesses"); n != 0 {
			t.Errorf("%d lists", n)
		}
		if len(all.Policies.WrittenRules()) != 1 || len(all.Requests) != 1 || all.Requests[0].Name() != "web" {
			t.Errorf("%+v", all)
		}
		for _, a := range all.ServiceAccounts {
			if isAsked := a.Namespace == "team-a" && a.Name == "web"; a.Objects.Policies == nil || (a.Objects.Requests != nil) != isAsked {
				t.Errorf("%s/%s: %+v", a.Namespace, a.Name, a.Objects)
			}
		}
	})
}

// A Cluster that does not serve lists once.
func TestListPolicyObjects(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s := newAPIServer(team()...)
		for i := range 2*pageSize + 1 {
			s.Put("repositoryaccesses", repositoryAccess("team-a", fmt.Sprint("r", i), fmt.Sprint("uid-", i), fmt.Sprint("team-a/x", i)))
		}
		s.Put("accesspolicies", accessPolicy("p", "uid-p", "objects/**", ""))
		c := newTestCluster(t, s, ClusterConfig{Objects: PolicyObjects{Policies: true, Within: bothObjects.Within}})
		testkit.Must(t, c.ListPolicyObjects(t.Context()))
		if got := gets(t, c, webPod(), "objects/x"); got != "[p/r]" {
			t.Error(got)
		}
		c = newTestCluster(t, s, ClusterConfig{Objects: bothObjects})
		if err := c.ListPolicyObjects(t.Context()); err != nil || c.objects.requests.status().Objects != 2*pageSize+1 {
			t.Error(err, c.objects.requests.status())
		}
		s.Fail("list accesspolicies", kubetest.Status(http.StatusNotFound, "NotFound", "the server could not find the requested resource"))
		c = newTestCluster(t, s, ClusterConfig{Objects: bothObjects})
		if err := c.ListPolicyObjects(t.Context()); !has(err, "cluster one: accesspolicies: ", "could not find") {
			t.Error(err)
		}
		none := newTestCluster(t, s, ClusterConfig{})
		if err := none.ListPolicyObjects(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// The objects of a cluster grant only to its own ServiceAccounts. A ServiceAccount of the same name
// in a different cluster gets nothing.
func TestObjectsOfAnotherCluster(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		one, two := newAPIServer(team()...), newAPIServer(team()...)
		one.Put("repositoryaccesses", repositoryAccess("team-a", "web", "uid-r", "team-a/web"))
		one.Put("accesspolicies", accessPolicy("p", "uid-p", "objects/**", "bare"))
		first := newTestCluster(t, one, ClusterConfig{Name: "one", Objects: bothObjects})
		second := newTestCluster(t, two, ClusterConfig{Name: "two", Objects: bothObjects})
		run(t, first)
		run(t, second)
		directory := Directory{"one": first, "two": second}
		for cluster, want := range map[string]bool{"one": true, "two": false} {
			id := webPod()
			id.Cluster = cluster
			facts, err := directory.Lookup(t.Context(), id, nil)
			if err != nil || (facts.Objects.Requests != nil) != want || (facts.Objects.Policies.Rules() == 1) != want {
				t.Errorf("cluster %s: %+v, %v", cluster, facts.Objects, err)
			}
		}
	})
}
