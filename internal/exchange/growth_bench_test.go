package exchange_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// BenchmarkGrowth measures an exchange, in the process, beside more and more of what
// grows in a company. "make performance" draws it.
func BenchmarkGrowth(b *testing.B) {
	for of, rule := range map[string]string{
		"rules-for-others":    "- {name: r%[1]d, subjects: [{namespaces: [x-%[1]d]}], allow: [{repositories: [a], actions: [pull]}]}\n",
		"rules-by-labels":     "- {name: r%[1]d, subjects: [{namespaceSelector: a=x%[1]d}], allow: [{repositories: [a], actions: [pull]}]}\n",
		"rules-for-everybody": "- {name: r%[1]d, subjects: [{namespaces: ['*']}], allow: [{repositories: [x-%[1]d], actions: [pull]}]}\n",
	} {
		for _, n := range []int{10, 1_000, 10_000} {
			b.Run(fmt.Sprintf("of=%s/n=%d", of, n), func(b *testing.B) {
				var text strings.Builder
				text.WriteString("apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicy\nrules:\n")
				for i := range n - 1 {
					fmt.Fprintf(&text, rule, i)
				}
				text.WriteString("- {name: own, subjects: [{namespaces: ['team-*']}], allow: [{repositories: ['{namespace}/**'], actions: [pull]}]}\n")
				r := newRig(b, func(c *rigConfig) {
					c.policy, c.recorder, c.objects = text.String(), encodingRecorder{}, annotated("")
					c.cacheBytes = 4 << 10 // so that another token's request finds nothing remembered
				})
				r.exchangeAll(b, r.signer, 64, "repository:team-a/web:pull")
			})
		}
	}
	for _, n := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("of=scopes-of-a-request/n=%d", n), func(b *testing.B) {
			r := newRig(b, func(c *rigConfig) { c.recorder, c.cacheBytes = encodingRecorder{}, 4<<10 })
			var scopes []string
			for i := range n {
				scopes = append(scopes, fmt.Sprintf("repository:team-a/web-%d:pull", i))
			}
			r.exchangeAll(b, r.signer, 64, scopes...)
		})
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: fastKey()}, (&jose.SignerOptions{}).WithHeader("kid", "k2"))
	testkit.Must(b, err)
	for _, n := range []int{100, 10_000, 100_000} {
		b.Run(fmt.Sprintf("of=live-identities/n=%d", n), func(b *testing.B) {
			r := newRig(b, func(c *rigConfig) { c.recorder = encodingRecorder{} })
			for i := range n {
				r.serve(b, signer, i, "repository:team-a/web:pull")
			}
			r.exchangeAll(b, signer, 64, "repository:team-a/web:pull")
		})
	}
}

// exchangeAll sends requests with the tokens of the given number of pods in turn.
func (r *rig) exchangeAll(b *testing.B, signer jose.Signer, pods int, scopes ...string) {
	b.Helper()
	requests := make([]*http.Request, pods)
	for i := range requests {
		requests[i] = r.requestOf(b, signer, i, scopes...)
	}
	defer testkit.MeasureCPU(b)()
	for i := 0; b.Loop(); i++ {
		request := requests[i%pods].Clone(b.Context())
		w := httptest.NewRecorder()
		r.handler.ServeHTTP(w, request)
		if w.Code != http.StatusOK {
			b.Fatalf("status %d: %s", w.Code, w.Body)
		}
	}
}

func (r *rig) requestOf(b *testing.B, signer jose.Signer, pod int, scopes ...string) *http.Request {
	b.Helper()
	claims := r.claims()
	claims["jti"] = fmt.Sprintf("63ef7a8c-1d81-4c97-8f89-%012d", pod)
	return get(sign(b, signer, claims), scopes...)
}

func (r *rig) serve(b *testing.B, signer jose.Signer, pod int, scopes ...string) {
	b.Helper()
	w := httptest.NewRecorder()
	r.handler.ServeHTTP(w, r.requestOf(b, signer, pod, scopes...))
	if w.Code != http.StatusOK {
		b.Fatalf("status %d: %s", w.Code, w.Body)
	}
}
