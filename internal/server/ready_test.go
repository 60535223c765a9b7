package server

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/state"
	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The proxy is unready when a whole kind of dependency is down, and never
// because of one of several, or of one that it can do without.
func TestReadiness(t *testing.T) {
	t.Parallel()
	up, down, tolerated := check{Name: "up", Healthy: true}, check{Name: "down"}, check{Name: "tolerated", Tolerated: true}
	for name, test := range map[string]struct {
		checks map[string][]check
		ready  bool
	}{
		"one of two":        {map[string][]check{"issuers": {up, down}}, true},
		"all of a kind":     {map[string][]check{"issuers": {down, down}, "redis": {up}}, false},
		"not needed":        {map[string][]check{"issuers": {up}, "files": {tolerated, tolerated}}, true},
		"nothing is needed": {map[string][]check{}, true},
	} {
		w := httptest.NewRecorder()
		rd := &readiness{checks: func() map[string][]check { return test.checks }}
		rd.ServeHTTP(w, nil)
		if ready := w.Code == http.StatusOK; ready != test.ready || strings.Contains(w.Body.String(), `"ready":true`) != test.ready {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
}

// A certificate that expires soon is reported. With an expired one, the proxy is not ready.
func TestReadinessOfTheServingCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := pkitest.NewAuthority(t, "ca").Leaf(t, "localhost", -time.Hour, time.Hour)
	testkit.Write(t, dir, "tls.crt", cert)
	testkit.Write(t, dir, "tls.key", key)
	s, err := openTLS(&config.Config{Server: config.Server{TLS: config.TLSFiles{CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key")}}}, time.Now())
	testkit.Must(t, err)
	for _, test := range []struct {
		after   time.Duration
		healthy bool
		message string
	}{{0, true, ""}, {20 * time.Minute, true, ""}, {35 * time.Minute, true, " ends at "}, {61 * time.Minute, false, "ended at "}} {
		if c := s.check(time.Now().Add(test.after)); c.Healthy != test.healthy || c.Tolerated || !strings.Contains(c.Message, test.message) || (c.Message == "") != (test.message == "") {
			t.Errorf("after %s: %+v", test.after, c)
		}
	}
}

// So is the certificate of a signing key.
func TestReadinessOfSigningKeys(t *testing.T) {
	t.Parallel()
	ca := pkitest.NewAuthority(t, "signing")
	cert, key := ca.Leaf(t, "signing", -24*time.Hour, 10*time.Minute)
	p := newTestService(t, "", map[string]string{"signing.crt": cert, "signing.key": key, "ca.crt": ca.Pem()})
	p.Configure(t, "issuer: pullpass.example.com}", "issuer: pullpass.example.com, signing: {certFile: signing.crt, keyFile: signing.key, caFile: ca.crt}}")
	p.reconcile(t)
	testkit.Must(t, p.service.reloadConfig())
	if c := p.service.current.Load().checkSigningKeys()[0]; !c.Healthy || !strings.Contains(c.Message, " ends at ") {
		t.Errorf("%+v", c)
	}
}

// Limits are shared while Redis answers, whatever an entry of its list says.
func TestUnreadableRevocationsSayNothingOfLimits(t *testing.T) {
	t.Parallel()
	read := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for _, test := range []struct {
		status  state.RedisStatus
		failure string
		want    string
	}{
		{state.RedisStatus{Healthy: true}, "", ""},
		{state.RedisStatus{Healthy: true}, "an entry cannot be read", "the list of revocations was last read whole at 2026-03-04T05:06:07Z: an entry cannot be read"},
		{state.RedisStatus{LastFailure: "no route"}, "no route", "limits count for this replica alone, and the list of revocations is that of 2026-03-04T05:06:07Z: no route"},
	} {
		got := checkRedis(test.status, state.RevocationsStatus{Read: read, LastFailure: test.failure})[0]
		if got.Message != test.want || got.Healthy != (test.want == "") {
			t.Errorf("%+v, want %q", got, test.want)
		}
	}
}

// A key that is cut off is a fault; none at all is not.
func TestCheckReadsManagedKeys(t *testing.T) {
	t.Parallel()
	p := startService(t, "")
	cfg := p.service.current.Load().cfg
	dir := cfg.Registries[0].Signing.ManagedDir
	keys := testkit.Value(filepath.Glob(filepath.Join(dir, "*.json")))(t)
	if len(keys) == 0 {
		t.Fatal("no keys")
	}
	if faults, _ := CheckFiles(cfg, false); len(faults) > 0 {
		t.Errorf("%v", faults)
	}
	testkit.Must(t, os.Truncate(keys[0], 10))
	if faults, _ := CheckFiles(cfg, false); len(faults) == 0 || !strings.Contains(faults[0].Error(), "the file is damaged: restore it or remove it") {
		t.Errorf("%v", faults)
	}
	testkit.Must(t, os.RemoveAll(dir))
	if faults, _ := CheckFiles(cfg, false); len(faults) > 0 {
		t.Errorf("%v", faults)
	}
}
