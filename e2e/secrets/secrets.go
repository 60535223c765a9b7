// Package secrets looks for credentials in what programs wrote or sent.
//
// "make secrets" captures a run for it. The helpers of the tests note each credential and key that they make or receive. They keep
// the output of programs, OTLP requests, answers of Pullpass, its admin pages, objects of clusters, and files that Pullpass wrote.
//
// They do not keep where a credential belongs: a token response, the plugin's answer to the kubelet, Secrets, key files, volumes
// of pods.
package secrets

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
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
		for piece := range pieces(credential) {
			if bytes.Contains(data, []byte(piece)) {
				return piece
			}
		}
	}
	return ""
}

// publicPrefix begins each push credential, and is public.
const publicPrefix = "pullpass-push."

// pieces yields those of all forms of a credential.
func pieces(credential string) func(yield func(string) bool) {
	credential = strings.TrimPrefix(credential, publicPrefix)
	return func(yield func(string) bool) {
		for _, form := range forms(credential) {
			for i := 0; i+pieceLength <= len(form); i += pieceStep {
				if !yield(form[i : i+pieceLength]) {
					return
				}
			}
		}
	}
}

// forms are the encodings of a credential: the bytes before it decide which of three base64 texts it becomes.
func forms(credential string) []string {
	quoted, _ := json.Marshal(credential) // no string fails
	all := []string{credential, hex.EncodeToString([]byte(credential)), url.QueryEscape(credential), url.PathEscape(credential), strings.Trim(string(quoted), `"`)}
	for skipped := range 3 {
		for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			all = append(all, encoding.EncodeToString([]byte(credential[min(skipped, len(credential)):])))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
