package lru_test

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pullpass/pullpass/internal/base/lru"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

type key [32]byte

func keyOf(i int) (k key) {
	copy(k[:], fmt.Sprintf("%032d", i))
	return k
}

func lengthOf(_ key, value string) int { return lru.Bytes(len(value)) }

func TestForgetsWhatWasNotUsedForLongest(t *testing.T) {
	t.Parallel()
	one := lru.New[int, string](1<<20, nil)
	one.Add(1, "")
	c := lru.New[int, string](3*one.Bytes(), nil)
	for i := range 3 {
		c.Add(i, fmt.Sprint(i))
	}
	c.Get(0)
	c.Peek(1) // does not count as a use
	c.Add(3, "3")
	for i, want := range []bool{true, false, true, true} {
		if value, ok := c.Peek(i); ok != want || ok && value != fmt.Sprint(i) {
			t.Errorf("%d: %q, %v", i, value, ok)
		}
	}
	if _, ok := c.Get(1); ok || c.Len() != 3 {
		t.Errorf("%d entries, 1 is there: %v", c.Len(), ok)
	}
}

func TestReplacesAndRemoves(t *testing.T) {
	t.Parallel()
	c := lru.New(1<<20, lengthOf)
	c.Add(keyOf(1), strings.Repeat("x", 1000))
	many := c.Bytes()
	c.Add(keyOf(1), "a")
	if few := c.Bytes(); c.Len() != 1 || few >= many-900 {
		t.Errorf("%d entries with %d bytes, before %d", c.Len(), few, many)
	}
	if value, _ := c.Get(keyOf(1)); value != "a" {
		t.Errorf("the value is %q", value)
	}
	if !c.Remove(keyOf(1)) || c.Remove(keyOf(1)) || c.Len() != 0 {
		t.Error("an entry is removed once")
	}
}

// Mistake: many small entries make the map large, and it stays so when large
// ones take their place.
func TestNeverExceedsItsBytes(t *testing.T) {
	t.Parallel()
	const most = 1 << 20
	c := lru.New(most, lengthOf)
	slots := 0
	for i, size := range slices.Concat(slices.Repeat([]int{1}, 20_000), slices.Repeat([]int{1500}, 5_000), []int{most, 1}) {
		c.Add(keyOf(i), strings.Repeat("x", size))
		slots = max(slots, c.Len())
		if c.Bytes() > most {
			t.Fatalf("%d bytes after %d entries", c.Bytes(), i+1)
		}
	}
	if least := slots * lru.MapSlot[key, *string](); c.Bytes() < least {
		t.Errorf("%d bytes, but the map alone has %d", c.Bytes(), least)
	}
	if _, ok := c.Get(keyOf(25_001)); !ok || c.Len() != 1 {
		t.Errorf("%d entries after one that has no room, and a small one", c.Len())
	}
	nothing := lru.New(0, lengthOf)
	nothing.Add(keyOf(1), "")
	if nothing.Len() != 0 {
		t.Error("something is kept in no room")
	}
}

// Not parallel: it measures the memory of the whole process.
func TestBytesAreThoseOfTheHeap(t *testing.T) {
	for _, size := range []int{0, 100, 300, 1000, 1500, 5000} {
		const most = 16 << 20
		before := testkit.Heap()
		c := lru.New(most, lengthOf)
		for i := range 2 * most / (size + 100) {
			c.Add(keyOf(i), strings.Repeat("x", size))
		}
		used, counted := int(testkit.Heap()-before), c.Bytes()
		runtime.KeepAlive(c)
		if used > most || counted > most || used > counted+most/100 || used < counted*6/10 {
			t.Errorf("entries with %d bytes: %d in the heap, %d counted, %d allowed", size, used, counted, most)
		}
	}
}

func TestBytesAreThoseOfTheAllocator(t *testing.T) {
	t.Parallel()
	for n := 1; n < 1<<13; n++ {
		if got, want := lru.Bytes(n), cap(append([]byte(nil), make([]byte, n)...)); got < want || got > want+want/4+16 {
			t.Fatalf("%d bytes: %d, and Go allocates %d", n, got, want)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	c := lru.New(1<<14, lengthOf)
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for i := range 2000 {
				c.Add(keyOf(i%100), strings.Repeat("x", i%50))
				c.Get(keyOf(i % 70))
				c.Peek(keyOf(i % 30))
				c.Remove(keyOf(i % 10))
			}
		})
	}
	callers.Wait()
	if c.Bytes() > 1<<14 {
		t.Errorf("%d bytes", c.Bytes())
	}
}
