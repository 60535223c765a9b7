package tokensecrets

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"
)

// keyInterval is the interval between reads of the cluster's keys.
const keyInterval = time.Minute

// keyWatch knows the keys that verify the cluster's tokens. A token whose key is not published any
// more is refused everywhere, even before it expires. It is safe for concurrent use.
type keyWatch struct {
	fetch func(ctx context.Context) ([]byte, error) // the key set
	now   func() time.Time

	mu sync.Mutex
	// The last two key sets: while API servers change their key one after the other, their answers
	// differ.
	sets [2]map[string]bool
	at   [2]time.Time // zero: never
}

// read reads the key set. If that fails, the known keys stay: without any key, all tokens would be
// renewed at once.
func (k *keyWatch) read(ctx context.Context) error {
	began := k.now()
	text, err := k.fetch(ctx)
	if err != nil {
		return fmt.Errorf("cannot read the cluster's keys: %w", err)
	}
	var set struct {
		Keys []struct {
			KeyID string `json:"kid"`
		} `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil || len(set.Keys) == 0 {
		return fmt.Errorf("the cluster's keys are not a key set (RFC 7517), or are an empty one")
	}
	ids := map[string]bool{}
	for _, key := range set.Keys {
		ids[key.KeyID] = true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sets[0], k.at[0] = k.sets[1], k.at[1]
	k.sets[1], k.at[1] = ids, began
	return nil
}

// gone reports whether the key was missing twice since the token was issued.
func (k *keyWatch) gone(keyID string, issued time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.sets {
		if k.sets[i][keyID] || !k.at[i].After(issued) {
			return false
		}
	}
	return true
}
