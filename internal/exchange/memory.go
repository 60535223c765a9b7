package exchange

import (
	"net/netip"
	"time"

	"github.com/pullpass/pullpass/internal/load"
	"github.com/pullpass/pullpass/internal/lru"
	"github.com/pullpass/pullpass/internal/nodecert"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/seal"
)

// Memory is what requests know of those before them, and of those that are worked
// on now. It belongs to the process: the Exchangers and Handlers that take each
// other's place share it, whatever their settings. It is safe for concurrent use.
type Memory struct {
	issued   *lru.Cache[issuedKey, registryauth.Token]
	chains   *nodecert.Chains
	attempts *attempts
	spent    *lru.Cache[netip.Prefix, time.Time] // addresses without a request left, and until when
	bodies   *load.Bodies
	queue    *load.Queue
	sealed   *seal.Box
}

// MemoryConfig has the bounds of a Memory.
type MemoryConfig struct {
	IssuedBytes int // for issued tokens; 0 means 16 MiB
	InFlight    int // requests worked on at a time; with 0, none ever is
	Waiting     int // requests that may wait for that; then 503
}

const (
	// issuedBytes is for about 8,000 tokens. The second request of a pull follows
	// the first within seconds, so what counts is the rate of pulls, not the number
	// of pods.
	issuedBytes = 16 << 20

	// OtherCacheBytes is what a Memory holds at most beside the issued tokens.
	OtherCacheBytes = attemptBytes + spentBytes + nodecert.ChainBytes
)

// NewMemory returns an empty Memory.
func NewMemory(c MemoryConfig) *Memory {
	if c.IssuedBytes == 0 {
		c.IssuedBytes = issuedBytes
	}
	return &Memory{
		issued:   lru.New(c.IssuedBytes, heldByIssued),
		chains:   nodecert.NewChains(),
		attempts: newAttempts(),
		spent:    lru.New[netip.Prefix, time.Time](spentBytes, nil),
		bodies:   load.NewBodies(),
		queue:    load.NewQueue(c.InFlight, c.Waiting),
		sealed:   seal.NewBox(pushPurpose),
	}
}
