package gateway_test

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/registrytest"
)

// Where a list goes on is the same list at the gateway; what an upstream says otherwise
// leads nowhere.
func TestLinks(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry}, upstreamSettings{name: "harbor", to: registry})
	const own = "/v2/acme/app/tags/list"
	list := func(link string) answer {
		registry.Answer(func(w http.ResponseWriter, q *http.Request) bool {
			if q.URL.Path != own {
				return false
			}
			w.Header().Set("Link", link)
			_, _ = io.WriteString(w, `{"name":"acme/app","tags":["`+q.URL.Query().Get("token")+`"]}`)
			return true
		})
		return r.pull("/v2/ghcr.io/acme/app/tags/list?n=1", "ghcr.io/acme/app")
	}
	for link, want := range map[string]string{
		"<" + own + `?n=1&last=a>; rel="next"`:                 `</v2/ghcr.io/acme/app/tags/list?last=a&n=1>; rel="next"`,
		"<" + registry.URL + own + `?last=a>; rel="next"`:      `</v2/ghcr.io/acme/app/tags/list?last=a>; rel="next"`,
		`<list?last=a>; rel="next"`:                            `</v2/ghcr.io/acme/app/tags/list?last=a>; rel="next"`,
		"<" + own + `?n=1&last=a>; rel="prev"`:                 "",
		"no link":                                              "",
		`<https://evil.example` + own + `?last=a>; rel="next"`: "502",
		`<http://` + registry.URL[8:] + own + `>; rel="next"`:  "502",
		`</v2/acme/other/tags/list?last=a>; rel="next"`:        "502",
		`</v2/acme/app/tags/list/../../x?last=a>; rel="next"`:  "502",
		`<//evil.example/v2/acme/app/tags/list>; rel="next"`:   "502",
		"<" + own + `?last=%zz>; rel="next"`:                   "502",
	} {
		got := list(link)
		if want == "502" && got.status == 502 {
			continue
		}
		if got.status != 200 || got.header.Get("Link") != want {
			t.Errorf("%s: %d %q", link, got.status, got.header.Get("Link"))
		}
	}
	// What only the upstream understands is sealed, and opens for the same list alone.
	next := list("<" + own + `?token=opaque>; rel="next"`).header.Get("Link")
	path, _, _ := strings.Cut(strings.TrimPrefix(next, "<"), ">")
	if strings.Contains(next, "opaque") || !strings.HasPrefix(path, "/v2/ghcr.io/acme/app/tags/list?page=") {
		t.Fatalf("%s", next)
	}
	if got := r.pull(path, "ghcr.io/acme/app"); got.status != 200 || got.body != `{"name":"ghcr.io/acme/app","tags":["opaque"]}` {
		t.Errorf("%d %s", got.status, got.body)
	}
	page, err := url.Parse(path)
	must(t, err)
	for _, other := range []string{"/v2/harbor/acme/app/tags/list", "/v2/ghcr.io/acme/other/tags/list"} {
		if got := r.pull(other+"?"+page.RawQuery, strings.TrimSuffix(strings.TrimPrefix(other, "/v2/"), "/tags/list")); got.status != 400 {
			t.Errorf("%s: %d", other, got.status)
		}
	}
}

// An upload goes on at the upstream, whatever that says.
func TestUploadsGoOnAtTheUpstream(t *testing.T) {
	t.Parallel()
	registry := registrytest.NewRegistry(t, "")
	r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry})
	begin := func() answer {
		return r.push(http.MethodPost, "/v2/ghcr.io/acme/app/blobs/uploads/", "ghcr.io/acme/app", "")
	}
	for _, location := range []string{"https://evil.example/v2/acme/app/blobs/uploads/x", "//evil.example/x", "http://" + registry.URL[8:] + "/x", "https://u:p@" + registry.URL[8:] + "/x"} {
		registry.Answer(func(w http.ResponseWriter, q *http.Request) bool {
			if q.Method != http.MethodPost {
				return false
			}
			w.Header().Set("Location", location)
			w.WriteHeader(http.StatusAccepted)
			return true
		})
		r.events.take()
		got := begin()
		if e := r.one(); got.status != 502 || e.Reason != "upstream_redirect" || got.header.Get("Location") != "" {
			t.Errorf("%s: %d %v", location, got.status, got.header)
		}
	}
}
