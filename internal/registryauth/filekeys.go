package registryauth

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// FileKeysConfig names the files of one registry's signing key, as a Secret,
// cert-manager or an operator puts them in place.
type FileKeysConfig struct {
	Algorithm Algorithm // empty: ES256
	Trust     Trust     // empty: TrustCertificate
	// CertFile is the certificate chain as PEM, leaf first. Only, and always,
	// with TrustCertificate.
	CertFile string
	// KeyFile is the private key as PEM: PKCS#8, SEC 1 or PKCS#1. Its mode is
	// not judged: Secret volumes are often 0644.
	KeyFile string
	// CAFile is what registries are told to trust, as PEM; it must vouch for the
	// chain. If it is empty, that is the last certificate of CertFile, which is
	// the leaf itself if it is self-signed. Only with TrustCertificate.
	CAFile string
	// Overlap is how long a key stays published after another has replaced it:
	// the lifetime of tokens, plus the leeway of the registry (distribution: 60 s).
	Overlap time.Duration
	Now     func() time.Time // nil: time.Now
}

// FileKeys holds a signing key that is read from files, which may be replaced
// at any time. Files that cannot be used never replace a key that works.
//
// With TrustJWKS, a registry that has read its key set once does not know a new
// key until it is told. So publish first: add the new public key to the
// registry's key set file, restart the registry, and only then replace KeyFile.
// ManagedKeys.Rotate does this in two steps by itself.
type FileKeys struct {
	cfg     FileKeysConfig
	reload  sync.Mutex // one Reload at a time
	current atomic.Pointer[fileKeySet]
}

var _ Keys = (*FileKeys)(nil)

// fileKeySet is immutable.
type fileKeySet struct {
	key     *SigningKey
	trusted TrustBundle
	retired []retiredTrust
}

// retiredTrust is what registries must still trust for keys that were replaced.
type retiredTrust struct {
	trusted TrustBundle
	until   time.Time
}

// NewFileKeys checks cfg and reads the files at once. It reports all faults of
// cfg together, or what is wrong with the files.
func NewFileKeys(cfg FileKeysConfig) (*FileKeys, error) {
	cfg.Algorithm = cmp.Or(cfg.Algorithm, ES256)
	cfg.Trust = cmp.Or(cfg.Trust, TrustCertificate)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	k := &FileKeys{cfg: cfg}
	if err := k.Reload(); err != nil {
		return nil, err
	}
	return k, nil
}

func (cfg FileKeysConfig) check() error {
	var faults []error
	faults = append(faults, cfg.Algorithm.check(), cfg.Trust.check())
	if cfg.KeyFile == "" {
		faults = append(faults, errors.New("keyFile is empty: name the file of the private key"))
	}
	if cfg.Trust == TrustCertificate && cfg.CertFile == "" {
		faults = append(faults, fmt.Errorf("certFile is empty: trust %q needs the certificate of the key; without one use trust %q", TrustCertificate, TrustJWKS))
	}
	if cfg.Trust == TrustJWKS && (cfg.CertFile != "" || cfg.CAFile != "") {
		faults = append(faults, fmt.Errorf("certFile and caFile contradict trust %q, which sends no certificate: remove them, or use trust %q", TrustJWKS, TrustCertificate))
	}
	if cfg.Overlap < MinLifetime {
		faults = append(faults, fmt.Errorf("overlap %s is shorter than any token: use the token lifetime and the registry's leeway", cfg.Overlap))
	}
	return errors.Join(faults...)
}

// Signing returns the key that was read last, unless its certificate has ended.
func (k *FileKeys) Signing() (*SigningKey, error) {
	key := k.current.Load().key
	if err := key.usable(k.cfg.Now()); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrNoSigningKey, k.cfg.CertFile, err)
	}
	return key, nil
}

// Trusted returns what belongs to the present key, and to those that it
// replaced within the overlap.
func (k *FileKeys) Trusted() TrustBundle {
	set := k.current.Load()
	bundles := []TrustBundle{set.trusted}
	now := k.cfg.Now()
	for _, old := range set.retired {
		if now.Before(old.until) {
			bundles = append(bundles, old.trusted)
		}
	}
	return mergeTrust(bundles...)
}

// Reload reads all files again and swaps the key if they are good. On an error,
// which names the file and the remedy, everything stays as it was. A pair of
// which one half is already new is such an error; the next Reload mends it.
//
// It opens the files by their paths, so it follows the symbolic links by which
// Kubernetes swaps a volume. Call it when their directory changes and, because
// events get lost, now and then.
func (k *FileKeys) Reload() error {
	k.reload.Lock()
	defer k.reload.Unlock()

	now := k.cfg.Now()
	key, trusted, err := k.read(now)
	if err != nil {
		return err
	}
	next := &fileKeySet{key: key, trusted: trusted}
	if old := k.current.Load(); old != nil {
		next.retired = slices.DeleteFunc(slices.Clone(old.retired), func(r retiredTrust) bool { return !now.Before(r.until) })
		if old.key.header == key.header && sameTrust(old.trusted, trusted) {
			next.key = old.key // nothing new
		} else {
			next.retired = append(next.retired, retiredTrust{old.trusted, now.Add(k.cfg.Overlap)})
		}
	}
	k.current.Store(next)
	return nil
}

func (k *FileKeys) read(now time.Time) (*SigningKey, TrustBundle, error) {
	data, err := readKeyFile(k.cfg.KeyFile)
	if err != nil {
		return nil, TrustBundle{}, fmt.Errorf("signing key: %w", err)
	}
	signer, err := parsePrivateKey(data)
	if err != nil {
		return nil, TrustBundle{}, fmt.Errorf("signing key %s: %w", k.cfg.KeyFile, err)
	}
	var chain, roots []*x509.Certificate
	if k.cfg.Trust == TrustCertificate {
		if chain, err = readCertificates(k.cfg.CertFile); err != nil {
			return nil, TrustBundle{}, err
		}
		if len(chain) > maxChain {
			return nil, TrustBundle{}, fmt.Errorf("signing certificate %s: %d certificates would make every token too large: leave %d at most, leaf first",
				k.cfg.CertFile, len(chain), maxChain)
		}
		roots = chain[len(chain)-1:]
		if k.cfg.CAFile != "" {
			if roots, err = readCertificates(k.cfg.CAFile); err != nil {
				return nil, TrustBundle{}, err
			}
		}
	}
	key, err := newSigningKey(k.cfg.Algorithm, signer, chain)
	if err != nil {
		return nil, TrustBundle{}, fmt.Errorf("signing key %s: %w", k.cfg.KeyFile, err)
	}
	if k.cfg.Trust == TrustJWKS {
		return key, keyTrust(key), nil
	}
	if err := checkLeaf(chain, roots, signer.Public(), now); err != nil {
		return nil, TrustBundle{}, fmt.Errorf("signing certificate %s with key %s: %w", k.cfg.CertFile, k.cfg.KeyFile, err)
	}
	return key, mergeTrust(keyTrust(key), TrustBundle{Certificates: roots}), nil
}

func readCertificates(name string) ([]*x509.Certificate, error) {
	data, err := readKeyFile(name)
	if err != nil {
		return nil, fmt.Errorf("signing certificate: %w", err)
	}
	certs, err := parseCertificates(data)
	if err != nil {
		return nil, fmt.Errorf("signing certificate %s: %w", name, err)
	}
	return certs, nil
}
