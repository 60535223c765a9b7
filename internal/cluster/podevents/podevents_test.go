package podevents

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const bearer = "token-of-pullpass-itself"

// eventAPI is an API server that can create and patch events. Any other request fails the test.
type eventAPI struct {
	t      *testing.T
	writes chan string // verb and path, in order

	mu     sync.Mutex
	events map[string]*corev1.Event // by path
	bodies []string
	fail   func(r *http.Request) int // status, or 0
}

func newEventAPI(t *testing.T) *eventAPI {
	return &eventAPI{t: t, writes: make(chan string, 1000), events: map[string]*corev1.Event{}}
}

func (a *eventAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer func() { a.writes <- r.Method + " " + r.URL.Path }()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		a.t.Error(err)
	}
	a.bodies = append(a.bodies, string(body))
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Warning", `299 - "events are old"`)
	if a.fail != nil {
		if status := a.fail(r); status != 0 {
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"Refused","message":"no such right","code":%d}`, status)
			return
		}
	}
	if r.Header.Get("Authorization") != "Bearer "+bearer || r.UserAgent() != "pullpass" {
		a.t.Errorf("header %q", r.Header)
	}
	var event corev1.Event
	switch {
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/events"):
		if err := json.Unmarshal(body, &event); err != nil {
			a.t.Error(err)
		}
		a.events[r.URL.Path+"/"+event.Name] = &event
		w.WriteHeader(http.StatusCreated)
	case r.Method == http.MethodPatch && r.Header.Get("Content-Type") == string(types.StrategicMergePatchType):
		stored := a.events[r.URL.Path]
		if stored == nil {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"NotFound","code":404}`)
			return
		}
		if err := json.Unmarshal(body, stored); err != nil { // of plain fields, merging is replacing
			a.t.Error(err)
		}
		event = *stored
	default:
		a.t.Errorf("%s %s (%s)", r.Method, r.URL.Path, r.Header.Get("Content-Type"))
	}
	json.NewEncoder(w).Encode(&event)
}

// all returns all events, by path.
func (a *eventAPI) all() map[string]corev1.Event {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := map[string]corev1.Event{}
	for path, event := range a.events {
		all[path] = *event
	}
	return all
}

// RoundTrip serves without a network, for tests in a synctest bubble.
func (a *eventAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	return w.Result(), nil
}

func (a *eventAPI) config() *rest.Config {
	return &rest.Config{Host: "https://api.example.com", BearerToken: bearer, Transport: a}
}

// serve starts the API server on a socket.
func (a *eventAPI) serve() *rest.Config {
	server := httptest.NewServer(a)
	a.t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL, BearerToken: bearer}
}

// start runs Events until the test ends.
func start(t *testing.T, c Config) *Events {
	t.Helper()
	p := testkit.Value(New(c))(t)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return p
}

// flush waits until the queue is empty, and records one more refusal. It waits until that refusal
// and the event in progress have arrived.
func flush(t *testing.T, p *Events, a *eventAPI, cluster string) []string {
	t.Helper()
	for s := p.clusters[cluster]; ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		waiting := s.waiting.Len()
		s.mu.Unlock()
		if waiting == 0 {
			break
		}
	}
	last := refusedEvent(func(e *exchange.Event) {
		e.Cluster, e.Namespace, e.Pod = cluster, "last", &exchange.Object{Name: "last", UID: "uid-last"}
	})
	p.Record(last)
	var writes []string
	for write := range a.writes {
		if write == "POST /api/v1/namespaces/last/events" {
			break
		}
		writes = append(writes, write)
	}
	return writes
}

// refusal returns an event as exchange records it.
func refusedEvent(changes ...func(*exchange.Event)) *exchange.Event {
	e := &exchange.Event{
		Time: time.Date(2026, 3, 4, 5, 6, 7, 890, time.UTC), ID: "REQUESTID", Result: exchange.ResultNone, Status: 200, Reason: "scope_not_granted",
		Cluster: "prod", Namespace: "team-b", ServiceAccount: &exchange.Object{Name: "web", UID: "uid-web"},
		Pod: &exchange.Object{Name: "web-7d9f", UID: "uid-pod"}, Node: &exchange.Object{Name: "worker-1", UID: "uid-node"},
		CredentialID: "JTI=1234", Service: "registry.example.com", Requested: []string{"repository:shared/x:pull"},
		Scopes: []exchange.ScopeEvent{{
			Scope:  "repository:shared/x:pull",
			Reason: "no rule for prod/team-b/web allows pull on shared/x; rule own-namespace allows pull on team-b/**",
			Remedy: "an administrator of Pullpass has to allow pull on shared/x to prod/team-b/web; no rule does",
		}},
		Caller: "192.0.2.1", Client: "containerd/2.4", Latency: 0.25,
	}
	for _, change := range changes {
		change(e)
	}
	return e
}

func refuse(reason, message string) func(*exchange.Event) {
	return func(e *exchange.Event) {
		e.Result, e.Status, e.Reason, e.Message, e.Scopes = exchange.ResultRefused, 403, reason, message, nil
	}
}

func TestPodEvent(t *testing.T) {
	t.Parallel()
	api := newEventAPI(t)
	config := api.serve()
	config.WarningHandlerWithContext = warnings{t}
	config.RateLimiter = flowcontrol.NewFakeNeverRateLimiter() // of others
	config.ContentType = runtime.ContentTypeProtobuf           // likewise
	p := start(t, Config{Clusters: map[string]*rest.Config{"prod": config}})
	e, same := refusedEvent(), refusedEvent()
	p.Record(e)
	if writes := flush(t, p, api, "prod"); !slices.Equal(writes, []string{"POST /api/v1/namespaces/team-b/events"}) {
		t.Errorf("writes %q", writes)
	}
	if !reflect.DeepEqual(e, same) {
		t.Errorf("the event became %+v", e)
	}
	event, found := api.all()["/api/v1/namespaces/team-b/events/web-7d9f.18998b01859eb97a"]
	if !found {
		t.Fatalf("no such event in %v", slices.Collect(maps.Keys(api.all())))
	}
	if pod := (corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: "team-b", Name: "web-7d9f", UID: "uid-pod"}); event.InvolvedObject != pod {
		t.Errorf("is about %+v", event.InvolvedObject)
	}
	if event.Namespace != "team-b" || event.Type != "Warning" || event.Reason != "ImagePullDenied" || event.Source != (corev1.EventSource{Component: "pullpass"}) ||
		event.ReportingController != "pullpass" || event.Count != 1 || event.FirstTimestamp.Unix() != e.Time.Unix() || event.LastTimestamp.Unix() != e.Time.Unix() {
		t.Errorf("event %+v", event)
	}
	for _, body := range api.bodies {
		for _, secret := range []string{bearer, e.ID, e.CredentialID, e.Client, e.Caller, e.ServiceAccount.UID} {
			if strings.Contains(body, secret) {
				t.Errorf("%s tells of %s", body, secret)
			}
		}
	}
	both := map[string]Counts{"prod": {Sent: 2}} // with flush's own, counted after its answer
	testkit.Eventually(t, fmt.Sprint("counts ", both), func() bool { return maps.Equal(p.Counts(), both) })
}

// warnings of the API server are for the client whose configuration was copied.
type warnings struct{ t *testing.T }

func (w warnings) HandleWarningHeaderWithContext(_ context.Context, _ int, _, text string) {
	w.t.Errorf("warning %q", text)
}

func TestSameRefusalIsCounted(t *testing.T) {
	t.Parallel()
	api := newEventAPI(t)
	p := start(t, Config{Clusters: map[string]*rest.Config{"prod": api.serve()}})
	for i := range 30 {
		p.Record(refusedEvent(func(e *exchange.Event) {
			e.Time, e.ID, e.Latency, e.CredentialID, e.Client = e.Time.Add(time.Duration(i)*time.Minute), fmt.Sprint(i), float64(i), fmt.Sprint(i), fmt.Sprint(i)
		}))
	}
	writes := flush(t, p, api, "prod")
	const first = "/api/v1/namespaces/team-b/events/web-7d9f.18998b01859eb97a"
	if len(writes) != 25 || writes[0] != "POST /api/v1/namespaces/team-b/events" {
		t.Errorf("%d writes %q", len(writes), writes)
	}
	for _, write := range writes[1:] {
		if write != "PATCH "+first {
			t.Errorf("then %s", write)
		}
	}
	events := api.all()
	event := events[first]
	// Five refusals beyond 25 are counted but not sent, because the pod's share is used up.
	if len(events) != 2 || event.Count != 25 || event.LastTimestamp.Sub(event.FirstTimestamp.Time) != 24*time.Minute {
		t.Errorf("%d events, %+v", len(events), event)
	}
}

func TestManyRefusalsOfOnePodAreJoined(t *testing.T) {
	t.Parallel()
	api := newEventAPI(t)
	p := start(t, Config{Clusters: map[string]*rest.Config{"prod": api.serve()}})
	for i := range 60 {
		p.Record(refusedEvent(func(e *exchange.Event) {
			e.Time = e.Time.Add(time.Duration(i) * time.Second)
			e.Scopes[0].Scope = fmt.Sprintf("repository:%d:pull", i)
			e.Scopes[0].Reason = strings.Repeat("because ", 200)
		}))
	}
	if writes := flush(t, p, api, "prod"); len(writes) != 25 {
		t.Errorf("%d writes", len(writes))
	}
	joined := 0
	for _, event := range api.all() {
		if len(event.Message) > 1024 {
			t.Errorf("a message of %d bytes", len(event.Message))
		}
		if strings.HasPrefix(event.Message, "(combined from similar events): Pullpass refused ") {
			joined++
			if event.Count != 16 {
				t.Errorf("joined %d", event.Count)
			}
		}
	}
	if events := len(api.all()); joined != 1 || events != 9+1+1 {
		t.Errorf("%d joined events among %d", joined, events)
	}
}

func TestWhatMakesNoPodEvent(t *testing.T) {
	t.Parallel()
	api := newEventAPI(t)
	p := start(t, Config{Clusters: map[string]*rest.Config{"prod": api.serve()}})
	result := func(r exchange.Result) func(*exchange.Event) { return func(e *exchange.Event) { e.Result = r } }
	for name, event := range map[string]*exchange.Event{
		"granted":     refusedEvent(result(exchange.ResultGranted)),
		"invalid":     refusedEvent(result(exchange.ResultInvalid)),
		"unavailable": refusedEvent(result(exchange.ResultUnavailable)),
		"error":       refusedEvent(result(exchange.ResultError)),
		"no result":   refusedEvent(result("")),
		"a token that is not proven": refusedEvent(refuse("token_signature_invalid", "x"), func(e *exchange.Event) {
			e.Namespace, e.ServiceAccount, e.Pod, e.Node = "", nil, nil, nil
			e.Claimed = &exchange.Claimed{Subject: "system:serviceaccount:team-b:web", Pod: "web-7d9f", Node: "worker-1", Verified: true}
		}),
		"anonymous":                  refusedEvent(refuse("anonymous", "x"), func(e *exchange.Event) { e.Cluster, e.Namespace, e.Pod = "", "", nil }),
		"a token without a pod":      refusedEvent(func(e *exchange.Event) { e.Pod = nil }),
		"a pod without a UID":        refusedEvent(func(e *exchange.Event) { e.Pod.UID = "" }),
		"a pod that is gone":         refusedEvent(refuse(string((&exchange.GoneError{Kind: exchange.KindPod}).Reason()), "x")),
		"containerd's second try":    refusedEvent(func(e *exchange.Event) { e.Retry = true }),
		"a cluster without a sender": refusedEvent(func(e *exchange.Event) { e.Cluster = "stage" }),
	} {
		event.Service = name
		p.Record(event)
	}
	flush(t, p, api, "prod")
	for path, event := range api.all() {
		if event.Namespace != "last" {
			t.Errorf("%s: %s", path, event.Message)
		}
	}
}

func TestWhatMakesPodEvents(t *testing.T) {
	t.Parallel()
	api := newEventAPI(t)
	p := start(t, Config{Clusters: map[string]*rest.Config{"prod": api.serve()}})
	later := func(e *exchange.Event) { e.Time = e.Time.Add(time.Second) }
	p.Record(refusedEvent(refuse("subject_denied", "as a whole"), func(e *exchange.Event) { e.Rule = "quarantine" }))
	p.Record(refusedEvent(later, func(e *exchange.Event) { // two at the same time
		e.Result = exchange.ResultPartial
		e.Scopes = []exchange.ScopeEvent{{Scope: "repository:a:pull,push", Granted: []string{"pull"}, Reason: "in part"}, {Scope: "repository:b:pull", Reason: "not at all"}}
	}))
	flush(t, p, api, "prod")
	var got []string
	for _, event := range api.all() {
		if event.Namespace != "last" {
			got = append(got, event.Message)
		}
	}
	slices.Sort(got)
	if want := []string{
		"Pullpass allowed only pull of repository:a:pull,push at registry.example.com: in part",
		"Pullpass refused repository:b:pull at registry.example.com: not at all",
		"Pullpass refused repository:shared/x:pull at registry.example.com: as a whole. Remedy: an administrator of Pullpass knows why the deny rule quarantine is there, and can change it",
	}; !slices.Equal(got, want) {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
}

// The token of a pull secret names no pod, so its refusal is on the ServiceAccount.
func TestEventOfAPullSecret(t *testing.T) {
	t.Parallel()
	api := newEventAPI(t)
	p := start(t, Config{Clusters: map[string]*rest.Config{"prod": api.serve()}})
	inSecret := func(e *exchange.Event) {
		e.Pod, e.Node = nil, nil
		e.ServiceAccount, e.PullSecret = &exchange.Object{Name: "web", UID: "uid-web"}, &exchange.Object{Name: "pullpass-pull-web", UID: "uid-secret"}
	}
	p.Record(refusedEvent(refuse(string((&exchange.GoneError{Kind: exchange.KindSecret}).Reason()), "it was deleted"), inSecret))
	p.Record(refusedEvent(refuse(string((&exchange.GoneError{Kind: exchange.KindServiceAccount}).Reason()), "no reader could see it"), inSecret))
	flush(t, p, api, "prod")
	var got []corev1.Event
	for _, event := range api.all() {
		if event.Namespace != "last" {
			got = append(got, event)
		}
	}
	if len(got) != 1 || got[0].InvolvedObject != (corev1.ObjectReference{APIVersion: "v1", Kind: "ServiceAccount", Namespace: "team-b", Name: "web", UID: "uid-web"}) ||
		!strings.HasPrefix(got[0].Message, "Pullpass refused repository:shared/x:pull at registry.example.com, with the token in the Secret pullpass-pull-web: it was deleted. Remedy: ") {
		t.Errorf("got %+v", got)
	}
}

func TestClustersGetTheirOwn(t *testing.T) {
	t.Parallel()
	eu, us := newEventAPI(t), newEventAPI(t)
	p := start(t, Config{Clusters: map[string]*rest.Config{"eu": eu.serve(), "us": us.serve()}})
	for _, cluster := range []string{"eu", "us", "us"} {
		p.Record(refusedEvent(func(e *exchange.Event) { e.Cluster, e.Scopes[0].Reason = cluster, "of "+cluster }))
	}
	for cluster, api := range map[string]*eventAPI{"eu": eu, "us": us} {
		flush(t, p, api, cluster)
		for path, event := range api.all() {
			if strings.Contains(path, "/team-b/") && !strings.Contains(event.Message, "of "+cluster) {
				t.Errorf("%s has %q", cluster, event.Message)
			}
		}
		if len(api.all()) != 2 {
			t.Errorf("%s has %d events", cluster, len(api.all()))
		}
	}
}

// The API server can delete an event while the refusals continue.
func TestForgottenEventIsMadeAgain(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		api := newEventAPI(t)
		p := start(t, Config{Clusters: map[string]*rest.Config{"prod": api.config()}})
		p.Record(refusedEvent())
		synctest.Wait()
		clear(api.events)
		p.Record(refusedEvent())
		synctest.Wait()
		events := slices.Collect(maps.Values(api.all()))
		if len(events) != 1 || events[0].Count != 2 || events[0].Message == "" || p.Counts()["prod"].Failed != 0 {
			t.Errorf("%+v, failures %v", events, p.Counts())
		}
	})
}

func TestEventsKeepToTheirRate(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		api := newEventAPI(t)
		config := api.config()
		config.QPS, config.Burst = 1000, 1000
		p := start(t, Config{Clusters: map[string]*rest.Config{"prod": config}})
		for i := range 200 {
			p.Record(refusedEvent(func(e *exchange.Event) { e.Pod.UID = fmt.Sprint("uid-", i) }))
		}
		for _, want := range []struct {
			after  time.Duration
			writes int
		}{{0, 50}, {10 * time.Second, 100}, {30 * time.Second, 200}} {
			time.Sleep(want.after - time.Since(began()))
			synctest.Wait()
			if len(api.writes) != want.writes {
				t.Errorf("%d writes after %s, want %d", len(api.writes), want.after, want.writes)
			}
		}
	})
}

// began returns the start time of every bubble.
func began() time.Time { return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) }

// hanging is an API server that accepts requests and never responds.
type hanging struct{ requests chan string }

func (h hanging) RoundTrip(r *http.Request) (*http.Response, error) {
	h.requests <- r.Method
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func TestHangingAPI(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		api, log := hanging{make(chan string, 1000)}, &strings.Builder{}
		p := testkit.Value(New(Config{
			Clusters: map[string]*rest.Config{"prod": {Host: "https://api.example.com", BearerToken: bearer, Transport: api}},
			Logger:   slog.New(slog.NewTextHandler(log, nil)),
		}))(t)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { p.Run(ctx) })
		p.Record(refusedEvent())
		synctest.Wait()
		for i := range 5000 {
			p.Record(refusedEvent(func(e *exchange.Event) { e.Pod.UID = fmt.Sprint("uid-", i) }))
		}
		if took := time.Since(began()); took != 0 {
			t.Errorf("Record took %s", took)
		}
		if failures := p.Counts()["prod"].Failed; failures != 5000-512 {
			t.Errorf("%d were dropped: not what the queue does not hold", failures)
		}
		// Each request ends after its time limit, and is not retried.
		time.Sleep(25 * time.Second)
		synctest.Wait()
		if len(api.requests) != 3 || p.Counts()["prod"].Failed != 5000-512+2 {
			t.Errorf("%d requests, failures %v", len(api.requests), p.Counts())
		}
		// The end does not wait for the request or the queue.
		cancel()
		running.Wait()
		if took := time.Since(began()); took != 25*time.Second || len(api.requests) != 3 || p.Counts()["prod"].Failed != 5000-512+2 {
			t.Errorf("ended after %s and %d requests, failures %v", took, len(api.requests), p.Counts())
		}
		p.Record(refusedEvent())
		if lines := strings.Count(log.String(), "\n"); lines != 1 || strings.Contains(log.String(), bearer) {
			t.Errorf("log: %s", log)
		}
	})
}

// withAPI runs a test with a cluster that accepts every event.
func withAPI(t *testing.T, test func(t *testing.T, api *eventAPI, p *Events)) {
	testkit.Bubble(t, func(t *testing.T) {
		api := newEventAPI(t)
		p := testkit.Value(New(Config{Clusters: map[string]*rest.Config{"prod": api.config()}}))(t)
		test(t, api, p)
	})
}

func TestEndDoesNotWaitForTheRate(t *testing.T) {
	withAPI(t, func(t *testing.T, api *eventAPI, p *Events) {
		for i := range 100 {
			p.Record(refusedEvent(func(e *exchange.Event) { e.Pod.UID = fmt.Sprint("uid-", i) }))
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { p.Run(ctx) })
		synctest.Wait()
		cancel()
		running.Wait()
		if took := time.Since(began()); took != 0 || len(api.writes) != 50 || p.Counts()["prod"].Failed != 0 {
			t.Errorf("ended after %s, %d writes, failures %v", took, len(api.writes), p.Counts())
		}
	})
}

// The log reports a lasting failure once a minute, and never a credential.
func TestFailuresAreCountedAndTold(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		api, log := newEventAPI(t), &strings.Builder{}
		api.fail = func(*http.Request) int { return http.StatusForbidden }
		p := start(t, Config{
			Clusters: map[string]*rest.Config{"prod": api.config()},
			Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			}})),
		})
		line := func(failures int) string {
			return fmt.Sprintf(`level=WARN msg="an event on a pod could not be sent; it needs create and patch on events" cluster=prod `+
				`namespace=team-b kind=Pod name=web-7d9f failures=%d error="no such right"`+"\n", failures)
		}
		want := line(1)
		for range 3 {
			p.Record(refusedEvent())
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		p.Record(refusedEvent())
		synctest.Wait()
		want += line(4)
		if len(api.writes) != 4 {
			t.Errorf("%d writes: a failure other than 404 is no reason to make the event", len(api.writes))
		}
		if log.String() != want || p.Counts()["prod"].Failed != 4 {
			t.Errorf("failures %v, log\n%swant\n%s", p.Counts(), log, want)
		}
		// After the recovery, the event counts all refusals.
		api.fail = nil
		p.Record(refusedEvent())
		synctest.Wait()
		for _, event := range api.all() {
			if event.Count != 5 {
				t.Errorf("event %+v", event)
			}
		}
		if len(api.all()) != 1 || p.Counts()["prod"].Failed != 4 {
			t.Errorf("%d events, failures %v", len(api.all()), p.Counts())
		}
	})
}

func TestNewFaults(t *testing.T) {
	t.Parallel()
	_, err := New(Config{Clusters: map[string]*rest.Config{
		"good": {Host: "https://api.example.com"},
		"none": nil,
		"file": {Host: "https://api.example.com", TLSClientConfig: rest.TLSClientConfig{CAFile: "nowhere/ca.crt"}},
	}})
	const want = "kube: events on pods of cluster file: open nowhere/ca.crt: no such file or directory\n" +
		"kube: events on pods of cluster none: no connection is configured"
	if err == nil || err.Error() != want || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

// Configurations are shared with their creators.
func TestConfigurationIsCopied(t *testing.T) {
	t.Parallel()
	config := (&eventAPI{}).config()
	limiter := flowcontrol.NewFakeAlwaysRateLimiter()
	config.RateLimiter, config.QPS, config.ContentType = limiter, 7, runtime.ContentTypeProtobuf
	if _, err := New(Config{Clusters: map[string]*rest.Config{"prod": config}}); err != nil {
		t.Fatal(err)
	}
	if config.RateLimiter != limiter || config.QPS != 7 || config.APIPath != "" || config.GroupVersion != nil ||
		config.ContentType != runtime.ContentTypeProtobuf || config.WarningHandlerWithContext != nil {
		t.Errorf("changed to %+v", config)
	}
}

// A namespace with very many refusals neither drops nor delays the refusals of others.
func TestNamespacesTakeTurns(t *testing.T) {
	withAPI(t, func(t *testing.T, api *eventAPI, p *Events) {
		for i := range 5 * eventQueue { // of which 512 wait
			p.Record(refusedEvent(func(e *exchange.Event) { e.Namespace, e.Pod.UID = "crowd", fmt.Sprint("uid-crowd-", i) }))
		}
		for i := range 3 {
			p.Record(refusedEvent(func(e *exchange.Event) { e.Namespace, e.Pod.UID = "quiet", fmt.Sprint("uid-", i) }))
		}
		go p.Run(t.Context())
		time.Sleep(time.Second)
		synctest.Wait()
		sent, quiet := len(api.writes), 0
		for range sent {
			if strings.Contains(<-api.writes, "/namespaces/quiet/") {
				quiet++
			}
		}
		if quiet != 3 || sent > 2*eventBurst || p.Counts()["prod"].Failed != 4*eventQueue+3 {
			t.Errorf("%d of 3 events of another namespace among %d, %v", quiet, sent, p.Counts())
		}
	})
}
