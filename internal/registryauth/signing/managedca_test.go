package signing

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
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

func mustRotateCA(t testing.TB, keys *ManagedKeys, signAfter time.Duration) CAInfo {
	t.Helper()
	info := testkit.Value(keys.RotateCA(RotateOptions{SignAfter: signAfter}))(t)
	return info
}

// caStates are the states of the CAs, oldest first.
func caStates(keys Keys) []State {
	var states []State
	for _, ca := range keys.Status().CAs {
		states = append(states, ca.State)
	}
	return states
}

// runManaged keeps keys current as a server does, until the test ends.
func runManaged(t *testing.T, keys *ManagedKeys) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { keys.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	synctest.Wait()
}

// Published first, then signing, then forgotten: at every moment all live tokens
// are good for a registry that has what was published an hour ago.
func TestManagedKeysRollTheCAOver(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		const signAfter, step = 26 * time.Hour, 20 * time.Minute
		cfg := managedConfig(t, TrustCertificate)
		cfg.Lifetime = time.Hour
		keys := openManaged(t, cfg)
		mustMaintain(t, keys)
		oldCA := onlyCA(t, keys)
		operator := openManaged(t, cfg)
		info := mustRotateCA(t, operator, signAfter)
		if info.State != StateNext || !info.SignsFrom.Equal(time.Now().Add(signAfter)) {
			t.Errorf("the new CA is %+v", info)
		}
		if _, err := operator.RotateCA(RotateOptions{}); err == nil || !strings.Contains(err.Error(), info.ID+" waits already") {
			t.Errorf("a third CA: %v, want it refused", err)
		}
		mustMaintain(t, keys)
		if got := caStates(keys); !slices.Equal(got, []State{StateSigning, StateNext}) {
			t.Errorf("the server sees CAs %v", got)
		}

		var alive []issued
		published := []signingtest.Registry{newRegistry(t, keys)} // at each step
		for end := info.SignsFrom.Add(leafValidity + time.Hour); time.Now().Before(end); time.Sleep(step) {
			mustMaintain(t, keys)
			alive = append(alive, mustIssue(t, keys, cfg.Lifetime))
			alive = slices.DeleteFunc(alive, func(tok issued) bool { return time.Since(tok.expiry) > token.Leeway })
			for _, tok := range alive {
				verifyAll(t, []string{tok.raw}, published[max(0, len(published)-int(time.Hour/step))])
			}
			published = append(published, newRegistry(t, keys))
		}
		if ca := onlyCA(t, keys); ca.ID != info.ID || ca.State != StateSigning {
			t.Errorf("in the end the CA is %+v, want %s", ca, info.ID)
		}
		if names := dirNames(t, cfg.Dir); slices.Contains(names, caFileName(oldCA.ID)) {
			t.Errorf("the old CA's file is still there: %v", names)
		}
	})
}

func TestManagedKeysChangeOverAtTheirTime(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		keys := newManaged(t, TrustCertificate)
		oldCA := onlyCA(t, keys)
		info := mustRotateCA(t, keys, time.Hour)
		time.Sleep(time.Hour - time.Second)
		mustMaintain(t, keys)
		mustRotate(t, keys, 0) // a new key meanwhile is of the old CA
		if key := keys.Status().Keys; key[len(key)-1].CA != oldCA.ID {
			t.Errorf("before its time the new CA signs: %+v", key)
		}
		time.Sleep(time.Second)
		mustMaintain(t, keys)
		last := keys.Status().Keys[len(keys.Status().Keys)-1]
		if last.CA != info.ID || last.State != StateSigning || mustSigning(t, keys).ID != last.ID {
			t.Errorf("at its time the key is %+v, want one of %s", last, info.ID)
		}
		mustMaintain(t, keys)
		if n := len(keys.Status().Keys); n != 3 {
			t.Errorf("%d keys, want 3: one change, one key", n)
		}
		if got := caStates(keys); !slices.Equal(got, []State{StateRetired, StateSigning}) {
			t.Errorf("CAs %v", got)
		}
		old := keys.Status().CAs[0]
		if !old.SignsUntil.Equal(info.SignsFrom) || !old.PublishedUntil.Equal(info.SignsFrom.Add(leafValidity)) {
			t.Errorf("the old CA %+v", old)
		}
		// Also when nothing can be removed.
		time.Sleep(leafValidity - time.Second)
		if n := len(keys.Trusted().Certificates); n != 2 {
			t.Errorf("%d CAs are published while certificates of both are valid, want 2", n)
		}
		time.Sleep(time.Second)
		mustMaintain(t, keys)
		if n := len(keys.Trusted().Certificates); n != 1 {
			t.Errorf("%d CAs are published in the end, want 1", n)
		}
	})
}

// A key of the old CA that signs after the change needs that CA once more.
func TestManagedKeysKeepACAForItsKeys(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		keys := newManaged(t, TrustCertificate)
		late := mustRotate(t, keys, 10*24*time.Hour)
		mustRotateCA(t, keys, time.Hour)
		for range 10 * 24 {
			time.Sleep(time.Hour)
			if mustSigning(t, keys).ID == late.ID {
				verifyAll(t, []string{testToken(t, keys)}, newRegistry(t, keys))
				mustMaintain(t, keys)
				break
			}
			mustMaintain(t, keys)
			if n := len(keys.Trusted().Certificates); n != 2 {
				t.Fatalf("%d CAs are published while keys of both are there, want 2", n)
			}
		}
		if mustSigning(t, keys).ID == late.ID {
			t.Error("a key of the old CA goes on to sign")
		}
		time.Sleep(keys.cfg.Lifetime + overlapMargin)
		mustMaintain(t, keys) // its key goes
		mustMaintain(t, keys) // and so does the CA
		onlyCA(t, keys)
	})
}

// A registry was forgotten: the way back is open until the last certificate of
// the old CA has ended.
func TestManagedKeysGoBackToTheOldCA(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		keys := newManaged(t, TrustCertificate)
		forgotten := newRegistry(t, keys)
		info := mustRotateCA(t, keys, time.Hour)
		wait := func(d time.Duration) {
			t.Helper()
			for range d / time.Hour {
				time.Sleep(time.Hour)
				mustMaintain(t, keys)
			}
		}
		wait(6 * 24 * time.Hour)
		if _, err := forgotten.Verify(testToken(t, keys)); err == nil {
			t.Fatal("the new CA does not sign")
		}
		if _, err := keys.Revoke(info.ID); err != nil {
			t.Fatal(err)
		}
		verifyAll(t, []string{testToken(t, keys)}, forgotten)
		wait(leafValidity)
		verifyAll(t, []string{testToken(t, keys)}, forgotten)
	})
}

// At once, for the old CA is known to others: registries have to be told first.
func TestManagedKeysRotateTheCAAtOnce(t *testing.T) {
	t.Parallel()
	keys := newManaged(t, TrustCertificate)
	oldCA := onlyCA(t, keys)
	info := mustRotateCA(t, keys, 0)
	if got := caStates(keys); !slices.Equal(got, []State{StateRetired, StateSigning}) || mustSigning(t, keys).root() == nil || fingerprint(mustSigning(t, keys).root()) != info.ID {
		t.Errorf("CAs %v, key of %s, want it to be of %s", got, fingerprint(mustSigning(t, keys).root()), info.ID)
	}
	key := testkit.Value(keys.Revoke(oldCA.ID))(t)
	if onlyCA(t, keys).ID != info.ID || key.CA != info.ID || len(keys.Status().Keys) != 1 || len(keys.Trusted().JWKS.Keys) != 1 {
		t.Errorf("after the old CA was revoked: %+v", keys.Status())
	}
	if _, err := keys.Revoke(info.ID); err == nil || !strings.Contains(err.Error(), "only CA") || onlyCA(t, keys).ID != info.ID {
		t.Errorf("the last CA: %v, want it kept", err)
	}
	if _, err := newManaged(t, TrustJWKS).RotateCA(RotateOptions{}); err == nil || !strings.Contains(err.Error(), "there is no CA") {
		t.Errorf("with trust jwks: %v", err)
	}
	if _, err := keys.RotateCA(RotateOptions{SignAfter: -1}); err == nil || !strings.Contains(err.Error(), "is negative") {
		t.Errorf("a negative delay: %v", err)
	}
}

// The operator finishes before the configured time: the waiting key signs at once.
func TestManagedKeysRevokeTheSigningOneWhileAnotherWaits(t *testing.T) {
	t.Parallel()
	t.Run("CA", func(t *testing.T) {
		t.Parallel()
		keys := newManaged(t, TrustCertificate)
		oldCA := onlyCA(t, keys)
		info := mustRotateCA(t, keys, time.Hour)
		key := testkit.Value(keys.Revoke(oldCA.ID))(t)
		if key.CA != info.ID || key.State != StateSigning || onlyCA(t, keys).State != StateSigning {
			t.Errorf("%+v, want the waiting CA to sign", keys.Status())
		}
	})
	t.Run("key", func(t *testing.T) {
		t.Parallel()
		keys := newManaged(t, TrustJWKS)
		first := mustSigning(t, keys).ID
		next := mustRotate(t, keys, time.Hour)
		key := testkit.Value(keys.Revoke(first))(t)
		if key.ID != next.ID || key.State != StateSigning || mustSigning(t, keys).ID != next.ID || len(keys.Trusted().JWKS.Keys) != 1 {
			t.Errorf("%+v, want the waiting key to sign", keys.Status())
		}
	})
}

// The effects of a revocation, in this process and in another.
func TestManagedKeysRevoke(t *testing.T) {
	t.Parallel()
	for _, trust := range []Trust{TrustCertificate, TrustJWKS} {
		synctest.Test(t, func(t *testing.T) {
			server := openManaged(t, managedConfig(t, trust))
			runManaged(t, server)
			leaked := mustSigning(t, server).ID
			registry := newRegistry(t, server)
			before := testToken(t, server)

			operator := openManaged(t, server.cfg)
			if _, err := operator.Revoke("unknown"); !errors.Is(err, ErrUnknownKey) {
				t.Errorf("an unknown key: %v, want ErrUnknownKey", err)
			}
			key, err := operator.Revoke(leaked)
			testkit.Must(t, err)
			if key.ID == leaked || key.State != StateSigning {
				t.Errorf("%s: %+v signs", trust, key)
			}
			testkit.Must(t, server.Reload())
			for _, keys := range []*ManagedKeys{server, operator} {
				published := keys.Trusted().JWKS
				if mustSigning(t, keys).ID != key.ID || len(published.Key(leaked)) != 0 || len(keys.Status().Keys) != 1 {
					t.Errorf("%s: after the key was revoked: %+v", trust, keys.Status())
				}
			}
			if names := dirNames(t, server.cfg.Dir); slices.Contains(names, keyFileName(leaked)) {
				t.Errorf("%s: its file is there: %v", trust, names)
			}
			// As documented, registries continue with their present files.
			verifyAll(t, []string{before}, registry)
			_, err = registry.Verify(testToken(t, server))
			if (err == nil) != (trust == TrustCertificate) {
				t.Errorf("%s: a registry that was told nothing says %v to the new key", trust, err)
			}

			waiting := mustRotate(t, operator, time.Hour)
			if key, err := operator.Revoke(waiting.ID); err != nil || key.State != StateSigning || len(operator.Status().Keys) != 1 {
				t.Errorf("%s: a key that waits cannot be taken back: %+v, %v", trust, operator.Status(), err)
			}
		})
	}
}

// Replicas that are started again, one by one, with another algorithm share the
// directory with those that were not yet.
func TestManagedKeysOfTwoConfigurationsDoNotFight(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		old := openManaged(t, managedConfig(t, TrustCertificate))
		runManaged(t, old)
		time.Sleep(time.Hour)
		cfg := old.cfg
		cfg.Algorithm = EdDSA
		replica := openManaged(t, cfg)
		runManaged(t, replica)
		time.Sleep(time.Hour)
		for _, keys := range []*ManagedKeys{old, replica} {
			if got := mustSigning(t, keys).Algorithm; got != EdDSA {
				t.Errorf("signs with %s, want the algorithm of the newer configuration", got)
			}
		}
		if n := len(old.Status().Keys); n != 1 {
			t.Errorf("%d keys an hour later, want 1", n)
		}
	})
}

func TestManagedProcessesAgreeOnTheCA(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		cfg := managedConfig(t, TrustCertificate)
		all := []*ManagedKeys{openManaged(t, cfg), openManaged(t, cfg), openManaged(t, cfg)}
		for _, keys := range all {
			runManaged(t, keys)
		}
		mustRotateCA(t, openManaged(t, cfg), time.Hour)
		time.Sleep(time.Hour + 2*maintainEvery)
		want := all[0].Status()
		if len(want.Keys) != 2 || !slices.Equal(caStates(all[0]), []State{StateRetired, StateSigning}) {
			t.Errorf("after the change: %+v", want)
		}
		for _, keys := range all[1:] {
			if got := keys.Status(); !slices.Equal(got.Keys, want.Keys) || !slices.Equal(got.CAs, want.CAs) {
				t.Errorf("the processes disagree:\n%+v\n%+v", got, want)
			}
		}
	})
}

// Clocks jump, at the start of a machine or after a manual change. Pulls continue with keys that
// registries know.
func TestManagedKeysWhenTheClockJumps(t *testing.T) {
	t.Parallel()
	for _, trust := range []Trust{TrustCertificate, TrustJWKS} {
		for _, jump := range []time.Duration{-time.Hour, -5 * time.Minute, 5 * time.Minute, 36 * time.Hour, 5 * 24 * time.Hour} {
			synctest.Test(t, func(t *testing.T) {
				offset := time.Duration(0)
				cfg := managedConfig(t, trust)
				cfg.Now = func() time.Time { return time.Now().Add(offset) }
				keys := openManaged(t, cfg)
				mustMaintain(t, keys)
				time.Sleep(25 * time.Hour)
				mustMaintain(t, keys)
				if trust == TrustCertificate {
					mustRotateCA(t, keys, 3*24*time.Hour)
				}
				registry := newRegistry(t, keys) // of the right time, with both CAs
				check := func(when string) {
					t.Helper()
					for range 30 {
						mustMaintain(t, keys)
						time.Sleep(time.Minute)
					}
					if _, err := registry.Verify(testToken(t, keys)); err != nil {
						t.Errorf("%s, %s by %s: %v", trust, when, jump, err)
					}
				}
				offset = jump
				if trust == TrustJWKS || jump < 0 || jump > backdate {
					// A registry of the right time accepts no tokens of the past and no
					// certificates of the future.
					for range 30 {
						mustMaintain(t, keys)
						mustSigning(t, keys)
						time.Sleep(time.Minute)
					}
				} else {
					check("the clock is wrong")
				}
				offset = 0
				check("the clock was wrong")
				if n := len(keys.Status().Keys); n > 4 {
					t.Errorf("%s, %s: %d keys", trust, jump, n)
				}
			})
		}
	}
}

func TestManagedRunWarnsOfTheEndOfTheCA(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		var log bytes.Buffer
		cfg := managedConfig(t, TrustCertificate)
		cfg.Now = func() time.Time { return time.Now().Add(-caValidity + maxEndWarning) }
		mustMaintain(t, openManaged(t, cfg))
		cfg.Now = time.Now
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		keys := openManaged(t, cfg)
		ctx, cancel := context.WithTimeout(t.Context(), 36*time.Hour)
		defer cancel()
		keys.Run(ctx)
		if n := strings.Count(log.String(), "level=WARN"); n != 2 || !strings.Contains(log.String(), "keys rotate-ca") || strings.Contains(log.String(), "level=ERROR") {
			t.Errorf("warned %d times in 36 hours, want once a day: %s", n, log.String())
		}
	})
}

// A file that cannot be read, or is gone, ends nothing for a process that knows
// the CA; one that starts takes the other CA.
func TestManagedKeysWithOneOfTwoCAs(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(string) error{
		"gone":    os.Remove,
		"damaged": func(name string) error { return os.Truncate(name, 100) },
	} {
		keys := newManaged(t, TrustCertificate)
		oldCA := onlyCA(t, keys)
		info := mustRotateCA(t, keys, time.Hour)
		if name == "damaged" {
			content, published := readFile(t, info.File), MarshalCertificates(keys)
			testkit.Must(t, spoil(info.File))
			if err := keys.Reload(); err == nil || !strings.Contains(err.Error(), info.File) || !bytes.Equal(MarshalCertificates(keys), published) {
				t.Errorf("the new CA is %s: %v", name, err)
			}
			testkit.Must(t, os.WriteFile(info.File, content, 0o600))
		}
		testkit.Must(t, spoil(oldCA.File))
		published := MarshalCertificates(keys)
		if err := keys.Reload(); err == nil || !strings.Contains(err.Error(), oldCA.File) || !bytes.Equal(MarshalCertificates(keys), published) {
			t.Errorf("%s: the CA of keys that are there: %v", name, err)
		}
		if key := mustSigning(t, keys); fingerprint(key.root()) != oldCA.ID {
			t.Errorf("%s: the key changed", name)
		}
		fresh := openManaged(t, keys.cfg)
		if err := fresh.Maintain(); err == nil || fingerprint(mustSigning(t, fresh).root()) != info.ID {
			t.Errorf("%s: a fresh process: %v", name, err)
		}
	}
}

// The CA's key is in only one file, which other users cannot read, and in no output.
func TestManagedStatusIsPublic(t *testing.T) {
	t.Parallel()
	keys := newManaged(t, TrustCertificate)
	mustRotateCA(t, keys, time.Hour)
	status := testkit.Value(json.Marshal(keys.Status()))(t)
	for _, ca := range keys.Status().CAs {
		var file caFile
		testkit.Must(t, json.Unmarshal(readFile(t, ca.File), &file))
		body := strings.Split(file.PrivateKey, "\n")[1]
		if bytes.Contains(status, []byte(body)) || bytes.Contains(MarshalCertificates(keys), []byte(body)) {
			t.Error("the private key of the CA is shown")
		}
		if info, err := os.Stat(ca.File); err != nil || info.Mode().Perm() != 0o600 || filepath.Base(ca.File) != caFileName(ca.ID) {
			t.Errorf("%s: mode %v, error %v", ca.File, info.Mode(), err)
		}
	}
}
