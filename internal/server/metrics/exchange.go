package metrics

import (
	"cmp"
	"net/http"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// reasonValues are the same at both endpoints.
var reasonValues = append(ClosedSet(refusal.Reasons()...), "")

var limitLabel = label{name: "limit", values: []string{"service_account", "address"}, other: otherValue}

var (
	exchangesTotal = &metric{
		name: "pullpass_exchanges_total", kind: counter,
		help: "Token requests by outcome. The GET with which containerd repeats a refused POST is not counted again.",
		labels: []label{
			{name: "result", values: ClosedSet(exchange.Results()...), other: otherValue, means: "[results](audit.md#results)"},
			{name: "reason", values: reasonValues, other: otherValue, means: "[reasons](audit.md#reasons); empty: all was granted"},
			requestedIssuer,
			requestedService,
			{name: "grant_type", values: ClosedSet(registryauth.GrantAnonymous, registryauth.GrantBasic, registryauth.GrantBearer,
				registryauth.GrantPassword, registryauth.GrantRefreshToken, registryauth.GrantTokenExchange, ""), other: otherValue,
				means: "empty: refused before the form of the request was known"},
		},
		act: "Many `refused`: look the reason up in the audit log. `unavailable`: something that answers depend on is down; `/readyz` names it. " +
			"`error`: a fault of Pullpass; the log has it under the id of the audit line. `anonymous`: a kubelet does not send its pods' tokens.",
	}
	exchangeDuration = &metric{
		name: "pullpass_exchange_duration_seconds", kind: histogram,
		help:    "Time to answer a token request.",
		labels:  []label{exchangesTotal.labels[0]},
		buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		act:     "See which span of a trace is long. Without traces, look at key fetches, confirmations and calls to Redis below.",
	}
	limited = &metric{
		name: "pullpass_limited_total", kind: counter,
		help:   "Token requests that were refused because there were too many, by the limit.",
		labels: []label{limitLabel},
		act:    "The audit log has who it was. Raise `limits`, or stop the caller.",
	}
	requestsInFlight = &metric{
		name: "pullpass_requests_in_flight", kind: gauge, read: true,
		help: "Token requests that are worked on.",
	}
	requestsWaiting = &metric{
		name: "pullpass_requests_waiting", kind: gauge, read: true,
		help: "Token requests that wait because too many are worked on.",
		act:  "Above 0 for minutes: see what is slow, or run more replicas.",
	}
	openConnections = &metric{
		name: "pullpass_connections", kind: gauge, read: true,
		help: "Connections of the public listener.",
		act:  "Near `pullpass_connections_limit`: clients wait to connect. Run more replicas, or give them more memory.",
	}
	connectionsLimit = &metric{
		name: "pullpass_connections_limit", kind: gauge, read: true,
		help: "How many there may be, as memory allows. One address may have half as many.",
	}
	connectionsRefused = &metric{
		name: "pullpass_connections_refused_total", kind: counter, read: true,
		help: "Connections that were closed because their address had too many, or because others needed the place of one without a whole request; and connections and requests because all together sent too much.",
		act:  "An address that many share: see [capacity.md](capacity.md#connections). Otherwise a client tries to use up the connections.",
	}

	legacyTokens = &metric{
		name: "pullpass_legacy_tokens_total", kind: counter,
		help:   "Refused secret-based ServiceAccount tokens, by the cluster that signed them.",
		labels: []label{{name: "cluster", from: fromClusters, means: "`clusters[].name`; empty: signed by none of them"}},
		act:    "The audit log names the Secrets: delete them, and give their users tokens that end.",
	}
	callerProofs = &metric{
		name: "pullpass_caller_proofs_total", kind: counter,
		help: "Callers by whether they are the node of their token.",
		labels: []label{
			requestedCluster,
			{name: "mode", values: ClosedSet(nodeproof.Audit, nodeproof.Enforce), other: otherValue},
			{name: "result", values: []string{resultPassed, resultFailed}, other: otherValue},
			{name: "reason", values: append(ClosedSet(nodeproof.Reasons()...), ""), other: otherValue, means: "[reasons of proofs](audit.md#reasons); empty: passed"},
		},
		act: "Before `enforce`, this must be all `passed`. [node-proof.md](../how-to/node-proof.md) says what each reason asks for.",
	}
	replays = &metric{
		name: "pullpass_replays_total", kind: counter,
		help: "Tokens by whether their first caller presented them: passed, or why that was not so or not known.",
		labels: []label{
			requestedIssuer,
			{name: "mode", values: ClosedSet(exchange.ReplayAudit, exchange.ReplayEnforce), other: otherValue},
			{name: "result", values: append(ClosedSet(exchange.ReplayReasons()...), resultPassed), other: otherValue},
		},
		act: "`other_caller`: a token was stolen, or nodes share or change their addresses; the audit log has both callers. `unavailable`: see Redis.",
	}
	exchangeMetrics = []*metric{
		exchangesTotal, exchangeDuration, requestsInFlight, requestsWaiting, openConnections, connectionsLimit, connectionsRefused, limited, legacyTokens, callerProofs, replays,
	}
)

// Record counts one request.
func (m *Metrics) Record(event *exchange.Event) {
	if event.Gateway != nil {
		m.gateway(event)
		return
	}
	if event.Retry && event.Status >= http.StatusBadRequest {
		return // containerd repeats a refused POST as a GET: one attempt, refused once
	}
	result := string(event.Result)
	m.count(exchangesTotal, result, event.Reason, event.IssuerName(), event.Service, event.GrantType)
	m.observe(exchangeDuration, time.Duration(event.Latency*float64(time.Second)), result)
	if event.Reason == string(refusal.TokenLegacy) {
		m.count(legacyTokens, event.Cluster)
	}
	if p := event.Proof; p != nil {
		result := resultFailed
		if p.Passed {
			result = resultPassed
		}
		m.count(callerProofs, event.Cluster, string(p.Mode), result, string(p.Reason))
	}
	if r := event.Replay; r != nil {
		m.count(replays, event.IssuerName(), string(r.Mode), cmp.Or(string(r.Reason), resultPassed))
	}
	if limit, ok := strings.CutPrefix(event.Reason, "limited_"); ok {
		m.count(limited, limit)
	}
}
