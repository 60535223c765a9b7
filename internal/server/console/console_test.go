package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/server/explain"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// newPage returns a page before a policy, and its log, which notes what note is given.
func newPage(t *testing.T, hosts ...string) (*Handler, func(...*exchange.Event)) {
	t.Helper()
	dir := t.TempDir()
	testkit.Write(t, dir, "policy.yaml", `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- {name: own, subjects: [{namespaces: ["team-*"]}], allow: [{repositories: ["{namespace}/**"], actions: [pull]}]}
deny:
- {name: bad, subjects: [{namespaces: [team-bad]}]}
`)
	testkit.Write(t, dir, "accounts.yaml", `
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: ServiceAccount, metadata: {name: web, namespace: team-a, uid: u1}}
`)
	cfg := testkit.Value(config.Parse([]byte(`
apiVersion: pullpass.dev/v1beta1
kind: ProxyConfiguration
clusters:
- {name: prod-eu, issuer: "https://oidc.example.com", audiences: [registry.example.com], kubernetes: {manifestFiles: [accounts.yaml]}}
registries: [{service: registry.example.com, issuer: pullpass.example.com}]
policyFiles: [policy.yaml]
`), filepath.Join(dir, "pullpass.yaml"), dir))(t)
	known := testkit.Value(explain.Open(cfg, t.Output()))(t)
	log := NewLog(LogConfig{})
	h := testkit.Value(New(Config{
		Log: log, Known: func() explain.Known { return known }, Hosts: hosts, Logger: log.config.Logger,
		Health: func() []Group {
			return []Group{{"issuers", []Check{{"prod-eu", "cannot <b>fetch</b>", false}, {"prod-us", "", true}}}}
		},
	}))(t)
	return h, func(events ...*exchange.Event) {
		log.mu.Lock()
		defer log.mu.Unlock()
		for _, e := range events {
			log.load.add(e)
			log.note(e)
		}
	}
}

func get(h http.Handler, target string, change ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	r.Host, r.RemoteAddr = "localhost:9090", "127.0.0.1:40000"
	for _, c := range change {
		c(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func event(id string, at time.Time) *exchange.Event {
	return &exchange.Event{
		Time: at, ID: id, Result: exchange.ResultGranted, Status: 200, Cluster: "prod-eu", Namespace: "team-a", ServiceAccount: &exchange.Object{Name: "web", UID: "u1"},
		Pod: &exchange.Object{Name: "web-1", UID: "p1"}, Node: &exchange.Object{Name: "n1", UID: "n1"}, GrantType: "basic", Service: "registry.example.com",
		Requested: []string{"repository:team-a/web:pull"}, Granted: []string{"repository:team-a/web:pull"}, Rule: "own", Latency: 0.002,
	}
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// Callers from other machines, or from another page, are refused.
func TestWhoIsAnswered(t *testing.T) {
	t.Parallel()
	h, _ := newPage(t, "console.example.com")
	for name, test := range map[string]struct {
		change func(*http.Request)
		status int
	}{
		"port-forward":                   {func(*http.Request) {}, 200},
		"address":                        {func(r *http.Request) { r.Host = "127.0.0.1:9090" }, 200},
		"IPv6":                           {func(r *http.Request) { r.Host, r.RemoteAddr = "[::1]:9090", "[::1]:4000" }, 200},
		"DNS rebinding":                  {func(r *http.Request) { r.Host = "evil.example.com:9090" }, 403},
		"a name that begins like it":     {func(r *http.Request) { r.Host = "localhost.evil.example.com" }, 403},
		"no host":                        {func(r *http.Request) { r.Host = "" }, 403},
		"a pod that writes localhost":    {func(r *http.Request) { r.RemoteAddr = "10.1.2.3:4000" }, 403},
		"another address of loopback":    {func(r *http.Request) { r.RemoteAddr = "127.0.0.6:4000" }, 403},
		"a proxy of a mesh":              {func(r *http.Request) { r.Header.Set("X-Forwarded-Proto", "http") }, 403},
		"a proxy that names its caller":  {func(r *http.Request) { r.Header.Set("X-Real-IP", "192.0.2.1") }, 403},
		"a proxy that is honest":         {func(r *http.Request) { r.Header.Set("Via", "1.1 proxy") }, 403},
		"configured host, by a proxy":    {func(r *http.Request) { r.Host = "console.example.com"; r.Header.Set("X-Forwarded-For", "10.1.2.3") }, 200},
		"configured host":                {func(r *http.Request) { r.Host, r.RemoteAddr = "console.example.com", "10.1.2.3:4000" }, 200},
		"configured host, upper case":    {func(r *http.Request) { r.Host, r.RemoteAddr = "Console.example.com:443", "10.1.2.3:4000" }, 200},
		"its own origin":                 {func(r *http.Request) { r.Header.Set("Origin", "http://localhost:9090") }, 200},
		"another origin":                 {func(r *http.Request) { r.Header.Set("Origin", "https://evil.example.com") }, 403},
		"another port of localhost":      {func(r *http.Request) { r.Header.Set("Origin", "http://localhost:8000") }, 403},
		"no origin at all":               {func(r *http.Request) { r.Header.Set("Origin", "null") }, 403},
		"a link of another page":         {func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, 403},
		"a page of a neighbour":          {func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") }, 403},
		"typed by a user":                {func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "none") }, 200},
		"its own script":                 {func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-origin") }, 200},
		"no more than the header":        {func(r *http.Request) { r.Method = http.MethodHead }, 200},
		"a change":                       {func(r *http.Request) { r.Method = http.MethodPost }, 405},
		"a change, by a method of DAV":   {func(r *http.Request) { r.Method = "PROPPATCH" }, 405},
		"a page that is not there":       {func(r *http.Request) { r.URL.Path = "/console/other" }, 404},
		"a file that is not to be shown": {func(r *http.Request) { r.URL.Path = "/console/../templates/line.html" }, 404},
	} {
		w := get(h, "/console/", test.change)
		if w.Code != test.status {
			t.Errorf("%s: status %d, want %d: %s", name, w.Code, test.status, w.Body)
		}
		if csp := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'; ") || !strings.Contains(csp, "frame-ancestors 'none'") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: Content-Security-Policy %q", name, csp)
		}
		if w.Code == 403 && strings.Contains(w.Body.String(), "<") {
			t.Errorf("%s: %s", name, w.Body)
		}
	}
}

// Values of clients are text on every page.
func TestTextStaysText(t *testing.T) {
	t.Parallel()
	h, note := newPage(t)
	const evil = `"><script>alert(1)</script><img src=x onerror=alert(1)>`
	e := event("evil", noon)
	e.Client, e.Message, e.Reason, e.Account, e.Requested = evil, evil, evil, evil, append(e.Requested, evil)
	e.Pod.Name, e.ServiceAccount.Name, e.Result = evil, evil, exchange.Result(evil)
	e.ID = evil
	note(e)
	for _, target := range []string{
		"/console/", "/console/?pod=" + url.QueryEscape(evil), "/console/line?id=" + url.QueryEscape(evil), "/console/who?action=pull&repository=" + url.QueryEscape(evil),
		"/console/who?repository=a&action=" + url.QueryEscape(evil), "/console/reach?account=" + url.QueryEscape(evil), "/console/health",
		"/console/who?repository=a&action=pull&service=" + url.QueryEscape(evil),
	} {
		body := get(h, target).Body.String()
		if strings.Contains(body, "<script>alert") || strings.Contains(body, "<img") || strings.Contains(body, "<b>") {
			t.Errorf("%s: %s", target, body)
		}
		if strings.Contains(body, "ZgotmplZ") {
			t.Errorf("%s: a value stands where html/template lets none", target)
		}
	}
	if body := get(h, "/console/").Body.String(); !strings.Contains(body, "&lt;script&gt;alert(1)") {
		t.Errorf("what was written is not shown: %s", body)
	}
	w := get(h, "/console/rows.json")
	if strings.Contains(w.Body.String(), "<script") || w.Header().Get("Content-Type") != "application/json" || w.Header().Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%v %s", w.Header(), w.Body)
	}
}

func TestSearch(t *testing.T) {
	t.Parallel()
	h, note := newPage(t)
	refused := event("refused", noon.Add(time.Second))
	refused.Result, refused.Status, refused.Reason, refused.Pod, refused.Namespace = exchange.ResultRefused, 403, "denied", nil, "team-bad"
	claimed := &exchange.Event{Time: noon.Add(2 * time.Second), ID: "claimed", Result: exchange.ResultRefused, Status: 401, Reason: "token_expired", Cluster: "prod-eu",
		Claimed: &exchange.Claimed{Subject: "system:serviceaccount:team-c:api", Pod: "api-1"}}
	passed := event("passed", noon.Add(3*time.Second))
	passed.Requested, passed.Gateway = nil, &exchange.GatewayRequest{Method: "GET", Repository: "ghcr.io/acme/app"}
	passed.Granted = nil
	passed.Trial = &exchange.Trial{Result: exchange.ResultRefused, Rule: "closed", Reason: "subject_denied"}
	note(event("granted", noon), refused, claimed, passed)
	for search, want := range map[string]string{
		"":                               "passed claimed refused granted",
		"pod=web-1":                      "passed granted",
		"pod=API":                        "claimed",
		"account=team-a%2Fweb":           "passed granted",
		"account=prod-eu%2Fteam-c%2Fapi": "claimed",
		"repository=team-a/":             "refused granted",
		"repository=acme":                "passed",
		"reason=denied":                  "refused",
		"result=refused":                 "claimed refused",
		"result=refus":                   "",
		"result=trial":                   "passed",
		"pod=web&reason=denied":          "",
	} {
		var answer found
		testkit.Must(t, json.Unmarshal(get(h, "/console/rows.json?"+search).Body.Bytes(), &answer))
		var got []string
		for _, r := range answer.Rows {
			got = append(got, r.ID)
		}
		if strings.Join(got, " ") != want || answer.Total != len(got) {
			t.Errorf("%s: %q of %d, want %q", search, got, answer.Total, want)
		}
	}
}

// The decision on a manifest leads to its other pushes and pulls.
func TestImageIsTraced(t *testing.T) {
	t.Parallel()
	h, note := newPage(t)
	sum := "sha256:" + strings.Repeat("1", 64)
	pushed, pulled, other := event("pushed", noon), event("pulled", noon.Add(time.Second)), event("other", noon.Add(2*time.Second))
	pushed.ServiceAccount, pushed.Identity = nil, &exchange.Identity{Name: "github", Run: "1001"}
	pushed.Gateway = &exchange.GatewayRequest{Method: "PUT", Kind: "manifest", Repository: "ghcr.io/acme/app", Reference: "v1", Digest: sum}
	pulled.Gateway = &exchange.GatewayRequest{Method: "GET", Kind: "manifest", Repository: "ghcr.io/acme/app", Reference: "v1", Digest: sum}
	other.Gateway = &exchange.GatewayRequest{Method: "GET", Kind: "blob", Repository: "ghcr.io/acme/app", Reference: sum}
	elsewhere := event("elsewhere", noon.Add(3*time.Second)) // a repository of the same name
	elsewhere.Service, elsewhere.Granted, elsewhere.Pod.Name = "other.example.com", []string{"repository:ghcr.io/acme/app:pull"}, "elsewhere-0"
	note(pushed, pulled, other, elsewhere)
	if body := get(h, "/console/line?id=pulled").Body.String(); strings.Contains(body, "elsewhere-0") {
		t.Error(body)
	}
	if body := get(h, "/console/line?id=pulled").Body.String(); !strings.Contains(body, "github  1001  registry.example.com  ghcr.io/acme/app  "+sum+"  v1") || !strings.Contains(body, "prod-eu/team-a/web  web-1  n1    registry.example.com  ghcr.io/acme/app  "+sum) {
		t.Error(body)
	}
	if body := get(h, "/console/line?id=other").Body.String(); strings.Contains(body, "Who pushed") {
		t.Error(body)
	}
}

// The page of the policy says what each rule means, and how it is used.
func TestPolicyIsDescribed(t *testing.T) {
	t.Parallel()
	h, note := newPage(t)
	denied, tried := event("denied", noon.Add(time.Second)), event("tried", noon.Add(2*time.Second))
	denied.Rule, denied.Result, denied.Granted = "bad", exchange.ResultRefused, nil
	tried.Trial = &exchange.Trial{Result: exchange.ResultNone}
	note(event("granted", noon), denied, tried)
	body := get(h, "/console/policy").Body.String()
	for _, want := range []string{
		`<tr><th scope="row">own</th><td>All ServiceAccounts in namespace team-* may pull {namespace}/**.</td><td>2</td><td>2026-03-01 12:00:02</td>`,
		`<tr><th scope="row">bad</th><td>All ServiceAccounts in namespace team-bad get no token, even if a rule allows access.</td><td>1</td><td>2026-03-01 12:00:01</td>`,
		"would have granted more to 0 requests, and less to 1", "since 2026-03-01 12:00:00 UTC",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("without %s:\n%s", want, body)
		}
	}
	if strings.Contains(body, "Without effect") {
		t.Errorf("nothing is shadowed: %s", body)
	}
}

func TestDecisionIsExplained(t *testing.T) {
	t.Parallel()
	h, note := newPage(t)
	note(event("granted", noon))
	body := get(h, "/console/line?id=granted").Body.String()
	for _, want := range []string{"changed      nothing: the same would be decided", "GRANTED: pull", "own (", "&#34;id&#34;: &#34;granted&#34;"} {
		if !strings.Contains(body, want) {
			t.Errorf("without %q: %s", want, body)
		}
	}
	if w := get(h, "/console/line?id=other"); w.Code != 404 || !strings.Contains(w.Body.String(), "the audit log has it") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	nobody := event("nobody", noon)
	nobody.GrantType = ""
	note(nobody)
	if body := get(h, "/console/line?id=nobody").Body.String(); !strings.Contains(body, `role="alert">it was not a token request`) {
		t.Error(body)
	}
}

func TestQuestions(t *testing.T) {
	t.Parallel()
	h, _ := newPage(t)
	for target, wants := range map[string][]string{
		"/console/who": {`name="repository"`},
		"/console/who?action=pull&repository=team-a/web":  {"{namespace}/**", "{namespace} is team-a", "namespaces team-bad", "1 of 1", "/console/reach?account=prod-eu%2Fteam-a%2Fweb"},
		"/console/who?action=pull&repository=other/web":   {"0 of 1"},
		"/console/who?action=pull&repository=Team":        {`role="alert">&#34;Team&#34; is not the name of a repository`},
		"/console/who?action=pull&repository=a&service=x": {`role="alert">`},
		"/console/reach?account=prod-eu%2Fteam-a%2Fweb":   {"<code>team-a/**</code>: pull"},
		"/console/reach?account=prod-eu%2Fteam-bad%2Fweb": {"the deny rule bad refuses it"},
		"/console/reach?account=other":                    {`role="alert">&#34;other&#34; is not CLUSTER`},
		"/console/health":                                 {"does not work", "cannot &lt;b&gt;fetch", "0 granted, 0 refused, 0 failed"},
	} {
		body := get(h, target).Body.String()
		for _, want := range wants {
			if !strings.Contains(body, want) {
				t.Errorf("%s: without %q: %s", target, want, body)
			}
		}
	}
	for range maxAsking {
		h.asking <- struct{}{}
	}
	if body := get(h, "/console/who?action=pull&repository=a").Body.String(); !strings.Contains(body, "too many questions at once") {
		t.Error(body)
	}
}

// Programs get what the commands print, and the cluster that they do not know by name.
func TestAnswers(t *testing.T) {
	t.Parallel()
	h, note := newPage(t)
	refused := event("refused", noon)
	refused.Result, refused.Granted, refused.Requested = exchange.ResultNone, nil, []string{"repository:other/web:pull"}
	other := event("other", noon.Add(2*time.Second))
	other.Pod = &exchange.Object{Name: "web-1", UID: "p2"}
	note(refused, event("granted", noon.Add(time.Second)), other)
	for target, want := range map[string]struct {
		status               int
		answer, text, wanted string
	}{
		"explain.json?as=team-a/web&scope=repository:team-a/web:pull":        {200, `"result":"granted"`, "GRANTED: pull", ""},
		"explain.json?as=prod-eu/team-a/web&scope=repository:other/web:pull": {200, `"result":"none"`, "now          none 200", ""},
		"explain.json?as=team-a/web&scope=x":                                 {422, "", "", "--scope"},
		"explain.json?as=web":                                                {422, "", "", "is not CLUSTER/NAMESPACE/SERVICEACCOUNT"},
		"explain.json?as=team-a/web&service=x":                               {422, "", "", "is not configured"},
		"pod.json?uid=p1":                                                    {200, `"id":"refused"`, "team-a/web", ""},
		"pod.json?uid=p2":                                                    {200, `"id":"other"`, "nothing: the same would be decided", ""},
		"pod.json?uid=p3":                                                    {404, "", "", "no decision about this pod is remembered"},
		"pod.json":                                                           {404, "", "", "no decision about this pod is remembered"},
		"who.json?action=pull&repository=team-a/web":                         {200, `"kind":"WhoCan"`, "1 of 1 ServiceAccounts", ""},
		"who.json?action=eat&repository=team-a/web":                          {422, "", "", "is not an action"},
		"reach.json?account=team-a/web":                                      {200, `"serviceAccount":"prod-eu/team-a/web"`, "team-a/**: pull", ""},
		"reach.json?account=prod-us/team-a/web":                              {422, "", "", "prod-us"},
		"explain.json?as=team-bad/web&scope=repository:team-bad/web:pull":    {200, `"reason":"subject_denied"`, "now          refused 403", ""},
	} {
		var answer Answer
		w := get(h, "/console/"+target)
		testkit.Must(t, json.Unmarshal(w.Body.Bytes(), &answer))
		if w.Code != want.status || !strings.Contains(string(answer.Answer), want.answer) || !strings.Contains(answer.Text, want.text) || !strings.Contains(answer.Problem, want.wanted) || (want.wanted == "") != (answer.Problem == "") {
			t.Errorf("%s: %d %s", target, w.Code, w.Body)
		}
	}
	if w := get(h, "/console/who.json", func(r *http.Request) { r.RemoteAddr = "10.1.2.3:4000" }); w.Code != 403 {
		t.Errorf("a caller of another machine: %d", w.Code)
	}
}

// Among several clusters, the caller means the one that Pullpass runs in.
func TestAccountOfOwnCluster(t *testing.T) {
	t.Parallel()
	known := explain.Known{Config: &config.Config{Clusters: []config.Cluster{{Name: "a"}, {Name: "b"}}}}
	if got, err := account(known, "team-a/web"); err == nil || !strings.Contains(err.Error(), `CLUSTER/team-a/web with one of the clusters ["a" "b"]`) {
		t.Errorf("%q, %v", got, err)
	}
	known.Config.Clusters[1].Kubernetes.InCluster = true
	if got, err := account(known, "team-a/web"); got != "b/team-a/web" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// A page of ten thousand decisions is as small as one of a hundred, and as quick.
func TestManyDecisions(t *testing.T) {
	t.Parallel()
	h, note := newPage(t)
	for i := range maxEvents + 500 {
		note(event(fmt.Sprint("id-", i), noon.Add(time.Duration(i)*time.Millisecond)))
	}
	begin := time.Now()
	const times = 20
	for range times {
		body := get(h, "/console/?page=3").Body.String()
		if rows := strings.Count(body, "<tr data-id="); rows != pageRows || len(body) > 100<<10 || !strings.Contains(body, fmt.Sprint("id-", maxEvents+500-1-2*pageRows, `"`)) || !strings.Contains(body, "page=4") {
			t.Fatalf("%d rows, %d bytes", rows, len(body))
		}
	}
	if took := time.Since(begin) / times; took > time.Second {
		t.Errorf("a page takes %v", took)
	}
	if body := get(h, "/console/?page=99999999999999999999").Body.String(); strings.Contains(body, "<tr data-id=") || strings.Contains(body, `rel="next"`) {
		t.Error("after the last page, there are more")
	}
}

// Memory is bounded, and Record never waits.
func TestLogIsBounded(t *testing.T) {
	t.Parallel()
	log := NewLog(LogConfig{})
	for range maxQueue + 7 { // the queue has no reader
		log.Record(event("x", noon))
	}
	if dropped := log.dropped.Load(); dropped != 7 {
		t.Errorf("%d were dropped", dropped)
	}
	long := strings.Repeat("x", 1<<20)
	for i := range 100 {
		e := event(fmt.Sprint(i), noon)
		e.Message = long
		log.note(e)
		log.note(e) // known
	}
	newest := log.newest(&query{})
	if len(newest) != 11 || len(log.known) != 11 || log.bytes > maxBytes || newest[0].ID != "99" {
		t.Errorf("%d are kept, %d bytes", len(newest), log.bytes)
	}
}

// A holder with frequent requests loses only its own decisions.
func TestHoldersShareTheLog(t *testing.T) {
	t.Parallel()
	log := NewLog(LogConfig{})
	few := []*exchange.Event{event("a", noon), event("b", noon.Add(time.Second)), event("c", noon.Add(2*time.Second))}
	few[1].Namespace = "team-b"
	few[2].ServiceAccount, few[2].Identity = nil, &exchange.Identity{Name: "ci", Project: "7"}
	for _, e := range few {
		log.note(e)
	}
	crowd := []func(*exchange.Event){
		func(e *exchange.Event) { e.Namespace = "crowd" },
		func(e *exchange.Event) {
			e.ServiceAccount, e.Identity = nil, &exchange.Identity{Name: "ci", Project: "8"}
		},
		func(e *exchange.Event) { e.ServiceAccount, e.Cluster, e.Namespace = nil, "", "" }, // not proven
	}
	for i := range 4 * maxEvents {
		e := event(fmt.Sprint(i), noon.Add(time.Minute))
		crowd[i%len(crowd)](e)
		log.note(e)
	}
	newest := log.newest(&query{})
	if len(newest) != len(log.known) || len(newest) < maxEvents/2 || len(newest) > maxEvents || log.bytes > maxBytes || log.largest.Len() != 6 {
		t.Errorf("%d events of %d holders, %d bytes", len(newest), log.largest.Len(), log.bytes)
	}
	for i, e := range few {
		if log.find(e.ID) != e || newest[len(newest)-1-i] != e {
			t.Errorf("%s is forgotten", e.ID)
		}
	}
	of := map[string]int{}
	for _, e := range newest {
		of[holderOf(e)]++
	}
	for name, n := range of {
		if n > 1 && (n < len(newest)/4 || n > len(newest)/2) {
			t.Errorf("%q has %d of %d", name, n, len(newest))
		}
	}
}

// A client that leaves the page says nothing about the other replicas.
func TestAbortedRequestMarksNobody(t *testing.T) {
	t.Parallel()
	redis := &shared{}
	log := NewLog(LogConfig{Shared: redis, MaxEntryBytes: 4096})
	text := testkit.Value(encode(event("of-another", noon), 4096))(t)
	redis.entries = [][]byte{text}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	log.fetch(ctx)
	if problem := log.failure.Load(); problem != nil && *problem != "" || log.find("of-another") == nil {
		t.Errorf("after a request that was aborted: %v", problem)
	}
}

// shared is the memory of all replicas.
type shared struct {
	mu      sync.Mutex
	entries [][]byte
	err     error
	asked   int
}

func (s *shared) AddDecisions(_ context.Context, entries [][]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.entries = append(s.entries, entries...)
	}
	return s.err
}

func (s *shared) Decisions(ctx context.Context, after string) ([][]byte, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return nil, "", ctx.Err()
	}
	s.asked++
	start := 0
	_, _ = fmt.Sscan(after, &start)
	return s.entries[start:], fmt.Sprint(len(s.entries)), s.err
}

// stalled does not answer before it is not asked any more.
type stalled struct {
	shared
	asked chan bool
}

func (s *stalled) AddDecisions(ctx context.Context, _ [][]byte) error {
	close(s.asked)
	<-ctx.Done()
	return ctx.Err()
}

// A shutdown while the replica sends to others is not a fault.
func TestShutdownWhileOthersAreTold(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		var logged bytes.Buffer
		others := &stalled{asked: make(chan bool)}
		log := NewLog(LogConfig{Shared: others, MaxEntryBytes: 4096, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan bool)
		go func() { log.Run(ctx); close(ended) }()
		log.Record(&exchange.Event{ID: "a"})
		<-others.asked
		stop()
		<-ended
		if logged.Len() > 0 || log.unsent.Load() > 0 {
			t.Errorf("%d unsent, and the log says %s", log.unsent.Load(), &logged)
		}
	})
}

func TestReplicasShareDecisions(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		redis := &shared{}
		one, two := NewLog(LogConfig{Shared: redis, MaxEntryBytes: 4096}), NewLog(LogConfig{Shared: redis, MaxEntryBytes: 4096})
		for _, log := range []*Log{one, two} {
			go log.Run(t.Context())
		}
		long := event("long", time.Now())
		long.Message, long.Client = strings.Repeat("m", 5000), strings.Repeat("c", 5000)
		one.Record(event("of-one", time.Now().Add(-time.Minute)))
		one.Record(long)
		two.Record(event("of-two", time.Now()))
		time.Sleep(3 * time.Second)
		synctest.Wait()
		for _, log := range []*Log{one, two} {
			log.fetch(t.Context())
			asked := redis.asked
			log.fetch(t.Context()) // at once again: no request is sent
			events := log.newest(&query{})
			if len(events) != 3 || events[2].ID != "of-one" || redis.asked != asked {
				t.Errorf("%d events, asked %d times", len(events), redis.asked-asked)
			}
		}
		if e := two.find("long"); e == nil || len(e.Message) != 300 || len(e.Client) != 100 || e.Pod == nil {
			t.Errorf("a long one: %+v", e)
		}
		for _, text := range redis.entries {
			if len(text) > 4096 {
				t.Errorf("an entry of %d bytes", len(text))
			}
		}
		redis.entries = append(redis.entries, []byte("garbage"), []byte(`{"id":""}`), []byte(`null`), []byte(`{"id":"strange","result":"x"}`))
		time.Sleep(time.Second)
		two.fetch(t.Context())
		if e := two.find("strange"); e == nil || len(two.known) != 4 {
			t.Errorf("%d after garbage", len(two.known))
		}
		for i := range maxBatch + 9 { // within a second
			one.Record(event(fmt.Sprint("many-", i), time.Now()))
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if unsent := one.unsent.Load(); unsent != 9 || one.find(fmt.Sprint("many-", maxBatch+8)) == nil {
			t.Errorf("of too many at once, %d were not sent", unsent)
		}
		redis.err = errors.New("redis is down")
		two.Record(event("later", time.Now()))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		two.fetch(t.Context())
		if problem := two.failure.Load(); problem == nil || *problem != "redis is down" || two.find("later") == nil || two.unsent.Load() != 1 {
			t.Error("without Redis, its own decisions are not shown")
		}
	})
}

// hangs is the memory of all replicas while Redis does not answer.
type hangs struct{}

func (hangs) AddDecisions(ctx context.Context, _ [][]byte) error {
	<-ctx.Done()
	return ctx.Err()
}

func (hangs) Decisions(ctx context.Context, _ string) ([][]byte, string, error) {
	<-ctx.Done()
	return nil, "", ctx.Err()
}

// While Redis hangs, no more waits for it than a batch under way, the next one and one second's, and the page is there.
func TestRedisHangs(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		log := NewLog(LogConfig{Shared: hangs{}, MaxEntryBytes: 4096})
		go log.Run(t.Context())
		const seconds = 10
		for second := range seconds {
			for i := range maxBatch {
				log.Record(event(fmt.Sprint(second, "-", i), time.Now()))
			}
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if unsent := log.unsent.Load(); unsent < (seconds-3)*maxBatch {
			t.Errorf("%d are not sent", unsent)
		}
		began := time.Now()
		log.fetch(t.Context())
		if took := time.Since(began); took != fetchTimeout {
			t.Errorf("a page waits for %v", took)
		}
	})
}

func TestPlots(t *testing.T) {
	t.Parallel()
	var l load
	for i := range 3 {
		l.add(event("", noon.Add(time.Duration(-i)*time.Minute)))
	}
	refused := event("", noon)
	refused.Result, refused.Latency = exchange.ResultRefused, 0.01
	l.add(refused)
	l.add(event("", noon.Add(-2*time.Hour)))
	failed := event("", noon)
	failed.Result = exchange.ResultUnavailable
	l.add(failed)
	all := plots(l.last(noon.Add(30 * time.Second)))
	if all[0].Summary != "3 granted, 1 refused, 1 failed" || all[0].Most != 3 || len(all[0].Bars) != 5 || all[1].Summary != "mean 3.6 ms, longest 10 ms" {
		t.Errorf("%+v", all)
	}
	for _, p := range all {
		for _, b := range p.Bars {
			if b.Y < 0 || b.Y+b.Height > plotHeight+1 || b.X+b.Width > minutes*plotStep {
				t.Errorf("%s: %+v", p.Title, b)
			}
		}
	}
	if all := plots(l.last(noon.Add(2 * time.Hour))); len(all[0].Bars) != 0 {
		t.Error("an hour later there are bars")
	}
}

func BenchmarkRecord(b *testing.B) {
	log := NewLog(LogConfig{})
	go log.Run(b.Context())
	e := event("x", noon)
	b.ReportAllocs()
	for b.Loop() {
		log.Record(e)
	}
}
