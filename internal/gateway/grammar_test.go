package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestTagsAndDigests(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{
		"azAZ09_.-": true, "_": true, "v1.0": true, strings.Repeat("a", maxTagBytes): true,
		"": false, ".a": false, "-a": false, "a:b": false, "a/b": false, "a+b": false, "a b": false, "ä": false, "a[": false, "a{": false, strings.Repeat("a", maxTagBytes+1): false,
	} {
		if isTag(s) != want {
			t.Errorf("tag %.40q: %t", s, !want)
		}
	}
	for s, want := range map[string]bool{
		"sha256:azAZ09=_-": true, "a+b.c_d-e:0": true, "a:" + strings.Repeat("0", maxReferenceBytes-2): true,
		"": false, "sha256": false, ":0": false, "sha256:": false, "SHA256:0": false, "sha256:0/": false, "sha256:0+": false, "sha256:0.": false, "sha256:a:b": false,
		"+a:0": false, "a+:0": false, "a++b:0": false, "a{:0": false, "a:{": false, "a:[": false, "a:" + strings.Repeat("0", maxReferenceBytes-1): false,
	} {
		if isDigest(s) != want {
			t.Errorf("digest %.40q: %t", s, !want)
		}
	}
}

// A caller that may push may send requests to its uploads, and to nothing else.
func TestAddressesOfUploads(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		"/v2/a/b/blobs/uploads/1": true, "/v2/a/b/blobs/upload/1": true, "/v2/a/b/blobs/uploads/%7E": true,
		"/artifacts-uploads/namespaces/a/repositories/b/uploads/1": false,
		"/v2/a/b/blobs/uploads/":                                   false, "/v2/a/b/blobs/uploads/.": false, "/v2/a/b/blobs/uploads/..": false, "/v2/a/b/blobs/uploads/1/2": false, "/v2/a/b/blobs/uploads/1%2F2": false,
		"/v2/a/b/blobs/uploads/%252F": false, "/v2/a/b/blobs/uploads/1;2": false, "/v2/a/b/blobs/uploads/%20": false, "/v2/a/b/blobs/uploads/%7F": false, "/v2/a/b/blobs/uploads/%C3%A4": false,
		"/v2/a/c/blobs/uploads/1": false, "/v2/a/b/blobs/sha256:0": false, "/v2/a/b/manifests/v1": false,
	} {
		u, err := url.Parse("https://r.example" + path)
		testkit.Must(t, err)
		if isUpload(u, "a/b") != want {
			t.Errorf("%s: %t", path, !want)
		}
	}
	for path, want := range map[string]bool{
		"/artifacts-uploads/namespaces/p/repositories/r/uploads/1": true, "/artifacts-uploads/namespaces/p/repositories/r/uploads/..": false,
		"/artifacts-upload/namespaces/p/repositories/r/uploads/1": false, "/artifacts-uploads/namespace/p/repositories/r/uploads/1": false,
		"/artifacts-uploads/namespaces/p/repository/r/uploads/1": false, "/artifacts-uploads/namespaces/p/repositories/r/upload/1": false,
		"/artifacts-uploads/namespaces/p/repositories/other/uploads/1": false, "/artifacts-uploads/namespaces/p/repositories/r/uploads/1/2": false,
	} {
		u, err := url.Parse("https://r.example" + path)
		testkit.Must(t, err)
		if isUpload(u, "p/r/x") != want {
			t.Errorf("%s: %t", path, !want)
		}
	}
	for query, want := range map[string]string{"": "", "a=1&b=2": "a=1&b=2", "b=2&a=1": "b=2&a=1", "a=1&digest=x": "a=1", "a=1&mount=x": "a=1", "a=1&from=x": "a=1", "a=1&%zz": "a=1"} {
		if got := withoutMount(&url.URL{RawQuery: query}).RawQuery; got != want {
			t.Errorf("%q: %q", query, got)
		}
	}
	for status, want := range map[int]bool{300: false, 301: true, 302: true, 303: true, 304: false, 307: true, 308: true, 200: false} {
		if isRedirect(status) != want {
			t.Errorf("%d: %t", status, !want)
		}
	}
}

// Reasons are what an operator looks for in the audit log.
func TestReasonsOfPaths(t *testing.T) {
	t.Parallel()
	names := Names{"docker.io", "ghcr.io"}
	for path, want := range map[string]refusal.Reason{
		"/v2/ghcr.io/a/manifests/v1":                                        "",
		"/v2/ghcr.io/a/manifests/-v1":                                       refusal.PathInvalid,
		"/v2/ghcr.io/a/manifests/sha256:0":                                  "",
		"/v2/ghcr.io/a/blobs/v1":                                            refusal.PathInvalid,
		"/v2/ghcr.io/a/blobs/sha256:0":                                      "",
		"/v2/ghcr.io/a/referrers/v1":                                        refusal.PathInvalid,
		"/v2/ghcr.io/A/manifests/v1":                                        refusal.PathInvalid,
		"/v2/ghcr.io/manifests/v1":                                          refusal.PathInvalid,
		"/v2/quay.io/a/manifests/v1":                                        refusal.UpstreamUnknown,
		"/v2/ghcr.io/a/tags/list":                                           "",
		"/v2/ghcr.io/a/tags/lists":                                          refusal.PathInvalid,
		"/v2/ghcr.io/a/blob/uploads/":                                       refusal.PathInvalid,
		"/v2/ghcr.io/a/blobs/upload/":                                       refusal.PathInvalid,
		"/v2/ghcr.io/a/blobs/uploads/a:b":                                   refusal.PathInvalid,
		"/v2/ghcr.io/a/blobs/uploads/a%20b":                                 refusal.PathInvalid,
		"/v2/ghcr.io/a/blobs/uploads/":                                      refusal.MethodNotAllowed,
		"/v2/ghcr.io/a/blobs/uploads":                                       refusal.MethodNotAllowed,
		"/v2/ghcr.io/a/blob/uploads/x":                                      refusal.PathInvalid,
		"/v2/ghcr.io/a/blobs/upload/x":                                      refusal.PathInvalid,
		"/v2/ghcr.io/a/blobs/uploads/x":                                     "",
		"/v2/ghcr.io/a/blob/uploads":                                        refusal.PathInvalid,
		"/v2/ghcr.io/a/blob/sha256:0":                                       refusal.PathInvalid,
		"/v2/ghcr.io/a/tag/list":                                            refusal.PathInvalid,
		"/v2/ghcr.io/a/manifests/v1?tag=a&tag=b":                            "",
		"/v2/ghcr.io/a/manifests/v1?tag=-a":                                 refusal.PathInvalid,
		"/v2/ghcr.io/a/manifests/v1?%zz":                                    refusal.PathInvalid,
		"/v2/ghcr.io/a/tags/list?n=1&n=2":                                   refusal.PathInvalid,
		"/v2/ghcr.io/a/tags/list?digest=x":                                  refusal.PathInvalid,
		"/v2/ghcr.io/a/tags/list?mount=x":                                   refusal.PathInvalid,
		"/v2/ghcr.io/a/tags/list?digest-algorithm=x:":                       refusal.PathInvalid,
		"/v2/ghcr.io/a/tags/list?digest-algorithm=sha512":                   "",
		"/v2/ghcr.io/a/manifests/v1?" + strings.Repeat("tag=a&", maxTags+1): refusal.PathInvalid,
	} {
		u, err := url.Parse(path)
		testkit.Must(t, err)
		_, err = parseTarget(http.MethodGet, "", u, names)
		if err == nil {
			_, err = parseQuery(u)
		}
		var refused *rejection
		if errors.As(err, &refused) != (want != "") || refused != nil && refused.reason != want {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// containerd asks for the scope of the image's name, too, which means nothing at the gateway.
func TestScopesThatAreJudged(t *testing.T) {
	t.Parallel()
	scope := func(kind, name string) registryauth.Scope {
		return registryauth.Scope{Type: kind, Name: name, Actions: []string{"pull"}}
	}
	for _, test := range []struct{ requested, want []registryauth.Scope }{
		{nil, nil},
		{[]registryauth.Scope{scope("repository", "ghcr.io/a")}, []registryauth.Scope{scope("repository", "ghcr.io/a")}},
		{[]registryauth.Scope{scope("repository", "a/b")}, []registryauth.Scope{scope("repository", "a/b")}},
		{[]registryauth.Scope{scope("repository", "a/b"), scope("repository", "ghcr.io/a/b")}, []registryauth.Scope{scope("repository", "ghcr.io/a/b")}},
		{[]registryauth.Scope{scope("repository", "a/b"), scope("registry", "ghcr.io/a/b")}, []registryauth.Scope{scope("repository", "a/b"), scope("registry", "ghcr.io/a/b")}},
		{[]registryauth.Scope{scope("registry", "a/b"), scope("repository", "ghcr.io/a/b")}, []registryauth.Scope{scope("registry", "a/b"), scope("repository", "ghcr.io/a/b")}},
		{[]registryauth.Scope{scope("repository", "docker.io/nginx"), scope("repository", "ghcr.io/a")}, []registryauth.Scope{scope("repository", "docker.io/library/nginx"), scope("repository", "ghcr.io/a")}},
		{[]registryauth.Scope{scope("repository", "ghcr.io/a"), scope("repository", "docker.io/nginx")}, []registryauth.Scope{scope("repository", "ghcr.io/a"), scope("repository", "docker.io/library/nginx")}},
		{[]registryauth.Scope{scope("repository", "docker.io/nginx"), scope("repository", "docker.io/redis")}, []registryauth.Scope{scope("repository", "docker.io/library/nginx"), scope("repository", "docker.io/library/redis")}},
		{[]registryauth.Scope{scope("registry", "a/b"), scope("registry", "ghcr.io/a/b")}, []registryauth.Scope{scope("registry", "a/b"), scope("registry", "ghcr.io/a/b")}},
		{[]registryauth.Scope{scope("repository", "ghcr.io/a"), scope("repository", "docker.io/ghcr.io/a")}, []registryauth.Scope{scope("repository", "ghcr.io/a"), scope("repository", "docker.io/ghcr.io/a")}},
		{[]registryauth.Scope{scope("registry", "docker.io/nginx")}, []registryauth.Scope{scope("registry", "docker.io/nginx")}},
		{[]registryauth.Scope{scope("repository", "ghcr.io/x"), scope("repository", "nginx"), scope("repository", "docker.io/nginx")}, []registryauth.Scope{scope("repository", "ghcr.io/x"), scope("repository", "docker.io/library/nginx")}},
	} {
		before := slices.Clone(test.requested)
		if got := (Names{"docker.io", "ghcr.io"}).Scopes("", test.requested); !reflect.DeepEqual(got, test.want) || !reflect.DeepEqual(test.requested, before) {
			t.Errorf("%v: %v, want %v", before, got, test.want)
		}
	}
}

// Scopes are read before the limit of the caller's address is known. Each name is read once, however
// many others could be the same image: 64 names cost 10 ms when each was read for each other.
func TestScopesAreReadOnce(t *testing.T) {
	var scopes []registryauth.Scope
	for i := range registryauth.MaxScopes {
		scopes = append(scopes, registryauth.Scope{Type: "repository", Name: fmt.Sprintf("x%s/%d", strings.Repeat("/a", 120), i), Actions: []string{"pull"}})
	}
	names := Names{"docker.io", "ghcr.io"}
	one := testing.AllocsPerRun(10, func() { names.Scopes("", scopes[:1]) })
	if all := testing.AllocsPerRun(10, func() { names.Scopes("", scopes) }); all > 2*one*registryauth.MaxScopes {
		t.Errorf("%d scopes cost %.0f allocations, and one costs %.0f", len(scopes), all, one)
	}
}

func TestMethodsInMessages(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]string{"GET": "GET", "OPTIONS": "OPTIONS", "get": "of this request", strings.Repeat("X", 1000): "of this request"} {
		if got := shortMethod(method); got != want {
			t.Errorf("%.20s: %s", method, got)
		}
	}
}

func TestClassesAtTheGateway(t *testing.T) {
	t.Parallel()
	for reason, want := range map[refusal.Reason][]refusal.Class{
		refusal.RequestCanceled: {refusal.Canceled, refusal.Stalled},
		refusal.PathInvalid:     {refusal.PathInvalid.Class(), refusal.NotFound, refusal.TooLong},
		refusal.UpstreamFailing: {refusal.UpstreamFailing.Class(), refusal.Unavailable, refusal.GatewayTimeout},
		refusal.InternalError:   {refusal.InternalError.Class(), refusal.Unavailable},
		refusal.UpstreamDenied:  {refusal.UpstreamDenied.Class()},
	} {
		if got := Classes(reason); !slices.Equal(got, want) {
			t.Errorf("%s: %v", reason, got)
		}
	}
	if ResultOf(refusal.Limited) != exchange.ResultUnavailable || ResultOf(refusal.UpstreamDenied.Class()) != exchange.ResultOf(refusal.UpstreamDenied.Class()) {
		t.Error("a limit is not a refusal at the gateway")
	}
	for _, test := range []struct {
		reason refusal.Reason
		status int
		class  refusal.Class
	}{
		{refusal.UpstreamFailing, 503, refusal.Unavailable}, {refusal.UpstreamFailing, 504, refusal.GatewayTimeout}, {refusal.UpstreamFailing, 500, ""},
		{refusal.UpstreamInvalid, 503, ""}, {refusal.UpstreamInvalid, 504, ""},
	} {
		if got := ofUpstream(&upstream.Error{Reason: test.reason, Status: test.status}); got.class != test.class {
			t.Errorf("%s %d: %s", test.reason, test.status, got.class)
		}
	}
}

// A blob is mounted from a repository of the same upstream alone.
func TestRepositoriesToMountFrom(t *testing.T) {
	t.Parallel()
	h := &Handler{Config: Config{Upstreams: map[string]Upstream{"ghcr.io": {Client: &upstream.Client{}}, "quay.io": {Client: &upstream.Client{}}}}, names: Names{"ghcr.io", "quay.io"}}
	for _, test := range []struct {
		kind        kind
		mount, from string
		want        string
	}{
		{kindUploads, "sha256:0", "ghcr.io/a", "a"},
		{kindUploads, "sha256:0", "a/b", "a/b"},
		{kindUploads, "sha256:0", "docker.io/a", "docker.io/a"},
		{kindUploads, "sha256:0", "quay.io/a", ""},
		{kindUploads, "sha256:0", "A", ""},
		{kindUploads, "sha256:0", "", ""},
		{kindUploads, "", "ghcr.io/a", ""},
		{kindManifest, "sha256:0", "ghcr.io/a", ""},
	} {
		q := &request{target: targetOf(test.kind, "ghcr.io", "app", "", "push"), query: query{mount: test.mount, from: test.from}, bearer: &bearer{}}
		if got := h.mountedFrom(q); got != test.want || h.mountable(q) != "" {
			t.Errorf("%+v: from %q, and without a right to it from %q", test, got, h.mountable(q))
		}
	}
}

// revocationsBy answers by the id of the token.
type revocationsBy map[string]error

func (r revocationsBy) Revoked(id *oidc.Identity) (*exchange.Revocation, error) {
	if err, ok := r[id.TokenID]; ok {
		return nil, err
	}
	return &exchange.Revocation{}, nil
}

// Both the token and the credential that a push was allowed by may be revoked. An answer that is
// missing for one is not replaced by that for the other.
func TestRevocationsOfPushes(t *testing.T) {
	t.Parallel()
	lost := errors.New("no route")
	for _, test := range []struct {
		what      string
		answers   revocationsBy
		push      string
		isRevoked bool
		err       error
	}{
		{"neither", revocationsBy{"gateway": nil, "own": nil, "push": nil}, "push", false, nil},
		{"the token", revocationsBy{"gateway": nil, "push": nil}, "push", true, nil},
		{"the credential", revocationsBy{"gateway": nil, "own": nil}, "push", true, nil},
		{"no credential", revocationsBy{"own": nil, "gateway": nil}, "", false, nil},
		{"the token for the gateway", revocationsBy{"own": nil, "push": nil}, "push", true, nil},
		{"the first is not known", revocationsBy{"gateway": nil, "own": lost, "push": nil}, "push", false, lost},
		{"the second is not known", revocationsBy{"gateway": nil, "own": nil, "push": lost}, "push", false, lost},
	} {
		h := &Handler{Config: Config{Revocations: test.answers}}
		b := &bearer{revocable: revocable("gateway", "", &registryauth.Holder{TokenID: "own", PushCredential: test.push})}
		if got, err := h.revocationOf(b); (got != nil) != test.isRevoked || !errors.Is(err, test.err) {
			t.Errorf("%s: %v, %v", test.what, got, err)
		}
	}
	h := &Handler{Config: Config{Revocations: revocationsBy{"known": nil}}}
	for id, isRevoked := range map[string]bool{"known": false, "other": true} {
		if got, err := h.revocationOf(&bearer{revocable: revocable(id, "", nil)}); (got != nil) != isRevoked || err != nil {
			t.Errorf("anonymous: %v, %v", got, err)
		}
	}
}

// A list goes on at the same list of the gateway, or not at all.
func TestNextPages(t *testing.T) {
	t.Parallel()
	tags, referrers := target{kind: kindTags, upstream: "ghcr.io", repository: "a", asked: "ghcr.io/a"}, target{kind: kindReferrers, upstream: "ghcr.io", repository: "a", asked: "ghcr.io/a", reference: "sha256:0"}
	const isInvalid = "invalid"
	registry := Upstream{Client: testkit.Value(upstream.New(upstream.Config{Name: "ghcr.io", URL: "https://r.example"}))(t)}
	for _, test := range []struct {
		target      target
		asked, link string // of several lines
		want        string
	}{
		{tags, "/v2/a/tags/list", "", ""},
		{tags, "/v2/a/tags/list", `</v2/a/tags/list?n=1&last=b>; rel="next"`, `</v2/ghcr.io/a/tags/list?last=b&n=1>; rel="next"`},
		{tags, "/v2/a/tags/list", `/v2/a/tags/list?n=1>; rel="next"`, ""},
		{tags, "/v2/a/tags/list", `</v2/a/tags/list?n=1; rel="next"`, ""},
		{tags, "/v2/a/tags/list", `</v2/a/tags/list?n=1>; rel="prev"`, ""},
		{tags, "/v2/a/tags/list", `</v2/a/tags/list?last=a>; rel="previous", </v2/a/tags/list?last=c>; rel="next"`, `</v2/ghcr.io/a/tags/list?last=c>; rel="next"`},
		{tags, "/v2/a/tags/list", "</v2/a/tags/list?last=a>; rel=prev\n</v2/a/tags/list?last=c>; rel=next", `</v2/ghcr.io/a/tags/list?last=c>; rel="next"`},
		{tags, "/v2/a/tags/list", `<https://evil.example/>; rel="prev", </v2/a/tags/list?last=c>; rel="next"`, `</v2/ghcr.io/a/tags/list?last=c>; rel="next"`},
		{tags, "/v2/a/tags/list", `</v2/a/tags/list?last=a>; rel="prev", <https://evil.example/v2/a/tags/list>; rel="next"`, isInvalid},
		{tags, "/v2/a/tags/list", "<https://evil.example/v2/a/tags/list>; rel=next\n</v2/a/tags/list?last=c>; rel=next", isInvalid},
		{tags, "/v2/a/tags/list", `<https://[::1>; rel="next"`, isInvalid},
		{tags, "/v2/a/tags/list", `<https://u@r.example/v2/a/tags/list>; rel="next"`, isInvalid},
		{tags, "/v2/a/tags/list", `<http://r.example/v2/a/tags/list>; rel="next"`, isInvalid},
		{tags, "/v2/a/tags/list", `<https://evil.example/v2/a/tags/list>; rel="next"`, isInvalid},
		{tags, "/v2/a/tags/list", `</v2/b/tags/list>; rel="next"`, isInvalid},
		{tags, "/v2/a/tags/list", `</v2/a/tags/list?%zz>; rel="next"`, isInvalid},
		{referrers, "/v2/a/referrers/sha256:0", `</v2/a/referrers/sha256:0?artifactType=x>; rel="next"`, `</v2/ghcr.io/a/referrers/sha256:0?artifactType=x>; rel="next"`},
		{target{kind: kindManifest, name: "ghcr.io/a"}, "/v2/a/manifests/v1", `</v2/a/manifests/v1?n=1>; rel="next"`, ""},
	} {
		asked, err := url.Parse("https://r.example" + test.asked)
		testkit.Must(t, err)
		got, err := (&Handler{}).link(&request{target: test.target, upstream: registry}, asked, http.Header{"Link": strings.Split(test.link, "\n")})
		if e, ok := errors.AsType[*upstream.Error](err); ok && e.Reason == refusal.UpstreamInvalid {
			got = isInvalid
		}
		if got != test.want {
			t.Errorf("%s: %q, %v, want %q", test.link, got, err, test.want)
		}
	}
}
