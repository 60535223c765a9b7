package main

import (
	"bytes"
	"encoding/json"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/policy/reach"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const objectPolicy = `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- {name: asked-for, subjects: [{namespaces: ["team-*"]}], requests: true, allow: [{repositories: ["{namespace}/**", "shared/**", "beyond/**"], actions: [pull]}]}
- {name: plain, subjects: [{namespaces: ["*"]}], allow: [{repositories: ["plain/**"], actions: [pull]}]}
`

const withObjects = "  kubernetes: {kubeconfigFile: kubeconfig, objects: {policies: true, requests: true, within: ['{namespace}/**', 'shared/**', 'by-object/**']}}\n"

// putObjects has an API server serve objects: of a rule, of two requests, and of a denial
// for another subject.
func putObjects(api *kubetest.Server) {
	any := func(list ...any) []any { return list }
	api.Put("accesspolicies", kubetest.Object{"metadata": kubetest.Object{"name": "p", "uid": "uid-p"}, "spec": kubetest.Object{
		"rules": any(kubetest.Object{"name": "own", "subjects": any(kubetest.Object{"namespaces": any("team-a")}),
			"allow": any(kubetest.Object{"repositories": any("by-object/**", "beyond/**"), "actions": any("pull", "push")})},
			kubetest.Object{"name": "cut", "subjects": any(kubetest.Object{"namespaces": any("team-a")}),
				"allow": any(kubetest.Object{"repositories": any("beyond/**"), "actions": any("pull")})}),
		"deny": any(kubetest.Object{"name": "bad", "subjects": any(kubetest.Object{"namespaces": any("team-bad")})}),
	}})
	for name, repository := range map[string]string{"web": "team-a/**", "base": "shared/base"} {
		api.Put("repositoryaccesses", kubetest.Object{"metadata": kubetest.Object{"name": name, "namespace": "team-a", "uid": "uid-" + name}, "spec": kubetest.Object{
			"serviceAccounts": any("web"), "repositories": any(repository), "actions": any("pull"),
		}})
	}
}

// In a cluster with objects, who-can and reach say what serve decides.
func TestReachAgreesWithServe(t *testing.T) {
	t.Parallel()
	api := kubetest.NewAPIServer(t)
	putObjects(api)
	p := proxytest.New(t, withObjects, map[string]string{"kubeconfig": api.Kubeconfig(), "policy.yaml": objectPolicy})
	file := filepath.Join(p.Dir, "pullpass.yaml")
	p.Configure(t, "admin: {", "admin: {console: true, ")
	serveWith(t, p)
	ask := func(scope string) exchange.Event {
		t.Helper()
		request := p.Get(t, url.Values{"service": {"registry.example.com"}, "scope": {scope}})
		request.SetBasicAuth("x", kubetest.Token(t, "https://issuer.example.com"))
		p.Ask(t, "", request)
		return p.LastEvent(t)
	}
	testkit.Eventually(t, "the objects count", func() bool { return ask("repository:team-a/web:pull").Granted != nil })
	answer := func(args ...string) []byte {
		t.Helper()
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), append(args, "--config", file), nil, &stdout, &stderr); code != 0 {
			t.Fatalf("%q: %s", args, &stderr)
		}
		return stdout.Bytes()
	}
	var what reach.What
	text := answer("reach", "prod/team-a/web", "-o", "json")
	testkit.Must(t, checkPolicyAnswer(text))
	testkit.Must(t, json.Unmarshal(text, &what))
	reaches := func(repository, action string) bool {
		return slices.ContainsFunc(what.Services[0].Rules, func(r reach.ReachedRule) bool {
			return slices.ContainsFunc(r.Reached, func(r reach.Reached) bool {
				return strings.Contains(r.Actions, action) && !slices.ContainsFunc(append(r.Within, r.Repositories), func(p string) bool { return !pattern.Pattern(p).Match(repository, nil, new(int)) })
			})
		})
	}
	granted := 0
	for _, repository := range []string{"team-a/web", "team-a/x/y", "team-b/web", "shared/base", "shared/other", "by-object/x", "beyond/x", "plain/x", "none"} {
		for _, action := range []string{"pull", "push"} {
			event := ask("repository:" + repository + ":" + action)
			isGranted := len(event.Granted) > 0
			var who reach.Who
			text := answer("who-can", action, repository, "-o", "json")
			testkit.Must(t, checkPolicyAnswer(text))
			testkit.Must(t, json.Unmarshal(text, &who))
			found := slices.IndexFunc(who.Clusters[0].Granted, func(a reach.GrantedAccount) bool { return a.Namespace == "team-a" && a.Name == "web" })
			byRule := slices.ContainsFunc(who.Rules, func(r reach.Grant) bool { return r.Name == event.Rule })
			if (found >= 0) != isGranted || byRule != isGranted || reaches(repository, action) != isGranted || isGranted && who.Clusters[0].Granted[found].Rules[0] != event.Rule {
				t.Errorf("%s %s: serve says %+v, reach %t, and who-can\n%s", action, repository, event, reaches(repository, action), text)
			}
			if isGranted {
				granted++
			}
		}
	}
	if granted != 6 {
		t.Errorf("%d granted: hardly tested", granted)
	}
	// As people read it.
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"who-can", "pull", "team-a/web"}, `by rule      asked-for (policy.yaml: rules[0], in cluster prod), by {namespace}/**
             and within {namespace}/**
             if a RepositoryAccess asks for it:
             namespaces team-*; where {namespace} is team-a
             the RepositoryAccess team-a/web asks for it now, for web
`},
		{[]string{"who-can", "pull", "team-b/web"}, "             no RepositoryAccess asks for it now\n"},
		{[]string{"who-can", "push", "by-object/x"}, `never        whom the deny rule p/bad matches (AccessPolicy p: deny[0], in cluster prod):
             namespaces team-bad

by rule      p/own (AccessPolicy p: rules[0], in cluster prod), by by-object/**
             and within {namespace}/** by-object/**
             namespaces team-a
`},
		{[]string{"reach", "prod/team-a/web"}, `by rule      asked-for (policy.yaml: rules[0]), of what RepositoryAccess objects ask for
             team-a/**: pull, as team-a/web asks
             shared/base: pull, as team-a/base asks
by rule      plain (policy.yaml: rules[1])
             plain/**: pull
by rule      p/own (AccessPolicy p: rules[0])
             by-object/**: pull, push
by rule      p/cut (AccessPolicy p: rules[1])
             nothing: it allows nothing within objects.within
`},
	} {
		if text := strings.ReplaceAll(string(answer(test.args...)), p.Dir+"/", ""); !strings.Contains(text, test.want) {
			t.Errorf("%q:\n%s\nwant\n%s", test.args, text, test.want)
		}
	}
	for path, want := range map[string][]string{
		"who?action=pull&repository=team-a/web": {"rules[0], in cluster prod<", "and within {namespace}/**", "the RepositoryAccess team-a/web asks for it now, for web", "AccessPolicy p: deny[0], in cluster prod", "1 of 1"},
		"who?action=pull&repository=team-b/web": {"no RepositoryAccess asks for it now", "0 of 1"},
		"reach?account=prod/team-a/web":         {"of what RepositoryAccess objects ask for:", "<code>shared/base</code>: pull, as team-a/base asks", "AccessPolicy p: rules[0]"},
	} {
		_, page := p.Fetch(t, "http://"+p.Admin+"/console/"+path)
		for _, text := range want {
			if !strings.Contains(page, text) {
				t.Errorf("%s: no %q in\n%s", path, text, page)
			}
		}
	}
}

// If an API server is down, the file says what its objects could ask for, and no output claims
// that they ask for nothing.
func TestWhoCanWithoutObjects(t *testing.T) {
	t.Parallel()
	api := kubetest.NewAPIServer(t)
	api.Close()
	p := proxytest.New(t, withObjects, map[string]string{"kubeconfig": api.Kubeconfig(), "policy.yaml": objectPolicy})
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"who-can", "pull", "team-a/web", "--config", filepath.Join(p.Dir, "pullpass.yaml")}, nil, &stdout, &stderr); code != 0 {
		t.Fatal(stderr.String())
	}
	for _, want := range []string{"rules[0], in cluster prod), by {namespace}/**\n             and within {namespace}/**\n", "its ServiceAccounts and objects are not known: cluster prod: "} {
		if !strings.Contains(stdout.String(), want) || strings.Contains(stdout.String(), "no RepositoryAccess") {
			t.Errorf("%s\nwant %s", &stdout, want)
		}
	}
}
