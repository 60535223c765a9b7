package main

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

// steadySamples is a minute of a process whose heap goes up and down between 20 and 40 MiB.
func steadySamples() []sample {
	samples := make([]sample, 60)
	for i := range samples {
		samples[i] = sample{
			at: time.Duration(i) * time.Second, cpu: float64(i) / 2, resident: 60 << 20, heap: float64(20+5*(i%5)) * (1 << 20),
			goroutines: float64(30 + i%10), exchanges: float64(100 * i),
		}
	}
	return samples
}

func TestGrowth(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(i int, s *sample)
		want   string // part of the only fault; empty: none
	}{
		{"as it should be", func(int, *sample) {}, ""},
		{"more at first", func(i int, s *sample) {
			if i < 20 {
				s.heap, s.resident = s.heap/4, s.resident/2
			}
		}, ""},
		{"a peak in the end", func(i int, s *sample) {
			if i == 59 {
				s.heap, s.goroutines = 1<<30, 1000
			}
		}, ""},
		{"live heap", func(i int, s *sample) { s.heap += float64(i) * (1 << 18) * 2 }, "live heap (MiB) grew from 30.0 to 40.0"},
		{"resident memory", func(i int, s *sample) { s.resident += float64(i) * (1 << 20) * 2 }, "resident memory (MiB) grew from 100.0 to 140.0"},
		{"goroutines", func(i int, s *sample) { s.goroutines += float64(10 * i) }, "goroutines grew from 230.0 to 430.0"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			samples := steadySamples()
			for i := range samples {
				test.change(i, &samples[i])
			}
			faults := growth(options{duration: time.Minute}, samples)
			if test.want == "" && len(faults) > 0 || test.want != "" && (len(faults) != 1 || faults[0] != test.want) {
				t.Errorf("got %q, want %q", faults, test.want)
			}
		})
	}
}

func TestGrowthOfRenewedTokens(t *testing.T) {
	t.Parallel()
	samples := steadySamples()
	for i := range samples {
		samples[i].heap += float64(i) * (1 << 18) * 2
	}
	// In a day, each pod has 30 tokens.
	if faults := growth(options{duration: 24 * time.Hour}, samples); len(faults) > 0 {
		t.Errorf("got %q", faults)
	}
	if faults := growth(options{duration: time.Minute}, samples[:8]); len(faults) != 1 || !strings.Contains(faults[0], "too short") {
		t.Errorf("8 samples: got %q", faults)
	}
}

func TestSums(t *testing.T) {
	t.Parallel()
	const text = `# HELP a_total Something.
# TYPE a_total counter
a_total{result="granted"} 40
a_total{result="refused",reason="token_expired"} 2
a_total_other 1
b 1.5e+07
`
	got, err := sums([]byte(text), "a_total", "b", "c")
	if err != nil || !reflect.DeepEqual(got, []float64{42, 15_000_000, 0}) {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := sums([]byte("a many\n"), "a"); err == nil || !strings.Contains(err.Error(), "metric a") {
		t.Errorf("got %v", err)
	}
}

func TestSummaryFaults(t *testing.T) {
	t.Parallel()
	var s summary
	err := json.Unmarshal([]byte(`{"metrics": {
		"exchange_time":   {"values": {"p(95)": 72.25, "p(99)": 80}, "thresholds": {"p(95)<50": {"ok": false}, "p(99)<100": {"ok": true}}},
		"exchange_failed": {"values": {"rate": 0.5, "passes": 3}, "thresholds": {"rate==0": {"ok": false}}},
		"exchanges":       {"values": {"count": 6}}
	}}`), &s)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"exchange_failed: rate==0", "exchange_time: p(95)<50, and it is 72.25"}
	if got := s.faults(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %q", got)
	}
	if r := newResult("storm", &s); r.failed != 3 || r.exchanges != 6 || r.p95 != 72.25 || len(r.faults) != 2 {
		t.Errorf("got %+v", r)
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	r := report{[]result{
		{name: "steady", note: "50 pulls a second", page: "steady.html", exchanges: 3000, seconds: 30, median: 1.25, p95: 4, p99: 9, cpu: 1.5, peak: 40 << 20, samples: steadySamples()},
		{name: "storm", faults: []string{"exchange_failed: rate==0"}, exchanges: 10, seconds: 1, failed: 2, cpu: 1, peak: 1 << 20},
	}}
	var out strings.Builder
	r.print(&out)
	lines := strings.Split(out.String(), "\n")
	if fields := strings.Fields(lines[1]); !reflect.DeepEqual(fields[:10], []string{"steady", "3000", "100", "1.2", "4.0", "9.0", "0", "0.500", "40", "met"}) {
		t.Errorf("row %q", fields)
	}
	if !strings.Contains(lines[2], "missed") {
		t.Errorf("row %q", lines[2])
	}
	if faults := r.faults(); !reflect.DeepEqual(faults, []string{"storm: exchange_failed: rate==0"}) {
		t.Errorf("faults %q", faults)
	}

	name, err := r.write(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<td>0.500</td>", `href="steady.html"`, "<svg", "resident memory, MiB"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, foreign := range []string{"http://", "https://", "<script"} {
		if strings.Contains(string(page), foreign) {
			t.Errorf("the page needs more than itself: %s", foreign)
		}
	}
}

func TestPlot(t *testing.T) {
	t.Parallel()
	svg := plots[0].draw(steadySamples())
	for decoder := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v in %s", err, svg)
		}
	}
	// 100 exchanges in every second: a line at the top of a scale to 100.
	if !strings.Contains(svg, ">100<") || !strings.Contains(svg, "420.0,24.0\"") {
		t.Errorf("got %s", svg)
	}
	for v, want := range map[float64]float64{0: 1, 0.3: 0.5, 1: 1, 1.2: 2, 99: 100, 101: 200, 501: 1000} {
		if got := ceiling(v); math.Abs(got-want) > 1e-9 {
			t.Errorf("ceiling(%g) is %g, want %g", v, got, want)
		}
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	chosen, err := choose([]string{"soak", "storm"})
	if err != nil || len(chosen) != 2 || chosen[0].name != "soak" || chosen[1].name != "storm" {
		t.Errorf("got %v, %v", chosen, err)
	}
	if err := run(context.Background(), []string{"strom"}, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), `no scenario "strom"`) {
		t.Errorf("got %v", err)
	}
	var usage strings.Builder
	if err := run(context.Background(), []string{"-h"}, io.Discard, &usage); !errors.Is(err, flag.ErrHelp) || !strings.Contains(usage.String(), "rotation") {
		t.Errorf("got %v and %q", err, &usage)
	}
}
