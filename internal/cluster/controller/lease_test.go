package controller

import (
	"math"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// An API server refuses a negative number of transitions, and so every further holder.
func TestTransitionsStayValid(t *testing.T) {
	t.Parallel()
	l := Lease{Identity: "next", Duration: time.Minute, Now: time.Now}
	for before, want := range map[int32]int32{0: 1, math.MaxInt32 - 1: math.MaxInt32, math.MaxInt32: 0} {
		o := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{LeaseTransitions: &before}}
		if l.Claim(o); *o.Spec.LeaseTransitions != want {
			t.Errorf("after %d: %d, want %d", before, *o.Spec.LeaseTransitions, want)
		}
	}
}
