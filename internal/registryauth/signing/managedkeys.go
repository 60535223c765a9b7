package signing

import (
	"cmp"
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// rotateEvery is how often a new key signs with TrustCertificate. Registries need no change.
	rotateEvery = 24 * time.Hour
	// rotateFollowed is how often a new key signs with Lead, for registries that follow the key
	// set.
	rotateFollowed = 30 * 24 * time.Hour
	// maintainEvery is how often Run reads the directory.
	maintainEvery = time.Minute
	// overlapMargin is added to the lifetime of tokens. It covers the registry's leeway
	// (distribution: 60 s), the time until another process reads a new key (maintainEvery), and
	// clock differences.
	overlapMargin = 5 * time.Minute
)

// ManagedKeysConfig describes the directory of one registry's signing keys.
type ManagedKeysConfig struct {
	// Dir holds only the keys of one registry. Maintain and Rotate create it with mode 0700. A
	// directory that other users can read is refused.
	Dir       string
	Algorithm Algorithm     // of new keys; empty: ES256
	Trust     Trust         // empty: TrustCertificate
	Service   string        // the registry's service, for readers of the certificates
	Lifetime  time.Duration // of tokens, as in IssuerConfig
	// Lead is how long a new key is published before it signs, with TrustJWKS. It is for registries
	// that fetch the key set repeatedly, and makes keys rotate automatically. Zero: they read the
	// key set once, and keys do not rotate automatically.
	Lead   time.Duration
	Now    func() time.Time
	Logger *slog.Logger // nil: no logs
}

// ManagedKeys makes signing keys in its own directory, rotates them in time, and removes them when
// their tokens have expired. Several processes may share the directory. A lock file serializes
// their changes.
//
// With TrustCertificate there is a CA, which is valid for ten years. Registries trust only the CA.
// Each day a new leaf key signs. RotateCA publishes a new CA at once. The new CA signs after a
// delay, within which registries get both.
//
// With TrustJWKS and no Lead, keys do not rotate automatically, because a registry reads its key
// set once. Rotate publishes a new key at once. The new key signs after a delay, within which the
// registry gets the new set.
//
// All methods are safe for concurrent use. An unusable file is reported and skipped. While a
// process runs, it keeps the last good content.
type ManagedKeys struct {
	cfg     ManagedKeysConfig
	dir     managedDir
	opened  time.Time
	change  sync.Mutex // one change of current at a time
	current atomic.Pointer[managedSet]
}

var _ Keys = (*ManagedKeys)(nil)

// managedSet is immutable.
type managedSet struct {
	cas     []managedCA  // in the order in which they sign; none with TrustJWKS
	keys    []managedKey // in the order in which they sign
	listing listing      // files of the directory, usable or not
}

type managedKey struct {
	signing       *SigningKey
	ca            string // id; empty with TrustJWKS
	sequence      int
	createdAt     time.Time
	signsFrom     time.Time
	tokenLifetime time.Duration
	file          string

	// Zero for the last key. For others they follow from the next key.
	signsUntil     time.Time
	publishedUntil time.Time
}

// NewManagedKeys checks all of cfg and reads the directory. It writes nothing. An empty or missing
// directory is not an error, but has no signing key until Maintain or Run makes one. Unusable files
// are logged.
func NewManagedKeys(cfg ManagedKeysConfig) (*ManagedKeys, error) {
	cfg.Algorithm = cmp.Or(cfg.Algorithm, ES256)
	cfg.Trust = cmp.Or(cfg.Trust, TrustCertificate)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	faults := []error{cfg.Algorithm.validate(), cfg.Trust.validate()}
	if cfg.Dir == "" {
		faults = append(faults, errors.New("managedDir is empty: name a directory for the signing keys"))
	}
	if cfg.Service == "" {
		faults = append(faults, errors.New("service is empty: set the registry's service"))
	}
	if cfg.Lead < 0 || cfg.Lead > 0 && cfg.Trust != TrustJWKS {
		faults = append(faults, fmt.Errorf("lead %s with trust %q has no meaning: leave it out", cfg.Lead, cfg.Trust))
	}
	if cfg.Lifetime < MinLifetime {
		faults = append(faults, fmt.Errorf("token lifetime %s is too short: the token specification asks for %s at least", cfg.Lifetime, MinLifetime))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	m := &ManagedKeys{cfg: cfg, dir: managedDir(cfg.Dir), opened: cfg.Now()}
	m.current.Store(&managedSet{})
	if _, err := m.dir.list(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("signing keys: %w", err)
	}
	if err := m.Reload(); err != nil {
		cfg.Logger.Warn("some signing keys cannot be used", "directory", cfg.Dir, "error", err)
	}
	return m, nil
}

// Signing returns the newest key whose signing time has started.
func (m *ManagedKeys) Signing() (*SigningKey, error) {
	set := m.current.Load()
	now := m.cfg.Now()
	if n := set.signingAt(now); n >= 0 {
		return set.keys[n].signing, nil
	}
	return nil, fmt.Errorf("%w in %s: see the log for its files, or run the command keys init", ErrNoSigningKey, m.cfg.Dir)
}

// signingAt returns the index of the key that signs at now, or -1. If no key's time has started, a
// later key signs: the previous key was revoked, or the clock was set back.
func (s *managedSet) signingAt(now time.Time) int {
	waiting := -1
	for n := len(s.keys) - 1; n >= 0; n-- {
		if s.keys[n].signing.usable(now) != nil {
			continue
		}
		if !s.keys[n].signsFrom.After(now) {
			return n
		}
		waiting = n
	}
	return waiting
}

// Trusted returns the keys that sign, will sign, or have signed tokens that have not expired. With
// TrustCertificate it also returns their CAs.
func (m *ManagedKeys) Trusted() TrustBundle {
	set := m.current.Load()
	now := m.cfg.Now()
	var live []*SigningKey
	for _, k := range set.keys {
		if !k.ended(now) {
			live = append(live, k.signing)
		}
	}
	bundle := keyTrust(live...)
	for _, ca := range set.cas {
		if !set.caEnded(ca, now) {
			bundle.Certificates = append(bundle.Certificates, ca.cert)
		}
	}
	return mergeTrust(bundle)
}

// Shared returns the keys in the directory whose tokens can still be valid.
func (m *ManagedKeys) Shared() []*SigningKey {
	var held []heldKey
	for _, k := range m.current.Load().keys {
		held = append(held, heldKey{k.signing, k.createdAt, k.publishedUntil})
	}
	return shared(held, m.cfg.Now())
}

// ended reports whether all tokens of the key have expired.
func (k managedKey) ended(now time.Time) bool {
	return !k.publishedUntil.IsZero() && !now.Before(k.publishedUntil)
}

// Reload reads the changes of other processes. The error names each faulty file. Such files are
// left out, or keep their last good content.
func (m *ManagedKeys) Reload() error {
	m.change.Lock()
	defer m.change.Unlock()
	return m.reload()
}

// errUnread says that the directory could not be read.
var errUnread = errors.New("signing keys are kept as they were, their directory cannot be read")

func (m *ManagedKeys) reload() error {
	old := m.current.Load()
	list, err := m.dir.list()
	if errors.Is(err, fs.ErrNotExist) && len(old.keys) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errUnread, err)
	}
	next := &managedSet{listing: list}
	var faults []error
	if m.cfg.Trust == TrustCertificate {
		faults = append(faults, m.reloadCAs(next, old))
	}
	for _, name := range list.keys {
		key, err := m.dir.readKey(name, m.cfg.Trust, next.cas)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed by another process since the listing
		}
		if err != nil {
			faults = append(faults, err)
			n := slices.IndexFunc(old.keys, func(k managedKey) bool { return k.file == m.dir.path(name) })
			if n < 0 {
				continue
			}
			key = old.keys[n]
		}
		next.keys = append(next.keys, key)
	}
	next.order(m.cfg.Lifetime)
	if now := m.cfg.Now(); next.signingAt(now) < 0 && old.signingAt(now) >= 0 {
		faults = append(faults, fmt.Errorf("%s has no usable signing key any more: the last good keys are kept until this process ends", m.cfg.Dir))
		return errors.Join(faults...)
	}
	m.current.Store(next)
	return errors.Join(faults...)
}

// order sorts the keys and computes their times.
func (s *managedSet) order(lifetime time.Duration) {
	slices.SortFunc(s.keys, func(a, b managedKey) int {
		return cmp.Or(a.signsFrom.Compare(b.signsFrom), cmp.Compare(a.sequence, b.sequence), cmp.Compare(a.signing.ID, b.signing.ID))
	})
	for n := range s.keys {
		k := &s.keys[n]
		k.signsUntil, k.publishedUntil = time.Time{}, time.Time{}
		if n+1 < len(s.keys) {
			k.signsUntil = s.keys[n+1].signsFrom
			// The configured lifetime may have been longer when the key was made.
			k.publishedUntil = k.signsUntil.Add(max(lifetime, k.tokenLifetime) + overlapMargin)
		}
	}
}

// Run maintains the directory now and every minute until ctx ends. It logs errors and warnings,
// each once until it changes.
func (m *ManagedKeys) Run(ctx context.Context) {
	var problem, ending lastLogged
	everyMinute(ctx, func() {
		problem.log(m.cfg.Logger, slog.LevelError, "signing keys need attention", m.Maintain(), "directory", m.cfg.Dir)
		ending.log(m.cfg.Logger, slog.LevelWarn, "make a new CA for the registries in time: keys rotate-ca", m.EndsSoon(), "directory", m.cfg.Dir)
	})
}

// EndsSoon warns long before the signing CA expires. The CA is not replaced automatically, because
// registries must get the new one.
func (m *ManagedKeys) EndsSoon() error {
	set := m.current.Load()
	now := m.cfg.Now()
	if n := len(set.cas) - 1; n >= 0 {
		return EndsSoon([]*x509.Certificate{set.cas[n].cert}, now)
	}
	return nil
}

// Maintain reads the directory and does all work that is due. It makes the first key and its CA.
// With TrustCertificate, it makes a new key each day and when a new CA starts to sign. It removes
// keys whose tokens have expired, and files that a crash has left. On an error, the keys in use
// stay unchanged.
func (m *ManagedKeys) Maintain() error {
	m.change.Lock()
	defer m.change.Unlock()

	err := m.reload()
	if m.keyDue() || m.cleanupDue() {
		err = m.locked(func(err error) error {
			if m.keyDue() {
				if _, makeErr := m.makeKey(m.current.Load(), m.signsFrom()); makeErr != nil {
					return errors.Join(err, makeErr)
				}
			}
			return errors.Join(err, m.cleanup())
		})
	}
	return err
}

// locked calls do while the directory is locked. It creates the directory if necessary and reads it
// again, because another process may have done the work. do gets the error of that reading.
func (m *ManagedKeys) locked(do func(reloadErr error) error) error {
	set := m.current.Load()
	if len(set.keys)+len(set.cas) == 0 {
		if err := os.MkdirAll(m.cfg.Dir, 0o700); err != nil {
			return fmt.Errorf("signing keys: %w", err)
		}
	}
	unlock, err := m.dir.lock()
	if err != nil {
		return fmt.Errorf("signing keys: %w", err)
	}
	defer unlock()
	err = m.reload()
	if errors.Is(err, errUnread) {
		return err // the contents are unknown, so nothing is added
	}
	return do(err)
}

// keyDue reports whether a key must be made without a request.
func (m *ManagedKeys) keyDue() bool {
	set := m.current.Load()
	now := m.cfg.Now()
	if m.cfg.Trust == TrustJWKS {
		n := len(set.keys) - 1
		if m.cfg.Lead > 0 && n >= 0 {
			return now.Sub(set.keys[n].signsFrom) >= rotateFollowed
		}
		// Only the first key: registries would not know a later one.
		return len(set.listing.keys) == 0
	}
	n := set.signingAt(now)
	if n < 0 {
		return true
	}
	key := set.keys[n]
	if ca := set.caAt(now); ca >= 0 {
		if key.ca != set.cas[ca].id {
			return true
		}
		if key.signing.NotAfter.Sub(now) < leafValidity/2 && key.signing.NotAfter.Before(set.cas[ca].cert.NotAfter) {
			return true
		}
	}
	if n+1 < len(set.keys) {
		return false // the next key waits
	}
	// A key that was made while this process runs comes from a process with a newer configuration.
	// During a rollout, two processes must not undo each other's work.
	otherAlgorithm := key.signing.Algorithm != m.cfg.Algorithm && key.createdAt.Before(m.opened)
	return now.Sub(key.signsFrom) >= rotateEvery || otherAlgorithm
}

// signsFrom is the time at which a key that is made now starts to sign: at once if it is the first.
func (m *ManagedKeys) signsFrom() time.Time {
	now := m.cfg.Now()
	if m.current.Load().signingAt(now) < 0 {
		return now
	}
	return now.Add(m.cfg.Lead)
}

func (m *ManagedKeys) cleanupDue() bool {
	set := m.current.Load()
	now := m.cfg.Now()
	return len(set.listing.temps) > 0 || slices.ContainsFunc(set.keys, func(k managedKey) bool { return k.ended(now) }) ||
		slices.ContainsFunc(set.cas, func(ca managedCA) bool { return set.caEnded(ca, now) })
}

// cleanup removes expired keys and CAs and files that a crash has left. The caller holds the lock,
// so no other process is writing those.
func (m *ManagedKeys) cleanup() error {
	set := m.current.Load()
	var faults []error
	for _, name := range set.listing.temps {
		faults = append(faults, removeFile(m.dir.path(name)))
	}
	now := m.cfg.Now()
	for _, key := range set.keys {
		if key.ended(now) {
			faults = append(faults, removeFile(key.file))
			m.cfg.Logger.Info("signing key removed, all its tokens have ended", "directory", m.cfg.Dir, "key", key.signing.ID)
		}
	}
	for _, ca := range set.cas {
		if set.caEnded(ca, now) {
			faults = append(faults, removeFile(ca.file))
			m.cfg.Logger.Info("CA of the signing keys removed, all its certificates have ended; registries may forget it",
				"directory", m.cfg.Dir, "service", m.cfg.Service, "ca", ca.id)
		}
	}
	return errors.Join(append(faults, m.reload())...)
}

func removeFile(name string) error {
	if err := os.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// makeKey makes a key that signs from signsFrom on, by a CA of set, and reads it.
// The caller holds the lock.
func (m *ManagedKeys) makeKey(set *managedSet, signsFrom time.Time) (id string, err error) {
	now := m.cfg.Now()
	var ca *x509.Certificate
	var caKey crypto.Signer
	if m.cfg.Trust == TrustCertificate {
		if ca, caKey, err = m.signingCA(set, now); err != nil {
			return "", err
		}
	}
	file := keyFile{
		Version:              fileVersion,
		Trust:                m.cfg.Trust,
		Algorithm:            m.cfg.Algorithm,
		CreatedAt:            now.UTC(),
		SignsFrom:            signsFrom.UTC(),
		TokenLifetimeSeconds: int64(m.cfg.Lifetime / time.Second),
	}
	for _, k := range m.current.Load().keys {
		file.Sequence = max(file.Sequence, k.sequence+1)
	}
	if id, err = m.dir.makeKey(file, m.cfg.Service, ca, caKey); err != nil {
		return "", fmt.Errorf("make a signing key: %w", err)
	}
	m.cfg.Logger.Info("signing key made", "directory", m.cfg.Dir, "key", id, "algorithm", m.cfg.Algorithm, "signs_from", file.SignsFrom)
	// Faults of other files were reported already, and do not concern the caller.
	_ = m.reload()
	if !slices.ContainsFunc(m.current.Load().keys, func(k managedKey) bool { return k.signing.ID == id }) {
		name := m.dir.path(keyFileName(id))
		return "", errors.Join(fmt.Errorf("the new signing key %s cannot be read back, so it is removed", name), removeFile(name))
	}
	return id, nil
}
