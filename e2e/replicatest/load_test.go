package replicatest

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/testenv"
)

// The load of one fleet, a second. Requests begin when they are due, however long those before them take.
const (
	podsRate     = 15 // each pulls so often:
	pullsOfPod   = 3
	knownRate    = 10
	foreignRate  = 5
	revokedRate  = 5
	replayedRate = 5
	forgedRate   = 5
	greedyRate   = 40
	stolenOneIn  = 4 // of the pods

	accounts    = 400 // of the pods
	nodes       = 20
	knownTokens = 10

	// betweenRequests is what a runtime needs for the question to the registry between the two requests of a pull.
	betweenRequests = 50 * time.Millisecond
	retryAfter      = 2 * time.Second // a kubelet begins with ten seconds
	requestLimit    = 10 * time.Second
	sampleOneIn     = 10 // of the granted tokens of a kind is shown to the registry
)

// How often each kind of request is answered in each phase of a scenario: enough that a wrong grant would show.
const (
	answersOfKind = 8
	answersGreedy = 60 // more than its limit allows until then
	// answersGreedyAlone is likewise, where each replica has a limit of its own because Redis does not answer.
	answersGreedyAlone = 160
	answersLimit       = time.Minute // on a machine that is busy
)

// kind is the purpose of a request.
type kind string

const (
	kindPull     kind = "pull"     // pods, each with a token that no replica has seen
	kindKnown    kind = "known"    // tokens that every replica has seen, from their owners
	kindForeign  kind = "foreign"  // a repository of another team
	kindRevoked  kind = "revoked"  // ServiceAccounts that were revoked
	kindReplayed kind = "replayed" // known tokens, from elsewhere
	kindStolen   kind = "stolen"   // the tokens of pods, from elsewhere
	kindForged   kind = "forged"   // a signature of another token
	kindGreedy   kind = "greedy"   // more requests than the limit of its ServiceAccount allows
	kindProbe    kind = "probe"    // of the test itself
)

// answer is what became of a request.
type answer struct {
	kind   kind
	due    time.Time
	took   time.Duration
	status int // 0: there was none, because of err
	err    error
	access []access
	token  string
	first  time.Time // when the token that was stolen was granted for first
}

type access struct {
	Type    string   `json:"type"`
	Name    string   `json:"name"`
	Actions []string `json:"actions"`
}

// load asks a fleet for tokens.
type load struct {
	f       *fleet
	running sync.WaitGroup
	tls     *tls.Config
	owned   map[kind][]*owned

	mu       sync.Mutex
	asking   map[int]time.Time // since when
	asked    int
	answers  []answer // not judged yet
	faults   []string // of other things than answers
	revoked  []string // tokens of ServiceAccounts that are revoked
	pods     map[int]time.Time
	sampled  map[kind]int
	accepted int // manifests that the registry gave
	refused  int // and those that it refused, as it must
}

// owned is a token that is always used by the same node, over one connection.
type owned struct {
	token   string
	address string
	mu      sync.Mutex // see pullpass.Host
	client  *http.Client
}

// startLoad runs the load until the test ends.
func (f *fleet) startLoad(t *testing.T) {
	t.Helper()
	l := &load{f: f, tls: &tls.Config{RootCAs: f.ca.Pool()}, owned: map[kind][]*owned{}, asking: map[int]time.Time{}, pods: map[int]time.Time{}, sampled: map[kind]int{}}
	f.load = l
	for kind, count := range map[kind]int{kindKnown: knownTokens, kindForeign: 2, kindGreedy: 4} {
		token := ""
		for i := range count {
			if kind != kindGreedy || token == "" { // there, several connections share one
				token = f.issuer.Token(t, service, f.mode, fmt.Sprintf("%s-%d", kind, i))
			}
			address := l.node(i)
			if kind == kindGreedy {
				address = l.node(0)
			}
			client := l.client(address, true)
			t.Cleanup(client.CloseIdleConnections)
			l.owned[kind] = append(l.owned[kind], &owned{token: token, address: address, client: client})
			for _, replica := range f.replicas {
				replica.NeverLog(token)
			}
		}
	}
	l.introduce(t) // before anybody else presents them
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(l.running.Wait)
	t.Cleanup(cancel)
	l.stream(ctx, podsRate, l.pod)
	for kind, rate := range map[kind]int{kindKnown: knownRate, kindForeign: foreignRate, kindGreedy: greedyRate} {
		l.stream(ctx, rate, func(ctx context.Context, n int, due time.Time) { l.askOwned(ctx, kind, n, due) })
	}
	l.stream(ctx, replayedRate, func(ctx context.Context, n int, due time.Time) {
		l.once(ctx, kindReplayed, due, l.thief(n), l.owned[kindKnown][n%knownTokens].token)
	})
	l.stream(ctx, forgedRate, func(ctx context.Context, n int, due time.Time) {
		claims, signature := l.owned[kindKnown][n%knownTokens].token, l.owned[kindForeign][0].token
		forged := claims[:strings.LastIndex(claims, ".")] + signature[strings.LastIndex(signature, "."):]
		l.once(ctx, kindForged, due, l.thief(n), forged)
	})
	l.stream(ctx, revokedRate, func(ctx context.Context, n int, due time.Time) {
		l.mu.Lock()
		tokens := slices.Clone(l.revoked)
		l.mu.Unlock()
		if len(tokens) > 0 {
			l.once(ctx, kindRevoked, due, l.node(0), tokens[n%len(tokens)])
		}
	})
}

// stream calls do at a rate.
func (l *load) stream(ctx context.Context, rate int, do func(ctx context.Context, n int, due time.Time)) {
	begin := time.Now()
	l.running.Go(func() {
		for n := 0; ; n++ {
			due := begin.Add(time.Duration(n) * time.Second / time.Duration(rate))
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Until(due)):
			}
			l.running.Go(func() { do(ctx, n, due) })
		}
	})
}

// node is the address of a node, and thief one that has no business with any token.
func (l *load) node(n int) string  { return fmt.Sprintf("127.0.%d.%d", l.network(), 1+n%nodes) }
func (l *load) thief(n int) string { return fmt.Sprintf("127.0.%d.%d", l.network()+100, 1+n%nodes) }

func (l *load) network() int {
	if l.f.mode == audit {
		return 1
	}
	return 2
}

// client asks from an address, as containerd does: over HTTP/1.1.
func (l *load) client(address string, keep bool) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	return &http.Client{Timeout: requestLimit, Transport: &http.Transport{DialContext: dialer.DialContext, TLSClientConfig: l.tls, DisableKeepAlives: !keep}}
}

// pod pulls its images, and tries again until all of them are there, as a kubelet does.
func (l *load) pod(ctx context.Context, n int, due time.Time) {
	token, err := l.f.issuer.TryToken(service, l.f.mode, fmt.Sprintf("puller-%d", n%accounts))
	if err != nil {
		l.fault("a token of the issuer: %v", err)
		return
	}
	l.mu.Lock()
	l.pods[n] = due
	l.mu.Unlock()
	var first time.Time
	for range pullsOfPod {
		for {
			granted := l.pull(ctx, due, l.node(n), token)
			if granted && first.IsZero() {
				first = time.Now()
			}
			if granted {
				break
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(retryAfter):
			}
			due = time.Now()
		}
		due = time.Now()
	}
	l.mu.Lock()
	delete(l.pods, n)
	l.mu.Unlock()
	if n%stolenOneIn == 0 {
		client := l.client(l.thief(n), false)
		a := l.ask(ctx, client, kindStolen, time.Now(), token, l.f.mode+"/app")
		a.first = first
		l.note(ctx, a)
	}
}

// pull asks twice for the same, over a connection of its own.
func (l *load) pull(ctx context.Context, due time.Time, address, token string) bool {
	client := l.client(address, true)
	defer client.CloseIdleConnections()
	for i := range 2 {
		if i > 0 {
			time.Sleep(betweenRequests)
			due = time.Now()
		}
		a := l.ask(ctx, client, kindPull, due, token, l.f.mode+"/app")
		l.note(ctx, a)
		if a.status != http.StatusOK {
			return false
		}
	}
	return true
}

// askOwned asks over the connection of a token, unless that is in use: what is late must not come all at once in the end.
func (l *load) askOwned(ctx context.Context, kind kind, n int, due time.Time) {
	o := l.owned[kind][n%len(l.owned[kind])]
	if !o.mu.TryLock() {
		return
	}
	defer o.mu.Unlock()
	repository := l.f.mode + "/app"
	if kind == kindForeign {
		repository = elsewhere + "/app"
	}
	l.note(ctx, l.ask(ctx, o.client, kind, due, o.token, repository))
}

func (l *load) once(ctx context.Context, kind kind, due time.Time, address, token string) {
	l.note(ctx, l.ask(ctx, l.client(address, false), kind, due, token, l.f.mode+"/app"))
}

// introduce presents the tokens that are known to every replica.
func (l *load) introduce(t *testing.T) {
	t.Helper()
	for _, kind := range []kind{kindKnown, kindForeign, kindGreedy} {
		for _, o := range l.owned[kind] {
			client := l.client(o.address, false)
			for _, replica := range l.f.replicas {
				testenv.Await(t, recoverLimit, "a token is introduced", func() bool {
					a := l.askAt(t.Context(), client, replica.URL, kindProbe, o.token, l.f.mode+"/app")
					return a.status == http.StatusOK || a.status == http.StatusTooManyRequests // which comes after the owner
				})
			}
		}
	}
}

// ask asks the load balancer.
func (l *load) ask(ctx context.Context, client *http.Client, kind kind, due time.Time, token, repository string) answer {
	l.mu.Lock()
	n := l.asked
	l.asked++
	l.asking[n] = time.Now()
	l.mu.Unlock()
	a := l.askAt(ctx, client, l.f.url(l.f.mode), kind, token, repository)
	a.due, a.took = due, time.Since(due)
	l.mu.Lock()
	delete(l.asking, n)
	l.mu.Unlock()
	return a
}

// isAsking reports whether something is not answered that was asked before a time.
func (l *load) isAsking(before time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, since := range l.asking {
		if since.Before(before) {
			return true
		}
	}
	return false
}

// awaitAnswers waits until every kind of request that was due after a time is answered often enough to judge the phase. silent
// is that of the scenario: then no client may get the token that would be stolen.
func (l *load) awaitAnswers(t *testing.T, since time.Time, silent bool) {
	t.Helper()
	missing := map[kind]int{}
	if !testenv.Poll(answersLimit, func() bool {
		for _, kind := range []kind{kindPull, kindKnown, kindForeign, kindRevoked, kindReplayed, kindForged} {
			missing[kind] = answersOfKind
		}
		missing[kindGreedy] = answersGreedy
		if silent {
			missing[kindGreedy] = answersGreedyAlone
		} else {
			missing[kindStolen] = 1
		}
		l.mu.Lock()
		for _, a := range l.answers {
			if a.due.After(since) {
				if missing[a.kind]--; missing[a.kind] <= 0 {
					delete(missing, a.kind)
				}
			}
		}
		l.mu.Unlock()
		return len(missing) == 0
	}) {
		t.Fatalf("%s: after %v, responses are missing: %v", l.f.mode, answersLimit, missing)
	}
}

// askAt asks as containerd does.
func (l *load) askAt(ctx context.Context, client *http.Client, at string, kind kind, token, repository string) (a answer) {
	a.kind = kind
	form := url.Values{
		"grant_type": {"password"}, "client_id": {"containerd-client"}, "username": {"serviceaccount"},
		"service": {service}, "scope": {"repository:" + repository + ":pull"}, "password": {token},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at+"/token", strings.NewReader(form.Encode()))
	if err != nil {
		a.err = err
		return a
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("User-Agent", "load/"+string(kind))
	resp, err := client.Do(req)
	if err != nil {
		a.err = err
		return a
	}
	defer resp.Body.Close()
	var body struct {
		Token string `json:"access_token"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
		a.err = err
		return a
	}
	a.status, a.token = resp.StatusCode, body.Token
	if a.status == http.StatusOK {
		a.access, a.err = accessOf(body.Token)
	}
	return a
}

// accessOf is what a token is for.
func accessOf(token string) ([]access, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil, errors.New("the grant has an invalid token")
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return nil, err
	}
	var claims struct {
		Access []access `json:"access"`
	}
	return claims.Access, json.Unmarshal(payload, &claims)
}

// note keeps an answer, and shows some of the tokens to the registry. Requests that end with the load say nothing.
func (l *load) note(ctx context.Context, a answer) {
	if ctx.Err() != nil {
		return
	}
	l.mu.Lock()
	l.answers = append(l.answers, a)
	show := false
	if a.status == http.StatusOK {
		show = l.sampled[a.kind]%sampleOneIn == 0 // the first of each kind, so that none goes unseen in a short load
		l.sampled[a.kind]++
	}
	l.mu.Unlock()
	if show {
		l.show(ctx, a)
	}
}

// show asks the registry for a manifest with a token.
func (l *load) show(ctx context.Context, a answer) {
	namespace, want, count := l.f.mode, http.StatusOK, &l.accepted
	if a.kind == kindForeign {
		namespace, want, count = elsewhere, http.StatusUnauthorized, &l.refused
	}
	path := "https://" + l.f.registry.Host + "/v2/" + namespace + "/" + strings.Replace(image, ":", "/manifests/", 1)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	if err != nil {
		l.fault("%v", err)
		return
	}
	req.Header.Set("Authorization", "Bearer "+a.token)
	req.Header.Set("Accept", "application/vnd.docker.distribution.manifest.v2+json")
	client := l.client(l.node(0), false)
	resp, err := client.Do(req)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		l.fault("the registry: %v", err)
		return
	}
	defer resp.Body.Close()
	content, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != want {
		l.fault("%s with a token for %s: %s, want %d: %s", path, a.kind, resp.Status, want, content)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	*count++
}

func (l *load) fault(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults = append(l.faults, fmt.Sprintf(format, args...))
}

// take returns what was seen since the last call.
func (l *load) take() ([]answer, []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	answers, faults := l.answers, l.faults
	l.answers, l.faults = nil, nil
	return answers, faults
}

// pulling counts the pods that began before a time and have not finished.
func (l *load) pulling(before time.Time) (count int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, began := range l.pods {
		if began.Before(before) {
			count++
		}
	}
	return count
}
