package pullpass

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/pullpass/pullpass/e2e/secrets"
)

// capture notes the keys that Pullpass made, and keeps what it says of itself, if it still runs.
func (p *Proxy) capture(signing Signing) {
	if p.answers == io.Discard {
		return
	}
	for _, path := range []string{"/metrics", "/readyz", "/console/", "/console/rows.json", "/console/health", "/console/who", "/console/reach"} {
		_, content, _ := p.askAdmin(context.Background(), path)
		_, _ = p.answers.Write(content) // a run whose disk is full fails elsewhere
	}
	_ = filepath.WalkDir(signing.ManagedDir, func(path string, _ fs.DirEntry, _ error) error {
		content, _ := os.ReadFile(path)
		keys := 0
		text := strings.NewReplacer(`\n`, "\n", `"`, "\n").Replace(string(content)) // PEM in JSON
		for block, rest := pem.Decode([]byte(text)); block != nil; block, rest = pem.Decode(rest) {
			if key, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
				secrets.NoteKey(key)
				keys++
			}
		}
		if keys == 0 { // else it is where the key is kept
			_, _ = p.answers.Write(content)
		}
		return nil
	})
}
