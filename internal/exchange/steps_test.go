package exchange_test

import (
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
)

// told returns the steps of Admission in one line.
func told(steps exchange.Steps) string {
	var words []string
	for _, s := range steps {
		if s.Name != "" {
			words = append(words, fmt.Sprintf("%s=%s", s.Name, s.Verdict))
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
			must(t, err)
			id := identityOn("prod", "node1")
			if test.noNode {
				id.Kubernetes.Node = oidc.ObjectRef{}
			}
			var e exchange.Event
			_, steps, err := a.Admit(t.Context(), id, nil, test.caller, &e)
			if got := told(steps); got != test.want || (err == nil) != (steps[3].Name != "" && steps[3].Verdict != exchange.VerdictRefused) {
				t.Errorf("steps %q, error %v, want %q", got, err, test.want)
			}
			if checks := test.nodes["prod"]; steps[1].Name != "" && !reflect.DeepEqual(steps[1].Selector, checks.Selector) {
				t.Errorf("selector %v, want %v", steps[1].Selector, checks.Selector)
			}
			if steps[2].Proof != e.Proof || steps[3].Revocation != e.Revocation {
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
				must(t, err)
				_, steps, err := a.Admit(t.Context(), id, nil, test.caller, new(exchange.Event))
				want := test.want
				if !unseen && want == exchange.VerdictNotJudged {
					want = exchange.VerdictRefused
				}
				if s := steps[2]; s.Verdict != want || (err != nil) != (want == exchange.VerdictRefused) || unseen && s.Proof.Reason != test.reason {
					t.Errorf("unseen %t: step %+v, proof %+v, error %v, want %s", unseen, s, s.Proof, err, want)
				}
			}
		})
	}
}
