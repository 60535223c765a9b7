package metrics

import (
	"cmp"
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
		help: "Token requests, by outcome. containerd repeats a refused POST as a GET; if that is refused too, it is not counted again.",
		labels: []label{
			{name: "result", values: ClosedSet(exchange.Results()...), other: otherValue, means: "[results](audit.md#results)"},
			{name: "reason", values: reasonValues, other: otherValue, means: "[reasons](audit.md#reasons); empty: everything was granted"},
			requestedIssuer,
			requestedService,
			{name: "grant_type", values: ClosedSet(registryauth.GrantAnonymous, registryauth.GrantBasic, registryauth.GrantBearer,
				registryauth.GrantPassword, registryauth.GrantRefreshToken, registryauth.GrantTokenExchange, ""), other: otherValue,
				means: "empty: refused before the form of the request was known"},
		},
		act: alert("PullpassErrors", "PullpassUnavailable", "PullpassRefusing", "PullpassAnonymous"),
	}
	exchangeDuration = &metric{
		name: "pullpass_exchange_duration_seconds", kind: histogram,
		help:    "Time to answer a token request.",
		labels:  []label{exchangesTotal.labels[0]},
		buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		act:     alert("PullpassSlow"),
	}
	limited = &metric{
		name: "pullpass_limited_total", kind: counter,
		help:   "Token requests refused by a rate limit.",
		labels: []label{limitLabel},
		act:    alert("PullpassLimited"),
	}
	requestsInFlight = &metric{
		name: "pullpass_requests_in_flight", kind: gauge, read: true,
		help: "Token requests in progress.",
	}
	requestsWaiting = &metric{
		name: "pullpass_requests_waiting", kind: gauge, read: true,
		help: "Token requests in the queue.",
		act:  alert("PullpassOverloaded"),
	}
	openConnections = &metric{
		name: "pullpass_connections", kind: gauge, read: true,
		help: "Open connections of the public listener.",
		act:  alert("PullpassConnectionsFull"),
	}
	connectionsLimit = &metric{
		name: "pullpass_connections_limit", kind: gauge, read: true,
		help: "Connection limit, set by the memory limit. One address may have half.",
	}
	connectionsRefused = &metric{
		name: "pullpass_connections_refused_total", kind: counter, read: true,
		help: "Connections closed because their address had too many, or their place was needed before a request was complete. Also connections and requests refused because all requests together were too large.",
		act:  alert("PullpassConnectionsFull"),
	}

	legacyTokens = &metric{
		name: "pullpass_legacy_tokens_total", kind: counter,
		help:   "Refused secret-based ServiceAccount tokens.",
		labels: []label{{name: "cluster", from: fromClusters, means: "`clusters[].name`; empty: signed by no configured cluster"}},
		act:    alert("PullpassLegacyTokens"),
	}
	callerProofs = &metric{
		name: "pullpass_caller_proofs_total", kind: counter,
		help: "Checks that the caller is its token's node.",
		labels: []label{
			requestedCluster,
			{name: "mode", values: ClosedSet(nodeproof.Audit, nodeproof.Enforce), other: otherValue},
			{name: "result", values: []string{resultPassed, resultFailed}, other: otherValue},
			{name: "reason", values: append(ClosedSet(nodeproof.Reasons()...), ""), other: otherValue, means: "[reasons](../how-to/node-proof.md#roll-it-out); empty: passed"},
		},
		act: alert("PullpassCallerNotNode"),
	}
	replays = &metric{
		name: "pullpass_replays_total", kind: counter,
		help: "Checks that a token's first caller presents it.",
		labels: []label{
			requestedIssuer,
			{name: "mode", values: ClosedSet(exchange.ReplayAudit, exchange.ReplayEnforce), other: otherValue},
			{name: "result", values: append(ClosedSet(exchange.ReplayReasons()...), resultPassed), other: otherValue},
		},
		act: alert("PullpassReplay", "PullpassRedisDown"),
	}
	trialDifferences = &metric{
		name: "pullpass_trial_differences_total", kind: counter,
		help:   "Token requests that the policy trial would have decided differently.",
		labels: []label{{name: "change", values: []string{"gained", "lost"}, means: "access that only the trial grants, or only the policy"}},
		act:    alert("PullpassTrialLoses"),
	}
	exchangeMetrics = []*metric{
		exchangesTotal, exchangeDuration, requestsInFlight, requestsWaiting, openConnections, connectionsLimit, connectionsRefused, limited, legacyTokens, callerProofs, replays, trialDifferences,
	}
)

// Record counts one request.
func (m *Metrics) Record(event *exchange.Event) {
	if event.Gateway != nil {
		m.gateway(event)
		return
	}
	if event.Retry {
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
	gained, lost := event.TrialChange()
	if gained {
		m.count(trialDifferences, "gained")
	}
	if lost {
		m.count(trialDifferences, "lost")
	}
	if limit, ok := strings.CutPrefix(event.Reason, "limited_"); ok {
		m.count(limited, limit)
	}
}
