package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/pullpass/pullpass/internal/upstream"
)

// passedBack are the headers of an answer that reach the client, beside Location and
// Link, which are rewritten. An upstream's challenges and cookies do not.
var passedBack = canonical(
	"Accept-Ranges", "Allow", "Content-Encoding", "Content-Length", "Content-Range", "Content-Type", "Docker-Content-Digest", apiVersionHeader,
	"Docker-Upload-UUID", "Etag", "Last-Modified", "OCI-Chunk-Max-Length", "OCI-Chunk-Min-Length", "OCI-Filters-Applied", "OCI-Subject", "OCI-Tag",
	"Range", "RateLimit-Limit", "RateLimit-Policy", "RateLimit-Remaining", "RateLimit-Reset", "Retry-After", "Warning",
)

// canonical returns the names as the keys of a http.Header are.
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
}

// answer passes an answer on.
func (h *Handler) answer(cancel context.CancelCauseFunc, q *request, asked *url.URL, response *http.Response) error {
	status, t := response.StatusCode, &q.target
	if status >= http.StatusMultipleChoices && status < http.StatusBadRequest && status != http.StatusNotModified {
		return h.invalid(q, status, "it answers "+strconv.Itoa(status)+", which leads nowhere")
	}
	isGood := status < http.StatusMultipleChoices
	if isGood && isPage(response.Header) {
		return h.invalid(q, status, "it answers with a page for browsers; see that its URL is that of a registry")
	}
	header := q.w.Header()
	var location, link string
	var err error
	if isGood {
		if location, err = h.location(q, asked, response.Header.Get("Location")); err != nil {
			return err
		}
		if link, err = h.link(q, asked, response.Header); err != nil {
			return err
		}
		if t.kind == kindTags {
			return h.answerTags(cancel, q, response, link)
		}
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

// isPage reports whether an answer is one for browsers: of a portal, or of what is no
// registry at all.
func isPage(header http.Header) bool {
	const page = "text/html"
	media := header.Get("Content-Type")
	return len(media) >= len(page) && strings.EqualFold(media[:len(page)], page)
}

func (h *Handler) invalid(q *request, status int, message string) error {
	return &upstream.Error{Reason: upstream.ReasonInvalid, Upstream: q.target.upstream, Status: status, Message: message}
}

// stream passes a body on. What breaks off ends the client's connection, too.
func (h *Handler) stream(cancel context.CancelCauseFunc, q *request, status int, body io.Reader) error {
	q.begin(status)
	if q.http.Method == http.MethodHead {
		return nil
	}
	sent, err := pass(q.w, body, func() {
		cancel(&upstream.Error{Reason: upstream.ReasonTimeout, Upstream: q.target.upstream, Status: status, Message: "its answer did not go on"})
	})
	q.event.Gateway.Sent = sent
	var broken *brokenError
	var stalled *upstream.Error
	switch {
	case errors.As(err, &stalled):
		return stalled
	case errors.As(err, &broken):
		return &upstream.Error{Reason: upstream.ReasonBroken, Upstream: q.target.upstream, Status: status, Message: "its answer broke off after " + strconv.FormatInt(sent, 10) + " bytes", Err: broken.err}
	case err != nil:
		return errClient
	}
	return nil
}

// errClient says that a client's connection has ended, or does not go on.
var errClient = errors.New("the client does not take the answer")

// maxTagsBytes is the longest list of tags that is passed on at once: for 100,000
// tags. Clients that page ask for less. A longer one is cut, and then no JSON.
const maxTagsBytes = 16 << 20

// answerTags passes a list of tags on under the name that the gateway has for the
// repository: clients compare it.
func (h *Handler) answerTags(cancel context.CancelCauseFunc, q *request, response *http.Response, link string) error {
	watch := watchRead(cancel, &upstream.Error{Reason: upstream.ReasonTimeout, Upstream: q.target.upstream, Status: response.StatusCode, Message: "its answer did not go on"})
	data, err := io.ReadAll(io.LimitReader(response.Body, maxTagsBytes))
	watch.Stop()
	if err != nil {
		return &upstream.Error{Reason: upstream.ReasonBroken, Upstream: q.target.upstream, Status: response.StatusCode, Message: "its list of tags broke off", Err: err}
	}
	var list struct {
		Name string          `json:"name"`
		Tags json.RawMessage `json:"tags"`
	}
	if json.Unmarshal(data, &list) != nil || list.Name == "" && list.Tags == nil {
		return h.invalid(q, response.StatusCode, "its list of tags cannot be read, or is larger than 16 MiB; let clients page it with n")
	}
	list.Name = q.target.name
	if list.Tags == nil {
		list.Tags = json.RawMessage("[]")
	}
	body, err := json.Marshal(list)
	if err != nil {
		return err
	}
	header := q.w.Header()
	passBack(header, response.Header)
	for _, name := range []string{"Content-Encoding", "Etag"} { // of another body
		header.Del(name)
	}
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	if link != "" {
		header.Set("Link", link)
	}
	q.begin(response.StatusCode)
	n, err := q.w.Write(body)
	q.event.Gateway.Sent = int64(n)
	if err != nil {
		return errClient
	}
	return nil
}

// link rewrites where a list goes on, to the same list at the gateway.
func (h *Handler) link(q *request, asked *url.URL, header http.Header) (string, error) {
	value := header.Get("Link")
	if value == "" || q.target.kind != kindTags && q.target.kind != kindReferrers {
		return "", nil
	}
	address, parameters, ok := strings.Cut(strings.TrimPrefix(value, "<"), ">")
	if !ok || !strings.HasPrefix(value, "<") || !strings.Contains(parameters, "next") {
		return "", nil
	}
	next, err := asked.Parse(address)
	if err != nil || next.Scheme != asked.Scheme || next.Host != asked.Host || next.User != nil || next.Path != asked.Path {
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
	path := "/v2/" + q.target.name + "/tags/list"
	if q.target.kind == kindReferrers {
		path = "/v2/" + q.target.name + "/referrers/" + q.target.reference
	}
	return "<" + path + "?" + values.Encode() + `>; rel="next"`, nil
}
