package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pullpass/pullpass/loadtest/fleet"
)

// scenario is one kind of load. Each has a Pullpass of its own, so none profits from what another left in the caches.
type scenario struct {
	name, about string
	least       time.Duration     // that it takes
	pods        func(options) int // whose tokens are made beforehand
	run         func(context.Context, *site) (*outcome, error)
	judge       func(options, []sample) []string // names what Pullpass did that it should not; nil: nothing to judge
	site        variant                          // that it is played on
	// whole plays a scenario that has sites of its own; nil: it has one, and is played by what is above.
	whole func(context.Context, options, io.Writer) ([]result, error)
	named bool // played only if it is named
}

// outcome is what a scenario measured beyond Pullpass's own metrics.
type outcome struct {
	*summary          // of the good traffic
	faults   []string // objectives that others missed
	note     string   // for the report
}

// Clients of good traffic and of floods have different addresses, as nodes and outsiders have.
const (
	nodeAddresses   = "127.1.0.0/16"
	strangerAddress = "127.2.0.1"
)

var scenarios = []scenario{
	{name: "steady", about: "pulls at an even rate, as on every day", pods: pulled, run: runSteady},
	{name: "storm", about: "every node of a cluster restarts its 30 pods within a minute", pods: stormPods, run: runStorm},
	{name: "flood", about: "clients with bad credentials, beside good traffic", pods: pulled, run: runFlood},
	{name: "rotation", about: "the keys of Pullpass and of the cluster change under load", least: 2 * publishedBefore, pods: pulled, run: runRotation},
	{name: "soak", about: "the same pods again and again: memory must not grow", pods: func(options) int { return soakPods }, run: runSoak, judge: growth, site: soakSite},
	{name: "memory", about: "100,000 pods, with usual and with the longest names: memory must fit the chart's container", whole: memory},
	{name: "small", about: "a container with a twentieth of a core and 64 MiB: it serves, and a storm does not kill it (root, for cgroups)", whole: small, named: true},
	{name: "gateway", about: "CPU of a request at the gateway, as ratio to nginx with auth_request, and memory of a stream (Debian package nginx-light)", whole: gateway},
	{name: "compare", about: "CPU of an exchange, over real sockets, as ratio to a hand-written floor", whole: compare},
	{name: "peers", about: "Pullpass, a hand-written floor, zot and jwt-registry-auth: at half and at nine tenths of the maximum of each", whole: comparePeers, named: true},
	{name: "state", about: "what limits and state.replay cost in Redis, beside memory (Debian package redis-server)", whole: state, named: true},
	{name: "profile", about: "what the processor does in an exchange and at the gateway, for the compiler: report/default.pgo", whole: profile, named: true},
}

// play runs one scenario.
func play(ctx context.Context, o options, sc scenario, stderr io.Writer) ([]result, error) {
	if sc.whole != nil {
		return sc.whole(ctx, o, stderr)
	}
	o.duration = max(o.duration, sc.least)
	s, err := openSite(ctx, o, sc.site)
	if err != nil {
		return nil, err
	}
	r, err := measure(ctx, s, sc)
	if err := errors.Join(err, s.close()); err != nil {
		return nil, err
	}
	for _, fault := range r.faults {
		fmt.Fprintln(stderr, "  missed:", fault)
	}
	return []result{*r}, nil
}

// measure runs a scenario and watches Pullpass meanwhile.
func measure(ctx context.Context, s *site, sc scenario) (*result, error) {
	if err := s.prepare(ctx, 0, sc.pods(s.options)); err != nil {
		return nil, err
	}
	var samples []sample
	var o *outcome
	group, running := errgroup.WithContext(ctx)
	watching, stop := context.WithCancel(running)
	group.Go(func() (err error) {
		samples, err = s.watch(watching, time.Now())
		return err
	})
	group.Go(func() (err error) {
		defer stop()
		o, err = sc.run(running, s)
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	used, err := s.pullpass.usage()
	if err != nil {
		return nil, err
	}
	first, last := samples[0], samples[len(samples)-1]
	r := newResult(sc.name, o.summary)
	r.note, r.page, r.samples = o.note, sc.name+".html", samples
	r.faults = append(r.faults, o.faults...)
	if sc.judge != nil {
		r.faults = append(r.faults, sc.judge(s.options, samples)...)
	}
	// All that Pullpass answered, also the flood.
	r.exchanges, r.cpu, r.peak = last.exchanges-first.exchanges, last.cpu-first.cpu, used.peak
	return &r, nil
}

// steady runs the good traffic of most scenarios.
func (s *site) steady(ctx context.Context, pods int, name string, env map[string]string) (*outcome, error) {
	all := map[string]string{"RATE": strconv.Itoa(s.rate), "DURATION": s.duration.String(), "PODS": strconv.Itoa(pods)}
	maps.Copy(all, env)
	measured, err := s.k6(ctx, load{name: name, script: "steady.js", from: nodeAddresses, env: all})
	if err != nil {
		return nil, err
	}
	return &outcome{summary: measured, note: fmt.Sprintf("%d pulls a second for %s", s.rate, s.duration)}, nil
}

// pulled is how many pods a scenario with new ones needs.
func pulled(o options) int {
	const atATime = 500 // the clients of steady.js take batches, which may be in use at the end
	return int(float64(o.rate)*o.duration.Seconds()) + atATime
}

func runSteady(ctx context.Context, s *site) (*outcome, error) {
	return s.steady(ctx, pulled(s.options), "steady", nil)
}

func stormNodes(o options) int { return max(1, int(math.Round(o.scale*fleet.Nodes))) }
func stormPods(o options) int  { return stormNodes(o) * fleet.PodsPerNode }

func runStorm(ctx context.Context, s *site) (*outcome, error) {
	nodes := stormNodes(s.options)
	env := map[string]string{"NODES": strconv.Itoa(nodes), "WINDOW": strconv.FormatFloat(s.window.Seconds(), 'f', -1, 64)}
	measured, err := s.k6(ctx, load{name: "storm", script: "storm.js", from: nodeAddresses, env: env})
	if err != nil {
		return nil, err
	}
	note := fmt.Sprintf("%d of %d nodes (scale %g), %d pulls within %s", nodes, fleet.Nodes, s.scale, stormPods(s.options), s.window)
	return &outcome{summary: measured, note: note}, nil
}

// floodFactor is how many bad attempts there are for each good pull. By default these are twice as many as
// limits.perAddress lets one address have, so it is spent after some seconds.
const floodFactor = 8

func runFlood(ctx context.Context, s *site) (*outcome, error) {
	var flood *summary
	var good *outcome
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		env := map[string]string{"RATE": strconv.Itoa(s.rate * floodFactor), "DURATION": s.duration.String()}
		flood, err = s.k6(ctx, load{name: "strangers", script: "flood.js", from: strangerAddress, env: env})
		return err
	})
	group.Go(func() (err error) {
		good, err = s.steady(ctx, pulled(s.options), "flood", nil)
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	good.faults = flood.faults()
	good.note += fmt.Sprintf("; %d bad attempts a second: %.0f answers were 401, %.0f were 429",
		s.rate*floodFactor, flood.Metrics["flood_refused"].Values["count"], flood.Metrics["flood_limited"].Values["count"])
	return good, nil
}

// publishedBefore is how long a cluster publishes a key before it signs. Pullpass asks for keys that it does not know at most
// every 12 seconds, whatever arrives, so from then on it knows every key that signs. A cluster with several API servers
// has to publish a key everywhere before one of them signs with it anyway.
const publishedBefore = 15 * time.Second

// runRotation changes the key of Pullpass, then that of the cluster, then that of Pullpass again.
func runRotation(ctx context.Context, s *site) (*outcome, error) {
	var good *outcome
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := s.rotateIssuerKey(ctx, s.duration/2); err != nil {
			return err
		}
		for _, wait := range []time.Duration{s.duration / 4, s.duration / 2} {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return ctx.Err()
			}
			if err := s.rotateSigningKey(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	group.Go(func() (err error) {
		good, err = s.steady(ctx, pulled(s.options), "rotation", map[string]string{"KEYS_CHANGE": "true"})
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	good.note += "; Pullpass changed its key twice, the cluster once"
	return good, nil
}

// soakPods are few, so that caches are full of them soon and later growth is a leak.
const soakPods = 10 * fleet.PodsPerNode

// soakSite has the collector begin as Go has it by itself: what Pullpass lets lie before it begins would
// hide what lives.
var soakSite = variant{env: []string{"GOGC=100"}}

func runSoak(ctx context.Context, s *site) (*outcome, error) {
	good, err := s.steady(ctx, soakPods, "soak", nil)
	if err != nil {
		return nil, err
	}
	good.note += fmt.Sprintf("; %d pods again and again", soakPods)
	return good, nil
}
