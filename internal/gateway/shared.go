package gateway

import (
	"context"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/refusal"
)

const (
	// sweepEvery bounds how long the streams of a revoked holder continue.
	sweepEvery = time.Second
	// finishWithin is how long the push of a manifest continues without its client.
	finishWithin = 30 * time.Second
)

var (
	errShared = &rejection{reason: refusal.LimitedHolder, code: "TOOMANYREQUESTS", retryAfter: time.Second,
		message: "this ServiceAccount, namespace or project has more streams at the gateway than others, who wait; try again"}
	errBusy = &rejection{reason: refusal.LimitedHolder, code: "TOOMANYREQUESTS", retryAfter: time.Second,
		message: "this ServiceAccount, namespace or project has its share of the gateway's streams; try again"}
)

// stream is a request that is being forwarded, from the authentication of its caller to the end of
// its body. It is also the request's writer, so that it can be ended while it waits for the
// upstream or for either direction of the client.
type stream struct {
	http.ResponseWriter
	request        *http.Request // the original request
	handler        *Handler
	bearer         *bearer
	tenant, holder string
	moved          atomic.Int64            // time of the last read or write of a body, in nanoseconds since 1970
	cancel         context.CancelCauseFunc // of the request in progress

	mu    sync.Mutex
	left  bool  // the request was answered
	cause error // the reason for its end; nil: it was not ended
}

// admit finds a place for a request. leave must be called to give the place back.
func (h *Handler) admit(q *request) (*stream, error) {
	client := q.http.Context()
	begin := context.WithCancelCause
	if q.target.kind == kindManifest && q.http.Method == http.MethodPut {
		begin = outlasting
	}
	ctx, cancel := begin(client)
	st := &stream{ResponseWriter: q.w, request: q.http, handler: h, bearer: q.bearer, cancel: cancel}
	st.tenant, st.holder = q.sharer()
	st.move()
	if !h.Memory.shares.enter(client, st) {
		defer cancel(nil)
		if client.Err() != nil { // it hung up
			return nil, errClient
		}
		return nil, errBusy
	}
	q.w, q.http, q.tenant = st, q.http.WithContext(ctx), st.tenant
	q.body.client, q.body.moved = http.NewResponseController(st), st.move
	return st, nil
}

// outlasting returns the context of the push of a manifest, which lasts for up to finishWithin after
// the client has left. A client must not hide its push by hanging up: the upstream may store the
// manifest, and then the event has to say so. A body that is not whole still ends the push, when it
// is read.
func outlasting(client context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(client))
	context.AfterFunc(client, func() {
		select {
		case <-ctx.Done():
		case <-time.After(finishWithin):
			cancel(nil)
		}
	})
	return ctx, cancel
}

// sharer returns the tenant and the holder whose share of the places the request uses.
func (q *request) sharer() (tenant, holder string) {
	p := q.bearer.holder
	switch {
	case p == nil:
		return "anonymous", exchange.Network(q.caller.Address).String()
	case p.Identity != "":
		project := "identity\x00" + p.Identity + "\x00" + p.Project
		return project, project
	}
	return p.Cluster + "/" + p.Namespace, p.ServiceAccount
}

// leave gives the place back. It returns the reason if the stream was ended before, or nil.
func (st *stream) leave(q *request) error {
	st.mu.Lock()
	st.left = true
	cause := st.cause
	st.mu.Unlock()
	st.handler.Memory.shares.leave(st)
	st.cancel(nil)
	q.w, q.http = st.ResponseWriter, st.request
	return cause
}

// end ends a stream soon, because of cause. It does nothing if st is nil.
func (st *stream) end(cause error) {
	if st == nil {
		return
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.left || st.cause != nil {
		return
	}
	st.cause = cause
	st.cancel(nil)
	client, now := http.NewResponseController(st.ResponseWriter), time.Now()
	_ = client.SetReadDeadline(now)
	_ = client.SetWriteDeadline(now.Add(endWithin)) // a write that is cut off leaves a gap in TLS's records
}

// SetReadDeadline is for http.ResponseController, as SetWriteDeadline is. A stream that was ended
// gets no more time.
func (st *stream) SetReadDeadline(t time.Time) error {
	return st.extend(func(c *http.ResponseController) error { return c.SetReadDeadline(t) })
}

func (st *stream) SetWriteDeadline(t time.Time) error {
	return st.extend(func(c *http.ResponseController) error { return c.SetWriteDeadline(t) })
}

func (st *stream) extend(set func(*http.ResponseController) error) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.cause != nil {
		return os.ErrDeadlineExceeded
	}
	return set(http.NewResponseController(st.ResponseWriter))
}

// Unwrap is for http.ResponseController.
func (st *stream) Unwrap() http.ResponseWriter { return st.ResponseWriter }

func (st *stream) Write(p []byte) (int, error) {
	n, err := st.ResponseWriter.Write(p)
	st.move()
	return n, err
}

func (st *stream) move() { st.moved.Store(time.Now().UnixNano()) }

// Run ends the streams of revoked holders, until ctx ends.
func (m *Memory) Run(ctx context.Context) {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			for _, st := range m.shares.all() {
				// While revocations are unknown, there is none, and streams continue.
				if revocation, _ := st.handler.revocationOf(st.bearer); revocation != nil {
					st.end(revokedBy(revocation))
				}
			}
		}
	}
}
