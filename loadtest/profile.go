package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// profiledFor is a little less than the admin listener lets an answer take.
const profiledFor = 25 * time.Second

// profile writes what the processor does in Pullpass under load, for the compiler: exchanges, each with a TLS connection and on
// connections that stay open, and requests at the gateway.
func profile(ctx context.Context, o options, stderr io.Writer) (results []result, err error) {
	s, err := openGatewaySite(ctx, o, variant{oneCore: true, perServiceAccount: 100_000, pprof: true})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	token, err := s.gatewayToken(ctx)
	if err != nil {
		return nil, err
	}
	requests, err := s.requests(ctx, 0, comparedExchanges/2, 2)
	if err != nil {
		return nil, err
	}
	kept, each := s.comparing(false), s.comparing(true)
	defer kept.CloseIdleConnections()
	pulls := s.gatewayClient()
	defer pulls.CloseIdleConnections()
	endpoint, registry := &contender{process: s.pullpass, url: s.tokens + "/token"}, &gatewayed{process: s.pullpass, url: "https://" + s.gatewayAddress}
	name := filepath.Join(o.out, "default.pgo")

	group, loaded := errgroup.WithContext(ctx)
	loaded, stop := context.WithCancel(loaded)
	group.Go(func() error {
		defer stop()
		text, err := s.ask(ctx, http.MethodGet, fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", s.admin, profiledFor/time.Second))
		if err != nil {
			return err
		}
		return os.WriteFile(name, text, 0o644)
	})
	group.Go(func() error {
		for slice := range slices.Chunk(slices.Repeat(requests, 100), comparedAtOnce) {
			for _, load := range []func() error{
				func() error { return endpoint.exchange(loaded, each, slice) },
				func() error { return endpoint.exchange(loaded, kept, slice) },
				func() error {
					return registry.ask(loaded, pulls, token, "/manifests/v1", http.StatusOK, comparedAtOnce)
				},
				func() error {
					return registry.ask(loaded, pulls, token, "/blobs/"+redirectedBlob, http.StatusTemporaryRedirect, comparedAtOnce)
				},
			} {
				if err := load(); loaded.Err() != nil {
					return nil
				} else if err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	fmt.Fprintln(stderr, "  profile:", name)
	return nil, nil
}
