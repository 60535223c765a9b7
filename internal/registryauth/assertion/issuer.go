package assertion

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
)

const (
	// Lifetime is the lifetime of an assertion.
	Lifetime = time.Minute

	// keyLead is how long a new key in a directory is published before it signs. Clouds cache a key
	// set for up to a day.
	keyLead = 24 * time.Hour

	// keyOverlap is how long a replaced key in a file stays published. By then every replica has
	// the new key, and assertions of the old one have expired.
	keyOverlap = 15 * time.Minute

	// backdate lets a cloud whose clock is behind accept an assertion at once.
	backdate = 5 * time.Second
)

// ErrAnonymous is the error for a request without a caller, for whom no assertion can be signed.
var ErrAnonymous = errors.New("the caller is anonymous, and this upstream is asked as the caller only: its token must be one of a ServiceAccount")

// Config describes the issuer. One of KeyFile and ManagedDir is set.
type Config struct {
	Issuer     string // https URL without path, under which upstreams reach the handlers
	KeyFile    string // a private RSA key, and public ones that are only published; PEM
	ManagedDir string // of keys that this process makes and rotates
	Now        func() time.Time
	Logger     *slog.Logger // nil: no logs
}

// Issuer signs assertions. It is safe for concurrent use.
type Issuer struct {
	issuer  string
	keys    signing.Keys
	managed *signing.ManagedKeys // nil for keys in a file
	reload  func() error
	run     func(context.Context)
	now     func() time.Time
	logger  *slog.Logger
}

// New reads the keys. Maintain or Run makes missing keys of a directory.
func New(cfg Config) (*Issuer, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	i := &Issuer{issuer: cfg.Issuer, now: cfg.Now, logger: cfg.Logger}
	switch {
	case !strings.HasPrefix(cfg.Issuer, "https://") || strings.HasSuffix(cfg.Issuer, "/"):
		return nil, fmt.Errorf("assertions: issuer %q is not an https URL without a slash at its end", cfg.Issuer)
	case (cfg.KeyFile == "") == (cfg.ManagedDir == ""):
		return nil, errors.New("assertions: name one of keyFile and managedDir")
	case cfg.KeyFile != "":
		keys, err := signing.NewFileKeys(signing.FileKeysConfig{
			Algorithm: signing.RS256, Trust: signing.TrustJWKS, KeyFile: cfg.KeyFile,
			Overlap: keyOverlap, Now: cfg.Now, Logger: cfg.Logger,
		})
		if err != nil {
			return nil, fmt.Errorf("assertions: %w", err)
		}
		i.keys, i.reload, i.run = keys, keys.Reload, keys.Run
	default:
		keys, err := signing.NewManagedKeys(signing.ManagedKeysConfig{
			Dir: cfg.ManagedDir, Algorithm: signing.RS256, Trust: signing.TrustJWKS, Service: cfg.Issuer,
			Lifetime: Lifetime, Lead: keyLead, Now: cfg.Now, Logger: cfg.Logger,
		})
		if err != nil {
			return nil, fmt.Errorf("assertions: %w", err)
		}
		i.keys, i.managed, i.reload, i.run = keys, keys, keys.Reload, keys.Run
	}
	return i, nil
}

// Maintain makes the first key in a directory, and does other work that is due there. It does
// nothing for a key in a file.
func (i *Issuer) Maintain() error {
	if i.managed == nil {
		return nil
	}
	return i.managed.Maintain()
}

// Run maintains the keys until ctx ends.
func (i *Issuer) Run(ctx context.Context) { i.run(ctx) }

// Reload reads the keys again. On an error, the present keys stay in use.
func (i *Issuer) Reload() error { return i.reload() }

// Keys returns the keys, for status and metrics.
func (i *Issuer) Keys() signing.Keys { return i.keys }

// claims are claims of RFC 7519 only. Any claim from which a cloud derives a right must be sub,
// which Pullpass vouches for.
type claims struct {
	Issuer    string `json:"iss"`
	Subject   string `json:"sub"`
	Audience  string `json:"aud"`
	IssuedAt  int64  `json:"iat"`
	NotBefore int64  `json:"nbf"`
	Expiry    int64  `json:"exp"`
	ID        string `json:"jti"`
}

// Sign returns an assertion that names the caller, CLUSTER/NAMESPACE/SERVICEACCOUNT, to the
// audience. Without a caller the error is ErrAnonymous. Without a key it is
// signing.ErrNoSigningKey.
func (i *Issuer) Sign(caller, audience string) (registryauth.Secret, error) {
	if caller == "" {
		return registryauth.Secret{}, ErrAnonymous
	}
	// A name with an empty part could be the name of another caller elsewhere.
	if parts := strings.Split(caller, "/"); len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return registryauth.Secret{}, fmt.Errorf("%q is not CLUSTER/NAMESPACE/SERVICEACCOUNT", caller)
	}
	if audience == "" {
		return registryauth.Secret{}, errors.New("an assertion without audience would be good everywhere")
	}
	key, err := i.keys.Signing()
	if err != nil {
		return registryauth.Secret{}, fmt.Errorf("assertions: %w", err)
	}
	from := i.now().Add(-backdate)
	payload, err := json.Marshal(claims{
		Issuer: i.issuer, Subject: caller, Audience: audience,
		IssuedAt: from.Unix(), NotBefore: from.Unix(), Expiry: from.Add(Lifetime).Unix(), ID: rand.Text(),
	})
	if err != nil {
		return registryauth.Secret{}, fmt.Errorf("assertions: %w", err)
	}
	token, err := key.Sign(payload)
	if err != nil {
		return registryauth.Secret{}, fmt.Errorf("assertions: %w", err)
	}
	return registryauth.NewSecret(token), nil
}
