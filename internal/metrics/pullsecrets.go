package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/pullpass/pullpass/internal/controller/tokensecrets"
)

var (
	pullSecretsLeader = &metric{
		name: "pullpass_pull_secrets_leader", kind: gauge, read: true,
		help: "1 if this replica leads. The others wait.",
		act:  "0 at all of them: no token is renewed, and each ends within the hour. The log says why the Lease is not to be had.",
	}
	pullSecretsNow = &metric{
		name: "pullpass_pull_secrets", kind: gauge, read: true,
		help:   "ServiceAccounts that have opted in: with a token that counts (`kept`), without one (`waiting`), and those whose Secret's name is somebody else's (`foreign`). Not there at replicas that do not lead.",
		labels: []label{{name: "state", values: []string{"kept", "waiting", "foreign"}}},
		act:    "`waiting` for minutes: see `pullpass_pull_secret_failures_total`. `foreign`: an event on the ServiceAccount names the Secret; delete that, or opt out.",
	}
	pullSecretOverdue = &metric{
		name: "pullpass_pull_secret_overdue_seconds", kind: gauge, read: true,
		help: "For how long a token that should have been made has not been, the longest of all; 0: none. Not there at replicas that do not lead.",
		act:  "A token ends 21 to 27 minutes after it was due. The log, and events on ServiceAccounts, say what fails.",
	}
	pullSecretWrites = &metric{
		name: "pullpass_pull_secret_writes_total", kind: counter, read: true,
		help:   "Secrets that were made, and tokens that were put into Secrets.",
		labels: []label{{name: "kind", values: []string{"secret", "token"}}},
		act:    "More than two tokens an hour for each ServiceAccount: somebody else changes the Secrets.",
	}
	pullSecretFailures = &metric{
		name: "pullpass_pull_secret_failures_total", kind: counter, read: true,
		help: "Attempts that failed. Each is repeated, after five minutes at last.",
		act:  "See `pullpass_pull_secret_overdue_seconds`.",
	}
	pullSecretMetrics = []*metric{pullSecretsLeader, pullSecretsNow, pullSecretOverdue, pullSecretWrites, pullSecretFailures}
)

// pullSecrets shows them at each scrape. It implements prometheus.Collector.
type pullSecrets struct {
	descs  map[*metric]*prometheus.Desc
	status func() tokensecrets.Status
}

// PullSecrets returns the metrics of "pullpass pull-secrets controller", and of its
// process. Those of a proxy are not among them: that one serves would be taken from
// them.
func PullSecrets(status func() tokensecrets.Status) http.Handler {
	p := &pullSecrets{map[*metric]*prometheus.Desc{}, status}
	for _, d := range pullSecretMetrics {
		p.descs[d] = prometheus.NewDesc(d.name, d.help, d.labelNames(), nil)
	}
	r := prometheus.NewRegistry()
	r.MustRegister(p, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return handler(r)
}

func (p *pullSecrets) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range p.descs {
		descs <- desc
	}
}

func (p *pullSecrets) Collect(out chan<- prometheus.Metric) {
	s, r := p.status(), reading{p.descs, out}
	r.show(pullSecretsLeader, number(s.Leads))
	r.show(pullSecretWrites, float64(s.Created), "secret")
	r.show(pullSecretWrites, float64(s.Renewed), "token")
	r.show(pullSecretFailures, float64(s.Failed))
	if !s.Leads {
		return
	}
	r.show(pullSecretsNow, float64(s.Kept), "kept")
	r.show(pullSecretsNow, float64(s.Waiting), "waiting")
	r.show(pullSecretsNow, float64(s.Foreign), "foreign")
	r.show(pullSecretOverdue, s.Overdue.Seconds())
}
