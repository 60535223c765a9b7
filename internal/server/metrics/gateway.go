package metrics

import (
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/gateway"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
)

var (
	upstreamLabel = label{name: "upstream", from: fromUpstreams, other: unknownUpstream, means: "`upstreams[].name`; `unknown`: any other"}

	gatewayRequests = &metric{
		name: "pullpass_gateway_requests_total", kind: counter,
		help: "Gateway requests with a token, by outcome. The first request of every pull has none.",
		labels: []label{
			upstreamLabel,
			{name: "kind", values: append(gateway.Kinds(), ""), other: otherValue, means: "kind of request; empty: unknown"},
			{name: "result", values: ClosedSet(exchange.Results()...), other: otherValue, means: "[results](audit.md#results)"},
			{name: "reason", values: reasonValues, other: otherValue, means: "[reasons](audit.md#gateway-reasons); empty: completely forwarded"},
		},
		act: "[The gateway](../how-to/operations.md#the-gateway), by reason.",
	}
	gatewayDuration = &metric{
		name: "pullpass_gateway_duration_seconds", kind: histogram,
		help:    "Time of a gateway request, to the end of its body.",
		labels:  []label{upstreamLabel},
		buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
	}
	gatewayBytes = &metric{
		name: "pullpass_gateway_bytes_total", kind: counter,
		help:   "Body bytes to clients (sent) and from clients (received).",
		labels: []label{upstreamLabel, {name: "direction", values: []string{directionSent, directionReceived}, other: otherValue}},
	}
	gatewayStreams = &metric{
		name: "pullpass_gateway_requests_in_flight", kind: gauge, read: true,
		help: "Gateway requests in progress, with their bodies.",
		act:  alert("PullpassConnectionsFull"),
	}
	gatewayChallenges = &metric{
		name: "pullpass_gateway_challenges_total", kind: counter, read: true,
		help: "Gateway requests without a token. The response names the token endpoint.",
		act:  "Many more than pulls: a client gets no token; see `pullpass_exchanges_total`.",
	}
	upstreamFailing = &metric{
		name: "pullpass_upstream_failing", kind: gauge, read: true,
		help:   "1: the last health check (GET /v2/) failed. There is one each minute, and soon after a failed request of a client.",
		labels: []label{upstreamLabel},
		act:    alert("PullpassUpstreamFailing"),
	}
	upstreamAnswered = &metric{
		name: "pullpass_upstream_answered_timestamp_seconds", kind: gauge, read: true,
		help:   "Time of the last successful health check; 0: never.",
		labels: []label{upstreamLabel},
	}
	upstreamHeld = &metric{
		name: "pullpass_upstream_held", kind: gauge, read: true,
		help:   "1: the upstream answered GET /v2/ with 429, and gets no requests for up to five seconds. A 429 for one repository does not count.",
		labels: []label{upstreamLabel},
		act:    alert("PullpassUpstreamLimited"),
	}
	upstreamTokens = &metric{
		name: "pullpass_upstream_token_requests_total", kind: counter, read: true,
		help:   "Requests to the upstream's token endpoint.",
		labels: []label{upstreamLabel},
	}
	upstreamTokenFailures = &metric{
		name: "pullpass_upstream_token_failures_total", kind: counter, read: true,
		help:   "Failed requests to the upstream's token endpoint.",
		labels: []label{upstreamLabel},
		act:    "The credential is wrong or expired, or the token endpoint is down: see the audit log.",
	}
	gatewayMetrics = []*metric{
		gatewayRequests, gatewayDuration, gatewayBytes, gatewayStreams, gatewayChallenges,
		upstreamFailing, upstreamAnswered, upstreamHeld, upstreamTokens, upstreamTokenFailures,
	}
)

const (
	unknownUpstream   = "unknown" // every upstream that is not configured
	directionSent     = "sent"
	directionReceived = "received"
)

func (m *Metrics) gateway(event *exchange.Event) {
	g := event.Gateway
	m.count(gatewayRequests, g.Upstream, g.Kind, string(event.Result), event.Reason)
	m.observe(gatewayDuration, time.Duration(event.Latency*float64(time.Second)), g.Upstream)
	m.add(gatewayBytes, g.Sent, g.Upstream, directionSent)
	m.add(gatewayBytes, g.Received, g.Upstream, directionReceived)
}

func (r reading) gateway(load gateway.Load) {
	r.show(gatewayStreams, float64(load.Streams))
	r.show(gatewayChallenges, float64(load.Challenges))
}

func (r reading) upstream(name string, status upstream.Status) {
	r.show(upstreamFailing, number(status.Failure != ""), name)
	r.show(upstreamAnswered, timestamp(status.AnsweredAt), name)
	r.show(upstreamHeld, number(status.Held), name)
	r.show(upstreamTokens, float64(status.TokenRequests), name)
	r.show(upstreamTokenFailures, float64(status.TokenFailures), name)
}
