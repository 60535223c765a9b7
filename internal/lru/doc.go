// Package lru holds caches that are bounded in bytes, because memory is: a bound
// in numbers lets whoever chooses the content choose the memory, too.
//
// What an entry costs is counted as Go's allocator gives it out, with the slot
// in the map and the links of the list, and rather too high than too low.
package lru
