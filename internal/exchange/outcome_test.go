package exchange

import (
	"net/http"
	"testing"
)

// Only a malformed or invalid credential takes from its address. containerd presents it a second
// time.
func TestWhatProvesNothing(t *testing.T) {
	t.Parallel()
	for c, kind := range classes {
		want := kind.status == http.StatusBadRequest || kind.status == http.StatusUnauthorized
		if got := class(c).provesNothing(); got != want {
			t.Errorf("status %d: %v", kind.status, got)
		}
		if kind.code == "" || kind.oauthError == "" || kind.result == "" {
			t.Errorf("class %d: %+v", c, kind)
		}
	}
}
