package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
)

// comparisonRate is high, so that seconds of CPU are measured and not the clock's ticks. With keep-alive the load needs
// little CPU itself.
const comparisonRate = 400

// compare measures the CPU of an exchange at the floor and at Pullpass, with the same load in the same minutes: plain HTTP on
// connections that stay open, which is the exchange alone, and a TLS connection for each, as containerd does.
func compare(ctx context.Context, o options, stderr io.Writer) (results []result, err error) {
	for _, withTLS := range []bool{false, true} {
		site, err := openSite(ctx, o, withTLS)
		if err != nil {
			return nil, err
		}
		measured, err := site.compare(ctx, withTLS)
		if err := errors.Join(err, site.close()); err != nil {
			return nil, err
		}
		results = append(results, measured...)
	}
	for _, r := range results {
		fmt.Fprintf(stderr, "  %s: %.3f CPU s per 1,000 %s\n", r.name, r.cpu*1000/r.exchanges, r.note)
	}
	return results, nil
}

func (s *site) compare(ctx context.Context, withTLS bool) ([]result, error) {
	floor, url, err := s.startFloor(ctx, withTLS)
	if err != nil {
		return nil, err
	}
	transport := map[bool]string{false: "http", true: "tls"}[withTLS]
	var results []result
	for i, load := range []string{"floor", "first", "repeated", "mix"} {
		server, target := s.pullpass, s.tokens
		if load == "floor" {
			server, target = floor, url
		}
		// Other pods for each load, so that a first exchange is one.
		pods := int(comparisonRate * s.duration.Seconds())
		r, err := s.compareOne(ctx, server, target, load, i*pods, pods, withTLS)
		if err != nil {
			return nil, err
		}
		r.name = transport + " " + load
		if load != "floor" {
			r.note = fmt.Sprintf("%.2f × floor", r.cpu/r.exchanges/(results[0].cpu/results[0].exchanges))
		}
		results = append(results, *r)
	}
	return results, nil
}

func (s *site) compareOne(ctx context.Context, server *process, target, kind string, from, pods int, withTLS bool) (*result, error) {
	switch kind {
	case "repeated":
		pods = 100 // not one alone, which would have the limit of its ServiceAccount
	case "mix":
		pods /= 2
	}
	if err := s.prepare(ctx, from, pods); err != nil {
		return nil, err
	}
	env := map[string]string{
		"PULLPASS": target, "RATE": strconv.Itoa(comparisonRate), "DURATION": s.duration.String(), "FROM": strconv.Itoa(from),
		"PODS": strconv.Itoa(pods), "EACH": map[bool]string{false: "1", true: "2"}[kind == "mix"], "KEEP_ALIVE": strconv.FormatBool(!withTLS),
	}
	began, _, err := server.usage()
	if err != nil {
		return nil, err
	}
	measured, err := s.k6(ctx, load{name: "compare", script: "compare.js", from: nodeAddresses, env: env})
	if err != nil {
		return nil, err
	}
	ended, peak, err := server.usage()
	if err != nil {
		return nil, err
	}
	times := measured.Metrics["exchange_time"].Values
	return &result{
		faults: measured.faults(), exchanges: measured.Metrics["exchanges"].Values["count"], seconds: measured.State.Milliseconds / 1000,
		median: times["med"], p95: times["p(95)"], p99: times["p(99)"], failed: failures(measured), cpu: ended - began, peak: peak,
	}, nil
}

func (s *site) startFloor(ctx context.Context, withTLS bool) (*process, string, error) {
	addresses, err := freeAddresses(1)
	if err != nil {
		return nil, "", err
	}
	url := "http://" + addresses[0]
	args := []string{"-listen", addresses[0], "-issuer", s.issuer, "-ca", s.file("ca.crt")}
	if withTLS {
		url = "https://" + addresses[0]
		args = append(args, "-tls-cert", s.file("tls.crt"), "-tls-key", s.file("tls.key"))
	}
	if err := s.start(ctx, s.healthy(url+"/livez"), filepath.Join(s.programs, "floor"), args...); err != nil {
		return nil, "", err
	}
	return s.processes[len(s.processes)-1], url, nil
}
