package gateway_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/pullpass/pullpass/internal/test/registrytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The next page of a list is at the same list of the gateway. Any other link of an upstream is
// refused.
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
			w.Header()["Link"] = strings.Split(link, "\n")
			_, _ = io.WriteString(w, `{"name":"acme/app","tags":["`+q.URL.Query().Get("token")+`"]}`)
			return true
		})
		return r.pull("/v2/ghcr.io/acme/app/tags/list?n=1", "ghcr.io/acme/app")
	}
	for link, want := range map[string]string{
		"<" + own + `?n=1&last=a>; rel="next"`:                                  `</v2/ghcr.io/acme/app/tags/list?last=a&n=1>; rel="next"`,
		"<" + registry.URL + own + `?last=a>; rel="next"`:                       `</v2/ghcr.io/acme/app/tags/list?last=a>; rel="next"`,
		`<list?last=a>; rel="next"`:                                             `</v2/ghcr.io/acme/app/tags/list?last=a>; rel="next"`,
		"<" + own + `?n=1&last=a>; rel="prev"`:                                  "",
		"<" + own + `?last=a>; rel="prev", <` + own + `?last=c>; rel="next"`:    `</v2/ghcr.io/acme/app/tags/list?last=c>; rel="next"`,
		"<" + own + `?last=a>; rel="prev"` + "\n<" + own + `?last=c>; rel=NEXT`: `</v2/ghcr.io/acme/app/tags/list?last=c>; rel="next"`,
		"no link": "",
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
	// Parameters of the upstream's own are sealed, and open for the same list alone.
	next := list("<" + own + `?token=opaque>; rel="next"`).header.Get("Link")
	path, _, _ := strings.Cut(strings.TrimPrefix(next, "<"), ">")
	if strings.Contains(next, "opaque") || !strings.HasPrefix(path, "/v2/ghcr.io/acme/app/tags/list?page=") {
		t.Fatalf("%s", next)
	}
	if got := r.pull(path, "ghcr.io/acme/app"); got.status != 200 || got.body != `{"name":"ghcr.io/acme/app","tags":["opaque"]}` {
		t.Errorf("%d %s", got.status, got.body)
	}
	page := testkit.Value(url.Parse(path))(t)
	for _, other := range []string{"/v2/harbor/acme/app/tags/list", "/v2/ghcr.io/acme/other/tags/list"} {
		if got := r.pull(other+"?"+page.RawQuery, strings.TrimSuffix(strings.TrimPrefix(other, "/v2/"), "/tags/list")); got.status != 400 {
			t.Errorf("%s: %d", other, got.status)
		}
	}
}

// A list has the gateway's name of the repository and the upstream's tags, whatever else is in it
// and however long it is. An invalid list is refused.
func TestLists(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
	const ours = `{"name":"ghcr.io/acme/app","tags":[`
	long := `"` + strings.Repeat(`tag","`, 1<<17) + `end"`
	huge := strings.Repeat("x", 64<<10)
	for name, test := range map[string]struct {
		list, want string
		reason     string
		status     int
	}{
		"usual":             {`{"name":"acme/app","tags":["v1","v2"]}`, ours + `"v1","v2"]}`, "", 200},
		"spaced":            {" {\n \"name\" : \"acme/app\" ,\n \"tags\" : [ \"v1\" ,\t\"v2\" ] } \n", ours + `"v1","v2"]}`, "", 200},
		"name behind":       {`{"tags":["v1"],"name":"acme/app"}`, ours + `"v1"]}`, "", 200},
		"no name":           {`{"tags":["v1"]}`, ours + `"v1"]}`, "", 200},
		"no tags":           {`{"name":"acme/app","tags":null}`, ours + `]}`, "", 200},
		"none at all":       {`{"name":"acme/app"}`, ours + `]}`, "", 200},
		"manifests":         {`{"child":[],"manifest":{"sha256:aa":{"tag":["v1"],"tags":[1],"name":2}},"name":"acme/app","tags":["v1"]}`, ours + `"v1"]}`, "", 200},
		"many manifests":    {`{"manifest":[` + strings.Repeat(`{"a":["`+huge[:8<<10]+`"]},`, 100) + `1],"tags":["v1"]}`, ours + `"v1"]}`, "", 200},
		"escapes":           {`{"tags":["a\u003cb"]}`, ours + `"a<b"]}`, "", 200},
		"long":              {`{"name":"acme/app","tags":[` + long + `]}`, ours + long + `]}`, "", 200},
		"no object":         {`["v1"]`, "", "upstream_invalid", 502},
		"nothing":           {"", "", "upstream_invalid", 502},
		"neither":           {`{"other":1}`, "", "upstream_invalid", 502},
		"no strings":        {`{"tags":[1]}`, "", "upstream_invalid", 502},
		"no list":           {`{"tags":{"a":1}}`, "", "upstream_invalid", 502},
		"twice, apart":      {`{"tags":["v1"],"other":1,"tags":["v2"]}`, "", "upstream_invalid", 502},
		"a name, and more":  {`{"name":"acme/app","other":1}`, ours + `]}`, "", 200},
		"long, no object":   {`["tags",[` + long + `]]`, "", "upstream_invalid", 502},
		"some":              {`{"tags":[` + long[:6<<10-1] + `]}`, ours + long[:6<<10-1] + `]}`, "", 200},
		"twice":             {`{"tags":["v1"],"tags":["v2"]}`, "", "upstream_invalid", 502},
		"more behind":       {`{"tags":["v1"]} {}`, "", "upstream_invalid", 502},
		"garbage behind":    {`{"tags":["v1"]} x`, "", "upstream_invalid", 502},
		"breaks off behind": {`{"tags":["v1"]}`, "", "upstream_broken", 502},
		"cut":               {`{"tags":["v1"`, "", "upstream_invalid", 502},
		"a huge tag":        {`{"tags":["` + huge + `"]}`, "", "upstream_invalid", 502},
		"a huge name":       {`{"` + huge + `":1,"tags":[]}`, "", "upstream_invalid", 502},
		"deep":              {`{"a":` + strings.Repeat(`[`, 15) + `{}` + strings.Repeat(`]`, 15) + `,"tags":["v1"]}`, ours + `"v1"]}`, "", 200},
		"too deep":          {`{"a":` + strings.Repeat(`[`, 17) + strings.Repeat(`]`, 17) + `,"tags":[]}`, "", "upstream_invalid", 502},
		"a huge space":      {`{"tags":[` + strings.Repeat(" ", 64<<10) + `]}`, "", "upstream_invalid", 502},
		"a huge value":      {`{"name":"` + huge + `","tags":[]}`, "", "upstream_invalid", 502},
		"cut behind much":   {`{"tags":[` + long, ours + "…", "upstream_broken", 200},
		"spoiled behind it": {`{"tags":[` + long + `,1]}`, ours + "…", "upstream_broken", 200},
		"huge behind it":    {`{"tags":[` + long + `,"` + huge + `"]}`, ours + "…", "upstream_broken", 200},
	} {
		registry.Answer(func(w http.ResponseWriter, q *http.Request) bool {
			if q.URL.Path == "/v2/" {
				return false
			}
			w.Header().Set("ETag", "x")
			w.Header().Set("Content-Encoding", "gzip")
			if name == "breaks off behind" {
				w.Header().Set("Content-Length", strconv.Itoa(len(test.list)+1))
			}
			_, _ = io.WriteString(w, test.list)
			return true
		})
		got := r.pull("/v2/ghcr.io/acme/app/tags/list", "ghcr.io/acme/app")
		e := r.one()
		if got.status != test.status || e.Reason != test.reason || got.header.Get("Etag") != "" || got.header.Get("Content-Encoding") != "" {
			t.Errorf("%s: %d %.200s %s", name, got.status, got.body, shown(e))
		}
		if length := got.header.Get("Content-Length"); test.status == 200 && (length == "") != (len(test.want) > 8<<10 || strings.Contains(test.want, "…")) || got.header["Link"] != nil {
			t.Errorf("%s: %v", name, got.header)
		}
		begin, cut := strings.CutSuffix(test.want, "…")
		if test.status == 200 && (!cut && got.body != test.want || cut && (!strings.HasPrefix(got.body, begin) || !strings.Contains(got.body, "|"))) {
			t.Errorf("%s: %d bytes: %.200s", name, len(got.body), got.body)
		}
	}
}

// heldWriter is a client that does not read.
type heldWriter struct {
	http.ResponseWriter
	held *sync.WaitGroup
	once sync.Once
	let  chan struct{}
}

func (w *heldWriter) Write(p []byte) (int, error) {
	w.once.Do(w.held.Done)
	<-w.let
	return len(p), nil
}

// Long lists for many clients that do not read are held in pieces.
func TestMemoryOfLists(t *testing.T) { // alone: it measures what the whole process holds
	registry, r := newGHCR(t)
	registry.Answer(func(w http.ResponseWriter, q *http.Request) bool {
		if q.URL.Path == "/v2/" {
			return false
		}
		_, _ = io.WriteString(w, `{"name":"acme/app","tags":["`)
		for range 4 << 7 {
			if _, err := io.WriteString(w, strings.Repeat(`0123456","`, 8<<10/10)); err != nil {
				return true
			}
		}
		_, _ = io.WriteString(w, `end"]}`)
		return true
	})
	token := r.token("web", "repository:ghcr.io/acme/app:pull")
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	const lists, most = 70, 64 << 20
	before := heap()
	var held, ended sync.WaitGroup
	let := make(chan struct{})
	held.Add(lists)
	ctx, leave := context.WithCancel(t.Context()) // to the end of their lists, they would take a minute
	for range lists {
		ended.Go(func() {
			defer func() { _ = recover() }() // as net/http does: the list is cut
			q := httptest.NewRequestWithContext(ctx, http.MethodGet, "/v2/ghcr.io/acme/app/tags/list", nil)
			q.Header.Set("Authorization", "Bearer "+token)
			w := httptest.NewRecorder()
			r.handler().ServeHTTP(&heldWriter{ResponseWriter: w, held: &held, let: let}, q)
		})
	}
	held.Wait()
	if grown := heap() - before; grown > most {
		t.Errorf("%d lists of 4 MiB hold %d MiB", lists, grown>>20)
	} else {
		t.Logf("%d lists of 4 MiB hold %d MiB, with both sides of their upstream's connections", lists, grown>>20)
	}
	leave()
	close(let)
	ended.Wait()
}

// An upload continues at the upstream, whatever address the upstream gives.
func TestUploadsGoOnAtTheUpstream(t *testing.T) {
	t.Parallel()
	registry, r := newGHCR(t)
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
