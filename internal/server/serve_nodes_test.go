package server

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A caller with the token of a pod must be the pod's node. A request without proof gets 403 where
// proof is enforced, and a token where it is only watched. Both have an audit line.
func TestServeAsksCallersForProof(t *testing.T) {
	t.Parallel()
	nodes, others := pkitest.NewAuthority(t, "node CA"), pkitest.NewAuthority(t, "other CA")
	raw := kubetest.Token(t, "https://issuer.example.com")
	for mode, refused := range map[nodeproof.Mode]int{nodeproof.Enforce: http.StatusForbidden, nodeproof.Audit: http.StatusOK} {
		p := startServiceWith(t, "  node: {proof: {mode: "+string(mode)+", methods: [certificate], clientCAFile: nodes.crt}}\n", map[string]string{"nodes.crt": nodes.Pem()})
		expect := func(caller *http.Client, want nodeproof.Reason) {
			t.Helper()
			status, event := p.StatusFrom(t, caller, raw), p.LastEvent(t)
			wantStatus := refused
			if want == "" {
				wantStatus = http.StatusOK
			}
			if status != wantStatus || event.Status != wantStatus {
				t.Errorf("%s: status %d, in the audit log %d, want %d", mode, status, event.Status, wantStatus)
			}
			if event.Proof == nil || event.Proof.Reason != want || event.Proof.Passed != (want == "") || event.Proof.Mode != mode {
				t.Errorf("%s: proof %+v, want the reason %q", mode, event.Proof, want)
			}
		}
		node := p.CallerWith(t, nodes.Client(t, "system:node:node1"))
		expect(node, "")
		expect(p.CallerWith(t, nil), nodeproof.CertificateMissing)
		expect(p.CallerWith(t, nodes.Client(t, "system:node:node2")), nodeproof.CertificateOtherNode)
		expect(p.CallerWith(t, others.Client(t, "system:node:node1")), nodeproof.CertificateUntrusted)
		expect(p.CallerWith(t, nodes.ClientUntil(t, "system:node:node1", -time.Minute)), nodeproof.CertificateExpired)

		if _, metrics := p.Fetch(t, "http://"+p.Admin+"/metrics"); !strings.Contains(metrics,
			`pullpass_caller_proofs_total{cluster="prod",mode="`+string(mode)+`",reason="certificate_missing",result="failed"} 1`) {
			t.Errorf("%s: the metrics do not tell of it:\n%s", mode, metrics)
		}

		// The CA is replaced: what was good an instant ago proves nothing any more,
		// neither on the connection that stays open nor in a session that is resumed.
		testkit.Put(t, filepath.Join(p.Dir, "nodes.crt"), others.Pem())
		replaced := p.CallerWith(t, others.Client(t, "system:node:node1"))
		testkit.Eventually(t, "the new CA counts", func() bool {
			p.StatusFrom(t, replaced, raw)
			return p.LastEvent(t).Proof.Passed
		})
		expect(node, nodeproof.CertificateUntrusted)
		node.CloseIdleConnections()
		expect(node, nodeproof.CertificateUntrusted)
		testkit.Must(t, p.stop())
	}
}
