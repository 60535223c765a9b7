package secrets

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Variable names the directory in which the tests' helpers note the credentials of a run, and copy the output of programs.
// "make secrets" sets it. internal/test/testkit writes the same files for unit tests.
const Variable = "PULLPASS_CAPTURE"

// A credential is a line of this file in the directory.
type credential struct {
	Kind  string `json:"kind"`
	Value []byte `json:"value"`
}

const (
	credentialsFile = "credentials"
	seenDir         = "seen" // what programs wrote
)

// Note notes credentials of a kind. It may be called from several goroutines.
func Note(kind string, values ...string) {
	for _, value := range values {
		if !Captures() || value == "" {
			continue
		}
		line, err := json.Marshal(credential{kind, []byte(value)})
		if err != nil {
			panic(err)
		}
		file, err := os.OpenFile(filepath.Join(os.Getenv(Variable), credentialsFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			panic(err) // a run that notes nothing would find nothing
		}
		if _, err := file.Write(append(line, '\n')); err != nil {
			panic(err)
		}
		file.Close()
	}
}

// NoteKey notes the secret numbers of a private key: the rest of its file is public.
func NoteKey(key crypto.PrivateKey) {
	switch key := key.(type) {
	case *ecdsa.PrivateKey:
		if scalar, err := key.Bytes(); err == nil {
			Note("ECDSA key", string(scalar))
		}
	case ed25519.PrivateKey:
		Note("Ed25519 key", string(key.Seed()))
	case *rsa.PrivateKey:
		Note("RSA key", string(key.D.Bytes()), string(key.Primes[0].Bytes()), string(key.Primes[1].Bytes()))
	}
}

// Captures reports whether this run is captured.
func Captures() bool { return os.Getenv(Variable) != "" }

// SeenFiles copies the small files below a directory of a node that Pullpass wrote, or that configure its plugin.
func SeenFiles(dir string) {
	if !Captures() {
		return
	}
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch inside := strings.TrimPrefix(path, dir); {
		case err != nil || strings.HasPrefix(inside, "/proc") || strings.HasPrefix(inside, "/sys"):
			return fs.SkipDir
		case strings.HasSuffix(inside, "/kubelet/pods"):
			return fs.SkipDir // volumes of pods, with their tokens
		case !entry.Type().IsRegular() || !productFile.MatchString(inside):
			return nil
		}
		if content, err := os.ReadFile(path); err == nil && len(content) < 1<<20 {
			fmt.Fprintf(Seen("file"), "%s\n%s", path, content)
		}
		return nil
	})
}

var productFile = regexp.MustCompile(`pullpass|certs\.d|credential-provider.*\.(ya?ml|json)$|/log/pods/`)

// Seen returns a new file for the output of a program. The file is closed when nothing refers to it any longer.
func Seen(name string) io.Writer {
	if !Captures() {
		return io.Discard
	}
	file, err := os.CreateTemp(filepath.Join(os.Getenv(Variable), seenDir), strings.ReplaceAll(name, "/", "_")+"-*")
	if err != nil {
		panic(err)
	}
	return file
}
