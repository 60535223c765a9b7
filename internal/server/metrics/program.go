package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// program is a prometheus.Collector of the metrics of a program that is not a proxy.
type program struct {
	descs map[*metric]*prometheus.Desc
	read  func(reading)
}

// newProgram returns a handler of these metrics and those of the process. It has no metric
// of a proxy: alerts would take the program for one.
func newProgram(all []*metric, read func(reading)) http.Handler {
	p := &program{map[*metric]*prometheus.Desc{}, read}
	for _, d := range all {
		p.descs[d] = prometheus.NewDesc(d.name, d.help, d.labelNames(), nil)
	}
	r := prometheus.NewRegistry()
	r.MustRegister(p, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return handler(r)
}

func (p *program) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range p.descs {
		descs <- desc
	}
}

func (p *program) Collect(out chan<- prometheus.Metric) { p.read(reading{p.descs, out}) }
