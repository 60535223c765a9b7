package exchange_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// BenchmarkExchange puts the whole handler next to a floor: the least that any
// token endpoint of this kind must do, written by hand and checking nothing
// else. Read the ratios of one run, not the times.
//
//	floor     one RS256 verification, one ES256 signature, JSON
//	first     a token not seen before
//	repeated  the token and scope of the request before
//	mix       each token twice, as a pull asks (resolve, then fetch)
func BenchmarkExchange(b *testing.B) {
	const identities = 256
	r := newRig(b, func(c *rigConfig) {
		c.cacheBytes = 4 << 10 // so that another token's request finds nothing remembered
		c.recorder = encodingRecorder{}
	})
	requests := make([]func() *http.Request, identities)
	for i := range requests {
		token := r.token(b, func(c map[string]any) { c["jti"] = fmt.Sprintf("63ef7a8c-1d81-4c97-8f89-%012d", i) })
		body := readAll(b, post(token, "repository:team-a/web:pull"))
		requests[i] = func() *http.Request {
			request := httptest.NewRequest(http.MethodPost, "/token", strings.NewReader(body))
			request.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
			request.Header.Set("User-Agent", "containerd/v2.4.2")
			return request
		}
	}
	run := func(name string, handler http.Handler, index func(i int) int) {
		b.Run("exchange="+name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, requests[index(i)%identities]())
				if w.Code != http.StatusOK {
					b.Fatalf("status %d: %s", w.Code, w.Body)
				}
			}
		})
	}
	run("floor", newFloor(b), func(i int) int { return i })
	run("first", r.handler, func(i int) int { return i })
	run("repeated", r.handler, func(int) int { return 0 })
	run("mix", r.handler, func(i int) int { return i / 2 })
	r.follow(b, func(c *exchange.Config) { c.Trial = parsePolicy(b, testPolicy) })
	run("first-with-trial", r.handler, func(i int) int { return i })
	run("repeated-with-trial", r.handler, func(int) int { return 0 })
}

// BenchmarkWorstRequest compares a plain request with the most expensive one that an editor of a
// ServiceAccount can make. Read the reported ratio. All rules are for the ServiceAccount and read
// its annotation.
func BenchmarkWorstRequest(b *testing.B) {
	for _, rules := range []int{10, 300, 5000} {
		for name, worst := range map[string]struct{ item, scope string }{
			"components": {strings.Repeat("*/", 15) + "*b*", "team-a/" + strings.Repeat("a/", 14) + strings.Repeat("a", 120)},
			"wildcards":  {strings.Repeat("*a", 100) + "*b*", strings.Repeat("a", 200)},
			"deep":       {strings.Repeat("a*/", 120) + "*b*", strings.Repeat("a/", 120) + "a"},
		} {
			b.Run(fmt.Sprintf("rules=%d/%s", rules, name), func(b *testing.B) {
				annotation := strings.Repeat(worst.item+" ", 8000/len(worst.item+" "))
				plain := newRig(b, func(c *rigConfig) {
					c.policy, c.objects, c.recorder = manyRules(rules), annotated("team-a/web team-a/worker:pull,push shared/**"), encodingRecorder{}
				})
				hostile := newRig(b, func(c *rigConfig) {
					c.policy, c.objects, c.recorder = manyRules(rules), annotated(annotation), encodingRecorder{}
				})
				scopes := make([]string, registryauth.MaxScopes)
				for i := range scopes {
					scopes[i] = fmt.Sprintf("repository:%s%d:push", worst.scope, i)
				}
				floor := perRequest(b, plain, "repository:team-a/web:push")
				dear := perRequest(b, hostile, scopes...)
				for b.Loop() { // measured above
				}
				b.ReportMetric(dear.Seconds()*1e6, "µs/worst")
				b.ReportMetric(floor.Seconds()*1e6, "µs/plain")
				b.ReportMetric(float64(dear)/float64(floor), "times-a-plain-request")
			})
		}
	}
}

// manyRules returns a policy of rules that read one annotation, and differ.
func manyRules(n int) string {
	var text strings.Builder
	text.WriteString("apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicy\nrules:\n")
	for i := range n {
		fmt.Fprintf(&text, "- {name: r%d, subjects: [{namespaces: ['team-*']}], annotation: pullpass.dev/repositories, allow: [{repositories: ['**/x%d', 'team-a/x%d/**'], actions: [push]}]}\n", i, i, i)
	}
	return text.String()
}

// perRequest returns the cost of a request with a new token: the fastest of many, because the
// machine is shared.
func perRequest(b *testing.B, r *rig, scopes ...string) time.Duration {
	b.Helper()
	fastest := time.Duration(1<<63 - 1)
	for i := range 40 {
		request := get(r.token(b, func(c map[string]any) { c["jti"] = fmt.Sprint(i) }), scopes...)
		w := httptest.NewRecorder()
		begin := time.Now()
		r.handler.ServeHTTP(w, request)
		if i > 0 { // the first one fetches keys
			fastest = min(fastest, time.Since(begin))
		}
		if w.Code != http.StatusOK {
			b.Fatalf("status %d: %s", w.Code, w.Body)
		}
	}
	return fastest
}

// BenchmarkLiveIdentities fills the memory of verified and of issued tokens
// with as many pods as a large cluster has, and reports what they cost.
func BenchmarkLiveIdentities(b *testing.B) {
	const identities = 100_000
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: fastKey()}, (&jose.SignerOptions{}).WithHeader("kid", "k2"))
	testkit.Must(b, err)
	for b.Loop() {
		r := newRig(b, func(c *rigConfig) { c.recorder = encodingRecorder{} })
		before := testkit.Heap()
		for i := range identities {
			claims := r.claims()
			claims["jti"] = fmt.Sprintf("63ef7a8c-1d81-4c97-8f89-%012d", i)
			w := httptest.NewRecorder()
			r.handler.ServeHTTP(w, get(sign(b, signer, claims), "repository:team-a/web:pull"))
			if w.Code != http.StatusOK {
				b.Fatalf("status %d: %s", w.Code, w.Body)
			}
		}
		b.ReportMetric(float64(testkit.Heap()-before)/(1<<20), "MiB/100k-identities")
		runtime.KeepAlive(r)
	}
}

// encodingRecorder pays for the audit line, as a real recorder does.
type encodingRecorder struct{}

func (encodingRecorder) Record(e *exchange.Event) {
	if _, err := json.Marshal(e); err != nil {
		panic(err)
	}
}

func readAll(b *testing.B, r *http.Request) string {
	b.Helper()
	var body strings.Builder
	buffer := make([]byte, 4096)
	for {
		n, err := r.Body.Read(buffer)
		body.Write(buffer[:n])
		if err != nil {
			return body.String()
		}
	}
}

// newFloor returns net/http + one RS256 verification + one ES256 signature +
// JSON, and nothing else: the yardstick, not an example to follow.
func newFloor(b *testing.B) http.Handler {
	b.Helper()
	public := &signingKeys()[0].PublicKey
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.Must(b, err)
	type access struct {
		Type    string   `json:"type"`
		Name    string   `json:"name"`
		Actions []string `json:"actions"`
	}
	encode := base64.RawURLEncoding
	header := encode.EncodeToString([]byte(`{"alg":"ES256","typ":"JWT"}`))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(r.PostFormValue("password"), ".")
		digest := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
		signature, _ := encode.DecodeString(parts[2])
		if rsa.VerifyPKCS1v15(public, crypto.SHA256, digest[:], signature) != nil {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		payload, _ := encode.DecodeString(parts[1])
		var incoming struct {
			Issuer   string   `json:"iss"`
			Subject  string   `json:"sub"`
			Audience []string `json:"aud"`
			Expiry   int64    `json:"exp"`
		}
		if json.Unmarshal(payload, &incoming) != nil || incoming.Issuer != testIssuer || !slices.Contains(incoming.Audience, testAudience) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		scope := strings.Split(r.PostFormValue("scope"), ":")
		now := time.Now()
		claims, _ := json.Marshal(map[string]any{
			"iss": "pullpass.example.com", "sub": incoming.Subject, "aud": r.PostFormValue("service"),
			"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(5 * time.Minute).Unix(), "jti": rand.Text(),
			"access": []access{{scope[0], scope[1], strings.Split(scope[2], ",")}},
		})
		unsigned := header + "." + encode.EncodeToString(claims)
		digest = sha256.Sum256([]byte(unsigned))
		x, y, _ := ecdsa.Sign(rand.Reader, private, digest[:])
		raw := make([]byte, 64)
		x.FillBytes(raw[:32])
		y.FillBytes(raw[32:])
		token := unsigned + "." + encode.EncodeToString(raw)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{
			"token": token, "access_token": token, "expires_in": 300, "issued_at": now.UTC().Format(time.RFC3339),
		})
	})
}
