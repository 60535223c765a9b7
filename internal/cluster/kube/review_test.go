package kube

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullpass/pullpass/internal/base/fair"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const pullAudience = "pull-secrets"

type presented string

func (b presented) Reveal() string { return string(b) }

func (b presented) Hash() [sha256.Size]byte { return sha256.Sum256([]byte(b)) }

// pullSecret is a token of team-a/web in a Secret, and its identity according to a verifier.
func pullSecret(uid string) (oidc.Identity, presented) {
	id := identity("one", "team-a", "web", "uid-web")
	id.Subject = oidc.ServiceAccountSubject("team-a", "web")
	id.Kubernetes.Secret = oidc.ObjectRef{Name: "pull", UID: uid}
	payload, _ := json.Marshal(kubetest.Object{"sub": id.Subject, "aud": []string{pullAudience}, "kubernetes.io": kubetest.Object{
		"namespace": "team-a", "serviceaccount": kubetest.Object{"name": "web", "uid": "uid-web"}, "secret": kubetest.Object{"name": "pull", "uid": uid},
	}})
	return id, presented("e30." + base64.RawURLEncoding.EncodeToString(payload) + ".c2ln")
}

func newReviewed(t *testing.T) (*apiServer, *Cluster) {
	t.Helper()
	s := newAPIServer(append(team(), thing{resource: "secrets", namespace: "team-a", name: "pull", uid: "uid-pull"})...)
	c := newTestCluster(t, s, ClusterConfig{PodChecks: true, PullSecretAudience: pullAudience})
	run(t, c)
	s.Count("")
	return s, c
}

func TestReviewIsRememberedForAMinute(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s, c := newReviewed(t)
		id, token := pullSecret("uid-pull")
		accepted := func(reviews int) {
			t.Helper()
			if facts, err := c.Lookup(t.Context(), id, token); err != nil || !facts.Confirmed || s.Count("create tokenreviews") != reviews {
				t.Errorf("facts %+v, error %v; want %d reviews", facts, err, reviews)
			}
		}
		accepted(1)
		accepted(0)
		time.Sleep(reviewTime - time.Nanosecond)
		accepted(0)
		time.Sleep(time.Nanosecond)
		accepted(1)

		// The Secret is deleted: it counts until the remembered review expires.
		s.Remove("secrets", "team-a", "pull")
		accepted(0)
		time.Sleep(reviewTime)
		want := &exchange.GoneError{Kind: exchange.KindSecret, Name: "team-a/pull", UID: "uid-pull"}
		for _, reviews := range []int{1, 0} { // the second lookup sends no new review
			if _, err := c.Lookup(t.Context(), id, token); !reflect.DeepEqual(err, want) || s.Count("create tokenreviews") != reviews {
				t.Errorf("error %v, want %v", err, want)
			}
		}
		time.Sleep(refusedTime)
		if _, err := c.Lookup(t.Context(), id, token); !isGone(err) || s.Count("create tokenreviews") != 1 {
			t.Errorf("error %v", err)
		}
		if got, want := c.Status().Reviews, (ReviewCounts{Accepted: 2, Refused: 2}); got != want {
			t.Errorf("counts %+v, want %+v", got, want)
		}
	})
}

// A Secret that was recreated under the same name does not count.
func TestReviewOfAnotherSecret(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		_, c := newReviewed(t)
		id, token := pullSecret("uid-before")
		if _, err := c.Lookup(t.Context(), id, token); !isGone(err) {
			t.Errorf("error %v", err)
		}
	})
}

// The remembered review does not outlive the ServiceAccount.
func TestServiceAccountOfAReviewedTokenIsDeleted(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s, c := newReviewed(t)
		id, token := pullSecret("uid-pull")
		if _, err := c.Lookup(t.Context(), id, token); err != nil {
			t.Fatal(err)
		}
		s.Remove("serviceaccounts", "team-a", "web")
		synctest.Wait()
		var gone *exchange.GoneError
		if _, err := c.Lookup(t.Context(), id, token); !errors.As(err, &gone) || gone.Kind != exchange.KindServiceAccount {
			t.Errorf("error %v", err)
		}
	})
}

// A response that is not clear neither grants nor refuses.
func TestReviewsThatSayNothing(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s, c := newReviewed(t)
		id, token := pullSecret("uid-pull")
		answer := func(status string) http.HandlerFunc {
			return kubetest.Says(http.StatusCreated, "application/json", `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":`+status+`}`)
		}
		const user = `"user":{"username":"system:serviceaccount:team-a:web","uid":"uid-web"}`
		for name, test := range map[string]struct {
			with http.HandlerFunc
			want string
		}{
			"down":           {kubetest.Status(http.StatusServiceUnavailable, "ServiceUnavailable", "etcd"), "cannot review the token of a pull secret"},
			"forbidden":      {kubetest.Status(http.StatusForbidden, "Forbidden", "no"), `ClusterRole the verb "create" on "tokenreviews.authentication.k8s.io"`},
			"slow":           {kubetest.Hang, errSlow.Error()},
			"no audience":    {answer(`{"authenticated":true,` + user + `}`), "does not say that the token is for the audience"},
			"other audience": {answer(`{"authenticated":true,"audiences":["a"],` + user + `}`), "does not say that the token is for the audience"},
			"other user":     {answer(`{"authenticated":true,"audiences":["pull-secrets"],"user":{"username":"system:serviceaccount:team-a:x","uid":"uid-web"}}`), "another ServiceAccount"},
			"other UID":      {answer(`{"authenticated":true,"audiences":["pull-secrets"],"user":{"username":"system:serviceaccount:team-a:web","uid":"uid-x"}}`), "another ServiceAccount"},
		} {
			s.Fail("create tokenreviews", test.with)
			if _, err := c.Lookup(t.Context(), id, token); !has(err, test.want) || isGone(err) || has(err, string(token)) {
				t.Errorf("%s: error %v, want %q", name, err, test.want)
			}
		}
		s.Fail("create tokenreviews", nil)
		if _, err := c.Lookup(t.Context(), id, token); err != nil {
			t.Errorf("a failure is remembered: %v", err)
		}
		s.Refuse(true)
		if _, err := c.Lookup(t.Context(), id, token); err != nil {
			t.Errorf("what was accepted a moment ago: %v", err)
		}
		time.Sleep(reviewTime)
		if _, err := c.Lookup(t.Context(), id, token); err == nil || isGone(err) {
			t.Errorf("later: %v", err)
		}
	})
}

func TestNoReviewWithoutATokenOrAnAudience(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		_, c := newReviewed(t)
		id, token := pullSecret("uid-pull")
		if _, err := c.Lookup(t.Context(), id, nil); !has(err, "there is no token to review") {
			t.Errorf("error %v", err)
		}
		plain := newTestCluster(t, newAPIServer(team()...), ClusterConfig{})
		if _, err := plain.Lookup(t.Context(), id, token); !has(err, "no audience of pull secrets is configured") {
			t.Errorf("error %v", err)
		}
	})
}

// All nodes of a rollout send the same token at once.
func TestOneReviewForAll(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		s, c := newReviewed(t)
		id, token := pullSecret("uid-pull")
		s.Fail("create tokenreviews", kubetest.Hang)
		var waiting sync.WaitGroup
		for range MaxWaiting * 3 / 4 { // the share of one namespace
			waiting.Go(func() {
				if _, err := c.Lookup(t.Context(), id, token); !has(err, errSlow.Error()) {
					t.Errorf("error %v", err)
				}
			})
		}
		synctest.Wait()
		if _, err := c.Lookup(t.Context(), id, token); !has(err, errBusy.Error()) {
			t.Errorf("one more: error %v", err)
		}
		waiting.Wait()
		if n := s.Count("create tokenreviews"); n != 1 {
			t.Errorf("%d reviews", n)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := c.Lookup(ctx, id, token); !has(err, context.Canceled.Error()) {
			t.Errorf("error %v", err)
		}
		for i := range maxReviews * 3 / 4 {
			_, other := pullSecret("uid-" + string(rune('A'+i)))
			go func() { _, _ = c.Lookup(t.Context(), id, other) }()
		}
		synctest.Wait()
		_, other := pullSecret("uid-one-more")
		if _, err := c.Lookup(t.Context(), id, other); !has(err, errBusy.Error()) {
			t.Errorf("one more token: error %v", err)
		}
		time.Sleep(maxGetTime)
		synctest.Wait()
		if r := c.reviews; !reflect.DeepEqual(r.asked, fair.NewShare(maxReviews)) || !reflect.DeepEqual(r.waiting, fair.NewShare(MaxWaiting)) {
			t.Errorf("%+v reviews, %+v callers, when there are none", r.asked, r.waiting)
		}
	})
}

func TestReviewMemoryIsBounded(t *testing.T) {
	t.Parallel()
	r := newReviews("one", pullAudience, nil, time.Now)
	for i := range 100_000 {
		r.known.Add(sha256.Sum256([]byte{byte(i), byte(i >> 8), byte(i >> 16)}), reviewed{true, time.Unix(0, 0)})
	}
	if r.known.Bytes() > reviewBytes || r.known.Len() < 30_000 {
		t.Errorf("%d are remembered, in %d bytes", r.known.Len(), r.known.Bytes())
	}
}
