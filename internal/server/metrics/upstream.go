package metrics

import (
	"github.com/pullpass/pullpass/internal/cluster/kube"
	"github.com/pullpass/pullpass/internal/cluster/objectstatus"
	"github.com/pullpass/pullpass/internal/oidc"
)

var (
	issuerKeys = &metric{
		name: "pullpass_issuer_keys", kind: gauge, read: true,
		help:   "Accepted keys.",
		labels: []label{issuerLabel},
		act:    alert("PullpassIssuerKeysMissing"),
	}
	issuerKeysFetched = &metric{
		name: "pullpass_issuer_keys_fetched_timestamp_seconds", kind: gauge, read: true,
		help:   "Time of the last successful fetch of the keys; 0: never.",
		labels: []label{issuerLabel},
		act:    alert("PullpassIssuerKeysOld"),
	}
	issuerKeyFetches = &metric{
		name: "pullpass_issuer_key_fetches_total", kind: counter, read: true,
		help:   "Attempts to fetch the keys.",
		labels: []label{issuerLabel, outcomeLabel},
		act:    alert("PullpassIssuerKeysOld"),
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
		help:   "1 after all objects were listed once.",
		labels: []label{clusterLabel, resourceLabel},
		act:    "0 for minutes: the API server is unreachable, or RBAC denies access: see the log. Meanwhile, each token request fetches its objects one by one.",
	}
	kubernetesHeard = &metric{
		name: "pullpass_kubernetes_heard_timestamp_seconds", kind: gauge, read: true,
		help:   "Time of the API server's last list, change or bookmark; 0: never.",
		labels: []label{clusterLabel, resourceLabel},
		act:    alert("PullpassKubernetesSilent"),
	}
	kubernetesObjects = &metric{
		name: "pullpass_kubernetes_objects", kind: gauge, read: true,
		help:   "Known objects.",
		labels: []label{clusterLabel, resourceLabel},
	}
	kubernetesConfirmations = &metric{
		name: "pullpass_kubernetes_confirmations_total", kind: counter, read: true,
		help:   "Unknown objects that Pullpass fetched by name; `failed`: the API server gave no answer.",
		labels: []label{clusterLabel, {name: "result", values: []string{"found", "gone", "failed"}, other: otherValue}},
		act:    alert("PullpassConfirmationsFail") + ". Many `found`: the watch is behind.",
	}
	tokenReviews = &metric{
		name: "pullpass_token_reviews_total", kind: counter, read: true,
		help:   "TokenReviews of tokens in pull secrets; `failed`: the API server gave no answer.",
		labels: []label{clusterLabel, {name: "result", values: []string{"accepted", "refused", "failed"}, other: otherValue}},
		act:    alert("PullpassConfirmationsFail") + ". Many `refused`: a client still uses a deleted Secret.",
	}
	podEvents = &metric{
		name: "pullpass_pod_events_total", kind: counter, read: true,
		help:   "Events written on pods.",
		labels: []label{clusterLabel},
	}
	podEventFailures = &metric{
		name: "pullpass_pod_event_failures_total", kind: counter, read: true,
		help:   "Events that could not be written, or were dropped because the queue was full.",
		labels: []label{clusterLabel},
		act:    alert("PullpassPodEventsLost"),
	}
	objectStatusLeader = &metric{
		name: "pullpass_object_status_leader", kind: gauge, read: true,
		help:   "1 if this replica writes the status of policy objects. Absent without `objects.status`.",
		labels: []label{clusterLabel},
		act:    alert("PullpassObjectStatusOld"),
	}
	objectStatusWrites = &metric{
		name: "pullpass_object_status_writes_total", kind: counter, read: true,
		help:   "Written statuses of policy objects; unchanged ones are not written.",
		labels: []label{clusterLabel},
		act:    "Grows while nothing changes: another client writes them, perhaps another installation with `objects.status`.",
	}
	objectStatusFailures = &metric{
		name: "pullpass_object_status_failures_total", kind: counter, read: true,
		help:   "Failed writes. Pullpass then waits 5 seconds to 5 minutes, except after a refusal for one object.",
		labels: []label{clusterLabel},
		act:    alert("PullpassObjectStatusOld"),
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
