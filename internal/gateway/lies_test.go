package gateway_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pullpass/pullpass/internal/test/registrytest"
)

// smuggled is text that must reach no client.
const smuggled = "smuggled-by-the-upstream"

// lie is a response that no good registry gives. {elsewhere} is the address of a different server.
type lie struct {
	outcome outcome
	text    string
	reset   bool // the connection is reset behind it
}

// outcome is the client's response when the upstream lies.
type outcome int

const (
	refused  outcome = iota // 502
	passed                  // its good part
	broken                  // its beginning, and the end of the connection
	noUpload                // 502 for uploads; else its good part
	noList                  // 502 for lists; else its good part
)

func lies() map[string]lie {
	const (
		behind = "HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\n" + smuggled
		ok     = "HTTP/1.1 200 OK\r\n"
		empty  = "Content-Length: 0\r\n\r\n"
		body   = "Content-Length: 4\r\n\r\nbody"
	)
	return map[string]lie{
		"two lengths":                 {refused, ok + "Content-Length: 3\r\nContent-Length: 28\r\n\r\nabc" + behind, false},
		"the same length twice":       {passed, ok + "Content-Length: 4\r\n" + body + behind, false},
		"length and chunks":           {passed, ok + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + behind, false},
		"negative length":             {refused, ok + "Content-Length: -4\r\n\r\nbody" + behind, false},
		"signed length":               {refused, ok + "Content-Length: +4\r\n\r\nbody" + behind, false},
		"huge length":                 {refused, ok + "Content-Length: 99999999999999999999\r\n\r\nbody", false},
		"short body":                  {broken, ok + "Content-Length: 100\r\n\r\nhalf", true},
		"behind the body":             {passed, ok + body + behind, false},
		"behind nothing":              {passed, "HTTP/1.1 202 Accepted\r\n" + empty + behind, false},
		"chunk without a size":        {broken, ok + "Transfer-Encoding: chunked\r\n\r\nx\r\nbody\r\n0\r\n\r\n", false},
		"huge chunk":                  {broken, ok + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nbody", false},
		"chunk longer than its size":  {broken, ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nbo" + smuggled + "\r\n0\r\n\r\n", false},
		"cut chunk":                   {broken, ok + "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", true},
		"long chunk extension":        {broken, ok + "Transfer-Encoding: chunked\r\n\r\n4;" + strings.Repeat("x", 64<<10) + "\r\nbody\r\n0\r\n\r\n", false},
		"trailers":                    {passed, ok + "Trailer: Set-Cookie\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nSet-Cookie: " + smuggled + "\r\nLocation: " + smuggled + "\r\n\r\n", false},
		"chunks in gzip":              {refused, ok + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", false},
		"unknown encoding":            {refused, ok + "Transfer-Encoding: x\r\n\r\nbody", false},
		"many interim answers":        {refused, strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: "+smuggled+"\r\n\r\n", 100) + ok + body, false},
		"interim answer":              {passed, "HTTP/1.1 103 Early Hints\r\nSet-Cookie: " + smuggled + "\r\n\r\n" + ok + body, false},
		"upgrade":                     {refused, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n" + smuggled, false},
		"204 with a body":             {passed, "HTTP/1.1 204 No Content\r\nContent-Length: 24\r\n\r\n" + smuggled, false},
		"304 with a body":             {passed, "HTTP/1.1 304 Not Modified\r\nContent-Length: 24\r\n\r\n" + smuggled, false},
		"206 for a whole":             {passed, "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 5-1/2\r\n" + body, false},
		"encoding that it has not":    {passed, ok + "Content-Encoding: gzip\r\n" + body, false},
		"digest of something else":    {passed, ok + "Docker-Content-Digest: sha256:" + strings.Repeat("0", 64) + "\r\n" + body, false},
		"two digests":                 {passed, ok + "Docker-Content-Digest: sha256:" + strings.Repeat("0", 64) + "\r\nDocker-Content-Digest: " + smuggled + "\r\n" + body, false},
		"location elsewhere":          {noUpload, "HTTP/1.1 202 Accepted\r\nLocation: {elsewhere}/v2/acme/app/blobs/uploads/" + smuggled + "\r\n" + empty, false},
		"location with a user":        {noUpload, "HTTP/1.1 202 Accepted\r\nLocation: //a:b@127.0.0.1/v2/acme/app/blobs/uploads/" + smuggled + "\r\n" + empty, false},
		"location of a blob":          {noUpload, "HTTP/1.1 202 Accepted\r\nLocation: /v2/acme/app/blobs/sha256:" + smuggled + "\r\n" + empty, false},
		"location with dots":          {noUpload, "HTTP/1.1 202 Accepted\r\nLocation: /v2/acme/app/blobs/uploads/../" + smuggled + "\r\n" + empty, false},
		"redirect to itself":          {refused, "HTTP/1.1 307 Temporary Redirect\r\nLocation: \r\n" + empty, false},
		"redirect elsewhere":          {refused, "HTTP/1.1 307 Temporary Redirect\r\nLocation: {elsewhere}/" + smuggled + "\r\n" + empty, false},
		"redirect without TLS":        {refused, "HTTP/1.1 302 Found\r\nLocation: http://registry.example.com/" + smuggled + "\r\n" + empty, false},
		"redirect that is not one":    {refused, "HTTP/1.1 305 Use Proxy\r\nLocation: {elsewhere}/" + smuggled + "\r\n" + empty, false},
		"cookies and hops":            {passed, ok + "Set-Cookie: " + smuggled + "\r\nKeep-Alive: " + smuggled + "\r\nProxy-Authenticate: " + smuggled + "\r\nStrict-Transport-Security: " + smuggled + "\r\nX-A: " + smuggled + "\r\n" + body, false},
		"listed as a hop":             {passed, ok + "Connection: Etag\r\nAlt-Svc: " + smuggled + "\r\nClear-Site-Data: " + smuggled + "\r\nRefresh: " + smuggled + "\r\n" + body, false},
		"list that goes on elsewhere": {noList, ok + "Content-Type: application/json\r\nLink: <{elsewhere}/" + smuggled + ">; rel=\"next\"\r\nContent-Length: 11\r\n\r\n{\"tags\":[]}", false},
		"challenge elsewhere":         {refused, "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer realm=\"{elsewhere}/token\",service=\"" + smuggled + "\"\r\n" + empty, false},
		"challenge in a 200":          {passed, ok + "WWW-Authenticate: Basic realm=\"" + smuggled + "\"\r\n" + body, false},
		"407":                         {refused, "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"" + smuggled + "\"\r\n" + empty, false},
		"403":                         {refused, "HTTP/1.1 403 Forbidden\r\nContent-Length: 24\r\n\r\n" + smuggled, false},
		"500":                         {refused, "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 24\r\n\r\n" + smuggled, false},
		"page":                        {refused, ok + "Content-Type: TEXT/HTML\r\nContent-Length: 24\r\n\r\n" + smuggled, false},
		"endless head":                {refused, ok + strings.Repeat("X: "+strings.Repeat("x", 1<<10)+"\r\n", 100) + "\r\n", false},
		"folded field":                {passed, ok + "X: a\r\n Set-Cookie: " + smuggled + "\r\n" + body, false},
		"bare ends of lines":          {passed, "HTTP/1.1 200 OK\nContent-Length: 4\n\nbody" + behind, false},
		"bare CR":                     {refused, ok + "Etag: a\rSet-Cookie: " + smuggled + "\r\n" + body, false},
		"zero byte":                   {refused, ok + "Etag: a\x00b\r\n" + body, false},
		"space before the colon":      {passed, ok + "Content-Length : 4\r\n\r\nbody", false},
		"status of four digits":       {refused, "HTTP/1.1 2000 OK\r\n" + body, false},
		"status of two digits":        {refused, "HTTP/1.1 20 OK\r\n" + body, false},
		"status 099":                  {refused, "HTTP/1.1 099 X\r\n" + body, false},
		"status 999":                  {refused, "HTTP/1.1 999 X\r\n" + body, false},
		"HTTP/2":                      {passed, "HTTP/2.0 200 OK\r\n" + body, false},
		"GOAWAY":                      {refused, "\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02", false},
		"nothing, and a reset":        {refused, "", true},
		"half a head, and a reset":    {refused, ok + "Content-Len", true},
	}
}

// lying is a registry that lies about the repository acme/app.
type lying struct {
	*registrytest.Server
	lie atomic.Pointer[lie]
}

func newLying(t *testing.T) *lying {
	l := &lying{}
	elsewhere := registrytest.NewServer(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("a different server was asked %s %s", r.Method, r.URL)
	}))
	l.Server = registrytest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		told := l.lie.Load()
		switch {
		case r.URL.Path == "/v2/":
		case strings.HasPrefix(r.URL.Path, "/v2/acme/good/"):
			_, _ = io.WriteString(w, "good")
		case told != nil:
			text := strings.ReplaceAll(told.text, "{elsewhere}", elsewhere.URL)
			connection, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			defer connection.Close()
			_, _ = io.WriteString(connection, text)
			if told.reset {
				_ = connection.(interface{ NetConn() net.Conn }).NetConn().(*net.TCPConn).SetLinger(0)
				return
			}
			if strings.HasSuffix(text, smuggled) { // until the next request
				_, _ = io.CopyN(io.Discard, connection, 1)
			}
		default:
			w.Header().Set("Location", "/v2/acme/app/blobs/uploads/0123")
			w.WriteHeader(http.StatusAccepted)
		}
	}))
	return l
}

// No lie of an upstream in the form of a response reaches the client or a different request, for any
// method. The client gets a whole response that the gateway answers for, or its connection ends.
func TestLies(t *testing.T) {
	t.Parallel()
	digest := registrytest.DigestOf([]byte("body"))
	for name, told := range lies() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			registry := newLying(t)
			r := newRig(t, upstreamSettings{name: "ghcr.io", to: registry.Server})
			token, good := r.token("web", "repository:ghcr.io/acme/app:*"), r.token("other", "repository:ghcr.io/acme/good:pull")
			upload := r.do(http.MethodPost, "/v2/ghcr.io/acme/app/blobs/uploads/", token, nil).header.Get("Location")
			r.one()
			registry.lie.Store(&told)
			for _, asked := range []string{
				"GET /manifests/v1", "HEAD /manifests/v1", "PUT /manifests/v1", "DELETE /manifests/v1", "GET /blobs/" + digest, "HEAD /blobs/" + digest, "DELETE /blobs/" + digest, "GET /tags/list", "GET /referrers/" + digest,
				"POST /blobs/uploads/", "GET upload", "PATCH upload", "PUT upload", "DELETE upload",
			} {
				method, path, _ := strings.Cut(asked, " ")
				at := "/v2/ghcr.io/acme/app" + path
				if path == "upload" {
					at = upload + "?digest=" + digest
				}
				var body io.Reader
				if method == http.MethodPut || method == http.MethodPatch {
					body = strings.NewReader("body")
				}
				got := r.do(method, at, token, body)
				e := r.one()
				text := fmt.Sprint(got.header, got.body)
				if strings.Contains(text, smuggled) || strings.Contains(text, registrytest.Password) || strings.Contains(shown(e), registrytest.Password) {
					t.Errorf("%s: the client gets %d %s", asked, got.status, text)
				}
				for key := range got.header {
					if !slices.Contains(headersOfAnswers, key) {
						t.Errorf("%s: the client gets %s: %q", asked, key, got.header[key])
					}
				}
				isBroken := strings.Contains(got.body, "|")
				if e.Status != got.status && got.status != 0 || isBroken != (e.Result != "granted" && e.Status < 400) || got.status >= 300 && got.status < 400 && got.status != 304 && got.status != 307 {
					t.Errorf("%s: %d %q, %s", asked, got.status, got.body, shown(e))
				}
				isUpload := path == "upload" || method == http.MethodPost
				isList := path == "/tags/list" && got.status != http.StatusNotModified // the others are not lists of tags
				isRefused := told.outcome == refused || isList || told.outcome == noUpload && isUpload || told.outcome == noList && strings.HasPrefix(path, "/referrers/")
				if isRefused != (got.status == http.StatusBadGateway) || isBroken != (told.outcome == broken && !isRefused && method != http.MethodHead) {
					t.Errorf("%s: %d %q", asked, got.status, got.body)
				}
				if answer := r.do(http.MethodGet, "/v2/ghcr.io/acme/good/manifests/v1", good, nil); answer.status != http.StatusOK || answer.body != "good" {
					t.Errorf("after %s, a different client gets %d %q", asked, answer.status, answer.body)
				}
				r.one()
			}
		})
	}
}

// headersOfAnswers are those that the gateway sends.
var headersOfAnswers = []string{
	"Accept-Ranges", "Cache-Control", "Connection", "Content-Encoding", "Content-Length", "Content-Range", "Content-Type", "Date", "Docker-Content-Digest", "Docker-Distribution-Api-Version", "Etag", "Pragma", "Link", "Location", "Retry-After", "Transfer-Encoding",
	"X-Content-Type-Options",
}
