package main

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

// result is what one scenario measured.
type result struct {
	name, note       string
	page             string   // of k6's dashboard, in the directory of the report; empty: none
	faults           []string // objectives that it missed
	exchanges        float64
	seconds          float64
	median, p95, p99 float64 // milliseconds, as clients see it
	failed           float64
	cpu              float64 // seconds of the server
	peak             float64 // bytes of its resident memory
	samples          []sample
}

// newResult has what clients measured.
func newResult(name string, s *summary) result {
	times := s.Metrics["exchange_time"].Values
	return result{
		name: name, faults: s.faults(), exchanges: s.Metrics["exchanges"].Values["count"], seconds: s.State.Milliseconds / 1000,
		median: times["med"], p95: times["p(95)"], p99: times["p(99)"],
		failed: s.Metrics["exchange_failed"].Values["passes"], // k6 counts there how often a rate was true
	}
}

type report struct{ results []result }

// columns are the figures of the table.
var columns = []struct {
	name string
	text func(r *result) string
}{
	{"SCENARIO", func(r *result) string { return r.name }},
	{"EXCHANGES", func(r *result) string { return fmt.Sprintf("%.0f", r.exchanges) }},
	{"PER SECOND", func(r *result) string { return fmt.Sprintf("%.0f", r.exchanges/r.seconds) }},
	{"P50 MS", func(r *result) string { return fmt.Sprintf("%.1f", r.median) }},
	{"P95 MS", func(r *result) string { return fmt.Sprintf("%.1f", r.p95) }},
	{"P99 MS", func(r *result) string { return fmt.Sprintf("%.1f", r.p99) }},
	{"FAILED", func(r *result) string { return fmt.Sprintf("%.0f", r.failed) }},
	{"CPU S/1000", func(r *result) string { return fmt.Sprintf("%.3f", r.cpu*1000/r.exchanges) }},
	{"PEAK MIB", func(r *result) string { return fmt.Sprintf("%.0f", r.peak/(1<<20)) }},
	{"OBJECTIVES", func(r *result) string {
		if len(r.faults) > 0 {
			return "missed"
		}
		return "met"
	}},
	{"", func(r *result) string { return r.note }},
}

func (r *report) print(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(cell func(i int) string) {
		cells := make([]string, len(columns))
		for i := range columns {
			cells[i] = cell(i)
		}
		fmt.Fprintln(w, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
	}
	line(func(i int) string { return columns[i].name })
	for j := range r.results {
		line(func(i int) string { return columns[i].text(&r.results[j]) })
	}
	_ = w.Flush() // a terminal that is gone
}

func (r *report) faults() (faults []string) {
	for _, one := range r.results {
		for _, fault := range one.faults {
			faults = append(faults, one.name+": "+fault)
		}
	}
	return faults
}

//go:embed report.html
var page string

// write writes the page index.html, which needs nothing but itself, and returns its name.
func (r *report) write(dir string) (string, error) {
	t, err := template.New("report").Parse(page)
	if err != nil {
		return "", err
	}
	type section struct {
		Name, Note, Page string
		Faults           []string
		Plots            []template.HTML
	}
	var data struct {
		Columns  []string
		Rows     [][]string
		Sections []section
	}
	for _, c := range columns {
		data.Columns = append(data.Columns, c.name)
	}
	for i := range r.results {
		one := &r.results[i]
		var row []string
		for _, c := range columns {
			row = append(row, c.text(one))
		}
		data.Rows = append(data.Rows, row)
		if len(one.samples) < 2 {
			continue
		}
		s := section{Name: one.name, Note: one.note, Page: one.page, Faults: one.faults}
		for _, p := range plots {
			s.Plots = append(s.Plots, template.HTML(p.draw(one.samples))) // made of numbers and of names of ours
		}
		data.Sections = append(data.Sections, s)
	}
	name := filepath.Join(dir, "index.html")
	file, err := os.Create(name)
	if err != nil {
		return "", err
	}
	if err := t.Execute(file, data); err != nil {
		_ = file.Close() // what matters is why there is nothing in it
		return "", err
	}
	return name, file.Close()
}
