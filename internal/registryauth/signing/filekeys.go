package signing

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// FileKeysConfig names the files of one registry's signing key. A Secret, cert-manager or an
// operator puts them in place.
type FileKeysConfig struct {
	Algorithm Algorithm // empty: ES256
	Trust     Trust     // empty: TrustCertificate
	// CertFile is the certificate chain as PEM, leaf first. It is required with TrustCertificate
	// and not allowed otherwise.
	CertFile string
	// KeyFile is the private key as PEM: PKCS#8, SEC 1 or PKCS#1. Its mode is not checked, because
	// Secret volumes are often 0644. With TrustJWKS, the file may also hold public keys (PKIX):
	// future keys and replaced keys. They are published and sign nothing.
	KeyFile string
	// CAFile holds the CAs that registries must trust, as PEM. It must vouch for the chain. It may
	// hold a CA whose key is not here yet, or not here any longer. If it is empty, the CA is the
	// last certificate of CertFile, or the leaf itself if it is self-signed. Only with
	// TrustCertificate.
	CAFile string
	// Overlap is how long a replaced key stays published: the lifetime of tokens, plus the leeway
	// of the registry (distribution: 60 s).
	Overlap time.Duration
	Now     func() time.Time // nil: time.Now
	Logger  *slog.Logger     // nil: no logs
}

// FileKeys holds a signing key that is read from files, which may be replaced at any time. Unusable
// files never replace a working key.
//
// With TrustJWKS, a registry reads its key set once and does not know a new key until it is
// restarted. So publish first: add the new public key to the registry's key set file, restart the
// registry, and only then replace KeyFile. ManagedKeys.Rotate does this in two steps by itself.
//
// With TrustCertificate, a registry likewise does not know a new CA at first. So a key whose CA was
// not published before does not replace a working key: see Reload.
type FileKeys struct {
	cfg     FileKeysConfig
	reload  sync.Mutex // one Reload at a time
	current atomic.Pointer[fileKeySet]
}

var _ Keys = (*FileKeys)(nil)

// fileKeySet is immutable.
type fileKeySet struct {
	key     *SigningKey
	chain   []*x509.Certificate // as in the file
	trusted TrustBundle
	retired []retiredTrust
	held    []heldKey // earlier keys, oldest first, then this key
}

// retiredTrust holds the keys and CAs that registries must still trust after a replacement.
type retiredTrust struct {
	trusted TrustBundle
	until   time.Time
}

func (r retiredTrust) ended(now time.Time) bool { return !now.Before(r.until) }

// NewFileKeys checks cfg and reads the files. It reports all faults of cfg together, or the faults
// of the files.
func NewFileKeys(cfg FileKeysConfig) (*FileKeys, error) {
	cfg.Algorithm = cmp.Or(cfg.Algorithm, ES256)
	cfg.Trust = cmp.Or(cfg.Trust, TrustCertificate)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	k := &FileKeys{cfg: cfg}
	if err := k.Reload(); err != nil {
		return nil, err
	}
	return k, nil
}

func (cfg FileKeysConfig) validate() error {
	var faults []error
	faults = append(faults, cfg.Algorithm.validate(), cfg.Trust.validate())
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

// Signing returns the key that was read last, unless its certificate has expired.
func (k *FileKeys) Signing() (*SigningKey, error) {
	key := k.current.Load().key
	if err := key.usable(k.cfg.Now()); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrNoSigningKey, k.cfg.CertFile, err)
	}
	return key, nil
}

// Trusted returns the trust of the present key, and of keys that were replaced within the overlap.
func (k *FileKeys) Trusted() TrustBundle {
	set := k.current.Load()
	bundles := []TrustBundle{set.trusted}
	now := k.cfg.Now()
	for _, old := range set.retired {
		if !old.ended(now) {
			bundles = append(bundles, old.trusted)
		}
	}
	return mergeTrust(bundles...)
}

// Reload reads all files again and replaces the key if they are valid. On an error, which names the
// file and the remedy, nothing changes. A pair of files of which only one is new is an error. The
// next Reload corrects that.
//
// A new key whose CA was not published before is also an error while there is a working key,
// because registries would refuse every token. An automatic renewal of a CA must not end all pulls.
//
// It opens the files by their paths, so it follows the symbolic links by which Kubernetes replaces
// a volume. Call it when their directory changes and also at intervals, because events can be lost.
func (k *FileKeys) Reload() error {
	k.reload.Lock()
	defer k.reload.Unlock()

	now := k.cfg.Now()
	next, err := k.read(now)
	if err != nil {
		return err
	}
	next.held = []heldKey{{SigningKey: next.key}} // its start is unknown, so it counts as long ago
	if old := k.current.Load(); old != nil {
		if err := k.checkKnown(next, old, now); err != nil {
			return err
		}
		next.retired = slices.DeleteFunc(slices.Clone(old.retired), func(r retiredTrust) bool { return r.ended(now) })
		next.held = old.heldWith(next.key, now)
		if old.key.header == next.key.header && sameTrust(old.trusted, next.trusted) {
			next.key = old.key // unchanged
		} else {
			next.retired = append(next.retired, retiredTrust{old.trusted, now.Add(k.cfg.Overlap)})
		}
	}
	k.current.Store(next)
	return nil
}

// heldWith returns the keys that are held if key is the one in the files.
func (s *fileKeySet) heldWith(key *SigningKey, now time.Time) []heldKey {
	if key.ID == s.key.ID {
		return s.held
	}
	held := slices.Clone(s.held)
	held[len(held)-1].until = now.Add(heldFor)
	held = slices.DeleteFunc(held, func(old heldKey) bool { return old.ID == key.ID || old.ended(now) })
	return append(held, heldKey{SigningKey: key, since: now})
}

// Shared returns the key in the files and, for some minutes, the keys that it replaced.
func (k *FileKeys) Shared() []*SigningKey { return shared(k.current.Load().held, k.cfg.Now()) }

// checkKnown returns an error if registries that trust the CAs published until now would refuse the
// certificate of next.
func (k *FileKeys) checkKnown(next, old *fileKeySet, now time.Time) error {
	if k.cfg.Trust == TrustJWKS || old.key.usable(now) != nil {
		return nil // nothing is known of registries, or there is no working key to lose
	}
	if _, err := verifyLeaf(next.chain, k.Trusted().Certificates, next.key.public, now); err == nil {
		return nil
	}
	root := next.key.root()
	return fmt.Errorf("signing certificate %s: its CA %q (%s) was not published before, so registries do not know it, and the last key stays: "+
		"put the CA into caFile beside the old one, give both to the registries, then put the new key in place; a restart takes it at once",
		k.cfg.CertFile, root.Subject, fingerprint(root))
}

// Status describes the key in the files, the keys that it replaced within the overlap, and the
// certificates above them.
func (k *FileKeys) Status() Status {
	set := k.current.Load()
	now := k.cfg.Now()
	key := KeyInfo{ID: set.key.ID, Algorithm: set.key.Algorithm, State: StateSigning, NotAfter: set.key.NotAfter, File: k.cfg.KeyFile}
	var status Status
	if root := set.key.root(); root != nil {
		key.CA = fingerprint(root)
		for n, cert := range set.key.path {
			if n == 0 && len(set.key.path) > 1 {
				continue // the leaf itself; alone, it is the certificate for registries
			}
			info := newCAInfo(cert, StateSigning, k.cfg.CertFile)
			info.Intermediate = n < len(set.key.path)-1
			status.addCA(info)
		}
	}
	for _, cert := range set.trusted.Certificates {
		status.addCA(newCAInfo(cert, StateTrusted, cmp.Or(k.cfg.CAFile, k.cfg.CertFile)))
	}
	known := map[string]bool{key.ID: true}
	for _, jwk := range set.trusted.JWKS.Keys {
		if !known[jwk.KeyID] {
			known[jwk.KeyID] = true
			status.Keys = append(status.Keys, KeyInfo{ID: jwk.KeyID, Algorithm: Algorithm(jwk.Algorithm), State: StateTrusted, File: k.cfg.KeyFile})
		}
	}
	for _, old := range slices.Backward(set.retired) { // the latest first: it is published longest
		if old.ended(now) {
			continue
		}
		for _, jwk := range old.trusted.JWKS.Keys {
			if !known[jwk.KeyID] {
				known[jwk.KeyID] = true
				status.Keys = append(status.Keys, KeyInfo{
					ID: jwk.KeyID, Algorithm: Algorithm(jwk.Algorithm), State: StateRetired, PublishedUntil: old.until, File: k.cfg.KeyFile,
				})
			}
		}
		for _, cert := range old.trusted.Certificates {
			info := newCAInfo(cert, StateRetired, cmp.Or(k.cfg.CAFile, k.cfg.CertFile))
			info.PublishedUntil = old.until
			status.addCA(info)
		}
	}
	slices.Reverse(status.Keys)
	slices.Reverse(status.CAs)
	status.Keys = append(status.Keys, key)
	return status
}

// addCA adds info unless it is present.
func (s *Status) addCA(info CAInfo) {
	if !slices.ContainsFunc(s.CAs, func(have CAInfo) bool { return have.ID == info.ID }) {
		s.CAs = append(s.CAs, info)
	}
}

// Run warns of certificates that expire soon, now and every minute until ctx ends. It logs each
// warning once. It does not read the files: Reload does.
func (k *FileKeys) Run(ctx context.Context) {
	var ending lastLogged
	everyMinute(ctx, func() {
		ending.log(k.cfg.Logger, slog.LevelWarn, "put a renewed signing certificate in place",
			k.EndsSoon(), "file", k.cfg.CertFile)
	})
}

// EndsSoon warns of the certificate in the file and of the certificates above it.
func (k *FileKeys) EndsSoon() error { return EndsSoon(k.current.Load().key.path, k.cfg.Now()) }

// read returns the present contents of the files.
func (k *FileKeys) read(now time.Time) (*fileKeySet, error) {
	data, err := readKeyFile(k.cfg.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	signer, err := parsePrivateKey(data)
	if err != nil {
		return nil, fmt.Errorf("signing key %s: %w", k.cfg.KeyFile, err)
	}
	var chain, roots, path []*x509.Certificate
	if k.cfg.Trust == TrustCertificate {
		if chain, err = readCertificates(k.cfg.CertFile); err != nil {
			return nil, err
		}
		if len(chain) > MaxChain {
			return nil, fmt.Errorf("signing certificate %s: %d certificates would make every token too large: leave %d at most, leaf first",
				k.cfg.CertFile, len(chain), MaxChain)
		}
		roots = chain[len(chain)-1:]
		if k.cfg.CAFile != "" {
			if roots, err = readCertificates(k.cfg.CAFile); err != nil {
				return nil, err
			}
		}
		if path, err = verifyLeaf(chain, roots, signer.Public(), now); err != nil {
			return nil, fmt.Errorf("signing certificate %s with key %s: %w", k.cfg.CertFile, k.cfg.KeyFile, err)
		}
	}
	key, err := newSigningKey(k.cfg.Algorithm, signer, chain, path)
	if err != nil {
		return nil, fmt.Errorf("signing key %s: %w", k.cfg.KeyFile, err)
	}
	trusted := mergeTrust(keyTrust(key), TrustBundle{Certificates: roots})
	if k.cfg.Trust == TrustJWKS {
		published, err := parsePublicKeys(data, k.cfg.Algorithm)
		if err != nil {
			return nil, fmt.Errorf("signing key %s: %w", k.cfg.KeyFile, err)
		}
		trusted = mergeTrust(trusted, published)
	}
	return &fileKeySet{key: key, chain: chain, trusted: trusted}, nil
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
