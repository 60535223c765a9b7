package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
)

// stateVariants are what is compared; the first one is the yardstick.
var stateVariants = []struct {
	name, replay string
	redis        bool
}{
	{"in memory, replay off", "off", false},
	{"Redis, replay off", "off", true},
	{"Redis, replay enforce", "enforce", true},
}

// state measures what limits and state.replay cost where replicas share them: the CPU of an exchange at Pullpass and at
// Redis, turn by turn as compare does, and the wait of a client that asks alone. Redis is on the same machine: the way to it
// comes on top.
func state(ctx context.Context, o options, stderr io.Writer) (results []result, err error) {
	var sites []*site
	defer func() {
		for _, s := range sites {
			s.client.CloseIdleConnections()
			err = errors.Join(err, s.close())
		}
	}()
	for _, v := range stateVariants {
		o.redis = v.redis
		s, err := openSite(ctx, o, variant{plainHTTP: true, oneCore: true, replay: v.replay})
		if err != nil {
			return nil, err
		}
		s.client = s.comparing(false)
		sites = append(sites, s)
	}
	from := 0
	for _, kind := range kinds {
		for _, clients := range []int{comparedClients, 1} {
			measured, err := measureState(ctx, sites, clients, func(s *site) ([]string, error) { return s.requests(ctx, from, kind.pods, kind.each) })
			if err != nil {
				return nil, err
			}
			from += kind.pods
			for i, r := range measured {
				r.name = fmt.Sprintf("%s, %d at a time: %s", kind.name, clients, stateVariants[i].name)
				fmt.Fprintf(stderr, "  %s: p50 %.2f ms, p99 %.2f ms, %s\n", r.name, r.median, r.p99, r.note)
				results = append(results, r)
			}
		}
	}
	return results, nil
}

// measureState has every site answer its requests, some of them at a time.
func measureState(ctx context.Context, sites []*site, clients int, requestsOf func(*site) ([]string, error)) (results []result, err error) {
	requests, contenders, redis := make([][]string, len(sites)), make([]*contender, len(sites)), make([]float64, len(sites))
	for i, s := range sites {
		if requests[i], err = requestsOf(s); err != nil {
			return nil, err
		}
		contenders[i] = &contender{process: s.pullpass, url: s.tokens + "/token", clients: clients}
		if redis[i], err = s.redisCPU(); err != nil {
			return nil, err
		}
	}
	for first := 0; first < comparedExchanges; first += comparedAtOnce {
		for i, c := range contenders {
			if err := c.exchange(ctx, sites[i].client, requests[i][first:first+comparedAtOnce]); err != nil {
				return nil, fmt.Errorf("%s: %w", stateVariants[i].name, err)
			}
		}
	}
	for i, c := range contenders {
		after, err := sites[i].redisCPU()
		if err != nil {
			return nil, err
		}
		r := c.result("")
		r.note = fmt.Sprintf("CPU %.2f × in memory; Redis %.1f µs", c.cpu/contenders[0].cpu, (after-redis[i])*1e6/comparedExchanges)
		results = append(results, r)
	}
	return results, nil
}

// redisCPU is what Redis has used, in seconds; 0 without one.
func (s *site) redisCPU() (float64, error) {
	i := slices.IndexFunc(s.processes, func(p *process) bool { return p.name == "redis-server" })
	if i < 0 {
		return 0, nil
	}
	used, err := s.processes[i].usage()
	return used.cpu, err
}
