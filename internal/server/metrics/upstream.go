package metrics

import (
	"github.com/pullpass/pullpass/internal/cluster/kube"
	"github.com/pullpass/pullpass/internal/cluster/objectstatus"
	"github.com/pullpass/pullpass/internal/oidc"
)

var (
	issuerKeys = &metric{
		name: "pullpass_issuer_keys", kind: gauge, read: true,
		help:   "Keys of the issuer that are believed now.",
		labels: []label{issuerLabel},
		act:    "0: tokens of this issuer get a 503. The log and `/readyz` say why the keys cannot be fetched.",
	}
	issuerKeysFetched = &metric{
		name: "pullpass_issuer_keys_fetched_timestamp_seconds", kind: gauge, read: true,
		help:   "When the keys were last fetched; 0: never.",
		labels: []label{issuerLabel},
		act:    "Older than an hour: fetches fail. The keys are believed until `discovery.maxKeyAge`; mend the way to the issuer before that.",
	}
	issuerKeyFetches = &metric{
		name: "pullpass_issuer_key_fetches_total", kind: counter, read: true,
		help:   "Attempts to fetch the keys.",
		labels: []label{issuerLabel, outcomeLabel},
		act:    "`failure`: see `pullpass_issuer_keys_fetched_timestamp_seconds`.",
	}
)

func (r reading) issuer(s oidc.IssuerStatus) {
	r.show(issuerKeys, float64(s.Keys), s.Name)
	r.show(issuerKeysFetched, timestamp(s.FetchedAt), s.Name)
	r.show(issuerKeyFetches, float64(s.Fetches-s.Failures), s.Name, resultSuccess)
	r.show(issuerKeyFetches, float64(s.Failures), s.Name, resultFailure)
}

var (
	resourceLabel = label{name: "resource", values: []string{"serviceaccounts", "namespaces", "pods", "nodes", "accesspolicies", "repositoryaccesses"}, other: otherValue}

	kubernetesSynced = &metric{
		name: "pullpass_kubernetes_synced", kind: gauge, read: true,
		help:   "1 when all objects of the resource were listed once.",
		labels: []label{clusterLabel, resourceLabel},
		act:    "0 for minutes: the API server cannot be reached, or may not be asked (RBAC); the log says which. Until then each request asks for its objects one by one.",
	}
	kubernetesHeard = &metric{
		name: "pullpass_kubernetes_heard_timestamp_seconds", kind: gauge, read: true,
		help:   "When the API server last sent a list, a change, or word that there was none; 0: never.",
		labels: []label{clusterLabel, resourceLabel},
		act:    "API servers send word once a minute. Older than ten minutes: what was deleted since counts as alive. See the log and the way to the API server.",
	}
	kubernetesObjects = &metric{
		name: "pullpass_kubernetes_objects", kind: gauge, read: true,
		help:   "Objects of the resource that are known now.",
		labels: []label{clusterLabel, resourceLabel},
	}
	kubernetesConfirmations = &metric{
		name: "pullpass_kubernetes_confirmations_total", kind: counter, read: true,
		help:   "Objects that were not known and asked for by name: found, gone, or failed if that could not be known.",
		labels: []label{clusterLabel, {name: "result", values: []string{"found", "gone", "failed"}, other: otherValue}},
		act:    "`failed`: those requests got a 503; see whether the API server answers in time. Many `found`: the watch is behind.",
	}
	tokenReviews = &metric{
		name: "pullpass_token_reviews_total", kind: counter, read: true,
		help:   "Tokens of pull secrets that the API server was asked about: accepted, refused, or failed if that could not be known.",
		labels: []label{clusterLabel, {name: "result", values: []string{"accepted", "refused", "failed"}, other: otherValue}},
		act:    "`failed`: those requests got a 503; see whether the API server answers in time, and whether the proxy's ClusterRole may `create` `tokenreviews`. Many `refused`: a client still uses a Secret that was deleted.",
	}
	podEvents = &metric{
		name: "pullpass_pod_events_total", kind: counter, read: true,
		help:   "Events on pods that were written.",
		labels: []label{clusterLabel},
	}
	podEventFailures = &metric{
		name: "pullpass_pod_event_failures_total", kind: counter, read: true,
		help:   "Events on pods that could not be written, or that were dropped because too many waited.",
		labels: []label{clusterLabel},
		act:    "Pods are not told why they were refused. The log says why; it is `create` and `patch` on `events` that is needed.",
	}
	objectStatusLeader = &metric{
		name: "pullpass_object_status_leader", kind: gauge, read: true,
		help:   "1 if this replica writes the status of policy objects; there where `objects.status` is set.",
		labels: []label{clusterLabel},
		act:    "0 at all replicas: statuses become outdated; the grants of objects do not depend on them. The log says why the Lease is not to be had.",
	}
	objectStatusWrites = &metric{
		name: "pullpass_object_status_writes_total", kind: counter, read: true,
		help:   "Statuses of policy objects that were written: where they differed.",
		labels: []label{clusterLabel},
		act:    "It grows while nothing changes: another client writes them, perhaps another installation with `objects.status`.",
	}
	objectStatusFailures = &metric{
		name: "pullpass_object_status_failures_total", kind: counter, read: true,
		help:   "Attempts to write statuses after which it waited, 5 seconds to 5 minutes, or that the API server refused for one object.",
		labels: []label{clusterLabel},
		act:    "The log says why: without the rights of `deploy/kubernetes/policy-objects-status.yaml`, nothing is written.",
	}
	upstreamMetrics = []*metric{
		issuerKeys, issuerKeysFetched, issuerKeyFetches,
		kubernetesSynced, kubernetesHeard, kubernetesObjects, kubernetesConfirmations, tokenReviews, podEvents, podEventFailures,
		objectStatusLeader, objectStatusWrites, objectStatusFailures,
	}
)

func (r reading) objectStatus(cluster string, s objectstatus.Status) {
	r.show(objectStatusLeader, number(s.Leads), cluster)
	r.show(objectStatusWrites, float64(s.Writes), cluster)
	r.show(objectStatusFailures, float64(s.Failures+s.Refused), cluster)
}

func (r reading) cluster(name string, status kube.ClusterStatus) {
	for _, s := range status.Resources {
		r.show(kubernetesSynced, number(s.Synced), name, s.Resource)
		r.show(kubernetesHeard, timestamp(s.HeardAt), name, s.Resource)
		r.show(kubernetesObjects, float64(s.Objects), name, s.Resource)
	}
	r.show(kubernetesConfirmations, float64(status.Gets.Found), name, "found")
	r.show(kubernetesConfirmations, float64(status.Gets.Gone), name, "gone")
	r.show(kubernetesConfirmations, float64(status.Gets.Failed), name, "failed")
	r.show(tokenReviews, float64(status.Reviews.Accepted), name, "accepted")
	r.show(tokenReviews, float64(status.Reviews.Refused), name, "refused")
	r.show(tokenReviews, float64(status.Reviews.Failed), name, "failed")
}
