package upgradetest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	clients      = 3 // of each way
	pause        = 150 * time.Millisecond
	requestLimit = 20 * time.Second
	phaseLimit   = 2 * time.Minute // on a machine that is busy

	// pullsOfPhase of each way are the least that are under way in a phase, or the test fails.
	pullsOfPhase = 20
)

// way is how an image is pulled: from a registry that trusts Pullpass, or through the gateway.
type way struct{ name, base, repository string }

// load pulls all the time: each client begins with a new token and new connections, and tries nothing twice.
type load struct {
	*walk
	ways    []way
	stop    context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	pulls    map[string]int // that were complete, by way
	failures []string
}

func (w *walk) startLoad(t *testing.T, ways ...way) *load {
	t.Helper()
	ctx := t.Context()
	until, stop := context.WithCancel(ctx) // what is under way is finished
	l := &load{walk: w, ways: ways, stop: stop, pulls: map[string]int{}}
	for n, way := range ways {
		for client := range clients {
			l.running.Go(func() {
				for number := 0; until.Err() == nil; number++ {
					began := time.Now()
					err := l.pull(ctx, way, fmt.Sprintf("127.0.%d.%d", 10+n, 1+client), fmt.Sprintf("web-%d-%d", client, number%50))
					l.mu.Lock()
					if err != nil {
						l.failures = append(l.failures, fmt.Sprintf("%s %s: %v", began.Format("15:04:05.000"), way.name, err))
					} else {
						l.pulls[way.name]++
					}
					l.mu.Unlock()
					time.Sleep(pause)
				}
			})
		}
	}
	t.Cleanup(func() { stop(); l.running.Wait() })
	return l
}

// more waits for a number of complete pulls of each way.
func (l *load) more(t *testing.T, count int) {
	t.Helper()
	l.mu.Lock()
	before := map[string]int{}
	for _, way := range l.ways {
		before[way.name] = l.pulls[way.name]
	}
	l.mu.Unlock()
	testenv.Await(t, phaseLimit, fmt.Sprintf("%d more pulls", count), func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, way := range l.ways {
			if l.pulls[way.name] < before[way.name]+count {
				return false
			}
		}
		return true
	})
}

// finish ends the load. Not one pull may have failed.
func (l *load) finish(t *testing.T, phases int) {
	t.Helper()
	l.stop()
	l.running.Wait()
	for _, failure := range l.failures {
		t.Errorf("a pull failed: %s", failure)
	}
	for _, way := range l.ways {
		if l.pulls[way.name] < phases*pullsOfPhase {
			t.Errorf("%s: only %d pulls", way.name, l.pulls[way.name])
		}
		l.saw("pulls "+way.name, "%d, failed %d", l.pulls[way.name], len(l.failures))
	}
}

var challenged = regexp.MustCompile(`(\w+)="([^"]*)"`)

// pull does what containerd does: it asks, follows the challenge, and fetches the manifest and all that it names.
func (l *load) pull(ctx context.Context, way way, address, account string) error {
	password, err := l.issuer.TryToken(service, team, account)
	if err != nil {
		return err
	}
	c := l.client(address)
	defer c.CloseIdleConnections()
	manifest := way.base + "/v2/" + way.repository + "/manifests/" + tag
	a, err := c.do(ctx, http.MethodGet, manifest, "", nil)
	if err != nil || a.status != http.StatusUnauthorized {
		return fmt.Errorf("without a token: %w", unexpected(a, err))
	}
	challenge := map[string]string{}
	for _, parameter := range challenged.FindAllStringSubmatch(a.header.Get("WWW-Authenticate"), -1) {
		challenge[parameter[1]] = parameter[2]
	}
	bearer, err := c.token(ctx, challenge["realm"], password, challenge["scope"])
	if err != nil {
		return err
	}
	a, err = c.do(ctx, http.MethodGet, manifest, bearer, nil)
	if err != nil || a.status != http.StatusOK {
		return fmt.Errorf("the manifest: %w", unexpected(a, err))
	}
	var named struct {
		Config blob
		Layers []blob
	}
	if err := json.Unmarshal(a.body, &named); err != nil {
		return fmt.Errorf("the manifest %s: %w", a.body, err)
	}
	if len(named.Layers) == 0 {
		return fmt.Errorf("the manifest %s has no layers", a.body)
	}
	for _, blob := range append(named.Layers, named.Config) {
		a, err := c.do(ctx, http.MethodGet, way.base+"/v2/"+way.repository+"/blobs/"+blob.Digest, bearer, nil)
		if err != nil || a.status != http.StatusOK {
			return fmt.Errorf("the blob %s: %w", blob.Digest, unexpected(a, err))
		}
		if sum := sha256.Sum256(a.body); "sha256:"+hex.EncodeToString(sum[:]) != blob.Digest {
			return fmt.Errorf("the blob %s has %d other bytes", blob.Digest, len(a.body))
		}
	}
	return nil
}

type blob struct{ Digest string }

// client is a machine with connections of its own.
type client struct{ http.Client }

func (w *walk) client(address string) *client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	return &client{http.Client{Timeout: requestLimit, Transport: &http.Transport{DialContext: dialer.DialContext, TLSClientConfig: w.tls}}}
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

func unexpected(a answer, err error) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("%d %.500s", a.status, a.body)
}

// do sends one request. A form, if there is one, is its body.
func (c *client) do(ctx context.Context, method, address, bearer string, form url.Values) (a answer, err error) {
	return c.send(ctx, method, address, bearer, "application/x-www-form-urlencoded", form.Encode())
}

func (c *client) send(ctx context.Context, method, address, bearer, contentType, body string) (a answer, err error) {
	req, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(body))
	if err != nil {
		return a, err
	}
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	if body != "" {
		req.Header.Set("Content-Type", contentType)
	}
	req.Header.Set("Accept", "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json")
	resp, err := c.Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	a.status, a.header = resp.StatusCode, resp.Header
	a.body, err = io.ReadAll(resp.Body)
	return a, err
}

// token asks for a registry token as containerd does.
func (c *client) token(ctx context.Context, realm, password, scope string) (string, error) {
	a, err := c.do(ctx, http.MethodPost, realm, "", url.Values{
		"grant_type": {"password"}, "client_id": {"containerd-client"}, "username": {"user"}, "service": {service}, "scope": {scope}, "password": {password},
	})
	if err != nil || a.status != http.StatusOK {
		return "", fmt.Errorf("the token endpoint %s: %w", realm, unexpected(a, err))
	}
	var body struct {
		Token string `json:"access_token"`
	}
	return body.Token, json.Unmarshal(a.body, &body)
}
