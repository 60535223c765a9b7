package gateway

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/pkitest"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/signing"
	"github.com/pullpass/pullpass/internal/testkit"
)

// What is sealed opens until its end, for the same alone, in every replica that has the
// key.
func TestSealer(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "key.pem")
	testkit.Must(t, os.WriteFile(file, pkitest.KeyPEM(t, pkitest.ECKey(t)), 0o600))
	keys, err := signing.NewFileKeys(signing.FileKeysConfig{Algorithm: signing.ES256, Trust: signing.TrustJWKS, KeyFile: file, Overlap: time.Hour, Logger: testkit.QuietLogger()})
	testkit.Must(t, err)
	now := time.Now()
	one, other := &sealer{}, &sealer{}
	sealed, err := one.seal(keys, "/v2/acme/app/blobs/uploads/x?state=y", "bound", now)
	testkit.Must(t, err)
	for name, test := range map[string]struct {
		by     *sealer
		sealed string
		bound  string
		after  time.Duration
		opens  bool
	}{
		"at once":           {one, sealed, "bound", 0, true},
		"before its end":    {one, sealed, "bound", sealedFor - 2*time.Second, true},
		"at its end":        {one, sealed, "bound", sealedFor, false},
		"another replica":   {other, sealed, "bound", 0, true},
		"bound otherwise":   {one, sealed, "bounds", 0, false},
		"cut":               {one, sealed[:len(sealed)-4], "bound", 0, false},
		"no base64":         {one, sealed[:len(sealed)-1] + "!", "bound", 0, false},
		"another last bits": {one, sealed + "A", "bound", 0, false},
		"nothing":           {one, "", "bound", 0, false},
		"much":              {one, strings.Repeat("A", 8<<10), "bound", 0, false},
	} {
		plain, err := test.by.open(keys, test.sealed, test.bound, now.Add(test.after))
		if (err == nil) != test.opens || test.opens && plain != "/v2/acme/app/blobs/uploads/x?state=y" {
			t.Errorf("%s: %q, %v", name, plain, err)
		}
	}
	again, err := one.seal(keys, "/v2/acme/app/blobs/uploads/x?state=y", "bound", now)
	testkit.Must(t, err)
	if again == sealed {
		t.Error("the same is sealed in the same way twice")
	}
}

// replica is a sealer with its own view of the keys.
type replica struct {
	sealer
	keys signing.Keys
}

// checkReplicas has each replica seal, and each open it.
func checkReplicas(t *testing.T, after time.Duration, now time.Time, replicas map[string]*replica) {
	t.Helper()
	for by, from := range replicas {
		sealed, err := from.seal(from.keys, "/path", "bound", now)
		testkit.Must(t, err)
		for at, to := range replicas {
			if _, err := to.open(to.keys, sealed, "bound", now); err != nil {
				t.Fatalf("%s after the change: what %s seals, %s does not open: %v", after, by, at, err)
			}
		}
	}
}

// A key in a Secret reaches replicas one after the other. Uploads go on at any of them
// all the time.
func TestSealersWhileFilesChange(t *testing.T) {
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
		files[name], replicas[name] = keys, &replica{keys: keys}
	}
	old, err := replicas["late"].seal(replicas["late"].keys, "/path", "bound", now)
	testkit.Must(t, err)
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
		if _, err := r.open(r.keys, old, "bound", now); err == nil {
			t.Errorf("%s opens what was sealed with a key that went long ago", name)
		}
	}
}

// A new key in a directory is read by other replicas within a minute, and one that
// starts knows the one before. What a revoked key has sealed, nobody opens.
func TestSealersWhileADirectoryChanges(t *testing.T) {
	t.Parallel()
	now := time.Now()
	config := signing.ManagedKeysConfig{Dir: filepath.Join(t.TempDir(), "keys"), Trust: signing.TrustCertificate, Service: "s", Lifetime: time.Minute, Now: func() time.Time { return now }}
	open := func() *signing.ManagedKeys {
		keys, err := signing.NewManagedKeys(config)
		testkit.Must(t, err)
		return keys
	}
	one := open()
	testkit.Must(t, one.Maintain())
	other := open()
	replicas := map[string]*replica{"one": {keys: one}, "other": {keys: other}}
	now = now.Add(time.Hour)
	began := now
	checkReplicas(t, 0, now, replicas)
	_, err := one.Rotate(signing.RotateOptions{})
	testkit.Must(t, err)
	for after := time.Duration(0); after < 10*time.Minute; after += 10 * time.Second {
		switch now = began.Add(after); after {
		case time.Minute:
			testkit.Must(t, other.Maintain())
			replicas["started later"] = &replica{keys: open()}
		case 5 * time.Minute:
			testkit.Must(t, one.Maintain())
		}
		checkReplicas(t, after, now, replicas)
	}
	key, err := one.Signing()
	testkit.Must(t, err)
	sealed, err := replicas["one"].seal(one, "/path", "bound", now)
	testkit.Must(t, err)
	_, err = one.Revoke(key.ID)
	testkit.Must(t, err)
	if _, err := replicas["one"].open(one, sealed, "bound", now); err == nil {
		t.Error("what a revoked key has sealed is opened")
	}
}

func TestSealerWithoutKeys(t *testing.T) {
	t.Parallel()
	keys, err := signing.NewManagedKeys(signing.ManagedKeysConfig{Dir: filepath.Join(t.TempDir(), "keys"), Service: "s", Lifetime: time.Minute})
	testkit.Must(t, err)
	if _, err := (&sealer{}).seal(keys, "/path", "bound", time.Now()); !errors.Is(err, signing.ErrNoSigningKey) {
		t.Error(err)
	}
}

// What was found out about a token ends with it.
func TestJudgedTokensEnd(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "key.pem")
	testkit.Must(t, os.WriteFile(file, pkitest.KeyPEM(t, pkitest.ECKey(t)), 0o600))
	keys, err := signing.NewFileKeys(signing.FileKeysConfig{Algorithm: signing.ES256, Trust: signing.TrustJWKS, KeyFile: file, Overlap: time.Hour, Logger: testkit.QuietLogger()})
	testkit.Must(t, err)
	issuer, err := registryauth.NewIssuer(registryauth.IssuerConfig{Issuer: "i", Service: "s", Lifetime: time.Minute, Keys: keys, NamesHolder: true})
	testkit.Must(t, err)
	issued, err := issuer.Issue(registryauth.Grant{})
	testkit.Must(t, err)
	now := time.Now()
	j := &judge{issuer: "i", service: "s", keys: keys, now: func() time.Time { return now }, judged: newJudged(), latest: &latestTrust{}}
	if _, err := j.judge(issued.Value); err != nil {
		t.Fatal(err)
	}
	for after, want := range map[time.Duration]bool{0: true, 119 * time.Second: true, 121 * time.Second: false} {
		now = time.Now().Add(after)
		if _, known := j.known(issued.Value); known != want {
			t.Errorf("after %s: %t", after, known)
		}
	}
}
