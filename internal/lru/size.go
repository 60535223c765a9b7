package lru

import "unsafe"

// Bytes returns what n bytes take up that are allocated as one, a string's for
// example. Go's allocator rounds up to classes of sizes.
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

// MapSlot returns what an entry of a map takes up in it at most. Go's maps have a
// byte beside each slot, and are a quarter full at least once they have grown, also
// if what is in them changes all the time.
func MapSlot[K comparable, V any]() int {
	var slot struct {
		key   K
		value V
	}
	return 4 * (int(unsafe.Sizeof(slot)) + 1)
}
