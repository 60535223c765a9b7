package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	comparedExchanges = 5000 // of each kind, at each server
	comparedAtOnce    = 100  // then it is the other server's turn: whatever else the machine does falls on both
	comparedClients   = 16   // enough to keep one core busy
)

// kind of exchanges.
type kind struct {
	name string
	each int // requests with a token, one after the other
	pods int
}

// kinds of exchanges to compare.
var kinds = []kind{
	{"first", 1, comparedExchanges},
	{"repeated", 1, 100},
	{"mix", 2, comparedExchanges / 2},
}

// warmUp is not counted: in it, heaps grow, and servers do what they do once.
var warmUp = kind{"warm-up", 1, comparedExchanges}

// compare measures the CPU of an exchange at Pullpass, and at a peer if there is one, as ratio to that at the floor. Each has
// one core (GOMAXPROCS) and as much to do as it can: at a low rate, a server needs more CPU for falling asleep and waking up than for its work.
// That is also why the load is not from k6, which needs several times as much CPU for a request as the server.
//
// With TLS, a second floor speaks no more of it than a token endpoint needs: what is between it and Pullpass is Pullpass's.
//
// Once it is plain HTTP on connections that stay open, which is the exchange alone, and once a TLS connection for each
// exchange, as containerd does.
func compare(ctx context.Context, o options, stderr io.Writer) ([]result, error) {
	return onBothTransports(ctx, o, stderr, (*site).compare)
}

// onBothTransports measures once with plain HTTP and once with TLS, each on a site of its own.
func onBothTransports(ctx context.Context, o options, stderr io.Writer, measure func(s *site, ctx context.Context, withTLS bool) ([]result, error)) (results []result, err error) {
	for _, withTLS := range []bool{false, true} {
		site, err := openSite(ctx, o, variant{plainHTTP: !withTLS, oneCore: true, perServiceAccount: 100_000})
		if err != nil {
			return nil, err
		}
		measured, err := measure(site, ctx, withTLS)
		if err := errors.Join(err, site.close()); err != nil {
			return nil, err
		}
		for _, r := range measured {
			fmt.Fprintf(stderr, "  %s: %s\n", r.name, r.note)
		}
		results = append(results, measured...)
	}
	return results, nil
}

func (s *site) compare(ctx context.Context, withTLS bool) (results []result, err error) {
	transport := map[bool]string{false: "http", true: "tls"}[withTLS]
	floor, err := s.startContender(ctx, filepath.Join(s.programs, "floor"), "/token", withTLS)
	if err != nil {
		return nil, err
	}
	contenders := []*contender{floor, {process: s.pullpass, url: s.tokens + "/token"}}
	if withTLS {
		least, err := s.startContender(ctx, filepath.Join(s.programs, "floor"), "/token", withTLS, "-least-tls")
		if err != nil {
			return nil, err
		}
		contenders = append(contenders, least)
	}
	if s.peer != "" {
		peer, err := s.startContender(ctx, s.peer, s.peerPath, withTLS)
		if err != nil {
			return nil, err
		}
		contenders = append(contenders, peer)
	}
	client := s.comparing(withTLS)
	defer client.CloseIdleConnections()
	from := 0
	for _, kind := range slices.Concat([]kind{warmUp}, kinds) {
		requests, err := s.requests(ctx, from, kind.pods, kind.each)
		if err != nil {
			return nil, err
		}
		from += kind.pods // others, so that a first exchange is one
		for _, c := range contenders {
			c.reset()
		}
		for slice := range slices.Chunk(requests, comparedAtOnce) {
			for _, c := range contenders {
				if err := c.exchange(ctx, client, slice); err != nil {
					return nil, fmt.Errorf("%s %s: %w", transport, kind.name, err)
				}
			}
		}
		if kind == warmUp {
			continue
		}
		for _, c := range contenders[1:] {
			r := c.result(transport + " " + kind.name + ": " + c.process.name)
			r.note = fmt.Sprintf("CPU %.2f × floor, which has %.3f", c.cpu/floor.cpu, floor.cpu*1000/comparedExchanges)
			results = append(results, r)
		}
	}
	return results, nil
}

// comparing is a client that keeps its connections, or makes one for each request.
func (s *site) comparing(oneEach bool) *http.Client {
	t := s.client.Transport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost, t.DisableKeepAlives = comparedClients, oneEach
	return &http.Client{Transport: t, Timeout: s.client.Timeout}
}

// requests are the forms of comparedExchanges token requests, as containerd sends them.
func (s *site) requests(ctx context.Context, from, pods, each int) ([]string, error) {
	text, err := s.ask(ctx, http.MethodGet, fmt.Sprintf("%s/tokens?from=%d&count=%d", s.issuer, from, pods))
	if err != nil {
		return nil, err
	}
	var tokens []struct{ Token, Namespace, ServiceAccount string }
	if err := json.Unmarshal(text, &tokens); err != nil {
		return nil, err
	}
	requests := make([]string, comparedExchanges)
	for i := range requests {
		t := tokens[i/each%pods]
		requests[i] = url.Values{
			"client_id": {"containerd-client"}, "grant_type": {"password"}, "password": {t.Token},
			"scope": {"repository:" + t.Namespace + "/" + t.ServiceAccount + ":pull"}, "service": {"registry.example.com"}, "username": {"serviceaccount"},
		}.Encode()
	}
	return requests, nil
}

// contender is a server that is compared, and what it needed.
type contender struct {
	process *process
	url     string
	form    form
	clients int // that ask at a time; 0: enough to keep one core busy

	times   []time.Duration
	turns   [][]time.Duration // of which times are
	elapsed time.Duration
	cpu     float64
	peak    float64
}

func (c *contender) reset() { c.times, c.turns, c.elapsed, c.cpu = nil, nil, 0, 0 }

// exchange sends requests, some at a time, each with the next free client.
func (c *contender) exchange(ctx context.Context, client *http.Client, requests []string) error {
	before, err := c.process.usage()
	if err != nil {
		return err
	}
	times := make([]time.Duration, len(requests))
	var group errgroup.Group
	group.SetLimit(cmp.Or(c.clients, comparedClients))
	began := time.Now()
	for i, form := range requests {
		group.Go(func() (err error) {
			times[i], err = c.exchangeOne(ctx, client, form)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	c.elapsed += time.Since(began)
	c.times = append(c.times, times...)
	c.turns = append(c.turns, times)
	after, err := c.process.usage()
	c.cpu, c.peak = c.cpu+after.cpu-before.cpu, after.peak
	return err
}

func (c *contender) exchangeOne(ctx context.Context, client *http.Client, form string) (time.Duration, error) {
	request, err := c.request(ctx, form)
	if err != nil {
		return 0, err
	}
	request.Header.Set("User-Agent", "containerd/v2.4.2")
	began := time.Now()
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", c.process.name, response.Status, body)
	}
	return time.Since(began), err
}

// form is how requests are sent.
type form int

const (
	formPost  form = iota // as containerd does first
	formBasic             // as it does where a server knows no POST
)

func (c *contender) request(ctx context.Context, values string) (*http.Request, error) {
	if c.form == formPost {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(values))
		if err == nil {
			request.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
		}
		return request, err
	}
	parsed, err := url.ParseQuery(values)
	if err != nil {
		return nil, err
	}
	query := url.Values{"service": parsed["service"], "scope": parsed["scope"]}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"?"+query.Encode(), nil)
	if err == nil {
		request.SetBasicAuth(parsed.Get("username"), parsed.Get("password"))
	}
	return request, err
}

func (c *contender) result(name string) result {
	return result{
		name: name, exchanges: float64(len(c.times)), seconds: c.elapsed.Seconds(), cpu: c.cpu, peak: c.peak,
		median: quantile(c.times, 0.5), p95: quantile(c.times, 0.95), p99: quantile(c.times, 0.99),
	}
}

// quantile sorts times, and returns milliseconds.
func quantile(times []time.Duration, q float64) float64 {
	slices.Sort(times)
	return float64(times[int(q*float64(len(times)-1))]) / float64(time.Millisecond)
}

// startContender starts a program that takes the flags of floor and has a token endpoint.
func (s *site) startContender(ctx context.Context, program, path string, withTLS bool, more ...string) (*contender, error) {
	addresses, err := freeAddresses(1)
	if err != nil {
		return nil, err
	}
	origin := "http://" + addresses[0]
	args := []string{"-listen", addresses[0], "-issuer", s.issuer, "-ca", s.file("ca.crt")}
	if withTLS {
		origin = "https://" + addresses[0]
		args = append(append(args, "-tls-cert", s.file("tls.crt"), "-tls-key", s.file("tls.key")), more...)
	}
	if err := s.start(ctx, listening(addresses[0]), program, args...); err != nil {
		return nil, err
	}
	return &contender{process: s.processes[len(s.processes)-1], url: origin + path}, nil
}
