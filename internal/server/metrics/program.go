package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// program has the metrics of a program that is not a proxy, and shows them at each
// scrape. It implements prometheus.Collector.
type program struct {
	descs map[*metric]*prometheus.Desc
	read  func(reading)
}

// newProgram returns these metrics and those of the process. Those of a proxy are not
// among them: that one serves would be taken from them.
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
