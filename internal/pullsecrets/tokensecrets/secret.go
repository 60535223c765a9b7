package tokensecrets

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// Label has the value Enabled on namespaces and ServiceAccounts that have opted in. It is a
	// label, not an annotation, so that admission policies can select by it.
	Label   = "pullpass.dev/pull-secrets"
	Enabled = "enabled"

	// The name of a Secret is NamePrefix and the name of its ServiceAccount.
	NamePrefix = "pullpass-pull-"

	managerLabel = "app.kubernetes.io/managed-by"
	manager      = "pullpass-pull-secrets" // also the field manager

	// These are for people. The controller does not read them: it knows the tokens from its memory.
	issuedAnnotation = "pullpass.dev/token-issued"  // RFC 3339
	expiryAnnotation = "pullpass.dev/token-expires" // likewise
	keyAnnotation    = "pullpass.dev/token-key"     // kid of the key that signed it

	lifetime = time.Hour // of a token
	// username is not trusted, but must not be empty: containerd drops a credential without a
	// username and pulls anonymously.
	username = "serviceaccount"

	// maxSkew is the largest accepted lead of the API server's clock.
	maxSkew = time.Minute

	maxNameBytes = 253 // of a Secret (RFC 1123 subdomain)
)

// account is a ServiceAccount that has opted in.
type account struct {
	namespace, name string
	uid             types.UID
}

func (a account) secretName() string { return NamePrefix + a.name }

// owner makes the garbage collector delete the Secret together with the ServiceAccount. Names are
// reused, so the UID identifies the ServiceAccount.
func (a account) owner() metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "ServiceAccount", Name: a.name, UID: a.uid}
}

// settings are common to all Secrets.
type settings struct {
	audience   string
	registries []string // hosts as in the names of images; sorted, without duplicates
}

func newSettings(audience string, registries []string) (settings, error) {
	s := settings{audience: audience, registries: slices.Clone(registries)}
	slices.Sort(s.registries)
	s.registries = slices.Compact(s.registries) // with duplicates, it would never equal the stored content
	if audience == "" {
		return settings{}, errors.New("the audience is missing: write that of clusters[].pullSecrets")
	}
	if len(registries) == 0 || slices.Contains(registries, "") {
		return settings{}, errors.New("the registries are missing: write their hosts as in the names of images")
	}
	return s, nil
}

// content changes with the settings. When it changes, all tokens are renewed.
func (s settings) content() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q", s.audience, s.registries))
	return hex.EncodeToString(sum[:8])
}

// token is a token from the API server with its own claims. It is not verified, so it must come
// directly from the API server.
type token struct {
	raw             string
	keyID           string
	issued, expires time.Time
}

// readToken accepts only a token for exactly this ServiceAccount and this Secret. Any other token
// would be disclosed to the readers of the Secret.
func readToken(raw string, a account, secret types.UID, audience string) (token, error) {
	var header struct {
		KeyID string `json:"kid"`
	}
	type object struct{ Name, UID string }
	var claims struct {
		Audience   []string `json:"aud"`
		IssuedAt   int64    `json:"iat"`
		Expiry     int64    `json:"exp"`
		Kubernetes struct {
			Namespace      string
			ServiceAccount object
			Secret         object
		} `json:"kubernetes.io"`
	}
	parts := strings.Split(raw, ".")
	if len(parts) != 3 {
		return token{}, errors.New("the API server sent no token")
	}
	for i, into := range []any{&header, &claims} {
		text, err := base64.RawURLEncoding.DecodeString(parts[i])
		if err != nil || json.Unmarshal(text, into) != nil {
			return token{}, errors.New("the API server sent a token that cannot be read")
		}
	}
	k := &claims.Kubernetes
	switch {
	case !slices.Equal(claims.Audience, []string{audience}):
		return token{}, errors.New("the API server sent a token for another audience")
	case k.Namespace != a.namespace || k.ServiceAccount != object{a.name, string(a.uid)}:
		return token{}, errors.New("the API server sent a token of another ServiceAccount")
	case k.Secret != object{a.secretName(), string(secret)}:
		return token{}, errors.New("the API server sent a token that is not bound to the Secret")
	}
	t := token{raw: raw, keyID: header.KeyID, issued: time.Unix(claims.IssuedAt, 0).UTC(), expires: time.Unix(claims.Expiry, 0).UTC()}
	if !t.expires.After(t.issued) || header.KeyID == "" {
		return token{}, errors.New("the API server sent a token without end or key")
	}
	return t, nil
}

// IsOfController reports whether a Secret is one of a Controller, by its name, label and owner.
func IsOfController(secret metav1.Object) bool {
	owners := secret.GetOwnerReferences()
	return secret.GetLabels()[managerLabel] == manager && len(owners) == 1 && owners[0].Kind == "ServiceAccount" && secret.GetName() == NamePrefix+owners[0].Name
}

func (s settings) labels() map[string]string { return map[string]string{managerLabel: manager} }

// empty returns the Secret without a token. It must exist first, because the token needs its UID.
func (s settings) empty(a account) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: a.secretName(), Namespace: a.namespace, Labels: s.labels(), OwnerReferences: []metav1.OwnerReference{a.owner()}},
		Type:       corev1.SecretTypeDockerConfigJson,
		Data:       map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{}}`)},
	}
}

// full returns the Secret with a token. Its UID prevents the update from recreating a deleted
// Secret or changing a recreated one.
func (s settings) full(a account, secret types.UID, t token) (*corev1.Secret, error) {
	auths := map[string]map[string]string{}
	for _, host := range s.registries {
		auths[host] = map[string]string{
			"username": username, "password": t.raw, "auth": base64.StdEncoding.EncodeToString([]byte(username + ":" + t.raw)),
		}
	}
	config, err := json.Marshal(map[string]any{"auths": auths})
	if err != nil {
		return nil, err
	}
	o := s.empty(a)
	o.UID = secret
	o.Data = map[string][]byte{corev1.DockerConfigJsonKey: config}
	o.Annotations = map[string]string{
		issuedAnnotation: t.issued.Format(time.RFC3339), expiryAnnotation: t.expires.Format(time.RFC3339),
		keyAnnotation: t.keyID,
	}
	return o, nil
}

// noted is the record of the token in a Secret.
type noted struct {
	keyID   string // empty: no token
	issued  time.Time
	expires time.Time
	version string // resourceVersion of the Secret when the token was written
}

// held is the known state of a ServiceAccount's Secret.
type held struct {
	noted
	account types.UID
	uid     types.UID // empty: no Secret
	seen    time.Time // when the API server confirmed it
}

var (
	// errForeign means that others own the Secret of this name. The controller never changes it.
	errForeign = errors.New("a Secret of this name is there that is not this controller's")
	// errLongName means that no Secret can have the name.
	errLongName = fmt.Errorf("the name of the ServiceAccount is longer than %d characters, which leaves none for that of a Secret", maxNameBytes-len(NamePrefix))
	// errStale means that the Secret belongs to a deleted ServiceAccount of the same name. The
	// garbage collector is about to delete the Secret.
	errStale = errors.New("the Secret of a ServiceAccount that had this name before is still there")
)

// renewAt returns the time at which 55 to 65 % of the token's lifetime are over. The UID of the
// ServiceAccount selects the point, so that tokens issued together are not renewed together, not
// even after a restart.
func (h held) renewAt() time.Time {
	digest := fnv.New32a()
	_, _ = digest.Write([]byte(h.account))
	part := 0.55 + 0.1*float64(digest.Sum32()%1000)/1000
	return h.issued.Add(time.Duration(part * float64(h.expires.Sub(h.issued))))
}
