package exchange_test

import (
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
)

// revocations gives every identity the same result, or only those on one node.
type revocations struct {
	revocation *exchange.Revocation
	node       string // empty: all
	err        error
}

func (r revocations) Revoked(id *oidc.Identity) (*exchange.Revocation, error) {
	if r.err != nil || (r.node != "" && r.node != id.Kubernetes.Node.Name) {
		return nil, r.err
	}
	return r.revocation, nil
}

func TestRevoked(t *testing.T) {
	t.Parallel()
	revocation := &exchange.Revocation{Target: "pod UID x", By: "alice@example.com", Reason: "the pod was taken over", Until: time.Date(2026, 3, 4, 6, 0, 0, 0, time.UTC)}
	r := newRig(t, func(c *rigConfig) { c.revocations = revocations{revocation: revocation} })
	a := r.do(t, post(r.token(t, nil), "repository:team-a/web:pull"))
	if a.status != http.StatusForbidden || a.body.Errors[0].Code != "DENIED" || a.body.Error != "access_denied" ||
		a.body.Errors[0].Message != `revoked by an operator: "the pod was taken over"` {
		t.Errorf("status %d, body %+v", a.status, a.body)
	}
	if strings.Contains(a.body.Errors[0].Message+a.body.Description, "alice") {
		t.Error("the caller is told who revoked")
	}
	e := r.lastEvent(t, 1)
	if e.Result != exchange.ResultRefused || e.Reason != "revoked" || !reflect.DeepEqual(e.Revocation, revocation) || e.ServiceAccount.Name != "web" ||
		e.Rule != "" || e.Granted != nil || e.IssuedID != "" {
		t.Errorf("event %+v", e)
	}
	if !strings.Contains(e.Remedy(), "pullpass revoke undo") {
		t.Errorf("remedy %q", e.Remedy())
	}
}

// An unknown list is not an empty list.
func TestRevocationsNotKnown(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *rigConfig) { c.revocations = revocations{err: errors.New("not read yet 10.1.2.3")} })
	a := r.do(t, get(r.token(t, nil), "repository:team-a/web:pull"))
	if a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") != "10" || strings.Contains(a.body.Errors[0].Message, "10.1.2.3") {
		t.Errorf("status %d, body %+v", a.status, a.body)
	}
	if e := r.lastEvent(t, 1); e.Result != exchange.ResultUnavailable || e.Reason != "revocations_unavailable" || !strings.Contains(e.Message, "not read yet") {
		t.Errorf("event %+v", e)
	}
}

// The node counts even if the token does not name it.
func TestRevokedNodeFromAPI(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *rigConfig) {
		c.nodeOptional = true
		c.objects = objects{byUID: map[string]exchange.Facts{webUID: {Node: &exchange.Node{Name: "node1", UID: node1UID}}}}
		c.revocations = revocations{node: "node1", revocation: &exchange.Revocation{Reason: "broken into"}}
	})
	token := r.token(t, func(c map[string]any) { delete(c["kubernetes.io"].(map[string]any), "node") })
	if a := r.do(t, get(token)); a.status != http.StatusForbidden {
		t.Errorf("status %d", a.status)
	}
}

// A revocation takes effect at once, also for earlier grants.
func TestRevocationEndsReuse(t *testing.T) {
	t.Parallel()
	list := &revocations{}
	r := newRig(t, func(c *rigConfig) { c.revocations = list })
	token := r.token(t, nil)
	if a := r.do(t, get(token)); a.status != http.StatusOK {
		t.Fatalf("status %d", a.status)
	}
	list.revocation = &exchange.Revocation{Reason: "stolen"}
	if a := r.do(t, get(token)); a.status != http.StatusForbidden {
		t.Errorf("status %d after the revocation", a.status)
	}
}

// revokedToken is the id of the one token that is revoked.
type revokedToken struct{ id string }

func (r *revokedToken) Revoked(id *oidc.Identity) (*exchange.Revocation, error) {
	if r.id != "" && id.TokenID == r.id {
		return &exchange.Revocation{Reason: "stolen"}, nil
	}
	return nil, nil
}

// The gateway refuses a token by its own id, so it is not issued again.
func TestRevokedTokenIsNotReused(t *testing.T) {
	t.Parallel()
	for _, isGateway := range []bool{true, false} {
		list := &revokedToken{}
		r := newRig(t, func(c *rigConfig) { c.revocations, c.namesHolder = list, isGateway })
		token := r.token(t, nil)
		first, again := r.do(t, get(token)).body.Token, r.do(t, get(token)).body.Token
		list.id = r.lastEvent(t, 2).IssuedID
		if next := r.do(t, get(token)).body.Token; first == "" || again != first || (next == first) == isGateway || next == "" {
			t.Errorf("the gateway %t: %q, %q, %q", isGateway, first, again, next)
		}
	}
}

// A token of the gateway names the node, once that is known: its revocation has to find it.
func TestNodeThatBecomesKnown(t *testing.T) {
	t.Parallel()
	known := map[string]exchange.Facts{webUID: {}}
	r := newRig(t, func(c *rigConfig) {
		c.nodeOptional, c.namesHolder = true, true
		c.objects = objects{byUID: known}
	})
	token := r.token(t, func(c map[string]any) { delete(c["kubernetes.io"].(map[string]any), "node") })
	first, again := r.do(t, get(token)).body.Token, r.do(t, get(token)).body.Token
	known[webUID] = exchange.Facts{Node: &exchange.Node{Name: "node1", UID: node1UID}}
	next, last := r.do(t, get(token)).body.Token, r.do(t, get(token)).body.Token
	if first == "" || again != first || next == first || last != next {
		t.Errorf("%q, %q, %q, %q", first, again, next, last)
	}
}
