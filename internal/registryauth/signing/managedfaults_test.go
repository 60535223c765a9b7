package signing

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestManagedKeysIgnoreAndRemoveCrashLeftovers(t *testing.T) {
	t.Parallel()
	keys := newManaged(t, TrustCertificate)
	before := keys.Status().Keys
	for name, data := range map[string]string{
		"tmp-1": "", "tmp-22": "{", "lost+found": "", "README": "x", "key-1.json.bak": "", "ca-private-1.json.bak": "", "notes.json": "",
	} {
		testkit.Must(t, os.WriteFile(filepath.Join(keys.cfg.Dir, name), []byte(data), 0o600))
	}
	if err := keys.Reload(); err != nil || !slices.Equal(keys.Status().Keys, before) {
		t.Errorf("leftovers were read: %v", err)
	}
	mustMaintain(t, keys)
	want := []string{"README", filepath.Base(onlyCA(t, keys).File), filepath.Base(before[0].File), "lock", "lost+found", "key-1.json.bak", "ca-private-1.json.bak", "notes.json"}
	if names := dirNames(t, keys.cfg.Dir); len(names) != len(want) || slices.ContainsFunc(want, func(n string) bool { return !slices.Contains(names, n) }) {
		t.Errorf("the directory holds %v, want %v", names, want)
	}
}

// A key file that other users can read may be known to them.
func TestManagedKeysRefuseOpenModes(t *testing.T) {
	t.Parallel()
	keys := newManaged(t, TrustCertificate)
	dir, file := keys.cfg.Dir, keys.Status().Keys[0].File
	for _, mode := range []os.FileMode{0o750, 0o701, 0o720} {
		testkit.Must(t, os.Chmod(dir, mode))
		if _, err := NewManagedKeys(keys.cfg); err == nil || !strings.Contains(err.Error(), "chmod go=") || !strings.Contains(err.Error(), dir) {
			t.Errorf("directory with mode %o: %v", mode, err)
		}
		if err := keys.Reload(); err == nil || !strings.Contains(err.Error(), "kept as they were") {
			t.Errorf("reload with mode %o: %v", mode, err)
		}
		mustSigning(t, keys)
	}
	testkit.Must(t, os.Chmod(dir, 0o700))
	for _, name := range []string{file, onlyCA(t, keys).File} {
		testkit.Must(t, os.Chmod(name, 0o640))
		other := openManaged(t, keys.cfg)
		if _, err := other.Signing(); !errors.Is(err, ErrNoSigningKey) {
			t.Errorf("%s with mode 640 is used: %v", name, err)
		}
		if err := other.Reload(); err == nil || !strings.Contains(err.Error(), name+" has mode 0640") {
			t.Errorf("%s with mode 640: %v", name, err)
		}
		testkit.Must(t, os.Chmod(name, 0o600))
	}
	// An existing directory is not made private by us: it may have been read.
	open := managedConfig(t, TrustJWKS)
	before := openManaged(t, open)
	testkit.Must(t, os.Mkdir(open.Dir, 0o755))
	if err := before.Maintain(); err == nil || !strings.Contains(err.Error(), "has mode 0755") || len(before.Status().Keys) != 0 {
		t.Errorf("an open directory is used: %v", err)
	}
	if names := dirNames(t, open.Dir); slices.ContainsFunc(names, func(n string) bool { return n != lockFile }) {
		t.Errorf("keys were made in an open directory: %v", names)
	}
	if _, err := NewManagedKeys(open); err == nil || !strings.Contains(err.Error(), "has mode 0755") {
		t.Errorf("an open, empty directory: %v", err)
	}
}

func TestManagedKeysSkipBrokenFiles(t *testing.T) {
	t.Parallel()
	keys := newManaged(t, TrustCertificate)
	good := keys.Status().Keys[0]
	bad := mustRotate(t, keys, 0)
	content := testkit.Value(os.ReadFile(bad.File))(t)
	otherKey := testkit.Value(os.ReadFile(newManaged(t, TrustCertificate).Status().Keys[0].File))(t)
	jwksKey := testkit.Value(os.ReadFile(newManaged(t, TrustJWKS).Status().Keys[0].File))(t)
	changed := func(edit func(map[string]any)) []byte {
		var fields map[string]any
		testkit.Must(t, json.Unmarshal(content, &fields))
		edit(fields)
		data := testkit.Value(json.Marshal(fields))(t)
		return data
	}
	goodContent := testkit.Value(os.ReadFile(good.File))(t)
	var goodFields map[string]any
	testkit.Must(t, json.Unmarshal(goodContent, &goodFields))
	for want, data := range map[string][]byte{
		"is damaged":              content[:len(content)/2],
		"is damaged: restore":     changed(func(f map[string]any) { f["extra"] = 1 }),
		"version 2":               changed(func(f map[string]any) { f["version"] = 2 }),
		"version 3":               changed(func(f map[string]any) { f["version"], f["extra"] = 3, 1 }),
		"no private key":          changed(func(f map[string]any) { f["privateKey"] = "" }),
		"no certificate":          changed(func(f map[string]any) { f["certificate"] = "" }),
		"not for this private":    changed(func(f map[string]any) { f["certificate"] = goodFields["certificate"] }),
		"algorithm RS256":         changed(func(f map[string]any) { f["algorithm"] = "RS256" }),
		"about to end":            changed(func(f map[string]any) { f["createdAt"] = "2099-01-01T00:00:00Z" }),
		"renamed or copied":       goodContent,
		"does not vouch":          otherKey,
		"made for another trust":  jwksKey,
		"larger than 65536 bytes": append(content, make([]byte, maxKeyFileBytes)...),
	} {
		testkit.Must(t, os.WriteFile(bad.File, data, 0o600))
		// A process that knew the key keeps it.
		if err := keys.Reload(); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), bad.File) {
			t.Errorf("reload: %v, want %q and the name of the file", err, want)
		}
		if mustSigning(t, keys).ID != bad.ID {
			t.Errorf("%s: the last good keys were dropped", want)
		}
		// One that starts now reports the file and goes on with the key before.
		var log bytes.Buffer
		cfg := keys.cfg
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		fresh := openManaged(t, cfg)
		if !strings.Contains(log.String(), want) {
			t.Errorf("%s: the log says %s", want, log.String())
		}
		if mustSigning(t, fresh).ID != good.ID {
			t.Errorf("%s: a fresh process signs with %s, want %s", want, mustSigning(t, fresh).ID, good.ID)
		}
		for line := range strings.SplitSeq(string(content), `\n`) {
			if len(line) == 64 && strings.Contains(log.String(), line) {
				t.Errorf("%s: the log shows the file's content", want)
			}
		}
	}
	// Also the first one is kept.
	testkit.Must(t, os.Truncate(good.File, 100))
	if err := keys.Reload(); err == nil || !strings.Contains(err.Error(), good.File) {
		t.Errorf("reload: %v, want the name of the first file", err)
	}
	for _, id := range []string{good.ID, bad.ID} {
		if published := keys.Trusted().JWKS; len(published.Key(id)) != 1 {
			t.Errorf("key %s is not published any more", id)
		}
	}
}

func TestManagedKeysKeepTheLastGoodSet(t *testing.T) {
	t.Parallel()
	for _, trust := range []Trust{TrustCertificate, TrustJWKS} {
		keys := newManaged(t, trust)
		published, id := MarshalCertificates(keys), mustSigning(t, keys).ID
		check := func(when, want string) {
			t.Helper()
			if err := keys.Maintain(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s, %s: %v, want %q", trust, when, err, want)
			}
			if mustSigning(t, keys).ID != id || !bytes.Equal(MarshalCertificates(keys), published) {
				t.Errorf("%s, %s: the keys in use changed", trust, when)
			}
		}
		moved := keys.cfg.Dir + ".moved"
		testkit.Must(t, os.Rename(keys.cfg.Dir, moved))
		check("the directory vanished", "no such file")
		if _, err := keys.Rotate(RotateOptions{}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s, the directory vanished: rotation: %v", trust, err)
		}
		if _, err := os.Stat(keys.cfg.Dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the directory was made again: %v", trust, err)
		}
		testkit.Must(t, os.Mkdir(keys.cfg.Dir, 0o700))
		// As when a volume is not mounted any more: making new keys there would
		// make a CA, or a key, that no registry knows.
		check("the directory is empty", "no usable signing key any more")
		if names := dirNames(t, keys.cfg.Dir); len(names) != 0 {
			t.Errorf("%s: %v was made in the place of keys that exist", trust, names)
		}
		testkit.Must(t, os.Remove(keys.cfg.Dir))
		testkit.Must(t, os.Rename(moved, keys.cfg.Dir))
		mustMaintain(t, keys)
	}
}

// Registries know the CA: one that is lost or damaged must not be replaced in
// silence.
func TestManagedKeysNeverReplaceTheCA(t *testing.T) {
	t.Parallel()
	other := readFile(t, onlyCA(t, newManaged(t, TrustCertificate)).File)
	var sound caFile
	testkit.Must(t, json.Unmarshal(other, &sound))
	edited := func(edit func(*caFile)) func(*ManagedKeys) []byte {
		return func(keys *ManagedKeys) []byte {
			var file caFile
			testkit.Must(t, json.Unmarshal(readFile(t, onlyCA(t, keys).File), &file))
			edit(&file)
			data := testkit.Value(json.Marshal(file))(t)
			return data
		}
	}
	leafKey := newTestSigner(t, ES256)
	for want, content := range map[string]func(*ManagedKeys) []byte{
		"is missing":         func(*ManagedKeys) []byte { return nil },
		"is damaged":         func(*ManagedKeys) []byte { return []byte{} },
		"version 2":          edited(func(f *caFile) { f.Version = 2 }),
		"no certificate":     edited(func(f *caFile) { f.Certificate = "" }),
		"no private key":     edited(func(f *caFile) { f.PrivateKey = "" }),
		"the key is not the": edited(func(f *caFile) { f.PrivateKey = string(pkitest.KeyPEM(t, pkitest.RSAKey(t))) }),
		"not the certificat": edited(func(f *caFile) { f.PrivateKey = sound.PrivateKey }),
		"is not a CA's": edited(func(f *caFile) {
			f.Certificate, f.PrivateKey = string(pkitest.CertPEM(pkitest.NewCert(t, leafKey, nil))), string(pkitest.KeyPEM(t, leafKey))
		}),
		"renamed or copied": func(*ManagedKeys) []byte { return other },
	} {
		keys := newManaged(t, TrustCertificate)
		file, data := onlyCA(t, keys).File, content(keys)
		testkit.Must(t, os.Remove(file))
		if data != nil {
			testkit.Must(t, os.WriteFile(file, data, 0o600))
		}
		before := dirNames(t, keys.cfg.Dir)
		fresh := openManaged(t, keys.cfg)
		if err := fresh.Maintain(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "is missing") != (data == nil) {
			t.Errorf("error %v, want %q", err, want)
		}
		if data == nil {
			if err := fresh.Reload(); err == nil || !strings.Contains(err.Error(), "there is no CA; restore") {
				t.Errorf("error %v, want that the key has no CA", err)
			}
		}
		if after := dirNames(t, keys.cfg.Dir); !slices.Equal(after, before) {
			t.Errorf("%s: the CA was replaced: %v", want, after)
		}
		if _, err := fresh.Signing(); !errors.Is(err, ErrNoSigningKey) {
			t.Errorf("%s: %v, want ErrNoSigningKey", want, err)
		}
		published := MarshalCertificates(keys)
		if err := keys.Reload(); err == nil || !strings.Contains(err.Error(), file) || !bytes.Equal(MarshalCertificates(keys), published) {
			t.Errorf("%s: a running process does not report it, or drops its CA: %v", want, err)
		}
		mustSigning(t, keys)
		if _, err := keys.Rotate(RotateOptions{}); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: rotation: %v", want, err)
		}
		// But when asked, for a CA that is lost must not be the end.
		info := testkit.Value(fresh.RotateCA(RotateOptions{}))(t)
		if got := fresh.Status().Keys; got[len(got)-1].CA != info.ID || got[len(got)-1].State != StateSigning {
			t.Errorf("%s: after another CA was made: %+v", want, got)
		}
	}
}

// A CA may be with the registries already before its first key is made.
func TestManagedKeysNeverReplaceACAWithoutKeys(t *testing.T) {
	t.Parallel()
	keys := newManaged(t, TrustCertificate)
	file := onlyCA(t, keys).File
	testkit.Must(t, os.Remove(keys.Status().Keys[0].File))
	data := readFile(t, file)
	testkit.Must(t, os.WriteFile(file, nil, 0o600))
	keys = openManaged(t, keys.cfg)
	if err := keys.Maintain(); err == nil || !strings.Contains(err.Error(), file+": the file is damaged") {
		t.Errorf("error %v, want the file that is damaged", err)
	}
	if names := dirNames(t, keys.cfg.Dir); len(names) != 2 {
		t.Errorf("another CA was made: %v", names)
	}
	testkit.Must(t, os.WriteFile(file, data, 0o600))
	mustMaintain(t, keys)
	mustSigning(t, keys)
}

func TestManagedDirNeverOverwrites(t *testing.T) {
	t.Parallel()
	dir := managedDir(t.TempDir())
	testkit.Must(t, dir.write("a", []byte("1")))
	if err := dir.write("a", []byte("2")); err == nil || !strings.Contains(err.Error(), "is there already") {
		t.Errorf("error %v, want a refusal", err)
	}
	if data, err := os.ReadFile(dir.path("a")); err != nil || string(data) != "1" || len(dirNames(t, string(dir))) != 1 {
		t.Errorf("content %q, error %v", data, err)
	}
}

func TestManagedKeysReportTheEndOfTheCA(t *testing.T) {
	t.Parallel()
	now := time.Now()
	cfg := managedConfig(t, TrustCertificate)
	cfg.Now = func() time.Time { return now }
	keys := openManaged(t, cfg)
	mustMaintain(t, keys)
	end := onlyCA(t, keys).NotAfter

	now = end.Add(-maxEndWarning)
	if err := keys.EndsSoon(); err != nil {
		t.Errorf("long before its end: %v", err)
	}
	for _, at := range []struct {
		before time.Duration
		want   string
	}{{maxEndWarning - time.Second, "in 179 days"}, {leafValidity, "in 7 days"}, {leafValidity / 4, "in 1 days"}, {time.Hour, "in 0 days"}} {
		now = end.Add(-at.before)
		for range 3 { // and no flood of new keys
			mustMaintain(t, keys)
		}
		if err := keys.EndsSoon(); err == nil || !strings.Contains(err.Error(), "CA certificate of") || !strings.Contains(err.Error(), at.want) {
			t.Errorf("%s before its end: %v, want %q", at.before, err, at.want)
		}
		if key := mustSigning(t, keys); key.path[0].NotAfter.After(end) || len(keys.Status().Keys) > 2 {
			t.Errorf("%s before its end: %d keys, the last until %s", at.before, len(keys.Status().Keys), key.NotAfter)
		}
	}
	now = end
	if err := keys.Maintain(); err == nil || !strings.Contains(err.Error(), "renew it: keys rotate-ca") {
		t.Errorf("at its end: %v", err)
	}
	if _, err := keys.Signing(); !errors.Is(err, ErrNoSigningKey) {
		t.Errorf("at its end: %v, want ErrNoSigningKey", err)
	}
	if _, err := keys.RotateCA(RotateOptions{}); err != nil || keys.EndsSoon() != nil {
		t.Errorf("a new CA: %v, and %v", err, keys.EndsSoon())
	}
	mustSigning(t, keys)
}

func TestManagedKeysChangeTheAlgorithm(t *testing.T) {
	t.Parallel()
	for trust, want := range map[Trust]Algorithm{
		TrustCertificate: EdDSA, // registries do not notice
		TrustJWKS:        ES256, // only when asked
	} {
		keys := newManaged(t, trust)
		cfg := keys.cfg
		cfg.Algorithm = EdDSA
		keys = openManaged(t, cfg)
		mustMaintain(t, keys)
		if got := mustSigning(t, keys).Algorithm; got != want {
			t.Errorf("%s: signs with %s, want %s", trust, got, want)
		}
		mustRotate(t, keys, 0)
		if got := mustSigning(t, keys).Algorithm; got != EdDSA {
			t.Errorf("%s: signs with %s after a rotation, want EdDSA", trust, got)
		}
	}
}

// A directory belongs to one way of trust: its keys mean nothing to a registry
// that is set up for the other.
func TestManagedKeysRefuseAnotherTrust(t *testing.T) {
	t.Parallel()
	for made, used := range map[Trust]Trust{TrustCertificate: TrustJWKS, TrustJWKS: TrustCertificate} {
		keys := newManaged(t, made)
		before := dirNames(t, keys.cfg.Dir)
		cfg := keys.cfg
		cfg.Trust = used
		other := openManaged(t, cfg)
		if err := other.Maintain(); !errors.Is(err, errOtherTrust) {
			t.Errorf("%s in a directory for %s: %v", used, made, err)
		}
		if _, err := other.Rotate(RotateOptions{}); !errors.Is(err, errOtherTrust) {
			t.Errorf("rotation, %s in a directory for %s: %v", used, made, err)
		}
		if _, err := other.Signing(); !errors.Is(err, ErrNoSigningKey) {
			t.Errorf("%s in a directory for %s signs: %v", used, made, err)
		}
		if trusted := other.Trusted(); used == TrustJWKS && len(trusted.Certificates) != 0 {
			t.Errorf("%s publishes the CA of a directory for %s", used, made)
		}
		if after := dirNames(t, cfg.Dir); !slices.Equal(after, before) {
			t.Errorf("the directory changed from %v to %v", before, after)
		}
	}
}

func TestManagedKeysWaitForTheLock(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		keys := newManaged(t, TrustJWKS)
		unlock := testkit.Value(keys.dir.lock())(t)
		start := time.Now()
		if _, err := keys.Rotate(RotateOptions{}); err == nil || !strings.Contains(err.Error(), "another process is changing") {
			t.Errorf("rotation while locked: %v", err)
		}
		if waited := time.Since(start); waited != lockWait {
			t.Errorf("waited %s, want %s", waited, lockWait)
		}
		go func() {
			time.Sleep(time.Second)
			unlock()
		}()
		mustRotate(t, keys, 0)
		if len(keys.Status().Keys) != 2 {
			t.Errorf("%d keys, want 2", len(keys.Status().Keys))
		}
	})
}

// A full or read-only volume: pulls go on for the better part of a week.
func TestManagedKeysInADirectoryThatCannotBeWritten(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		keys := newManaged(t, TrustCertificate)
		registry := newRegistry(t, keys)
		testkit.Must(t, os.Remove(keys.dir.path(lockFile)))
		testkit.Must(t, os.Mkdir(keys.dir.path(lockFile), 0o700)) // root may write everywhere, but not into this
		days := 0
		for ; ; days++ {
			if _, err := keys.Signing(); err != nil {
				break
			}
			verifyAll(t, []string{testToken(t, keys)}, registry)
			time.Sleep(24 * time.Hour)
			if err := keys.Maintain(); err == nil || !strings.Contains(err.Error(), lockFile) {
				t.Fatalf("after %d days: %v, want the file that cannot be written", days, err)
			}
		}
		if days != 7 {
			t.Errorf("signing went on for %d days, want 7", days)
		}
		for _, do := range []func() error{
			func() error { _, err := keys.Rotate(RotateOptions{}); return err },
			func() error { _, err := keys.RotateCA(RotateOptions{}); return err },
			func() error { _, err := keys.Revoke(keys.Status().Keys[0].ID); return err },
		} {
			if err := do(); err == nil || !strings.Contains(err.Error(), lockFile) {
				t.Errorf("an operator is told %v", err)
			}
		}
		testkit.Must(t, os.Remove(keys.dir.path(lockFile)))
		mustMaintain(t, keys)
		verifyAll(t, []string{testToken(t, keys)}, registry)
	})
}

func TestManagedKeysBoundTheNumberOfFiles(t *testing.T) {
	t.Parallel()
	cfg := managedConfig(t, TrustJWKS)
	testkit.Must(t, os.Mkdir(cfg.Dir, 0o700))
	for n := range maxManagedFiles + 1 {
		testkit.Must(t, os.WriteFile(filepath.Join(cfg.Dir, keyFileName(strconv.Itoa(n))), nil, 0o600))
	}
	if _, err := NewManagedKeys(cfg); err == nil || !strings.Contains(err.Error(), "more than 256") {
		t.Errorf("error %v, want too many files refused", err)
	}
}

// If the directory cannot be read, an operator's command adds nothing to it.
func TestUnreadDirectoryGetsNoKey(t *testing.T) {
	t.Parallel()
	cfg := managedConfig(t, TrustCertificate)
	keys := testkit.Value(NewManagedKeys(cfg))(t)
	mustMaintain(t, keys)
	for n := range maxManagedFiles + 1 {
		testkit.Must(t, os.WriteFile(filepath.Join(cfg.Dir, keyFileName(strconv.Itoa(n))), nil, 0o600))
	}
	before := testkit.Value(os.ReadDir(cfg.Dir))(t)
	if _, err := keys.Rotate(RotateOptions{}); !errors.Is(err, errUnread) {
		t.Errorf("error %v", err)
	}
	if after := testkit.Value(os.ReadDir(cfg.Dir))(t); len(after) != len(before) {
		t.Errorf("%d files, %d before", len(after), len(before))
	}
}

// A file that cannot be locked ends the wait at once.
func TestLockThatFails(t *testing.T) {
	t.Parallel()
	f := testkit.Value(os.Create(filepath.Join(t.TempDir(), "lock")))(t)
	testkit.Must(t, f.Close())
	if isBusy, err := tryLock(f); isBusy || err == nil {
		t.Errorf("busy %t, %v", isBusy, err)
	}
}

// fillManaged adds unusable files of keys until one more is refused.
func fillManaged(t *testing.T, keys *ManagedKeys) {
	t.Helper()
	list := testkit.Value(keys.dir.list())(t)
	for n := len(list.keys) + len(list.cas); n < maxManagedFiles; n++ {
		testkit.Must(t, os.WriteFile(keys.dir.path(keyFileName(strconv.Itoa(n))), nil, 0o600))
	}
	if _, err := keys.dir.list(); err != nil {
		t.Errorf("%d files: %v", maxManagedFiles, err)
	}
}

// A key or a CA that other processes cannot read must not sign. One file too many would hide all others.
func TestManagedKeysReadBackWhatTheyMake(t *testing.T) {
	t.Parallel()
	for _, trust := range []Trust{TrustCertificate, TrustJWKS} {
		keys := newManaged(t, trust)
		first := mustSigning(t, keys).ID
		fillManaged(t, keys)
		if _, err := keys.Rotate(RotateOptions{}); err == nil || !strings.Contains(err.Error(), "the new signing key") || !strings.Contains(err.Error(), "cannot be read back") {
			t.Errorf("%s: rotation: %v", trust, err)
		}
		if mustSigning(t, keys).ID != first || mustSigning(t, openManaged(t, keys.cfg)).ID != first {
			t.Errorf("%s: the key changed", trust)
		}
	}
	keys := newManaged(t, TrustCertificate)
	before := onlyCA(t, keys)
	fillManaged(t, keys)
	if _, err := keys.RotateCA(RotateOptions{}); err == nil || !strings.Contains(err.Error(), "the new CA") || !strings.Contains(err.Error(), "cannot be read back") {
		t.Errorf("a new CA: %v", err)
	}
	if onlyCA(t, keys) != before || onlyCA(t, openManaged(t, keys.cfg)) != before {
		t.Errorf("the CA is %+v", onlyCA(t, keys))
	}
}

// Nothing half made is left, and no fault is taken for a success.
func TestManagedDirFaults(t *testing.T) {
	t.Parallel()
	dir, missing := managedDir(t.TempDir()), managedDir(filepath.Join(t.TempDir(), "missing"))
	ca, other := pkitest.NewCA(t, nil), newTestSigner(t, ES256)
	noCA := pkitest.NewCA(t, nil, func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature })
	now := time.Now()
	made := keyFile{Algorithm: ES256, CreatedAt: now, SignsFrom: now}
	for want, do := range map[string]func() error{
		"rename ":               func() error { return dir.write("missing/a", nil) },
		"json: unsupported":     func() error { return dir.writeJSON("a", make(chan int)) },
		`algorithm "none"`:      func() error { _, err := dir.makeKey(keyFile{Algorithm: "none"}, "s", nil, nil); return err },
		"make a certificate: ":  func() error { _, err := dir.makeKey(made, "s", ca.Certificate, other); return err },
		"CA of the signing key": func() error { _, err := dir.makeKey(made, "s", noCA.Certificate, noCA.Key); return err },
		"missing/tmp-":          func() error { return missing.write("a", nil) },
		"missing: no such file": missing.sync,
		"lock: no such file":    func() error { _, err := missing.lock(); return err },
		"directory not empty":   func() error { return removeFile(filepath.Dir(string(missing))) },
	} {
		if want == "directory not empty" {
			testkit.Must(t, os.WriteFile(filepath.Join(filepath.Dir(string(missing)), "a"), nil, 0o600))
		}
		if err := do(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if names := dirNames(t, string(dir)); len(names) != 0 {
		t.Errorf("%v is left", names)
	}
	if err := removeFile(string(missing)); err != nil {
		t.Errorf("a file that another process removed: %v", err)
	}
}

// The directory vanishes while it is locked.
func TestManagedKeysThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for want, do := range map[string]func(*ManagedKeys) error{
		"make a CA of the signing keys: open ": func(m *ManagedKeys) error { _, _, err := m.signingCA(&managedSet{}, now); return err },
		"make a signing key: open ": func(m *ManagedKeys) error {
			m.cfg.Trust = TrustJWKS
			_, err := m.makeKey(&managedSet{}, now)
			return err
		},
	} {
		if err := do(openManaged(t, managedConfig(t, TrustCertificate))); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// Another process removes a file between the listing and the reading. A link to a missing file is the same.
func TestManagedKeysSkipRemovedFiles(t *testing.T) {
	t.Parallel()
	cfg := managedConfig(t, TrustCertificate)
	keys := openManaged(t, cfg)
	if err := keys.Reload(); err != nil {
		t.Errorf("a missing directory: %v", err)
	}
	mustMaintain(t, keys)
	for _, name := range []string{keyFileName("gone"), caFileName("gone")} {
		testkit.Must(t, os.Symlink("missing", keys.dir.path(name)))
	}
	if err := keys.Reload(); err != nil {
		t.Errorf("removed files: %v", err)
	}
	mustSigning(t, keys)
}

// The directory cannot be made: its parent became a file.
func TestManagedKeysInADirectoryThatCannotBeMade(t *testing.T) {
	t.Parallel()
	cfg := managedConfig(t, TrustCertificate)
	cfg.Dir = filepath.Join(cfg.Dir, "keys")
	keys := openManaged(t, cfg)
	testkit.Must(t, os.WriteFile(filepath.Dir(cfg.Dir), nil, 0o600))
	if err := keys.Maintain(); err == nil || !strings.Contains(err.Error(), "signing keys: mkdir ") {
		t.Errorf("error %v", err)
	}
}

// A revoked key whose successor cannot be made stays: pulls go on.
func TestManagedKeysRevokeNothingWithoutASuccessor(t *testing.T) {
	t.Parallel()
	keys := newManaged(t, TrustCertificate)
	key := keys.Status().Keys[0]
	testkit.Must(t, os.Truncate(onlyCA(t, keys).File, 100))
	if _, err := keys.Revoke(key.ID); err == nil || !strings.Contains(err.Error(), "is damaged") {
		t.Errorf("error %v, want the damaged CA", err)
	}
	if _, err := os.Stat(key.File); err != nil || mustSigning(t, keys).ID != key.ID {
		t.Errorf("the only key was removed: %v", err)
	}
}

func TestManagedRunLogsEachProblemOnce(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		var log bytes.Buffer
		cfg := managedConfig(t, TrustJWKS)
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		keys := openManaged(t, cfg)
		mustMaintain(t, keys)
		broken := filepath.Join(cfg.Dir, keyFileName("broken"))
		testkit.Must(t, os.WriteFile(broken, nil, 0o600))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { keys.Run(ctx) })
		time.Sleep(10 * maintainEvery)
		cancel()
		wg.Wait()
		if n := strings.Count(log.String(), "need attention"); n != 1 || !strings.Contains(log.String(), broken) {
			t.Errorf("logged %d times: %s", n, log.String())
		}
	})
}

func TestNewManagedKeysRefusesEmptySettings(t *testing.T) {
	t.Parallel()
	for want, edit := range map[string]func(*ManagedKeysConfig){
		"managedDir is empty": func(c *ManagedKeysConfig) { c.Dir = "" },
		"service is empty":    func(c *ManagedKeysConfig) { c.Service = "" },
		"is too short":        func(c *ManagedKeysConfig) { c.Lifetime = MinLifetime - 1 },
		`algorithm "HS256"`:   func(c *ManagedKeysConfig) { c.Algorithm = "HS256" },
		`trust "x"`:           func(c *ManagedKeysConfig) { c.Trust = "x" },
		"is not a directory": func(c *ManagedKeysConfig) {
			testkit.Must(t, os.WriteFile(c.Dir, nil, 0o600))
		},
	} {
		cfg := managedConfig(t, TrustCertificate)
		edit(&cfg)
		if _, err := NewManagedKeys(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if _, err := newManaged(t, TrustCertificate).Rotate(RotateOptions{SignAfter: -1}); err == nil || !strings.Contains(err.Error(), "is negative") {
		t.Errorf("a negative delay: %v", err)
	}
}
