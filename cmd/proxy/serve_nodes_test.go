package main

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
)

// Whoever presents the token of a pod has to be the pod's node. What proves
// nothing is answered: with 403 where proof is enforced, with a token where it
// is watched, and with an audit line in both.
func TestServeAsksCallersForProof(t *testing.T) {
	t.Parallel()
	nodes, others := newAuthority(t, "node CA"), newAuthority(t, "other CA")
	raw := serviceAccountToken(t, "https://issuer.example.com")
	for mode, refused := range map[string]int{modeEnforce: http.StatusForbidden, modeAudit: http.StatusOK} {
		p := startServiceWith(t, "  node: {proof: {mode: "+mode+", methods: [certificate], clientCAFile: nodes.crt}}\n", map[string]string{"nodes.crt": nodes.pem()})
		expect := func(caller *http.Client, want exchange.ProofReason) {
			t.Helper()
			status, event := p.statusFrom(t, caller, raw), p.lastEvent(t)
			wantStatus := refused
			if want == "" {
				wantStatus = http.StatusOK
			}
			if status != wantStatus || event.Status != wantStatus {
				t.Errorf("%s: status %d, in the audit log %d, want %d", mode, status, event.Status, wantStatus)
			}
			if event.Proof == nil || event.Proof.Reason != want || event.Proof.Passed != (want == "") || string(event.Proof.Mode) != mode {
				t.Errorf("%s: proof %+v, want the reason %q", mode, event.Proof, want)
			}
		}
		node := p.callerWith(t, nodes.client(t, "system:node:node1"))
		expect(node, "")
		expect(p.callerWith(t, nil), exchange.ProofCertificateMissing)
		expect(p.callerWith(t, nodes.client(t, "system:node:node2")), exchange.ProofCertificateOtherNode)
		expect(p.callerWith(t, others.client(t, "system:node:node1")), exchange.ProofCertificateUntrusted)
		expect(p.callerWith(t, nodes.clientUntil(t, "system:node:node1", -time.Minute)), exchange.ProofCertificateExpired)

		if _, metrics := p.fetch(t, "http://"+p.admin+"/metrics"); !strings.Contains(metrics,
			`pullpass_caller_proofs_total{cluster="prod",mode="`+mode+`",reason="certificate_missing",result="failed"} 1`) {
			t.Errorf("%s: the metrics do not tell of it:\n%s", mode, metrics)
		}

		// The CA is replaced: what was good an instant ago proves nothing any more,
		// neither on the connection that stays open nor in a session that is resumed.
		put(t, filepath.Join(p.dir, "nodes.crt"), others.pem())
		replaced := p.callerWith(t, others.client(t, "system:node:node1"))
		eventually(t, "the new CA counts", func() bool {
			p.statusFrom(t, replaced, raw)
			return p.lastEvent(t).Proof.Passed
		})
		expect(node, exchange.ProofCertificateUntrusted)
		node.CloseIdleConnections()
		expect(node, exchange.ProofCertificateUntrusted)
		must(t, p.stop())
	}
}
