package gateway_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/gateway"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/test/registrytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// push is do with a token for pull and push.
func (r *rig) push(method, path, repository, body string, header ...string) answer {
	r.t.Helper()
	token := r.token("web", "repository:"+repository+":pull,push")
	if body == "" {
		return r.do(method, path, token, nil, header...)
	}
	return r.do(method, path, token, strings.NewReader(body), header...)
}

func TestPush(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	const base = "/v2/ghcr.io/acme/app"
	blob := func(content string, chunks ...string) {
		t.Helper()
		begun := r.push(http.MethodPost, base+"/blobs/uploads/", "ghcr.io/acme/app", "")
		at := begun.header.Get("Location")
		if begun.status != 202 || !strings.HasPrefix(at, base+"/blobs/uploads/") || strings.ContainsAny(strings.TrimPrefix(at, base+"/blobs/uploads/"), "/?:") {
			t.Fatalf("%d %v", begun.status, begun.header)
		}
		sent := 0
		for _, chunk := range chunks {
			got := r.push(http.MethodPatch, at, "ghcr.io/acme/app", chunk, "Content-Range", fmt.Sprintf("%d-%d", sent, sent+len(chunk)-1), "Content-Type", "application/octet-stream")
			sent += len(chunk)
			if at = got.header.Get("Location"); got.status != 202 || got.header.Get("Range") != fmt.Sprintf("0-%d", sent-1) {
				t.Fatalf("PATCH: %d %v %s", got.status, got.header, got.body)
			}
			status := r.push(http.MethodGet, at, "ghcr.io/acme/app", "")
			if status.status != 204 || status.header.Get("Range") != fmt.Sprintf("0-%d", sent-1) {
				t.Fatalf("GET: %d %v", status.status, status.header)
			}
		}
		rest := content
		if chunks != nil {
			rest = ""
		}
		got := r.push(http.MethodPut, at+"?digest="+url.QueryEscape(registrytest.DigestOf([]byte(content))), "ghcr.io/acme/app", rest)
		if got.status != 201 || got.header.Get("Location") != base+"/blobs/"+registrytest.DigestOf([]byte(content)) || got.header.Get("Docker-Content-Digest") != registrytest.DigestOf([]byte(content)) {
			t.Fatalf("PUT: %d %v %s", got.status, got.header, got.body)
		}
	}
	blob("{}")
	blob("first second", "first ", "second")
	registry.Asked()
	r.push(http.MethodPost, base+"/blobs/uploads/?digest-algorithm=sha512&other=x", "ghcr.io/acme/app", "")
	for _, asked := range registry.Asked() {
		if asked.Method == http.MethodPost && asked.URL.RawQuery != "digest-algorithm=sha512" {
			t.Errorf("the upload of a blob with another digest began with %s", asked.URL)
		}
	}
	manifest := registrytest.ManifestOf(registrytest.DigestOf([]byte("{}")), registrytest.DigestOf([]byte("first second")), 12)
	got := r.push(http.MethodPut, base+"/manifests/v1", "ghcr.io/acme/app", manifest, "Content-Type", registrytest.ManifestType)
	if got.status != 201 || got.header.Get("Location") != base+"/manifests/v1" {
		t.Fatalf("manifest: %d %v %s", got.status, got.header, got.body)
	}
	if got := r.pull(base+"/manifests/v1", "ghcr.io/acme/app", "Accept", registrytest.ManifestType); got.body != manifest {
		t.Errorf("%d %s", got.status, got.body)
	}
	subject := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"artifactType":"a/b","config":{"mediaType":"application/vnd.oci.empty.v1+json","digest":%q,"size":2},"layers":[],"subject":{"mediaType":%q,"digest":%q,"size":%d}}`,
		registrytest.ManifestType, registrytest.DigestOf([]byte("{}")), registrytest.ManifestType, registrytest.DigestOf([]byte(manifest)), len(manifest))
	if got := r.push(http.MethodPut, base+"/manifests/"+registrytest.DigestOf([]byte(subject)), "ghcr.io/acme/app", subject, "Content-Type", registrytest.ManifestType); got.status != 201 {
		t.Errorf("subject: %d %v %s", got.status, got.header, got.body)
	}

	single := r.push(http.MethodPost, base+"/blobs/uploads/?digest="+registrytest.DigestOf([]byte("single")), "ghcr.io/acme/app", "single")
	if single.status != 201 && single.status != 202 { // distribution does not support it, and begins an upload instead
		t.Errorf("single POST: %d %s", single.status, single.body)
	}

	deleted := func(token string) int {
		return r.do(http.MethodDelete, base+"/manifests/"+registrytest.DigestOf([]byte(manifest)), token, nil).status
	}
	if got := deleted(r.token("web", "repository:ghcr.io/acme/app:pull,push")); got != 401 {
		t.Errorf("deleted without the right: %d", got)
	}
	if got := deleted(r.token("web", "repository:ghcr.io/acme/app:delete")); got != 202 {
		t.Errorf("deleted: %d", got)
	}
	r.events.take()
	r.push(http.MethodPost, base+"/blobs/uploads/", "ghcr.io/acme/app", "")
	if e := r.one(); e.Gateway.Kind != "uploads" || e.Status != 202 || e.Requested[0] != "repository:ghcr.io/acme/app:pull,push" {
		t.Errorf("%s", shown(e))
	}
}

// A manifest that is pushed by its digest may have tags (distribution specification, end-7b). No
// other request has any.
func TestPushTags(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	registry.Answer(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/v2/" {
			return false
		}
		w.Header()["Oci-Tag"] = []string{"1.2.3, 1.2", "latest"}
		w.WriteHeader(http.StatusCreated)
		return true
	})
	const base = "/v2/ghcr.io/acme/app/manifests/"
	digest := registrytest.DigestOf([]byte("{}"))
	ten := "?tag=1.2.3&tag=1.2&tag=latest" + strings.Repeat("&tag=x", 7)
	for name, test := range map[string]struct {
		method, path string
		status       int
		query, tags  string // that the upstream was asked with, and that the event has
	}{
		"by digest":    {http.MethodPut, digest + "?tag=1.2.3&other=1&tag=1.2&tag=latest", 201, "tag=1.2.3&tag=1.2&tag=latest", "1.2.3 1.2 latest"},
		"ten":          {http.MethodPut, digest + ten, 201, ten[1:], "1.2.3 1.2 latest" + strings.Repeat(" x", 7)},
		"eleven":       {http.MethodPut, digest + ten + "&tag=y", 414, "", ""},
		"no tag":       {http.MethodPut, digest + "?tag=a%2fb", 400, "", ""},
		"by tag":       {http.MethodPut, "v1?tag=v2", 201, "", ""},
		"not a push":   {http.MethodGet, digest + "?tag=v2", 201, "", ""},
		"not a push's": {http.MethodDelete, digest + "?tag=v2", 201, "", ""},
	} {
		registry.Asked()
		got := r.do(test.method, base+test.path, r.token("web", "repository:ghcr.io/acme/app:*"), nil)
		if got.status != test.status || test.tags != "" && strings.Join(got.header.Values("OCI-Tag"), "|") != "1.2.3, 1.2|latest" {
			t.Errorf("%s: %d %v %s", name, got.status, got.header, got.body)
		}
		if e := r.one(); strings.Join(e.Gateway.Tags, " ") != test.tags || e.Gateway.Reference != strings.SplitN(test.path, "?", 2)[0] {
			t.Errorf("%s: %s", name, shown(e))
		}
		for _, asked := range registry.Asked() {
			if test.status != 201 || asked.URL.Path != "/v2/" && asked.URL.RawQuery != test.query {
				t.Errorf("%s: the upstream was asked %s", name, asked.URL)
			}
		}
	}
	token := r.token("web", "repository:ghcr.io/acme/app:pull,push")
	piece := strings.SplitN(token, ".", 2)[0]
	r.do(http.MethodPut, base+digest+"?tag="+piece[:min(len(piece), 128)], token, nil)
	if e := r.one(); strings.Contains(shown(e), piece[:12]) {
		t.Errorf("a piece of the token is in %s", shown(e))
	}
	if asked := registry.Asked(); len(asked) == 0 || !strings.HasPrefix(asked[len(asked)-1].URL.RawQuery, "tag="+piece[:12]) {
		t.Error("the upstream was not asked for the tag as it is")
	}
}

// An address of an upload is valid for its caller and its repository, and only as a whole.
func TestSealedUploads(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry}, upstreamSettings{name: "harbor", to: registry})
	at := r.push(http.MethodPost, "/v2/ghcr.io/acme/app/blobs/uploads/", "ghcr.io/acme/app", "").header.Get("Location")
	sealed := at[strings.LastIndexByte(at, '/')+1:]
	all := []string{"repository:ghcr.io/acme/app:pull,push", "repository:ghcr.io/acme/other:pull,push", "repository:harbor/acme/app:pull,push"}
	registry.Asked()
	for name, test := range map[string]struct {
		path, who string
		status    int
	}{
		"itself":               {at, "web", 204},
		"of another":           {at, "worker", 404},
		"another repository":   {"/v2/ghcr.io/acme/other/blobs/uploads/" + sealed, "web", 404},
		"another upstream":     {"/v2/harbor/acme/app/blobs/uploads/" + sealed, "web", 404},
		"changed":              {testkit.OtherEnd(at), "web", 404},
		"cut":                  {at[:len(at)-8], "web", 404},
		"an upstream's own":    {"/v2/ghcr.io/acme/app/blobs/uploads/00000000-0000-0000-0000-000000000000", "web", 404},
		"a page's, not sealed": {"/v2/ghcr.io/acme/app/tags/list?page=" + sealed, "web", 400},
	} {
		got := r.do(http.MethodGet, test.path, r.token(test.who, all...), nil)
		if got.status != test.status {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
		if asked := registry.Count(http.MethodGet, "/v2/acme/"); asked > 0 && test.status != 204 {
			t.Errorf("%s: the upstream was asked", name)
		}
	}
}

// A ServiceAccount that was recreated under its name is a different caller.
func TestSealedUploadsOfTheSameName(t *testing.T) {
	t.Parallel()
	_, r := newGHCR(t)
	at := r.push(http.MethodPost, "/v2/ghcr.io/acme/app/blobs/uploads/", "ghcr.io/acme/app", "").header.Get("Location")
	r.uid = "uid-2"
	if got := r.push(http.MethodGet, at, "ghcr.io/acme/app", ""); got.status != 404 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// A blob is mounted from a repository that the caller may pull, at the same upstream. Otherwise an
// upload begins, and the client does not learn what exists.
func TestMount(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry}, upstreamSettings{name: "harbor", to: registry})
	i := registry.Put(t, "acme/base", "v1", []byte("layer"))
	const base = " repository:ghcr.io/acme/base:pull"
	for name, test := range map[string]struct {
		from      string
		challenge string // what it asks for beside the right to push
		scopes    []string
		mounted   bool
	}{
		"allowed":           {"ghcr.io/acme/base", base, []string{"repository:ghcr.io/acme/base:pull"}, true},
		"without upstream":  {"acme/base", base, []string{"repository:ghcr.io/acme/base:pull"}, true},
		"not allowed":       {"ghcr.io/acme/base", base, nil, false},
		"of another":        {"harbor/acme/base", "", []string{"repository:harbor/acme/base:pull", "repository:ghcr.io/acme/base:pull"}, false},
		"no name":           {"../base", "", []string{"repository:ghcr.io/acme/base:pull"}, false},
		"not allowed there": {"acme/base", base, []string{"repository:harbor/acme/base:pull"}, false},
	} {
		registry.Asked()
		repository := "ghcr.io/acme/" + strings.ReplaceAll(strings.ToLower(name), " ", "-")
		token := r.token("web", append(test.scopes, "repository:"+repository+":pull,push")...)
		challenge := r.do(http.MethodPost, "/v2/"+repository+"/blobs/uploads/?mount="+i.LayerDigest+"&from="+test.from, "", nil).header.Get("WWW-Authenticate")
		if want := `,scope="repository:` + repository + ":pull,push" + test.challenge + `"`; !strings.HasSuffix(challenge, want) {
			t.Errorf("%s: the challenge %s does not end with %s", name, challenge, want)
		}
		got := r.do(http.MethodPost, "/v2/"+repository+"/blobs/uploads/?mount="+i.LayerDigest+"&from="+test.from, token, nil)
		if test.mounted && (got.status != 201 || got.header.Get("Location") != "/v2/"+repository+"/blobs/"+i.LayerDigest) || !test.mounted && got.status != 202 {
			t.Errorf("%s: %d %v", name, got.status, got.header)
		}
		logged := []string{"repository:" + repository + ":pull,push"}
		reference := ""
		if test.mounted {
			logged, reference = append(logged, "repository:ghcr.io/acme/base:pull"), i.LayerDigest
		}
		if e := r.one(); !slices.Equal(e.Requested, logged) || e.Gateway.Reference != reference {
			t.Errorf("%s: %s", name, shown(e))
		}
		for _, asked := range registry.Asked() {
			if from := asked.URL.Query().Get("from"); asked.Method == http.MethodPost && (from == "acme/base") != test.mounted {
				t.Errorf("%s: the upstream was asked %s", name, asked.URL)
			}
		}
	}
}

// Only configured actions are allowed, whatever the rules allow.
func TestActions(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry, change: func(_ *upstream.Config, g *gateway.Upstream) { g.Actions = []string{"pull"} }})
	for _, test := range []struct{ method, path string }{
		{http.MethodPost, "/blobs/uploads/"}, {http.MethodPut, "/manifests/v1"}, {http.MethodDelete, "/manifests/v1"}, {http.MethodPatch, "/blobs/uploads/x"},
	} {
		got := r.do(test.method, "/v2/ghcr.io/acme/app"+test.path, r.token("web", "repository:ghcr.io/acme/app:*"), nil)
		if e := r.one(); got.status != 403 || !strings.Contains(got.body, "upstreams[].actions") || e.Reason != "action_not_configured" {
			t.Errorf("%s: %d %s %s", test.method, got.status, got.body, shown(e))
		}
	}
	if asked := registry.Asked(); len(asked) > 0 {
		t.Errorf("the upstream was asked %s", asked[0].URL)
	}
}

// A form is not a query. An upstream that reads it as one, as distribution does, would mount from a
// repository that was not authorized.
func TestForms(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	secret := registry.Put(t, "acme/secret", "v1", []byte("layer"))
	form := url.Values{"mount": {secret.LayerDigest}, "from": {"acme/secret"}}.Encode()
	parts := "--x\r\nContent-Disposition: form-data; name=mount\r\n\r\n" + secret.LayerDigest + "\r\n--x\r\nContent-Disposition: form-data; name=from\r\n\r\nacme/secret\r\n--x--\r\n"
	for media, body := range map[string]string{
		"application/x-www-form-urlencoded":                form,
		"Application/X-WWW-Form-Urlencoded; charset=utf-8": form,
		"multipart/form-data; boundary=x":                  parts,
	} {
		registry.Asked()
		if got := r.push(http.MethodPost, "/v2/ghcr.io/acme/app/blobs/uploads/", "ghcr.io/acme/app", body, "Content-Type", media); got.status != 202 {
			t.Errorf("%s: %d %s", media, got.status, got.body)
		}
		r.push(http.MethodPut, "/v2/ghcr.io/acme/app/manifests/v1", "ghcr.io/acme/app", body, "Content-Type", media)
		for _, asked := range registry.Asked() {
			if got := asked.Header.Get("Content-Type"); asked.Method == http.MethodPost && got != "application/octet-stream" || asked.Method == http.MethodPut && got != "" {
				t.Errorf("%s: the upstream was sent %q by %s", media, got, asked.Method)
			}
		}
	}
	if got := r.pull("/v2/ghcr.io/acme/app/blobs/"+secret.LayerDigest, "ghcr.io/acme/app"); got.status != 404 {
		t.Errorf("the layer of another repository is there: %d", got.status)
	}
}

// Clients that reach the gateway under the name of an upstream see the names that they would see there.
func TestHostOfAnUpstream(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry})
	i := registry.Put(t, "acme/base", "v1", []byte("layer"))
	registry.Put(t, "acme/base", "v2", []byte("layer"))
	at := func(method, path, token string) answer { return r.do(method, path, token, nil, "Host", "ghcr.io") }
	for path, want := range map[string]string{
		"/v2/":                       `Bearer realm="http://ghcr.io/token",service="gateway.example.com"`,
		"/v2/acme/base/manifests/v1": `Bearer realm="http://ghcr.io/token",service="gateway.example.com",scope="repository:acme/base:pull"`,
	} {
		if got := at(http.MethodGet, path, ""); got.status != 401 || got.header.Get("WWW-Authenticate") != want {
			t.Errorf("%s: %d %s", path, got.status, got.header.Get("WWW-Authenticate"))
		}
	}
	token := r.token("web", "repository:ghcr.io/acme/base:pull", "repository:ghcr.io/acme/app:pull,push")
	if got := at(http.MethodGet, "/v2/acme/base/blobs/"+i.LayerDigest, token); got.status != 200 || got.body != "layer" {
		t.Errorf("%d %s", got.status, got.body)
	}
	if e := r.one(); e.Gateway.Repository != "ghcr.io/acme/base" || e.Gateway.Upstream != "ghcr.io" || !slices.Equal(e.Requested, []string{"repository:ghcr.io/acme/base:pull"}) {
		t.Errorf("%+v, %q", e.Gateway, e.Requested)
	}
	if got := at(http.MethodGet, "/v2/acme/base/tags/list?n=1", token); !strings.Contains(got.body, `"name":"acme/base"`) || got.header.Get("Link") != `</v2/acme/base/tags/list?last=v1&n=1>; rel="next"` {
		t.Errorf("%s, %s", got.body, got.header.Get("Link"))
	}
	if got := at(http.MethodGet, "/v2/ghcr.io/acme/base/manifests/v1", token); got.status != 401 || !strings.Contains(got.body, "DENIED") {
		t.Errorf("a repository ghcr.io/acme/base of the upstream: %d %s", got.status, got.body)
	}
	mount := "/v2/acme/app/blobs/uploads/?mount=" + i.LayerDigest + "&from="
	if got := at(http.MethodPost, mount+"acme/base", "").header.Get("WWW-Authenticate"); !strings.HasSuffix(got, `,scope="repository:acme/app:pull,push repository:acme/base:pull"`) {
		t.Errorf("%s", got)
	}
	if got := at(http.MethodPost, mount+"acme/base", token); got.status != 201 || got.header.Get("Location") != "/v2/acme/app/blobs/"+i.LayerDigest {
		t.Errorf("%d %v", got.status, got.header)
	}
	if got := at(http.MethodPost, mount+"ghcr.io/acme/base", token); got.status != 202 || !strings.HasPrefix(got.header.Get("Location"), "/v2/acme/app/blobs/uploads/") {
		t.Errorf("%d %v", got.status, got.header)
	}
}
