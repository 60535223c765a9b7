package signing

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestPair(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)
	ca := testkit.Value(NewCA("Pullpass CA", now))(t)
	server := Leaf{CommonName: "pullpass-serving", Names: []string{"registry.example.com", "10.0.0.7", "::1"}, Algorithm: ES256}
	leaves := []Leaf{server}
	for _, algorithm := range []Algorithm{ES256, RS256, EdDSA} {
		leaves = append(leaves, Leaf{CommonName: "pullpass-signing", Algorithm: algorithm})
	}
	for i, leaf := range leaves {
		issued := testkit.Value(ca.Issue(leaf, now))(t)
		certificate, key, err := issued.PEM()
		testkit.Must(t, err)
		read := testkit.Value(ParsePair(certificate, key))(t)
		for age, want := range map[time.Duration]bool{0: true, 59 * 24 * time.Hour: true, 60 * 24 * time.Hour: false, 91 * 24 * time.Hour: false} {
			if got := read.IsCurrent(ca, leaf, now.Add(age)); got != want {
				t.Errorf("%s %v: current after %v: %t", leaf.Algorithm, leaf.Names, age, got)
			}
		}
		for j, other := range leaves {
			if got := read.IsCurrent(ca, other, now); got != (i == j) {
				t.Errorf("%+v is current as %+v: %t", leaf, other, got)
			}
		}
		if other := testkit.Value(NewCA("Pullpass CA", now))(t); read.IsCurrent(other, leaf, now) {
			t.Error("it is current although another CA issued it")
		}
		if isForServers := slices.Contains(read.cert.ExtKeyUsage, x509.ExtKeyUsageServerAuth); isForServers != (len(leaf.Names) > 0) {
			t.Errorf("%+v is for servers: %t", leaf, isForServers)
		}
		roots := x509.NewCertPool()
		roots.AddCert(ca.cert)
		for _, host := range []string{"registry.example.com", "10.0.0.7", "::1"} {
			_, err := read.cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, DNSName: host})
			if (err == nil) != (len(leaf.Names) > 0) {
				t.Errorf("%v for %s: %v", leaf.Names, host, err)
			}
		}
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%d"} {
			if got := fmt.Sprintf(verb, read); got != "certificate with its private key" {
				t.Errorf("%s prints %s", verb, got)
			}
		}
	}
}

// A certificate never outlives its CA, since clients would refuse it then.
func TestPairEndsWithItsCA(t *testing.T) {
	t.Parallel()
	made := time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)
	ca := testkit.Value(NewCA("Pullpass CA", made))(t)
	issued := testkit.Value(ca.Issue(Leaf{Algorithm: ES256}, made.Add(caValidity-time.Hour)))(t)
	if !issued.cert.NotAfter.Equal(ca.cert.NotAfter) {
		t.Errorf("it ends at %v, and its CA at %v", issued.cert.NotAfter, ca.cert.NotAfter)
	}
}

func TestParsePairRefuses(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)
	certificate, key, err := testkit.Value(NewCA("a", now))(t).PEM()
	testkit.Must(t, err)
	_, otherKey, err := testkit.Value(NewCA("b", now))(t).PEM()
	testkit.Must(t, err)
	for want, pair := range map[string][2][]byte{
		"there is no certificate in PEM form": {key, key},
		"there is no private key in PEM form": {certificate, certificate},
		"the key is not the certificate's":    {certificate, otherKey},
	} {
		if _, err := ParsePair(pair[0], pair[1]); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
