package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/refusal"
)

// passedBack are the response headers that reach the client, beside Location and Link, which are
// rewritten. An upstream's challenges and cookies do not reach it.
var passedBack = canonical(
	"Accept-Ranges", "Allow", "Content-Encoding", "Content-Length", "Content-Range", "Content-Type", "Docker-Content-Digest", apiVersionHeader,
	"Docker-Upload-UUID", "Etag", "Last-Modified", "OCI-Chunk-Max-Length", "OCI-Chunk-Min-Length", "OCI-Filters-Applied", "OCI-Subject", "OCI-Tag",
	"Range", "RateLimit-Limit", "RateLimit-Policy", "RateLimit-Remaining", "RateLimit-Reset", "Retry-After", "Warning",
)

// canonical returns the names in the form of the keys of a http.Header.
func canonical(names ...string) map[string]bool {
	keys := map[string]bool{}
	for _, name := range names {
		keys[http.CanonicalHeaderKey(name)] = true
	}
	return keys
}

func passBack(to, from http.Header) {
	for key, values := range from {
		if passedBack[key] {
			to[key] = values
		}
	}
	if digests := to["Docker-Content-Digest"]; len(digests) > 1 {
		to["Docker-Content-Digest"] = digests[:1] // the one of the audit line
	}
}

// answer forwards a response.
func (h *Handler) answer(cancel context.CancelCauseFunc, q *request, asked *url.URL, response *http.Response) error {
	status, t := response.StatusCode, &q.target
	isGood := status < http.StatusMultipleChoices
	if !isGood && status < http.StatusBadRequest && status != http.StatusNotModified {
		return h.invalid(q, status, "it answers "+strconv.Itoa(status)+", which leads nowhere")
	}
	if isGood && isPage(response.Header) {
		return h.invalid(q, status, "it answers with a page for browsers; see that its URL is that of a registry")
	}
	header := q.w.Header()
	var location, link string
	var err error
	if isGood {
		if location, err = h.location(q, asked, status, response.Header.Get("Location")); err != nil {
			return err
		}
		if link, err = h.link(q, asked, response.Header); err != nil {
			return err
		}
		if t.kind == kindTags {
			return h.answerTags(cancel, q, response, link)
		}
	}
	if isGood {
		q.noteDigest(response.Header)
	}
	passBack(header, response.Header)
	if location != "" {
		header.Set("Location", location)
	}
	if link != "" {
		header.Set("Link", link)
	}
	return h.stream(cancel, q, status, response.Body)
}

// noteDigest notes which manifest was pulled or pushed. The upstream could write any text in the form
// of an unknown algorithm. If it names no digest, the client may have.
func (q *request) noteDigest(header http.Header) {
	if q.target.kind != kindManifest {
		return
	}
	for _, digest := range []string{q.target.reference, header.Get("Docker-Content-Digest")} {
		if names.IsDigest(digest) {
			q.event.Gateway.Digest = digest
		}
	}
}

// isPage reports whether a response is a page for browsers, from a portal or from a server that is
// not a registry.
func isPage(header http.Header) bool {
	const page = "text/html"
	media := header.Get("Content-Type")
	return len(media) >= len(page) && strings.EqualFold(media[:len(page)], page)
}

func (h *Handler) invalid(q *request, status int, message string) error {
	return &upstream.Error{Reason: refusal.UpstreamInvalid, Upstream: q.target.upstream, Status: status, Message: message}
}

// stream forwards a body. If the upstream's body breaks off, the client's connection ends too.
func (h *Handler) stream(cancel context.CancelCauseFunc, q *request, status int, body io.Reader) error {
	q.begin(status)
	sent, err := pass(q.w, body, func() {
		cancel(&upstream.Error{Reason: refusal.UpstreamTimeout, Upstream: q.target.upstream, Status: status, Message: "its answer did not go on"})
	})
	q.event.Gateway.Sent = sent
	var broken *brokenError
	var stalled *upstream.Error
	switch {
	case errors.As(err, &stalled):
		return stalled
	case errors.As(err, &broken):
		return &upstream.Error{Reason: refusal.UpstreamBroken, Upstream: q.target.upstream, Status: status, Message: "its answer broke off after " + strconv.FormatInt(sent, 10) + " bytes", Err: broken.err}
	case err != nil:
		return errClient
	}
	return nil
}

// errClient says that a client's connection has ended or stalled.
var errClient = errors.New("the client does not take the answer")

// link rewrites the address of a list's next page to the same list at the gateway. The page is
// requested with the upstream's credential, so it must be the upstream's own page of this list, also
// where the list itself came from a redirect.
func (h *Handler) link(q *request, asked *url.URL, header http.Header) (string, error) {
	t := &q.target
	if t.kind != kindTags && t.kind != kindReferrers {
		return "", nil
	}
	address, ok := upstream.NextLink(header)
	if !ok {
		return "", nil
	}
	list := "/tags/list"
	if t.kind == kindReferrers {
		list = "/referrers/" + t.reference
	}
	next, err := asked.Parse(address)
	base := q.upstream.Client.Base()
	if err != nil || next.Scheme != base.Scheme || next.Host != base.Host || next.User != nil || next.Path != "/v2/"+t.repository+list {
		return "", h.invalid(q, http.StatusOK, "its list goes on at an address that is not that of the list")
	}
	values, err := url.ParseQuery(next.RawQuery)
	if err != nil {
		return "", h.invalid(q, http.StatusOK, "its list goes on at an address that cannot be read")
	}
	for name := range values {
		if name != "n" && name != "last" && name != "artifactType" {
			sealed, err := h.sealed(q, sealedPage, next)
			if err != nil {
				return "", err
			}
			values = url.Values{pageParameter: {sealed}}
			break
		}
	}
	return "</v2/" + t.asked + list + "?" + values.Encode() + `>; rel="next"`, nil
}
