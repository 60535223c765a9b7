package e2e

import (
	"testing"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/cluster"
)

func TestAPIServerTokens(t *testing.T) {
	c := cluster.Start(t, certs.NewRSAKey(t))
	createWorkload(t, c)
	tokens := requestTokens(t, c)
	for k, v := range tokens {
		t.Log(k, claims(t, v))
	}
}
