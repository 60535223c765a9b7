package exchange_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/exchange/load"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// Slow clients hold no places of others, however many they are.
func TestSlowClientsHoldNoPlace(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *rigConfig) { c.inFlight = 1 })
	token := r.token(t, nil)
	expect := func() {
		t.Helper()
		if a := r.do(t, post(token)); a.status != http.StatusOK {
			t.Errorf("status %d", a.status)
		}
	}

	body, client := io.Pipe()
	slow := post(token)
	slow.Body, slow.ContentLength = body, 100
	sent := make(chan int)
	go func() {
		w := httptest.NewRecorder()
		r.handler.ServeHTTP(w, slow)
		sent <- w.Code
	}()
	fmt.Fprint(client, "grant_type=") // it is being read
	expect()
	client.CloseWithError(io.ErrUnexpectedEOF)
	if status := <-sent; status != http.StatusBadRequest {
		t.Errorf("a body that ends early got %d", status)
	}

	for name, request := range map[string]*http.Request{"granted": post(token), "refused": post("garbage"), "invalid": httptest.NewRequest(http.MethodPost, "/token", nil)} {
		w := stalledWriter{httptest.NewRecorder(), make(chan bool), make(chan bool)}
		done := make(chan bool)
		go func() { r.handler.ServeHTTP(w, request); close(done) }()
		<-w.writing
		t.Run(name, func(*testing.T) { expect() })
		close(w.release)
		<-done
	}
}

// stalledWriter is a client that does not read its answer.
type stalledWriter struct {
	http.ResponseWriter
	writing, release chan bool
}

func (w stalledWriter) Write(b []byte) (int, error) {
	close(w.writing)
	<-w.release
	return w.ResponseWriter.Write(b)
}

// An address with many bodies in progress gets short deadlines. The server does not wait for
// missing data.
func TestCrowdOfSlowBodies(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	server := httptest.NewServer(r.handler)
	t.Cleanup(server.Close)
	const late = 8
	for range load.MaxBodies + late {
		c := testkit.Value(net.Dial("tcp", server.Listener.Addr().String()))(t)
		t.Cleanup(func() { c.Close() })
		fmt.Fprint(c, "POST /token HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\ngrant_type=")
	}
	for deadline := time.Now().Add(time.Minute); len(r.recorded()) < late; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d were cut off, want %d", len(r.recorded()), late)
		}
	}
	for _, e := range r.recorded() {
		if e.Status != http.StatusBadRequest || !strings.Contains(e.Message, "in time") {
			t.Errorf("event %+v", e)
		}
	}
	// A client that sends at once is served despite the crowd. Its request may take longer than a
	// body.
	form := post(r.token(t, nil))
	content := testkit.Value(io.ReadAll(form.Body))(t)
	response := testkit.Value(http.Post(server.URL+"/token", form.Header.Get("Content-Type"), bytes.NewReader(content)))(t)
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("status %d", response.StatusCode)
	}
}

// Only bodies beyond the crowd get a deadline, and only while they are read.
func TestDeadlinesOfBodies(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	var crowd sync.WaitGroup
	var clients []*io.PipeWriter
	join := func() {
		body, client := io.Pipe()
		request := post("")
		request.Body = body
		crowd.Go(func() { r.handler.ServeHTTP(httptest.NewRecorder(), request) })
		fmt.Fprint(client, "grant_type=") // it is being read
		clients = append(clients, client)
	}
	for range load.MaxBodies - 1 {
		join()
	}
	if got := r.deadlines(t, "192.0.2.1:1"); len(got) != 0 {
		t.Errorf("no crowd yet: deadlines %v", got)
	}
	join()
	if got := r.deadlines(t, "192.0.2.1:1"); len(got) != 2 || time.Until(got[0]) > load.BodyDeadline || !got[1].IsZero() {
		t.Errorf("deadlines %v, want one that is near, and none", got)
	}
	if got := r.deadlines(t, "192.0.2.2:1"); len(got) != 0 {
		t.Errorf("another address: deadlines %v", got)
	}
	// Without a body, a deadline would end the request itself.
	none := &deadlineWriter{ResponseWriter: httptest.NewRecorder()}
	if r.handler.ServeHTTP(none, get(r.token(t, nil))); len(none.deadlines) != 0 {
		t.Errorf("no body: deadlines %v", none.deadlines)
	}
	// The crowd leaves while the last client still sends. Its deadline must not outlive its body,
	// or the request ends with it.
	body, last := io.Pipe()
	request := post("")
	request.Body = body
	w := &deadlineWriter{ResponseWriter: httptest.NewRecorder()}
	var sending sync.WaitGroup
	sending.Go(func() { r.handler.ServeHTTP(w, request) })
	fmt.Fprint(last, "grant_type=")
	for _, client := range clients {
		client.Close()
	}
	crowd.Wait()
	last.Close()
	sending.Wait()
	if len(w.deadlines) != 2 || !w.deadlines[1].IsZero() {
		t.Errorf("deadlines %v of the last one", w.deadlines)
	}
	if got := r.deadlines(t, "192.0.2.1:1"); len(got) != 0 {
		t.Errorf("the crowd has gone: deadlines %v", got)
	}
}

// deadlines returns the deadlines that a POST from an address got.
func (r *rig) deadlines(t *testing.T, from string) []time.Time {
	t.Helper()
	w := &deadlineWriter{ResponseWriter: httptest.NewRecorder()}
	request := post(r.token(t, nil))
	request.RemoteAddr = from
	r.handler.ServeHTTP(w, request)
	return w.deadlines
}

type deadlineWriter struct {
	http.ResponseWriter
	deadlines []time.Time
}

func (w *deadlineWriter) SetReadDeadline(at time.Time) error {
	w.deadlines = append(w.deadlines, at)
	return nil
}

// Issued tokens do not fill the memory, whatever clients request.
func TestIssuedTokensAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	token := r.token(t, nil)
	long := func(i int) string { return fmt.Sprintf("repository:team-a/%s%03d:pull", strings.Repeat("a", 200), i) }
	ask := func(scope string) *exchange.Event {
		t.Helper()
		if a := r.do(t, get(token, scope)); a.status != http.StatusOK {
			t.Fatalf("status %d", a.status)
		}
		events := r.recorded()
		return events[len(events)-1]
	}
	if ask(long(1) + " " + long(2)); !ask(long(1) + " " + long(2)).Reused {
		t.Error("two long names are not remembered")
	}
	if ask(long(1) + " " + long(2) + " " + long(3)); ask(long(1) + " " + long(2) + " " + long(3)).Reused {
		t.Error("more than two long names are remembered")
	}
}

// The size of an event is bounded relative to that of its request.
func TestEventsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	var scopes []string
	for i := range 60 {
		scopes = append(scopes, fmt.Sprintf("repository:other/app%d:pull", i))
	}
	r.do(t, get(r.token(t, nil), strings.Join(scopes, " ")))
	if e := r.lastEvent(t, 1); len(e.Requested) != 60 || len(e.Scopes) != 8 || e.Result != exchange.ResultNone {
		t.Errorf("%s, %d scopes requested, %d of them told about", e.Result, len(e.Requested), len(e.Scopes))
	}
	limited := newRig(t, func(c *rigConfig) { c.limits = limiterFunc(func(string) time.Duration { return time.Minute }) })
	limited.do(t, get(limited.token(t, nil), strings.Join(scopes, " ")))
	if e := limited.lastEvent(t, 1); e.Status != http.StatusTooManyRequests || len(e.Requested) != 8 {
		t.Errorf("status %d, %d scopes", e.Status, len(e.Requested))
	}
}

// Invalid requests from an address that has spent its limit do not wait for a place.
func TestSpentAddressesWaitForNoPlace(t *testing.T) {
	t.Parallel()
	working, release := make(chan bool), make(chan bool)
	r := newRig(t, func(c *rigConfig) {
		c.inFlight = 1
		c.limits = limiterFunc(func(key string) time.Duration {
			if strings.HasPrefix(key, "7:address") {
				return time.Minute
			}
			return 0
		})
		c.verifier = verifierFunc(func() (oidc.Identity, error) {
			working <- true
			<-release
			return oidc.Identity{}, &oidc.Error{Reason: refusal.TokenSignature, Message: "the token's signature is wrong"}
		})
	})
	r.do(t, get("")) // and its address has spent its limit
	other := from(nodeproof.Caller{Address: netip.MustParseAddr("198.51.100.1")}, post("a.b.c"))
	var busy sync.WaitGroup
	busy.Go(func() { r.handler.ServeHTTP(httptest.NewRecorder(), other) })
	<-working
	if a := r.do(t, get("d.e.f")); a.status != http.StatusTooManyRequests {
		t.Errorf("status %d while there is no place", a.status)
	}
	close(release)
	busy.Wait()
}
