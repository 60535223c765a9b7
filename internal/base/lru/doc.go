// Package lru holds caches that are bounded in bytes. A bound on the number of entries would let
// clients that choose the content choose the memory, too.
//
// The size of an entry is counted as Go's allocator allocates it, with the slot in the map and the
// links of the list. The estimate is rather too high than too low.
package lru
