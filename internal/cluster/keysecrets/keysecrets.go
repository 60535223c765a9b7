// Package keysecrets keeps certificates and signing keys in Secrets: it makes those that are
// missing, with a CA each, and renews those that end within a month.
//
// A writer of these Secrets can sign tokens. Therefore it needs no right to create Secrets, only
// to read and update those that the chart has made.
package keysecrets

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/pullpass/pullpass/internal/cluster/clients"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
)

const (
	requestTimeout = 10 * time.Second

	// The keys of Secrets, as cert-manager and the type kubernetes.io/tls have them.
	certificateKey = corev1.TLSCertKey
	privateKey     = corev1.TLSPrivateKeyKey
	trustKey       = "ca.crt"

	caSuffix = "-ca"
)

// Errors of Keep. Others come from the API server.
var (
	ErrNotOurs = errors.New("was not made by this command: choose another Secret, or delete its data to have it replaced")
	errNoCA    = fmt.Errorf("its CA is missing, so it %w", ErrNotOurs)
)

// Keeper keeps the Secrets of one namespace.
type Keeper struct {
	core      rest.Interface
	namespace string
	now       func() time.Time
}

// Config is how a Keeper reaches the API server.
type Config struct {
	Connection *rest.Config
	Namespace  string
	Now        func() time.Time
}

// New does not use the network.
func New(c Config) (*Keeper, error) {
	shared, err := clients.New(clients.Config{REST: c.Connection, UserAgent: "pullpass-keys", Timeout: requestTimeout})
	if err != nil {
		return nil, err
	}
	core, err := shared.Typed(corev1.SchemeGroupVersion, runtime.ContentTypeJSON, &corev1.Secret{}, &corev1.ConfigMap{})
	return &Keeper{core, c.Namespace, c.Now}, err
}

// Keep makes or renews the certificate and key in the Secret called name, and the CA in the Secret
// called NAME-ca. It returns the CA's certificate, and whether it wrote one of the two. A conflict
// with another writer is an error, and nothing is half written.
func (k *Keeper) Keep(ctx context.Context, name string, leaf signing.Leaf) (ca []byte, isNew bool, err error) {
	authority, pair, err := k.read(ctx, name)
	if err != nil {
		return nil, false, err
	}
	if len(authority.Data[certificateKey]) == 0 {
		if len(pair.Data[certificateKey]) > 0 {
			return nil, false, fmt.Errorf("secret %s: %w", name, errNoCA)
		}
		made, err := signing.NewCA("Pullpass CA "+leaf.CommonName, k.now())
		if err != nil {
			return nil, false, err
		}
		if authority, err = k.write(ctx, authority, made, nil); err != nil {
			return nil, false, err
		}
	}
	ca = authority.Data[certificateKey]
	signer, err := signing.ParsePair(ca, authority.Data[privateKey])
	if err != nil {
		return nil, false, fmt.Errorf("secret %s: %w", authority.Name, err)
	}
	if len(pair.Data[certificateKey]) > 0 {
		current, err := signing.ParsePair(pair.Data[certificateKey], pair.Data[privateKey])
		if err != nil {
			return nil, false, fmt.Errorf("secret %s: %w; it %w", name, err, ErrNotOurs)
		}
		if current.IsCurrent(signer, leaf, k.now()) {
			return ca, false, nil
		}
	}
	issued, err := signer.Issue(leaf, k.now())
	if err != nil {
		return nil, false, err
	}
	_, err = k.write(ctx, pair, issued, ca)
	return ca, true, err
}

func (k *Keeper) read(ctx context.Context, name string) (authority, pair *corev1.Secret, err error) {
	authority, pair = &corev1.Secret{}, &corev1.Secret{}
	for secret, name := range map[*corev1.Secret]string{authority: name + caSuffix, pair: name} {
		if err := k.core.Get().Namespace(k.namespace).Resource("secrets").Name(name).Do(ctx).Into(secret); err != nil {
			return nil, nil, err
		}
	}
	return authority, pair, nil
}

// write puts a certificate and its key into a Secret, as it was read. ca follows the certificate,
// and is also in ca.crt.
func (k *Keeper) write(ctx context.Context, secret *corev1.Secret, pair *signing.Pair, ca []byte) (*corev1.Secret, error) {
	certificate, key, err := pair.PEM()
	if err != nil {
		return nil, err
	}
	secret = secret.DeepCopy()
	data := map[string][]byte{certificateKey: append(certificate, ca...), privateKey: key}
	if ca != nil {
		data[trustKey] = ca
	}
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	maps.Copy(secret.Data, data)
	written := &corev1.Secret{}
	err = k.core.Put().Namespace(k.namespace).Resource("secrets").Name(secret.Name).Body(secret).Do(ctx).Into(written)
	return written, err
}

// Publish puts the certificate of a CA into the ConfigMap called name of a namespace, as ca.crt.
func (k *Keeper) Publish(ctx context.Context, namespace, name string, ca []byte) error {
	found := &corev1.ConfigMap{}
	if err := k.core.Get().Namespace(namespace).Resource("configmaps").Name(name).Do(ctx).Into(found); err != nil {
		return err
	}
	if found.Data[trustKey] == string(ca) {
		return nil
	}
	found.Data = map[string]string{trustKey: string(ca)}
	return k.core.Put().Namespace(namespace).Resource("configmaps").Name(name).Body(found).Do(ctx).Error()
}
