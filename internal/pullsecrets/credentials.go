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

// legacyIssuer is the claim iss of every token that Kubernetes stores in a Secret.
const legacyIssuer = "kubernetes/serviceaccount"

// maxCredentialBytes is the API server's limit for the sum of the values of one Secret
// (MaxSecretSize).
const maxCredentialBytes = 1 << 20

// credentials holds all the facts that are kept about a pull Secret. Its hosts are strings of the
// caller. Its tokens must not be shown before they are compared with names of Secrets that an API
// server listed.
type credentials struct {
	hosts  []string
	others bool  // it also has entries for other registries
	legacy bool  // a password for hosts is a legacy token
	tokens []Key // the Secrets that the passwords claim to be tokens of, for any registry
	broken bool  // the kubelet cannot read it either
}

// parseCredentials reads a pull Secret as the kubelet does (secrets.go of
// k8s.io/kubernetes/pkg/credentialprovider), and is as lax. It returns no error, because errors of
// encoding/json can quote their input.
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
		return nil // the kubelet skips it
	case len(data) > maxCredentialBytes:
		return errBroken
	}
	return json.Unmarshal(data, into)
}

// errBroken replaces all decoding errors.
var errBroken = errors.New("is no Docker configuration")

// entry holds the facts that are kept about the credentials for one registry. The user name and the
// password do not outlive UnmarshalJSON.
type entry struct {
	legacy bool
	token  Key
}

// UnmarshalJSON fails for the same input as the kubelet's DockerConfigEntry.
func (e *entry) UnmarshalJSON(data []byte) error {
	var written struct {
		Password string `json:"password"`
		Username string `json:"username"` // a wrong type is an error
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

// legacyToken recognizes a ServiceAccount token from a Secret by its claims. It verifies nothing:
// the author of the Secret could have written any claims.
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

// isFor reports whether the kubelet uses an entry for images of a host. An entry for some of the
// images is enough: the path in the key is ignored.
func isFor(key, host string) bool {
	if !strings.HasPrefix(key, "https://") && !strings.HasPrefix(key, "http://") {
		key = "https://" + key
	}
	u, err := url.Parse(key)
	if err != nil {
		return false // the kubelet skips it
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
