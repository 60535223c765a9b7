package signing

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"
)

// managedCA is a CA of a managed directory. Its private key is not part of it, and is read when the
// CA signs.
type managedCA struct {
	cert      *x509.Certificate
	id        string
	sequence  int
	signsFrom time.Time
	file      string

	// Zero for the last CA. For others they follow from the next CA.
	signsUntil     time.Time
	publishedUntil time.Time
}

// caAt returns the index of the CA that signs the certificates of new keys at now. It is the newest
// CA whose start has passed. If there is none, it is a CA that starts later. -1 means that none is
// valid.
func (s *managedSet) caAt(now time.Time) int {
	waiting := -1
	for n := len(s.cas) - 1; n >= 0; n-- {
		if checkValidity(s.cas[n].cert, now) != nil {
			continue
		}
		if !s.cas[n].signsFrom.After(now) {
			return n
		}
		waiting = n
	}
	return waiting
}

// orderCAs sorts the CAs and computes their times. A replaced CA is kept until the last certificate
// that it can have signed has expired. Until then, it signs again if its successor is revoked.
func (s *managedSet) orderCAs() {
	slices.SortFunc(s.cas, func(a, b managedCA) int {
		return cmp.Or(a.signsFrom.Compare(b.signsFrom), cmp.Compare(a.sequence, b.sequence), cmp.Compare(a.id, b.id))
	})
	for n := range s.cas {
		ca := &s.cas[n]
		ca.signsUntil, ca.publishedUntil = time.Time{}, time.Time{}
		if n+1 < len(s.cas) {
			ca.signsUntil = s.cas[n+1].signsFrom
			ca.publishedUntil = ca.signsUntil.Add(leafValidity)
		}
	}
}

// caEnded reports whether all certificates of a CA, and the keys that have them, have expired.
func (s *managedSet) caEnded(ca managedCA, now time.Time) bool {
	return !ca.publishedUntil.IsZero() && !now.Before(ca.publishedUntil) &&
		!slices.ContainsFunc(s.keys, func(k managedKey) bool { return k.ca == ca.id })
}

// reloadCAs reads the CAs into next. A file that cannot be read is left out, or keeps its last good
// content. A CA whose file is missing while its keys are present is also kept, because it was not
// revoked.
func (m *ManagedKeys) reloadCAs(next, old *managedSet) error {
	var faults []error
	keep := func(n int, err error) {
		faults = append(faults, err)
		if n >= 0 {
			next.cas = append(next.cas, old.cas[n])
		}
	}
	for _, name := range next.listing.cas {
		ca, _, err := m.dir.readCA(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed by another process since the listing
		}
		if err != nil {
			keep(slices.IndexFunc(old.cas, func(c managedCA) bool { return c.file == m.dir.path(name) }), err)
			continue
		}
		next.cas = append(next.cas, ca)
	}
	for n, ca := range old.cas {
		if slices.Contains(next.listing.cas, caFileName(ca.id)) {
			continue
		}
		if slices.ContainsFunc(old.keys, func(k managedKey) bool {
			return k.ca == ca.id && slices.Contains(next.listing.keys, keyFileName(k.signing.ID))
		}) {
			keep(n, fmt.Errorf("CA of the signing keys: %s is missing: restore it from a backup", ca.file))
		}
	}
	next.orderCAs()
	return errors.Join(faults...)
}

// readCA returns the CA in the file called name, and its key.
func (d managedDir) readCA(name string) (managedCA, crypto.Signer, error) {
	ca, key, err := d.parseCA(name)
	if err != nil {
		return managedCA{}, nil, fmt.Errorf("CA of the signing keys %s: %w; restore it from a backup", d.path(name), err)
	}
	return ca, key, nil
}

func (d managedDir) parseCA(name string) (managedCA, crypto.Signer, error) {
	var file caFile
	if err := d.readJSON(name, &file); err != nil {
		return managedCA{}, nil, err
	}
	certs, err := parseCertificates([]byte(file.Certificate))
	if err != nil {
		return managedCA{}, nil, err
	}
	key, err := parsePrivateKey([]byte(file.PrivateKey))
	if err != nil {
		return managedCA{}, nil, err
	}
	cert := certs[0]
	if pub, ok := key.Public().(*ecdsa.PublicKey); !ok || !pub.Equal(cert.PublicKey) {
		return managedCA{}, nil, errors.New("the key is not the certificate's")
	}
	if !cert.IsCA {
		return managedCA{}, nil, errors.New("the certificate is not a CA's")
	}
	ca := managedCA{cert: cert, id: fingerprint(cert), sequence: file.Sequence, signsFrom: file.SignsFrom, file: d.path(name)}
	if name != caFileName(ca.id) {
		return managedCA{}, nil, renamed(ca.id)
	}
	return ca, key, nil
}

// makeCA makes a CA and its file. The CA signs only leaf certificates.
func (d managedDir) makeCA(file caFile, service string, now time.Time) (id string, err error) {
	ca, err := NewCA("Pullpass CA "+service, now)
	if err != nil {
		return "", err
	}
	certPEM, keyPEM, err := ca.PEM()
	if err != nil {
		return "", err
	}
	file.Certificate, file.PrivateKey = string(certPEM), string(keyPEM)
	id = fingerprint(ca.cert)
	return id, d.writeJSON(caFileName(id), file)
}

// makeCA makes a CA that signs from signsFrom on, and reads it. The caller holds the lock.
func (m *ManagedKeys) makeCA(signsFrom time.Time) (id string, err error) {
	file := caFile{Version: fileVersion, SignsFrom: signsFrom.UTC()}
	for _, ca := range m.current.Load().cas {
		file.Sequence = max(file.Sequence, ca.sequence+1)
	}
	if id, err = m.dir.makeCA(file, m.cfg.Service, m.cfg.Now()); err != nil {
		return "", fmt.Errorf("make a CA of the signing keys: %w", err)
	}
	m.cfg.Logger.Info("CA of the signing keys made; registries need its certificate, which is published, and nothing of this directory",
		"directory", m.cfg.Dir, "service", m.cfg.Service, "ca", id, "signs_from", file.SignsFrom)
	// Faults of other files were reported already, and do not concern the caller.
	_ = m.reload()
	if !slices.ContainsFunc(m.current.Load().cas, func(ca managedCA) bool { return ca.id == id }) {
		name := m.dir.path(caFileName(id))
		return "", errors.Join(fmt.Errorf("the new CA %s cannot be read back, so it is removed", name), removeFile(name))
	}
	return id, nil
}

// signingCA returns the CA of set that signs now. In a new directory, it makes the first CA. A CA
// that is lost or damaged is never replaced, because registries would refuse every token until they
// get the new one.
func (m *ManagedKeys) signingCA(set *managedSet, now time.Time) (*x509.Certificate, crypto.Signer, error) {
	if len(set.cas)+len(set.listing.cas)+len(set.listing.keys) == 0 {
		if _, err := m.makeCA(now); err != nil {
			return nil, nil, err
		}
		set = m.current.Load()
	}
	if n := set.caAt(now); n >= 0 {
		ca := set.cas[n]
		_, key, err := m.dir.parseCA(caFileName(ca.id))
		if err != nil {
			return nil, nil, fmt.Errorf("CA of the signing keys %s: %w; restore it from a backup", ca.file, err)
		}
		return ca.cert, key, nil
	}
	var faults []error
	for _, ca := range set.cas {
		faults = append(faults, fmt.Errorf("CA of the signing keys %s: %w: keys rotate-ca", ca.file, checkValidity(ca.cert, now)))
	}
	for _, name := range set.listing.cas {
		if _, _, err := m.dir.readCA(name); err != nil {
			faults = append(faults, err)
		}
	}
	if len(faults) == 0 {
		faults = append(faults, fmt.Errorf("CA of the signing keys: %s is missing: restore it from a backup, or make another: keys rotate-ca", m.dir.path(caFileName("*"))))
	}
	return nil, nil, errors.Join(faults...)
}

// RotateCA makes a new CA. It is published at once, together with the old one. After
// opts.SignAfter, it signs the certificates of keys. Within that time, give both to the registries
// and restart them. Zero breaks their pulls until that is done. The old CA stays published until
// its last certificate has expired.
func (m *ManagedKeys) RotateCA(opts RotateOptions) (CAInfo, error) {
	if m.cfg.Trust != TrustCertificate {
		return CAInfo{}, fmt.Errorf("with trust %q there is no CA: use keys rotate", m.cfg.Trust)
	}
	var id string
	err := m.operate(opts.SignAfter, func(now time.Time) (err error) {
		if cas := m.current.Load().cas; len(cas) > 0 && cas[len(cas)-1].signsFrom.After(now) {
			return errPending("CA", cas[len(cas)-1].id, cas[len(cas)-1].signsFrom)
		}
		if id, err = m.makeCA(now.Add(opts.SignAfter)); err != nil || opts.SignAfter > 0 {
			return err // servers switch when its time has come
		}
		_, err = m.makeKey(m.current.Load(), now)
		return err
	})
	if err != nil {
		return CAInfo{}, err
	}
	cas := m.Status().CAs
	return cas[slices.IndexFunc(cas, func(ca CAInfo) bool { return ca.ID == id })], nil
}
