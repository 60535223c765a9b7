package keysecrets_test

import (
	"encoding/base64"
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/cluster/keysecrets"
	"github.com/pullpass/pullpass/internal/cluster/kube"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
	"github.com/pullpass/pullpass/internal/test/kubetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

var server = signing.Leaf{CommonName: "pullpass-serving", Names: []string{"registry.example.com"}, Algorithm: signing.ES256}

// site is a namespace with the empty Secrets of the chart.
type site struct {
	api *kubetest.Server
	now time.Time
	*keysecrets.Keeper
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{api: kubetest.NewAPIServer(t), now: time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)}
	for _, name := range []string{"serving", "serving-ca"} {
		s.api.Put("secrets", kubetest.Object{"metadata": kubetest.Object{"namespace": "pullpass", "name": name}})
	}
	s.api.Put("configmaps", kubetest.Object{"metadata": kubetest.Object{"namespace": "nodes", "name": "trust"}})
	dir := t.TempDir()
	testkit.Write(t, dir, "kubeconfig", s.api.Kubeconfig())
	s.Keeper = testkit.Value(keysecrets.New(keysecrets.Config{
		Connection: testkit.Value(kube.Kubeconfig(filepath.Join(dir, "kubeconfig")))(t), Namespace: "pullpass", Now: func() time.Time { return s.now },
	}))(t)
	return s
}

// data returns the data of a Secret.
func (s *site) data(t *testing.T, name string) map[string]string {
	t.Helper()
	data, _ := s.api.Object("secrets", "pullpass", name)["data"].(kubetest.Object)
	decoded := map[string]string{}
	for key, value := range data {
		decoded[key] = string(testkit.Value(base64.StdEncoding.DecodeString(value.(string)))(t))
	}
	return decoded
}

func (s *site) keep(t *testing.T, leaf signing.Leaf, wantNew bool) string {
	t.Helper()
	ca, isNew, err := s.Keep(t.Context(), "serving", leaf)
	testkit.Must(t, err)
	if isNew != wantNew {
		t.Errorf("a new certificate: %t, want %t", isNew, wantNew)
	}
	return string(ca)
}

func TestSecretsAreMadeAndRenewed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ca := s.keep(t, server, true)
	first := s.data(t, "serving")
	if first["ca.crt"] != ca || !strings.HasSuffix(first["tls.crt"], ca) || s.data(t, "serving-ca")["tls.crt"] != ca {
		t.Errorf("the CA %s is not in both Secrets: %v", ca, first)
	}
	if _, ok := s.data(t, "serving-ca")["ca.crt"]; ok {
		t.Error("the CA's Secret has a CA of its own")
	}
	pair := testkit.Value(signing.ParsePair([]byte(first["tls.crt"]), []byte(first["tls.key"])))(t)
	authority := testkit.Value(signing.ParsePair([]byte(ca), []byte(s.data(t, "serving-ca")["tls.key"])))(t)
	if !pair.IsCurrent(authority, server, s.now) {
		t.Error("the certificate is not what was asked for")
	}

	s.keep(t, server, false)
	s.now = s.now.Add(61 * 24 * time.Hour)
	if again := s.keep(t, server, true); again != ca {
		t.Error("the CA changed with the certificate: registries and nodes would not trust it")
	}
	more := server
	more.Names = append(more.Names, "10.0.0.7")
	if s.keep(t, more, true); s.data(t, "serving")["tls.key"] == first["tls.key"] {
		t.Error("the key was not renewed with the certificate")
	}
}

func TestTrustIsPublished(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ca := s.keep(t, server, true)
	for range 2 { // the second time, nothing is written
		testkit.Must(t, s.Publish(t.Context(), "nodes", "trust", []byte(ca)))
	}
	if data, _ := s.api.Object("configmaps", "nodes", "trust")["data"].(kubetest.Object); data["ca.crt"] != ca || len(data) != 1 {
		t.Errorf("the ConfigMap has %v", data)
	}
	if n := s.api.Count("put configmaps trust"); n != 1 {
		t.Errorf("it was written %d times", n)
	}
}

func TestSecretsOfOthersStay(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*site){
		"without a CA": func(s *site) { s.api.Merge("secrets", "pullpass", "serving-ca", kubetest.Object{"data": nil}) },
		"damaged": func(s *site) {
			s.api.Merge("secrets", "pullpass", "serving", kubetest.Object{"data": kubetest.Object{"tls.crt": "bm9uZQ=="}})
		},
	} {
		s := newSite(t)
		s.keep(t, server, true)
		spoil(s)
		before := s.data(t, "serving")
		if _, _, err := s.Keep(t.Context(), "serving", server); !errors.Is(err, keysecrets.ErrNotOurs) || !strings.Contains(err.Error(), "serving") {
			t.Errorf("%s: %v", name, err)
		}
		if after := s.data(t, "serving"); after["tls.key"] != before["tls.key"] {
			t.Errorf("%s: it was replaced", name)
		}
	}
}

// After a failure between the two Secrets, the next run goes on from there.
func TestFailuresOfTheAPIServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.api.Fail("put secrets", func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/serving-ca") {
			s.api.Write(w, r)
			return
		}
		kubetest.Status(http.StatusForbidden, "Forbidden", "not yours")(w, r)
	})
	if _, _, err := s.Keep(t.Context(), "serving", server); err == nil || !strings.Contains(err.Error(), "not yours") {
		t.Errorf("%v", err)
	}
	ca := s.data(t, "serving-ca")["tls.crt"]
	s.api.Fail("put secrets", nil)
	if again := s.keep(t, server, true); ca == "" || again != ca {
		t.Error("the CA that was made first was not used")
	}
	if _, _, err := s.Keep(t.Context(), "other", server); err == nil || !strings.Contains(err.Error(), "other") {
		t.Errorf("a Secret that is not there: %v", err)
	}
}
