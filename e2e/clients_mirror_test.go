package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/regclient/regclient"
	"github.com/regclient/regclient/config"
	"github.com/regclient/regclient/scheme/reg"
	"github.com/regclient/regclient/types/ref"

	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

// TestMirror copies an image into 500 repositories, as regsync does, with its library. regclient asks in each request for all
// repositories that it has used before, and a token opens 64.
func TestMirror(t *testing.T) {
	const repositories = 500
	w := startWorld(t, programs.Distribution(t), pullpass.Signing{Trust: "certificate"})
	w.publish(t)
	s := w.session(t, w.token(t, namespace))
	own := func(i int) string { return fmt.Sprintf("%s/%s/mirror-%d:%s", s.host, namespace, i%repositories, tag) }

	local := "ocidir://" + s.dir + "/image:" + tag
	testenv.Must(t, copyImage(t, s.regclient(t, false), s.host+"/shared/base:"+tag, local))
	mirror := s.regclient(t, false)
	for i := range repositories {
		if err := copyImage(t, mirror, local, own(i)); err != nil {
			t.Fatalf("copy %d: %v", i, err)
		}
	}
	// The first repository is the first of the requested scopes again, so it is omitted and not granted any more.
	if err := headImage(t, mirror, own(0)); err == nil {
		t.Error("the first repository can be used again: docs/how-to/in-pod.md says otherwise")
	}
	// With repoAuth, each repository is asked for by itself.
	lasting := s.regclient(t, true)
	for i := range 2 * repositories {
		if err := headImage(t, lasting, own(i)); err != nil {
			t.Fatalf("repoAuth, %d: %v", i, err)
		}
	}

	omitted := 0
	for _, event := range w.proxy.Audit(t) {
		if event.Reason == "scopes_omitted" {
			omitted++
		} else if event.Status != 200 {
			t.Errorf("%+v", event)
		}
		if event.ServiceAccount.Name == "" && event.GrantType != "anonymous" {
			t.Errorf("the event names no ServiceAccount: %+v", event)
		}
	}
	if omitted < repositories-64 {
		t.Errorf("only %d requests were for more than a token opens", omitted)
	}
}

// regclient returns a client that knows the session's registry alone.
func (s session) regclient(t *testing.T, repoAuth bool) *regclient.RegClient {
	t.Helper()
	ca := testenv.ReadFile(t, s.ca.File)
	host := config.HostNewName(s.host)
	host.RegCert, host.User, host.Pass, host.RepoAuth = ca, "serviceaccount", s.password, repoAuth
	return regclient.New(regclient.WithConfigHost(*host), regclient.WithRegOpts(reg.WithDelay(time.Millisecond, time.Second)))
}

func copyImage(t *testing.T, client *regclient.RegClient, from, to string) error {
	t.Helper()
	source, err := ref.New(from)
	if err != nil {
		return err
	}
	target, err := ref.New(to)
	if err != nil {
		return err
	}
	return client.ImageCopy(t.Context(), source, target)
}

func headImage(t *testing.T, client *regclient.RegClient, name string) error {
	t.Helper()
	image, err := ref.New(name)
	if err != nil {
		return err
	}
	_, err = client.ManifestHead(t.Context(), image)
	return err
}
