// Package secrets looks for credentials in what programs wrote or sent.
package secrets

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
)

// Of a piece of 12 bytes, no two equal ones come by chance: "eyJ", with which a token begins, is also in random bytes of some
// kilobytes. A credential that was cut anywhere, and of which 17 bytes are left, holds a piece.
const (
	pieceLength = 12
	pieceStep   = 6
)

// Found returns a piece of a credential that is in the data, as it is or encoded, or "".
func Found(data []byte, credentials ...string) string {
	for _, credential := range credentials {
		for _, form := range forms(credential) {
			for i := 0; i+pieceLength <= len(form); i += pieceStep {
				if piece := form[i : i+pieceLength]; bytes.Contains(data, []byte(piece)) {
					return piece
				}
			}
		}
	}
	return ""
}

// forms are the encodings of a credential: the bytes before it decide which of three base64 texts it becomes.
func forms(credential string) []string {
	all := []string{credential, hex.EncodeToString([]byte(credential))}
	for skipped := range 3 {
		for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			all = append(all, encoding.EncodeToString([]byte(credential[min(skipped, len(credential)):])))
		}
	}
	return all
}
