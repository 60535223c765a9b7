package state

import (
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The scripts of Redis have SHA-1 as their names.
func TestRedisWithOnlyFIPS(t *testing.T) {
	t.Parallel()
	if !testkit.OnlyFIPS(t) {
		return
	}
	redis, err := OpenRedis(RedisConfig{Addresses: []string{"redis.example.com:6379"}})
	testkit.Must(t, err)
	if redis.limit.Hash() == "" {
		t.Error("the script has no name")
	}
	testkit.Must(t, redis.Close())
}
