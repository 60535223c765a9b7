package condition

import (
	"strings"
	"testing"
)

// BenchmarkHolds runs a usual condition, the most expensive conditions with a result, and the most
// expensive ones without.
func BenchmarkHolds(b *testing.B) {
	for _, c := range []struct {
		name, text string
		variables  Variables
	}{
		{"typical", typical, someone()},
		{"list", `claims.groups.exists(g, g == kubernetes.namespace)`, someone()},
		{"own-list", "!(claims.ref in ['x'" + strings.Repeat(", 'refs/heads/main'", 100) + "])", someone()},
		{"full-list", `!claims.groups.exists(x, x == "y")`, fullToken()},
		{"full-lists", `claims.within == claims.within`, fullToken()},
		{"refused-loops", hostile["loops"], fullToken()},
		{"refused-lists", hostile["equal lists"], fullToken()},
		{"refused-objects", hostile["equal objects"], fullToken()},
	} {
		condition := compile(b, c.text)
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = condition.Holds(c.variables, new(uint64))
			}
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		compile(b, typical)
	}
}
