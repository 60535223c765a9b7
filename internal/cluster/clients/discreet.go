package clients

import (
	"bytes"
	"io"
	"net/http"
	"strings"
)

// maxRefusalBytes is the size limit of a response that is not a success. A Status has some hundred bytes.
const maxRefusalBytes = 64 << 10

// stay follows no redirect: client-go would send the credential, and the token of a TokenReview, to its
// host. An API server redirects no request; a proxy in front of it can.
func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// discreet removes the credential of a request from a response that is not a success. Such a text goes to
// logs and /readyz, and a proxy in front of an API server can repeat the request's headers in it.
func discreet(next http.RoundTripper) http.RoundTripper { return transport{next} }

type transport struct{ next http.RoundTripper }

// WrappedRoundTripper lets client-go find the wrapped transport.
func (t transport) WrappedRoundTripper() http.RoundTripper { return t.next }

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(r)
	if err != nil || response.StatusCode < http.StatusMultipleChoices {
		return response, err
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxRefusalBytes)) // half of it says something, too
	if _, credential, _ := strings.Cut(r.Header.Get("Authorization"), " "); credential != "" {
		text = bytes.ReplaceAll(text, []byte(credential), []byte("[the credential]"))
	}
	response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	return response, nil
}
