// Package hoststoml judges the file that makes containerd ask a gateway for the images of a
// registry. With this file, the credential for the registry goes only to the gateway. Without it,
// the credential goes to the registry. The same happens if containerd cannot read the file or reads
// it differently. The package only reads files and does not handle credentials.
package hoststoml

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pullpass/pullpass/internal/base/file"
)

// DefaultDir is the config_path in containerd's own documentation.
const DefaultDir = "/etc/containerd/certs.d"

const (
	maxBytes = 64 << 10
	host     = "[host]" // without it, containerd 1 does not read the file
)

// The errors quote nothing from the file: their readers may not have the right to read the file.
var (
	ErrMissing    = errors.New("is not there")
	ErrUnreadable = errors.New("cannot be read")
	ErrServer     = errors.New("does not have the gateway as its server")
	ErrOverride   = errors.New("does not have override_path = true")
	ErrHost       = errors.New("does not have an empty table [host] at its end")
	ErrForm       = errors.New("has more than server, override_path, ca, client, capabilities and pass_upstream_credentials, each once and on a line of its own, and [host]")
)

// Server returns the URL that containerd must ask for the images of a registry.
func Server(gateway, registry string) string { return gateway + "/v2/" + registry }

// AnyRegistry is the directory that containerd reads for registries without one.
const AnyRegistry = "_default"

// Directories returns the names of a registry's directories in config_path. containerd reads the first one
// that exists: it prefers HOST_PORT_ to HOST:PORT.
func Directories(registry string) []string {
	names := []string{registry}
	if i := strings.LastIndexByte(registry, ':'); i > 0 {
		names = []string{registry[:i] + "_" + registry[i+1:] + "_", registry}
	}
	return names
}

// Path returns the file that containerd reads for a registry, below a directory in its config_path.
func Path(dir, registry string) string {
	if names := Directories(registry); len(names) > 1 {
		preferred := filepath.Join(dir, names[0])
		if _, err := os.Stat(preferred); !errors.Is(err, fs.ErrNotExist) {
			return filepath.Join(preferred, "hosts.toml")
		}
	}
	return filepath.Join(dir, registry, "hosts.toml")
}

// Verify returns an error unless the current file makes containerd ask only the gateway for the
// images of the registry.
func Verify(dir, gateway, registry string) error {
	content, err := file.Read(Path(dir, registry), maxBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ErrMissing
	case err != nil:
		return ErrUnreadable
	}
	return VerifyContent(content, Server(gateway, registry))
}

// VerifyContent returns an error unless the content makes containerd ask only the server. It
// accepts only the form that "pullpass kubelet-config" prints. If it accepted a value that
// containerd cannot decode, containerd would ignore the whole file.
func VerifyContent(content []byte, server string) error {
	seen := map[string]bool{}
	for line := range strings.Lines(string(content)) {
		// A \r at the end of the file stays, because containerd 2 does not decode it.
		if text, isEnded := strings.CutSuffix(line, "\n"); isEnded {
			line = strings.TrimSuffix(text, "\r")
		}
		line = trim(line)
		if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f || r == utf8.RuneError }) {
			return ErrForm
		}
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, _ := strings.Cut(line, "=")
		key = trim(key)
		rest, isHost := strings.CutPrefix(line, host)
		if isHost = isHost && isComment(rest); isHost {
			key = host
		} else if seen[host] {
			return ErrHost
		}
		if seen[key] {
			return ErrForm
		}
		seen[key] = true
		if isHost {
			continue
		}
		text, rest := cutValue(trim(value))
		switch key {
		case "server":
			if text != `"`+server+`"` && text != "'"+server+"'" {
				return ErrServer
			}
		case "override_path":
			if text != "true" {
				return ErrOverride
			}
		default:
			if isValue := values[key]; isValue == nil || !isValue(text) {
				return ErrForm
			}
		}
		if !isComment(rest) {
			return ErrForm
		}
	}
	switch {
	case !seen["server"]:
		return ErrServer
	case !seen["override_path"]:
		return ErrOverride
	case !seen[host]:
		return ErrHost
	}
	return nil
}

// cutValue cuts a string, a list or a word from the beginning of a line. It does not accept a value
// that continues on the next line or has an escape.
func cutValue(s string) (text, rest string) {
	end := 0
	switch {
	case s == "":
		return "", ""
	case s[0] == '"' || s[0] == '\'':
		end = 1 + strings.IndexByte(s[1:], s[0])
		if end < 2 || strings.Contains(s[:end], `\`) {
			return "", s
		}
		end++
	case s[0] == '[':
		end = strings.LastIndexByte(s, ']') + 1
		if strings.Contains(s[:end], `\`) {
			return "", s
		}
	default:
		if end = strings.IndexAny(s, " \t#"); end < 0 {
			end = len(s)
		}
	}
	return s[:end], s[end:]
}

// values are the values that containerd 1.6 to 2.4 decode and that can be recognized without a TOML
// decoder. With one wrong value, containerd ignores the whole file.
var values = map[string]func(text string) bool{
	"ca":                        func(s string) bool { return isString(s) || isStrings(s, isString) },
	"client":                    func(s string) bool { return isString(s) || isStrings(s, isString) || isStrings(s, isPair) },
	"capabilities":              func(s string) bool { return isStrings(s, isCapability) },
	"pass_upstream_credentials": func(s string) bool { return s == "true" || s == "false" },
}

func isString(s string) bool {
	return len(s) > 1 && (s[0] == '"' || s[0] == '\'') && strings.IndexByte(s[1:], s[0]) == len(s)-2
}

func isCapability(s string) bool {
	return isString(s) && slices.Contains([]string{"pull", "resolve", "push"}, strings.ToLower(s[1:len(s)-1]))
}

// isStrings reports whether s is a list of elements that satisfy such. No element may contain a
// comma.
func isStrings(s string, such func(string) bool) bool {
	inner, isOpened := strings.CutPrefix(s, "[")
	inner, isClosed := strings.CutSuffix(inner, "]")
	if !isOpened || !isClosed {
		return false
	}
	if such(trim(inner)) {
		return true
	}
	for element := range strings.SplitSeq(inner, ",") {
		if !such(trim(element)) {
			return false
		}
	}
	return true
}

// isPair reports whether s is a certificate and its key.
func isPair(s string) bool { return strings.Count(s, ",") == 1 && isStrings(s, isString) }

// trim removes the white space of TOML: spaces and tabs.
func trim(s string) string { return strings.Trim(s, " \t") }

func isComment(s string) bool {
	s = trim(s)
	return s == "" || s[0] == '#'
}
