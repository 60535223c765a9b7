package chaostest

import (
	"testing"

	"github.com/pullpass/pullpass/e2e/isolate"
	"github.com/pullpass/pullpass/e2e/programs"
)

func TestMain(m *testing.M) {
	isolate.Main(m, func(t testing.TB) {
		programs.Build(t, programs.Pullpass, programs.PullpassWithClock, programs.RedisServer, programs.RedisCLI, programs.Etcd, programs.KubeAPIServer)
	})
}
