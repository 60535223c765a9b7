package pullsecretstest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	namespaces   = 50
	perNamespace = 100
	rounds       = 10 // in which all ServiceAccounts of a namespace are deleted and made again
	inParallel   = 16
)

// all is how many have opted in: those of grow, and that of awaitPolicies.
const all = namespaces*perNamespace + 1

// TestScale keeps the Secrets of 5,000 ServiceAccounts.
func TestScale(t *testing.T) {
	t.Parallel()
	s := startSite(t)
	s.grow(t)
	s.saw(t, "%d ServiceAccounts are there", all)
	mark := s.mark(t)
	first := s.run(t, "first")
	s.awaitKept(t, first, all)
	s.saw(t, "their Secrets are made, by %v", s.changes(t, mark, ""))
	s.expectChanges(t, fmt.Sprint(all, " Secrets took"), mark, "", map[string]int{"create secrets": all, "create serviceaccounts/token": all, "update secrets": all})
	if n := first.metric(t, `pullpass_pull_secret_failures_total`); n != 0 {
		t.Errorf("%d failures", n)
	}
	s.checkOwners(t, "")
	first.stop(t)

	mark = s.mark(t)
	aged := s.age(t)
	before := len(s.Requests(t, 0))
	second := s.run(t, "second")
	s.awaitKept(t, second, all)
	testenv.Await(t, limit, "nothing is due", func() bool { return second.metric(t, "pullpass_pull_secret_overdue_seconds") == 0 })
	s.checkRenewed(t, mark, aged)
	s.saw(t, "after a restart, with %d requests, %v: of tokens of 30 minutes none, of 36 some, of 40 all", len(s.Requests(t, before)), s.changes(t, mark, ""))

	s.testStripped(t, second)
	s.testChurn(t, second)
	s.saw(t, "all of it")
}

// grow makes the ServiceAccounts, in a few namespaces, beside some that have not opted in.
func (s *site) grow(t *testing.T) {
	for n := range namespaces {
		s.CreateNamespace(t, space(n), optedIn)
	}
	s.parallel(t, namespaces*(perNamespace+1), func(ctx context.Context, n int) error {
		_, err := s.tryAccount(ctx, space(n%namespaces), fmt.Sprint("sa-", n/namespaces), n/namespaces < perNamespace)
		return err
	})
}

func space(n int) string { return fmt.Sprintf("space-%02d", n) }

func path(kind string, space int, name string) string {
	return "/api/v1/namespaces/" + fmt.Sprintf("space-%02d", space) + "/" + kind + "/" + name
}

// parallel does n things, some at a time.
func (s *site) parallel(t testing.TB, n int, do func(ctx context.Context, n int) error) {
	t.Helper()
	next := make(chan int)
	failed := make(chan error, inParallel)
	var working sync.WaitGroup
	for range inParallel {
		working.Go(func() {
			var errs error
			for i := range next {
				errs = errors.Join(errs, do(t.Context(), i))
			}
			failed <- errs
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	working.Wait()
	for range inParallel {
		testenv.Must(t, <-failed)
	}
}

// checkOwners holds the Secrets to the ServiceAccounts: each that has opted in has one with a token, which is bound to its
// UID, and there is no other. It returns the ServiceAccounts by their names. namespace "" means all of them.
func (s *site) checkOwners(t testing.TB, namespace string) map[string]cluster.Object {
	t.Helper()
	in := "/api/v1/"
	if namespace != "" {
		in += "namespaces/" + namespace + "/"
	}
	accounts := map[string]cluster.Object{}
	for _, item := range s.Get(t, in+"serviceaccounts?labelSelector="+label+"%3Denabled")["items"].([]any) {
		o := cluster.Object(item.(map[string]any))
		accounts[o.Namespace()+"/"+prefix+o.Name()] = o
	}
	secrets := s.Get(t, in+"secrets?fieldSelector=type%3Dkubernetes.io/dockerconfigjson")["items"].([]any)
	for _, item := range secrets {
		o := cluster.Object(item.(map[string]any))
		account, ok := accounts[o.Namespace()+"/"+o.Name()]
		if !ok {
			t.Fatalf("the Secret %s/%s has no owner", o.Namespace(), o.Name())
		}
		k := s.claims(t, o)["kubernetes.io"].(map[string]any)
		if bound, of := cluster.Object(k).Text("secret", "uid"), cluster.Object(k).Text("serviceaccount", "uid"); bound != o.UID() || of != account.UID() {
			t.Fatalf("the Secret %s/%s has a token of %s that is bound to %s", o.Namespace(), o.Name(), of, bound)
		}
	}
	if len(secrets) != len(accounts) {
		t.Fatalf("%d Secrets of %d ServiceAccounts", len(secrets), len(accounts))
	}
	return accounts
}

// ages are those that tokens seem to have, each in a namespace of its own.
var ages = []time.Duration{30 * time.Minute, 36 * time.Minute, 40 * time.Minute}

// age lets the tokens of some namespaces seem old, in the memory of the controller. It returns the number of the first.
func (s *site) age(t testing.TB) int {
	t.Helper()
	const first = 10
	memory := "/api/v1/namespaces/" + namespace + "/configmaps/" + controller
	var stored map[string]any
	testenv.Must(t, json.Unmarshal([]byte(s.Get(t, memory).Text("data", "tokens.json")), &stored))
	tokens := stored["tokens"].(map[string]any)
	if len(tokens) != all {
		t.Fatalf("%d tokens of %d are remembered", len(tokens), all)
	}
	for i, age := range ages {
		for _, item := range s.Get(t, "/api/v1/namespaces/"+space(first+i)+"/secrets?fieldSelector=type%3Dkubernetes.io/dockerconfigjson")["items"].([]any) {
			tokens[cluster.Object(item.(map[string]any)).UID()].(map[string]any)["i"] = time.Now().Add(-age).Unix()
		}
	}
	text := testenv.Value(json.Marshal(stored))(t)
	s.saw(t, "the memory has %d bytes", len(text))
	s.Patch(t, memory, cluster.Object{"data": cluster.Object{"tokens.json": string(text)}})
	return first
}

// checkRenewed: nothing was written but what was due: nothing at half of a token's life, some at 60 %, and all at two thirds,
// each once.
func (s *site) checkRenewed(t testing.TB, mark, first int) {
	t.Helper()
	// A request may be in the log after its answer.
	testenv.Poll(limit, func() bool { return s.changes(t, mark, space(first+2))["update secrets"] >= perNamespace })
	renewed := map[string]map[string]int{} // by namespace and name
	for _, r := range s.Requests(t, mark) {
		switch {
		case !r.Changes() || isItsOwn(r):
		case r.Resource == "secrets" && r.Verb == "update":
			if renewed[r.Namespace] == nil {
				renewed[r.Namespace] = map[string]int{}
			}
			renewed[r.Namespace][r.Name]++
		case r.Subresource != "token":
			t.Errorf("after a restart: %+v", r)
		}
	}
	some := len(renewed[space(first+1)])
	if len(renewed) != 2 || len(renewed[space(first+2)]) != perNamespace || some < perNamespace/4 || some > perNamespace*3/4 {
		t.Errorf("renewed in %d namespaces; at 60 %% %d, at two thirds %d of %d", len(renewed), some, len(renewed[space(first+2)]), perNamespace)
	}
	for namespace, names := range renewed {
		for name, times := range names {
			if times != 1 {
				t.Errorf("%s/%s was renewed %d times", namespace, name, times)
			}
		}
	}
}

// testStripped: another controller rewrites ServiceAccounts, and strips unknown fields from Secrets. The number of writes
// against it has a limit, and there is never more than one Secret of a ServiceAccount.
func (s *site) testStripped(t *testing.T, r *replica) {
	const n = 20
	mark := s.mark(t)
	for round := range 10 {
		s.parallel(t, perNamespace, func(ctx context.Context, i int) error {
			name := fmt.Sprint("sa-", i)
			_, accountErr := s.Try(ctx, http.MethodPatch, path("serviceaccounts", n, name), cluster.Object{
				"metadata": cluster.Object{"annotations": cluster.Object{"example.com/round": fmt.Sprint(round)}}, "secrets": nil, "imagePullSecrets": nil,
			})
			_, secretErr := s.Try(ctx, http.MethodPatch, path("secrets", n, prefix+name), cluster.Object{"metadata": cluster.Object{"annotations": nil}})
			return errors.Join(accountErr, secretErr)
		})
	}
	if got := s.changes(t, mark, space(n)); len(got) > 0 {
		t.Errorf("while ServiceAccounts and Secrets were stripped 1,000 times: %v", got)
	}
	// It removes the label, too, and an administrator restores it: the Secrets are checked again.
	relabel := func(value any) {
		s.parallel(t, perNamespace, func(ctx context.Context, i int) error {
			_, err := s.Try(ctx, http.MethodPatch, path("serviceaccounts", n, fmt.Sprint("sa-", i)), cluster.Object{"metadata": cluster.Object{"labels": cluster.Object{label: value}}})
			return err
		})
	}
	relabel(nil)
	s.awaitKept(t, r, all-perNamespace)
	relabel("enabled")
	s.awaitKept(t, r, all)
	s.expectChanges(t, "when they have opted in again", mark, space(n), map[string]int{"create serviceaccounts/token": perNamespace, "update secrets": perNamespace})
	s.checkOwners(t, space(n))
	s.saw(t, "stripped 1,000 times, opted out and in again: %v", s.changes(t, mark, space(n)))
}

// testChurn deletes ServiceAccounts and makes them again, 1,000 times.
func (s *site) testChurn(t *testing.T, r *replica) {
	const n = 30
	mark := s.mark(t)
	s.parallel(t, perNamespace, func(ctx context.Context, i int) error {
		name := fmt.Sprint("sa-", i)
		for range rounds {
			if _, err := s.Try(ctx, http.MethodDelete, path("serviceaccounts", n, name), nil); err != nil {
				return err
			}
			if _, err := s.tryAccount(ctx, space(n), name, true); err != nil {
				return err
			}
		}
		if i%2 == 0 { // for good
			_, err := s.Try(ctx, http.MethodDelete, path("serviceaccounts", n, name), nil)
			return err
		}
		return nil
	})
	s.saw(t, "deleted and made again %d times", rounds*perNamespace)
	left := all - perNamespace/2
	s.awaitKept(t, r, left)
	testenv.Await(t, limit, "the garbage collector is done", func() bool {
		return len(s.Get(t, "/api/v1/namespaces/"+space(n)+"/secrets?fieldSelector=type%3Dkubernetes.io/dockerconfigjson")["items"].([]any)) == perNamespace/2
	})
	if accounts := s.checkOwners(t, space(n)); len(accounts) != perNamespace/2 {
		t.Errorf("%d ServiceAccounts, want %d: none comes back", len(accounts), perNamespace/2)
	}
	if got := s.changes(t, mark, space(n)); got["create secrets"] > rounds*perNamespace+perNamespace {
		t.Errorf("%v for %d ServiceAccounts", got, rounds*perNamespace)
	}
	s.saw(t, "no orphans, and none is back: %v", s.changes(t, mark, space(n)))
}
