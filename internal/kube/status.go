package kube

import "time"

// ClusterStatus says how the connection to a cluster's API server is.
type ClusterStatus struct {
	Resources []ResourceStatus // that are watched
	Gets      GetCounts
	Reviews   ReviewCounts
}

// ReviewCounts counts TokenReviews since the start.
type ReviewCounts struct {
	Accepted uint64
	Refused  uint64 // the Secret was gone, or the token is not good for another reason
	Failed   uint64 // it could not be known
}

// ResourceStatus says how far one resource is known.
type ResourceStatus struct {
	Resource    string    // as in URLs: serviceaccounts
	Synced      bool      // everything was listed once
	Optional    bool      // whatever else is known of the cluster counts without it
	Objects     int       // known now
	HeardAt     time.Time // when the API server last sent a list, a change, or word that there was none; zero: never
	LastFailure string    // of a list or watch, with what to do; empty once one succeeded again
}

// GetCounts counts live GETs since the start.
type GetCounts struct {
	Found  uint64 // the object was there
	Gone   uint64 // it was not, or not with that UID
	Failed uint64 // it could not be known
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
