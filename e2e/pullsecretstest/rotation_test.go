package pullsecretstest

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// TestRotation: the leader changes, the API server changes its key, and the clock of a node is wrong. Nothing is written but
// what must be.
func TestRotation(t *testing.T) {
	t.Parallel()
	const n = 20
	s := startSite(t)
	s.CreateNamespace(t, "team-a", optedIn)
	for i := range n {
		s.account(t, "team-a", fmt.Sprint("sa-", i), true)
	}
	first := s.run(t, "first")
	s.awaitKept(t, first, n+1)
	second := s.run(t, "second")
	if led := second.metric(t, "pullpass_pull_secrets_leader"); led != 0 || first.metric(t, "pullpass_pull_secrets_leader") != 1 {
		t.Errorf("both lead: %d", led)
	}
	tokens := s.tokens(t)

	testenv.Await(t, limit, "the memory has all tokens", func() bool {
		memory := s.Get(t, "/api/v1/namespaces/"+namespace+"/configmaps/"+controller)
		return strings.Count(memory.Text("data", "tokens.json"), `"i":`) == n+1
	})
	mark := s.mark(t)
	since := time.Now()
	first.Kill(t)
	s.awaitKept(t, second, n+1)
	s.expectNoChange(t, "a leader was killed", mark)
	s.saw(t, "a leader was killed; the other one leads after %s", time.Since(since).Round(time.Second))
	since = time.Now()
	third := s.run(t, "third")
	second.stop(t)
	s.awaitKept(t, third, n+1)
	s.expectNoChange(t, "a leader ended", mark)
	s.saw(t, "a leader ended; the other one leads after %s", time.Since(since).Round(time.Second))

	// Both keys are good: nothing is urgent. The test renews the controller's own token, as the kubelet would.
	next := certs.NewRSAKey(t)
	third.stop(t)
	s.rotate(t, next, next, s.key)
	testenv.WriteFile(t, s.access.TokenFile, s.token(t, s.Access(t, controller)))
	mark = s.mark(t)
	fourth := s.run(t, "fourth")
	s.awaitKept(t, fourth, n+1)
	s.expectNoChange(t, "there is a new key", mark)
	fourth.stop(t)

	// The key before is not published any more: the tokens are good for nothing.
	s.rotate(t, next, next)
	mark, since = s.mark(t), time.Now()
	fifth := s.run(t, "fifth")
	testenv.Await(t, limit, "all tokens are made again", func() bool { return fifth.metric(t, `pullpass_pull_secret_writes_total{kind="token"}`) == n+1 })
	s.expectChanges(t, "for a key that is gone", mark, "", map[string]int{"update secrets": n + 1, "create serviceaccounts/token": n + 1})
	now := s.tokens(t)
	for name, token := range tokens {
		if now[name] == token {
			t.Errorf("%s has the token of a key that is gone", name)
		}
		if !s.reviewed(t, now[name]) || s.reviewed(t, token) {
			t.Errorf("%s: the API server does not believe the new token, or believes the one before", name)
		}
	}
	s.saw(t, "the key is gone; %d tokens are made again after %s", n+1, time.Since(since).Round(time.Second))
}

func (s *site) expectNoChange(t testing.TB, what string, mark int) {
	t.Helper()
	if got := s.changes(t, mark, ""); len(got) > 0 {
		t.Errorf("%s: %v", what, got)
	}
}

// rotate starts the API server anew, with other keys. It learns of policies, and of their parameters, anew.
func (s *site) rotate(t testing.TB, signing certs.RSAKey, trusted ...certs.RSAKey) {
	t.Helper()
	s.Crash(t)
	s.SetKeys(signing, trusted...)
	s.Recover(t)
	s.awaitEnforced(t)
}

// tokens are those of the Secrets of a namespace, by the names of those.
func (s *site) tokens(t testing.TB) map[string]string {
	t.Helper()
	tokens := map[string]string{}
	for _, item := range s.Get(t, "/api/v1/namespaces/team-a/secrets?fieldSelector=type%3Dkubernetes.io/dockerconfigjson")["items"].([]any) {
		o := cluster.Object(item.(map[string]any))
		tokens[o.Name()] = s.password(t, o)
	}
	return tokens
}

// reviewed is what Pullpass asks the API server.
func (s *site) reviewed(t testing.TB, token string) bool {
	t.Helper()
	review, err := s.Try(t.Context(), http.MethodPost, "/apis/authentication.k8s.io/v1/tokenreviews", cluster.Object{"spec": cluster.Object{"token": token, "audiences": []string{audience}}})
	testenv.Must(t, err)
	isGood, _ := review["status"].(map[string]any)["authenticated"].(bool)
	return isGood
}
