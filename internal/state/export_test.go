package state

import (
	"context"
	"time"

	"github.com/pullpass/pullpass/internal/base/lru"
)

// OwnerCost is the counted size of a token id whose owner has a short name. LimitCost is that of
// the key of a limit.
var (
	OwnerCost = ownerSlot + lru.Bytes(1)
	LimitCost = func() int {
		one := lru.New[hashedKey, time.Time](1<<10, nil)
		one.Add(hashedKey{}, time.Time{})
		return one.Bytes()
	}()
)

// SetMax bounds the list to a size that a test can fill.
func (m *MemoryRevocations) SetMax(n int) { m.max = n }

// SetMax bounds the list to a size that a test can fill.
func (v *RedisRevocations) SetMax(n int) { v.max = n }

// Fill adds many revocations at once, without reading the list.
func (v *RedisRevocations) Fill(ctx context.Context, revocations []Revocation) error {
	records := make([]*record, len(revocations))
	for i, r := range revocations {
		records[i] = &record{Revocation: r}
	}
	_, err := v.write(ctx, "fill the list", records...)
	return err
}

// Restore writes a revocation unchanged, as a replica does when Redis has lost it.
func (v *RedisRevocations) Restore(ctx context.Context, r Revocation, changed int64) error {
	_, err := v.write(ctx, "restore revocations", &record{Revocation: r, changed: changed})
	return err
}

// Refresh reads the list, as Run does.
func (v *RedisRevocations) Refresh(ctx context.Context) error { return v.refresh(ctx) }
