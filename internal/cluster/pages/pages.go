package pages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
)

const (
	// size is the number of small objects in a page.
	size = 500
	// maxBytes is the size limit of a response, as the API server encodes it. Decoded, it takes up
	// to ten times as much memory. A page of 500 pods has about 1.5 MB.
	maxBytes = 2 << 20
	// maxObjectBytes is the size limit of a page of one object. API servers store objects of up to
	// 1.5 MiB (etcd's max-request-bytes), and send metadata in a shorter form.
	maxObjectBytes = 8 << 20
)

// Lister lists in pages. It is safe for concurrent use.
type Lister struct {
	// List requests a page from an API server. Its client must have the Transport of this package.
	List func(context.Context, metav1.ListOptions) (runtime.Object, error)

	limit atomic.Int64 // objects of the next page; 0: size
}

// Page returns the page that options.Continue names, with fewer objects if they are large. The page
// has the latest state. A response from the API server's cache is not paged, and can be older than
// data that is already known.
func (l *Lister) Page(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	options.ResourceVersion, options.ResourceVersionMatch = "", ""
	ctx = klog.NewContext(ctx, klog.Logger{}) // a truncated response is normal, so it is not logged
	for {
		options.Limit = size
		if limit := l.limit.Load(); limit > 0 {
			options.Limit = limit
		}
		b := &bound{}
		if b.left = maxBytes; options.Limit == 1 {
			b.left = maxObjectBytes
		}
		page, err := l.List(context.WithValue(ctx, boundKey{}, b), options)
		switch isTooLong := b.exceeded.Load(); {
		case isTooLong && options.Limit > 1:
			l.limit.Store(max(1, options.Limit/8))
		case isTooLong:
			return nil, fmt.Errorf("one object has more than %d bytes", maxObjectBytes)
		case err != nil:
			return nil, err
		default:
			l.limit.Store(min(2*options.Limit, size))
			return page, nil
		}
	}
}

type boundKey struct{}

// bound is the size limit of the response to a request. Clients turn errors into text, so bound
// itself notes that the limit was exceeded.
type bound struct {
	left     int64
	exceeded atomic.Bool
}

// Bound returns a context that limits responses to a number of bytes, if the client has the
// Transport of this package.
func Bound(ctx context.Context, bytes int64) context.Context {
	return context.WithValue(ctx, boundKey{}, &bound{left: bytes})
}

// Transport limits the responses to requests with the context of Page or of Bound. It passes other
// requests unchanged.
func Transport(next http.RoundTripper) http.RoundTripper { return transport{next} }

type transport struct{ next http.RoundTripper }

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(r)
	if b, ok := r.Context().Value(boundKey{}).(*bound); ok && err == nil {
		response.Body = &body{response.Body, b}
	}
	return response, err
}

// WrappedRoundTripper lets client-go find the wrapped transport.
func (t transport) WrappedRoundTripper() http.RoundTripper { return t.next }

type body struct {
	io.ReadCloser
	*bound
}

var errTooLong = errors.New("the answer is too long")

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		b.exceeded.Store(true)
		return 0, errTooLong
	}
	return n, err
}
