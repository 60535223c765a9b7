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
		help: "Requests at the gateway by outcome, but those without a token, which begin every pull.",
		labels: []label{
			upstreamLabel,
			{name: "kind", values: append(gateway.Kinds(), ""), other: otherValue, means: "what was asked for; empty: it is not known"},
			{name: "result", values: ClosedSet(exchange.Results()...), other: otherValue, means: "[results](audit.md#results)"},
			{name: "reason", values: reasonValues, other: otherValue, means: "[reasons](audit.md#gateway-reasons); empty: it was passed on whole"},
		},
		act: "`unavailable`: the upstream; the reason says what is wrong with it, [operations.md](../how-to/operations.md#the-gateway) what to do. Many `refused`: look the reason up in the audit log. `request_canceled`: clients that left, which is `granted`.",
	}
	gatewayDuration = &metric{
		name: "pullpass_gateway_duration_seconds", kind: histogram,
		help:    "Time of a request at the gateway, to the end of its body.",
		labels:  []label{upstreamLabel},
		buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
	}
	gatewayBytes = &metric{
		name: "pullpass_gateway_bytes_total", kind: counter,
		help:   "Bytes of bodies that went through the gateway, to clients (sent) and from them (received).",
		labels: []label{upstreamLabel, {name: "direction", values: []string{directionSent, directionReceived}, other: otherValue}},
	}
	gatewayStreams = &metric{
		name: "pullpass_gateway_requests_in_flight", kind: gauge, read: true,
		help: "Requests at the gateway that are worked on, bodies that are streamed among them.",
		act:  "Near `pullpass_connections_limit`: clients wait to connect. Run more replicas, or give them more memory.",
	}
	gatewayChallenges = &metric{
		name: "pullpass_gateway_challenges_total", kind: counter, read: true,
		help: "Requests without a token, which are told where to get one.",
		act:  "Many more than pulls: a client does not get a token; see `pullpass_exchanges_total`.",
	}
	upstreamFailing = &metric{
		name: "pullpass_upstream_failing", kind: gauge, read: true,
		help:   "1: the last request that Pullpass made by itself (GET /v2/) failed. It makes one each minute, and soon after a client's request has failed.",
		labels: []label{upstreamLabel},
		act:    "Pulls from it fail. `/readyz` says why.",
	}
	upstreamAnswered = &metric{
		name: "pullpass_upstream_answered_timestamp_seconds", kind: gauge, read: true,
		help:   "When the upstream last answered GET /v2/ as it should; 0: never. It is asked each minute.",
		labels: []label{upstreamLabel},
	}
	upstreamHeld = &metric{
		name: "pullpass_upstream_held", kind: gauge, read: true,
		help:   "1: the upstream answered GET /v2/ with 429, and is left alone for as long as it said. A 429 for one repository is not counted here.",
		labels: []label{upstreamLabel},
		act:    "Clients get 429. Ask the upstream for a higher limit, or use a credential that has one.",
	}
	upstreamTokens = &metric{
		name: "pullpass_upstream_token_requests_total", kind: counter, read: true,
		help:   "Requests to the token endpoint of the upstream.",
		labels: []label{upstreamLabel},
	}
	upstreamTokenFailures = &metric{
		name: "pullpass_upstream_token_failures_total", kind: counter, read: true,
		help:   "Those that brought no token.",
		labels: []label{upstreamLabel},
		act:    "The credential is wrong or has ended, or the token endpoint is down: the audit log has what it said.",
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
