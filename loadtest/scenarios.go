package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/pullpass/pullpass/loadtest/fleet"
)

// scenario is one kind of load. Each has a Pullpass of its own, so none profits from what another left in the caches.
type scenario struct {
	name, about string
	run         func(context.Context, *site) (*outcome, error) // nil: compare, which has sites of its own
}

// outcome is what a scenario measured beyond Pullpass's own metrics.
type outcome struct {
	*summary          // of the good traffic
	faults   []string // objectives that it missed
	note     string   // for the report
}

// Clients of good traffic and of floods have different addresses, as nodes and strangers have.
const (
	nodeAddresses     = "127.1.0.0/16"
	strangerAddresses = "127.2.0.1-127.2.0.2"
)

var scenarios = []scenario{
	{"steady", "pulls at an even rate, as on every day", runSteady},
	{"storm", "every node of a cluster restarts its 30 pods within a minute", runStorm},
	{"flood", "strangers with bad credentials, beside good traffic", runFlood},
	{"rotation", "the keys of Pullpass and of the cluster change under load", runRotation},
	{"soak", "the same pods again and again: memory must not grow", runSoak},
	{"compare", "CPU of an exchange, over real sockets, as ratio to a hand-written floor", nil},
}

// play runs one scenario.
func play(ctx context.Context, o options, s scenario, stderr io.Writer) ([]result, error) {
	if s.run == nil {
		return compare(ctx, o, stderr)
	}
	site, err := openSite(ctx, o, true)
	if err != nil {
		return nil, err
	}
	r, err := measure(ctx, site, s)
	if err := errors.Join(err, site.close()); err != nil {
		return nil, err
	}
	for _, fault := range r.faults {
		fmt.Fprintln(stderr, "  missed:", fault)
	}
	return []result{*r}, nil
}

// measure runs a scenario and watches Pullpass meanwhile.
func measure(ctx context.Context, s *site, sc scenario) (*result, error) {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	var samples []sample
	var watchErr error
	var watcher sync.WaitGroup
	watcher.Go(func() { samples, watchErr = s.watch(watching, time.Now()) })
	o, err := sc.run(ctx, s)
	stop()
	watcher.Wait()
	if err := errors.Join(err, watchErr); err != nil {
		return nil, err
	}
	_, peak, err := s.pullpass.usage()
	if err != nil {
		return nil, err
	}
	first, last := samples[0], samples[len(samples)-1]
	if sc.name == "soak" {
		o.faults = append(o.faults, growth(samples, soakPods, s.duration)...)
	}
	times := o.Metrics["exchange_time"].Values
	return &result{
		name: sc.name, note: o.note, faults: o.faults, samples: samples, page: sc.name + ".html",
		exchanges: last.exchanges - first.exchanges,
		seconds:   o.State.Milliseconds / 1000,
		median:    times["med"], p95: times["p(95)"], p99: times["p(99)"],
		failed: failures(o.summary),
		cpu:    last.cpu - first.cpu,
		peak:   peak,
	}, nil
}

// failures counts the good requests that failed. k6 counts in "passes" how often a rate was true.
func failures(s *summary) float64 { return s.Metrics["exchange_failed"].Values["passes"] }

// steady runs the good traffic of most scenarios. Its pods are new ones, unless pods bounds how many there are.
func (s *site) steady(ctx context.Context, pods int, name string, env map[string]string) (*outcome, error) {
	if err := s.prepare(ctx, 0, pods); err != nil {
		return nil, err
	}
	all := map[string]string{"RATE": strconv.Itoa(s.rate), "DURATION": s.duration.String(), "PODS": strconv.Itoa(pods)}
	for variable, value := range env {
		all[variable] = value
	}
	measured, err := s.k6(ctx, load{script: "steady.js", from: nodeAddresses, env: all, name: name})
	if err != nil {
		return nil, err
	}
	return &outcome{summary: measured, faults: measured.faults(), note: fmt.Sprintf("%d pulls a second for %s", s.rate, s.duration)}, nil
}

// pulled is how many pods a scenario with new ones needs.
func (s *site) pulled() int {
	const atATime = 250 // the clients of steady.js take batches, which may be in use at the end
	return int(float64(s.rate)*s.duration.Seconds()) + atATime
}

func runSteady(ctx context.Context, s *site) (*outcome, error) {
	return s.steady(ctx, s.pulled(), "steady", nil)
}

func runStorm(ctx context.Context, s *site) (*outcome, error) {
	nodes := int(math.Max(1, math.Round(s.scale*fleet.Nodes)))
	if err := s.prepare(ctx, 0, nodes*fleet.PodsPerNode); err != nil {
		return nil, err
	}
	env := map[string]string{"NODES": strconv.Itoa(nodes), "WINDOW": strconv.FormatFloat(s.window.Seconds(), 'f', -1, 64)}
	measured, err := s.k6(ctx, load{script: "storm.js", from: nodeAddresses, env: env, name: "storm"})
	if err != nil {
		return nil, err
	}
	note := fmt.Sprintf("%d of %d nodes (scale %g), %d pulls within %s", nodes, fleet.Nodes, s.scale, nodes*fleet.PodsPerNode, s.window)
	return &outcome{summary: measured, faults: measured.faults(), note: note}, nil
}

// floodFactor is how many bad attempts there are for each good pull.
const floodFactor = 4

func runFlood(ctx context.Context, s *site) (*outcome, error) {
	var flood *summary
	var floodErr error
	var flooding sync.WaitGroup
	flooding.Go(func() {
		env := map[string]string{"RATE": strconv.Itoa(s.rate * floodFactor), "DURATION": s.duration.String()}
		flood, floodErr = s.k6(ctx, load{name: "strangers", script: "flood.js", from: strangerAddresses, env: env})
	})
	good, err := s.steady(ctx, s.pulled(), "flood", nil)
	flooding.Wait()
	if err := errors.Join(err, floodErr); err != nil {
		return nil, err
	}
	good.faults = append(good.faults, flood.faults()...)
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
	s.duration = max(s.duration, 2*publishedBefore)
	var changeErr error
	var changing sync.WaitGroup
	changing.Go(func() {
		changeErr = s.rotateIssuerKey(ctx, s.duration/2)
		for _, wait := range []time.Duration{s.duration / 4, s.duration / 2} {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return
			}
			changeErr = errors.Join(changeErr, s.rotateSigningKey(ctx))
		}
	})
	good, err := s.steady(ctx, s.pulled(), "rotation", map[string]string{"KEYS_CHANGE": "true"})
	changing.Wait()
	if err := errors.Join(err, changeErr); err != nil {
		return nil, err
	}
	good.note += "; Pullpass changed its key twice, the cluster once"
	return good, nil
}

// soakPods are few, so that caches are full of them soon and what grows later is a leak.
const soakPods = 10 * fleet.PodsPerNode

func runSoak(ctx context.Context, s *site) (*outcome, error) {
	good, err := s.steady(ctx, soakPods, "soak", nil)
	if err != nil {
		return nil, err
	}
	good.note += fmt.Sprintf("; %d pods again and again", soakPods)
	return good, nil
}
