package main

import (
	"math"

	"github.com/pullpass/pullpass/loadtest/fleet"
)

// limit is limits.perServiceAccount. Addresses are not limited here: perAddress counts only requests without a good
// credential, and a storm has none.
type limit struct {
	Rate, Burst float64 // no rate: no limit
	Shared      bool    // by all replicas, in Redis; else each counts for itself
	PerNode     bool    // a bucket for each node of the ServiceAccount
}

// bucket names one: the cluster is part of the name, so clusters do not share them.
type bucket struct {
	cluster, account, replica, node int32
}

// take takes a request from the bucket of its ServiceAccount, if it is there (GCRA, as internal/state has it).
func (s *sim) take(pod int32, replica int) bool {
	if s.Limit.Rate == 0 {
		return true
	}
	node := int(pod) / fleet.PodsPerNode
	b := bucket{cluster: int32(node / fleet.Nodes), account: int32(fleet.ServiceAccountOf(int(pod)))}
	if !s.Limit.Shared {
		b.replica = int32(replica)
	}
	if s.Limit.PerNode {
		b.node = int32(node)
	}
	full := math.Max(s.buckets[b], s.now) + 1/s.Limit.Rate
	if full-s.now > s.Limit.Burst/s.Limit.Rate {
		return false
	}
	s.buckets[b] = full
	return true
}
