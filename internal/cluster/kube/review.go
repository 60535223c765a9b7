package kube

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/pullpass/pullpass/internal/base/fair"
	"github.com/pullpass/pullpass/internal/base/lru"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
)

const (
	// reviewTime is how long a token counts after the API server accepted it. A deleted Secret
	// remains valid for at most this time, plus the ten seconds for which API servers remember a
	// review themselves. A pull asks several times, and every node that pulls sends the same token.
	// With a shorter time, a rollout would cause a flood of reviews.
	reviewTime = time.Minute
	// A refused token does not become valid. As with goneTime, memory is bounded and etcd can be
	// restored.
	refusedTime = goneTime
	reviewBytes = 8 << 20 // for 30,000 tokens, six for each of 5,000 Secrets
	maxReviews  = 64      // concurrent; signatures are checked first, so few reviews are needed at once
)

// reviews ask the API server about tokens from Secrets. A signature does not show that a Secret was
// deleted, and the proxy does not read Secrets. It is safe for concurrent use.
type reviews struct {
	cluster  string
	audience string // empty: such tokens are not accepted
	client   rest.Interface
	now      func() time.Time
	known    *lru.Cache[reviewKey, reviewed]

	mu      sync.Mutex
	flights map[reviewKey]*review
	asked   *fair.Share // of maxReviews
	waiting *fair.Share // of MaxWaiting

	accepted, refused, failed atomic.Uint64
}

// reviewKey is the hash of a token. The claims of a token never change.
type reviewKey [sha256.Size]byte

type reviewed struct {
	accepted bool
	until    time.Time
}

// review is a TokenReview that several requests wait for.
type review struct {
	done     chan struct{} // closed when the rest is set
	accepted bool
	err      error
}

func newReviews(cluster, audience string, client rest.Interface, now func() time.Time) *reviews {
	return &reviews{
		cluster: cluster, audience: audience, client: client, now: now,
		known:   lru.New[reviewKey, reviewed](reviewBytes, nil),
		flights: map[reviewKey]*review{}, asked: fair.NewShare(maxReviews), waiting: fair.NewShare(MaxWaiting),
	}
}

// ask returns nil if the API server accepts the token now, or did so within reviewTime. It returns
// a *exchange.GoneError if the API server refuses it. Every other error means that the answer is
// not known.
func (r *reviews) ask(ctx context.Context, id *oidc.Identity, credential oidc.Credential) error {
	switch {
	case credential == nil:
		return r.wrap(errors.New("there is no token to review"))
	case r.audience == "":
		return r.wrap(errors.New("no audience of pull secrets is configured"))
	}
	accepted, err := r.look(ctx, id, credential)
	switch {
	case err != nil:
		return r.wrap(err)
	case !accepted:
		s := id.Kubernetes.Secret
		return &exchange.GoneError{Kind: exchange.KindSecret, Name: join(id.Kubernetes.Namespace, s.Name), UID: s.UID}
	}
	return nil
}

func (r *reviews) wrap(err error) error {
	return fmt.Errorf("cluster %s: cannot review the token of a pull secret: %w", r.cluster, err)
}

func (r *reviews) look(ctx context.Context, id *oidc.Identity, credential oidc.Credential) (accepted bool, err error) {
	key := reviewKey(credential.Hash())
	if known, ok := r.known.Get(key); ok && r.now().Before(known.until) {
		return known.accepted, nil
	}
	_, span := trace.SpanFromContext(ctx).TracerProvider().Tracer(tracerName).Start(ctx, "create tokenreviews", trace.WithSpanKind(trace.SpanKindClient))
	defer span.End()
	flight, err := r.join(key, id, credential)
	if err != nil {
		return false, err
	}
	defer r.leave(id)
	select {
	case <-flight.done:
		return flight.accepted, flight.err
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// join finds or begins the review of the token. Unless it returns an error, the caller must call
// leave.
func (r *reviews) join(key reviewKey, id *oidc.Identity, credential oidc.Credential) (*review, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.waiting.Enter(id.Kubernetes.Namespace) {
		return nil, errBusy
	}
	flight, ok := r.flights[key]
	if !ok {
		if !r.asked.Enter(id.Kubernetes.Namespace) {
			r.waiting.Leave(id.Kubernetes.Namespace)
			return nil, errBusy
		}
		flight = &review{done: make(chan struct{})}
		r.flights[key] = flight
		go r.fly(key, flight, *id, credential)
	}
	return flight, nil
}

func (r *reviews) leave(id *oidc.Identity) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting.Leave(id.Kubernetes.Namespace)
}

// fly has its own context: other requests may wait when the first caller is gone.
func (r *reviews) fly(key reviewKey, flight *review, id oidc.Identity, credential oidc.Credential) {
	ctx, cancel := context.WithTimeout(klog.NewContext(context.Background(), klog.Logger{}), maxGetTime)
	defer cancel()
	asked := r.now() // the answer is as old as the request
	flight.accepted, flight.err = r.create(ctx, &id, credential)
	switch {
	case flight.err != nil:
		r.failed.Add(1)
	case flight.accepted:
		r.accepted.Add(1)
		r.known.Add(key, reviewed{true, asked.Add(reviewTime)})
	default:
		r.refused.Add(1)
		r.known.Add(key, reviewed{false, asked.Add(refusedTime)})
	}
	r.mu.Lock()
	delete(r.flights, key)
	r.asked.Leave(id.Kubernetes.Namespace)
	r.mu.Unlock()
	close(flight.done)
}

func (r *reviews) create(ctx context.Context, id *oidc.Identity, credential oidc.Credential) (accepted bool, err error) {
	question := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: credential.Reveal(), Audiences: []string{r.audience}}}
	var answer authenticationv1.TokenReview
	if err := r.client.Post().Resource("tokenreviews").Body(question).Do(ctx).Into(&answer); err != nil {
		return false, explain(err, "create", "tokenreviews.authentication.k8s.io")
	}
	status := &answer.Status
	switch {
	case !status.Authenticated:
		return false, nil
	case !slices.Contains(status.Audiences, r.audience):
		// Authenticators that do not know audiences accept a token for any audience
		// (TokenReviewSpec).
		return false, errors.New("the API server does not say that the token is for the audience of pull secrets")
	case status.User.Username != id.Subject || status.User.UID != id.Kubernetes.ServiceAccount.UID:
		return false, errors.New("the API server says that the token is of another ServiceAccount: see whether this is the cluster's own (clusters[].kubernetes)")
	}
	return true, nil
}
