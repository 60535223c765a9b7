package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
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
		if ended && len(samples) > 1 && one.at-samples[len(samples)-1].at < watchPeriod/2 {
			samples = samples[:len(samples)-1] // rates over a moment mean nothing
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

// usage is what a process has used so far.
type usage struct {
	cpu  float64 // seconds
	peak float64 // bytes, the most that was resident
}

func (p *process) usage() (usage, error) {
	var u usage
	proc := fmt.Sprintf("/proc/%d", p.cmd.Process.Pid)
	// Not stat, which counts in hundredths of a second. Threads that have ended are missing here; Go keeps its threads.
	threads, err := filepath.Glob(proc + "/task/*/schedstat")
	if err != nil {
		return usage{}, err
	}
	for _, name := range threads {
		var nanoseconds float64
		text, err := os.ReadFile(name)
		if err == nil {
			_, err = fmt.Sscan(string(text), &nanoseconds)
		}
		if err != nil {
			return usage{}, fmt.Errorf("%s: %w", name, err)
		}
		u.cpu += nanoseconds / 1e9
	}
	u.peak, err = p.memory("VmHWM")
	return u, err
}

// resident is what is resident now, in bytes.
func (p *process) resident() (float64, error) { return p.memory("VmRSS") }

func (p *process) memory(field string) (bytes float64, err error) {
	name := fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid)
	status, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	_, line, _ := strings.Cut(string(status), field+":")
	if _, err := fmt.Sscanf(strings.TrimSpace(line), "%g kB", &bytes); err != nil {
		return 0, fmt.Errorf("%s: %s: %w", name, field, err)
	}
	return bytes * 1024, nil
}
