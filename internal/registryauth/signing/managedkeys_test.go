package signing

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distribution/distribution/v3/registry/auth/token"

	"github.com/pullpass/pullpass/internal/registryauth/signing/signingtest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func managedConfig(t testing.TB, trust Trust) ManagedKeysConfig {
	t.Helper()
	return ManagedKeysConfig{Dir: filepath.Join(t.TempDir(), "keys"), Trust: trust, Service: signingtest.Service, Lifetime: 5 * time.Minute}
}

func openManaged(t testing.TB, cfg ManagedKeysConfig) *ManagedKeys {
	t.Helper()
	keys := testkit.Value(NewManagedKeys(cfg))(t)
	return keys
}

func mustMaintain(t testing.TB, keys *ManagedKeys) {
	t.Helper()
	testkit.Must(t, keys.Maintain())
}

// newManaged returns keys that have been maintained once.
func newManaged(t testing.TB, trust Trust) *ManagedKeys {
	t.Helper()
	keys := openManaged(t, managedConfig(t, trust))
	mustMaintain(t, keys)
	return keys
}

func mustRotate(t testing.TB, keys *ManagedKeys, signAfter time.Duration) KeyInfo {
	t.Helper()
	info := testkit.Value(keys.Rotate(RotateOptions{SignAfter: signAfter}))(t)
	return info
}

func onlyCA(t testing.TB, keys Keys) CAInfo {
	t.Helper()
	cas := keys.Status().CAs
	if len(cas) != 1 {
		t.Fatalf("%d CAs, want 1: %+v", len(cas), cas)
	}
	return cas[0]
}

func dirNames(t testing.TB, dir string) []string {
	t.Helper()
	entries := testkit.Value(os.ReadDir(dir))(t)
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func TestManagedKeysStart(t *testing.T) {
	t.Parallel()
	for _, trust := range []Trust{TrustCertificate, TrustJWKS} {
		for _, algorithm := range issuingAlgorithms {
			cfg := managedConfig(t, trust)
			cfg.Algorithm = algorithm
			keys := openManaged(t, cfg)
			if _, err := keys.Signing(); !errors.Is(err, ErrNoSigningKey) {
				t.Errorf("before the first key: %v, want ErrNoSigningKey", err)
			}
			if _, err := os.Stat(cfg.Dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("reading made the directory: %v", err)
			}
			mustMaintain(t, keys)
			mustMaintain(t, keys)

			raw := testToken(t, keys)
			verifyAll(t, []string{raw}, newRegistry(t, keys))
			if header := testkit.TokenPart(t, raw, 0); header["alg"] != string(algorithm) {
				t.Errorf("alg %v, want %s", header["alg"], algorithm)
			}
			if since := time.Since(mustSigning(t, keys).Since); since < 0 || since > time.Minute {
				t.Errorf("the key that was just made signs for %s", since)
			}
			infos := keys.Status().Keys
			if len(infos) != 1 || infos[0].State != StateSigning || infos[0].ID != mustSigning(t, keys).ID || infos[0].Algorithm != algorithm {
				t.Errorf("list %+v", infos)
			}
			want := []string{filepath.Base(infos[0].File), "lock"}
			if trust == TrustCertificate {
				want = append([]string{filepath.Base(onlyCA(t, keys).File)}, want...)
			}
			if got := dirNames(t, cfg.Dir); !slices.Equal(got, want) {
				t.Errorf("the directory holds %v, want %v", got, want)
			}
			for _, name := range append(want, ".") {
				info, err := os.Stat(filepath.Join(cfg.Dir, name))
				if err != nil || info.Mode().Perm()&0o077 != 0 {
					t.Errorf("%s: mode %v, error %v, want it private", name, info.Mode(), err)
				}
			}
		}
	}
}

// The certificates are good for tokens and nothing else.
func TestManagedCertificates(t *testing.T) {
	t.Parallel()
	keys := newManaged(t, TrustCertificate)
	ca, leaf := keys.Trusted().Certificates[0], mustSigning(t, keys).path[0]
	if !ca.IsCA || !ca.MaxPathLenZero || ca.MaxPathLen != 0 || ca.NotAfter.Sub(ca.NotBefore) != caValidity+backdate {
		t.Errorf("CA: %v, path length %d, from %s to %s", ca.IsCA, ca.MaxPathLen, ca.NotBefore, ca.NotAfter)
	}
	if leaf.IsCA || len(leaf.ExtKeyUsage)+len(leaf.DNSNames) != 0 || leaf.NotAfter.Sub(leaf.NotBefore) != leafValidity+backdate {
		t.Errorf("leaf: CA %v, names %v, usage %v, from %s to %s", leaf.IsCA, leaf.DNSNames, leaf.ExtKeyUsage, leaf.NotBefore, leaf.NotAfter)
	}
	if !strings.Contains(ca.Subject.CommonName, signingtest.Service) {
		t.Errorf("CA of %q does not say whose it is", ca.Subject)
	}
}

// Registries trust the CA alone, so no rotation may change what is published.
func TestManagedRotationNeverTouchesTheCA(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		keys := newManaged(t, TrustCertificate)
		published := MarshalCertificates(keys)
		registry := newRegistry(t, keys)
		ids := map[string]bool{mustSigning(t, keys).ID: true}
		var alive []string
		for range 100 {
			info := mustRotate(t, keys, 0)
			if ids[info.ID] || info.State != StateSigning || mustSigning(t, keys).ID != info.ID {
				t.Fatalf("rotation gave %+v", info)
			}
			ids[info.ID] = true
			alive = append(alive, testToken(t, keys))
			verifyAll(t, alive[max(0, len(alive)-5):], registry)
			time.Sleep(time.Minute)
			mustMaintain(t, keys)
		}
		if !bytes.Equal(MarshalCertificates(keys), published) {
			t.Error("the published certificates changed")
		}
		if n := len(keys.Status().Keys); n > 12 {
			t.Errorf("%d keys are left", n)
		}
	})
}

// Clocks are coarse, and two operators may rotate at once: the later key signs.
func TestManagedRotationsAtOneInstant(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		keys := newManaged(t, TrustJWKS)
		for range 8 {
			if info := mustRotate(t, keys, 0); info.State != StateSigning {
				t.Errorf("the new key is %+v", info)
			}
		}
	})
}

func TestManagedKeysWaitForTheNextKey(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		keys := newManaged(t, TrustCertificate)
		mustRotate(t, keys, 10*24*time.Hour)
		time.Sleep(2 * rotateEvery)
		mustMaintain(t, keys)
		if n := len(keys.Status().Keys); n != 2 {
			t.Errorf("%d keys while one waits, want 2", n)
		}
		// But signing must not stop if it waits longer than the certificate lives.
		time.Sleep(2 * rotateEvery)
		mustMaintain(t, keys)
		if n := len(keys.Status().Keys); n != 3 {
			t.Errorf("%d keys when the certificate comes to its end, want 3", n)
		}
	})
}

func TestManagedKeysRotateDailyAndPrune(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		keys := openManaged(t, managedConfig(t, TrustCertificate))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { keys.Run(ctx) })
		synctest.Wait()
		registry := newRegistry(t, keys)
		first := mustSigning(t, keys).ID

		time.Sleep(rotateEvery - maintainEvery/2)
		if got := mustSigning(t, keys).ID; got != first {
			t.Error("the key changed before its time")
		}
		time.Sleep(maintainEvery)
		second := mustSigning(t, keys).ID
		if second == first {
			t.Error("the key did not change after a day")
		}
		infos := keys.Status().Keys
		if len(infos) != 2 || infos[0].State != StateRetired || !infos[0].SignsUntil.Equal(infos[1].SignsFrom) ||
			!infos[0].PublishedUntil.Equal(infos[0].SignsUntil.Add(5*time.Minute+overlapMargin)) {
			t.Errorf("list %+v", infos)
		}
		// Its tokens can be presented until their end and the leeway.
		time.Sleep(5*time.Minute + token.Leeway)
		if names := dirNames(t, keys.cfg.Dir); !slices.Contains(names, keyFileName(first)) {
			t.Error("the old key was removed too early")
		}
		time.Sleep(overlapMargin)
		if names := dirNames(t, keys.cfg.Dir); slices.Contains(names, keyFileName(first)) || !slices.Contains(names, keyFileName(second)) {
			t.Errorf("after the overlap there are %v", names)
		}
		cancel()
		wg.Wait()
		for range 30 {
			time.Sleep(24 * time.Hour)
			mustMaintain(t, keys)
			verifyAll(t, []string{testToken(t, keys)}, registry)
		}
		if n := len(keys.Status().Keys); n > 2 {
			t.Errorf("%d keys after a month", n)
		}
	})
}

// An operator may make the first key, and a start with the same settings makes no other.
func TestManagedKeysMakeNoKeyWithoutNeed(t *testing.T) {
	t.Parallel()
	now := time.Now()
	cfg := managedConfig(t, TrustCertificate)
	cfg.Now = func() time.Time { return now }
	if info := mustRotate(t, openManaged(t, cfg), 0); info.State != StateSigning {
		t.Errorf("the first key is %+v", info)
	}
	now = now.Add(time.Hour)
	keys := openManaged(t, cfg)
	mustMaintain(t, keys)
	if n := len(keys.Status().Keys); n != 1 {
		t.Errorf("%d keys after another start, want 1", n)
	}
	mustRotateCA(t, keys, time.Hour)
	if n := len(keys.Status().Keys); n != 1 {
		t.Errorf("%d keys while the new CA waits, want 1", n)
	}

	cfg = managedConfig(t, TrustJWKS)
	cfg.Now = func() time.Time { return now }
	keys = openManaged(t, cfg)
	mustMaintain(t, keys)
	now = now.Add(2 * rotateFollowed)
	mustMaintain(t, keys)
	if n := len(keys.Status().Keys); n != 1 {
		t.Errorf("%d keys for registries that read the key set once, want 1", n)
	}
}

// A proxy that was off for long has only expired certificates.
func TestManagedKeysRecoverAfterALongPause(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		keys := newManaged(t, TrustCertificate)
		registry := newRegistry(t, keys)
		time.Sleep(leafValidity)
		if _, err := keys.Signing(); !errors.Is(err, ErrNoSigningKey) {
			t.Errorf("with an expired certificate: %v, want ErrNoSigningKey", err)
		}
		again := openManaged(t, keys.cfg)
		mustMaintain(t, again)
		verifyAll(t, []string{testToken(t, again)}, registry)
	})
}

// A registry reads its key set once: a key that signs before the registry
// knows it stops every pull.
func TestManagedJWKSRotatesInTwoSteps(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		keys := openManaged(t, managedConfig(t, TrustJWKS))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { keys.Run(ctx) })
		synctest.Wait()
		first := mustSigning(t, keys).ID
		registry := newRegistry(t, keys)

		time.Sleep(3 * rotateEvery)
		if mustSigning(t, keys).ID != first || len(keys.Status().Keys) != 1 {
			t.Fatal("a key that registries read once changed by itself")
		}

		operator := openManaged(t, keys.cfg) // the command, beside the server
		info := mustRotate(t, operator, time.Hour)
		if info.State != StateNext || !info.SignsFrom.Equal(time.Now().Add(time.Hour)) {
			t.Errorf("the new key is %+v", info)
		}
		if _, err := operator.Rotate(RotateOptions{SignAfter: time.Hour}); err == nil || !strings.Contains(err.Error(), "waits already") {
			t.Errorf("a second rotation: %v, want it refused", err)
		}
		time.Sleep(maintainEvery + time.Second)
		if n := len(keys.Trusted().JWKS.Keys); n != 2 {
			t.Errorf("%d keys are published, want both", n)
		}
		time.Sleep(time.Hour - maintainEvery - 2*time.Second)
		last := mustIssue(t, keys, tokenLifetime)
		verifyAll(t, []string{last.raw}, registry)
		registry = newRegistry(t, keys) // rolled out in time
		time.Sleep(2 * time.Second)
		next := mustIssue(t, keys, tokenLifetime)
		if last.keyID != first || next.keyID != info.ID {
			t.Errorf("tokens of %s, then %s, want %s, then %s", last.keyID, next.keyID, first, info.ID)
		}
		verifyAll(t, []string{last.raw, next.raw}, registry)

		time.Sleep(5*time.Minute + token.Leeway - 3*time.Second)
		verifyAll(t, []string{last.raw, next.raw}, newRegistry(t, keys))
		time.Sleep(overlapMargin)
		cancel()
		wg.Wait()
		if set := keys.Trusted().JWKS.Keys; len(set) != 1 || set[0].KeyID != info.ID {
			t.Errorf("published after the overlap: %+v", set)
		}
		// Also when nothing can be removed.
		mustRotate(t, keys, 0)
		time.Sleep(5*time.Minute + overlapMargin)
		if n := len(keys.Trusted().JWKS.Keys); n != 1 || len(keys.Status().Keys) != 2 {
			t.Errorf("%d keys are published after the overlap, want 1 of %d", n, len(keys.Status().Keys))
		}
	})
}

// The lifetime of tokens may be lowered while long ones are alive.
func TestManagedKeysOutliveAShorterLifetime(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		cfg := managedConfig(t, TrustJWKS)
		cfg.Lifetime = time.Hour
		keys := openManaged(t, cfg)
		mustMaintain(t, keys)
		issued := mustIssue(t, keys, time.Hour).raw
		cfg.Lifetime = 5 * time.Minute
		keys = openManaged(t, cfg)
		mustRotate(t, keys, 0)
		time.Sleep(time.Hour)
		mustMaintain(t, keys)
		verifyAll(t, []string{issued}, newRegistry(t, keys))
	})
}

func TestManagedKeysOfTwoProcessesAgree(t *testing.T) {
	t.Parallel()
	for _, trust := range []Trust{TrustCertificate, TrustJWKS} {
		cfg := managedConfig(t, trust)
		all := []*ManagedKeys{openManaged(t, cfg), openManaged(t, cfg), openManaged(t, cfg)}
		together := func(do func(*ManagedKeys) error) {
			t.Helper()
			var wg sync.WaitGroup
			for _, keys := range all {
				wg.Go(func() {
					if err := do(keys); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		}
		together((*ManagedKeys).Maintain)
		if n := len(all[0].Status().Keys); n != 1 {
			t.Errorf("%s: %d keys were made by a common start, want 1", trust, n)
		}
		together(func(keys *ManagedKeys) error { _, err := keys.Rotate(RotateOptions{}); return err })
		together((*ManagedKeys).Reload)
		want := all[0].Status().Keys
		if len(want) != 1+len(all) {
			t.Errorf("%s: %d keys, want %d", trust, len(want), 1+len(all))
		}
		for _, keys := range all[1:] {
			if !slices.Equal(keys.Status().Keys, want) {
				t.Errorf("%s: the processes disagree:\n%+v\n%+v", trust, keys.Status().Keys, want)
			}
			verifyAll(t, []string{testToken(t, all[0])}, newRegistry(t, keys))
		}
	}
}

func TestManagedKeysChangeUnderLoad(t *testing.T) {
	t.Parallel()
	for _, trust := range []Trust{TrustCertificate, TrustJWKS} {
		synctest.Test(t, func(t *testing.T) {
			keys := newManaged(t, trust)
			raws := issueWhile(t, keys, func() {
				for range 20 {
					mustRotate(t, keys, 0)
				}
			})
			time.Sleep(5*time.Minute + token.Leeway - time.Second)
			mustMaintain(t, keys)
			verifyAll(t, raws, newRegistry(t, keys))
		})
	}
}

// A gateway that follows the key set can do so with either trust.
func TestManagedKeysArePublishedWithEitherTrust(t *testing.T) {
	t.Parallel()
	for _, trust := range []Trust{TrustCertificate, TrustJWKS} {
		keys := newManaged(t, trust)
		first := mustSigning(t, keys).ID
		mustRotate(t, keys, 0)
		published := keys.Trusted().JWKS
		for _, id := range []string{first, mustSigning(t, keys).ID} {
			if len(published.Key(id)) != 1 {
				t.Errorf("%s: key %s is not in the key set", trust, id)
			}
		}
	}
}
