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
	// Label has the value Enabled on namespaces and ServiceAccounts that have opted in.
	// It is a label, and no annotation, so that admission policies can select by it.
	Label   = "pullpass.dev/pull-secrets"
	Enabled = "enabled"

	// NamePrefix and the name of a ServiceAccount are the name of its Secret.
	NamePrefix = "pullpass-pull-"

	managerLabel = "app.kubernetes.io/managed-by"
	manager      = "pullpass-pull-secrets" // the field manager, too

	issuedAnnotation  = "pullpass.dev/token-issued"  // RFC 3339
	expiryAnnotation  = "pullpass.dev/token-expires" // likewise
	keyAnnotation     = "pullpass.dev/token-key"     // kid of the key that signed it
	contentAnnotation = "pullpass.dev/content"       // of what the Secret is for: see settings.content

	lifetime = time.Hour // of a token
	// username is believed in nothing, but must not be empty: containerd drops a
	// credential without a username and pulls anonymously.
	username = "serviceaccount"

	// maxSkew is by how much the clock of the API server may be ahead.
	maxSkew = time.Minute

	maxNameBytes = 253 // of a Secret (RFC 1123 subdomain)
)

// account is a ServiceAccount that has opted in.
type account struct {
	namespace, name string
	uid             types.UID
}

func (a account) secretName() string { return NamePrefix + a.name }

// owner lets the garbage collector delete the Secret with the ServiceAccount. Names are
// reused, so it is the UID that makes a Secret this ServiceAccount's.
func (a account) owner() metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "ServiceAccount", Name: a.name, UID: a.uid}
}

// settings are what all Secrets have in common.
type settings struct {
	audience   string
	registries []string // hosts as in the names of images; sorted, without duplicates
}

func newSettings(audience string, registries []string) (settings, error) {
	s := settings{audience: audience, registries: slices.Clone(registries)}
	slices.Sort(s.registries)
	s.registries = slices.Compact(s.registries) // one twice would never be equal to what was written
	if audience == "" {
		return settings{}, errors.New("the audience is missing: write that of clusters[].pullSecrets")
	}
	if len(registries) == 0 || slices.Contains(registries, "") {
		return settings{}, errors.New("the registries are missing: write their hosts as in the names of images")
	}
	return s, nil
}

// content changes with the settings, and has the tokens made again.
func (s settings) content() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q", s.audience, s.registries))
	return hex.EncodeToString(sum[:8])
}

// token is one of the API server, with what it says of itself. Only what was asked of the
// API server itself is read so: nothing is verified.
type token struct {
	raw             string
	keyID           string
	issued, expires time.Time
}

// readToken refuses what is not for exactly this ServiceAccount and this Secret: it would
// be written where its readers are.
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

func (s settings) labels() map[string]string { return map[string]string{managerLabel: manager} }

// empty is the Secret before there is a token, which needs its UID.
func (s settings) empty(a account) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: a.secretName(), Namespace: a.namespace, Labels: s.labels(), OwnerReferences: []metav1.OwnerReference{a.owner()}},
		Type:       corev1.SecretTypeDockerConfigJson,
		Data:       map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{}}`)},
	}
}

// applied is what server-side apply is given. With the UID it changes this Secret or none:
// one that was deleted is not made again, nor another one changed.
func (s settings) applied(a account, secret types.UID, t token) ([]byte, error) {
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
	o.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}
	o.UID = secret
	o.Data = map[string][]byte{corev1.DockerConfigJsonKey: config}
	o.Annotations = map[string]string{
		issuedAnnotation: t.issued.Format(time.RFC3339), expiryAnnotation: t.expires.Format(time.RFC3339),
		keyAnnotation: t.keyID, contentAnnotation: s.content(),
	}
	return json.Marshal(o)
}

// held is what is known of the Secret of a ServiceAccount.
type held struct {
	account types.UID
	uid     types.UID // empty: there is none
	keyID   string    // empty: it has no token yet
	content string
	issued  time.Time
	expires time.Time
	seen    time.Time // when the API server said so
}

var (
	// errForeign is a Secret of the name that is somebody else's. It is never touched.
	errForeign = errors.New("a Secret of this name is there that is not this controller's")
	// errStale is one of a ServiceAccount that had the name before: the garbage
	// collector is about to delete it.
	errStale = errors.New("the Secret of a ServiceAccount that had this name before is still there")
)

// heldBy reads the metadata of a Secret.
func heldBy(a account, m metav1.Object, now time.Time) (held, error) {
	owners := m.GetOwnerReferences()
	if m.GetLabels()[managerLabel] != manager || len(owners) != 1 || owners[0].Kind != "ServiceAccount" || owners[0].APIVersion != "v1" || owners[0].Name != a.name {
		return held{}, errForeign
	}
	if owners[0].UID != a.uid || m.GetDeletionTimestamp() != nil {
		return held{}, errStale
	}
	h := held{account: a.uid, uid: m.GetUID(), seen: now}
	annotations := m.GetAnnotations()
	issued, issuedErr := time.Parse(time.RFC3339, annotations[issuedAnnotation])
	expires, expiresErr := time.Parse(time.RFC3339, annotations[expiryAnnotation])
	// Who may change the Secret may write anything there: an end in the far future must not
	// stop the renewals.
	if issuedErr == nil && expiresErr == nil && !issued.After(now.Add(maxSkew)) && expires.Sub(issued) <= 2*lifetime {
		h.issued, h.expires, h.keyID, h.content = issued, expires, annotations[keyAnnotation], annotations[contentAnnotation]
	}
	return h, nil
}

// renewAt is when 55 to 65 % of the token's life are over, by the ServiceAccount's UID: those
// that were made together are not renewed together, also after a restart.
func (h held) renewAt() time.Time {
	digest := fnv.New32a()
	_, _ = digest.Write([]byte(h.account))
	part := 0.55 + 0.1*float64(digest.Sum32()%1000)/1000
	return h.issued.Add(time.Duration(part * float64(h.expires.Sub(h.issued))))
}
