package gateway

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// unrevoked has no revocation, and records.
type unrevoked struct{ event *exchange.Event }

func (*unrevoked) Revoked(*oidc.Identity) (*exchange.Revocation, error) { return nil, nil }

func (u *unrevoked) Record(e *exchange.Event) { u.event = e }

// takenAway loses its place while it writes its last bytes.
type takenAway struct {
	*httptest.ResponseRecorder
	memory *Memory
}

func (w *takenAway) Write(p []byte) (int, error) {
	for _, st := range w.memory.shares.all() {
		st.end(errShared)
	}
	return w.ResponseRecorder.Write(p)
}

// An answer that was sent to its end is whole, also if its stream was ended at that moment.
func TestEndedWithItsLastBytes(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "text") }))
	defer server.Close()
	client := testkit.Value(upstream.New(upstream.Config{Name: "ghcr.io", URL: server.URL}))(t)
	memory, others := NewMemory(16), &unrevoked{}
	j := &judge{keys: &changing{}, now: time.Now, judged: memory.judged, latest: memory.trust}
	j.judged.Add(registryauth.NewSecret("token").Hash(), &judgedToken{by: j.trusted(), bearer: bearer{
		until: time.Now().Add(time.Hour), access: []registryauth.Scope{{Type: "repository", Name: "ghcr.io/acme/app", Actions: []string{"pull"}}},
	}})
	h := &Handler{names: Names{"ghcr.io"}, judge: j, Config: Config{
		Upstreams: map[string]Upstream{"ghcr.io": {Client: client, Actions: []string{"pull"}}}, Revocations: others, Recorder: others,
		Caller: func(*http.Request) nodeproof.Caller { return nodeproof.Caller{} }, Logger: testkit.QuietLogger(), Memory: memory, Now: time.Now,
	}}
	q := httptest.NewRequest(http.MethodGet, "/v2/ghcr.io/acme/app/manifests/v1", nil)
	q.Header.Set("Authorization", "Bearer token")
	w := &takenAway{httptest.NewRecorder(), memory}
	h.ServeHTTP(w, q)
	if e := others.event; w.Body.String() != "text" || e.Result != exchange.ResultGranted || e.Reason != "" {
		t.Errorf("%d %s %+v", w.Code, w.Body, e)
	}
}
