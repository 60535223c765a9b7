package controller

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/cluster/clients"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// replica is a candidate for the lead.
type replica struct {
	Leader
	leads atomic.Bool
	ended chan error
	stop  context.CancelFunc
}

func newReplica(t *testing.T, api *kubetest.Server, identity string) *replica {
	t.Helper()
	client := testkit.Value(leaseClient(api))(t)
	r := &replica{Leader: Leader{Log: slog.New(slog.DiscardHandler), Lease: Lease{Client: client, Namespace: "pullpass", Name: "lead", Identity: identity, Duration: LeadDuration, Now: time.Now}}, ended: make(chan error, 1)}
	ctx, stop := context.WithCancel(t.Context())
	r.stop = stop
	go func() {
		r.ended <- r.Run(ctx, func(ctx context.Context) {
			r.leads.Store(true)
			<-ctx.Done()
			r.leads.Store(false)
		})
	}()
	return r
}

func inLease(t *testing.T, test func(t *testing.T, api *kubetest.Server, first, second *replica)) {
	t.Helper()
	testkit.Bubble(t, func(t *testing.T) {
		api := kubetest.NewServer()
		first := newReplica(t, api, "first")
		time.Sleep(time.Second)
		second := newReplica(t, api, "second")
		time.Sleep(time.Minute)
		if !first.leads.Load() || second.leads.Load() {
			t.Fatalf("the first leads: %t, the second: %t", first.leads.Load(), second.leads.Load())
		}
		test(t, api, first, second)
		first.stop()
		second.stop()
		time.Sleep(time.Minute)
	})
}

func TestLeadIsGivenUp(t *testing.T) {
	inLease(t, func(t *testing.T, _ *kubetest.Server, first, second *replica) {
		first.stop()
		if err := <-first.ended; err != nil || first.leads.Load() {
			t.Errorf("error %v", err)
		}
		time.Sleep(leadRetry + time.Second) // less than the duration of a Lease
		if !second.leads.Load() {
			t.Error("the second does not lead")
		}
	})
}

// A leader that cannot renew stops before a different replica can lead.
func TestLeadIsLost(t *testing.T) {
	inLease(t, func(t *testing.T, api *kubetest.Server, first, second *replica) {
		api.Fail("put leases", kubetest.Status(http.StatusInternalServerError, "InternalError", "etcd"))
		lost := time.Now()
		if err := <-first.ended; !errors.Is(err, ErrLost) || first.leads.Load() {
			t.Errorf("error %v", err)
		}
		if after := time.Since(lost); after < leadDeadline-leadRetry || after >= LeadDuration-leadRetry {
			t.Errorf("it led for %s", after)
		}
		api.Fail("put leases", nil)
		if second.leads.Load() {
			t.Error("the second leads, too")
		}
		time.Sleep(LeadDuration)
		if !second.leads.Load() {
			t.Error("no replica leads")
		}
	})
}

// A short failure of the API server does not cost the lead.
func TestLeadIsKept(t *testing.T) {
	inLease(t, func(t *testing.T, api *kubetest.Server, first, second *replica) {
		api.Refuse(true)
		time.Sleep(leadDeadline - 2*leadRetry)
		api.Refuse(false)
		time.Sleep(time.Minute)
		if !first.leads.Load() || second.leads.Load() {
			t.Errorf("the first leads: %t, the second: %t", first.leads.Load(), second.leads.Load())
		}
	})
}

// If the holder in the Lease is changed from outside, the new holder leads, and the old one stops.
func TestLeadIsTaken(t *testing.T) {
	inLease(t, func(t *testing.T, api *kubetest.Server, first, _ *replica) {
		o := api.Object("leases", "pullpass", "lead")
		o["spec"] = kubetest.Object{"holderIdentity": "second"}
		api.Put("leases", o)
		if err := <-first.ended; !errors.Is(err, ErrLost) {
			t.Errorf("error %v", err)
		}
	})
}

// Of two replicas that see a Lease without a holder, one gets it. The resourceVersion of the other
// one is outdated.
func TestBothSeeThatNobodyLeads(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		api := kubetest.NewServer()
		api.Put("leases", kubetest.Object{"metadata": kubetest.Object{"namespace": "pullpass", "name": "lead", "uid": "u"}, "spec": kubetest.Object{}})
		api.Fail("put leases", func(w http.ResponseWriter, r *http.Request) {
			api.Fail("put leases", nil)
			api.Put("leases", kubetest.Object{"metadata": kubetest.Object{"namespace": "pullpass", "name": "lead", "uid": "u"}, "spec": kubetest.Object{"holderIdentity": "other"}})
			api.ServeHTTP(w, r)
		})
		client := testkit.Value(leaseClient(api))(t)
		l := &Leader{Log: slog.New(slog.DiscardHandler), Lease: Lease{Client: client, Namespace: "pullpass", Name: "lead", Identity: "this", Duration: LeadDuration, Now: time.Now}}
		if isHeld, err := l.hold(t.Context()); isHeld || err != nil {
			t.Errorf("held: %t, error %v", isHeld, err)
		}
		synctest.Wait()
	})
}

func leaseClient(api http.RoundTripper) (rest.Interface, error) {
	shared, err := clients.New(clients.Config{REST: &rest.Config{Host: "http://api.example.com", Transport: api}})
	if err != nil {
		return nil, err
	}
	return NewLeaseClient(shared)
}
