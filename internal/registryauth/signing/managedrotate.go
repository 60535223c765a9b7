package signing

import (
	"errors"
	"fmt"
	"time"
)

// RotateOptions configures the start of a new key or a new CA.
type RotateOptions struct {
	// SignAfter is the time from now until the new one signs. It is published at once. Registries
	// may not know it (a key with TrustJWKS, a CA). Give it to them, and restart them, within that
	// time. Zero breaks their pulls until that is done.
	SignAfter time.Duration
}

// operate runs an operator's command while the directory is locked and read.
func (m *ManagedKeys) operate(signAfter time.Duration, do func(now time.Time) error) error {
	if signAfter < 0 {
		return fmt.Errorf("sign-after %s is negative: use zero or more", signAfter)
	}
	m.change.Lock()
	defer m.change.Unlock()
	return m.locked(func(err error) error {
		if errors.Is(err, errOtherTrust) {
			return err // an operator is present, and may have named the wrong directory
		}
		return do(m.cfg.Now())
	})
}

func errPending(what, id string, signsFrom time.Time) error {
	return fmt.Errorf("%s %s waits already and signs from %s: wait for that, or end it: keys revoke", what, id, signsFrom.Format(time.RFC3339))
}

// Rotate makes a new key, whether it is due or not. Running servers notice within a minute. With
// TrustCertificate, registries need no change.
func (m *ManagedKeys) Rotate(opts RotateOptions) (KeyInfo, error) {
	var id string
	err := m.operate(opts.SignAfter, func(now time.Time) (err error) {
		set := m.current.Load()
		if n := len(set.keys); n > 0 && set.keys[n-1].signsFrom.After(now) {
			return errPending("key", set.keys[n-1].signing.ID, set.keys[n-1].signsFrom)
		}
		id, err = m.makeKey(set, now.Add(opts.SignAfter))
		return err
	})
	if err != nil {
		return KeyInfo{}, err
	}
	return m.info(id), nil
}

func (m *ManagedKeys) info(id string) KeyInfo {
	for _, key := range m.Status().Keys {
		if key.ID == id {
			return key
		}
	}
	return KeyInfo{}
}

// ErrUnknownKey says that no key and no CA has the id.
var ErrUnknownKey = errors.New("no such key")

// Revoke removes a key, or a CA and all of its keys, at once. It is no longer published, signs
// nothing more, and its file is deleted. If no other key could sign, a new key is made first. The
// last CA cannot be revoked, because registries would not know a new one. It returns the key that
// signs afterwards.
//
// Revoke does not end tokens. A registry accepts signatures of the key, also from a thief, as long
// as it trusts the key. With TrustJWKS, that is until it gets a key set without the key. With
// TrustCertificate, that is until the key's certificate expires or the registry gets other CAs than
// the key's.
func (m *ManagedKeys) Revoke(id string) (KeyInfo, error) {
	var signing string
	err := m.operate(0, func(now time.Time) error {
		set := m.current.Load()
		rest, files, err := set.without(id)
		if err != nil {
			return err
		}
		if len(rest.cas) < len(set.cas) && rest.caAt(now) < 0 {
			return fmt.Errorf("%s is the only CA that can sign: make another first: keys rotate-ca", id)
		}
		if rest.signingAt(now) < 0 {
			// First, because other processes that read the directory meanwhile must find a key.
			if _, err := m.makeKey(rest, now); err != nil {
				return err
			}
		}
		var faults []error
		for _, name := range files {
			faults = append(faults, removeFile(name))
		}
		m.cfg.Logger.Info("signing key or CA revoked", "directory", m.cfg.Dir, "service", m.cfg.Service, "revoked", id)
		_ = m.reload() // faults of other files do not concern this call
		if n := m.current.Load().signingAt(now); n >= 0 {
			signing = m.current.Load().keys[n].signing.ID
		}
		return errors.Join(faults...)
	})
	if err != nil {
		return KeyInfo{}, err
	}
	return m.info(signing), nil
}

// without returns the set without a key, or without a CA and its keys. It also returns the files of
// the removed objects, those of keys first.
func (s *managedSet) without(id string) (rest *managedSet, files []string, err error) {
	rest = &managedSet{listing: s.listing}
	for _, k := range s.keys {
		if k.signing.ID == id || k.ca == id {
			files = append(files, k.file)
			continue
		}
		rest.keys = append(rest.keys, k)
	}
	for _, ca := range s.cas {
		if ca.id == id {
			files = append(files, ca.file)
			continue
		}
		rest.cas = append(rest.cas, ca)
	}
	if len(files) == 0 {
		return nil, nil, fmt.Errorf("%w: %q", ErrUnknownKey, id)
	}
	return rest, files, nil
}

// Status describes the keys and the CAs as they were last read.
func (m *ManagedKeys) Status() Status {
	set := m.current.Load()
	now := m.cfg.Now()
	signing, signingCA := set.signingAt(now), set.caAt(now)
	status := Status{Keys: make([]KeyInfo, len(set.keys))}
	for n, k := range set.keys {
		status.Keys[n] = KeyInfo{
			ID:             k.signing.ID,
			Algorithm:      k.signing.Algorithm,
			State:          stateOf(n, signing, k.signsFrom, now),
			SignsFrom:      k.signsFrom,
			SignsUntil:     k.signsUntil,
			PublishedUntil: k.publishedUntil,
			NotAfter:       k.signing.NotAfter,
			CA:             k.ca,
			File:           k.file,
		}
	}
	for n, ca := range set.cas {
		info := newCAInfo(ca.cert, stateOf(n, signingCA, ca.signsFrom, now), ca.file)
		info.SignsFrom, info.SignsUntil, info.PublishedUntil = ca.signsFrom, ca.signsUntil, ca.publishedUntil
		status.CAs = append(status.CAs, info)
	}
	return status
}

func stateOf(n, signing int, signsFrom, now time.Time) State {
	switch {
	case n == signing:
		return StateSigning
	case signsFrom.After(now):
		return StateNext
	}
	return StateRetired
}
