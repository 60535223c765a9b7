package lru

import "unsafe"

// Bytes returns how much memory one allocation of n bytes takes up, of a string for example. Go's
// allocator rounds up to size classes.
func Bytes(n int) int {
	step := 256
	switch {
	case n <= 256:
		step = 16
	case n <= 512:
		step = 32
	case n <= 768:
		step = 64
	case n <= 1536:
		step = 128
	case n > 2048:
		return n + n/4
	}
	return (n + step - 1) / step * step
}

// MapSlot returns the maximum memory of an entry of a map. Go's maps have a byte for each slot.
// Once they have grown they are at least a quarter full, also if their entries change all the time.
func MapSlot[K comparable, V any]() int {
	var slot struct {
		key   K
		value V
	}
	return 4 * (int(unsafe.Sizeof(slot)) + 1)
}
