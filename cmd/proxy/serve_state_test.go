package main

import (
	"bytes"
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/state/statetest"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// serve runs the command until the test ends, and waits until it listens.
func serve(t *testing.T, cluster string) *proxytest.Proxy {
	t.Helper()
	p := proxytest.New(t, cluster, nil)
	serveWith(t, p)
	return p
}

// serveWith runs it as it is configured.
func serveWith(t *testing.T, p *proxytest.Proxy) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"serve", "--config", filepath.Join(p.Dir, "pullpass.yaml")}, nil, p.Stdout, p.Log)
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-ended; code != 0 {
			t.Errorf("serve ended with exit code %d\n%s", code, p.Log)
		}
	})
	testkit.Eventually(t, "serve listens", func() bool {
		status, _ := p.Fetch(t, "http://"+p.Admin+"/livez")
		return status == http.StatusOK
	})
}

// The page of each replica has what the others decided.
func TestPagesShareDecisionsInRedis(t *testing.T) {
	t.Parallel()
	redis := statetest.Redis(t)
	var replicas [2]*proxytest.Proxy
	for i := range replicas {
		p := proxytest.New(t, "  kubernetes: {manifestFiles: [serviceaccounts.yaml]}\n"+proxytest.WithRedis(redis.Address(), "off"), nil)
		p.Configure(t, "admin: {", "admin: {console: true, ")
		serveWith(t, p)
		testkit.Eventually(t, "it gets ready", func() bool { return p.Ready(t) })
		replicas[i] = p
	}
	replicas[0].Expect(t, kubetest.PodToken(t, "one"), http.StatusOK, "")
	id := replicas[0].LastEvent(t).ID
	testkit.Eventually(t, "the other replica shows and explains it", func() bool {
		_, rows := replicas[1].Fetch(t, "http://"+replicas[1].Admin+"/console/rows.json?pod=one")
		_, why := replicas[1].Fetch(t, "http://"+replicas[1].Admin+"/console/line?id="+id)
		return strings.Contains(rows, `"id":"`+id+`"`) && strings.Contains(why, "nothing: the same would be decided")
	})
	redis.Kill()
	replicas[1].Expect(t, kubetest.PodToken(t, "two"), http.StatusOK, "")
	testkit.Eventually(t, "without Redis each shows its own, and says so", func() bool {
		_, rows := replicas[1].Fetch(t, "http://"+replicas[1].Admin+"/console/rows.json?pod=two")
		return strings.Contains(rows, `"total":1`) && strings.Contains(rows, `"problem":"redis: `)
	})
}

// serveReady waits until it is ready, too.
func serveReady(t *testing.T, cluster string) *proxytest.Proxy {
	t.Helper()
	p := serve(t, "  kubernetes: {manifestFiles: [serviceaccounts.yaml]}\n"+cluster)
	testkit.Eventually(t, "serve gets ready", func() bool { return p.Ready(t) })
	return p
}

// revoke runs a command of pullpass revoke and returns what it printed.
func revoke(t *testing.T, p *proxytest.Proxy, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), append(append([]string{"revoke"}, args...), "--config", filepath.Join(p.Dir, "pullpass.yaml")), nil, &out, &errs)
	return code, out.String(), errs.String()
}

// What one replica learns counts on the other: limits and owners at once,
// revocations within a second.
func TestServeSharesStateInRedis(t *testing.T) {
	t.Parallel()
	redis := statetest.Redis(t)
	a, b := serveReady(t, proxytest.WithRedis(redis.Address(), "enforce")), serveReady(t, proxytest.WithRedis(redis.Address(), "enforce"))

	busy := kubetest.PodToken(t, "busy")
	for i, p := range []*proxytest.Proxy{a, b, a} {
		if status := p.Status(t, busy); status != http.StatusOK {
			t.Fatalf("request %d: status %d", i, status)
		}
	}
	b.Expect(t, busy, http.StatusTooManyRequests, "limited_service_account")

	stolen := kubetest.PodToken(t, "stolen")
	a.Expect(t, stolen, http.StatusOK, "")
	if status := b.StatusFrom(t, b.ClientFrom("127.0.0.2"), stolen); status != http.StatusForbidden {
		t.Errorf("a replay on the other replica: %d", status)
	}
	if e := b.LastEvent(t); e.Reason != "token_replayed" || e.Replay.Owner != "address/127.0.0.1" || e.Replay.Caller != "address/127.0.0.2" {
		t.Errorf("event %+v, replay %+v", e, e.Replay)
	}
	b.Expect(t, stolen, http.StatusOK, "") // from the owner

	code, stdout, stderr := revoke(t, a, "--pod-uid", "pod-of-stolen", "--reason", "taken over", "--by", "alice", "--for", "1h")
	if code != 0 || !strings.Contains(stdout, "revoked --pod-uid pod-of-stolen until ") || !strings.Contains(stdout, `by alice: "taken over"`) || strings.Contains(stdout, "warning") {
		t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
	}
	started := time.Now()
	testkit.Eventually(t, "both replicas refuse", func() bool {
		return b.Status(t, stolen) == http.StatusForbidden && a.Status(t, stolen) == http.StatusForbidden
	})
	if took := time.Since(started); took > 5*time.Second { // a second, on a machine with nothing else to do
		t.Errorf("a revocation took %s", took)
	}
	if e := b.LastEvent(t); e.Reason != "revoked" || e.Revocation.By != "alice" || e.Revocation.Target != "--pod-uid pod-of-stolen" ||
		!strings.Contains(e.Message, "taken over") || strings.Contains(e.Message, "alice") {
		t.Errorf("event %+v, revocation %+v", e, e.Revocation)
	}
	logged := func(want string) {
		t.Helper()
		for _, p := range []*proxytest.Proxy{a, b} {
			testkit.Eventually(t, "each replica logs the change once", func() bool { return strings.Count(p.Log.String(), want) == 1 })
		}
	}
	logged(`"msg":"revoked","target":"--pod-uid pod-of-stolen","by":"alice","reason":"taken over"`)
	if _, stdout, stderr = revoke(t, b, "list"); !strings.Contains(stdout, "--pod-uid pod-of-stolen") || !strings.Contains(stdout, `"taken over"`) {
		t.Errorf("list: %s%s", stdout, stderr)
	}
	testkit.Write(t, a.Dir, "token.jwt", stolen)
	var explained bytes.Buffer
	if code := run(t.Context(), []string{"explain", "--config", filepath.Join(a.Dir, "pullpass.yaml"), "--token-file", filepath.Join(a.Dir, "token.jwt")}, nil, &explained, &explained); code != 0 ||
		!strings.Contains(explained.String(), `by "alice"`) || !strings.Contains(explained.String(), "taken over") {
		t.Errorf("explain: %s", &explained)
	}
	if code, stdout, stderr = revoke(t, b, "undo", "--pod-uid", "pod-of-stolen", "--by", "bob"); code != 0 || !strings.Contains(stdout, "no longer revoked: --pod-uid pod-of-stolen, by bob") {
		t.Errorf("undo: %d %s%s", code, stdout, stderr)
	}
	testkit.Eventually(t, "both replicas serve again", func() bool {
		return a.Status(t, stolen) != http.StatusForbidden && b.Status(t, stolen) != http.StatusForbidden
	})

	logged(`"msg":"no longer revoked","target":"--pod-uid pod-of-stolen","by":"bob"`)

	// Two replicas, one bucket: it has two units.
	a.Expect(t, "a.b.c", http.StatusUnauthorized, "token_malformed")
	a.Expect(t, "a.b.d", http.StatusUnauthorized, "token_malformed")
	b.Expect(t, "a.b.e", http.StatusUnauthorized, "token_malformed") // and learns that nothing is left
	b.Expect(t, "a.b.f", http.StatusTooManyRequests, "limited_address")

	_, metrics := b.Fetch(t, "http://"+b.Admin+"/metrics")
	for _, want := range []string{
		`pullpass_limited_total{limit="address"} 1`, `pullpass_replays_total{cluster="prod",mode="enforce",result="other_caller"} 1`,
		"pullpass_redis_healthy 1", "pullpass_revocations 0", "pullpass_redis_failures_total 0",
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("/metrics has no line %s", want)
		}
	}
	if _, body := b.Fetch(t, "http://"+b.Admin+"/readyz"); !strings.Contains(body, `"redis":[{"name":"redis","healthy":true,"tolerated":true}]`) {
		t.Errorf("/readyz: %s", body)
	}
}

// After a change of state.redis, a command speaks to a Redis that the running replica does not use.
func TestRevokeInAnotherRedis(t *testing.T) {
	t.Parallel()
	former, next := statetest.Redis(t), statetest.Redis(t)
	p := serveReady(t, proxytest.WithRedis(former.Address(), "off"))
	file := filepath.Join(p.Dir, "pullpass.yaml")
	testkit.Put(t, file, strings.ReplaceAll(testkit.Read(t, file), former.Address(), next.Address()))
	for _, args := range [][]string{{"--node", "prod/one", "--reason", "examined", "--for", "1h"}, {"undo", "--node", "prod/one"}} {
		code, stdout, stderr := revoke(t, p, args...)
		if code != 0 || !strings.Contains(stdout, "warning: no replica uses this Redis (state.redis) now") {
			t.Errorf("%q: %d %s%s", args, code, stdout, stderr)
		}
	}
}

// Without Redis, what was known counts on, and each replica counts for itself.
func TestServeWithRedisDown(t *testing.T) {
	t.Parallel()
	redis := statetest.Redis(t)
	p := serveReady(t, proxytest.WithRedis(redis.Address(), "enforce"))
	seen, revoked := kubetest.PodToken(t, "seen"), kubetest.PodToken(t, "revoked")
	p.Expect(t, seen, http.StatusOK, "")
	if code, _, stderr := revoke(t, p, "--node", "prod/node1", "--reason", "examined"); code != 0 {
		t.Fatal(stderr)
	}
	testkit.Eventually(t, "the node is revoked", func() bool { return p.Status(t, seen) == http.StatusForbidden })
	if code, _, stderr := revoke(t, p, "undo", "--node", "prod/node1"); code != 0 {
		t.Fatal(stderr)
	}
	testkit.Eventually(t, "the node is not revoked", func() bool { return p.Status(t, seen) == http.StatusOK })
	if code, _, stderr := revoke(t, p, "--token-id", "JTI=id-of-revoked", "--reason", "stolen"); code != 0 {
		t.Fatal(stderr)
	}
	testkit.Eventually(t, "the token is revoked", func() bool { return p.Status(t, revoked) == http.StatusForbidden })

	redis.Kill()
	p.Expect(t, revoked, http.StatusForbidden, "revoked")
	unseen := kubetest.PodToken(t, "unseen")
	p.Expect(t, unseen, http.StatusServiceUnavailable, "replay_unavailable")
	for range 3 {
		p.Expect(t, seen, http.StatusOK, "") // its owner is known, and the local bucket is full
	}
	p.Expect(t, seen, http.StatusTooManyRequests, "limited_service_account")
	p.Expect(t, "a.b.c", http.StatusUnauthorized, "token_malformed")
	p.Expect(t, "a.b.d", http.StatusUnauthorized, "token_malformed")
	p.Expect(t, "a.b.e", http.StatusUnauthorized, "token_malformed")
	p.Expect(t, "a.b.f", http.StatusTooManyRequests, "limited_address")

	status, body := p.Fetch(t, "http://"+p.Admin+"/readyz")
	if status != http.StatusOK || !strings.Contains(body, `"redis":[{"name":"redis","healthy":false,"tolerated":true,"message":"limits count for this replica alone`) {
		t.Errorf("/readyz: %d %s", status, body)
	}
	if _, metrics := p.Fetch(t, "http://"+p.Admin+"/metrics"); !strings.Contains(metrics, "pullpass_redis_healthy 0\n") || !strings.Contains(metrics, "pullpass_revocations 1\n") {
		t.Error("/metrics does not say that Redis is down, or forgot the revocation")
	}
	if code, _, stderr := revoke(t, p, "--token-id", "x", "--reason", "y"); code != 1 || !strings.Contains(stderr, "redis") {
		t.Errorf("revoke without Redis: %d %s", code, stderr)
	}
	redis.Start()
	testkit.Eventually(t, "Redis answers again", func() bool { return p.Status(t, unseen) == http.StatusOK })
	p.Expect(t, revoked, http.StatusForbidden, "revoked") // also by what the replica wrote back
}

// A second revocation does not shorten the first: its operator relies on it.
func TestRevocationIsNotShortened(t *testing.T) {
	t.Parallel()
	p := serveReady(t, proxytest.WithRedis(statetest.Redis(t).Address(), "off"))
	for _, step := range []struct{ lifetime, want string }{
		{"48h", `revoked --node prod/node1 until `},
		{"6s", `stays revoked: --node prod/node1 until `},
		{"72h", `revoked --node prod/node1 until `},
		{"48h", `: "for 72h"; to shorten it, end it first with pullpass revoke undo`},
	} {
		code, stdout, stderr := revoke(t, p, "--node", "prod/node1", "--for", step.lifetime, "--reason", "for "+step.lifetime)
		if code != 0 || !strings.Contains(stdout, step.want) {
			t.Errorf("--for %s: %d %s%s", step.lifetime, code, stdout, stderr)
		}
	}
	if _, stdout, _ := revoke(t, p, "list"); strings.Count(stdout, "prod/node1") != 1 || !strings.Contains(stdout, `"for 72h"`) {
		t.Errorf("list: %s", stdout)
	}
}

// A cluster or identity with a new name has no revocation of its former name. Operators are told, and can end it.
func TestRevocationsOfAFormerName(t *testing.T) {
	t.Parallel()
	p := serveReady(t, proxytest.WithRedis(statetest.Redis(t).Address(), "off")+proxytest.Identities)
	targets := []string{"--service-account prod/team-a/web", "--project github/42"}
	for _, target := range targets {
		if code, _, stderr := revoke(t, p, append([]string{"--reason", "examined"}, strings.Fields(target)...)...); code != 0 {
			t.Fatal(stderr)
		}
	}
	if _, _, stderr := revoke(t, p, "list"); stderr != "" {
		t.Errorf("list: %s", stderr)
	}
	p.Configure(t, "- name: prod\n", "- name: prod-eu\n")
	p.Configure(t, "{name: github,", "{name: github-new,")
	for _, target := range targets {
		want := target + " has no effect: its cluster or identity is not configured; if it has a new name, revoke under that name"
		if _, stdout, stderr := revoke(t, p, "list"); !strings.Contains(stdout, target) || !strings.Contains(stderr, want) {
			t.Errorf("list: %s%s", stdout, stderr)
		}
		testkit.Eventually(t, "the log says so", func() bool {
			return strings.Count(p.Log.String(), `"msg":"revoked without effect: its cluster or identity is not configured; if it has a new name, revoke under that name","target":"`+target+`"`) > 0
		})
		if code, _, stderr := revoke(t, p, append([]string{"undo"}, strings.Fields(target)...)...); code != 0 {
			t.Error(stderr)
		}
	}
	if _, stdout, stderr := revoke(t, p, "list"); stderr != "" || strings.Contains(stdout, "prod/") {
		t.Errorf("list: %s%s", stdout, stderr)
	}
}

// Revocations are unknown until the list was read once. Until then, each request
// is refused, and the replica is not ready for load balancers.
func TestServeBeforeRevocationsAreRead(t *testing.T) {
	t.Parallel()
	p := serve(t, proxytest.WithRedis(testkit.FreeAddress(t), "off"))
	p.Expect(t, kubetest.PodToken(t, "web"), http.StatusServiceUnavailable, "revocations_unavailable")
	status, body := p.Fetch(t, "http://"+p.Admin+"/readyz")
	if status != http.StatusServiceUnavailable || !strings.Contains(body, "has not been read yet, so nothing is granted") {
		t.Errorf("/readyz: %d %s", status, body)
	}
}

// One replica needs no Redis for limits and replay, and says so of revocations.
func TestServeKeepsStateInMemory(t *testing.T) {
	t.Parallel()
	p := serveReady(t, "state: {replay: audit}\nlimits: {perServiceAccount: {rate: 0.01, burst: 2}}\n")
	raw := kubetest.PodToken(t, "web")
	p.Expect(t, raw, http.StatusOK, "")
	if status := p.StatusFrom(t, p.ClientFrom("127.0.0.2"), raw); status != http.StatusOK || p.LastEvent(t).Replay.Reason != "other_caller" {
		t.Errorf("status %d, event %+v", status, p.LastEvent(t).Replay)
	}
	p.Expect(t, raw, http.StatusTooManyRequests, "limited_service_account")
	if code, _, stderr := revoke(t, p, "--token-id", "x", "--reason", "y"); code != 1 || !strings.Contains(stderr, "state.redis.addresses") || !strings.Contains(stderr, "deny rule") {
		t.Errorf("revoke without Redis: %d %s", code, stderr)
	}
	if _, body := p.Fetch(t, "http://"+p.Admin+"/readyz"); strings.Contains(body, "redis") {
		t.Errorf("/readyz: %s", body)
	}
}

// A typing error in a target would have no effect, unnoticed.
func TestRevokeRefuses(t *testing.T) {
	t.Parallel()
	p := proxytest.New(t, proxytest.WithRedis("127.0.0.1:1", "off"), nil)
	for want, args := range map[string][]string{
		`is not CLUSTER/NAMESPACE/NAME`:     {"--service-account", "prod//web"},
		"is empty; write its value":         {"--token-id", ""},
		"at least one of the flags":         {},
		"none of the others can be":         {"--token-id", "x", "--node", "prod/node1"},
		"until":                             {"--token-id", "x", "--for", "-1h"},
		"reason is needed":                  {"--token-id", "x", "--reason", ""},
		`required flag(s) "reason" not set`: nil,
	} {
		if args == nil {
			args = []string{"--token-id", "x"}
		} else {
			args = append([]string{"--reason", "why"}, args...)
		}
		if code, _, stderr := revoke(t, p, args...); code != 1 || !strings.Contains(stderr, want) {
			t.Errorf("%q: exit code %d, %s; want %s", args, code, stderr, want)
		}
	}
}
