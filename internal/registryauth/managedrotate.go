package registryauth

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// RotateOptions says how a new key comes into use.
type RotateOptions struct {
	// SignAfter is the time from now until the new key signs. It is published at
	// once. With TrustJWKS give the registries their new key set, and restart
	// them, within it; zero breaks their pulls until that is done.
	SignAfter time.Duration
}

// Rotate makes a new key, whether it is due or not. Running servers notice
// within a minute. With TrustCertificate registries need nothing.
func (m *ManagedKeys) Rotate(opts RotateOptions) (KeyInfo, error) {
	if opts.SignAfter < 0 {
		return KeyInfo{}, fmt.Errorf("sign-after %s is negative: use zero or more", opts.SignAfter)
	}
	m.change.Lock()
	defer m.change.Unlock()
	var id string
	err := m.locked(func(err error) error {
		if errors.Is(err, errOtherTrust) {
			return err // a person is at hand, and has named the wrong directory
		}
		now := m.cfg.Now()
		if keys := m.current.Load().keys; len(keys) > 0 && keys[len(keys)-1].signsFrom.After(now) {
			next := keys[len(keys)-1]
			return fmt.Errorf("key %s waits already and signs from %s: rotate after that, or remove %s",
				next.signing.ID, next.signsFrom.Format(time.RFC3339), next.file)
		}
		id, err = m.makeKey(now.Add(opts.SignAfter))
		return err
	})
	if err != nil {
		return KeyInfo{}, err
	}
	infos := m.List()
	return infos[slices.IndexFunc(infos, func(k KeyInfo) bool { return k.ID == id })], nil
}

// KeyState says what a managed key does at present.
type KeyState string

// The states of a key, in the order of its life.
const (
	KeyNext    KeyState = "next"    // published, signs later
	KeySigning KeyState = "signing" // signs
	KeyRetired KeyState = "retired" // signs no more, its tokens may be alive
)

// KeyInfo describes one managed key. It holds nothing secret.
type KeyInfo struct {
	ID                string // RFC 7638 thumbprint, the kid of tokens
	Algorithm         Algorithm
	CreatedAt         time.Time
	SignsFrom         time.Time
	SignsUntil        time.Time // zero: until it is replaced
	PublishedUntil    time.Time // then it is removed; zero: not known yet
	CertificateExpiry time.Time // zero with TrustJWKS
	State             KeyState
	File              string
}

// List describes the keys as they were read last, oldest first.
func (m *ManagedKeys) List() []KeyInfo {
	set := m.current.Load()
	now := m.cfg.Now()
	signing := set.signingAt(now)
	infos := make([]KeyInfo, len(set.keys))
	for n, k := range set.keys {
		info := KeyInfo{
			ID:                k.signing.ID,
			Algorithm:         k.signing.Algorithm,
			CreatedAt:         k.createdAt,
			SignsFrom:         k.signsFrom,
			SignsUntil:        k.signsUntil,
			PublishedUntil:    k.publishedUntil,
			CertificateExpiry: k.signing.NotAfter,
			State:             KeyRetired,
			File:              k.file,
		}
		switch {
		case n == signing:
			info.State = KeySigning
		case k.signsFrom.After(now):
			info.State = KeyNext
		}
		infos[n] = info
	}
	return infos
}
