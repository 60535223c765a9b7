package e2e

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/e2e/certs"
	"github.com/pullpass/pullpass/e2e/programs"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	rotations = 100
	// signAfter is how long a new key or CA waits for registries to be told.
	signAfter     = 30 * time.Second
	rotationLimit = 2 * time.Minute // signAfter, on a machine that is busy
)

// TestSigningKeyRotation changes what tokens are signed with, in every way that docs/how-to/keys.md tells, while clients pull
// without end. Nothing may fail: no request for a token, and none with a token that was given.
func TestSigningKeyRotation(t *testing.T) {
	t.Run("managed keys, certificate", func(t *testing.T) { t.Parallel(); rotateManagedKeys(t) })
	t.Run("keys from files, certificate", func(t *testing.T) { t.Parallel(); rotateFiles(t) })
	t.Run("managed keys, jwks", func(t *testing.T) { t.Parallel(); rotateKeySet(t) })
}

// With trust "certificate", registries notice nothing but a new CA: it is published, they are given both, it signs, they
// forget the old one.
func rotateManagedKeys(t *testing.T) {
	signing := pullpass.Signing{Trust: "certificate", ManagedDir: filepath.Join(t.TempDir(), "keys")}
	r := startRollout(t, signing, programs.Distribution, programs.DockerRegistry)
	defer r.end(t)
	oldCA, oldKey := r.proxy.Certificates(t), r.signing(t)
	newCA, from := r.make(t, "rotate-ca", "--sign-after", signAfter.String())
	both := r.published(t, "BEGIN CERTIFICATE", 2, r.proxy.Certificates)
	r.rollRegistries(t, trust{rootCertBundle: both})
	r.stillSigns(t, oldKey)

	for n := 0; n < rotations || time.Now().Before(from); n++ {
		key, _ := r.make(t, "rotate")
		r.signs(t, key)
	}

	t.Log("a key leaked")
	leaked := r.signing(t)
	r.keys(t, "revoke", "--id", leaked)
	testenv.Await(t, rotationLimit, "another key signs", func() bool { return r.signing(t) != leaked })
	if bytes.Contains(r.proxy.JWKS(t), []byte(leaked)) {
		t.Error("a key that was revoked is published")
	}

	t.Log("another algorithm: Pullpass is rolled out with another configuration")
	signing.Algorithm = "RS256"
	r.rollPullpass(t, signing)
	r.signs(t, r.list(t).signing(t, "RS256"))

	t.Log("registries forget the old CA")
	r.forget(t)
	r.rollRegistries(t, trust{rootCertBundle: bytes.Replace(both, oldCA, nil, 1)})
	for _, ca := range r.list(t).CAs {
		if ca.ID != newCA {
			r.keys(t, "revoke", "--id", ca.ID)
		}
	}
	r.published(t, "BEGIN CERTIFICATE", 1, r.proxy.Certificates)
	key, _ := r.make(t, "rotate")
	r.signs(t, key)
}

// Files are replaced as the kubelet does it, and as people do, one after the other. Tokens carry an intermediate
// certificate; registries have the root.
func rotateFiles(t *testing.T) {
	volume := &volume{dir: t.TempDir()}
	oldRoot, newRoot, unknownRoot := certs.NewCA(t, "token-root"), certs.NewCA(t, "new-token-root"), certs.NewCA(t, "unknown-token-root")
	volume.put(t, pair(t, oldRoot), roots(t, oldRoot))
	r := startRollout(t, pullpass.Signing{
		Trust: "certificate", CertFile: volume.path("tls.crt"), KeyFile: volume.path("tls.key"), CAFile: volume.path("roots.pem"),
	}, programs.Distribution, programs.DockerRegistry)
	defer r.end(t)
	refused := func(why string, content ...files) {
		t.Helper()
		before := strings.Count(r.proxy.Log(), why)
		volume.put(t, content...)
		testenv.Await(t, rotationLimit, "refused: "+why, func() bool { return strings.Count(r.proxy.Log(), why) > before })
		r.lap(t)
	}
	for n := range rotations {
		next := pair(t, oldRoot)
		if n%10 == 0 {
			refused("not for this private key", files{"tls.key": next["tls.key"]})
		}
		volume.put(t, next)
		r.signs(t, keyOf(t, next))
	}

	t.Log("a CA that was not announced")
	last := volume.content
	refused("was not published before", pair(t, unknownRoot), roots(t, unknownRoot))
	volume.put(t, last)

	t.Log("another CA: registries are given both, the new one signs, registries forget the old one")
	volume.put(t, roots(t, oldRoot, newRoot))
	r.rollRegistries(t, trust{rootCertBundle: r.published(t, "BEGIN CERTIFICATE", 2, r.proxy.Certificates)})
	next := pair(t, newRoot)
	volume.put(t, next)
	r.signs(t, keyOf(t, next))
	r.forget(t)
	r.rollRegistries(t, trust{rootCertBundle: read(t, newRoot.File)})
	volume.put(t, roots(t, newRoot))
	r.lap(t)
}

// With trust "jwks", registries have to be told of each key before it signs.
func rotateKeySet(t *testing.T) {
	signing := pullpass.Signing{Trust: "jwks", ManagedDir: filepath.Join(t.TempDir(), "keys")}
	r := startRollout(t, signing, programs.Distribution)
	defer r.end(t)
	rotate := func() string {
		t.Helper()
		oldKey := r.signing(t)
		key, _ := r.make(t, "rotate", "--sign-after", signAfter.String())
		r.rollRegistries(t, trust{jwks: r.published(t, `"kid"`, 2, r.proxy.JWKS)})
		r.stillSigns(t, oldKey)
		r.signs(t, key)

		// As if the old one had leaked; otherwise it would go by itself.
		r.forget(t)
		r.keys(t, "revoke", "--id", oldKey)
		r.rollRegistries(t, trust{jwks: r.published(t, `"kid"`, 1, r.proxy.JWKS)})
		r.lap(t)
		return key
	}
	rotate()

	t.Log("another algorithm")
	signing.Algorithm = "RS256"
	r.rollPullpass(t, signing)
	if key := rotate(); r.list(t).signing(t, "RS256") != key {
		t.Error("tokens are not signed with RS256")
	}

	t.Log("certificates: registries are given both, Pullpass changes over, registries forget the key set")
	next := startProxy(t, &r.world, pullpass.Signing{Trust: "certificate", ManagedDir: filepath.Join(t.TempDir(), "keys")})
	r.rollRegistries(t, trust{jwks: r.proxy.JWKS(t), rootCertBundle: next.Certificates(t)})
	r.switchTo(t, next)
	r.forget(t)
	r.rollRegistries(t, trust{rootCertBundle: next.Certificates(t)})
	r.lap(t)
}

// keys runs pullpass keys.
func (r *rollout) keys(t *testing.T, args ...string) string {
	t.Helper()
	return r.proxy.Command(t, "keys", args...)
}

var made = regexp.MustCompile(`(?:key|CA) (\S+) signs from (\S+)`)

// make runs a command that makes a key or a CA, and returns its id and from when it signs.
func (r *rollout) make(t *testing.T, args ...string) (id string, from time.Time) {
	t.Helper()
	output := r.keys(t, args...)
	match := made.FindStringSubmatch(output)
	if match == nil {
		t.Fatalf("keys %q printed %q", args, output)
	}
	from = testenv.Value(time.Parse(time.RFC3339, match[2]))(t)
	return match[1], from.Add(time.Second) // it was printed in whole seconds
}

// published waits until Pullpass publishes a number of objects, and returns them.
func (r *rollout) published(t *testing.T, what string, count int, read func(testing.TB) []byte) []byte {
	t.Helper()
	testenv.Await(t, rotationLimit, fmt.Sprintf("%d × %s is published", count, what), func() bool { return bytes.Count(read(t), []byte(what)) == count })
	return read(t)
}

// stillSigns fails when registries were told too late.
func (r *rollout) stillSigns(t *testing.T, key string) {
	t.Helper()
	if r.signing(t) != key {
		t.Fatalf("registries were not given what is new within %v, when it signs: this machine is too slow for the test", signAfter)
	}
}

// keyList is what "keys list -o json" prints of a registry.
type keyList struct {
	Keys []struct{ ID, State, Algorithm string }
	CAs  []struct{ ID string } `json:"cas"`
}

func (r *rollout) list(t *testing.T) keyList {
	t.Helper()
	var lists struct{ Registries []keyList }
	if err := json.Unmarshal([]byte(r.keys(t, "list", "-o", "json")), &lists); err != nil || len(lists.Registries) != 1 {
		t.Fatalf("%+v, error %v", lists, err)
	}
	return lists.Registries[0]
}

// signing is the key that signs, with that algorithm.
func (l keyList) signing(t *testing.T, algorithm string) string {
	t.Helper()
	for _, key := range l.Keys {
		if key.State == "signing" && key.Algorithm == algorithm {
			return key.ID
		}
	}
	t.Fatalf("no key signs with %s: %+v", algorithm, l.Keys)
	return ""
}

// volume is a mounted Secret as the kubelet makes it: the files are links into ..data, a link that is swapped.
type volume struct {
	dir     string
	version int
	content files
}

type files map[string][]byte // by name

func (v *volume) path(name string) string { return filepath.Join(v.dir, name) }

// put replaces some of the files, at once.
func (v *volume) put(t *testing.T, changes ...files) {
	t.Helper()
	content := maps.Clone(v.content)
	if content == nil {
		content = files{}
	}
	for _, change := range changes {
		maps.Copy(content, change)
	}
	v.content = content
	v.version++
	version := fmt.Sprintf("..%d", v.version)
	check := func(err error) {
		t.Helper()
		testenv.Must(t, err)
	}
	check(os.Mkdir(v.path(version), 0o700))
	for name, data := range content {
		check(os.WriteFile(filepath.Join(v.path(version), name), data, 0o600))
		if v.version == 1 {
			check(os.Symlink(filepath.Join("..data", name), v.path(name)))
		}
	}
	check(os.Symlink(version, v.path("..data_tmp")))
	check(os.Rename(v.path("..data_tmp"), v.path("..data")))
	if v.version > 1 {
		check(os.RemoveAll(v.path(fmt.Sprintf("..%d", v.version-1))))
	}
}

// pair is what cert-manager writes: a key, and its certificate with the intermediate one that vouches for it.
func pair(t *testing.T, root *certs.CA) files {
	t.Helper()
	intermediate := root.Intermediate(t, "token-intermediate")
	signer := intermediate.Signer(t, "token-signer")
	return files{"tls.key": read(t, signer.KeyFile), "tls.crt": append(read(t, signer.CertFile), read(t, intermediate.File)...)}
}

// keyOf is the id of the key of a pair.
func keyOf(t *testing.T, pair files) string {
	t.Helper()
	block, _ := pem.Decode(pair["tls.key"])
	key := testenv.Value(x509.ParsePKCS8PrivateKey(block.Bytes))(t)
	jwk := jose.JSONWebKey{Key: key.(crypto.Signer).Public()}
	sum := testenv.Value(jwk.Thumbprint(crypto.SHA256))(t)
	return base64.RawURLEncoding.EncodeToString(sum)
}

func roots(t *testing.T, cas ...*certs.CA) files {
	t.Helper()
	var bundle []byte
	for _, ca := range cas {
		bundle = append(bundle, read(t, ca.File)...)
	}
	return files{"roots.pem": bundle}
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	return []byte(testenv.ReadFile(t, name))
}
