package exchange

import (
	"cmp"
	"net/netip"

	"github.com/pullpass/pullpass/internal/base/lru"
	"github.com/pullpass/pullpass/internal/exchange/load"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/registryauth/seal"
)

// Memory holds state about earlier requests and requests in progress. It belongs to the process: an
// Exchanger or Handler shares it with its successor, whatever their settings. It is safe for
// concurrent use.
type Memory struct {
	issued   *lru.Cache[issuedKey, registryauth.Token]
	chains   *nodeproof.Chains
	attempts *attempts
	spent    *lru.Cache[netip.Prefix, spentLimit] // addresses that have spent their limit
	bodies   *load.Bodies
	queue    *load.Queue
	sealed   *seal.Box
}

// MemoryConfig has the limits of a Memory.
type MemoryConfig struct {
	IssuedBytes int // for issued tokens; 0 means 16 MiB
	InFlight    int // requests in progress at a time; 0 admits none
	Waiting     int // requests that may wait for a place; further ones get 503
}

const (
	// issuedBytes is for about 8,000 tokens. The second request of a pull follows the first within
	// seconds, so the rate of pulls determines the size, not the number of pods.
	issuedBytes = 16 << 20

	// OtherCacheBytes is the maximum that a Memory holds beside the issued tokens.
	OtherCacheBytes = attemptBytes + spentBytes + nodeproof.ChainBytes
)

// NewMemory returns an empty Memory.
func NewMemory(c MemoryConfig) *Memory {
	c.IssuedBytes = cmp.Or(c.IssuedBytes, issuedBytes)
	return &Memory{
		issued:   lru.New(c.IssuedBytes, heldByIssued),
		chains:   nodeproof.NewChains(),
		attempts: newAttempts(),
		spent:    lru.New[netip.Prefix, spentLimit](spentBytes, nil),
		bodies:   load.NewBodies(),
		queue:    load.NewQueue(c.InFlight, c.Waiting),
		sealed:   seal.NewBox(pushPurpose),
	}
}
