package exchange_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/refusal"
)

type funcLimiter struct {
	take func(key string) time.Duration
}

func (l *funcLimiter) Take(_ context.Context, key string) time.Duration { return l.take(key) }

func limiterFunc(take func(key string) time.Duration) exchange.Limiter { return &funcLimiter{take} }

var unlimited = limiterFunc(func(string) time.Duration { return 0 })

// buckets hold a number of units for each key, and get one more every period.
type buckets struct {
	size   int
	period time.Duration
	now    func() time.Time

	mu    sync.Mutex
	full  map[string]time.Time // when the bucket is full again
	asked int
}

func (b *buckets) Take(ctx context.Context, key string) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked++
	if ctx.Err() != nil {
		return time.Second // the bucket was not asked, and the caller is gone
	}
	now := b.now()
	full := b.full[key]
	if full.Before(now) {
		full = now
	}
	full = full.Add(b.period)
	if wait := full.Sub(now) - time.Duration(b.size)*b.period; wait > 0 {
		return wait
	}
	b.full[key] = full
	return 0
}

func (b *buckets) questions() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asked
}

func (b *buckets) keys(prefix string) (keys []string) {
	for key := range b.full {
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	return keys
}

// limited returns a rig whose buckets hold size units and get one more in each
// period.
func limited(t testing.TB, size int, period time.Duration, change func(*rigConfig)) (*rig, *buckets) {
	t.Helper()
	b := &buckets{size: size, period: period, full: map[string]time.Time{}, now: func() time.Time { return made }}
	r := newRig(t, func(c *rigConfig) {
		c.limits = b
		if change != nil {
			change(c)
		}
	})
	b.now = r.Now
	return r, b
}

// counting counts the credentials whose signature is verified.
type counting struct {
	exchange.Verifier
	calls *int
}

func (c counting) Verify(ctx context.Context, credential oidc.Credential) (oidc.Identity, error) {
	*c.calls++
	return c.Verifier.Verify(ctx, credential)
}

func TestServiceAccountLimit(t *testing.T) {
	t.Parallel()
	r, b := limited(t, 2, 1500*time.Millisecond, nil)
	token := r.token(t, nil)
	for range 2 {
		if a := r.do(t, get(token, "repository:team-a/web:pull")); a.status != http.StatusOK {
			t.Fatalf("status %d within the limit", a.status)
		}
	}
	r.advance(100 * time.Millisecond)
	another := r.token(t, func(c map[string]any) { c["jti"] = "another" }) // of the same ServiceAccount
	a := r.do(t, post(another, "repository:team-a/web:pull"))
	if a.status != http.StatusTooManyRequests || a.body.Errors[0].Code != "TOOMANYREQUESTS" || a.body.Error != "temporarily_unavailable" ||
		!strings.Contains(a.body.Errors[0].Message, "limits.perServiceAccount") || strings.ContainsAny(a.body.Errors[0].Message, "0123456789") {
		t.Errorf("status %d, body %+v", a.status, a.body)
	}
	if got := a.header.Get("Retry-After"); got != "2" { // 1.4 seconds
		t.Errorf("Retry-After is %q", got)
	}
	if e := r.lastEvent(t, 3); e.Status != 429 || e.Result != exchange.ResultRefused || e.Reason != "limited_service_account" ||
		e.ServiceAccount.Name != "web" || e.Granted != nil || e.IssuedID != "" {
		t.Errorf("event %+v", e)
	} else if !strings.Contains(e.Remedy(), "limits.perServiceAccount") {
		t.Errorf("remedy %q", e.Remedy())
	}
	if a := r.do(t, get(r.token(t, inNamespace("team-b")), "repository:team-b/web:pull")); a.status != http.StatusOK {
		t.Errorf("another ServiceAccount got %d", a.status)
	}
	recreated := r.token(t, func(c map[string]any) {
		c["kubernetes.io"].(map[string]any)["serviceaccount"] = map[string]any{"name": "web", "uid": "another-uid"}
	})
	if a := r.do(t, get(recreated, "repository:team-a/web:pull")); a.status != http.StatusOK {
		t.Errorf("another ServiceAccount of the same name got %d", a.status)
	}
	r.advance(1400 * time.Millisecond)
	if a := r.do(t, get(another, "repository:team-a/web:pull")); a.status != http.StatusOK {
		t.Errorf("status %d after Retry-After", a.status)
	}
	if keys := b.keys("7:address"); keys != nil {
		t.Errorf("good requests took from addresses: %q", keys)
	}
	if key := exchange.Joined("serviceAccount", "prod", "team-a", "web", webUID, "node1", node1UID); b.full[key].IsZero() {
		t.Errorf("taken from %v", b.full)
	}
}

// A DaemonSet asks once for each node. Tokens that name no node have one limit.
func TestServiceAccountLimitIsForEachNode(t *testing.T) {
	t.Parallel()
	r, b := limited(t, 1, time.Hour, func(c *rigConfig) { c.nodeOptional = true })
	on := func(node any) string {
		return r.token(t, func(c map[string]any) {
			onNode(node)(c)
			c["jti"] = rand.Text()
		})
	}
	for _, node := range []any{
		map[string]any{"name": "node1", "uid": node1UID}, map[string]any{"name": "node1", "uid": "recreated"}, map[string]any{"name": "node2", "uid": "2"}, nil,
	} {
		for i, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
			if a := r.do(t, get(on(node), "repository:team-a/web:pull")); a.status != want {
				t.Errorf("request %d of a pod on %v: status %d, want %d", i, node, a.status, want)
			}
		}
	}
	if keys := b.keys("14:serviceAccount"); len(keys) != 4 {
		t.Errorf("limits of %q", keys)
	}
}

// A caller that is refused as a whole must not use up the limit of the ServiceAccount's pods.
func TestRefusedTakeNothingFromServiceAccounts(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*rigConfig){
		"revoked":  func(c *rigConfig) { c.revocations = revocations{revocation: &exchange.Revocation{Reason: "stolen"}} },
		"replayed": func(c *rigConfig) { c.replay, c.owners = exchange.ReplayEnforce, ownersFunc(someoneElse) },
		"gone":     func(c *rigConfig) { c.objects = objects{err: &exchange.GoneError{Kind: exchange.KindPod}} },
	} {
		r, b := limited(t, 1, time.Second, change)
		for range 3 {
			if a := r.do(t, get(r.token(t, nil), "repository:team-a/web:pull")); a.status != http.StatusForbidden {
				t.Errorf("%s: status %d", name, a.status)
			}
		}
		if b.questions() != 0 {
			t.Errorf("%s: %d taken", name, b.questions())
		}
	}
}

// A unit that Owners took is not taken a second time, and refuses like Take. Owners take it only
// for the owner of the token.
func TestOwnersTakeFromTheServiceAccount(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		owned exchange.Owned
		asked int // questions to the limit
		want  int
	}{
		{"taken", exchange.Owned{Owner: "address/192.0.2.1", Taken: true}, 0, http.StatusOK},
		{"too many", exchange.Owned{Owner: "address/192.0.2.1", Taken: true, Wait: time.Second}, 0, http.StatusTooManyRequests},
		{"not taken", exchange.Owned{Owner: "address/192.0.2.1"}, 1, http.StatusOK},
		{"audited replay", exchange.Owned{Owner: "address/192.0.2.2"}, 1, http.StatusOK},
	} {
		asked := ""
		r, b := limited(t, 1, time.Second, func(rc *rigConfig) {
			rc.replay, rc.owners = exchange.ReplayAudit, ownsBuckets(func(bucket string) exchange.Owned {
				asked = bucket
				return c.owned
			})
		})
		if a := r.do(t, from(at("192.0.2.1"), get(r.token(t, nil)))); a.status != c.want {
			t.Errorf("%s: status %d", c.name, a.status)
		}
		if b.questions() != c.asked {
			t.Errorf("%s: %d questions", c.name, b.questions())
		}
		if c.asked == 1 && b.full[asked].IsZero() {
			t.Errorf("%s: the owner of bucket %q was requested, but the request was counted in a different bucket", c.name, asked)
		}
	}
}

type ownsBuckets func(bucket string) exchange.Owned

func (f ownsBuckets) Own(_ context.Context, _, _ string, _ time.Time, bucket string) (exchange.Owned, error) {
	return f(bucket), nil
}

// Once an address has spent its limit, unknown credentials are refused before their signature is
// verified. Credentials that are remembered as valid still pass.
func TestAddressLimit(t *testing.T) {
	t.Parallel()
	verified := 0
	r, b := limited(t, 2, 10*time.Second, func(c *rigConfig) {
		c.wrap = func(v exchange.Verifier) exchange.Verifier { return counting{v, &verified} }
	})
	good := r.token(t, nil)
	unseen := r.token(t, inNamespace("team-b"))
	bad := func() string { return sign(t, r.stranger, r.claims()) }
	if a := r.do(t, get(good, "repository:team-a/web:pull")); a.status != http.StatusOK {
		t.Fatalf("status %d", a.status)
	}
	for range 3 { // the third finds the bucket empty
		if a := r.do(t, get(bad(), "repository:team-a/web:pull")); a.status != http.StatusUnauthorized {
			t.Fatalf("status %d within the limit", a.status)
		}
	}
	verified, asked := 0, b.questions()
	for _, token := range []string{bad(), unseen, ""} {
		a := r.do(t, get(token, "repository:public/base:pull"))
		if a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") != "10" || a.body.Errors[0].Code != "TOOMANYREQUESTS" ||
			!strings.Contains(a.body.Errors[0].Message, "limits.perAddress") {
			t.Errorf("status %d, Retry-After %q, %+v", a.status, a.header.Get("Retry-After"), a.body.Errors)
		}
	}
	if e := r.lastEvent(t, 7); e.Status != 429 || e.Result != exchange.ResultRefused || e.Reason != "limited_address" || e.Caller != "192.0.2.1" || e.Cluster != "" {
		t.Errorf("event %+v", e)
	}
	if a := r.do(t, with(get(""), "service", "")); a.status != http.StatusBadRequest { // its form is enough to refuse it
		t.Errorf("status %d", a.status)
	}
	if verified != 0 || b.questions() != asked {
		t.Errorf("%d credentials checked, %d questions to the store", verified, b.questions()-asked)
	}
	if a := r.do(t, get(good, "repository:team-a/web:pull")); a.status != http.StatusOK {
		t.Errorf("a credential that is remembered as good got %d", a.status)
	}
	if a := r.do(t, from(nodeproof.Caller{Address: netip.MustParseAddr("192.0.2.2")}, get(unseen, "repository:team-b/web:pull"))); a.status != http.StatusOK {
		t.Errorf("another address got %d", a.status)
	}
	r.advance(10 * time.Second)
	if a := r.do(t, get(unseen, "repository:team-b/web:pull")); a.status != http.StatusOK {
		t.Errorf("status %d after Retry-After", a.status)
	}
}

// A change of the limit counts for the next request. Other changes leave spent addresses spent.
func TestAnAddressWaitsByThePresentLimit(t *testing.T) {
	t.Parallel()
	r, b := limited(t, 1, time.Hour, nil)
	bad, good := sign(t, r.stranger, r.claims()), r.token(t, nil)
	status := func(token string) int { return r.do(t, get(token, "repository:team-a/web:pull")).status }
	for range 2 { // the second finds the bucket empty
		if got := status(bad); got != http.StatusUnauthorized {
			t.Fatalf("status %d within the limit", got)
		}
	}
	r.follow(t, func(*exchange.Config) {})
	if got := status(good); got != http.StatusTooManyRequests {
		t.Errorf("status %d with the same limit", got)
	}
	r.endpoint.Addresses = &buckets{size: 2, period: time.Second, full: b.full, now: r.Now}
	r.follow(t, func(*exchange.Config) {})
	if got := status(good); got != http.StatusOK {
		t.Errorf("status %d with another limit", got)
	}
}

// All nodes of a cluster may have one address, and all their tokens be new.
func TestManyNodesBehindOneAddress(t *testing.T) {
	t.Parallel()
	r, b := limited(t, 10, time.Second, nil)
	for i := range 50 {
		token := r.token(t, func(c map[string]any) {
			c["jti"] = fmt.Sprintf("token-%d", i)
			inNamespace(fmt.Sprintf("team-%d", i))(c)
		})
		if a := r.do(t, get(token)); a.status != http.StatusOK {
			t.Fatalf("status %d", a.status)
		}
	}
	if keys := b.keys("7:address"); keys != nil {
		t.Errorf("good requests took from addresses: %q", keys)
	}
}

// Requests that take from an address: each failed credential, each request without one, each
// malformed one, once for both halves of an attempt. A refusal for a state of the cluster takes
// nothing.
func TestWhatTakesFromAnAddress(t *testing.T) {
	t.Parallel()
	down := func(c *rigConfig) {
		c.verifier = verifierFunc(func() (oidc.Identity, error) {
			return oidc.Identity{}, &oidc.Error{Reason: refusal.IssuerUnavailable, Message: "down"}
		})
	}
	for _, test := range []struct {
		name     string
		rig      func(*rigConfig)
		requests func(r *rig) []*http.Request
		want     int
	}{
		{"good", nil, func(r *rig) []*http.Request { return []*http.Request{post(r.token(t, nil)), get(r.token(t, nil))} }, 0},
		{"bad", nil, func(r *rig) []*http.Request { return []*http.Request{get("a.b.c"), get("a.b.c")} }, 2},
		{"one attempt", nil, func(r *rig) []*http.Request { return []*http.Request{post("a.b.c"), get("a.b.c")} }, 1},
		{"two POSTs", nil, func(r *rig) []*http.Request { return []*http.Request{post("a.b.c"), post("a.b.c")} }, 2},
		{"anonymous", nil, func(r *rig) []*http.Request { return []*http.Request{get("", "repository:public/base:pull"), get("")} }, 2},
		{"malformed", nil, func(r *rig) []*http.Request { return []*http.Request{with(get(r.token(t, nil)), "service", "")} }, 1},
		{"unknown service", nil, func(r *rig) []*http.Request {
			return []*http.Request{with(get(r.token(t, nil)), "service", "elsewhere")}
		}, 1},
		{"denied", nil, func(r *rig) []*http.Request { return []*http.Request{get(r.token(t, inNamespace("team-bad")))} }, 0},
		{"down", down, func(r *rig) []*http.Request { return []*http.Request{get(r.token(t, nil))} }, 0},
	} {
		var taken []string
		r := newRig(t, func(c *rigConfig) {
			c.limits = limiterFunc(func(key string) time.Duration {
				if strings.HasPrefix(key, "7:address") {
					taken = append(taken, key)
				}
				return 0
			})
			if test.rig != nil {
				test.rig(c)
			}
		})
		for _, request := range test.requests(r) {
			r.do(t, request)
		}
		if len(taken) != test.want {
			t.Errorf("%s: took %q, want %d", test.name, taken, test.want)
		}
	}
}

// containerd shows the response to the GET that repeats a refused POST. The GET is judged, even if
// the POST took the last unit.
func TestSecondHalfOfAnAttemptIsJudged(t *testing.T) {
	t.Parallel()
	r, _ := limited(t, 1, 10*time.Second, nil)
	r.do(t, get("a.b.c"))
	for i, want := range []int{http.StatusUnauthorized, http.StatusUnauthorized, http.StatusTooManyRequests} {
		request := get("x.y.z")
		if i == 0 {
			request = post("x.y.z")
		}
		if a := r.do(t, request); a.status != want {
			t.Errorf("request %d: status %d, want %d", i, a.status, want)
		}
	}
}

// A canceled request takes from its address.
func TestCanceledRequestsTakeFromTheirAddress(t *testing.T) {
	t.Parallel()
	r, b := limited(t, 10, time.Second, nil)
	request := get("a.b.c")
	ctx, cancel := context.WithCancel(request.Context())
	cancel()
	if a := r.do(t, request.WithContext(ctx)); a.status != http.StatusUnauthorized {
		t.Errorf("status %d", a.status)
	}
	if keys := b.keys("7:address"); len(keys) != 1 {
		t.Errorf("took from %q", keys)
	}
}

// A canceled request is not over the limit. Later requests from its address do not wait because of
// it.
func TestCanceledRequestsAreNotLimited(t *testing.T) {
	t.Parallel()
	r, _ := limited(t, 10, time.Second, nil)
	token := r.token(t, nil)
	r.do(t, post(token)) // reads the keys of the issuer
	for i, request := range []*http.Request{post(token), get("", "repository:public/base:pull")} {
		ctx, cancel := context.WithCancel(request.Context())
		cancel()
		if a := r.do(t, request.WithContext(ctx)); a.status == http.StatusTooManyRequests {
			t.Errorf("request %d is limited", i)
		}
	}
	if a := r.do(t, get("a.b.c")); a.status != http.StatusUnauthorized {
		t.Errorf("the next one from the address: status %d", a.status)
	}
}

// In IPv6 a caller can choose any address of a /64. IPv4 within IPv6 counts as IPv4.
func TestWhatIsOneAddress(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		a, b string
		same bool
	}{
		{"192.0.2.1", "192.0.2.1", true}, {"192.0.2.1", "192.0.2.2", false}, {"192.0.2.1", "::ffff:192.0.2.1", true},
		{"2001:db8::1", "2001:db8::2:1", true}, {"2001:db8::1", "2001:db8:0:1::1", false}, {"fe80::1%eth0", "fe80::1%eth1", true},
		{"", "", true}, {"", "192.0.2.1", false},
	} {
		r, _ := limited(t, 1, time.Minute, nil)
		caller := func(text string) nodeproof.Caller {
			address, _ := netip.ParseAddr(text)
			return nodeproof.Caller{Address: address}
		}
		r.do(t, from(caller(test.a), get("", "repository:public/base:pull")))
		a := r.do(t, from(caller(test.b), get("", "repository:public/base:pull")))
		if same := a.status == http.StatusTooManyRequests; same != test.same {
			t.Errorf("%q and %q: status %d", test.a, test.b, a.status)
		}
	}
}
