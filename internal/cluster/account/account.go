// Package account gives Pullpass an account in another cluster: a ServiceAccount with the rights of
// deploy/kubernetes/rbac.yaml, whose token renews itself, or the same rights for a user that the
// cluster knows from elsewhere. It knows nothing of Pullpass's configuration.
package account

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/cluster/clients"
)

const (
	// Name is that of the ServiceAccount, in Namespace.
	Name      = "pullpass-remote"
	Namespace = "pullpass"
	// Lifetime is that of a token, if the API server does not shorten it. It outlives a weekend in
	// which the renewal fails.
	Lifetime = 72 * time.Hour

	userAgent      = "pullpass-account"
	requestTimeout = 10 * time.Second
	maxDocument    = 1 << 20 // in bytes
)

//go:embed role.yaml
var role []byte

//go:embed account.yaml
var ofAccount []byte

//go:embed user.yaml
var ofUser string

// resources are those of the kinds in the embedded files.
var resources = map[string]string{
	"Namespace": "namespaces", "ServiceAccount": "serviceaccounts", "ClusterRole": "clusterroles",
	"ClusterRoleBinding": "clusterrolebindings", "Role": "roles", "RoleBinding": "rolebindings",
}

// Cluster is a connection to a cluster, of its administrator or of the account itself.
type Cluster struct {
	connection *rest.Config
	clients    *clients.Clients
}

// New does not use the network.
func New(connection *rest.Config) (*Cluster, error) {
	shared, err := clients.New(clients.Config{REST: connection, UserAgent: userAgent, Timeout: requestTimeout})
	return &Cluster{connection, shared}, err
}

// Apply makes the account, or restores it. user is the name of a user that has the rights instead
// of a ServiceAccount, or empty. A field that someone else has changed is an error.
func (c *Cluster) Apply(ctx context.Context, user string) error {
	objects, err := parse(role)
	if err != nil {
		return err
	}
	more := ofAccount
	if user != "" {
		name, err := json.Marshal(user)
		if err != nil {
			return err
		}
		hash := sha256.Sum256([]byte(user)) // others can have rights there, too
		more = []byte(strings.NewReplacer("USER", string(name), "HASH", hex.EncodeToString(hash[:4])).Replace(ofUser))
	}
	rest, err := parse(more)
	if err != nil {
		return err
	}
	client, err := c.clients.Dynamic()
	if err != nil {
		return err
	}
	for _, o := range append(objects, rest...) {
		version := o.GroupVersionKind().GroupVersion()
		resource := client.Resource(version.WithResource(resources[o.GetKind()])).Namespace(o.GetNamespace())
		if _, err := resource.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: userAgent}); err != nil {
			return fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

func parse(data []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for decoder := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var o map[string]any
		switch err := decoder.Decode(&o); {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, err
		}
		objects = append(objects, &unstructured.Unstructured{Object: o})
	}
}

// Token is a token of the account.
type Token struct {
	Expires time.Time
	raw     string
}

// Reveal returns the token itself.
func (t Token) Reveal() string { return t.raw }

// String does not print the token.
func (t Token) String() string { return "[token]" }

// GoString does not print the token.
func (t Token) GoString() string { return t.String() }

// Token requests a token of the account.
func (c *Cluster) Token(ctx context.Context) (Token, error) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.ServiceAccount{})
	scheme.AddKnownTypes(authenticationv1.SchemeGroupVersion, &authenticationv1.TokenRequest{})
	core, err := c.clients.Schemed(corev1.SchemeGroupVersion, runtime.ContentTypeJSON, scheme)
	if err != nil {
		return Token{}, err
	}
	seconds := int64(Lifetime.Seconds())
	request := &authenticationv1.TokenRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: authenticationv1.SchemeGroupVersion.String(), Kind: "TokenRequest"},
		Spec:     authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds},
	}
	var issued authenticationv1.TokenRequest
	err = core.Post().Namespace(Namespace).Resource("serviceaccounts").Name(Name).SubResource("token").Body(request).Do(ctx).Into(&issued)
	if err == nil && issued.Status.Token == "" {
		err = errors.New("the API server issued no token")
	}
	return Token{issued.Status.ExpirationTimestamp.Time, issued.Status.Token}, err
}

// Issuer returns the issuer of the cluster's tokens.
func (c *Cluster) Issuer(ctx context.Context) (string, error) {
	core, err := c.clients.Typed(schema.GroupVersion{Version: "v1"}, runtime.ContentTypeJSON)
	if err != nil {
		return "", err
	}
	data, err := core.Get().AbsPath("/.well-known/openid-configuration").SetHeader("Accept", "*/*").DoRaw(ctx)
	if err != nil {
		return "", err
	}
	var document struct {
		Issuer string `json:"issuer"`
	}
	if len(data) > maxDocument || json.Unmarshal(data, &document) != nil || document.Issuer == "" {
		return "", errors.New("/.well-known/openid-configuration names no issuer")
	}
	return document.Issuer, nil
}
