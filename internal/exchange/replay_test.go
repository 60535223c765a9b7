package exchange_test

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// owners remembers the first owner of each key.
type owners struct {
	mu    sync.Mutex
	owner map[string]string
	until time.Time
}

func newOwners() *owners { return &owners{owner: map[string]string{}} }

func (o *owners) Own(_ context.Context, key, owner string, until time.Time, _ string) (exchange.Owned, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.until = until
	if _, ok := o.owner[key]; !ok {
		o.owner[key] = owner
	}
	return exchange.Owned{Owner: o.owner[key]}, nil
}

type ownersFunc func(owner string) (string, error)

func (f ownersFunc) Own(_ context.Context, _, owner string, _ time.Time, _ string) (exchange.Owned, error) {
	current, err := f(owner)
	return exchange.Owned{Owner: current}, err
}

func someoneElse(string) (string, error) { return "address/198.51.100.9", nil }

func at(address string) nodeproof.Caller {
	return nodeproof.Caller{Address: netip.MustParseAddr(address)}
}

func TestReplayEnforced(t *testing.T) {
	t.Parallel()
	o := newOwners()
	r := newRig(t, func(c *rigConfig) { c.replay, c.owners = exchange.ReplayEnforce, o })
	token := r.token(t, nil)
	pull := "repository:team-a/web:pull"
	// The kubelet gives a token to one runtime, which sends two requests for each pull and repeats
	// failed ones.
	for i, request := range []*http.Request{post(token, pull), get(token, pull), post(token, pull), get(token)} {
		if a := r.do(t, from(at("192.0.2.1"), request)); a.status != http.StatusOK {
			t.Fatalf("status %d", a.status)
		}
		want := &exchange.Replay{Mode: "enforce", Passed: true, Owner: "address/192.0.2.1", Caller: "address/192.0.2.1"}
		if e := r.lastEvent(t, i+1); !reflect.DeepEqual(e.Replay, want) {
			t.Errorf("replay %+v", e.Replay)
		}
	}
	if key := exchange.Joined("prod", "63ef7a8c-1d81-4c97-8f89-724a51634a91"); len(o.owner) != 1 || o.owner[key] == "" {
		t.Errorf("owners %v", o.owner)
	}
	if !o.until.Equal(r.Now().Add(time.Hour)) {
		t.Errorf("owned until %s, not until the token ends", o.until)
	}
	a := r.do(t, from(at("192.0.2.2"), post(token, pull)))
	if a.status != http.StatusForbidden || a.body.Errors[0].Code != "DENIED" || a.body.Error != "access_denied" ||
		!strings.Contains(a.body.Errors[0].Message, "another caller presented this token first") || strings.Contains(a.body.Errors[0].Message, "192.0.2.1") {
		t.Errorf("status %d, body %+v", a.status, a.body)
	}
	e := r.lastEvent(t, 5)
	if e.Result != exchange.ResultRefused || e.Reason != "token_replayed" || e.Status != 403 || e.Granted != nil || e.IssuedID != "" || e.Requested == nil {
		t.Errorf("event %+v", e)
	}
	if p := e.Replay; p.Passed || p.Reason != exchange.ReplayOtherCaller || p.Owner != "address/192.0.2.1" || p.Caller != "address/192.0.2.2" ||
		!strings.Contains(p.Message, p.Owner) || !strings.Contains(p.Message, p.Caller) || e.Message != p.Message {
		t.Errorf("replay %+v, message %s", p, e.Message)
	}
	if !strings.Contains(e.Remedy(), "delete the pod") {
		t.Errorf("remedy %q", e.Remedy())
	}
	// A different token has a different owner.
	other := r.token(t, func(c map[string]any) { c["jti"] = "another" })
	if a := r.do(t, from(at("192.0.2.2"), post(other, pull))); a.status != http.StatusOK {
		t.Errorf("status %d for another token", a.status)
	}
}

// patientOwners gives up when ctx ends, like a store on the network.
type patientOwners struct{ *owners }

func (o patientOwners) Own(ctx context.Context, key, owner string, until time.Time, bucket string) (exchange.Owned, error) {
	if err := ctx.Err(); err != nil {
		return exchange.Owned{}, err
	}
	return o.owners.Own(ctx, key, owner, until, bucket)
}

// A caller that hangs up before the response is still the first one. Its cancellation is not a
// failure of the store of owners.
func TestCanceledRequestsOwnTheirToken(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *rigConfig) { c.replay, c.owners = exchange.ReplayEnforce, patientOwners{newOwners()} })
	r.do(t, post(r.token(t, func(c map[string]any) { c["jti"] = "another" }))) // reads the keys of the issuer
	token := r.token(t, nil)
	request := from(at("192.0.2.1"), post(token))
	ctx, cancel := context.WithCancel(request.Context())
	cancel()
	if a := r.do(t, request.WithContext(ctx)); a.status != http.StatusOK {
		t.Errorf("status %d, event %+v", a.status, r.lastEvent(t, 2))
	}
	if a := r.do(t, from(at("192.0.2.2"), post(token))); a.status != http.StatusForbidden {
		t.Errorf("from elsewhere: status %d", a.status)
	}
}

func TestReplayAudited(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *rigConfig) { c.replay, c.owners = exchange.ReplayAudit, newOwners() })
	token := r.token(t, nil)
	r.do(t, from(at("192.0.2.1"), get(token, "repository:team-a/web:pull")))
	if a := r.do(t, from(at("192.0.2.2"), get(token, "repository:team-a/web:pull"))); a.status != http.StatusOK || len(a.access) != 1 {
		t.Errorf("status %d, access %v", a.status, a.access)
	}
	e := r.lastEvent(t, 2)
	if e.Result != exchange.ResultGranted || e.Reason != "" || e.Replay.Passed || e.Replay.Mode != "audit" || e.Replay.Reason != exchange.ReplayOtherCaller ||
		e.Replay.Owner != "address/192.0.2.1" || e.Replay.Caller != "address/192.0.2.2" {
		t.Errorf("event %+v, replay %+v", e, e.Replay)
	}
}

func TestReplayOff(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *rigConfig) { c.owners = ownersFunc(func(string) (string, error) { panic("asked") }) })
	if a := r.do(t, get(r.token(t, nil))); a.status != http.StatusOK || r.lastEvent(t, 1).Replay != nil {
		t.Errorf("status %d", a.status)
	}
}

// If the owner is unknown, audit does not refuse the request, and enforce does not grant it.
func TestReplayUnavailable(t *testing.T) {
	t.Parallel()
	for mode, status := range map[exchange.ReplayMode]int{exchange.ReplayAudit: 200, exchange.ReplayEnforce: 503} {
		r := newRig(t, func(c *rigConfig) {
			c.replay, c.owners = mode, ownersFunc(func(string) (string, error) { return "", errors.New("redis down 10.1.2.3") })
		})
		a := r.do(t, get(r.token(t, nil), "repository:team-a/web:pull"))
		if a.status != status {
			t.Errorf("%s: status %d", mode, a.status)
		}
		e := r.lastEvent(t, 1)
		if p := e.Replay; p == nil || p.Passed || p.Reason != exchange.ReplayUnavailable || !strings.Contains(p.Message, "redis down") {
			t.Errorf("%s: replay %+v", mode, p)
		}
		if status != 503 {
			continue
		}
		if e.Result != exchange.ResultUnavailable || e.Reason != "replay_unavailable" || a.header.Get("Retry-After") != "10" ||
			strings.Contains(a.body.Errors[0].Message, "10.1.2.3") {
			t.Errorf("event %+v, body %+v", e, a.body)
		}
	}
}

// A caller that proved to be the token's node is that node, from any of its addresses. For any
// other caller, the whole address counts.
func TestReplayOfNodes(t *testing.T) {
	t.Parallel()
	node := &exchange.Node{Name: "node1", UID: node1UID, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}}
	r := newRig(t, func(c *rigConfig) {
		c.replay, c.owners = exchange.ReplayEnforce, newOwners()
		c.objects = objects{byUID: map[string]exchange.Facts{webUID: {Node: node}}}
		c.nodes = map[string]exchange.NodeChecks{"prod": {Proof: nodeproof.Config{
			Mode: nodeproof.Audit, Methods: []nodeproof.Method{nodeproof.Address},
		}}}
	})
	token := r.token(t, nil)
	for i, test := range []struct {
		caller string
		status int
		name   string
	}{
		{"192.0.2.1", 200, "node/node1/" + node1UID}, {"2001:db8::1", 200, "node/node1/" + node1UID},
		{"2001:db8::2", 403, "address/2001:db8::2"}, {"::ffff:192.0.2.1", 200, "node/node1/" + node1UID},
	} {
		if a := r.do(t, from(at(test.caller), get(token))); a.status != test.status {
			t.Errorf("%s: status %d", test.caller, a.status)
		}
		if e := r.lastEvent(t, i+1); e.Replay.Caller != test.name {
			t.Errorf("%s: replay %+v", test.caller, e.Replay)
		}
	}
}

// A node that proves itself is still the caller at its address, which used its tokens before node.proof was on.
func TestReplayOfNodesThatWereAddresses(t *testing.T) {
	t.Parallel()
	node := &exchange.Node{Name: "node1", UID: node1UID, Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.9"), netip.MustParseAddr("192.0.2.2")}}
	r := newRig(t, func(c *rigConfig) {
		c.replay, c.owners = exchange.ReplayEnforce, ownersFunc(someoneElse)
		c.objects = objects{byUID: map[string]exchange.Facts{webUID: {Node: node}}}
		c.nodes = map[string]exchange.NodeChecks{"prod": {Proof: nodeproof.Config{Mode: nodeproof.Audit, Methods: []nodeproof.Method{nodeproof.Address}}}}
	})
	token := r.token(t, nil)
	for i, test := range []struct {
		caller nodeproof.Caller
		status int
	}{
		{at("198.51.100.9"), 200}, {at("::ffff:198.51.100.9"), 200},
		{at("192.0.2.2"), 403}, // the same node, but the owner's address may be that of a thief
		{at("192.0.2.3"), 403},
	} {
		a := r.do(t, from(test.caller, get(token)))
		if e := r.lastEvent(t, i+1); a.status != test.status || e.Replay.Passed != (test.status == 200) || e.Replay.Owner != "address/198.51.100.9" {
			t.Errorf("%v: status %d, replay %+v", test.caller, a.status, e.Replay)
		}
	}
}

// Any caller may be behind the address of a proxy. It shows neither the same caller nor a different
// one.
func TestReplayByUnknownCallers(t *testing.T) {
	t.Parallel()
	for _, caller := range []nodeproof.Caller{{}, {Address: netip.MustParseAddr("192.0.2.1"), ViaProxy: true}} {
		for mode, status := range map[exchange.ReplayMode]int{exchange.ReplayAudit: 200, exchange.ReplayEnforce: 403} {
			r := newRig(t, func(c *rigConfig) {
				c.replay, c.owners = mode, ownersFunc(func(string) (string, error) { panic("asked") })
			})
			a := r.do(t, from(caller, get(r.token(t, nil))))
			e := r.lastEvent(t, 1)
			if a.status != status || e.Replay.Passed || e.Replay.Reason != exchange.ReplayCallerUnknown {
				t.Errorf("%s: status %d, replay %+v", mode, a.status, e.Replay)
			}
			if status == 403 && (e.Reason != "caller_unknown" || !strings.Contains(a.body.Errors[0].Message, "X-Forwarded-For")) {
				t.Errorf("event %+v, body %+v", e, a.body)
			}
		}
	}
}

// Two clusters may create the same token id, and names may look alike.
func TestReplayKeysAreInjective(t *testing.T) {
	t.Parallel()
	keys := map[string]bool{}
	for _, parts := range [][]string{{"prod", "1"}, {"prod1", ""}, {"pro", "d1"}, {"prod:1", ""}, {"", "prod1"}, {"4:prod", "1"}, {"prod", "1", ""}} {
		keys[exchange.Joined(parts...)] = true
	}
	if len(keys) != 7 {
		t.Errorf("keys collide: %v", keys)
	}
}

func TestStateSettings(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for want, change := range map[string]func(*exchange.Config){
		`unknown mode of replay ""`:               func(c *exchange.Config) { c.Replay = "" },
		`unknown mode of replay "on"`:             func(c *exchange.Config) { c.Replay = "on" },
		"replay in mode audit needs owners":       func(c *exchange.Config) { c.Replay = exchange.ReplayAudit },
		"replay in mode enforce needs owners":     func(c *exchange.Config) { c.Replay = exchange.ReplayEnforce },
		"revocations, a limit of ServiceAccounts": func(c *exchange.Config) { c.Revocations = nil },
		"a limit of ServiceAccounts, a policy":    func(c *exchange.Config) { c.ServiceAccounts = nil },
	} {
		c := exchange.Config{
			Verifier: panickingVerifier{}, Policy: parsePolicy(t, testPolicy), Registries: []*registryauth.Issuer{r.issuer},
			Revocations: revocations{}, Replay: exchange.ReplayOff, ServiceAccounts: unlimited, Memory: r.settings.Memory,
		}
		change(&c)
		if _, err := exchange.New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}
