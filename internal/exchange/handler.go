package exchange

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/pullpass/pullpass/internal/base/redact"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/exchange/load"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// MaxClientLength is the maximum length of a User-Agent in the audit log, in bytes.
const MaxClientLength = 256

// HandlerConfig configures a Handler.
type HandlerConfig struct {
	Exchanger *Exchanger                           // required
	Recorder  Recorder                             // required
	Caller    func(*http.Request) nodeproof.Caller // required
	Addresses Limiter                              // of requests without a valid credential; required
	Logger    *slog.Logger                         // for internal errors; required
	Now       func() time.Time                     // nil means time.Now
	Memory    *Memory                              // that of the previous Handler, if there was one; required
}

// Handler is the token endpoint. It is safe for concurrent use.
type Handler struct {
	exchanger *Exchanger
	recorder  Recorder
	caller    func(*http.Request) nodeproof.Caller
	logger    *slog.Logger
	now       func() time.Time
	attempts  *attempts
	addresses *addressLimit
	bodies    *load.Bodies
	queue     *load.Queue
}

// NewHandler returns the token endpoint.
func NewHandler(c HandlerConfig) (*Handler, error) {
	if c.Exchanger == nil || c.Recorder == nil || c.Caller == nil || c.Addresses == nil || c.Logger == nil || c.Memory == nil {
		return nil, errors.New("exchange: Exchanger, Recorder, Caller, Addresses, Logger and Memory are required")
	}
	h := &Handler{
		exchanger: c.Exchanger,
		recorder:  c.Recorder,
		caller:    c.Caller,
		logger:    c.Logger,
		now:       c.Now,
		attempts:  c.Memory.attempts,
		bodies:    c.Memory.bodies,
		queue:     c.Memory.queue,
	}
	if h.now == nil {
		h.now = time.Now
	}
	h.addresses = &addressLimit{NewAddressLimit(c.Addresses, c.Memory, h.now)}
	return h, nil
}

// Load returns how many requests are in progress and how many wait.
func (h *Handler) Load() load.Counts { return h.queue.Counts() }

// tokenRequest is one request on its way through a Handler.
type tokenRequest struct {
	http     *http.Request
	caller   nodeproof.Caller
	parsed   registryauth.Request // zero until it is parsed
	event    *Event
	known    *redact.Secrets // see secrets; nil: not needed yet
	repeats  refusal.Reason  // of the refused POST that it repeats; empty: it repeats none
	answered bool
}

// ServeHTTP answers one token request and records its event, whatever happens.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t := h.begin(r)
	defer h.finish(w, &t)
	token, err := h.exchange(w, &t)
	if err != nil {
		h.refuse(w, &t, err)
		return
	}
	t.event.Status, t.answered = http.StatusOK, true
	registryauth.WriteToken(w, t.parsed.GrantType, token, h.now())
}

// exchange runs the steps of a request that may refuse it.
//
// A request holds a place in the queue only for the server's own work. It holds none while the
// client sends the request or reads the response, because that time is not bounded. Requests from
// an address that has spent its limit do not wait for a place.
func (h *Handler) exchange(w http.ResponseWriter, t *tokenRequest) (registryauth.Token, error) {
	if err := h.parse(w, t); err != nil {
		return registryauth.Token{}, err
	}
	if err := h.addresses.check(t, h.exchanger.remembers); err != nil {
		return registryauth.Token{}, err
	}
	if !h.queue.Enter(t.http) {
		return registryauth.Token{}, errOverloaded
	}
	defer h.queue.Leave()
	ctx := t.http.Context()
	if err := h.addresses.charge(ctx, t); err != nil {
		return registryauth.Token{}, err
	}
	authorization, err := h.exchanger.authorizer.Authorize(ctx, t.parsed, t.caller, t.event)
	if err != nil {
		return registryauth.Token{}, err
	}
	return h.exchanger.Issue(ctx, t.parsed, &authorization, t.event)
}

// begin creates the event of a request before the request is read.
func (h *Handler) begin(r *http.Request) tokenRequest {
	caller := h.caller(r)
	event := &Event{
		Time:   h.now(),
		ID:     rand.Text(),
		Caller: caller.String(),
		Client: term.Cut(redact.Text(r.UserAgent()), MaxClientLength), // in this order: half a token would look like none
	}
	if id := trace.SpanFromContext(r.Context()).SpanContext().TraceID(); id.IsValid() {
		event.TraceID = id.String()
	}
	return tokenRequest{http: r, caller: caller, event: event}
}

// parse reads a request.
func (h *Handler) parse(w http.ResponseWriter, t *tokenRequest) error {
	if t.http.Method != http.MethodGet && t.http.Method != http.MethodPost {
		w.Header().Set("Allow", "GET, POST")
		return errMethod
	}
	var err error
	if t.parsed, err = h.read(w, t); err != nil {
		return err
	}
	t.parsed.Scopes = h.exchanger.judged(t.http.Host, t.parsed)
	t.event.request(t.parsed)
	t.repeats = h.attempts.repeated(t)
	return nil
}

// read parses a request, and counts its body as being read until it returns.
func (h *Handler) read(w http.ResponseWriter, t *tokenRequest) (registryauth.Request, error) {
	if t.http.Body == http.NoBody {
		return registryauth.ParseRequest(t.http)
	}
	from := Network(t.caller.Address)
	// On a copy: net/http treats the original body according to its type afterwards.
	r := t.http.WithContext(t.http.Context())
	body := &load.Body{ReadCloser: r.Body}
	r.Body = body
	limited := h.bodies.Begin(w, from)
	defer func() { h.bodies.End(w, from, limited, body.Ended) }()
	return registryauth.ParseRequest(r)
}

// refuse responds to an error. The outcome of the request is counted before the client gets the
// response.
func (h *Handler) refuse(w http.ResponseWriter, t *tokenRequest, err error) {
	o := h.fail(t, err)
	h.attempts.failed(t, o)
	h.addresses.failed(t, o.class)
	t.answered = true
	form := t.parsed.GrantType
	if t.http.Method == http.MethodPost {
		form = registryauth.GrantPassword // all grant types of POST have one form of errors
	}
	registryauth.WriteFailure(w, form, o.failure(t.event.Service))
}

// fail notes the outcome of an error in the event. Clients log the message that they get, so it
// must not repeat a credential either.
func (h *Handler) fail(t *tokenRequest, err error) outcome {
	o, secrets := classify(err, t.event.ID), t.secrets()
	t.event.refuse(o)
	// A GET with another outcome is news: a refused POST must not hide it.
	t.event.Retry = o.reason != "" && o.reason == t.repeats
	if o.reason == refusal.InternalError {
		h.logger.Error("token request failed", "id", t.event.ID, "error", secrets.Message(err.Error()))
	}
	o.message = secrets.Message(o.message)
	return o
}

// finish records the event. It must be deferred directly because it recovers from panics.
func (h *Handler) finish(w http.ResponseWriter, t *tokenRequest) {
	if p := recover(); p != nil {
		// The panic's value may hold anything, including a token, so only its type is logged.
		h.logger.Error("panic while serving a token request", "id", t.event.ID, "type", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
		if !t.answered { // otherwise the token may be out, and the event says so
			registryauth.WriteFailure(w, "", h.fail(t, errors.New("panic")).failure(""))
		}
	}
	t.event.Latency = h.now().Sub(t.event.Time).Seconds()
	secrets := t.secrets()
	t.event.redact(secrets)
	span := trace.SpanFromContext(t.http.Context())
	RedactSpan(span, t.http, secrets)
	t.event.Describe(span)
	h.recorder.Record(t.event)
}
