package gateway

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/upstream"
)

const (
	apiVersionHeader = "Docker-Distribution-Api-Version"
	apiVersion       = "registry/2.0"
)

// passedOn are the headers of a request that reach an upstream, beside Content-Type, as
// the keys of a http.Header are.
var passedOn = []string{"Accept", "Content-Range", "Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"}

// forward asks the upstream and answers with what it says.
func (h *Handler) forward(q *request) error {
	if q.target.kind == kindVersion {
		return h.answerVersion(q)
	}
	ctx, cancel := context.WithCancelCause(q.http.Context())
	defer cancel(nil)
	to, scopes, err := h.address(q)
	if err != nil {
		return err
	}
	r := q.upstreamRequest(ctx, to)
	if q.target.action == actionPush {
		body := q.pushes(r)
		defer func() { q.event.Gateway.Received = body.bytes() }()
	}
	response, err := q.upstream.Client.Do(r, upstream.Need{Scopes: scopes, Caller: q.bearer.account()})
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

// answerVersion says that this is a registry, to whom has a token for it.
func (h *Handler) answerVersion(q *request) error {
	q.silent = true // nothing was asked for
	header := q.w.Header()
	header.Set(apiVersionHeader, apiVersion)
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", "2")
	q.begin(http.StatusOK)
	_, _ = q.w.Write([]byte("{}"))
	return nil
}

// address builds where the request goes from what was parsed, and says which scopes
// the upstream wants to be asked with.
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
		if len(q.query.tags) > 0 {
			values["tag"] = q.query.tags
		}
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
		}
	case kindUpload:
		upload, err := h.opened(q, sealedUpload, t.reference)
		if err != nil {
			return nil, nil, err
		}
		if q.http.Method == http.MethodDelete {
			// Who may push may give up his own upload. distribution wants the right to delete
			// for whatever DELETE does, and others want none for it.
			scopes[0].Actions = append(scopes[0].Actions, actionDelete)
		}
		if q.query.digest != "" {
			values, err := url.ParseQuery(upload.RawQuery)
			if err != nil {
				return nil, nil, err
			}
			values.Set("digest", q.query.digest)
			upload.RawQuery = values.Encode()
		}
		return upload, scopes, nil
	}
	u.RawQuery = values.Encode()
	return &u, scopes, nil
}

// mountable returns the repository that a blob is to be mounted from, as the upstream
// names it. If it is another upstream's, or one that the token does not allow to pull,
// there is none: the client uploads the blob then (distribution specification), and
// learns nothing about what it may not see.
func (h *Handler) mountable(q *request) string {
	from := h.mountedFrom(q)
	if from == "" || !q.bearer.may(q.target.upstream+"/"+from, actionPull) {
		return ""
	}
	return from
}

// mountedFrom is mountable whatever the token allows.
func (h *Handler) mountedFrom(q *request) string {
	if q.target.kind != kindUploads || q.query.mount == "" || q.query.from == "" {
		return ""
	}
	name := q.query.from
	if first, _, _ := strings.Cut(name, "/"); h.Upstreams[first].Client == nil {
		name = q.target.upstream + "/" + name // of an image's name without its registry
	}
	from, repository, err := h.names.split(name)
	if err != nil || from != q.target.upstream {
		return ""
	}
	return repository
}

// upstreamRequest makes the upstream's request: nothing is in it but what is named here.
func (q *request) upstreamRequest(ctx context.Context, to *url.URL) *http.Request {
	r := (&http.Request{Method: q.http.Method, URL: to, Host: to.Host, Header: http.Header{}}).WithContext(ctx)
	for _, name := range passedOn {
		if values := q.http.Header[name]; len(values) > 0 {
			r.Header[name] = values
		}
	}
	return r
}

// pushes gives the upstream's request the body of the client's, and returns that.
func (q *request) pushes(r *http.Request) *clientBody {
	body := newClientBody(q)
	if q.http.Body != nil && q.http.Body != http.NoBody {
		r.Body, r.ContentLength = body, q.http.ContentLength
		if media := contentType(q.target.kind, q.http.Header.Get("Content-Type")); media != "" {
			r.Header.Set("Content-Type", media)
		}
	}
	return body
}

// contentType returns that of a body, as the upstream is told; empty: it is not. Never
// is it that of a form: distribution and others look for parameters in forms, too, and
// would mount from a repository that nobody has judged.
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
