package statetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/state"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Replica is the state from the view of one replica.
type Replica struct {
	Owners interface {
		Own(ctx context.Context, key, owner string, until time.Time) (string, error)
	}
	Limits interface {
		Take(ctx context.Context, key string, limit state.Limit, cost int) (bool, time.Duration, error)
	}
	Revocations interface {
		Revoked(id *oidc.Identity) (*state.Revocation, error)
		Add(ctx context.Context, r state.Revocation) error
		Remove(ctx context.Context, target state.Target, by string) error
		List(ctx context.Context) ([]state.Revocation, error)
	}
}

// followTime is how long a replica may take to learn of a change. It is long because test machines
// are busy; package state measures the real time.
const followTime = time.Minute

// Run tests that replicas share their state. open returns two of them, with an empty state that no
// other test uses.
func Run(t *testing.T, open func(*testing.T) [2]Replica) {
	replicas := open(t)
	for name, test := range map[string]func(*testing.T, [2]Replica){
		"first caller owns": firstCallerOwns, "one owner of many callers": oneOwner, "owners that are none": badOwners,
		"burst": burst, "rate": rate, "cost": cost, "limits that are none": badLimits, "smaller limit": smallerLimit,
		"canceled": canceled,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, replicas)
		})
	}
	// In sequence: they see each other's revocations.
	t.Run("revocations", func(t *testing.T) {
		t.Parallel()
		for _, test := range []struct {
			name string
			run  func(*testing.T, [2]Replica)
		}{
			{"nobody", nobodyRevoked}, {"each kind", eachKind}, {"replaced", replaced}, {"ends", revocationEnds}, {"none", badRevocations},
		} {
			t.Run(test.name, func(t *testing.T) { test.run(t, replicas) })
		}
	})
}

func own(t *testing.T, r Replica, key, owner, want string) {
	t.Helper()
	got, err := r.Owners.Own(t.Context(), key, owner, time.Now().Add(time.Hour))
	if err != nil || got != want {
		t.Errorf("Own(%.40q, %.40q) = %.40q, %v; want %.40q", key, owner, got, err, want)
	}
}

func firstCallerOwns(t *testing.T, r [2]Replica) {
	own(t, r[0], "a token", "node-1", "node-1")
	own(t, r[0], "a token", "node-1", "node-1")
	own(t, r[0], "a token", "node-2", "node-1")
	own(t, r[1], "a token", "node-2", "node-1")
	own(t, r[1], "a token", "node-1", "node-1")
	own(t, r[1], "another token", "node-2", "node-2")
	// Keys and owners may hold anything, and the smallest difference makes them different.
	for i, key := range []string{"", "\x00", "\x00\x00", "{a}b", "{a}c", "a token ", "A token", "\xff\r\n*", strings.Repeat("x", 5000), strings.Repeat("x", 5001)} {
		owner := fmt.Sprintf("\xff\x00 owner\r\n%d", i)
		own(t, r[i%2], key, owner, owner)
	}
	longest := strings.Repeat("o", 1024)
	own(t, r[0], "long", longest, longest)
	own(t, r[1], "long", "o", longest)
}

func oneOwner(t *testing.T, r [2]Replica) {
	const callers = 400 // more than the number of connections
	var winners sync.Map
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			got, err := r[i%2].Owners.Own(t.Context(), "wanted by many", fmt.Sprint("caller ", i), time.Now().Add(time.Hour))
			if err != nil {
				t.Error(err)
			}
			winners.Store(got, true)
		})
	}
	wg.Wait()
	var names []any
	winners.Range(func(name, _ any) bool { names = append(names, name); return true })
	if len(names) != 1 {
		t.Errorf("owners: %v, want one", names)
	}
}

func badOwners(t *testing.T, r [2]Replica) {
	for _, owner := range []string{"", strings.Repeat("o", 1025)} {
		if got, err := r[0].Owners.Own(t.Context(), "badly owned", owner, time.Now().Add(time.Hour)); err == nil || got != "" {
			t.Errorf("an owner of %d bytes: %q, %v", len(owner), got, err)
		}
	}
	own(t, r[0], "badly owned", "node-1", "node-1")
}

func take(t *testing.T, r Replica, key string, limit state.Limit, cost int) (bool, time.Duration) {
	t.Helper()
	ok, wait, err := r.Limits.Take(t.Context(), key, limit, cost)
	testkit.Must(t, err)
	if ok != (wait == 0) || wait < 0 {
		t.Errorf("taken: %t, but to wait for %s", ok, wait)
	}
	return ok, wait
}

// slow fills too slowly for a test to notice.
var slow = state.Limit{Rate: 0.001, Burst: 5}

func burst(t *testing.T, r [2]Replica) {
	for i := range slow.Burst {
		if ok, _ := take(t, r[i%2], "burst", slow, 1); !ok {
			t.Errorf("request %d of a burst of %d is refused", i+1, slow.Burst)
		}
	}
	// A refused call takes no units: the time to wait does not grow.
	for i := range 20 {
		if ok, wait := take(t, r[i%2], "burst", slow, 1); ok || wait > 1000*time.Second || wait < 900*time.Second {
			t.Fatalf("after the burst: %t, wait %s", ok, wait)
		}
	}
	for i, other := range []string{"burst ", "Burst", ""} {
		if ok, _ := take(t, r[i%2], other, slow, 5); !ok {
			t.Errorf("%q shares the bucket of another key", other)
		}
	}
}

// rate lets many callers take units. On any machine, they get no more than the bucket filled in the
// time that they needed.
func rate(t *testing.T, r [2]Replica) {
	limit := state.Limit{Rate: 50, Burst: 10}
	var taken atomic.Int64
	begin := time.Now()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 25 {
				if ok, _, err := r[i%2].Limits.Take(t.Context(), "rate", limit, 1); err != nil {
					t.Error(err)
				} else if ok {
					taken.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if most := float64(limit.Burst) + limit.Rate*time.Since(begin).Seconds() + 1; float64(taken.Load()) > most {
		t.Errorf("%d were taken; there were no more than %.1f", taken.Load(), most)
	}
	if taken.Load() < int64(limit.Burst) {
		t.Errorf("%d were taken, less than the burst of %d", taken.Load(), limit.Burst)
	}
	for deadline := time.Now().Add(followTime); ; {
		ok, wait := take(t, r[0], "rate", limit, limit.Burst)
		if ok {
			return
		}
		if wait > 200*time.Millisecond || time.Now().After(deadline) {
			t.Fatalf("a bucket that is full after 200ms is to be waited for %s", wait)
		}
		time.Sleep(wait)
	}
}

func cost(t *testing.T, r [2]Replica) {
	for i, want := range []bool{true, false, true, false} { // 3, 3, 2, 1 of 5
		ok, wait := take(t, r[i%2], "cost", slow, []int{3, 3, 2, 1}[i])
		if ok != want {
			t.Errorf("request %d: %t", i, ok)
		}
		if !ok && (wait > 1000*time.Second || wait < 900*time.Second) { // one unit is missing
			t.Errorf("request %d: wait %s", i, wait)
		}
	}
}

func badLimits(t *testing.T, r [2]Replica) {
	for _, bad := range []struct {
		limit state.Limit
		cost  int
	}{
		{state.Limit{}, 1}, {state.Limit{Rate: 1}, 1}, {state.Limit{Burst: 1}, 1}, {state.Limit{Rate: -1, Burst: 1}, 1},
		{state.Limit{Rate: math.NaN(), Burst: 1}, 1}, {state.Limit{Rate: math.Inf(1), Burst: 1}, 1}, {state.Limit{Rate: 1e-9, Burst: 1}, 1},
		{state.Limit{Rate: 1, Burst: 100_000}, 1}, {slow, 0}, {slow, -1}, {slow, slow.Burst + 1},
	} {
		if ok, _, err := r[0].Limits.Take(t.Context(), "bad", bad.limit, bad.cost); ok || !errors.Is(err, state.ErrLimit) {
			t.Errorf("%+v, cost %d: %t, %v", bad.limit, bad.cost, ok, err)
		}
	}
	if ok, _ := take(t, r[0], "bad", slow, 5); !ok {
		t.Error("what was refused took from the bucket")
	}
}

// smallerLimit changes the limit, as a new configuration does. No caller waits longer than the new
// limit requires, no matter how often it asks.
func smallerLimit(t *testing.T, r [2]Replica) {
	take(t, r[0], "smaller", slow, 5) // empty for 5,000 seconds
	fast := state.Limit{Rate: 10, Burst: 5}
	for i, deadline := 0, time.Now().Add(followTime); ; i++ {
		ok, wait := take(t, r[1], "smaller", fast, 5)
		if ok && i > 0 {
			return
		}
		if ok || wait > 500*time.Millisecond || time.Now().After(deadline) {
			t.Fatalf("%t, wait %s", ok, wait)
		}
		time.Sleep(wait / 2)
	}
}

func canceled(t *testing.T, r [2]Replica) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if owner, err := r[0].Owners.Own(ctx, "canceled", "node-1", time.Now().Add(time.Hour)); owner != "" || !errors.Is(err, context.Canceled) {
		t.Errorf("Own: %q, %v", owner, err)
	}
	if ok, _, err := r[0].Limits.Take(ctx, "canceled", slow, 1); ok || !errors.Is(err, context.Canceled) {
		t.Errorf("Take: %t, %v", ok, err)
	}
}

// pod is the identity of an ordinary token.
var pod = oidc.Identity{
	Cluster: "prod", Kubernetes: oidc.KubernetesIdentity{Namespace: "team-a", ServiceAccount: oidc.ObjectRef{Name: "web", UID: "sa-uid"},
		Pod: oidc.ObjectRef{Name: "web-1", UID: "pod-uid"}, Node: oidc.ObjectRef{Name: "worker-1", UID: "node-uid"}}, TokenID: "token-id",
}

// job is the identity of a CI job's token.
var job = oidc.Identity{TokenID: "token-id", External: &identity.External{Provider: "github", Project: "42", Run: "1001"}}

func revocation(target state.Target, reason string, d time.Duration) state.Revocation {
	return state.Revocation{Target: target, By: "an operator", Reason: reason, Until: time.Now().Add(d)}
}

// until waits until all replicas return the wanted result for an identity: the reason of its
// revocation, or "".
func until(t *testing.T, replicas [2]Replica, id oidc.Identity, want string) {
	t.Helper()
	for i, r := range replicas {
		for deadline := time.Now().Add(followTime); ; time.Sleep(5 * time.Millisecond) {
			got, err := r.Revocations.Revoked(&id)
			if reason := reasonOf(got); err == nil && reason == want {
				break
			} else if time.Now().After(deadline) {
				t.Fatalf("replica %d: %q, %v; want %q", i, reason, err, want)
			}
		}
	}
}

func reasonOf(r *state.Revocation) string {
	if r == nil {
		return ""
	}
	return r.Reason
}

func nobodyRevoked(t *testing.T, r [2]Replica) {
	until(t, r, pod, "")
	if list, err := r[0].Revocations.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("List: %v, %v", list, err)
	}
	if err := r[0].Revocations.Remove(t.Context(), state.Target{Kind: state.TargetToken, Name: "token-id"}, "an operator"); !errors.Is(err, state.ErrNotRevoked) {
		t.Errorf("Remove: %v", err)
	}
}

func eachKind(t *testing.T, r [2]Replica) {
	for _, c := range []struct {
		who    oidc.Identity
		target state.Target
		others []func(*oidc.Identity) // each no longer matches
	}{
		{pod, state.Target{Kind: state.TargetToken, Name: "token-id"}, []func(*oidc.Identity){
			func(id *oidc.Identity) { id.TokenID = "token-ID" },
			func(id *oidc.Identity) { id.TokenID, id.Kubernetes.Pod.UID = "", "token-id" },
		}},
		{pod, state.Target{Kind: state.TargetPod, Name: "pod-uid"}, []func(*oidc.Identity){
			func(id *oidc.Identity) { id.Kubernetes.Pod = oidc.ObjectRef{} },
			func(id *oidc.Identity) { id.Kubernetes.Pod = oidc.ObjectRef{Name: "pod-uid", UID: "other"} },
		}},
		{pod, state.Target{Kind: state.TargetServiceAccount, Cluster: "prod", Namespace: "team-a", Name: "web"}, []func(*oidc.Identity){
			func(id *oidc.Identity) { id.Cluster = "test" },
			func(id *oidc.Identity) { id.Kubernetes.Namespace = "team" },
			func(id *oidc.Identity) { id.Kubernetes.ServiceAccount.Name = "we" },
			func(id *oidc.Identity) { id.Kubernetes.Namespace, id.Kubernetes.ServiceAccount.Name = "team", "a-web" },
		}},
		{pod, state.Target{Kind: state.TargetNode, Cluster: "prod", Name: "worker-1"}, []func(*oidc.Identity){
			func(id *oidc.Identity) { id.Cluster = "test" },
			func(id *oidc.Identity) { id.Kubernetes.Node = oidc.ObjectRef{} },
		}},
		{job, state.Target{Kind: state.TargetToken, Name: "token-id"}, []func(*oidc.Identity){
			func(id *oidc.Identity) { id.TokenID = "other" },
		}},
		{job, state.Target{Kind: state.TargetProject, Identity: "github", Name: "42"}, []func(*oidc.Identity){
			func(id *oidc.Identity) { id.External = &identity.External{Provider: "gitlab", Project: "42"} },
			func(id *oidc.Identity) { id.External = &identity.External{Provider: "github", Run: "42"} },
			func(id *oidc.Identity) { id.External, id.Cluster, id.Kubernetes.Node.Name = nil, "github", "42" },
		}},
		{job, state.Target{Kind: state.TargetRun, Identity: "github", Name: "1001"}, []func(*oidc.Identity){
			func(id *oidc.Identity) {
				id.External = &identity.External{Provider: "github", Project: "1001", Run: "1002"}
			},
		}},
	} {
		reason := "because of its " + string(c.target.Kind)
		added := revocation(c.target, reason, time.Hour)
		before := time.Now().Add(-time.Second)
		testkit.Must(t, r[0].Revocations.Add(t.Context(), added))
		until(t, r, c.who, reason)
		for i, change := range c.others {
			other := c.who
			change(&other)
			if got, err := r[1].Revocations.Revoked(&other); got != nil || err != nil {
				t.Errorf("%s: other %d is revoked: %v, %v", c.target.Kind, i, got, err)
			}
		}
		list, err := r[1].Revocations.List(t.Context())
		if err != nil || len(list) != 1 || list[0].Target != c.target || list[0].By != "an operator" || list[0].Reason != reason ||
			!list[0].Until.Equal(added.Until) || list[0].Since.Before(before) || list[0].Since.After(time.Now().Add(time.Second)) {
			t.Errorf("List: %+v, %v; want %+v", list, err, added)
		}
		testkit.Must(t, r[1].Revocations.Remove(t.Context(), c.target, "another operator"))
		until(t, r, c.who, "")
		if err := r[0].Revocations.Remove(t.Context(), c.target, "another operator"); !errors.Is(err, state.ErrNotRevoked) {
			t.Errorf("removed twice: %v", err)
		}
		if list, err := r[0].Revocations.List(t.Context()); err != nil || len(list) != 0 {
			t.Errorf("List after Remove: %+v, %v", list, err)
		}
	}
}

func replaced(t *testing.T, r [2]Replica) {
	target := state.Target{Kind: state.TargetPod, Name: "pod-uid"} // as eachKind left it: removed
	for i, reason := range []string{"first", "second", "third"} {
		testkit.Must(t, r[i%2].Revocations.Add(t.Context(), revocation(target, reason, time.Duration(3-i)*time.Hour)))
		until(t, r, pod, reason)
	}
	list, err := r[1].Revocations.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Reason != "third" || time.Until(list[0].Until) > time.Hour {
		t.Errorf("List: %+v, %v", list, err)
	}
	testkit.Must(t, r[0].Revocations.Remove(t.Context(), target, "an operator"))
	until(t, r, pod, "")
}

func revocationEnds(t *testing.T, r [2]Replica) {
	late, soon := state.Target{Kind: state.TargetNode, Cluster: "prod", Name: "worker-2"}, state.Target{Kind: state.TargetToken, Name: "token-id"}
	testkit.Must(t, r[0].Revocations.Add(t.Context(), revocation(late, "late", time.Hour)))
	for life := time.Second; ; life *= 2 {
		added := revocation(soon, "soon", life)
		err := r[0].Revocations.Add(t.Context(), added)
		if err == nil {
			break
		}
		if time.Now().Before(added.Until) { // on a busy machine, it may have ended before it is confirmed
			t.Fatal(err)
		}
	}
	if list, err := r[0].Revocations.List(t.Context()); err != nil || !slices.ContainsFunc(list, func(l state.Revocation) bool { return l.Target == late }) {
		t.Errorf("List: %+v, %v", list, err)
	}
	until(t, r, pod, "")
	if list, err := r[1].Revocations.List(t.Context()); err != nil || len(list) != 1 || list[0].Target != late {
		t.Errorf("List: %+v, %v", list, err)
	}
	testkit.Must(t, r[0].Revocations.Remove(t.Context(), late, "an operator"))
}

func badRevocations(t *testing.T, r [2]Replica) {
	good := revocation(state.Target{Kind: state.TargetToken, Name: "token-id"}, "a reason", time.Hour)
	for name, change := range map[string]func(*state.Revocation){
		"no kind":      func(r *state.Revocation) { r.Target.Kind = "" },
		"unknown kind": func(r *state.Revocation) { r.Target.Kind = "Token" },
		"no name":      func(r *state.Revocation) { r.Target.Name = "" },
		"long token":   func(r *state.Revocation) { r.Target.Name = strings.Repeat("x", 257) },
		"long pod":     func(r *state.Revocation) { r.Target.Kind, r.Target.Name = state.TargetPod, strings.Repeat("x", 254) },
		"no text":      func(r *state.Revocation) { r.Target.Name = "\xff" },
		"two lines":    func(r *state.Revocation) { r.Reason = "a\nb" },
		"token in":     func(r *state.Revocation) { r.Target.Cluster = "prod" },
		"pod in":       func(r *state.Revocation) { r.Target.Kind, r.Target.Namespace = state.TargetPod, "team-a" },
		"bare account": func(r *state.Revocation) { r.Target.Kind = state.TargetServiceAccount },
		"no namespace": func(r *state.Revocation) { r.Target.Kind, r.Target.Cluster = state.TargetServiceAccount, "prod" },
		"bare node":    func(r *state.Revocation) { r.Target.Kind = state.TargetNode },
		"node in": func(r *state.Revocation) {
			r.Target = state.Target{Kind: state.TargetNode, Cluster: "prod", Namespace: "a", Name: "b"}
		},
		"bare project": func(r *state.Revocation) { r.Target = state.Target{Kind: state.TargetProject, Name: "42"} },
		"long project": func(r *state.Revocation) {
			r.Target = state.Target{Kind: state.TargetProject, Identity: "mesh", Name: strings.Repeat("x", 513)}
		},
		"by no one":        func(r *state.Revocation) { r.By = "" },
		"by a long one":    func(r *state.Revocation) { r.By = strings.Repeat("x", 129) },
		"no reason":        func(r *state.Revocation) { r.Reason = "" },
		"long reason":      func(r *state.Revocation) { r.Reason = strings.Repeat("x", 257) },
		"no end":           func(r *state.Revocation) { r.Until = time.Time{} },
		"ended":            func(r *state.Revocation) { r.Until = time.Now().Add(-time.Second) },
		"more than a year": func(r *state.Revocation) { r.Until = time.Now().Add(400 * 24 * time.Hour) },
	} {
		bad := good
		change(&bad)
		if err := r[0].Revocations.Add(t.Context(), bad); !errors.Is(err, state.ErrRevocation) {
			t.Errorf("%s: %v", name, err)
		}
	}
	longest := revocation(state.Target{Kind: state.TargetProject, Identity: "mesh", Name: strings.Repeat("x", 512)}, "a reason", time.Hour)
	token := revocation(state.Target{Kind: state.TargetToken, Name: strings.Repeat("x", 256)}, "a reason", time.Hour)
	for _, good := range []state.Revocation{good, longest, token} {
		testkit.Must(t, r[0].Revocations.Add(t.Context(), good))
	}
	for _, long := range []state.Revocation{longest, token} {
		testkit.Must(t, r[0].Revocations.Remove(t.Context(), long.Target, "an operator"))
	}
	if err := r[0].Revocations.Remove(t.Context(), good.Target, ""); !errors.Is(err, state.ErrRevocation) {
		t.Errorf("removed without an author: %v", err)
	}
	until(t, r, pod, "a reason")
	testkit.Must(t, r[0].Revocations.Remove(t.Context(), good.Target, "an operator"))
}
