package credential

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"
)

// FromFile reads the token of a projected serviceAccountToken volume. The
// audience must not be empty; it is the one that Pullpass expects of this
// cluster. If the file is there but cannot be read, the error is that of package
// os.
//
// The kubelet replaces the file by swapping a symbolic link, so one call sees
// one token.
func FromFile(path, audience string, now time.Time) (Credential, error) {
	if audience == "" {
		return Credential{}, errNoAudience
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Credential{}, fmt.Errorf("%s: %w; mount a projected volume there (volumes[].projected.sources[].serviceAccountToken "+
			"of the pod with audience %q, and volumeMounts[] of the container)", path, ErrMissing, audience)
	}
	if err != nil {
		return Credential{}, err
	}
	defer func() { _ = file.Close() }() // nothing was written
	content, err := io.ReadAll(io.LimitReader(file, maxTokenSize+1))
	if err != nil {
		return Credential{}, err
	}
	from := Source{
		Name:     path,
		Audience: "volumes[].projected.sources[].serviceAccountToken.audience of the pod",
		Renewal:  "the kubelet replaces it in time, unless it is a copy or mounted with subPath",
	}
	return from.credential(strings.TrimRight(string(content), "\r\n"), audience, time.Time{}, now)
}
