package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

const watchPeriod = time.Second

// sample is what Pullpass says of itself at one moment.
type sample struct {
	at         time.Duration // since the beginning
	cpu        float64       // seconds, so far
	resident   float64       // bytes
	heap       float64       // bytes in use, garbage included
	goroutines float64
	exchanges  float64 // so far
}

// sample reads the metrics of the admin listener.
func (s *site) sample(ctx context.Context, began time.Time) (sample, error) {
	text, err := s.ask(ctx, http.MethodGet, s.admin+"/metrics")
	if err != nil {
		return sample{}, err
	}
	values, err := sums(text, "process_cpu_seconds_total", "process_resident_memory_bytes", "go_memstats_heap_alloc_bytes",
		"go_goroutines", "pullpass_exchange_duration_seconds_count")
	if err != nil {
		return sample{}, err
	}
	return sample{time.Since(began), values[0], values[1], values[2], values[3], values[4]}, nil
}

// sums adds up the samples of each metric over its labels.
func sums(text []byte, names ...string) ([]float64, error) {
	values := make([]float64, len(names))
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		series, value, _ := strings.Cut(lines.Text(), " ")
		metric, _, _ := strings.Cut(series, "{")
		for i, name := range names {
			if metric != name {
				continue
			}
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return nil, fmt.Errorf("metric %s: %w", series, err)
			}
			values[i] += n
		}
	}
	return values, nil
}

// watch takes a sample each second until ctx ends, and a last one then.
func (s *site) watch(ctx context.Context, began time.Time) ([]sample, error) {
	var samples []sample
	tick := time.NewTicker(watchPeriod)
	defer tick.Stop()
	for {
		ended := ctx.Err() != nil
		one, err := s.sample(context.WithoutCancel(ctx), began)
		if err != nil {
			return nil, err
		}
		samples = append(samples, one)
		if ended {
			return samples, nil
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// usage is what a process has used so far: seconds of CPU, to 10 ms, and the most memory that was resident, in bytes.
func (p *process) usage() (cpu, peak float64, err error) {
	const ticks = 100 // a second: USER_HZ of every Linux
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	// The name of the program may hold spaces; it ends with the last parenthesis. See proc_pid_stat(5).
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	user, userErr := strconv.ParseFloat(fields[11], 64)
	system, systemErr := strconv.ParseFloat(fields[12], 64)
	status, statusErr := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err := errors.Join(userErr, systemErr, statusErr); err != nil {
		return 0, 0, fmt.Errorf("usage of %s: %w", p.name, err)
	}
	for line := range strings.Lines(string(status)) {
		if kilobytes, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			peak, err = strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(kilobytes), " kB"), 64)
		}
	}
	return (user + system) / ticks, peak * 1024, err
}
