package relay

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// maxRecorded is how much of a body is kept: all that tests send as JSON, and the beginning of what is larger.
const maxRecorded = 64 << 10

// Exchange is a request and its answer, as they were sent.
type Exchange struct {
	Method, Target string // Target is the path with its query
	Header         http.Header
	Body           []byte // its beginning
	Status         int    // 0: there was no answer
	AnswerHeader   http.Header
	AnswerBody     []byte // its beginning
}

// Recorder is an HTTPS server that passes requests on to another server, unchanged, and keeps requests and responses:
// no other place sees the traffic between two programs.
type Recorder struct {
	// Host is localhost:port.
	Host string

	mu        sync.Mutex
	exchanges []*Exchange
}

// Record starts a recorder before the server at URL to, whose certificate is of ca, as is its own. It ends with the test.
func Record(t testing.TB, ca *certs.CA, to string) *Recorder {
	t.Helper()
	target := testenv.Value(url.Parse(to))(t)
	r := &Recorder{}
	transport := ca.Transport(t)
	transport.DisableCompression = true
	proxy := &httputil.ReverseProxy{
		Transport: &recording{r, transport},
		// As it comes: a response that breaks off after the header breaks off there for the client, too.
		FlushInterval: -1,
		// Clients give up requests whose answers they do not need.
		ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(target)
			p.Out.Host = p.In.Host // registries make addresses of it
		},
	}
	server := httptest.NewUnstartedServer(proxy)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{ca.Server(t, "recorder").TLS(t)}}
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	r.Host = "localhost" + server.URL[strings.LastIndex(server.URL, ":"):]
	return r
}

// Exchanges are those so far.
func (r *Recorder) Exchanges() []Exchange {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]Exchange, len(r.exchanges))
	for i, e := range r.exchanges {
		all[i] = *e
		all[i].Body, all[i].AnswerBody = slices.Clone(e.Body), slices.Clone(e.AnswerBody)
	}
	return all
}

// Requested is all of the request as text.
func (e *Exchange) Requested() []byte {
	return text(fmt.Sprintf("%s %s", e.Method, e.Target), e.Header, e.Body)
}

// Answered is all of the answer as text.
func (e *Exchange) Answered() []byte {
	return text(fmt.Sprint(e.Status), e.AnswerHeader, e.AnswerBody)
}

func text(line string, header http.Header, body []byte) []byte {
	var b bytes.Buffer
	fmt.Fprintln(&b, line)
	_ = header.Write(&b) // to memory
	b.WriteString("\n")
	b.Write(body)
	return b.Bytes()
}

// recording is where the requests go through.
type recording struct {
	recorder *Recorder
	next     http.RoundTripper
}

func (t *recording) RoundTrip(request *http.Request) (*http.Response, error) {
	e := &Exchange{Method: request.Method, Target: request.URL.RequestURI(), Header: request.Header.Clone()}
	t.recorder.mu.Lock()
	t.recorder.exchanges = append(t.recorder.exchanges, e)
	t.recorder.mu.Unlock()
	if request.Body != nil {
		request.Body = &recorded{request.Body, t.recorder, &e.Body}
	}
	response, err := t.next.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	t.recorder.mu.Lock()
	e.Status, e.AnswerHeader = response.StatusCode, response.Header.Clone()
	t.recorder.mu.Unlock()
	response.Body = &recorded{response.Body, t.recorder, &e.AnswerBody}
	return response, nil
}

// recorded is a body whose beginning is kept.
type recorded struct {
	io.ReadCloser
	recorder *Recorder
	into     *[]byte
}

func (b *recorded) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.recorder.mu.Lock()
	*b.into = append(*b.into, p[:min(n, maxRecorded-len(*b.into))]...)
	b.recorder.mu.Unlock()
	return n, err
}
