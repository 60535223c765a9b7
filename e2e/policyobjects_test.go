package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	policiesPath = "/apis/pullpass.dev/v1beta1/accesspolicies"
	ceilings     = `apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- {name: ceiling, subjects: [{namespaces: ["*"]}], requests: true, allow: [{repositories: ["{namespace}/**", "elsewhere/**"], actions: [pull]}]}
`
)

func requestsPath(namespace string) string {
	return "/apis/pullpass.dev/v1beta1/namespaces/" + namespace + "/repositoryaccesses"
}

// repositoryAccess asks for a repository for the ServiceAccount puller.
func repositoryAccess(name string, change ...func(spec cluster.Object)) cluster.Object {
	spec := cluster.Object{"serviceAccounts": []string{puller}, "repositories": []string{"objects-web/web"}, "actions": []string{"pull"}}
	for _, f := range change {
		f(spec)
	}
	return cluster.Object{"apiVersion": "pullpass.dev/v1beta1", "kind": "RepositoryAccess", "metadata": cluster.Object{"name": name}, "spec": spec}
}

func accessPolicy(name string, spec cluster.Object) cluster.Object {
	return cluster.Object{"apiVersion": "pullpass.dev/v1beta1", "kind": "AccessPolicy", "metadata": cluster.Object{"name": name}, "spec": spec}
}

// rule gives a repository to all ServiceAccounts of the cluster.
func rule(name string, change ...func(rule cluster.Object)) cluster.Object {
	r := cluster.Object{"name": name, "subjects": []cluster.Object{{"namespaces": []string{"*"}}},
		"allow": []cluster.Object{{"repositories": []string{"by-object/**"}, "actions": []string{"pull"}}}}
	for _, f := range change {
		f(r)
	}
	return r
}

// withObjects applies what clusters with objects have.
func (s *site) withObjects(t *testing.T) {
	t.Helper()
	s.apply(t, crdsFile)
	s.apply(t, "deploy/kubernetes/policy-objects.yaml")
	s.servesObjects(t)
}

const crdsFile = "deploy/helm/pullpass/files/crds.yaml"

// apply applies a file of the repository.
func (s *site) apply(t *testing.T, name string) {
	t.Helper()
	s.Apply(t, testenv.ReadFile(t, filepath.Join(programs.Checkout(t), name)))
}

func (s *site) servesObjects(t *testing.T) {
	t.Helper()
	within(t, reconnectLimit, "the definitions are served", func() bool {
		_, policies := s.Try(t.Context(), http.MethodGet, policiesPath, nil)
		_, requests := s.Try(t.Context(), http.MethodGet, requestsPath("default"), nil)
		return policies == nil && requests == nil
	})
}

// TestPolicyObjects has the policy in objects of a real API server, with the rights of deploy/kubernetes and no others.
func TestPolicyObjects(t *testing.T) {
	s := startSite(t, cluster.Options{})
	config := s.config(func(c *pullpass.Cluster) {
		c.Kubernetes.Objects = &pullpass.Objects{Policies: true, Requests: true, Within: []string{"objects-*/**", "by-object/**"}}
	})
	config.Policy = ceilings
	// Without the definitions, the policy files count alone.
	before := s.pullpassWithoutObjects(t, config)
	s.withObjects(t)
	t.Run("validation", func(t *testing.T) { testObjectValidation(t, s) })
	t.Run("decisions", func(t *testing.T) { testObjectDecisions(t, s, config, before) })
	t.Run("quota", func(t *testing.T) { testObjectQuota(t, s) })
}

// testObjectQuota has the quota of docs/reference/capacity.md, with smaller numbers.
func testObjectQuota(t *testing.T, s *site) {
	const namespace, requests, accounts = "objects-quota", "count/repositoryaccesses.pullpass.dev", "count/serviceaccounts"
	s.workload(t, namespace)
	s.workload(t, "objects-no-quota")
	s.StartQuotaController(t)
	const quotas = "/api/v1/namespaces/" + namespace + "/resourcequotas"
	s.Create(t, quotas, cluster.Object{"metadata": cluster.Object{"name": "pullpass"}, "spec": cluster.Object{"hard": cluster.Object{requests: "2", accounts: "2"}}})
	used := func(what string) string { return s.Get(t, quotas+"/pullpass").Text("status", "used", what) }
	within(t, quotaLimit, "the quota is in force", func() bool { return used(requests) == "0" && used(accounts) == "1" })
	create := func(namespace, name, refused string) {
		t.Helper()
		_, err := s.Try(t.Context(), http.MethodPost, requestsPath(namespace), repositoryAccess(name))
		judgeObject(t, namespace+"/"+name, err, refused)
	}
	for _, name := range []string{"one", "two", "three"} {
		create("objects-no-quota", name, "")
	}
	create(namespace, "one", "")
	create(namespace, "two", "")
	create(namespace, "three", "exceeded quota: pullpass, requested: "+requests+"=1, used: "+requests+"=2, limited: "+requests+"=2")
	s.CreateServiceAccount(t, namespace, "second", nil)
	_, err := s.Try(t.Context(), http.MethodPost, "/api/v1/namespaces/"+namespace+"/serviceaccounts", cluster.Object{"metadata": cluster.Object{"name": "third"}})
	judgeObject(t, "a third ServiceAccount", err, "exceeded quota: pullpass, requested: "+accounts+"=1")
	s.Delete(t, requestsPath(namespace)+"/one")
	within(t, quotaLimit, "there is room again", func() bool { return used(requests) == "1" })
	create(namespace, "three", "")
}

// quotaLimit is generous: controllers read the kinds of objects that there are, first.
const quotaLimit = 2 * time.Minute

// pullpassWithoutObjects runs Pullpass in a cluster that has none to list: it is ready all the same.
func (s *site) pullpassWithoutObjects(t *testing.T, config pullpass.Config) *pullpass.Proxy {
	t.Helper()
	proxy := s.pullpass(t, config)
	if _, report := proxy.Ready(t); !strings.Contains(report, "repositoryaccesses") {
		t.Errorf("readyz does not say what is missing: %s", report)
	}
	return proxy
}

// The API server refuses what is wrong before anybody reads it.
func testObjectValidation(t *testing.T, s *site) {
	s.workload(t, "validation")
	set := func(field string, value any) func(cluster.Object) {
		return func(o cluster.Object) { o[field] = value }
	}
	without := func(field string) func(cluster.Object) { return func(o cluster.Object) { delete(o, field) } }
	many := func(n int, text string) (list []string) {
		for range n {
			text += "x"
			list = append(list, text)
		}
		return list
	}
	for what, test := range map[string]struct {
		request func(cluster.Object)
		refused string // a part of what the API server says; empty: it is taken
	}{
		"good":               {set("actions", []string{"pull", "push"}), ""},
		"wildcards":          {set("repositories", []string{"a/**/b", "a/*-b", "registry.example.com:5000/a"}), ""},
		"no accounts":        {without("serviceAccounts"), "Required"},
		"no repositories":    {set("repositories", []string{}), "at least 1 items"},
		"too many":           {set("repositories", many(129, "a")), "must have at most 128 items"},
		"too long":           {set("repositories", many(1, strings.Repeat("a", 513))), "512"},
		"twice":              {set("repositories", []string{"a", "a"}), "Duplicate value"},
		"an action":          {set("actions", []string{"pul"}), "supported values"},
		"placeholder":        {set("repositories", []string{"{namespace}/a"}), "placeholders work in the policy only"},
		"several **":         {set("repositories", []string{"**/a/**"}), "at most one **"},
		"a glob of accounts": {set("serviceAccounts", []string{"*"}), "should match"},
	} {
		_, err := s.Try(t.Context(), http.MethodPost, requestsPath("validation")+"?dryRun=All", repositoryAccess("r", test.request))
		judgeObject(t, what, err, test.refused)
	}
	_, err := s.Try(t.Context(), http.MethodPost, requestsPath("validation")+"?dryRun=All&fieldValidation=Strict", repositoryAccess("r", set("namespace", "other")))
	judgeObject(t, "another namespace", err, "unknown field")
	for what, test := range map[string]struct {
		spec    cluster.Object
		refused string
	}{
		"good": {cluster.Object{"rules": []cluster.Object{rule("a"), rule("b", set("requests", true))}, "deny": []cluster.Object{{"name": "d", "subjects": []cluster.Object{{"nodes": []string{"n"}}}}}}, ""},
		"a limit": {cluster.Object{"rules": []cluster.Object{rule("a", set("subjects", []cluster.Object{{"clusters": []string{"prod-*"}, "condition": `kubernetes.namespace != "x"`,
			"namespaceSelector": cluster.Object{"matchLabels": cluster.Object{"a": "b"}, "matchExpressions": []cluster.Object{{"key": "c", "operator": "Exists"}}}}}))}}, ""},
		"nothing":                   {cluster.Object{}, "should have at least 1 properties"},
		"no name":                   {cluster.Object{"rules": []cluster.Object{rule("a", without("name"))}}, "name: Required"},
		"one name":                  {cluster.Object{"rules": []cluster.Object{rule("a"), rule("a")}}, "Duplicate value"},
		"a shared name":             {cluster.Object{"rules": []cluster.Object{rule("a")}, "deny": []cluster.Object{{"name": "a", "subjects": []cluster.Object{{"nodes": []string{"n"}}}}}}, "share one set of names"},
		"anonymous":                 {cluster.Object{"rules": []cluster.Object{rule("a", set("anonymous", true))}}, "of no cluster"},
		"annotation":                {cluster.Object{"rules": []cluster.Object{rule("a", set("annotation", "k"))}}, "objects read no annotations"},
		"identities":                {cluster.Object{"rules": []cluster.Object{rule("a", set("subjects", []cluster.Object{{"identities": []string{"github"}}}))}}, "its own cluster"},
		"catalog":                   {cluster.Object{"rules": []cluster.Object{rule("a", set("allow", []cluster.Object{{"registry": []string{"catalog"}, "repositories": []string{"a"}, "actions": []string{"*"}}}))}}, "repositories alone"},
		"no subject":                {cluster.Object{"rules": []cluster.Object{rule("a", set("subjects", []cluster.Object{{}}))}}, "at least 1 properties"},
		"no subjects":               {cluster.Object{"rules": []cluster.Object{rule("a", without("subjects"))}}, "subjects: Required"},
		"a denial without subjects": {cluster.Object{"deny": []cluster.Object{{"name": "d"}}}, "subjects: Required"},
		"an end":                    {cluster.Object{"rules": many257()}, "must have at most 256 items"},
	} {
		_, err := s.Try(t.Context(), http.MethodPost, policiesPath+"?dryRun=All&fieldValidation=Strict", accessPolicy("p", test.spec))
		judgeObject(t, what, err, test.refused)
	}
	// The API server keeps unknown fields in a rule or beside it, so that Pullpass refuses the rule.
	kept := s.Create(t, policiesPath+"?dryRun=All", accessPolicy("p", cluster.Object{"rules": []cluster.Object{rule("a", set("service", []string{"x"}))}, "dney": []string{"x"}}))
	if spec := fmt.Sprint(kept["spec"]); !strings.Contains(spec, "service:[x]") || !strings.Contains(spec, "dney:[x]") {
		t.Errorf("an unknown field was dropped: %v", spec)
	}
	// Nor does it drop one without a value, which would make the rule grant more.
	subject := cluster.Object{"namespaces": []string{"a"}, "serviceAccounts": nil, "nodes": nil, "namespaceSelector": nil, "clusters": nil, "condition": nil}
	kept = s.Create(t, policiesPath+"?dryRun=All", accessPolicy("p", cluster.Object{"trial": nil, "rules": []cluster.Object{rule("a", set("subjects", []cluster.Object{subject}), set("services", nil), set("requests", nil))}}))
	for _, field := range []string{"serviceAccounts", "nodes", "namespaceSelector", "clusters", "condition", "trial", "services", "requests"} {
		if spec := fmt.Sprint(kept["spec"]); !strings.Contains(spec, field+":<nil>") {
			t.Errorf("%s without a value was dropped: %v", field, spec)
		}
	}
}

func many257() (rules []cluster.Object) {
	for i := range 257 {
		rules = append(rules, rule(fmt.Sprint("r", i)))
	}
	return rules
}

func judgeObject(t *testing.T, what string, err error, refused string) {
	t.Helper()
	if (err == nil) != (refused == "") || err != nil && !strings.Contains(err.Error(), refused) {
		t.Errorf("%s: %v, want %q", what, err, refused)
	}
}

func testObjectDecisions(t *testing.T, s *site, config pullpass.Config, before *pullpass.Proxy) {
	const namespace = "objects-web"
	s.workload(t, namespace)
	pod := s.CreatePod(t, namespace, "web", puller, "node1")
	token := s.podToken(t, pod)
	host := s.pullpass(t, config).Host(t, pullpass.From{})
	asked, byRule := own(namespace), "repository:by-object/x:pull"

	expect(t, "without a request", host.Ask(t, service, token, asked), "")
	s.Create(t, requestsPath(namespace), repositoryAccess("web"))
	turns(t, host, token, asked, "", asked)
	// A client that was there before the definitions sees them, too.
	within(t, 2*time.Minute, "the earlier replica lists the objects", func() bool {
		return outcome(before.Host(t, pullpass.From{}).Ask(t, service, token, asked)) == asked
	})
	answers(t, before, "who-can", []string{"pull", "objects-web/web"}, "in cluster e2e)", "the RepositoryAccess objects-web/web asks for it now, for "+puller, namespace+"/"+puller+", by ceiling")
	answers(t, before, "reach", []string{"e2e/" + namespace + "/" + puller}, "objects-web/web: pull, as objects-web/web asks")
	s.Patch(t, requestsPath(namespace)+"/web", cluster.Object{"spec": cluster.Object{"repositories": []string{"elsewhere/x"}}})
	turns(t, host, token, asked, asked, "")
	expect(t, "beyond within, though the ceiling allows it", host.Ask(t, service, token, "repository:elsewhere/x:pull"), "")
	s.Patch(t, requestsPath(namespace)+"/web", cluster.Object{"spec": cluster.Object{"repositories": []string{namespace + "/**"}}})
	turns(t, host, token, asked, "", asked)
	s.Delete(t, requestsPath(namespace)+"/web")
	turns(t, host, token, asked, asked, "")

	s.Create(t, policiesPath, accessPolicy("p", cluster.Object{"rules": []cluster.Object{rule("r")}}))
	turns(t, host, token, byRule, "", byRule)
	answer := host.Ask(t, service, token, byRule)
	if answer.Audit.Rule != "p/r" {
		t.Errorf("the audit line names the rule %q", answer.Audit.Rule)
	}
	answers(t, before, "who-can", []string{"pull", "by-object/x"}, "p/r (AccessPolicy p: rules[0], in cluster ", namespace+"/"+puller+", by p/r")
	answers(t, before, "reach", []string{"e2e/" + namespace + "/" + puller}, "p/r (AccessPolicy p: rules[0])", "by-object/**: pull")
	s.Patch(t, policiesPath+"/p", cluster.Object{"spec": cluster.Object{"deny": []cluster.Object{{"name": "d", "subjects": []cluster.Object{{"namespaces": []string{namespace}}}}}}})
	turns(t, host, token, byRule, byRule, "403 subject_denied")
	s.Patch(t, policiesPath+"/p", cluster.Object{"spec": cluster.Object{"deny": nil}})
	turns(t, host, token, byRule, "403 subject_denied", byRule)
	s.Delete(t, policiesPath+"/p")
	turns(t, host, token, byRule, byRule, "")
}

// answers fails unless a command prints all of these.
func answers(t *testing.T, p *pullpass.Proxy, command string, args []string, want ...string) {
	t.Helper()
	output := p.Command(t, command, args...)
	for _, text := range want {
		if !strings.Contains(output, text) {
			t.Errorf("%s %q has no %q:\n%s", command, args, text, output)
		}
	}
}
