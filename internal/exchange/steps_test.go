package exchange_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	pki "github.com/pullpass/pullpass/internal/exchange/nodeproof/nodeprooftest"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// told returns the steps that have a verdict in one line.
func told(steps exchange.Steps) string {
	var words []string
	for step, verdict := range steps {
		if verdict != "" {
			words = append(words, fmt.Sprintf("%s=%s", exchange.StepName(step), verdict))
		}
	}
	return strings.Join(words, " ")
}

// Admission returns the result of each step, up to the one that refuses.
func TestAdmissionTellsItsSteps(t *testing.T) {
	t.Parallel()
	revocation := &exchange.Revocation{Target: "node prod/node1", Reason: "stolen"}
	down := errors.New("down")
	here := caller("192.0.2.7")
	confirmed := func(node *exchange.Node) objects {
		return objects{byUID: map[string]exchange.Facts{webUID: {Confirmed: true, Node: node}}}
	}
	node := func(labels map[string]string) *exchange.Node {
		return &exchange.Node{Name: "node1", UID: node1UID, Labels: labels}
	}
	poolA := selector(t, "pool=a")
	byAddress := func(mode nodeproof.Mode) map[string]exchange.NodeChecks {
		return proving(mode, nil, nodeproof.Address)
	}
	for name, test := range map[string]struct {
		objects     exchange.Objects
		nodes       map[string]exchange.NodeChecks
		revocations exchange.Revocations
		caller      nodeproof.Caller
		noNode      bool // in the token
		want        string
	}{
		"nothing is configured":   {want: "objects=off node=passed caller=off revocations=not_judged"},
		"no node":                 {noNode: true, want: "objects=off node=off caller=off revocations=not_judged"},
		"no API server confirms":  {objects: knowing(nil), want: "objects=off node=passed caller=off revocations=not_judged"},
		"objects are there":       {objects: confirmed(nil), want: "objects=passed node=passed caller=off revocations=not_judged"},
		"an object is gone":       {objects: objects{err: &exchange.GoneError{Kind: exchange.KindPod}}, want: "objects=refused"},
		"API server is down":      {objects: objects{err: down}, want: ""},
		"node is required":        {noNode: true, nodes: map[string]exchange.NodeChecks{"prod": {Required: true}}, want: "objects=off node=refused"},
		"node is selected":        {objects: confirmed(node(map[string]string{"pool": "a"})), nodes: poolA, want: "objects=passed node=passed caller=off revocations=not_judged"},
		"node is not selected":    {objects: confirmed(node(nil)), nodes: poolA, want: "objects=passed node=refused"},
		"caller is the node":      {objects: node1At("192.0.2.7"), nodes: byAddress(nodeproof.Enforce), caller: here, want: "objects=off node=passed caller=passed revocations=not_judged"},
		"caller is another node":  {objects: node1At("192.0.2.8"), nodes: byAddress(nodeproof.Enforce), caller: here, want: "objects=off node=passed caller=refused"},
		"caller without address":  {objects: node1At("192.0.2.8"), nodes: byAddress(nodeproof.Enforce), want: "objects=off node=passed caller=refused"},
		"mode audit":              {objects: node1At("192.0.2.8"), nodes: byAddress(nodeproof.Audit), caller: here, want: "objects=off node=passed caller=noted revocations=not_judged"},
		"nothing is revoked":      {revocations: revocations{}, want: "objects=off node=passed caller=off revocations=passed"},
		"revoked":                 {revocations: revocations{revocation: revocation}, want: "objects=off node=passed caller=off revocations=refused"},
		"revocations are unknown": {revocations: revocations{err: down}, want: "objects=off node=passed caller=off"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, err := exchange.NewAdmission(exchange.AdmissionConfig{Objects: test.objects, Nodes: test.nodes, Revocations: test.revocations})
			testkit.Must(t, err)
			id := identityOn("prod", "node1")
			if test.noNode {
				id.Kubernetes.Node = oidc.ObjectRef{}
			}
			var e exchange.Event
			var steps exchange.Steps
			_, err = a.Admit(t.Context(), id, nil, test.caller, &e, &steps)
			last := steps[exchange.StepRevocations]
			if got := told(steps); got != test.want || (err == nil) != (last != "" && last != exchange.VerdictRefused) {
				t.Errorf("steps %q, error %v, want %q", got, err, test.want)
			}
			proved := steps[exchange.StepCaller] != "" && steps[exchange.StepCaller] != exchange.VerdictOff
			if proved != (e.Proof != nil) || (last == exchange.VerdictRefused) != (e.Revocation != nil) {
				t.Errorf("steps %+v, event %+v", steps, e)
			}
		})
	}
}

// An explained request has no connection. Steps that need it are not judged, and all others are. A
// serving Admission refuses the same request.
func TestAdmissionOfUnseenCallers(t *testing.T) {
	t.Parallel()
	ca := pki.NewCA(t)
	both := []nodeproof.Method{nodeproof.Certificate, nodeproof.Address}
	certified := nodeproof.Caller{Certificates: pki.Presented(pki.NewCA(t).Sign(t))}
	for name, test := range map[string]struct {
		methods []nodeproof.Method
		caller  nodeproof.Caller
		noNode  bool
		want    exchange.Verdict
		reason  nodeproof.Reason
	}{
		"no certificate, a wrong address":   {both, caller("192.0.2.8"), false, exchange.VerdictNotJudged, nodeproof.AddressOther},
		"no certificate, the right address": {both, caller("192.0.2.7"), false, exchange.VerdictPassed, ""},
		"no certificate":                    {both[:1], caller("192.0.2.7"), false, exchange.VerdictNotJudged, ""},
		"no address":                        {both[1:], nodeproof.Caller{}, false, exchange.VerdictNotJudged, ""},
		"a wrong address":                   {both[1:], caller("192.0.2.8"), false, exchange.VerdictRefused, nodeproof.AddressOther},
		"a wrong certificate":               {both[:1], certified, false, exchange.VerdictRefused, nodeproof.CertificateUntrusted},
		"no node":                           {both, nodeproof.Caller{}, true, exchange.VerdictRefused, nodeproof.NoNode},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, unseen := range []bool{true, false} {
				objects := node1At("192.0.2.7")
				id := identityOn("prod", "node1")
				if test.noNode {
					id.Kubernetes.Node, objects = oidc.ObjectRef{}, knowing(nil)
				}
				a, err := exchange.NewAdmission(exchange.AdmissionConfig{
					Objects: objects, Nodes: proving(nodeproof.Enforce, ca.CAs(), test.methods...),
					Now: func() time.Time { return made }, CallersUnseen: unseen,
				})
				testkit.Must(t, err)
				var e exchange.Event
				var steps exchange.Steps
				_, err = a.Admit(t.Context(), id, nil, test.caller, &e, &steps)
				want := test.want
				if !unseen && want == exchange.VerdictNotJudged {
					want = exchange.VerdictRefused
				}
				if got := steps[exchange.StepCaller]; got != want || (err != nil) != (want == exchange.VerdictRefused) || unseen && (e.Proof.Reason != test.reason || (e.Proof.Message == "") != (test.reason == "")) {
					t.Errorf("unseen %t: caller %s, proof %+v, error %v, want %s", unseen, got, e.Proof, err, want)
				}
			}
		})
	}
}

// Authorize returns the verdict of each step, up to the one that fails. Serving and explaining have
// these steps in common.
func TestAuthorizeTellsItsSteps(t *testing.T) {
	t.Parallel()
	const (
		admitted = "service=passed token=passed objects=off node=passed caller=off revocations=passed"
		granted  = admitted + " replay=off limits=passed deny=passed"
	)
	down := errors.New("down")
	for name, test := range map[string]struct {
		change func(*exchange.Authorizer, *registryauth.Request)
		want   string
		err    error // a value of the type
	}{
		"granted": {func(*exchange.Authorizer, *registryauth.Request) {}, granted, nil},
		"unknown service": {func(_ *exchange.Authorizer, r *registryauth.Request) { r.Service = "other" },
			"service=refused", &exchange.UnknownServiceError{}},
		"token is refused": {func(a *exchange.Authorizer, _ *registryauth.Request) {
			a.Identify = identifies(nil, &oidc.Error{Reason: refusal.TokenSignature})
		}, "service=passed token=refused", &oidc.Error{}},
		"issuer is down": {func(a *exchange.Authorizer, _ *registryauth.Request) {
			a.Identify = identifies(nil, &oidc.Error{Reason: refusal.IssuerUnavailable})
		}, "service=passed", &oidc.Error{}},
		"a fault of ours": {func(a *exchange.Authorizer, _ *registryauth.Request) { a.Identify = identifies(nil, down) }, "service=passed", down},
		"node is refused": {func(a *exchange.Authorizer, _ *registryauth.Request) {
			a.Admission = admission(t, exchange.AdmissionConfig{Objects: knowing(nil), Nodes: selector(t, "pool=a")})
		}, "service=passed token=passed objects=off node=refused", &exchange.NodeError{}},
		"push credential": {func(a *exchange.Authorizer, _ *registryauth.Request) {
			a.Identify = identifies(&exchange.PushRights{ID: "push-1"}, nil)
		}, granted, nil},
		"push credential is revoked": {func(a *exchange.Authorizer, _ *registryauth.Request) {
			a.Identify = identifies(&exchange.PushRights{ID: "push-1"}, nil)
			a.Admission = admission(t, exchange.AdmissionConfig{Revocations: revokedID("push-1")})
		}, "service=passed token=passed objects=off node=passed caller=off revocations=refused", &exchange.RevokedError{}},
		"first caller": {func(a *exchange.Authorizer, _ *registryauth.Request) { a.Replay = exchange.ReplayEnforce },
			admitted + " replay=passed limits=passed deny=passed", nil},
		"other caller": {func(a *exchange.Authorizer, _ *registryauth.Request) {
			a.Replay, a.Owners = exchange.ReplayEnforce, ownersFunc(someoneElse)
		}, admitted + " replay=refused", &exchange.ReplayError{}},
		"other caller, mode audit": {func(a *exchange.Authorizer, _ *registryauth.Request) {
			a.Replay, a.Owners = exchange.ReplayAudit, ownersFunc(someoneElse)
		}, admitted + " replay=noted limits=passed deny=passed", nil},
		"owner is unknown": {func(a *exchange.Authorizer, _ *registryauth.Request) {
			a.Replay, a.Owners = exchange.ReplayEnforce, ownersFunc(func(string) (string, error) { return "", down })
		}, admitted, &exchange.UnavailableError{}},
		"owner is unknown, mode audit": {func(a *exchange.Authorizer, _ *registryauth.Request) {
			a.Replay, a.Owners = exchange.ReplayAudit, ownersFunc(func(string) (string, error) { return "", down })
		}, admitted + " replay=noted limits=passed deny=passed", nil},
		"too many": {func(a *exchange.Authorizer, _ *registryauth.Request) {
			a.ServiceAccounts = limiterFunc(func(string) time.Duration { return time.Second })
		}, admitted + " replay=off limits=refused", &exchange.LimitError{}},
		"explained": {func(a *exchange.Authorizer, _ *registryauth.Request) {
			a.Replay, a.Owners, a.ServiceAccounts = exchange.ReplayEnforce, nil, nil
		}, admitted + " replay=not_judged limits=not_judged deny=passed", nil},
		"explained, from a Secret": {func(a *exchange.Authorizer, _ *registryauth.Request) {
			a.Replay, a.Owners, a.ServiceAccounts = exchange.ReplayEnforce, nil, nil
			a.Identify = func(context.Context, registryauth.Request, *exchange.Event) (oidc.Identity, *exchange.PushRights, error) {
				id := identityOn("prod", "node1")
				id.Kubernetes.Secret = oidc.ObjectRef{Name: "pull", UID: "uid-pull"}
				return id, nil, nil
			}
			a.Admission = admission(t, exchange.AdmissionConfig{Objects: objects{byUID: map[string]exchange.Facts{webUID: {Confirmed: true}}}, Revocations: revocations{}})
		}, "service=passed token=passed objects=passed node=passed caller=off revocations=passed replay=off limits=not_judged deny=passed", nil},
		"denied": {func(a *exchange.Authorizer, _ *registryauth.Request) {
			a.Decide = func(policy.Subject, string, []registryauth.Scope) policy.Decision {
				return policy.Decision{DeniedBy: "quarantine"}
			}
		}, admitted + " replay=off limits=passed deny=refused", &exchange.DeniedError{}},
		"anonymous": {func(_ *exchange.Authorizer, r *registryauth.Request) { r.GrantType = registryauth.GrantAnonymous },
			"service=passed token=off objects=off node=off caller=off revocations=off replay=off limits=off deny=passed", &exchange.AnonymousError{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := exchange.Authorizer{
				Serves:          func(service string) bool { return service == testService },
				Identify:        identifies(nil, nil),
				Admission:       admission(t, exchange.AdmissionConfig{Revocations: revocations{}}),
				Replay:          exchange.ReplayOff,
				Owners:          newOwners(),
				ServiceAccounts: unlimited,
				Decide:          func(policy.Subject, string, []registryauth.Scope) policy.Decision { return policy.Decision{} },
			}
			request := registryauth.Request{Service: testService}
			test.change(&a, &request)
			access, err := a.Authorize(t.Context(), request, caller("192.0.2.7"), new(exchange.Event))
			if got := told(access.Steps); got != test.want || reflect.TypeOf(err) != reflect.TypeOf(test.err) {
				t.Errorf("steps %q, error %v, want %q, %T", got, err, test.want, test.err)
			}
		})
	}
}

// identifies returns an Identify for one identity.
func identifies(push *exchange.PushRights, err error) func(context.Context, registryauth.Request, *exchange.Event) (oidc.Identity, *exchange.PushRights, error) {
	return func(context.Context, registryauth.Request, *exchange.Event) (oidc.Identity, *exchange.PushRights, error) {
		return identityOn("prod", "node1"), push, err
	}
}

func admission(t *testing.T, c exchange.AdmissionConfig) *exchange.Admission {
	t.Helper()
	a := testkit.Value(exchange.NewAdmission(c))(t)
	return a
}

// revokedID is the only token id that is revoked.
type revokedID string

func (r revokedID) Revoked(id *oidc.Identity) (*exchange.Revocation, error) {
	if id.TokenID != string(r) {
		return nil, nil
	}
	return &exchange.Revocation{Target: "token " + id.TokenID, Reason: "stolen"}, nil
}
