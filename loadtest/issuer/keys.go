package main

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// keyBits is what API servers usually sign with.
const keyBits = 2048

// keys are the signing keys in a directory: 0001.key, 0002.key, … They are safe for concurrent use.
type keys struct {
	dir string

	mu  sync.Mutex
	all []signingKey // in the order in which they sign
}

type signingKey struct {
	jose.JSONWebKey
	from time.Time // signs from then on
}

func openKeys(dir string) (*keys, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.key"))
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	k := &keys{dir: dir}
	for _, file := range files {
		key, err := readKey(file)
		if err != nil {
			return nil, err
		}
		k.all = append(k.all, signingKey{JSONWebKey: key})
	}
	if len(k.all) > 0 {
		return k, nil
	}
	return k, k.rotate(0)
}

// rotate makes a key that is published now and signs after some time.
func (k *keys) rotate(after time.Duration) error {
	private, err := rsa.GenerateKey(rand.Reader, keyBits)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return err
	}
	key, err := newKey(private)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	file := filepath.Join(k.dir, fmt.Sprintf("%04d.key", len(k.all)+1))
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		return err
	}
	k.all = append(k.all, signingKey{key, time.Now().Add(after)})
	return nil
}

func (k *keys) signing() jose.JSONWebKey {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range slices.Backward(k.all) {
		if !time.Now().Before(key.from) {
			return key.JSONWebKey
		}
	}
	return k.all[0].JSONWebKey
}

func (k *keys) published() jose.JSONWebKeySet {
	k.mu.Lock()
	defer k.mu.Unlock()
	var set jose.JSONWebKeySet
	for _, key := range k.all {
		set.Keys = append(set.Keys, key.Public())
	}
	return set
}

func readKey(file string) (jose.JSONWebKey, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return jose.JSONWebKey{}, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return jose.JSONWebKey{}, fmt.Errorf("%s: no PEM in it", file)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return jose.JSONWebKey{}, fmt.Errorf("%s: %w", file, err)
	}
	private, ok := parsed.(*rsa.PrivateKey)
	if !ok {
		return jose.JSONWebKey{}, fmt.Errorf("%s: %T, want an RSA key", file, parsed)
	}
	return newKey(private)
}

// newKey names the key as Kubernetes does: by the SHA-256 of its public half.
func newKey(private *rsa.PrivateKey) (jose.JSONWebKey, error) {
	der, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	if err != nil {
		return jose.JSONWebKey{}, err
	}
	hash := crypto.SHA256.New()
	hash.Write(der)
	return jose.JSONWebKey{
		Key: private, KeyID: base64.RawURLEncoding.EncodeToString(hash.Sum(nil)), Algorithm: string(jose.RS256), Use: "sig",
	}, nil
}
