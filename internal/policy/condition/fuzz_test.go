package condition

import (
	"maps"
	"testing"
	"time"
	"unicode/utf8"
)

// FuzzCondition checks that no text makes Compile or Holds panic or take long. An accepted
// condition has the same result twice, and String returns its text.
func FuzzCondition(f *testing.F) {
	for _, text := range hostile {
		f.Add(text)
	}
	f.Add(typical)
	f.Add(`has(claims.ref) ? claims["a/b"] in ["x", 1.5] : "x" in claims || kubernetes.labels.team != service`)
	full, some := fullToken(), someone()
	maps.Copy(full.Claims, some.Claims)
	full.Labels = some.Labels
	f.Fuzz(func(t *testing.T, text string) {
		begin := time.Now()
		c, err := Compile(text)
		if err == nil {
			if c.String() != text {
				t.Errorf("%q, want %q", c, text)
			}
			for _, v := range []Variables{full, some, {}} {
				first, firstErr := unhurried(c, v)
				second, secondErr := unhurried(c, v)
				if first != second || (firstErr == nil) != (secondErr == nil) || first && firstErr != nil {
					t.Errorf("%v, %v, and %v, %v", first, firstErr, second, secondErr)
				}
				err = firstErr
			}
		}
		if err != nil && (!utf8.ValidString(err.Error()) || len(err.Error()) > 1000) {
			t.Errorf("error %q", err)
		}
		// Each call ends within milliseconds, but fuzzing uses the whole machine.
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("took %v", took)
		}
	})
}
