package gateway

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/refusal"
)

// The purposes of sealed addresses, and the parameter of a list that holds one.
const (
	sealedUpload  = "upload"
	sealedPage    = "page"
	pageParameter = "page"

	sealPurpose = "pullpass gateway: addresses of upstreams, v1"
	sealedFor   = 24 * time.Hour // the longest push
)

// bound returns all that a sealed address is bound to: its purpose, the caller, the repository, and
// for a page its list. The UID distinguishes a ServiceAccount that was recreated under the same
// name.
func (q *request) bound(purpose string) string {
	uid := ""
	if h := q.bearer.holder; h != nil {
		uid = cmp.Or(h.ServiceAccountUID, h.Project)
	}
	to := []string{purpose, q.bearer.identityText(), uid, q.target.name}
	if purpose == sealedPage {
		to = append(to, string(q.target.kind), q.target.reference)
	}
	return strings.Join(to, "\x00")
}

func (h *Handler) sealed(q *request, purpose string, u *url.URL) (string, error) {
	sealed, err := h.Memory.sealed.Seal(h.Keys, u.RequestURI(), q.bound(purpose), h.Now().Add(sealedFor))
	if err != nil {
		return "", &rejection{reason: refusal.InternalError, class: refusal.Unavailable, code: "UNAVAILABLE", message: "the gateway has no key now; try again", err: err}
	}
	return sealed, nil
}

// opened returns the upstream's address in a sealed address. The host is always the upstream's own.
func (h *Handler) opened(q *request, purpose, sealed string) (*url.URL, error) {
	text, err := h.Memory.sealed.Open(h.Keys, sealed, q.bound(purpose), h.Now())
	var path *url.URL
	if err == nil {
		path, err = url.ParseRequestURI(text)
	}
	switch {
	case purpose == sealedUpload && (err != nil || !isUpload(path, q.target.repository)):
		return nil, refuse(refusal.UploadUnknown, "BLOB_UPLOAD_UNKNOWN", "there is no such upload of this repository and caller, or it is too old; begin it again")
	case err != nil:
		return nil, refuse(refusal.PathInvalid, "UNSUPPORTED", "the page is not one of this list; begin the list again")
	}
	u := *q.upstream.Client.Base()
	u.Path, u.RawPath, u.RawQuery = path.Path, path.RawPath, path.RawQuery
	return &u, nil
}

// isUpload reports whether an upstream's address is that of an upload to the repository, for every
// possible reader. A holder who may push may also cancel its uploads. The address must therefore
// not lead to a blob or a manifest, which the holder may not delete.
func isUpload(u *url.URL, repository string) bool {
	path := u.EscapedPath()
	// GHCR has upload for uploads. Only Artifact Registry has uploads beside its API:
	// /artifacts-uploads/namespaces/PROJECT/repositories/REPOSITORY/uploads/ID.
	for _, before := range []string{"/v2/" + repository + "/blobs/uploads/", "/v2/" + repository + "/blobs/upload/"} {
		if id, ok := strings.CutPrefix(path, before); ok {
			return isSegment(id)
		}
	}
	// A domain-scoped project is example.com:project there, and example.com/project in names.
	parts := strings.Split(path, "/")
	return len(parts) == 8 && parts[1] == "artifacts-uploads" && parts[2] == "namespaces" && parts[4] == "repositories" && parts[6] == "uploads" &&
		strings.HasPrefix(repository, strings.Replace(parts[3], ":", "/", 1)+"/"+parts[5]+"/") && isSegment(parts[7])
}

// isSegment reports whether escaped text is one segment of a path for every reader.
func isSegment(escaped string) bool {
	text, _ := url.PathUnescape(escaped) // with an error, none
	// The text must not change if it is unescaped again: %25 could hide other characters.
	return text != "" && text != "." && text != ".." &&
		!strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`/\%;`, r) })
}

// withoutMount returns the address of an upload without the parameters that would turn it into a
// different request. zot once sent mount back.
func withoutMount(u *url.URL) *url.URL {
	values, err := url.ParseQuery(u.RawQuery)
	if err == nil && !values.Has("digest") && !values.Has("mount") && !values.Has("from") {
		return u
	}
	for _, name := range []string{"digest", "mount", "from"} {
		values.Del(name)
	}
	next := *u
	next.RawQuery = values.Encode()
	return &next
}

// location rewrites the address of a blob, a manifest or an upload to one at the gateway; empty:
// the client gets none. The address is relative, because behind proxies a scheme and host could be
// wrong, and clients send their token to no other host. The address of a finished upload is built
// from the request, and not from the upstream's response.
func (h *Handler) location(q *request, asked *url.URL, status int, value string) (string, error) {
	t := &q.target
	prefix := "/v2/" + t.asked
	method := q.http.Method
	switch {
	case t.action != actionPush:
		return "", nil
	case t.kind == kindManifest:
		return prefix + "/manifests/" + t.reference, nil
	case status == http.StatusCreated && method != http.MethodPatch:
		digest := q.query.digest
		if digest == "" && h.mountable(q) != "" {
			digest = q.query.mount
		}
		if digest == "" {
			return "", nil
		}
		return prefix + "/blobs/" + digest, nil
	case value == "":
		return "", nil
	case status == http.StatusAccepted, status == http.StatusNoContent && method == http.MethodGet:
	case method == http.MethodPatch: // ECR answers a chunk with 201, Pulp with 204: the upload continues at the same address
		return prefix + "/blobs/uploads/" + t.reference, nil
	default:
		return "", nil
	}
	to, err := asked.Parse(value)
	if err != nil || to.Scheme != asked.Scheme || to.Host != asked.Host || to.User != nil {
		return "", &upstream.Error{Reason: refusal.UpstreamRedirect, Upstream: t.upstream, Status: status, Message: "it wants an upload to go on at another host"}
	}
	if !isUpload(to, t.repository) {
		return "", &upstream.Error{Reason: refusal.UpstreamRedirect, Upstream: t.upstream, Status: status, Message: "it wants an upload to go on at an address that is not an upload of the repository"}
	}
	sealed, err := h.sealed(q, sealedUpload, withoutMount(to))
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

// redirect sends the client to the upstream's storage, or follows the redirect for it.
func (h *Handler) redirect(ctx context.Context, cancel context.CancelCauseFunc, q *request, asked *url.URL, response *http.Response) error {
	to, err := h.redirectTo(q, asked, response)
	if err != nil {
		return err
	}
	q.event.Gateway.RedirectHost = to.Hostname()
	if !q.upstream.Follow {
		q.noteDigest(response.Header)
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
	return &upstream.Error{Reason: refusal.UpstreamRedirect, Upstream: q.target.upstream, Message: "it redirects again and again"}
}

// redirectTo checks the target of a redirect. The address is never in an error or a log.
func (h *Handler) redirectTo(q *request, asked *url.URL, response *http.Response) (*url.URL, error) {
	if q.target.action != actionPull {
		return nil, &upstream.Error{Reason: refusal.UpstreamRedirect, Upstream: q.target.upstream, Status: response.StatusCode, Message: "it redirects a request that is not a pull"}
	}
	value := response.Header.Get("Location")
	to, err := asked.Parse(value)
	if value == "" || err != nil {
		return nil, &upstream.Error{Reason: refusal.UpstreamRedirect, Upstream: q.target.upstream, Status: response.StatusCode, Message: "it redirects to an address that cannot be read"}
	}
	if err := q.upstream.Client.CheckRedirect(to); err != nil {
		return nil, err
	}
	return to, nil
}

// answerFollowed forwards the response of a storage. A refusal by the storage counts as a fault of
// the upstream, which gave an invalid address.
func (h *Handler) answerFollowed(cancel context.CancelCauseFunc, q *request, to *url.URL, response *http.Response) error {
	switch status := response.StatusCode; status {
	case http.StatusOK, http.StatusPartialContent, http.StatusNotModified, http.StatusRequestedRangeNotSatisfiable:
		q.w.Header().Set("Cache-Control", "no-store")
		return h.answer(cancel, q, to, response)
	default:
		return &upstream.Error{Reason: refusal.UpstreamFailing, Upstream: q.target.upstream, Status: status, Message: "where it redirects to refuses its own address; see whether its clock and its storage's credential are right"}
	}
}
