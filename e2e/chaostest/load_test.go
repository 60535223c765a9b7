package chaostest

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/e2e/pullpass"
)

const (
	rate         = 30 // requests a second
	requestLimit = 8 * time.Second
	lifetime     = time.Hour // of the issuer's tokens
	short        = 30 * time.Second
	shortest     = time.Minute // clients take what they are granted for valid as long
	accounts     = 8           // of each namespace
	renewAfter   = 40 * time.Second
	noKey        = -1
)

// token is one of the issuer. The first lines do not change; the others are guarded by the lock of the world.
type token struct {
	text, account, namespace, address string
	pod                               string // its path in the API; empty: the first cluster has no API server
	key                               int
	issued, until                     time.Time

	granted   time.Time              // when its owner was granted something first
	known     map[*replica]time.Time // since when they know its owner, if that process still runs
	contested bool                   // another caller tried it when Redis may have forgotten its owner
}

// request is what is asked of a replica.
type request struct {
	kind, flaw string
	token      *token // nil: anonymous, or a token that is not one of the issuer's
	text       string
	key        int    // that its text names; noKey: none that is looked for
	namespace  string // of the caller; empty: none is known
	repository string // its first part
	address    string
	stolen     bool
	live       bool // of the second cluster
	get        bool
}

func (q request) String() string {
	account := ""
	if q.token != nil {
		account = q.token.account
	}
	return fmt.Sprintf("%s of %q for %s/app from %s", q.kind, account, q.repository, q.address)
}

type answer struct {
	status  int
	granted bool
	message string
	fault   string // of what was granted
	err     error
}

// load asks until its context ends. It has random numbers of its own, so that the faults of a seed stay the same.
type load struct {
	*world
	random *rand.Rand
	tokens map[string]*token
	before map[string]*token // the previous ones of accounts
	asking sync.WaitGroup

	findings []string
	requests int
	answers  map[string]int
}

func (l *load) run(ctx context.Context) {
	ticks := time.NewTicker(time.Second / rate)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			l.asking.Wait()
			return
		case <-ticks.C:
		}
		q, err := l.choose()
		if err != nil {
			l.find(err.Error())
			return
		}
		r := l.replicas[l.random.IntN(len(l.replicas))]
		l.asking.Go(func() { l.ask(r, q) })
	}
}

func (l *load) choose() (request, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.random.IntN(5) == 0 {
		if q, ok := l.chooseLive(); ok {
			return q, nil
		}
	}
	n := l.random.IntN(accounts + len(l.revoked))
	namespace := namespaces[l.random.IntN(len(namespaces))]
	if len(l.revoked) > 0 && l.random.IntN(6) == 0 {
		d := l.revoked[max(l.random.IntN(len(l.revoked)), l.random.IntN(len(l.revoked)))] // Redis may have lost the early ones
		n, namespace = d.number, d.namespace
	}
	account := accountOf(namespace, n)
	tok := l.tokens[account]
	if tok == nil || time.Since(tok.issued) > renewAfter && l.random.IntN(3) == 0 || tok.contested {
		now, lives := time.Now().Truncate(time.Second), lifetime
		if l.random.IntN(4) == 0 {
			lives = short
		}
		text, err := l.issuer.TryTokenFor(lives, service, namespace, fmt.Sprint("web-", n))
		if err != nil {
			return request{}, err
		}
		if tok != nil && !tok.contested {
			l.before[account] = tok
		}
		tok = &token{
			text: text, account: account, namespace: namespace, address: addressOf(1, n), key: l.key,
			issued: now, until: now.Add(lives), known: map[*replica]time.Time{},
		}
		l.tokens[account] = tok
	}
	q := request{kind: "pull", token: tok, text: tok.text, key: tok.key, namespace: namespace, repository: namespace, address: tok.address, get: l.random.IntN(2) == 0}
	switch l.random.IntN(10) {
	case 0:
		q.kind, q.flaw, q.token = "forged", "forged", nil
		at := strings.LastIndex(q.text, ".") + 20
		other := byte('A')
		if q.text[at] == other {
			other = 'B'
		}
		q.text = q.text[:at] + string(other) + q.text[at+1:]
	case 1:
		q.kind, q.repository = "foreign", "elsewhere"
	case 2:
		q.kind, q.flaw, q.token, q.text, q.key, q.namespace = "anonymous", "anonymous", nil, "", noKey, ""
		q.get = true // a POST has a password
	case 3:
		if !tok.granted.IsZero() {
			q.kind, q.stolen, q.address = "stolen", true, addressOf(2, n)
			tok.contested = tok.contested || l.mayForget(tok, time.Now())
		}
	case 4:
		q.kind, q.flaw, q.token, q.key = "other audience", "other audience", nil, noKey
		text, err := l.issuer.TryToken("other.example.com", namespace, fmt.Sprint("web-", n))
		if err != nil {
			return request{}, err
		}
		q.text = text
	case 5:
		if before := l.before[account]; before != nil {
			q.kind, q.token, q.text, q.key = "old", before, before.text, before.key
		}
	}
	return q, nil
}

func (l *load) ask(r *replica, q request) {
	l.mu.Lock()
	proxy := r.proxy
	l.mu.Unlock()
	from := time.Now()
	a := l.send(proxy.URL, q)
	to := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests++
	if a.granted && a.fault == "" {
		a.fault = l.verify(a.message, q)
		a.message = "(a token)"
	}
	name := fmt.Sprint(a.status)
	if a.granted {
		name = "granted"
	}
	l.answers[q.kind+" "+name]++
	// A process that was killed meanwhile answers nothing, and the next one has another history.
	if proxy == r.proxy && (a.granted || a.err == nil || heldSince(r.alive, from.Add(-time.Second), to)) {
		v := l.judge(r, q, from, to)
		if wrong := v.wrong(q, a, heldSince(r.alive, from.Add(-time.Second), to)); wrong != "" {
			l.findLocked(fmt.Sprintf("%s: %s at replica %d, sent %s, answered after %v with %d %.300s", wrong, q, r.number,
				from.Format("15:04:05.000"), to.Sub(from).Round(time.Millisecond), a.status, a.message))
		}
	}
	if q.token == nil || proxy != r.proxy {
		return
	}
	if a.status == http.StatusForbidden && strings.Contains(a.message, "revoked") {
		note(r.refusedAccount, q.token.account, to)
	}
	if a.status == http.StatusForbidden && !q.live || a.granted { // a pod that is gone is refused before revocations are looked at
		r.listed = earlier(r.listed, to)
	}
	if a.granted {
		note(r.knownKeys, q.token.key, to)
	}
	if a.granted && q.live {
		r.liveGranted = earlier(r.liveGranted, to)
	}
	if a.granted && !q.stolen && r.number != auditing {
		q.token.granted = earlier(q.token.granted, to)
		if q.token.known[r].Before(r.started) {
			q.token.known[r] = to
		}
	}
}

// addressOf is that of the owners of tokens, 1, or of thieves, 2.
func addressOf(whose, n int) string { return fmt.Sprintf("127.%d.%d.%d", whose, n/250, 1+n%250) }

func note[K comparable](since map[K]time.Time, key K, at time.Time) {
	since[key] = earlier(since[key], at)
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// watchMachine notes when this process was not run for a moment: then answers may be late without a fault of Pullpass.
func (l *load) watchMachine(ctx context.Context) {
	const often = 50 * time.Millisecond
	for last := time.Now(); ctx.Err() == nil; last = time.Now() {
		time.Sleep(often)
		if now := time.Now(); now.Sub(last) > often+stalled {
			l.change(func() { l.stalls = append(l.stalls, span{last, now}) })
		}
	}
}

// send sends a request over a connection of its own.
func (l *load) send(at string, q request) (a answer) {
	ctx, cancel := context.WithTimeout(context.Background(), requestLimit)
	defer cancel()
	form := url.Values{"service": {service}, "scope": {"repository:" + q.repository + "/app:pull"}}
	method, target, body := http.MethodGet, at+"/token?"+form.Encode(), ""
	if !q.get {
		for name, value := range map[string]string{"grant_type": "password", "client_id": "chaos", "username": "serviceaccount", "password": q.text} {
			form.Set(name, value)
		}
		method, target, body = http.MethodPost, at+"/token", form.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, strings.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	if q.get && q.text != "" {
		req.SetBasicAuth("serviceaccount", q.text)
	} else if !q.get {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(q.address)}}
	client := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, TLSClientConfig: &tls.Config{RootCAs: l.ca.Pool()}, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	a = answer{status: resp.StatusCode, message: string(content), err: err}
	if err != nil || resp.StatusCode != http.StatusOK {
		return a
	}
	var granted struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
	}
	if err := json.Unmarshal(content, &granted); err != nil {
		a.fault = err.Error()
		return a
	}
	a.message = granted.Token + granted.AccessToken
	if granted.Token != "" {
		a.message = granted.Token
	}
	c, err := l.claims(a.message)
	if err != nil {
		a.granted, a.fault = true, "its token is not of the published keys: "+err.Error()
	}
	a.granted = a.granted || len(c.Access) > 0
	return a
}

type access struct {
	Type    string   `json:"type"`
	Name    string   `json:"name"`
	Actions []string `json:"actions"`
}

// claims are those of a token of Pullpass.
type claims struct {
	Issuer   string   `json:"iss"`
	Audience string   `json:"aud"`
	Expiry   int64    `json:"exp"`
	Access   []access `json:"access"`
}

// claims verifies a token of Pullpass, as a registry does.
func (l *load) claims(text string) (claims, error) {
	signed, err := jose.ParseSignedCompact(text, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		return claims{}, errors.New("not signed")
	}
	payload, err := signed.Verify(l.jwks)
	if err != nil {
		return claims{}, err
	}
	var c claims
	return c, json.Unmarshal(payload, &c)
}

// verify says what is wrong with what was granted.
func (l *load) verify(text string, q request) string {
	c, err := l.claims(text)
	if err != nil {
		return err.Error()
	}
	if c.Issuer != pullpass.Issuer || c.Audience != service {
		return fmt.Sprintf("WRONG GRANT: of %q for %q", c.Issuer, c.Audience)
	}
	if q.token != nil && time.Unix(c.Expiry, 0).After(q.token.until.Add(shortest)) {
		return fmt.Sprintf("WRONG GRANT: it outlives its token by %v", time.Unix(c.Expiry, 0).Sub(q.token.until))
	}
	for _, a := range c.Access {
		if a.Type != "repository" || a.Name != q.repository+"/app" || strings.Join(a.Actions, ",") != "pull" {
			return fmt.Sprintf("WRONG GRANT: %v", a)
		}
	}
	return ""
}

func (l *load) find(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.findLocked(text)
}

func (l *load) findLocked(text string) {
	l.findings = append(l.findings, time.Now().Format("15:04:05.000 ")+text)
}
