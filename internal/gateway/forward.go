package gateway

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"net/http"
	"net/url"
	"strings"

	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/registryauth"
)

const (
	apiVersionHeader = "Docker-Distribution-Api-Version"
	apiVersion       = "registry/2.0"
)

// passedOn are the request headers that reach an upstream, beside Content-Type, in the form of the
// keys of a http.Header.
var passedOn = []string{"Accept", "Content-Range", "Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"}

// forward sends the request to the upstream and responds with its response. cancel ends q.http.
func (h *Handler) forward(q *request, cancel context.CancelCauseFunc) error {
	ctx := q.http.Context()
	to, scopes, err := h.address(q)
	if err != nil {
		return err
	}
	r := q.upstreamRequest(ctx, to)
	q.pushes(r)
	defer func() {
		g := q.event.Gateway
		g.Received, g.Digest = q.body.n.Load(), cmp.Or(g.Digest, q.body.digest())
	}()
	response, err := q.upstream.Client.Do(r, upstream.Need{Scopes: scopes, Caller: q.bearer.account(), Holder: q.bearer.identityText(), Tenant: q.tenant})
	if err != nil {
		return err
	}
	q.event.Gateway.UpstreamStatus = response.StatusCode
	if isRedirect(response.StatusCode) {
		upstream.Discard(response)
		return h.redirect(ctx, cancel, q, to, response)
	}
	defer func() { _ = response.Body.Close() }()
	return h.answer(cancel, q, to, response)
}

// answerVersion tells a caller with a token that this is a registry.
func (h *Handler) answerVersion(q *request) error {
	q.silent = true // the request asks for nothing
	header := q.w.Header()
	header.Set(apiVersionHeader, apiVersion)
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", "2")
	q.begin(http.StatusOK)
	_, _ = q.w.Write([]byte("{}"))
	return nil
}

// address builds the upstream's address from the parsed request, and returns the scopes that the
// upstream requires. Only here is it known whether a blob is mounted, so it notes that in the event.
func (h *Handler) address(q *request) (*url.URL, []registryauth.Scope, error) {
	t := &q.target
	scopes := []registryauth.Scope{{Type: "repository", Name: t.repository, Actions: actionsFor(t.action)}}
	u := *q.upstream.Client.Base()
	u.Path = "/v2/" + t.repository
	values := url.Values{}
	set := func(name, value string) {
		if value != "" {
			values.Set(name, value)
		}
	}
	switch t.kind {
	case kindManifest:
		u.Path += "/manifests/" + t.reference
		values["tag"] = q.query.tags
	case kindBlob:
		u.Path += "/blobs/" + t.reference
	case kindTags, kindReferrers:
		if q.query.page != "" {
			page, err := h.opened(q, sealedPage, q.query.page)
			return page, scopes, err
		}
		if t.kind == kindTags {
			u.Path += "/tags/list"
			set("n", q.query.count)
			set("last", q.query.last)
		} else {
			u.Path += "/referrers/" + t.reference
			set("artifactType", q.query.artifactType)
		}
	case kindUploads:
		u.Path += "/blobs/uploads/"
		set("digest", q.query.digest)
		set("digest-algorithm", q.query.algorithm)
		if from := h.mountable(q); from != "" {
			set("mount", q.query.mount)
			set("from", from)
			scopes = append(scopes, registryauth.Scope{Type: "repository", Name: from, Actions: []string{actionPull}})
			q.event.Requested = append(q.event.Requested, scope(t.upstream+"/"+from, []string{actionPull}))
			q.event.Gateway.Reference = q.query.mount
		}
	case kindUpload:
		upload, err := h.opened(q, sealedUpload, t.reference)
		if err != nil {
			return nil, nil, err
		}
		if q.http.Method == http.MethodDelete {
			// A holder who may push may cancel its own upload. distribution requires the scope
			// delete for every DELETE, and other registries do not require it here.
			scopes[0].Actions = append(scopes[0].Actions, actionDelete)
		}
		if q.http.Method == http.MethodPut && q.query.digest != "" {
			values := upload.Query() // withoutMount has read it before
			values.Set("digest", q.query.digest)
			upload.RawQuery = values.Encode()
		}
		return upload, scopes, nil
	}
	u.RawQuery = values.Encode()
	return &u, scopes, nil
}

// mountable returns the repository to mount a blob from, as the upstream names it. It returns "" if
// the repository is of a different upstream, or if the token does not allow to pull it. The client
// then uploads the blob (distribution specification), and learns nothing about a repository that it
// may not see.
func (h *Handler) mountable(q *request) string {
	from := h.mountedFrom(q)
	if !q.bearer.may(q.target.upstream+"/"+from, actionPull) {
		return ""
	}
	return from
}

// mountedFrom is mountable without the check of the token.
func (h *Handler) mountedFrom(q *request) string {
	if q.target.kind != kindUploads || q.query.mount == "" {
		return ""
	}
	name := q.query.from
	if first, _, _ := strings.Cut(name, "/"); h.Upstreams[first].Client == nil || q.target.asked == q.target.repository {
		name = q.target.upstream + "/" + name // the name of an image without its registry
	}
	from, repository, _ := h.names.split(name) // with an error, neither
	if from != q.target.upstream {
		return ""
	}
	return repository
}

// upstreamRequest builds the upstream's request. It holds nothing that is not named here.
func (q *request) upstreamRequest(ctx context.Context, to *url.URL) *http.Request {
	r := (&http.Request{Method: q.http.Method, URL: to, Host: to.Host, Header: http.Header{}}).WithContext(ctx)
	for _, name := range passedOn {
		if values := q.http.Header[name]; len(values) > 0 {
			r.Header[name] = values
		}
	}
	// Several ranges can overlap, and be a blob many times over (RFC 9110, section 14.2). Clients ask
	// for one.
	if strings.Contains(strings.Join(r.Header["Range"], ","), ",") {
		r.Header.Del("Range")
	}
	return r
}

// pushes sets the body of the upstream's request to the client's, if its method has one.
func (q *request) pushes(r *http.Request) {
	takes := r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodPatch
	if takes && !q.body.ended.Load() {
		r.Body, r.ContentLength = q.body, q.http.ContentLength
		if q.target.kind == kindManifest {
			if q.body.algorithm, q.body.sum = "sha256", sha256.New(); strings.HasPrefix(q.target.reference, "sha512:") {
				q.body.algorithm, q.body.sum = "sha512", sha512.New()
			}
		}
		if media := contentType(q.target.kind, q.http.Header.Get("Content-Type")); media != "" {
			r.Header.Set("Content-Type", media)
		}
	}
}

// contentType returns the Content-Type for the upstream; empty: none is sent. It never returns that
// of a form: distribution and others read parameters from forms too, and would mount from a
// repository that was not authorized.
func contentType(k kind, said string) string {
	if k != kindManifest {
		return "application/octet-stream" // distribution specification; curl says otherwise
	}
	media := strings.ToLower(said)
	if !strings.HasPrefix(media, "application/") || strings.Contains(media, "x-www-form") {
		return ""
	}
	return said
}
