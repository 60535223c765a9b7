package load

import (
	"net/http/httptest"
	"net/netip"
	"testing"
)

// Addresses whose bodies have been read take no memory.
func TestBodiesForget(t *testing.T) {
	t.Parallel()
	b, w := NewBodies(), httptest.NewRecorder()
	from := netip.MustParsePrefix("192.0.2.1/32")
	first, second := b.Begin(w, from), b.Begin(w, from)
	b.End(w, from, first, true)
	if len(b.reading) != 1 {
		t.Errorf("%d addresses", len(b.reading))
	}
	if b.End(w, from, second, true); len(b.reading) != 0 {
		t.Errorf("%d addresses", len(b.reading))
	}
}
