package state

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pullpass/pullpass/internal/oidc"
)

// revocationList is a replica's copy of the revocations. Lookups take no lock: changes, which are
// rare, make a new map.
type revocationList struct {
	now     func() time.Time
	mu      sync.Mutex // one change at a time
	records atomic.Pointer[map[Target]*record]
}

// Revoked returns the revocation that refuses an identity, or nil. It reads only local memory. The
// error is ErrNotRead.
//
// The identity's node should be the node that was looked up for it, even if the token names none.
func (l *revocationList) Revoked(id *oidc.Identity) (*Revocation, error) {
	records := l.records.Load()
	if records == nil {
		return nil, ErrNotRead
	}
	if len(*records) == 0 {
		return nil, nil
	}
	// No record has an empty name, so an empty value of a token matches nothing.
	targets := [...]Target{
		{Kind: TargetToken, Name: id.TokenID},
		{Kind: TargetPod, Name: id.Kubernetes.Pod.UID},
		{Kind: TargetServiceAccount, Cluster: id.Cluster, Namespace: id.Kubernetes.Namespace, Name: id.Kubernetes.ServiceAccount.Name},
		{Kind: TargetNode, Cluster: id.Cluster, Name: id.Kubernetes.Node.Name},
	}
	if x := id.External; x != nil {
		targets = [...]Target{
			{Kind: TargetToken, Name: id.TokenID},
			{Kind: TargetProject, Identity: x.Provider, Name: x.Project},
			{Kind: TargetRun, Identity: x.Provider, Name: x.Run},
			{},
		}
	}
	for _, target := range targets {
		if r, ok := (*records)[target]; ok && r.active(l.now()) {
			return &r.Revocation, nil
		}
	}
	return nil, nil
}

func (r *record) active(now time.Time) bool { return !r.Removed && now.Before(r.Until) }

// merge adopts newer records and drops records that have ended. It returns the known records that
// others lacks, or has an older version of. Absence from others does not end a revocation.
func (l *revocationList) merge(others []*record) (missing []*record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	known := map[Target]*record{}
	if old := l.records.Load(); old != nil {
		maps.Copy(known, *old)
	}
	maps.DeleteFunc(known, func(_ Target, r *record) bool { return !now.Before(r.Until) })
	lacking := maps.Clone(known)
	for _, r := range others {
		if !now.Before(r.Until) {
			continue
		}
		if old := known[r.Target]; old == nil || r.changed >= old.changed {
			known[r.Target] = r
			delete(lacking, r.Target)
		}
	}
	l.records.Store(&known)
	return slices.Collect(maps.Values(lacking))
}

// agrees reports whether the list has the effect of a new record: the target is not revoked, or it
// is revoked for at least as long.
func (l *revocationList) agrees(with *record) bool {
	r, ok := (*l.records.Load())[with.Target]
	revoked := ok && r.active(l.now())
	if with.Removed {
		return !revoked
	}
	return revoked && !r.Until.Before(with.Until)
}

// all returns the current revocations, sorted by their end.
func (l *revocationList) all() []Revocation {
	var list []Revocation
	if records := l.records.Load(); records != nil {
		for _, r := range *records {
			if r.active(l.now()) {
				list = append(list, r.Revocation)
			}
		}
	}
	slices.SortFunc(list, func(a, b Revocation) int {
		return cmp.Or(a.Until.Compare(b.Until), cmp.Compare(a.Target.Kind, b.Target.Kind), cmp.Compare(a.Target.Cluster, b.Target.Cluster),
			cmp.Compare(a.Target.Namespace, b.Target.Namespace), cmp.Compare(a.Target.Identity, b.Target.Identity), cmp.Compare(a.Target.Name, b.Target.Name))
	})
	return list
}

// removal returns the record that ends the revocation of a target.
func (l *revocationList) removal(target Target, by string) (*record, error) {
	if err := checkText("by", by, maxByBytes); err != nil {
		return nil, err
	}
	if records := l.records.Load(); records != nil {
		if r, ok := (*records)[target]; ok && r.active(l.now()) {
			return &record{Removed: true, Revocation: Revocation{
				Target: target, By: by, Reason: "removed", Since: l.now(), Until: r.Until,
			}}, nil
		}
	}
	return nil, ErrNotRevoked
}

// MemoryRevocations keeps the revocations of one replica. They are lost when the process ends. It
// is safe for concurrent use.
type MemoryRevocations struct {
	revocationList
	max   int
	putMu sync.Mutex
}

// NewMemoryRevocations returns an empty list. A nil now means time.Now.
func NewMemoryRevocations(now func() time.Time) *MemoryRevocations {
	m := &MemoryRevocations{max: maxRevocations}
	m.now = now
	if now == nil {
		m.now = time.Now
	}
	m.merge(nil)
	return m
}

// Add revokes, or replaces the revocation of the same target. The error is
// ErrRevocation or ErrFull.
func (m *MemoryRevocations) Add(_ context.Context, r Revocation) error {
	r.Since = m.now()
	if err := r.Validate(r.Since); err != nil {
		return err
	}
	return m.put(&record{Revocation: r})
}

// Remove ends a revocation. The error is ErrNotRevoked, or ErrRevocation if by
// is missing.
func (m *MemoryRevocations) Remove(_ context.Context, target Target, by string) error {
	r, err := m.removal(target, by)
	if err != nil {
		return err
	}
	return m.put(r)
}

// List returns the current revocations, sorted by their end.
func (m *MemoryRevocations) List(context.Context) ([]Revocation, error) { return m.all(), nil }

func (m *MemoryRevocations) put(r *record) error {
	m.putMu.Lock()
	defer m.putMu.Unlock()
	m.merge(nil) // removing ended records makes room
	records := *m.records.Load()
	old, replaces := records[r.Target]
	if !replaces && len(records) >= m.max {
		return ErrFull
	}
	if replaces {
		r.changed = old.changed + 1
	}
	m.merge([]*record{r})
	return nil
}
