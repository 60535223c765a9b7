package kube

import "time"

// ClusterStatus is the state of the connection to a cluster's API server.
type ClusterStatus struct {
	Resources []ResourceStatus // only the watched ones
	Gets      GetCounts
	Reviews   ReviewCounts
}

// ReviewCounts counts TokenReviews since the start.
type ReviewCounts struct {
	Accepted uint64
	Refused  uint64 // the Secret was gone, or the token was invalid for a different reason
	Failed   uint64 // the answer could not be known
}

// ResourceStatus is the state of one resource.
type ResourceStatus struct {
	Resource    string    // as in URLs: serviceaccounts
	Synced      bool      // everything was listed once
	Optional    bool      // the other facts about the cluster count without it
	Overdue     bool      // its first list takes longer than a start waits for it
	Objects     int       // known now
	HeardAt     time.Time // when the API server last sent a list, a change or a bookmark; zero: never
	LastFailure string    // of a list or watch, with a remedy; empty after a success
}

// GetCounts counts live GETs since the start.
type GetCounts struct {
	Found  uint64 // the object existed
	Gone   uint64 // it did not exist, or not with that UID
	Failed uint64 // the answer could not be known
}

// Status is for readiness and metrics.
func (c *Cluster) Status() ClusterStatus {
	status := ClusterStatus{Gets: GetCounts{
		Found: c.live.found.Load(), Gone: c.live.absent.Load(), Failed: c.live.failed.Load(),
	}}
	status.Reviews = ReviewCounts{Accepted: c.reviews.accepted.Load(), Refused: c.reviews.refused.Load(), Failed: c.reviews.failed.Load()}
	for _, r := range c.watched() {
		status.Resources = append(status.Resources, r.status())
	}
	return status
}
