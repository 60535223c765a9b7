package nodeinstall

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestOpenShift(t *testing.T) {
	t.Parallel()
	checkGuide(t, "openshift", "# Before=crio.service kubelet.service, and not by a DaemonSet: pods pull before it. In the 6 seconds after a change of the file,\n# the plugin gives no token.\n#\n# ADDRESS ghcr.io\n", func(t *testing.T, d map[string]any) string {
		source := at(t, d, "spec", "config", "storage", "files", 0, "contents", "source").(string)
		provider := testkit.Value(base64.StdEncoding.DecodeString(strings.TrimPrefix(source, "data:text/plain;charset=utf-8;base64,")))(t)
		return string(provider)
	})
}
