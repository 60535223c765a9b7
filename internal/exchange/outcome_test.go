package exchange

import (
	"net/http"
	"testing"
)

// Only a malformed or invalid credential takes from its address. containerd presents it a second
// time.
func TestWhatProvesNothing(t *testing.T) {
	t.Parallel()
	for c, code := range errorCodes {
		want := c.Status() == http.StatusBadRequest || c.Status() == http.StatusUnauthorized
		if got := provesNothing(c); got != want {
			t.Errorf("status %d: %v", c.Status(), got)
		}
		if code.registry == "" || code.oauth == "" || ResultOf(c) == "" {
			t.Errorf("class %s: %+v", c, code)
		}
	}
}
