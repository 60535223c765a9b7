package gateway

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/upstream"
)

// body is one that stands still until its request ends, as net/http's do.
type body struct{ ctx context.Context }

func (b body) Read([]byte) (int, error) {
	<-b.ctx.Done()
	return 0, context.Cause(b.ctx)
}

// An answer that does not go on is told from one that broke off.
func TestStalledBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		began := time.Now()
		q := &request{
			http: httptest.NewRequest(http.MethodGet, "/v2/", nil), w: httptest.NewRecorder(),
			event: &exchange.Event{Gateway: &exchange.GatewayRequest{}}, target: target{upstream: "ghcr.io"},
		}
		err := (&Handler{}).stream(cancel, q, http.StatusOK, body{ctx})
		var failed *upstream.Error
		if !errors.As(err, &failed) || failed.Reason != upstream.ReasonTimeout || failed.Status != http.StatusOK || time.Since(began) != stallTimeout {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}
