package testkit

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// capture is the directory that "make secrets" searches: e2e/secrets says what is in it. Otherwise it is empty.
func capture() string { return os.Getenv("PULLPASS_CAPTURE") }

// Note notes a credential that nothing may write.
func Note(tb testing.TB, kind, value string) {
	tb.Helper()
	if capture() == "" {
		return
	}
	line, err := json.Marshal(map[string]any{"kind": kind, "value": []byte(value)})
	Must(tb, err)
	file, err := os.OpenFile(filepath.Join(capture(), "credentials"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	Must(tb, err)
	_, err = file.Write(append(line, '\n'))
	Must(tb, err)
	Must(tb, file.Close())
}

// NoteKey notes the secret numbers of a private key, and returns it.
func NoteKey[K crypto.Signer](tb testing.TB, key K) K {
	tb.Helper()
	switch key := any(key).(type) {
	case *ecdsa.PrivateKey:
		scalar, err := key.Bytes()
		Must(tb, err)
		Note(tb, "ECDSA key", string(scalar))
	case ed25519.PrivateKey:
		Note(tb, "Ed25519 key", string(key.Seed()))
	case *rsa.PrivateKey:
		Note(tb, "RSA key", string(key.D.Bytes()))
	}
	return key
}

// Seen returns a new file, which "make secrets" searches, for output of the service.
func Seen() io.Writer {
	if capture() == "" {
		return io.Discard
	}
	file, err := os.CreateTemp(filepath.Join(capture(), "seen"), filepath.Base(os.Args[0])+"-*")
	if err != nil {
		panic(err)
	}
	return file // closed when nothing refers to it
}
