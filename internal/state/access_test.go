package state_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pullpass/pullpass/internal/state"
	"github.com/pullpass/pullpass/internal/state/statetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const (
	user     = "pullpass"
	password = "a password that stays secret"
)

// documentedRights returns the rights that the manual tells operators to grant, so that the tests
// use exactly these.
func documentedRights(t *testing.T, cluster bool) []string {
	t.Helper()
	manual := testkit.Read(t, "../../docs/how-to/redis.md")
	var rights []string
	for line := range strings.Lines(manual) {
		fields := strings.Fields(line)
		if len(fields) > 4 && slices.Equal(fields[:4], []string{"ACL", "SETUSER", user, "on"}) {
			rights = slices.DeleteFunc(fields[4:], func(field string) bool { return strings.HasPrefix(field, ">") })
		}
	}
	if len(rights) == 0 {
		t.Fatal("docs/how-to/redis.md has no line that begins with ACL SETUSER pullpass on")
	}
	if !cluster {
		rights = slices.DeleteFunc(rights, func(right string) bool { return strings.HasPrefix(right, "+cluster|") || right == "+asking" })
	}
	return rights
}

func setUser(t *testing.T, admin *redis.Client, rights []string) {
	t.Helper()
	command := []any{"acl", "setuser", user, "reset", "on", ">" + password}
	for _, right := range rights {
		command = append(command, right)
	}
	testkit.Must(t, admin.Do(t.Context(), command...).Err())
}

func administrator(t testing.TB, server *statetest.Server) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: server.Address(), DialTimeout: patient, ReadTimeout: patient})
	t.Cleanup(func() { client.Close() })
	return client
}

func replicasWithTLS(t *testing.T) [2]statetest.Replica {
	caFile, args := statetest.TLS(t)
	server, tlsAddress := statetest.RedisWithTLS(t, args...)
	setUser(t, administrator(t, server), documentedRights(t, false))
	return replicas(t, state.RedisConfig{
		Addresses: []string{tlsAddress}, Username: user, PasswordFile: testkit.TempFile(t, "password", password+"\n"), TLS: &state.RedisTLS{CAFile: caFile},
	})
}

func replicasOfSentinelWithACL(t *testing.T) [2]statetest.Replica {
	servers := statetest.StartSentinels(t)
	setUser(t, administrator(t, servers.Master), documentedRights(t, false))
	return replicas(t, state.RedisConfig{
		Addresses: servers.Addresses, MasterName: statetest.MasterName, Username: user, PasswordFile: testkit.TempFile(t, "password", password),
	})
}

// replicasOfClusterWithACL also tests that a Cluster needs the right that is documented for it.
func replicasOfClusterWithACL(t *testing.T) [2]statetest.Replica {
	cluster := statetest.StartCluster(t)
	config := state.RedisConfig{Addresses: cluster.Addresses, Username: user, PasswordFile: testkit.TempFile(t, "password", password)}
	for _, isCluster := range []bool{false, true} {
		for _, node := range cluster.Nodes {
			setUser(t, administrator(t, node), documentedRights(t, isCluster))
		}
		_, err := open(t, config).Own(t.Context(), "key", "owner", time.Now().Add(time.Hour))
		if failed := err != nil && strings.Contains(err.Error(), "permission"); failed == isCluster {
			t.Errorf("with %s: %v", documentedRights(t, isCluster), err)
		}
	}
	return replicas(t, config)
}

// TestClusterSlotsBeingMoved leaves every used slot between two nodes, as during the move of a slot
// with many keys. The node that had a key redirects the call, and the call to the other node needs
// ASKING.
func TestClusterSlotsBeingMoved(t *testing.T) {
	t.Parallel()
	cluster := statetest.StartCluster(t)
	config := state.RedisConfig{
		Addresses: cluster.Addresses, Username: user, PasswordFile: testkit.TempFile(t, "password", password), Timeout: patient,
	}
	setRights := func(rights []string) {
		for _, node := range cluster.Nodes {
			setUser(t, administrator(t, node), rights)
		}
	}
	use := func() error {
		client := open(t, config)
		if owner, err := client.Own(t.Context(), "key", "node-2", time.Now().Add(time.Hour)); err != nil || owner != "node-1" {
			return fmt.Errorf("owner %q, %w", owner, err)
		}
		if ok, _, err := client.Take(t.Context(), "key", state.Limit{Rate: 0.001, Burst: 1}, 1); err != nil || ok {
			return fmt.Errorf("taken %t, %w", ok, err)
		}
		list, err := state.NewRedisRevocations(client).List(t.Context())
		if err == nil && len(list) != 1 {
			err = fmt.Errorf("revoked: %+v", list)
		}
		return err
	}
	rights := documentedRights(t, true)
	setRights(rights)
	client := open(t, config)
	if _, err := client.Own(t.Context(), "key", "node-1", time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if ok, _, err := client.Take(t.Context(), "key", state.Limit{Rate: 0.001, Burst: 1}, 1); err != nil || !ok {
		t.Fatal(ok, err)
	}
	testkit.Must(t, state.NewRedisRevocations(client).Add(t.Context(), anyRevocation("a reason")))
	if moved := cluster.MoveKeysHalf(t); moved != 3 {
		t.Fatalf("%d keys, want 3", moved)
	}
	if err := use(); err != nil {
		t.Error(err)
	}
	setRights(slices.DeleteFunc(rights, func(right string) bool { return right == "+asking" }))
	if err := use(); err == nil || !strings.Contains(err.Error(), "permission") {
		t.Errorf("without +asking: %v", err)
	}
}

// TestEachDocumentedRightIsNeeded removes the rights one by one. Each time an operation must fail
// with an error that says so.
func TestEachDocumentedRightIsNeeded(t *testing.T) {
	t.Parallel()
	admin := administrator(t, statetest.Redis(t))
	config := state.RedisConfig{
		Addresses: []string{admin.Options().Addr}, Username: user, PasswordFile: testkit.TempFile(t, "password", password), Timeout: patient,
	}
	rights := documentedRights(t, false)
	setUser(t, admin, rights)
	if failure := useEverything(t, admin, config); failure != "" {
		t.Fatalf("with all rights: %s", failure)
	}
	for i, right := range rights {
		setUser(t, admin, slices.Delete(slices.Clone(rights), i, i+1))
		failure := useEverything(t, admin, config)
		if !strings.Contains(failure, "permission") && !strings.Contains(failure, "can't") {
			t.Errorf("without %s: %q", right, failure)
		}
		if strings.Contains(failure, password) {
			t.Errorf("without %s: the error holds the password", right)
		}
	}
}

// useEverything does every operation that needs a right, and returns the first failure.
func useEverything(t *testing.T, admin *redis.Client, config state.RedisConfig) string {
	t.Helper()
	testkit.Must(t, admin.FlushAll(t.Context()).Err())
	if err := admin.ScriptFlush(t.Context()).Err(); err != nil { // cached scripts would hide that EVAL is needed
		t.Fatal(err)
	}
	testkit.Must(t, admin.HSet(t.Context(), "pullpass:revocations", "ended", "1 1 {}").Err())
	client := open(t, config)
	if _, err := client.Own(t.Context(), "key", "owner", time.Now().Add(time.Hour)); err != nil {
		return err.Error()
	}
	for range 2 {
		if _, _, err := client.Take(t.Context(), "key", state.Limit{Rate: 1, Burst: 1}, 1); err != nil {
			return err.Error()
		}
	}
	if _, err := sharedLimits(t, client, nil).OwnAndTake(t.Context(), "new", "owner", time.Now().Add(time.Hour), "new", large); err != nil {
		return err.Error()
	}
	revocations := state.NewRedisRevocations(client)
	if err := revocations.Add(t.Context(), anyRevocation("a reason")); err != nil {
		return err.Error()
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		revocations.Run(ctx)
	}()
	defer func() {
		cancel()
		<-done
	}()
	failure := ""
	statetest.Eventually(t, "changes are told, or not permitted to be", func(ctx context.Context) bool {
		failure = revocations.Status().LastFailure
		subscribers, err := admin.PubSubNumSub(ctx, "pullpass:revocations").Result()
		return failure != "" || err == nil && subscribers["pullpass:revocations"] == 1
	})
	return failure
}

func anyRevocation(reason string) state.Revocation {
	return state.Revocation{
		Target: state.Target{Kind: state.TargetPod, Name: "pod-uid"}, By: "an operator", Reason: reason, Until: time.Now().Add(time.Hour),
	}
}
