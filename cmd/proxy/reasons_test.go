package main

import (
	"maps"
	"testing"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/gateway"
	"github.com/pullpass/pullpass/internal/refusal"
)

// The catalogue has every reason that there is, once, and no other.
func TestCatalogueIsWhole(t *testing.T) {
	t.Parallel()
	used := setOf(exchange.Reasons())
	maps.Copy(used, setOf(gateway.Reasons()))
	listed := map[string]bool{}
	for _, r := range refusal.All() {
		if listed[r.Word] {
			t.Errorf("%s is there twice", r.Word)
		}
		listed[r.Word] = true
		if r.Class.Status() == 0 || r.Message == "" || r.Remedy == "" {
			t.Errorf("%s has no class, message or remedy: %+v", r.Word, r)
		}
	}
	sameSet(t, "reasons of the endpoints", used, "the catalogue", listed)
}
