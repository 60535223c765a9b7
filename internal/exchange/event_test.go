package exchange

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/base/redact"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/refusal"
)

func TestOutcomesOfErrors(t *testing.T) {
	t.Parallel()
	cause := errors.New("connection refused")
	for name, test := range map[string]struct {
		err      error
		reason   refusal.Reason
		class    refusal.Class
		operator string
		retry    time.Duration
	}{
		"issuer is down": {&oidc.Error{Reason: refusal.IssuerUnavailable, Message: "down", Err: cause}, refusal.IssuerUnavailable, refusal.Unavailable, "down: connection refused", retryAfter},
		"token":          {&oidc.Error{Reason: refusal.TokenClaims, Message: "claims", Err: cause}, refusal.TokenClaims, refusal.Unauthenticated, "", 0},
		"sealed":         {errPushSealed, refusal.PushCredential, refusal.Unauthenticated, "", 0},
		"push":           {errPushPod, refusal.PushCredential, refusal.Forbidden, "", 0},
		"canceled":       {context.Canceled, refusal.RequestCanceled, refusal.Unavailable, "", retryAfter},
		"deadline":       {context.DeadlineExceeded, refusal.RequestCanceled, refusal.Unavailable, "", retryAfter},
		"overloaded":     {errOverloaded, refusal.Overloaded, refusal.Unavailable, "", overloadRetryAfter},
		"any other":      {io.EOF, refusal.InternalError, refusal.Internal, "", 0},
	} {
		if o := classify(test.err, "id"); o.reason != test.reason || o.class != test.class || o.operator != test.operator || o.retryAfter != test.retry || o.message == "" {
			t.Errorf("%s: %+v", name, o)
		}
	}
	if err := issueError(io.EOF); err != io.EOF {
		t.Errorf("%v", err)
	}
	if err := (&Authorization{}).PushRefusal(); !errors.Is(err, errPushPod) {
		t.Errorf("an anonymous caller: %v", err)
	}
	if got := Classes(refusal.PushCredential); len(got) != 2 || got[0] != refusal.Forbidden || got[1] != refusal.Unauthenticated {
		t.Errorf("classes of a push credential: %v", got)
	}
	if got := Classes(refusal.TokenReplayed); len(got) != 1 || got[0] != refusal.Forbidden {
		t.Errorf("classes of a replayed token: %v", got)
	}
	for class, want := range map[refusal.Class]Result{refusal.Narrowed: ResultPartial, refusal.NotFound: ResultInvalid, refusal.BadGateway: ResultUnavailable, refusal.GatewayTimeout: ResultUnavailable} {
		if got := ResultOf(class); got != want {
			t.Errorf("%s: %s", class, got)
		}
	}
	deleted := GoneError{Kind: KindPod, Name: "a/b", UID: "u"}
	if text := deleted.Error(); strings.Contains(text, "recreated") {
		t.Error(text)
	}
	deleted.Now = "v"
	if text := deleted.Error(); !strings.Contains(text, "recreated under the same name (UID v)") {
		t.Error(text)
	}
}

// No field that a caller can fill keeps the credential.
func TestEventsAreRedacted(t *testing.T) {
	t.Parallel()
	const secret = "eyJhbGciOi.body-of-a-token.signature"
	e := Event{
		Client: secret, ClientID: secret, Account: secret, Requested: []string{secret}, Granted: []string{secret}, Message: "no: " + secret,
		Scopes:  []ScopeEvent{{Scope: secret, Reason: "no: " + secret, Remedy: "run: " + secret}, {Remedy: "run"}},
		Proof:   &nodeproof.Proof{Message: "name " + secret},
		Trial:   &Trial{Granted: []string{secret}},
		Claimed: &Claimed{Issuer: secret, Subject: secret, Pod: secret, Node: secret, Secret: secret, CredentialID: "JTI=" + secret},
	}
	e.redact(redact.Known("", secret))
	for name, text := range map[string]string{
		"client": e.Client, "client id": e.ClientID, "account": e.Account, "requested": e.Requested[0], "granted": e.Granted[0], "message": e.Message, "trial": e.Trial.Granted[0],
		"scope": e.Scopes[0].Scope, "reason": e.Scopes[0].Reason, "remedy": e.Scopes[0].Remedy, "proof": e.Proof.Message,
		"issuer": e.Claimed.Issuer, "subject": e.Claimed.Subject, "pod": e.Claimed.Pod, "node": e.Claimed.Node, "secret": e.Claimed.Secret, "id": e.Claimed.CredentialID,
	} {
		if strings.Contains(text, "body-of-a-token") {
			t.Errorf("%s: %s", name, text)
		}
	}
	if e.Scopes[0].Remedy != "" || e.Scopes[1].Remedy != "run" {
		t.Errorf("remedies %+v", e.Scopes)
	}
}

func TestPartsOfEvents(t *testing.T) {
	t.Parallel()
	if c := ClaimedBy(&oidc.Error{}); c != nil {
		t.Errorf("a token without claims: %+v", c)
	}
	if c := ClaimedBy(&oidc.Error{Claimed: oidc.Claimed{Subject: "a"}}); c == nil || c.CredentialID != "" {
		t.Errorf("a token without an id: %+v", c)
	}
	if name := (&Event{Identity: &Identity{Name: "ci"}, Cluster: "prod"}).IssuerName(); name != "ci" {
		t.Errorf("the issuer is %q", name)
	}
	for _, test := range []struct {
		event     Event
		presented string
		push      bool
	}{
		{Event{}, "", false},
		{Event{Reason: string(refusal.PushCredential)}, "", true},
		{Event{Reason: string(refusal.TokenReplayed)}, "", false},
		{Event{PushCredential: "a", IssuedID: "a"}, "", true},
		{Event{PushCredential: "a", IssuedID: "b"}, "a", false},
	} {
		if got := test.event.PushPresented(); got != test.presented || test.event.IsForPush() != test.push {
			t.Errorf("%+v: %q, %t", test.event, got, test.event.IsForPush())
		}
	}
	if !IsPushCredential(pushPrefix+"x") || IsPushCredential("x"+pushPrefix) {
		t.Error("push credentials are not known by their prefix")
	}
	e := Event{Requested: make([]string, 100)}
	e.refuse(classify(&RevokedError{}, ""))
	if len(e.Requested) != 100 {
		t.Errorf("%d scopes of a refused request", len(e.Requested))
	}
	for _, err := range []error{&LimitError{reason: refusal.LimitedAddress}, &oidc.Error{Reason: refusal.TokenSignature}} {
		e := e
		if e.refuse(classify(err, "")); len(e.Requested) != policy.MaxScopesTold {
			t.Errorf("%v: %d scopes", err, len(e.Requested))
		}
	}
}

func TestDecisionsAreNoted(t *testing.T) {
	t.Parallel()
	var e Event
	e.decide(policy.Decision{Scopes: []policy.ScopeDecision{{Rules: []string{"a", "b"}}, {Rules: []string{"b", "a"}}}}, nil)
	if e.Rule != "a,b" || e.Result != ResultGranted {
		t.Errorf("%+v", e)
	}
	e = Event{}
	if e.decide(policy.Decision{DeniedBy: "d"}, nil); e.Rule != "d" || e.Result != "" {
		t.Errorf("%+v", e)
	}
	for status, err := range map[int]error{200: nil, 405: errMethod, 500: io.EOF} {
		if e.Conclude(err); e.Status != status {
			t.Errorf("%v: status %d", err, e.Status)
		}
	}
	if h := holder(&oidc.Identity{TokenID: "t", External: &identity.External{Provider: "ci", Project: "42", Run: "7"}}, "p"); h.Identity != "ci" || h.Project != "42" || h.Run != "7" || h.TokenID != "t" || h.PushCredential != "p" {
		t.Errorf("%+v", h)
	}
	if l := limitOf(&oidc.Identity{Cluster: "prod"}); l.whose != "of this ServiceAccount" {
		t.Errorf("%+v", l)
	}
}

type freeLimiter struct{}

func (freeLimiter) Take(context.Context, string) time.Duration { return 0 }

// An address that has something left is not noted: there is room for few.
func TestOnlySpentAddressesAreNoted(t *testing.T) {
	t.Parallel()
	memory := NewMemory(MemoryConfig{InFlight: 1})
	l := NewAddressLimit(freeLimiter{}, memory, time.Now)
	from := Network(netip.MustParseAddr("192.0.2.1"))
	if wait := l.Take(t.Context(), from); wait != 0 || memory.spent.Len() != 0 || l.Wait(from) > 0 {
		t.Errorf("wait %s, %d noted", wait, memory.spent.Len())
	}
}
