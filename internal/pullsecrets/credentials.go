package pullsecrets

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net"
	"net/url"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// legacyIssuer is the iss of every token that Kubernetes keeps in a Secret.
const legacyIssuer = "kubernetes/serviceaccount"

// maxCredentialBytes is what an API server allows the values of one Secret to
// have together (MaxSecretSize).
const maxCredentialBytes = 1 << 20

// credentials is all that is remembered of what a pull Secret holds. Its hosts
// are strings of the caller's, and its tokens must be compared with names of
// Secrets that an API server listed before they are shown.
type credentials struct {
	hosts  []string
	others bool  // it has entries for other registries, too
	legacy bool  // a password for hosts is a legacy token
	tokens []Key // of the Secrets whose tokens passwords claim to be, for any registry
	broken bool  // the kubelet cannot read it either
}

// parseCredentials reads a pull Secret as the kubelet does (secrets.go of
// k8s.io/kubernetes/pkg/credentialprovider): also what is lax about it. It
// returns no error: those of encoding/json can quote what they were given.
func parseCredentials(secret *corev1.Secret, hosts []string) credentials {
	var entries map[string]entry
	var data []byte
	var err error
	switch secret.Type {
	case corev1.SecretTypeDockerConfigJson:
		var file struct {
			Auths map[string]entry `json:"auths"`
		}
		data = secret.Data[corev1.DockerConfigJsonKey]
		err = unmarshal(data, &file)
		entries = file.Auths
	case corev1.SecretTypeDockercfg:
		data = secret.Data[corev1.DockerConfigKey]
		err = unmarshal(data, &entries)
	}
	if err != nil {
		return credentials{broken: true}
	}
	var found credentials
	ours := map[string]bool{}
	for key, e := range entries {
		matched := false
		for _, host := range hosts {
			if isFor(key, host) {
				matched, ours[host] = true, true
			}
		}
		found.others = found.others || !matched
		if e.legacy {
			found.legacy = found.legacy || matched
			found.tokens = append(found.tokens, e.token)
		}
	}
	for _, host := range hosts { // in the caller's order
		if ours[host] {
			found.hosts = append(found.hosts, host)
		}
	}
	return found
}

func unmarshal(data []byte, into any) error {
	switch {
	case len(data) == 0:
		return nil // the kubelet passes over it
	case len(data) > maxCredentialBytes:
		return errBroken
	}
	return json.Unmarshal(data, into)
}

// errBroken stands for all errors of decoding.
var errBroken = errors.New("is no Docker configuration")

// entry is what is kept of the credentials for one registry. User name and
// password live as long as UnmarshalJSON.
type entry struct {
	legacy bool
	token  Key
}

// UnmarshalJSON fails where the kubelet's DockerConfigEntry does.
func (e *entry) UnmarshalJSON(data []byte) error {
	var written struct {
		Password string `json:"password"`
		Username string `json:"username"` // of the wrong type, it is a fault
		Email    string `json:"email"`    // likewise
		Auth     string `json:"auth"`
	}
	if json.Unmarshal(data, &written) != nil {
		return errBroken
	}
	password := written.Password
	if written.Auth != "" {
		encoding := base64.RawStdEncoding
		if strings.HasSuffix(strings.TrimSpace(written.Auth), "=") {
			encoding = base64.StdEncoding
		}
		decoded, err := encoding.DecodeString(written.Auth)
		if err != nil {
			return errBroken
		}
		var pair bool
		if _, password, pair = strings.Cut(string(decoded), ":"); !pair {
			return errBroken
		}
	}
	e.token, e.legacy = legacyToken(password)
	return nil
}

// legacyToken recognises a token of a Secret by its claims. Nothing is verified:
// whoever wrote the Secret could have written anything.
func legacyToken(password string) (secret Key, legacy bool) {
	parts := strings.Split(password, ".")
	if len(parts) != 3 {
		return Key{}, false
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return Key{}, false
	}
	var claims struct {
		Issuer    string `json:"iss"`
		Namespace string `json:"kubernetes.io/serviceaccount/namespace"`
		Secret    string `json:"kubernetes.io/serviceaccount/secret.name"`
	}
	if json.Unmarshal(payload, &claims) != nil || claims.Issuer != legacyIssuer {
		return Key{}, false
	}
	return Key{claims.Namespace, claims.Secret}, true
}

// isFor tells whether the kubelet uses an entry for images of a host, or for
// some of them: a path in the key does not count here.
func isFor(key, host string) bool {
	if !strings.HasPrefix(key, "https://") && !strings.HasPrefix(key, "http://") {
		key = "https://" + key
	}
	u, err := url.Parse(key)
	if err != nil {
		return false // the kubelet passes over it
	}
	pattern, patternPort := splitPort(u.Host)
	name, port := splitPort(host)
	globs, labels := strings.Split(pattern, "."), strings.Split(name, ".")
	if patternPort != port || len(globs) != len(labels) {
		return false
	}
	for i, glob := range globs {
		if matched, _ := path.Match(glob, labels[i]); !matched {
			return false
		}
	}
	return true
}

func splitPort(host string) (name, port string) {
	if name, port, err := net.SplitHostPort(host); err == nil {
		return name, port
	}
	return host, ""
}
