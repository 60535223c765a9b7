package gateway

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"testing"

	v2 "github.com/distribution/distribution/v3/registry/api/v2"
	"github.com/gorilla/mux"
)

// A list of tags is rewritten without loss, or refused: encoding/json reads the same tags before and
// after.
func FuzzTagList(f *testing.F) {
	for _, list := range []string{
		`{"name":"x","tags":["a","b"]}`, `{"tags":null}`, `{"name":"x","manifest":{"sha256:a":{"tag":["v1"]}},"tags":["a\u0000\ud800"]}`, `{"tags":[],"tags":["a"]}`, `[]`, `{"tags":[1]}`, `{"name":"x","tags":["a"]} x`, `{"a":[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]}`,
	} {
		f.Add([]byte(list))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := io.ReadAll(newTagList(strings.NewReader(string(data)), "ghcr.io/acme/app"))
		if err != nil {
			return
		}
		type list struct {
			Name string   `json:"name"`
			Tags []string `json:"tags"`
		}
		var before, after list
		if err := json.Unmarshal(got, &after); err != nil || after.Name != "ghcr.io/acme/app" {
			t.Fatalf("%q becomes %q: %v", data, got, err)
		}
		var members map[string]json.RawMessage
		if json.Unmarshal(data, &members) != nil {
			t.Fatalf("%q is accepted", data)
		}
		if json.Unmarshal(members["tags"], &before.Tags) == nil && !slices.Equal(before.Tags, after.Tags) {
			t.Fatalf("%q becomes %q", data, got)
		}
	})
}

// The address of an upload is one of the repository for distribution's router, too, before and after
// it is cleaned or unescaped once more.
func FuzzUpload(f *testing.F) {
	for _, address := range []string{
		"/v2/acme/app/blobs/uploads/0123?_state=x", "/v2/acme/app/blobs/upload/0123", "/artifacts-uploads/namespaces/acme/repositories/app/uploads/x", "/v2/acme/app/blobs/uploads/..%2f..%2fmanifests", "/v2/acme/app/blobs/uploads/%2e%2e", "/v2/acme/app/blobs/uploads/a%252fb", "/v2/acme/app/blobs/sha256:a", "//v2/acme/app/blobs/uploads/x",
	} {
		f.Add(address)
	}
	router := v2.Router()
	router.SkipClean(true)
	f.Fuzz(func(t *testing.T, address string) {
		u, err := (&url.URL{Scheme: "https", Host: "ghcr.io", Path: "/v2/acme/app/blobs/uploads/"}).Parse(address)
		if err != nil || !isUpload(u, "acme/app") {
			return
		}
		if strings.HasPrefix(u.Path, "/artifacts-uploads/namespaces/acme/repositories/app/uploads/") && path.Clean(u.Path) == u.Path {
			return
		}
		for _, form := range []string{u.Path, u.EscapedPath(), path.Clean(u.Path)} {
			form = strings.Replace(form, "/blobs/upload/", "/blobs/uploads/", 1)
			if again, err := url.PathUnescape(form); err != nil || again != u.Path && strings.Replace(u.Path, "/blobs/upload/", "/blobs/uploads/", 1) != again {
				t.Fatalf("%q is %q once more unescaped, %v", address, again, err)
			}
			if !strings.HasPrefix(form, "/v2/acme/app/blobs/uploads/") || strings.Count(form, "/") != 6 {
				t.Fatalf("%q is accepted: %q", address, form)
			}
		}
		var match mux.RouteMatch
		request := &http.Request{Method: http.MethodPatch, URL: &url.URL{Path: u.Path}}
		if router.Match(request, &match) && (match.Route.GetName() != v2.RouteNameBlobUploadChunk && !strings.Contains(u.Path, "/blobs/upload/") || match.Vars["name"] != "acme/app") {
			t.Fatalf("%q: distribution's route is %s of %s", address, match.Route.GetName(), match.Vars["name"])
		}
	})
}
