package gateway

import (
	"cmp"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	v2 "github.com/distribution/distribution/v3/registry/api/v2"
	"github.com/gorilla/mux"

	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

var testNames = Names{"ghcr.io", "docker.io", "harbor"}

const testDigest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

func targetOf(k kind, upstream, repository, reference, action string) target {
	name := upstream + "/" + repository
	return target{k, upstream, repository, name, name, reference, action}
}

func TestParseTarget(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		method, path string
		want         target
	}{
		{"GET", "/v2/", target{kind: kindVersion, action: "pull"}},
		{"GET", "/v2", target{kind: kindVersion, action: "pull"}},
		{"HEAD", "/v2/", target{kind: kindVersion, action: "pull"}},
		{"GET", "/v2/ghcr.io/acme/app/manifests/v1", targetOf(kindManifest, "ghcr.io", "acme/app", "v1", "pull")},
		{"HEAD", "/v2/ghcr.io/acme/app/manifests/" + testDigest, targetOf(kindManifest, "ghcr.io", "acme/app", testDigest, "pull")},
		{"PUT", "/v2/ghcr.io/acme/app/manifests/v1", targetOf(kindManifest, "ghcr.io", "acme/app", "v1", "push")},
		{"DELETE", "/v2/ghcr.io/acme/app/manifests/v1", targetOf(kindManifest, "ghcr.io", "acme/app", "v1", "delete")},
		{"GET", "/v2/ghcr.io/acme/app/blobs/" + testDigest, targetOf(kindBlob, "ghcr.io", "acme/app", testDigest, "pull")},
		{"GET", "/v2/ghcr.io/acme/app/blobs/sha256%3A" + testDigest[7:], targetOf(kindBlob, "ghcr.io", "acme/app", testDigest, "pull")},
		{"DELETE", "/v2/ghcr.io/acme/app/blobs/" + testDigest, targetOf(kindBlob, "ghcr.io", "acme/app", testDigest, "delete")},
		{"GET", "/v2/ghcr.io/acme/app/tags/list", targetOf(kindTags, "ghcr.io", "acme/app", "", "pull")},
		{"GET", "/v2/ghcr.io/acme/app/referrers/" + testDigest, targetOf(kindReferrers, "ghcr.io", "acme/app", testDigest, "pull")},
		{"POST", "/v2/ghcr.io/acme/app/blobs/uploads/", targetOf(kindUploads, "ghcr.io", "acme/app", "", "push")},
		{"POST", "/v2/ghcr.io/acme/app/blobs/uploads", targetOf(kindUploads, "ghcr.io", "acme/app", "", "push")},
		{"PATCH", "/v2/ghcr.io/acme/app/blobs/uploads/x", targetOf(kindUpload, "ghcr.io", "acme/app", "x", "push")},
		{"PUT", "/v2/ghcr.io/acme/app/blobs/uploads/x", targetOf(kindUpload, "ghcr.io", "acme/app", "x", "push")},
		{"GET", "/v2/ghcr.io/acme/app/blobs/uploads/x", targetOf(kindUpload, "ghcr.io", "acme/app", "x", "push")},
		{"DELETE", "/v2/ghcr.io/acme/app/blobs/uploads/x", targetOf(kindUpload, "ghcr.io", "acme/app", "x", "push")},
		// Names and tags that consist of the words of paths.
		{"GET", "/v2/ghcr.io/manifests/tags/list", targetOf(kindTags, "ghcr.io", "manifests", "", "pull")},
		{"GET", "/v2/ghcr.io/acme/manifests/tags", targetOf(kindManifest, "ghcr.io", "acme", "tags", "pull")},
		{"GET", "/v2/ghcr.io/acme/manifests/manifests/manifests", targetOf(kindManifest, "ghcr.io", "acme/manifests", "manifests", "pull")},
		{"GET", "/v2/ghcr.io/acme/blobs/uploads/manifests/v1", targetOf(kindManifest, "ghcr.io", "acme/blobs/uploads", "v1", "pull")},
		{"GET", "/v2/ghcr.io/acme/blobs/uploads/tags/list", targetOf(kindTags, "ghcr.io", "acme/blobs/uploads", "", "pull")},
		{"GET", "/v2/ghcr.io/ghcr.io/app/manifests/v1", targetOf(kindManifest, "ghcr.io", "ghcr.io/app", "v1", "pull")},
		{"GET", "/v2/harbor/ghcr.io/app/manifests/v1", targetOf(kindManifest, "harbor", "ghcr.io/app", "v1", "pull")},
		// Docker Hub.
		{"GET", "/v2/docker.io/nginx/manifests/v1", targetOf(kindManifest, "docker.io", "library/nginx", "v1", "pull")},
		{"GET", "/v2/docker.io/library/nginx/manifests/v1", targetOf(kindManifest, "docker.io", "library/nginx", "v1", "pull")},
		{"GET", "/v2/index.docker.io/nginx/manifests/v1", targetOf(kindManifest, "docker.io", "library/nginx", "v1", "pull")},
		{"GET", "/v2/registry-1.docker.io/acme/app/manifests/v1", targetOf(kindManifest, "docker.io", "acme/app", "v1", "pull")},
		{"GET", "/v2/ghcr.io/app/manifests/v1", targetOf(kindManifest, "ghcr.io", "app", "v1", "pull")},
		{"GET", "/v2/ghcr.io/" + strings.Repeat("a", 255) + "/manifests/v1", targetOf(kindManifest, "ghcr.io", strings.Repeat("a", 255), "v1", "pull")},
	} {
		u := testkit.Value(url.ParseRequestURI(test.path))(t)
		if got, err := parseTarget(test.method, "gateway.example.com", u, testNames); got != test.want || err != nil {
			t.Errorf("%s %s: %+v, %v, want %+v", test.method, test.path, got, err, test.want)
		}
	}
}

func TestParseTargetRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		method, path string
		status       int
		code         string
	}{
		{"GET", "/v2/quay.io/acme/app/manifests/v1", 404, "NAME_UNKNOWN"},
		{"GET", "/v2/quay.io/acme/app/manifests/v1?ns=ghcr.io", 404, "NAME_UNKNOWN"},
		{"GET", "/v2/acme/app/manifests/v1?ns=ghcr.io", 404, "NAME_UNKNOWN"},
		{"GET", "/v2/ghcr.io/manifests/v1", 400, "NAME_INVALID"},
		{"GET", "/v2/manifests/v1", 400, "NAME_INVALID"},
		{"GET", "/v2/GHCR.io/acme/app/manifests/v1", 400, "NAME_INVALID"},
		{"GET", "/v2/ghcr.io/Acme/app/manifests/v1", 400, "NAME_INVALID"},
		{"GET", "/v2/ghcr.io:443/acme/app/manifests/v1", 400, "NAME_INVALID"},
		{"GET", "/v2/ghcr.io//app/manifests/v1", 400, "NAME_INVALID"},
		{"GET", "/v2//ghcr.io/app/manifests/v1", 400, "NAME_INVALID"},
		{"GET", "/v2/ghcr.io/acme/../other/manifests/v1", 400, "NAME_INVALID"},
		{"GET", "/v2/ghcr.io/acme/./app/manifests/v1", 400, "NAME_INVALID"},
		{"GET", "/v2/ghcr.io/acme%2fapp/manifests/v1", 400, "NAME_INVALID"},
		{"GET", "/v2/ghcr.io/acme/app%2f..%2fother/manifests/v1", 400, "NAME_INVALID"},
		{"GET", "/v2/ghcr.io/acme/%2e%2e/manifests/v1", 400, "NAME_INVALID"},
		{"GET", "/v2/ghcr.io/acme/app%00/manifests/v1", 400, "NAME_INVALID"},
		{"GET", `/v2/ghcr.io/acme\app/manifests/v1`, 400, "NAME_INVALID"},
		{"GET", "/v2/ghcr.io/acme;x/manifests/v1", 400, "NAME_INVALID"},
		{"GET", "/v2/ghcr.io/" + strings.Repeat("a", 256) + "/manifests/v1", 400, "NAME_INVALID"},
		{"GET", "/v2/harbor/" + strings.Repeat("a", 249) + "/manifests/v1", 400, "NAME_INVALID"},
		{"GET", "/v2/ghcr.io/acme/app/manifests/", 400, "MANIFEST_INVALID"},
		{"GET", "/v2/ghcr.io/acme/app/manifests/.v1", 400, "MANIFEST_INVALID"},
		{"GET", "/v2/ghcr.io/acme/app/manifests/" + strings.Repeat("a", 129), 400, "MANIFEST_INVALID"},
		{"GET", "/v2/ghcr.io/acme/app/manifests/sha256:", 400, "MANIFEST_INVALID"},
		{"GET", "/v2/ghcr.io/acme/app/blobs/v1", 400, "DIGEST_INVALID"},
		{"GET", "/v2/ghcr.io/acme/app/blobs/sha256:../x", 404, "UNSUPPORTED"},
		{"GET", "/v2/ghcr.io/acme/app/referrers/v1", 400, "DIGEST_INVALID"},
		{"GET", "/v2/_catalog", 404, "UNSUPPORTED"},
		{"GET", "/v2/ghcr.io/_catalog", 404, "UNSUPPORTED"},
		{"GET", "/v2/ghcr.io/acme/app", 404, "UNSUPPORTED"},
		{"GET", "/v2/ghcr.io/acme/app/manifests/v1/", 404, "UNSUPPORTED"},
		{"POST", "/v2/", 405, "UNSUPPORTED"},
		{"POST", "/v2/ghcr.io/acme/app/manifests/v1", 405, "UNSUPPORTED"},
		{"HEAD", "/v2/ghcr.io/acme/app/tags/list", 405, "UNSUPPORTED"},
		{"PATCH", "/v2/ghcr.io/acme/app/blobs/" + testDigest, 405, "UNSUPPORTED"},
		{"PUT", "/v2/ghcr.io/acme/app/tags/list", 405, "UNSUPPORTED"},
		{"PUT", "/v2/ghcr.io/acme/app/blobs/" + testDigest, 405, "UNSUPPORTED"},
		{"POST", "/v2/ghcr.io/acme/app/x/uploads/", 404, "UNSUPPORTED"},
		{"POST", "/v2/ghcr.io/acme/app/blobs/x/", 404, "UNSUPPORTED"},
		{"POST", "/v2/ghcr.io/acme/app/uploads", 404, "UNSUPPORTED"},
		{"PATCH", "/v2/ghcr.io/acme/app/x/uploads/y", 404, "UNSUPPORTED"},
		{"CONNECT", "/v2/ghcr.io/acme/app/manifests/v1", 405, "UNSUPPORTED"},
		{"GET", "/v2/ghcr.io/acme/app/blobs/uploads/", 405, "UNSUPPORTED"},
	} {
		u, err := url.ParseRequestURI(test.path)
		testkit.Must(t, err)
		got, err := parseTarget(test.method, "gateway.example.com", u, testNames)
		refused, ok := err.(*rejection)
		if !ok || cmp.Or(refused.class, Classes(refused.reason)[0]).Status() != test.status || refused.code != test.code {
			t.Errorf("%s %s: %+v, %v", test.method, test.path, got, err)
		}
	}
}

func TestParseQueryRefuses(t *testing.T) {
	t.Parallel()
	for _, query := range []string{"ns=a&ns=b", "mount=" + testDigest + "&from=a&from=b", "digest=" + testDigest + "&digest=" + testDigest, "n=1&n=2", "digest=x", "digest-algorithm=a/b", "digest-algorithm=sha256:0", "mount=../x", "a=%zz", "a;b", "tag=", "tag=a&tag=b/c", "tag=a%20b", strings.Repeat("tag=a&", 10) + "tag=b", strings.Repeat("a&", maxParameters)} {
		if got, err := parseQuery(&url.URL{RawQuery: query}); err == nil {
			t.Errorf("%s: %+v", query, got)
		}
	}
	for _, query := range []string{strings.Repeat("a&", maxParameters), "a=%zz"} {
		if _, err := parseQuery(&url.URL{RawQuery: query}); err.(*rejection).reason != refusal.PathInvalid {
			t.Errorf("%s: %v", query, err)
		}
	}
	if got, err := parseQuery(&url.URL{RawQuery: strings.Repeat("a&", maxParameters-1) + "n=5"}); err != nil || got.count != "5" {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := parseQuery(&url.URL{RawQuery: "n=5&last=b&other=1&other=2&ns=x&tag=1.2&tag=1"}); err != nil || !reflect.DeepEqual(got, query{count: "5", last: "b", tags: []string{"1.2", "1"}}) {
		t.Errorf("%+v, %v", got, err)
	}
}

// At the host of an upstream, every name is one of that upstream.
func TestTargetsAtTheHostOfAnUpstream(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ host, path, name, asked string }{
		{"ghcr.io", "acme/app", "ghcr.io/acme/app", "acme/app"},
		{"ghcr.io:443", "acme/app", "ghcr.io/acme/app", "acme/app"},
		{"ghcr.io", "ghcr.io/app", "ghcr.io/ghcr.io/app", "ghcr.io/app"},
		{"GHCR.io", "acme/app", "ghcr.io/acme/app", "acme/app"},
		{"ghcr.io.:443", "acme/app", "ghcr.io/acme/app", "acme/app"},
		{"ghcr.io", "docker.io/app", "ghcr.io/docker.io/app", "docker.io/app"},
		{"registry-1.docker.io", "nginx", "docker.io/library/nginx", "library/nginx"},
		{"index.docker.io", "acme/app", "docker.io/acme/app", "acme/app"},
		{"docker.io", "docker.io/app", "docker.io/docker.io/app", "docker.io/app"},
		{"ghcr.io", strings.Repeat("a", 255), "ghcr.io/" + strings.Repeat("a", 255), strings.Repeat("a", 255)},
		// Other hosts are those of the gateway.
		{"ghcr.io:8443", "ghcr.io/app", "ghcr.io/app", "ghcr.io/app"},
		{"quay.io", "ghcr.io/app", "ghcr.io/app", "ghcr.io/app"},
		{"", "ghcr.io/app", "ghcr.io/app", "ghcr.io/app"},
		{"ghcr.io:8443", "acme/app", "", ""},
		{"ghcr.io", strings.Repeat("a", 256), "", ""},
		{"ghcr.io", "", "", ""},
		{"ghcr.io", "../quay.io/app", "", ""},
		{"ghcr.io", "Acme/app", "", ""},
	} {
		got, err := parseTarget(http.MethodGet, test.host, &url.URL{Path: "/v2/" + test.path + "/manifests/v1"}, testNames)
		if (err == nil) != (test.name != "") || got.name != test.name || got.asked != test.asked {
			t.Errorf("%s at %s: %+v, %v", test.path, test.host, got, err)
		}
	}
	scopes := testkit.Value(registryauth.ParseScopes([]string{"repository:acme/app:pull repository:ghcr.io/acme/app:pull,push registry:catalog:*"}))(t)
	before := slices.Clone(scopes)
	var got []string
	for _, scope := range testNames.Scopes("ghcr.io", scopes) {
		got = append(got, scope.String())
	}
	if want := []string{"repository:ghcr.io/acme/app:pull", "repository:ghcr.io/ghcr.io/acme/app:pull,push", "registry:catalog:*"}; !slices.Equal(got, want) || !reflect.DeepEqual(scopes, before) {
		t.Errorf("%q", got)
	}
	if got := testNames.Scopes("index.docker.io", testkit.Value(registryauth.ParseScopes([]string{"repository:nginx:pull"}))(t)); got[0].Name != "docker.io/library/nginx" {
		t.Errorf("%v", got)
	}
}

// If two readers interpret a path differently, one repository can pass for a different one. Our
// parser must read a path like distribution's router, or refuse it. The address that it builds must
// be read back unchanged.
func FuzzTarget(f *testing.F) {
	for _, path := range []string{
		"/v2/ghcr.io/acme/app/manifests/v1", "/v2/ghcr.io/a/blobs/uploads/manifests/tags", "/v2/docker.io/a/tags/list", "/v2/harbor/a/blobs/uploads/",
		"/v2/ghcr.io/a/../manifests/b", "/v2/ghcr.io/a%2fb/manifests/b", "/v2/ghcr.io/a/blobs/" + testDigest,
	} {
		f.Add(path, "GET", "gateway.example.com")
		f.Add(path, "GET", "ghcr.io:443")
	}
	router := v2.Router()
	router.SkipClean(true) // otherwise it answers //, . and .. with a redirect
	f.Fuzz(func(t *testing.T, path, method, host string) {
		u, err := url.ParseRequestURI(path)
		if err != nil || u.Host != "" || !strings.HasPrefix(path, "/v2/") {
			return
		}
		got, refused := parseTarget(method, host, u, testNames)
		if refused != nil || got.kind == kindVersion || got.kind == kindReferrers || method == "" {
			return
		}
		request := httptest.NewRequest(http.MethodGet, "http://x/", nil)
		request.Method, request.URL = method, u
		var match mux.RouteMatch
		if !router.Match(request, &match) {
			if got.kind == kindUploads && !strings.HasSuffix(path, "/") {
				return // the specification has the slash at the end; distribution demands it
			}
			t.Fatalf("%s: distribution has no route, ours is %+v", path, got)
		}
		kinds := map[string]kind{
			v2.RouteNameManifest: kindManifest, v2.RouteNameBlob: kindBlob, v2.RouteNameTags: kindTags, v2.RouteNameBlobUpload: kindUploads, v2.RouteNameBlobUploadChunk: kindUpload,
		}
		name := match.Vars["name"]
		if at := testNames.at(host); at != "" {
			name = at + "/" + name
		}
		first, _, _ := strings.Cut(name, "/")
		if kinds[match.Route.GetName()] != got.kind || first != got.upstream && got.upstream != dockerHub {
			t.Fatalf("%s: distribution's route is %s of %s, ours %+v", path, match.Route.GetName(), match.Vars["name"], got)
		}
		if name != got.name && got.upstream != dockerHub {
			t.Fatalf("%s at %s: distribution's name is %s, ours %s", path, host, name, got.name)
		}
		if reference := match.Vars["reference"] + match.Vars["digest"] + match.Vars["uuid"]; reference != got.reference {
			t.Fatalf("%s: distribution's reference is %s, ours %s", path, reference, got.reference)
		}
		again, err := parseTarget(method, host, &url.URL{Path: "/v2/" + got.asked + pathOf(got)}, testNames)
		if err != nil || again != got {
			t.Fatalf("%s: %+v, and of its own address %+v, %v", path, got, again, err)
		}
	})
}

func pathOf(t target) string {
	return map[kind]string{
		kindManifest: "/manifests/" + t.reference, kindBlob: "/blobs/" + t.reference, kindTags: "/tags/list",
		kindUploads: "/blobs/uploads/", kindUpload: "/blobs/uploads/" + t.reference,
	}[t.kind]
}

func TestScopes(t *testing.T) {
	t.Parallel()
	for requested, want := range map[string]string{
		// As containerd requests them: for the image's name, and for the challenge.
		"repository:acme/app:pull repository:ghcr.io/acme/app:pull":                                                             "repository:ghcr.io/acme/app:pull",
		"repository:ghcr.io/acme/app:pull repository:acme/app:pull":                                                             "repository:ghcr.io/acme/app:pull",
		"repository:library/nginx:pull repository:docker.io/nginx:pull":                                                         "repository:docker.io/library/nginx:pull",
		"repository:nginx:pull repository:docker.io/library/nginx:pull":                                                         "repository:docker.io/library/nginx:pull",
		"repository:ghcr.io/acme/app:pull":                                                                                      "repository:ghcr.io/acme/app:pull",
		"repository:index.docker.io/nginx:pull":                                                                                 "repository:docker.io/library/nginx:pull",
		"repository:acme/app:pull":                                                                                              "repository:acme/app:pull",
		"repository:acme/other:pull repository:ghcr.io/acme/app:pull":                                                           "repository:acme/other:pull repository:ghcr.io/acme/app:pull",
		"repository:acme/app:pull repository:acme/base:pull repository:ghcr.io/acme/app:pull repository:ghcr.io/acme/base:pull": "repository:ghcr.io/acme/app:pull repository:ghcr.io/acme/base:pull",
		"repository:ghcr.io/acme/app:pull repository:harbor/ghcr.io/acme/app:pull":                                              "repository:ghcr.io/acme/app:pull repository:harbor/ghcr.io/acme/app:pull",
		"other:acme/app:pull other:ghcr.io/acme/app:pull":                                                                       "other:acme/app:pull other:ghcr.io/acme/app:pull",
		"registry:catalog:* repository:ghcr.io/acme/app:pull":                                                                   "registry:catalog:* repository:ghcr.io/acme/app:pull",
		"repository:harbor/acme/app:pull repository:ghcr.io/acme/app:pull":                                                      "repository:harbor/acme/app:pull repository:ghcr.io/acme/app:pull",
	} {
		scopes := testkit.Value(registryauth.ParseScopes([]string{requested}))(t)
		before := slices.Clone(scopes)
		var got []string
		for _, scope := range testNames.Scopes("gateway.example.com", scopes) {
			got = append(got, scope.String())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %s", requested, got)
		}
		if !slices.EqualFunc(before, scopes, func(a, b registryauth.Scope) bool { return a.String() == b.String() }) {
			t.Errorf("%s was changed in place", requested)
		}
	}
}

// The names of headers that are looked up without canonicalization.
func TestHeadersPassedOn(t *testing.T) {
	t.Parallel()
	for _, name := range passedOn {
		if name != http.CanonicalHeaderKey(name) {
			t.Errorf("%s is never found", name)
		}
	}
}
