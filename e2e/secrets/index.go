package secrets

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
)

// Index finds all pieces of many credentials in one pass. A filter of one bit a piece keeps most bytes away from the map.
type Index struct {
	kinds  []string         // of the credentials, by their numbers
	pieces map[uint64]int32 // hash of a piece: number of the first credential with it
	filter []uint64
}

// Finding is a place where a credential is.
type Finding struct {
	File       string
	Offset     int
	Credential int // its number; negative: no test noted it
	Kind       string
}

func (f Finding) String() string {
	return fmt.Sprintf("%s: offset %d: credential %d (%s)", f.File, f.Offset, f.Credential, f.Kind)
}

const filterBits = 28

func newIndex() *Index {
	return &Index{pieces: map[uint64]int32{}, filter: make([]uint64, 1<<(filterBits-6))}
}

// ReadIndex reads the credentials of a captured run.
func ReadIndex(dir string) (*Index, error) {
	file, err := os.Open(filepath.Join(dir, credentialsFile))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	x, again := newIndex(), map[string]bool{}
	for lines := json.NewDecoder(file); ; {
		var c credential
		if err := lines.Decode(&c); errors.Is(err, io.EOF) {
			return x, nil
		} else if err != nil {
			return nil, err
		}
		if value := string(c.Value); !again[value] {
			again[value] = true
			x.add(c.Kind, value)
		}
	}
}

// Credentials returns how many there are of each kind.
func (x *Index) Credentials() map[string]int {
	counts := map[string]int{}
	for _, kind := range x.kinds {
		counts[kind]++
	}
	return counts
}

func (x *Index) add(kind, value string) {
	number := int32(len(x.kinds))
	x.kinds = append(x.kinds, kind)
	for piece := range pieces(value) {
		h := hash([]byte(piece))
		if _, known := x.pieces[h]; !known {
			x.pieces[h] = number
			x.filter[h>>(70-filterBits)] |= 1 << (h >> (64 - filterBits) & 63)
		}
	}
}

// hash is of the first 12 bytes. Not equal pieces with equal hashes do not come by chance.
func hash(b []byte) uint64 {
	h := (binary.LittleEndian.Uint64(b) ^ uint64(binary.LittleEndian.Uint32(b[8:]))*0x9e3779b97f4a7c15) * 0xd6e8feb86659fd93
	h ^= h >> 32
	return h * 0xd6e8feb86659fd93
}

// credentialForms are credentials even if no test noted them. The mark is in each form, and is faster to look for.
var credentialForms = []struct {
	kind, mark string
	form       *regexp.Regexp
}{
	{"signed token", ".eyJ", regexp.MustCompile(`eyJ[A-Za-z0-9_-]{16,}\.eyJ[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{40,}`)},
	{"private key", "PRIVATE KEY-----", regexp.MustCompile(`PRIVATE KEY-----(\\n|\s)+[A-Za-z0-9+/]{40}`)},
}

// allowed are places that the search does not see.
var allowed = []struct{ reason, mark, form string }{
	{"a certificate is public, and its names are in tokens as well, likewise in base64", "BEGIN CERTIFICATE", `-----BEGIN CERTIFICATE-----[^-]*`},
	{"the state of an upload at a registry has names in base64 likewise", "_state=", `_state=[A-Za-z0-9_=%-]*`},
	{"the answer of docker-credential-pullpass to its client, in the logs of its own tests", `"ServerURL":`, `\{"ServerURL":"[^"]*","Username":"[^"]*","Secret":"[^"]*"`},
}

// Search returns the first place of each credential in the data. It overwrites the data.
func (x *Index) Search(name string, data []byte) (findings []Finding) {
	for _, a := range allowed {
		if bytes.Contains(data, []byte(a.mark)) {
			for _, place := range regexp.MustCompile(a.form).FindAllIndex(data, -1) {
				copy(data[place[0]:place[1]], bytes.Repeat([]byte{' '}, place[1]-place[0]))
			}
		}
	}
	found := map[int32]bool{}
	for at := 0; at+pieceLength <= len(data); at++ {
		h := hash(data[at:])
		if x.filter[h>>(70-filterBits)]&(1<<(h>>(64-filterBits)&63)) == 0 {
			continue
		}
		if number, is := x.pieces[h]; is && !found[number] {
			found[number] = true
			findings = append(findings, Finding{name, at, int(number), x.kinds[number]})
		}
	}
	for _, c := range credentialForms {
		if bytes.Contains(data, []byte(c.mark)) {
			for _, place := range c.form.FindAllIndex(data, -1) {
				findings = append(findings, Finding{name, place[0], -1, c.kind})
			}
		}
	}
	return findings
}

// SearchRun searches all that programs wrote in a captured run. It returns how many files and bytes that is.
func (x *Index) SearchRun(dir string) (findings []Finding, files, size int, err error) {
	err = filepath.WalkDir(filepath.Join(dir, seenDir), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files, size = files+1, size+len(data)
		findings = append(findings, x.Search(path, data)...)
		return nil
	})
	return findings, files, size, err
}
