package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/identity"
	"github.com/pullpass/pullpass/internal/lru"
	"github.com/pullpass/pullpass/internal/nodeproof"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/seal"
	"github.com/pullpass/pullpass/internal/signing"
	"github.com/pullpass/pullpass/internal/upstream"
)

// Config configures a Handler. Every field is required but Now.
type Config struct {
	URL         string       // how clients reach the gateway; its token endpoint is below it
	Issuer      string       // iss of its tokens
	Service     string       // aud of its tokens
	Keys        signing.Keys // of its tokens
	Upstreams   map[string]Upstream
	Revocations exchange.Revocations
	Addresses   *exchange.AddressLimit // of requests with a token that is not good
	Recorder    exchange.Recorder
	Caller      func(*http.Request) nodeproof.Caller
	Logger      *slog.Logger
	Memory      *Memory
	Now         func() time.Time // nil means time.Now
}

// Upstream is a registry behind the gateway.
type Upstream struct {
	Client  *upstream.Client
	Actions []string // that may be done there
	Follow  bool     // its redirects are followed here, and not by clients
}

// Memory is what Handlers that take each other's place have in common.
type Memory struct {
	judged     *lru.Cache[[32]byte, *judgedToken]
	trust      *latestTrust
	sealed     *seal.Box
	streams    atomic.Int64
	challenges atomic.Uint64
}

// NewMemory returns an empty Memory.
func NewMemory() *Memory {
	return &Memory{judged: newJudged(), trust: &latestTrust{}, sealed: seal.NewBox(sealPurpose)}
}

// Load is how much is going on.
type Load struct {
	Streams    int64  // requests that are worked on
	Challenges uint64 // requests without a token since the start: how each pull begins
}

// Load says how much is going on.
func (m *Memory) Load() Load { return Load{m.streams.Load(), m.challenges.Load()} }

// Handler answers everything below /v2/. It is safe for concurrent use.
type Handler struct {
	Config
	names Names
	judge *judge
}

// New returns a Handler.
func New(c Config) (*Handler, error) {
	if c.URL == "" || c.Service == "" || c.Issuer == "" || c.Keys == nil || len(c.Upstreams) == 0 || c.Revocations == nil || c.Addresses == nil ||
		c.Recorder == nil || c.Caller == nil || c.Logger == nil || c.Memory == nil {
		return nil, errors.New("gateway: every field but Now is required")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	h := &Handler{Config: c, judge: &judge{issuer: c.Issuer, service: c.Service, keys: c.Keys, now: c.Now, judged: c.Memory.judged, latest: c.Memory.trust}}
	for name := range c.Upstreams {
		h.names = append(h.names, name)
	}
	return h, nil
}

// request is one request on its way.
type request struct {
	http     *http.Request
	w        http.ResponseWriter
	caller   nodeproof.Caller
	event    *exchange.Event
	target   target
	query    query
	bearer   *bearer
	upstream Upstream
	answered bool // a status was sent
	broken   bool // what was sent after it is not the whole
	silent   bool // it is worth no event
}

// ServeHTTP answers one request and records its event, whatever happens.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.Memory.streams.Add(1)
	defer h.Memory.streams.Add(-1)
	q := h.begin(w, r)
	defer h.finish(q)
	if err := h.serve(q); err != nil {
		h.refuse(q, err)
	}
}

// serve takes the steps of a request. Errors are *refusal, those of an upstream.Client,
// or errClient.
func (h *Handler) serve(q *request) error {
	if err := h.parse(q); err != nil {
		return err
	}
	if err := h.authenticate(q); err != nil {
		return err
	}
	if err := h.revoked(q); err != nil {
		return err
	}
	if err := h.authorize(q); err != nil {
		return err
	}
	return h.forward(q)
}

func (h *Handler) begin(w http.ResponseWriter, r *http.Request) *request {
	caller := h.Caller(r)
	return &request{http: r, w: w, caller: caller, event: h.newEvent(r, caller)}
}

func (h *Handler) parse(q *request) error {
	var err error
	if q.target, err = parseTarget(q.http.Method, q.http.URL, h.names); err != nil {
		return err
	}
	g := q.event.Gateway
	if g.Kind = string(q.target.kind); q.target.kind != kindVersion {
		q.upstream = h.Upstreams[q.target.upstream]
		g.Upstream, g.Repository = q.target.upstream, q.target.name
		q.event.Requested = []string{q.scope()}
		if q.target.kind != kindUpload {
			g.Reference = q.target.reference
		}
	}
	if q.query, err = parseQuery(q.http.URL); err != nil {
		return err
	}
	if q.target.kind != kindManifest || q.target.action != actionPush || !isDigest(q.target.reference) {
		q.query.tags = nil // distribution specification, end-7b: nothing else has any
	}
	g.Tags = q.query.tags
	return nil
}

// authenticate finds out whom the token names. A token that is not good costs its
// address one of its limit; when that is spent, none is judged that is not known.
func (h *Handler) authenticate(q *request) error {
	credential, err := credentialOf(q.http.Header)
	if err == nil && credential.IsZero() {
		h.Memory.challenges.Add(1)
		q.silent = true // so begins every pull
		return &refusal{class: classUnauthenticated, code: "UNAUTHORIZED", reason: reasonToken, message: "a token is needed; ask the gateway's token endpoint for one", challenge: "-"}
	}
	b, known := h.judge.known(credential)
	if !known {
		from := exchange.Network(q.caller.Address)
		if wait := h.Addresses.Wait(from); wait > 0 {
			return tooMany(wait)
		}
		if err == nil {
			b, err = h.judge.judge(credential)
		}
		if err != nil {
			h.Addresses.Take(q.http.Context(), from)
			return err
		}
	}
	q.bearer = b
	q.event.Gateway.TokenID = b.tokenID
	if b.holder != nil {
		holds(q.event, b)
	}
	return nil
}

func tooMany(wait time.Duration) *refusal {
	return &refusal{class: classTooMany, code: "TOOMANYREQUESTS", reason: reasonLimited, retryAfter: wait,
		message: "too many requests without a good credential from this address (limits.perAddress); try again later"}
}

// revoked refuses whom an operator has revoked since the token was issued.
func (h *Handler) revoked(q *request) error {
	if q.bearer.holder == nil {
		return nil
	}
	id := q.bearer.identity
	revocation, err := h.Revocations.Revoked(id)
	if push := q.bearer.holder.PushCredential; err == nil && revocation == nil && push != "" {
		of := *id
		of.TokenID = push
		revocation, err = h.Revocations.Revoked(&of)
	}
	if err != nil {
		return &refusal{class: classUnavailable, code: "UNAVAILABLE", reason: reasonRevocation, message: "it is not known who is revoked; try again", operator: err.Error(), retryAfter: 10 * time.Second, err: err}
	}
	if revocation != nil {
		q.event.Revocation = revocation
		return refuse(classForbidden, "DENIED", reasonRevoked, fmt.Sprintf("revoked by an operator: %q", revocation.Reason))
	}
	return nil
}

// identityOf is whom a token was issued to, as revocations name it.
func identityOf(subject string, p *registryauth.Holder) *oidc.Identity {
	if p == nil {
		return nil
	}
	if p.Identity != "" {
		return &oidc.Identity{Subject: subject, TokenID: p.TokenID, External: &identity.External{Provider: p.Identity, Project: p.Project, Run: p.Run}}
	}
	return &oidc.Identity{Cluster: p.Cluster, Subject: subject, TokenID: p.TokenID, Kubernetes: oidc.KubernetesIdentity{
		Namespace:      p.Namespace,
		ServiceAccount: oidc.ObjectRef{Name: p.ServiceAccount, UID: p.ServiceAccountUID},
		Pod:            oidc.ObjectRef{Name: p.Pod, UID: p.PodUID},
		Node:           oidc.ObjectRef{Name: p.Node, UID: p.NodeUID},
	}}
}

// account is the ServiceAccount that a token was issued to, as upstreams are told that
// are asked as the caller; empty: it was issued to nobody, or to somebody who is none.
// A job's subject could look like one, and is made of names that others can have later.
func (b *bearer) account() string {
	if b.holder == nil || b.holder.Identity != "" {
		return ""
	}
	return b.holder.Cluster + "/" + b.holder.Namespace + "/" + b.holder.ServiceAccount
}

// identityText is whom a token was issued to, as sealed addresses are bound to it; empty:
// to nobody.
func (b *bearer) identityText() string {
	if b.holder != nil && b.holder.Identity != "" {
		return b.subject // with the identity's name in front
	}
	return b.account()
}

// authorize judges what the token allows, as distribution does: who pushes must be
// allowed to pull.
func (h *Handler) authorize(q *request) error {
	t := &q.target
	if t.kind == kindVersion {
		return nil
	}
	for _, action := range actionsFor(t.action) {
		if !q.bearer.may(t.name, action) {
			return &refusal{class: classUnauthenticated, code: "DENIED", reason: reasonScope, challenge: "insufficient_scope",
				message: "the token does not allow to " + t.action + " " + t.name}
		}
	}
	if !slices.Contains(q.upstream.Actions, t.action) {
		return refuse(classForbidden, "DENIED", reasonAction, "the gateway does not let anybody "+t.action+" at "+t.upstream+" (upstreams[].actions)")
	}
	return nil
}

func actionsFor(action string) []string {
	if action == actionPush {
		return []string{actionPull, actionPush}
	}
	return []string{action}
}

// refuse answers an error, if nothing was answered yet. Otherwise the connection is
// ended, or the client would take what it got for the whole.
func (h *Handler) refuse(q *request, err error) {
	r := h.classify(q, err)
	kind := classes[r.class]
	q.event.Result, q.event.Reason, q.event.Message = kind.result, r.reason, r.message
	if r.operator != "" {
		q.event.Message = r.operator
	}
	if q.answered { // with a status that stays in the event: now, at the latest, the client gets it
		_ = http.NewResponseController(q.w).Flush()
		q.broken = true
		return
	}
	q.event.Status, q.answered = kind.status, true
	q.hurry()
	if r.challenge != "" {
		q.w.Header().Set("WWW-Authenticate", h.challenge(q, r.challenge))
	}
	q.w.Header().Set(apiVersionHeader, apiVersion)
	registryauth.WriteFailure(q.w, "", registryauth.Failure{Status: kind.status, Code: r.code, Message: r.message, RetryAfter: r.retryAfter})
}

// classify says what an error means. It is the only place that does.
func (h *Handler) classify(q *request, err error) *refusal {
	var refused *refusal
	var failed *upstream.Error
	switch {
	case errors.As(err, &refused):
		return refused
	case errors.Is(err, upstream.ErrBody):
		return refuse(classCanceled, "UNKNOWN", reasonCanceled, "the client did not send the whole body")
	// Before the upstream's failures: whatever reading and writing say then, it is for this.
	case errors.Is(err, errClient), q.http.Context().Err() != nil:
		return refuse(classCanceled, "UNKNOWN", reasonCanceled, "the client did not take the whole answer")
	case errors.As(err, &failed):
		q.event.Gateway.UpstreamStatus = failed.Status
		return ofUpstream(failed)
	}
	h.Logger.Error("gateway request failed", "id", q.event.ID, "error", err)
	return internalError(q)
}

// challenge is how a client gets the token that it needs (distribution's token
// specification; RFC 6750 section 3).
func (h *Handler) challenge(q *request, fault string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `Bearer realm="%s/token",service="%s"`, h.URL, h.Service)
	if q.target.kind != kindVersion && q.target.action != "" {
		scopes := q.scope()
		if from := h.mountedFrom(q); from != "" { // as distribution has it: clients ask for what the challenge names
			scopes += " " + registryauth.Scope{Type: "repository", Name: q.target.upstream + "/" + from, Actions: []string{actionPull}}.String()
		}
		fmt.Fprintf(&b, `,scope="%s"`, scopes)
	}
	if fault != "-" {
		fmt.Fprintf(&b, `,error="%s"`, fault)
	}
	return b.String()
}

// begin sends a status that says that the request was passed on. Headers are set.
func (q *request) begin(status int) {
	q.event.Status, q.event.Result, q.answered = status, exchange.ResultGranted, true
	q.hurry()
	q.w.WriteHeader(status)
}

// hurry bounds how long the client may take to read what is written now. Before, there
// is no bound: a body that is pushed may take hours.
func (q *request) hurry() {
	_ = http.NewResponseController(q.w).SetWriteDeadline(time.Now().Add(stallTimeout))
}

// scope is what a token must allow for the request.
func (q *request) scope() string {
	return registryauth.Scope{Type: "repository", Name: q.target.name, Actions: actionsFor(q.target.action)}.String()
}

// finish records the event. It has to be deferred itself: it recovers from panics.
func (h *Handler) finish(q *request) {
	if p := recover(); p != nil {
		// The panic's value may hold anything, a token too: only its type is logged.
		h.Logger.Error("panic while serving a gateway request", "id", q.event.ID, "type", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
		q.silent = false
		h.refuse(q, internalError(q))
	}
	if !q.silent {
		q.event.Latency = h.Now().Sub(q.event.Time).Seconds()
		conceal(q.event, q.http)
		h.Recorder.Record(q.event)
	}
	if q.broken {
		panic(http.ErrAbortHandler) // net/http ends the connection
	}
}

func internalError(q *request) *refusal {
	return refuse(classInternal, "UNKNOWN", reasonInternal, "internal error; the operator finds it in the log under id "+q.event.ID)
}
