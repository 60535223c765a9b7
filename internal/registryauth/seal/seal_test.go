package seal

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/registryauth/signing"
	"github.com/pullpass/pullpass/internal/test/pkitest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// A sealed text opens until its expiry, for the same binding only, in every replica with the key.
func TestBox(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "key.pem")
	testkit.Must(t, os.WriteFile(file, pkitest.KeyPEM(t, pkitest.ECKey(t)), 0o600))
	keys, err := signing.NewFileKeys(signing.FileKeysConfig{Algorithm: signing.ES256, Trust: signing.TrustJWKS, KeyFile: file, Overlap: time.Hour, Logger: testkit.QuietLogger()})
	testkit.Must(t, err)
	now := time.Now()
	one, other := NewBox("a purpose"), NewBox("a purpose")
	const lifetime = time.Hour
	sealed := testkit.Value(one.Seal(keys, "/v2/acme/app/blobs/uploads/x?state=y", "bound", now.Add(lifetime)))(t)
	for name, test := range map[string]struct {
		by     *Box
		sealed string
		bound  string
		after  time.Duration
		opens  bool
	}{
		"at once":           {one, sealed, "bound", 0, true},
		"before its end":    {one, sealed, "bound", lifetime - 2*time.Second, true},
		"at its end":        {one, sealed, "bound", lifetime, false},
		"another replica":   {other, sealed, "bound", 0, true},
		"another purpose":   {NewBox("another"), sealed, "bound", 0, false},
		"bound otherwise":   {one, sealed, "bounds", 0, false},
		"cut":               {one, sealed[:len(sealed)-4], "bound", 0, false},
		"no base64":         {one, sealed[:len(sealed)-1] + "!", "bound", 0, false},
		"another last bits": {one, sealed + "A", "bound", 0, false},
		"nothing":           {one, "", "bound", 0, false},
		"much":              {one, strings.Repeat("A", 8<<10), "bound", 0, false},
	} {
		plain, err := test.by.Open(keys, test.sealed, test.bound, now.Add(test.after))
		if (err == nil) != test.opens || test.opens && plain != "/v2/acme/app/blobs/uploads/x?state=y" {
			t.Errorf("%s: %q, %v", name, plain, err)
		}
	}
	again := testkit.Value(one.Seal(keys, "/v2/acme/app/blobs/uploads/x?state=y", "bound", now.Add(lifetime)))(t)
	if again == sealed {
		t.Error("the same is sealed in the same way twice")
	}
	empty := testkit.Value(one.Seal(keys, "", "bound", now.Add(lifetime)))(t)
	if plain, err := one.Open(keys, empty, "bound", now); plain != "" || err != nil {
		t.Errorf("an empty text: %q, %v", plain, err)
	}
}

// replica has its own view of the keys.
type replica struct {
	*Box
	keys signing.Keys
}

// checkReplicas has each replica seal, and each open it.
func checkReplicas(t *testing.T, after time.Duration, now time.Time, replicas map[string]*replica) {
	t.Helper()
	for by, from := range replicas {
		sealed := testkit.Value(from.Seal(from.keys, "/path", "bound", now.Add(24*time.Hour)))(t)
		for at, to := range replicas {
			if _, err := to.Open(to.keys, sealed, "bound", now); err != nil {
				t.Fatalf("%s after the change: what %s seals, %s does not open: %v", after, by, at, err)
			}
		}
	}
}

// A key in a Secret reaches replicas one after the other. Uploads go on at any of them
// all the time.
func TestReplicasWhileFilesChange(t *testing.T) {
	t.Parallel()
	first, second := pkitest.KeyPEM(t, pkitest.ECKey(t)), pkitest.KeyPEM(t, pkitest.ECKey(t))
	now := time.Now()
	replicas, files := map[string]*replica{}, map[string]*signing.FileKeys{}
	path := func(name string) string { return filepath.Join(t.TempDir(), name) }
	paths := map[string]string{"early": path("early"), "late": path("late")}
	for name, file := range paths {
		testkit.Must(t, os.WriteFile(file, first, 0o600))
		keys, err := signing.NewFileKeys(signing.FileKeysConfig{Algorithm: signing.ES256, Trust: signing.TrustJWKS, KeyFile: file, Overlap: 2 * time.Minute, Now: func() time.Time { return now }})
		testkit.Must(t, err)
		files[name], replicas[name] = keys, &replica{NewBox("a purpose"), keys}
	}
	old := testkit.Value(replicas["late"].Seal(replicas["late"].keys, "/path", "bound", now.Add(24*time.Hour)))(t)
	changes := map[string]time.Duration{"early": 0, "late": 2 * time.Minute}
	began := now
	for after := time.Duration(0); after < 20*time.Minute; after += 10 * time.Second {
		now = began.Add(after)
		for name, at := range changes {
			if after == at {
				testkit.Must(t, os.WriteFile(paths[name], second, 0o600))
			}
			testkit.Must(t, files[name].Reload())
		}
		checkReplicas(t, after, now, replicas)
	}
	for name, r := range replicas {
		if _, err := r.Open(r.keys, old, "bound", now); err == nil {
			t.Errorf("%s opens what was sealed with a key that went long ago", name)
		}
	}
}

// Other replicas read a new key in a directory within a minute. A starting replica knows the
// previous key. Texts sealed with a revoked key do not open.
func TestReplicasWhileADirectoryChanges(t *testing.T) {
	t.Parallel()
	now := time.Now()
	config := signing.ManagedKeysConfig{Dir: filepath.Join(t.TempDir(), "keys"), Trust: signing.TrustCertificate, Service: "s", Lifetime: time.Minute, Now: func() time.Time { return now }}
	open := func() *signing.ManagedKeys {
		keys := testkit.Value(signing.NewManagedKeys(config))(t)
		return keys
	}
	one := open()
	testkit.Must(t, one.Maintain())
	other := open()
	replicas := map[string]*replica{"one": {NewBox("a purpose"), one}, "other": {NewBox("a purpose"), other}}
	now = now.Add(time.Hour)
	began := now
	checkReplicas(t, 0, now, replicas)
	testkit.Value(one.Rotate(signing.RotateOptions{}))(t)
	for after := time.Duration(0); after < 10*time.Minute; after += 10 * time.Second {
		switch now = began.Add(after); after {
		case time.Minute:
			testkit.Must(t, other.Maintain())
			replicas["started later"] = &replica{NewBox("a purpose"), open()}
		case 5 * time.Minute:
			testkit.Must(t, one.Maintain())
		}
		checkReplicas(t, after, now, replicas)
	}
	key := testkit.Value(one.Signing())(t)
	sealed := testkit.Value(replicas["one"].Seal(one, "/path", "bound", now.Add(24*time.Hour)))(t)
	testkit.Value(one.Revoke(key.ID))(t)
	if _, err := replicas["one"].Open(one, sealed, "bound", now); err == nil {
		t.Error("what a revoked key has sealed is opened")
	}
}

func TestWithoutKeys(t *testing.T) {
	t.Parallel()
	keys := testkit.Value(signing.NewManagedKeys(signing.ManagedKeysConfig{Dir: filepath.Join(t.TempDir(), "keys"), Service: "s", Lifetime: time.Minute}))(t)
	if _, err := NewBox("a purpose").Seal(keys, "/path", "bound", time.Now()); !errors.Is(err, signing.ErrNoSigningKey) {
		t.Error(err)
	}
	if _, err := NewBox("a purpose").Open(keys, "", "bound", time.Now()); !errors.Is(err, signing.ErrNoSigningKey) {
		t.Error(err)
	}
}
