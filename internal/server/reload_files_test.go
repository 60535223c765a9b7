package server

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// noFiles are what a name can lead to besides a file, by what is said of each.
var noFiles = map[string]func(t *testing.T, name string){
	"a FIFO":      func(t *testing.T, name string) { testkit.Must(t, syscall.Mkfifo(name, 0o600)) },
	"a directory": func(t *testing.T, name string) { testkit.Must(t, os.Mkdir(name, 0o700)) },
	"a device":    func(t *testing.T, name string) { testkit.Must(t, os.Symlink("/dev/zero", name)) },
	"a socket": func(t *testing.T, name string) {
		listener := testkit.Value(net.Listen("unix", name))(t)
		t.Cleanup(func() { _ = listener.Close() })
	},
}

// displace puts something else in the place of a file, which is kept as NAME.good.
func (p *proxy) displace(t *testing.T, name string, by func(t *testing.T, name string)) {
	t.Helper()
	name = filepath.Join(p.Dir, name)
	testkit.Must(t, os.Rename(name, name+".good"))
	by(t, name)
}

func (p *proxy) restore(t *testing.T, name string) {
	t.Helper()
	name = filepath.Join(p.Dir, name)
	testkit.Must(t, os.RemoveAll(name))
	testkit.Must(t, os.Rename(name+".good", name))
}

// A FIFO or another object in the place of a file is a failed reload, like invalid content. The
// previous content serves, the fault is reported, and the file is read when it is back.
func TestReloadRefusesWhatIsNoFile(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	raw := kubetest.Token(t, "https://issuer.example.com")
	for kind, place := range noFiles {
		p.displace(t, "policy.yaml", place)
		p.Refuses(t, policyGroup, "policy.yaml is not a regular file but "+kind)
		if status := p.Status(t, raw); status != http.StatusOK {
			t.Errorf("%s in place of the policy: status %d", kind, status)
		}
		p.restore(t, "policy.yaml")
		p.Accepts(t, policyGroup)
	}
	for name, group := range map[string]string{"pullpass.yaml": configGroup, "serviceaccounts.yaml": manifestsGroup, "tls.key": tlsGroup} {
		p.displace(t, name, noFiles["a FIFO"])
		p.Refuses(t, group, name+" is not a regular file but a FIFO")
		p.restore(t, name)
		p.Accepts(t, group)
	}
	p.Put(t, "policy.yaml", proxytest.PolicyFor("elsewhere/**"))
	testkit.Eventually(t, "a new policy counts", func() bool { return len(p.Exchange(t, "/token", raw, "repository:team-a/web:pull")) == 0 })
}

// Nothing waits for the writer of a FIFO when the service is to end.
func TestServeEndsWithAFIFOForAPolicy(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	testkit.Eventually(t, "the policy was read by the watch", func() bool {
		_, metrics := p.Fetch(t, "http://"+p.Admin+"/metrics")
		return strings.Contains(metrics, `pullpass_reload_last_success_timestamp_seconds{name="policy"} `)
	})
	p.displace(t, "policy.yaml", noFiles["a FIFO"])
	p.Refuses(t, policyGroup, "a FIFO")
	testkit.Must(t, p.stop())
}
