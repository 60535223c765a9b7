package signing

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/file"
)

// The files of a managed directory. Key files are written once and never changed. The times in them
// determine which key signs, so all processes on the directory agree without communication.
const (
	lockFile   = "lock"
	caPrefix   = "ca-private-" // a CA's certificate and key, with TrustCertificate; the name warns against giving it to a registry
	keyPrefix  = "key-"
	fileSuffix = ".json"
	tempPrefix = "tmp-" // being written, or left by a crash

	maxManagedFiles = 256
)

const (
	caValidity   = 10 * 365 * 24 * time.Hour
	leafValidity = 7 * 24 * time.Hour // how long signing continues if the directory cannot be written
	// backdate lets a registry whose clock is behind accept a new certificate. For certificates,
	// registries allow no leeway, unlike for nbf.
	backdate = 10 * time.Minute
)

// keyFile is the content of a key file.
type keyFile struct {
	Version              int       `json:"version"`
	Sequence             int       `json:"sequence"` // orders keys that sign from the same instant
	Trust                Trust     `json:"trust"`
	Algorithm            Algorithm `json:"algorithm"`
	CreatedAt            time.Time `json:"createdAt"`
	SignsFrom            time.Time `json:"signsFrom"`
	TokenLifetimeSeconds int64     `json:"tokenLifetimeSeconds"` // as configured when the key was made
	Certificate          string    `json:"certificate,omitempty"`
	PrivateKey           string    `json:"privateKey"`
}

// caFile is the content of a CA's file.
type caFile struct {
	Version     int       `json:"version"`
	Sequence    int       `json:"sequence"` // orders CAs that sign from the same instant
	SignsFrom   time.Time `json:"signsFrom"`
	Certificate string    `json:"certificate"`
	PrivateKey  string    `json:"privateKey"`
}

const fileVersion = 1

// errOtherTrust says that a directory was made for the other trust setting.
var errOtherTrust = errors.New("made for another trust setting")

// managedDir reads and writes a managed directory.
type managedDir string

func (d managedDir) path(name string) string { return filepath.Join(string(d), name) }

// listing holds the names of the files in the directory.
type listing struct {
	cas   []string
	keys  []string
	temps []string
}

// list checks the directory and returns the names of its files. If the directory does not exist,
// the error is an fs.ErrNotExist.
func (d managedDir) list() (listing, error) {
	info, err := os.Stat(string(d))
	if err != nil {
		return listing{}, err
	}
	if !info.IsDir() {
		return listing{}, fmt.Errorf("%s is not a directory", d)
	}
	if err := checkPrivate(string(d), info); err != nil {
		return listing{}, err
	}
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return listing{}, err
	}
	var out listing
	for _, entry := range entries {
		switch name := entry.Name(); {
		case strings.HasPrefix(name, tempPrefix):
			out.temps = append(out.temps, name)
		case strings.HasPrefix(name, keyPrefix) && strings.HasSuffix(name, fileSuffix):
			out.keys = append(out.keys, name)
		case strings.HasPrefix(name, caPrefix) && strings.HasSuffix(name, fileSuffix):
			out.cas = append(out.cas, name)
		}
	}
	if n := len(out.keys) + len(out.cas); n > maxManagedFiles {
		return listing{}, fmt.Errorf("%s holds %d key files, more than %d: remove those that are no longer needed", d, n, maxManagedFiles)
	}
	return out, nil
}

// checkPrivate refuses files that other users can read or write. The kubelet opens a Kubernetes
// volume with an fsGroup to that group at each mount.
func checkPrivate(name string, info fs.FileInfo) error {
	if info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	return fmt.Errorf("%s has mode %04o: private keys must be readable by their owner alone; use chmod go= "+
		"(and, on a Kubernetes volume with fsGroup, a subdirectory and fsGroupChangePolicy OnRootMismatch)", name, info.Mode().Perm())
}

func (d managedDir) read(name string) ([]byte, error) {
	f, err := file.Open(d.path(name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := checkPrivate(d.path(name), info); err != nil {
		return nil, err
	}
	return readCapped(f, d.path(name))
}

// readKey returns the key in the file called name. cas is empty with TrustJWKS.
func (d managedDir) readKey(name string, trust Trust, cas []managedCA) (managedKey, error) {
	key, err := d.parseKey(name, trust, cas)
	if err != nil {
		return managedKey{}, fmt.Errorf("signing key %s: %w", d.path(name), err)
	}
	return key, nil
}

func (d managedDir) parseKey(name string, trust Trust, cas []managedCA) (managedKey, error) {
	var file keyFile
	if err := d.readJSON(name, &file); err != nil {
		return managedKey{}, err
	}
	if file.Trust != trust {
		return managedKey{}, fmt.Errorf("%w: trust %q, and %q is configured; use a directory of its own for each", errOtherTrust, string(file.Trust), trust)
	}
	signer, err := parsePrivateKey([]byte(file.PrivateKey))
	if err != nil {
		return managedKey{}, err
	}
	key := managedKey{
		sequence:      file.Sequence,
		createdAt:     file.CreatedAt,
		signsFrom:     file.SignsFrom,
		tokenLifetime: time.Duration(file.TokenLifetimeSeconds) * time.Second,
		file:          d.path(name),
	}
	var chain, path []*x509.Certificate
	if trust == TrustCertificate {
		if chain, err = parseCertificates([]byte(file.Certificate)); err != nil {
			return managedKey{}, err
		}
		if key.ca, path, err = vouchingCA(cas, chain, signer.Public(), file.CreatedAt); err != nil {
			return managedKey{}, err
		}
	}
	if key.signing, err = newSigningKey(file.Algorithm, signer, chain, path); err != nil {
		return managedKey{}, err
	}
	if name != keyFileName(key.signing.ID) {
		return managedKey{}, renamed(key.signing.ID)
	}
	key.signing.Since = file.SignsFrom
	return key, nil
}

// vouchingCA returns the CA that vouches for the first certificate of chain, at the time when the
// certificate was made. Whether the CA is still valid is checked when it signs.
func vouchingCA(cas []managedCA, chain []*x509.Certificate, pub crypto.PublicKey, madeAt time.Time) (id string, path []*x509.Certificate, err error) {
	for _, ca := range cas {
		if path, err = verifyLeaf(chain, []*x509.Certificate{ca.cert}, pub, madeAt); err == nil {
			return ca.id, path, nil
		}
	}
	if err == nil {
		err = errors.New("there is no CA")
	}
	return "", nil, fmt.Errorf("%w; restore %s of its CA from a backup, or remove this file", err, caFileName("*"))
}

// readJSON reads a file that this package wrote. Its errors never quote the file.
func (d managedDir) readJSON(name string, into any) error {
	data, err := d.read(name)
	if err != nil {
		return err
	}
	// A newer version may have other fields, and its file must not be called damaged.
	var versioned struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &versioned); err == nil && versioned.Version != fileVersion {
		return fmt.Errorf("version %d is not known: it was made by another version of this program", versioned.Version)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return errors.New("the file is damaged: restore it or remove it") // the decoder's error could quote the key
	}
	return nil
}

func renamed(id string) error {
	return fmt.Errorf("the file holds %s: it was renamed or copied", id)
}

func keyFileName(id string) string { return keyPrefix + id + fileSuffix }
func caFileName(id string) string  { return caPrefix + id + fileSuffix }

// makeKey makes a signing key and its file. With a ca, it also makes its certificate.
func (d managedDir) makeKey(file keyFile, service string, ca *x509.Certificate, caKey crypto.Signer) (id string, err error) {
	signer, err := generateKey(file.Algorithm)
	if err != nil {
		return "", err
	}
	if ca != nil {
		notAfter := file.SignsFrom.Add(leafValidity)
		if ca.NotAfter.Before(notAfter) {
			notAfter = ca.NotAfter
		}
		// No name, no extended usage: the certificate is valid only for tokens.
		cert, err := signCertificate(&x509.Certificate{
			Subject:               pkix.Name{CommonName: commonName("Pullpass " + service)},
			NotBefore:             file.CreatedAt.Add(-backdate),
			NotAfter:              notAfter,
			KeyUsage:              x509.KeyUsageDigitalSignature,
			BasicConstraintsValid: true,
		}, ca, signer.Public(), caKey)
		if err != nil {
			return "", err
		}
		if _, err := verifyLeaf([]*x509.Certificate{cert}, []*x509.Certificate{ca}, signer.Public(), file.CreatedAt); err != nil {
			return "", fmt.Errorf("CA of the signing keys: %w", err)
		}
		file.Certificate = string(encodeCertificatePEM(cert))
	}
	keyPEM, err := encodeKeyPEM(signer)
	if err != nil {
		return "", err
	}
	file.PrivateKey = string(keyPEM)
	if id, err = thumbprint(signer.Public()); err != nil {
		return "", err
	}
	return id, d.writeJSON(keyFileName(id), file)
}

// commonName cuts s to the length that X.520 allows.
func commonName(s string) string { return strings.ToValidUTF8(s[:min(len(s), 64)], "") }

// signCertificate signs template with the key of parent. Without a parent, the certificate is
// self-signed.
func signCertificate(template, parent *x509.Certificate, pub crypto.PublicKey, signer crypto.Signer) (*x509.Certificate, error) {
	if parent == nil {
		parent = template
	}
	// No serial number: x509 makes a random one.
	der, err := x509.CreateCertificate(rand.Reader, template, parent, pub, signer)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	return x509.ParseCertificate(der)
}

func encodeKeyPEM(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func encodeCertificatePEM(cert *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
}

func (d managedDir) writeJSON(name string, content any) error {
	data, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return err
	}
	return d.write(name, append(data, '\n'))
}

// write puts a new file in place atomically, also across a power failure. The caller holds the
// lock.
func (d managedDir) write(name string, data []byte) error {
	if _, err := os.Lstat(d.path(name)); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is there already: it is never overwritten", d.path(name))
	}
	f, err := os.CreateTemp(string(d), tempPrefix+"*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // after the rename, there is none
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(f.Name(), d.path(name)); err != nil {
		return err
	}
	return d.sync()
}

func (d managedDir) sync() error {
	dir, err := os.Open(string(d))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

const (
	lockWait = 5 * time.Second
	lockPoll = 20 * time.Millisecond
)

// lock keeps other processes from changing the directory until unlock is called or this process
// ends.
func (d managedDir) lock() (unlock func(), err error) {
	f, err := os.OpenFile(d.path(lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for waited := time.Duration(0); ; waited += lockPoll {
		isBusy, err := tryLock(f)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !isBusy || waited >= lockWait {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w: another process is changing the directory", d.path(lockFile), err)
		}
		time.Sleep(lockPoll)
	}
}
