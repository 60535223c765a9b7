package main

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// peers of Pullpass: programs that take the flags of the floor, and where their token endpoints are.
var peers = []struct {
	name, program, path string
	variable            string // that names the program itself
	form                form
	noTLS               bool
}{
	{name: "zot", program: "loadtest/zot.sh", path: "/zot/auth/token", variable: "ZOT"},
	{name: "jwt-registry-auth", program: "loadtest/jwt-registry-auth.sh", path: "/auth/token", variable: "JWT_REGISTRY_AUTH", form: formBasic, noTLS: true},
}

// loads are what every server gets, as shares of what it answers when it has as much to do as it can.
var loads = []float64{0.5, 0.9}

// heldAtOnce is how many requests of a share are one server's turn: enough for half a second of most.
const heldAtOnce = 500

// comparePeers measures Pullpass, floors and peers in one run: the rate that each answers with one core, and at shares of that the CPU that it
// needs and the time that its clients wait. A pull asks twice for each token.
//
// Clients ask when it is their time, whatever became of the requests before, and their wait counts from then on: so a
// server that is late for one of them is late for all that follow. Medians and tails are those of the middle one of its
// turns: in some of them, the machine had something else to do.
func comparePeers(ctx context.Context, o options, stderr io.Writer) ([]result, error) {
	for _, p := range peers {
		if _, err := exec.LookPath(os.Getenv(p.variable)); err != nil {
			return nil, fmt.Errorf("%s is not built by this command: build it and put its path into $%s (%s says more)", p.name, p.variable, p.program)
		}
	}
	return onBothTransports(ctx, o, stderr, (*site).comparePeers)
}

func (s *site) comparePeers(ctx context.Context, withTLS bool) (results []result, err error) {
	names, contenders, err := s.startPeers(ctx, withTLS)
	if err != nil {
		return nil, err
	}
	client := s.comparing(withTLS)
	defer client.CloseIdleConnections()
	from, most := 0, make([]float64, len(contenders))
	for _, share := range append([]float64{1}, loads...) {
		requests, err := s.requests(ctx, from, comparedExchanges/2, 2)
		if err != nil {
			return nil, err
		}
		from += comparedExchanges / 2
		for _, c := range contenders {
			c.reset()
		}
		each := heldAtOnce
		if share == 1 {
			each = comparedAtOnce
		}
		for slice := range slices.Chunk(requests, each) {
			for i, c := range contenders {
				if share == 1 {
					err = c.exchange(ctx, client, slice)
				} else {
					err = c.hold(ctx, client, slice, share*most[i])
				}
				if err != nil {
					return nil, fmt.Errorf("%s: %w", names[i], err)
				}
			}
		}
		for i, c := range contenders {
			if share == 1 {
				most[i] = float64(len(c.times)) / c.elapsed.Seconds()
			}
			resident, err := c.process.resident()
			if err != nil {
				return nil, err
			}
			r := c.result(fmt.Sprintf("%s, %.0f %% of what it can: %s", map[bool]string{false: "http", true: "tls"}[withTLS], share*100, names[i]))
			r.median, r.p95, r.p99 = c.middle(0.5), c.middle(0.95), c.middle(0.99)
			r.note = fmt.Sprintf("%.0f a second, %.3f ms CPU, p50 %.1f, p99 %.1f ms, %.0f MiB", r.exchanges/r.seconds, r.cpu*1000/r.exchanges, r.median, r.p99, resident/(1<<20))
			results = append(results, r)
		}
	}
	return results, nil
}

// middle returns a quantile of the turn that is in the middle, in milliseconds.
func (c *contender) middle(q float64) float64 {
	all := make([]float64, len(c.turns))
	for i, turn := range c.turns {
		all[i] = quantile(turn, q)
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// startPeers starts all that there are, and says which is which.
func (s *site) startPeers(ctx context.Context, withTLS bool) (names []string, all []*contender, err error) {
	if err := s.writeIssuerKey(ctx); err != nil {
		return nil, nil, err
	}
	floor, err := s.startContender(ctx, filepath.Join(s.programs, "floor"), "/token", withTLS)
	if err != nil {
		return nil, nil, err
	}
	names, all = []string{"floor", "pullpass"}, []*contender{floor, {process: s.pullpass, url: s.tokens + "/token"}}
	if withTLS {
		least, err := s.startContender(ctx, filepath.Join(s.programs, "floor"), "/token", withTLS, "-least-tls")
		if err != nil {
			return nil, nil, err
		}
		names, all = append(names, "floor, least TLS"), append(all, least)
	}
	for _, p := range peers {
		if withTLS && p.noTLS {
			continue
		}
		c, err := s.startContender(ctx, p.program, p.path, withTLS)
		if err != nil {
			return nil, nil, err
		}
		c.form = p.form
		names, all = append(names, p.name), append(all, c)
	}
	return names, all, nil
}

// writeIssuerKey writes the key that signs tokens, for peers that ask for it too often.
func (s *site) writeIssuerKey(ctx context.Context) error {
	text, err := s.ask(ctx, http.MethodGet, s.issuer+"/openid/v1/jwks")
	if err != nil {
		return err
	}
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(text, &set); err != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(set.Keys[len(set.Keys)-1].Key)
	if err != nil {
		return err
	}
	return os.WriteFile(s.file("issuer.pem"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600)
}

// hold sends requests at an even rate.
func (c *contender) hold(ctx context.Context, client *http.Client, requests []string, rate float64) error {
	before, err := c.process.usage()
	if err != nil {
		return err
	}
	times, errs := make([]time.Duration, len(requests)), make([]error, len(requests))
	var all sync.WaitGroup
	began := time.Now()
	for i, form := range requests {
		due := began.Add(time.Duration(float64(i) / rate * float64(time.Second)))
		time.Sleep(time.Until(due))
		all.Go(func() {
			_, errs[i] = c.exchangeOne(ctx, client, form)
			times[i] = time.Since(due)
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	c.elapsed += time.Since(began)
	c.times = append(c.times, times...)
	c.turns = append(c.turns, times)
	after, err := c.process.usage()
	c.cpu, c.peak = c.cpu+after.cpu-before.cpu, after.peak
	return err
}
