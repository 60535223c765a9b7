package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// body is a body that stalls until its request ends, like those of net/http.
type body struct{ ctx context.Context }

func (b body) Read([]byte) (int, error) {
	<-b.ctx.Done()
	return 0, context.Cause(b.ctx)
}

// A response that stalls is distinguished from one that broke off.
func TestStalledBody(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		began := time.Now()
		q := &request{
			http: httptest.NewRequest(http.MethodGet, "/v2/", nil), w: httptest.NewRecorder(),
			body: &clientBody{}, event: &exchange.Event{Gateway: &exchange.GatewayRequest{}}, target: target{upstream: "ghcr.io"},
		}
		err := (&Handler{}).stream(cancel, q, http.StatusOK, body{ctx})
		var failed *upstream.Error
		if !errors.As(err, &failed) || failed.Reason != refusal.UpstreamTimeout || failed.Status != http.StatusOK || time.Since(began) != stallTimeout {
			t.Errorf("%v after %s", err, time.Since(began))
		}

		ctx, cancel = context.WithCancelCause(t.Context())
		err = (&Handler{}).answerTags(cancel, q, &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(body{ctx})}, "")
		if failed = nil; !errors.As(err, &failed) || failed.Reason != refusal.UpstreamTimeout || failed.Status != http.StatusOK || time.Since(began) != 2*stallTimeout {
			t.Errorf("a list of tags: %v after %s", err, time.Since(began))
		}
	})
}

// paced is a client that reads each piece slowly.
type paced struct {
	*httptest.ResponseRecorder
	pace   time.Duration
	pieces []int
}

func (c *paced) Write(p []byte) (int, error) {
	time.Sleep(c.pace)
	c.pieces = append(c.pieces, len(p))
	return len(p), nil
}

// A client that reads a layer slowly holds half as much memory as a fast one.
func TestSlowClientsHoldSmallPieces(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		for _, test := range []struct {
			pace        time.Duration
			bytes, last int
		}{
			{0, takenAtOnce, smallBytes}, {0, 2 * takenAtOnce, largeBytes}, {2 * atOnce, 2 * takenAtOnce, smallBytes},
		} {
			client := &paced{ResponseRecorder: httptest.NewRecorder(), pace: test.pace}
			sent, err := pass(client, bytes.NewReader(make([]byte, test.bytes)), func() {})
			if err != nil || sent != int64(test.bytes) || client.pieces[0] != smallBytes || slices.Max(client.pieces) != test.last {
				t.Errorf("%d bytes, each piece in %s: %d sent, %v, pieces from %d to %d", test.bytes, test.pace, sent, err, client.pieces[0], slices.Max(client.pieces))
			}
		}
	})
}
