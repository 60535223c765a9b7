package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	smallMillicores = 50
	smallMemory     = 64 << 20
	smallRate       = 5   // exchanges a second that it has to answer
	smallStorm      = 400 // clients that ask all the time, each with a new connection
)

// small runs a replica with next to nothing: on usual days, and in a storm that is far beyond it.
func small(ctx context.Context, o options, stderr io.Writer) (_ []result, err error) {
	g, err := newGroup(fmt.Sprintf("pullpass-small-%d", os.Getpid()), smallMillicores, smallMemory)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	signer, files, err := newCrowdIssuer()
	if err != nil {
		return nil, err
	}
	s, err := openSite(ctx, o, variant{group: g, clusters: crowdCluster, files: files})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	transport := s.client.Transport.(*http.Transport).Clone()
	transport.DisableKeepAlives = true // as containerd
	client := &http.Client{Transport: transport, Timeout: 20 * time.Second}
	c := &contender{process: s.pullpass, url: s.tokens + "/token"}

	number := 0
	next := func() (string, error) { number++; return crowdRequest(signer, 0, number) }
	quiet := time.NewTicker(time.Second / smallRate)
	defer quiet.Stop()
	for began := time.Now(); time.Since(began) < o.duration/2; <-quiet.C {
		form, err := next()
		if err != nil {
			return nil, err
		}
		if err := c.exchange(ctx, client, []string{form}); err != nil {
			return nil, err
		}
	}
	c.elapsed = o.duration / 2
	r := c.result("small")
	answers, err := storm(ctx, client, c.url, o.duration/2, next)
	if err != nil {
		return nil, err
	}
	r.note = fmt.Sprintf("%d millicores, %d MiB; then a storm: %s", smallMillicores, smallMemory>>20, answers)
	if answers.counts[http.StatusOK] == 0 {
		r.faults = append(r.faults, "no pod got a token in the storm")
	}
	for _, status := range slices.Sorted(maps.Keys(answers.counts)) {
		if !slices.Contains([]int{0, http.StatusOK, http.StatusTooManyRequests, http.StatusServiceUnavailable}, status) {
			r.faults = append(r.faults, fmt.Sprintf("an answer in the storm was %d", status))
		}
	}
	form, err := next()
	if err != nil {
		return nil, err
	}
	after, cancel := context.WithTimeout(ctx, client.Timeout)
	defer cancel()
	if err := s.pullpass.await(after, func(ctx context.Context) error { _, err := c.exchangeOne(ctx, client, form); return err }); err != nil {
		r.faults = append(r.faults, "it does not answer after the storm: "+err.Error())
	}
	if r.peak, err = g.peak(); err != nil {
		return nil, err
	}
	switch kills, err := g.kills(); {
	case err != nil:
		return nil, err
	case kills > 0:
		r.faults = append(r.faults, "the kernel killed it for its memory")
	}
	fmt.Fprintln(stderr, "  "+r.note)
	return []result{r}, nil
}

// outcomes are how many requests were answered with which status; 0: with none.
type outcomes struct{ counts map[int]int }

func (o outcomes) String() string {
	var parts []string
	for _, status := range slices.Sorted(maps.Keys(o.counts)) {
		text := fmt.Sprint(o.counts[status], " answered ", status)
		if status == 0 {
			text = fmt.Sprint(o.counts[status], " connections ended without an answer")
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

// storm has clients ask all the time.
func storm(ctx context.Context, client *http.Client, url string, lasts time.Duration, next func() (string, error)) (outcomes, error) {
	o := outcomes{map[int]int{}}
	var mu sync.Mutex
	forms := make([]string, 2000) // made beforehand: to sign takes a processor
	for i := range forms {
		var err error
		if forms[i], err = next(); err != nil {
			return o, err
		}
	}
	began, asked := time.Now(), 0
	group, ctx := errgroup.WithContext(ctx)
	for range smallStorm {
		group.Go(func() error {
			for time.Since(began) < lasts && ctx.Err() == nil {
				mu.Lock()
				form := forms[asked%len(forms)]
				asked++
				mu.Unlock()
				status := 0
				request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(form))
				if err != nil {
					return err
				}
				request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
				if response, err := client.Do(request); err == nil {
					status = response.StatusCode
					_, _ = io.Copy(io.Discard, response.Body) // the status is what counts
					_ = response.Body.Close()
				}
				mu.Lock()
				o.counts[status]++
				mu.Unlock()
			}
			return nil
		})
	}
	return o, group.Wait()
}
