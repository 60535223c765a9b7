package lru_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/base/lru"
)

// An owner who adds values without end loses only their own.
func TestOwnersHaveShares(t *testing.T) {
	t.Parallel()
	const most = 64 << 10
	c := lru.NewShared(most, lengthOf)
	for i := range 10 {
		c.Add(fmt.Sprint("small", i%2), keyOf(i), "kept")
	}
	value := strings.Repeat("x", 1000)
	for i := range 1000 {
		c.Add("large", keyOf(100+i), value)
		if n := c.Len() - 10; n > most/1000 {
			t.Fatalf("%d entries of %d bytes", n, len(value))
		}
	}
	for i := range 10 {
		if got, ok := c.Get(keyOf(i)); !ok || got != "kept" {
			t.Errorf("%d was forgotten", i)
		}
	}
	if _, ok := c.Peek(keyOf(1099)); !ok || c.Len() < 30 {
		t.Errorf("the newest is there: %t, of %d", ok, c.Len())
	}
	if _, ok := c.Get(keyOf(100)); ok {
		t.Error("the oldest is there")
	}

	c.Add("other", keyOf(0), "changed") // has another owner now
	c.Remove(keyOf(1))
	for i, want := range []string{"changed", "", "kept"} {
		if got, ok := c.Peek(keyOf(i)); got != want || ok != (want != "") {
			t.Errorf("%d is %q", i, got)
		}
	}
	before := c.Len()
	if c.Remove(keyOf(1)); c.Len() != before {
		t.Error("an entry is removed once")
	}
	c.Add("large", keyOf(9999), strings.Repeat("x", 2*most))
	if _, ok := c.Get(keyOf(9999)); ok {
		t.Error("what is larger than all the room is kept")
	}
	if _, ok := c.Get(keyOf(2)); !ok {
		t.Error("and something was forgotten for it")
	}
}

// Owners who have one entry each are bounded, too.
func TestManyOwners(t *testing.T) {
	t.Parallel()
	c := lru.NewShared[int, string](64<<10, nil)
	for i := range 2000 {
		c.Add(fmt.Sprint(i), i, "")
	}
	if n := c.Len(); n < 30 || n > 400 {
		t.Errorf("%d owners in 64 KiB", n)
	}
	if _, ok := c.Get(1999); !ok {
		t.Error("the newest was forgotten")
	}
}
