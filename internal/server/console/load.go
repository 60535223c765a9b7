package console

import (
	"fmt"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
)

const minutes = 60 // number of minutes in the plot

// load counts the decisions of this replica, by minute of the last hour.
type load struct {
	buckets [minutes]bucket
}

type bucket struct {
	minute                   int64 // since 1970
	granted, refused, failed int
	seconds, most            float64 // latency: sum and maximum
}

func (l *load) add(e *exchange.Event) {
	minute := e.Time.Unix() / 60
	b := &l.buckets[minute%minutes]
	if b.minute > minute {
		return // it is an hour late
	}
	if b.minute < minute {
		*b = bucket{minute: minute}
	}
	switch e.Result {
	case exchange.ResultGranted, exchange.ResultPartial:
		b.granted++
	case exchange.ResultUnavailable, exchange.ResultError:
		b.failed++
	default:
		b.refused++
	}
	b.seconds += e.Latency
	b.most = max(b.most, e.Latency)
}

// last returns the buckets of the last hour, the oldest first.
func (l *load) last(now time.Time) []bucket {
	this := now.Unix() / 60
	all := make([]bucket, minutes)
	for i := range all {
		minute := this - minutes + 1 + int64(i)
		all[i].minute = minute
		if b := l.buckets[minute%minutes]; b.minute == minute {
			all[i] = b
		}
	}
	return all
}

// plot holds the bars of the last hour, in an SVG of minutes*plotStep times plotHeight.
type plot struct {
	Title, Summary string
	Unit           string
	Most           float64
	Bars           []bar
}

type bar struct {
	Class               string
	X, Y, Width, Height int
	Title               string
}

const (
	plotStep   = 10
	plotHeight = 100
)

// series is one kind of bars, stacked on the previous kinds.
type series struct {
	class, name string
	value       func(*bucket) float64
}

func newPlot(title, unit string, buckets []bucket, all ...series) plot {
	p := plot{Title: title, Unit: unit}
	for i := range buckets {
		sum := 0.0
		for _, s := range all {
			sum += s.value(&buckets[i])
		}
		p.Most = max(p.Most, sum)
	}
	for i := range buckets {
		bottom := float64(plotHeight)
		for _, s := range all {
			value := s.value(&buckets[i])
			height := 0.0
			if p.Most > 0 {
				height = value / p.Most * plotHeight
			}
			bottom -= height
			if value > 0 {
				p.Bars = append(p.Bars, bar{
					Class: s.class, X: i * plotStep, Y: int(bottom), Width: plotStep - 2, Height: max(1, int(height)),
					Title: time.Unix(buckets[i].minute*60, 0).UTC().Format("15:04") + " UTC, " + s.name + ": " + number(value) + " " + unit,
				})
			}
		}
	}
	return p
}

func plots(buckets []bucket) []plot {
	var granted, refused, failed int
	var seconds, most float64
	for i := range buckets {
		b := &buckets[i]
		granted, refused, failed, seconds, most = granted+b.granted, refused+b.refused, failed+b.failed, seconds+b.seconds, max(most, b.most)
	}
	decisions := newPlot("Decisions of the last hour, by minute", "a minute", buckets,
		series{"granted", "granted", func(b *bucket) float64 { return float64(b.granted) }},
		series{"refused", "refused", func(b *bucket) float64 { return float64(b.refused) }},
		series{"failed", "failed", func(b *bucket) float64 { return float64(b.failed) }})
	decisions.Summary = fmt.Sprintf("%d granted, %d refused, %d failed", granted, refused, failed)
	mean := func(b *bucket) float64 {
		if n := b.granted + b.refused + b.failed; n > 0 {
			return b.seconds / float64(n) * 1000
		}
		return 0
	}
	latency := newPlot("Time of an answer, mean and longest", "ms", buckets,
		series{"mean", "mean", mean},
		series{"most", "longest", func(b *bucket) float64 { return b.most*1000 - mean(b) }})
	latency.Summary = "none"
	if n := granted + refused + failed; n > 0 {
		latency.Summary = fmt.Sprintf("mean %s ms, longest %s ms", number(seconds/float64(n)*1000), number(most*1000))
	}
	return []plot{decisions, latency}
}
