package gateway

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/upstream"
)

// What an address is sealed for, and in which parameter of a list.
const (
	sealedUpload  = "upload"
	sealedPage    = "page"
	pageParameter = "page"

	sealPurpose = "pullpass gateway: addresses of upstreams, v1"
	sealedFor   = 24 * time.Hour // the longest push
)

// bound is all that a sealed address is bound to: its purpose, who asked, and the
// repository. A ServiceAccount that was made again under its name is another one.
func (q *request) bound(purpose string) string {
	uid := ""
	if h := q.bearer.holder; h != nil {
		uid = cmp.Or(h.ServiceAccountUID, h.Project)
	}
	return strings.Join([]string{purpose, q.bearer.identityText(), uid, q.target.name}, "\x00")
}

func (h *Handler) sealed(q *request, purpose string, u *url.URL) (string, error) {
	sealed, err := h.Memory.sealed.Seal(h.Keys, u.RequestURI(), q.bound(purpose), h.Now().Add(sealedFor))
	if err != nil {
		return "", &refusal{class: classUnavailable, code: "UNAVAILABLE", reason: reasonInternal, message: "the gateway has no key now; try again", err: err}
	}
	return sealed, nil
}

// opened returns the upstream's address in a sealed one: at the upstream's own host,
// whatever it is.
func (h *Handler) opened(q *request, purpose, sealed string) (*url.URL, error) {
	text, err := h.Memory.sealed.Open(h.Keys, sealed, q.bound(purpose), h.Now())
	if err != nil {
		if purpose == sealedUpload {
			return nil, refuse(classNotFound, "BLOB_UPLOAD_UNKNOWN", reasonUpload, "there is no such upload of this repository and caller, or it is too old; begin it again")
		}
		return nil, refuse(classInvalid, "UNSUPPORTED", reasonPath, "the page is not one of this list; begin the list again")
	}
	path, err := url.ParseRequestURI(text)
	if err != nil {
		return nil, err
	}
	u := *q.upstream.Client.Base()
	u.Path, u.RawPath, u.RawQuery = path.Path, path.RawPath, path.RawQuery
	return &u, nil
}

// location rewrites where a blob, a manifest or an upload is, to an address at the
// gateway. It is relative: a scheme and host could be wrong behind proxies, and clients
// give their token to no other host.
func (h *Handler) location(q *request, asked *url.URL, value string) (string, error) {
	t := &q.target
	prefix := "/v2/" + t.name
	switch {
	case value == "" || t.action != actionPush:
		return "", nil
	case t.kind == kindManifest:
		return prefix + "/manifests/" + t.reference, nil
	}
	to, err := asked.Parse(value)
	if err != nil || to.Scheme != asked.Scheme || to.Host != asked.Host || to.User != nil {
		return "", &upstream.Error{Reason: upstream.ReasonRedirect, Upstream: t.upstream, Status: http.StatusAccepted, Message: "it wants an upload to go on at another host"}
	}
	digest := q.query.digest
	if t.kind == kindUploads && digest == "" && q.query.mount != "" {
		digest = q.query.mount
	}
	// An upload that goes on is at an address that no blob has.
	if digest != "" && to.Path == "/v2/"+t.repository+"/blobs/"+digest {
		return prefix + "/blobs/" + digest, nil
	}
	sealed, err := h.sealed(q, sealedUpload, to)
	return prefix + "/blobs/uploads/" + sealed, err
}

func isRedirect(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

const maxRedirects = 5

// redirect sends the client to where the upstream has its blobs, or follows for it.
func (h *Handler) redirect(ctx context.Context, cancel context.CancelCauseFunc, q *request, asked *url.URL, response *http.Response) error {
	to, err := h.redirectTo(q, asked, response)
	if err != nil {
		return err
	}
	q.event.Gateway.RedirectHost = to.Hostname()
	if !q.upstream.Follow {
		header := q.w.Header()
		header.Set("Location", to.String())
		header.Set("Cache-Control", "no-store") // the address may be signed
		header.Set("Content-Length", "0")
		header.Set(apiVersionHeader, apiVersion)
		if digest := response.Header.Get("Docker-Content-Digest"); digest != "" {
			header.Set("Docker-Content-Digest", digest)
		}
		q.begin(http.StatusTemporaryRedirect)
		return nil
	}
	digest := response.Header.Get("Docker-Content-Digest")
	for range maxRedirects {
		r := q.upstreamRequest(ctx, to)
		r.Header.Set("Accept-Encoding", "identity")
		followed, err := q.upstream.Client.Follow(r)
		if err != nil {
			return err
		}
		if !isRedirect(followed.StatusCode) {
			defer func() { _ = followed.Body.Close() }()
			if digest != "" && followed.Header.Get("Docker-Content-Digest") == "" {
				followed.Header.Set("Docker-Content-Digest", digest)
			}
			return h.answerFollowed(cancel, q, to, followed)
		}
		upstream.Discard(followed)
		asked = to
		if to, err = h.redirectTo(q, asked, followed); err != nil {
			return err
		}
		q.event.Gateway.RedirectHost = to.Hostname()
	}
	return &upstream.Error{Reason: upstream.ReasonRedirect, Upstream: q.target.upstream, Message: "it redirects again and again"}
}

// redirectTo checks where an answer leads. Its address is in no error and no log.
func (h *Handler) redirectTo(q *request, asked *url.URL, response *http.Response) (*url.URL, error) {
	if q.target.action != actionPull {
		return nil, &upstream.Error{Reason: upstream.ReasonRedirect, Upstream: q.target.upstream, Status: response.StatusCode, Message: "it redirects what is no pull"}
	}
	value := response.Header.Get("Location")
	to, err := asked.Parse(value)
	if value == "" || err != nil || to.Host == "" {
		return nil, &upstream.Error{Reason: upstream.ReasonRedirect, Upstream: q.target.upstream, Status: response.StatusCode, Message: "it redirects to an address that cannot be read"}
	}
	if err := q.upstream.Client.CheckRedirect(to); err != nil {
		return nil, err
	}
	return to, nil
}

// answerFollowed passes on what a storage says. What it refuses is the upstream's
// fault: it gave an address that is not good.
func (h *Handler) answerFollowed(cancel context.CancelCauseFunc, q *request, to *url.URL, response *http.Response) error {
	switch status := response.StatusCode; status {
	case http.StatusOK, http.StatusPartialContent, http.StatusNotModified, http.StatusRequestedRangeNotSatisfiable:
		q.w.Header().Set("Cache-Control", "no-store")
		return h.answer(cancel, q, to, response)
	default:
		return &upstream.Error{Reason: upstream.ReasonFailing, Upstream: q.target.upstream, Status: status, Message: "where it redirects to refuses its own address; see whether its clock and its storage's credential are right"}
	}
}
